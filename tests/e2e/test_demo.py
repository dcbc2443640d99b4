"""`make demo` as a new user meets it, and what it must leave alone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("demo")]

DEMO = Path(__file__).resolve().parents[2] / "tools" / "demo.py"
ANSWER_SECONDS_MAX = 600.0
RANK_2 = {"FAIRLEAD_JOB": "digits", "RANK": "2"}


def start_demo(temporary: Path, *options: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD", "KUBE"))}
    return subprocess.Popen(
        [sys.executable, DEMO, *options], env={**environment, "TMPDIR": str(temporary)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@contextmanager
def training(directory: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that looks like a rank of the demo's training."""
    script = directory / "examples" / "digits" / "train.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    if not script.exists():  # another may be about to read it
        script.write_text("import time\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [sys.executable, "examples/digits/train.py"], cwd=directory,
        env={**os.environ, **RANK_2, **environment},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def check_story(out: str) -> None:
    """Check what one demo printed: its story, its times in order, and the logs that it kept."""
    story = [
        "submitted", "placed: 4 members", "running as attempt 1", "cause: Infrastructure",
        "restarted as attempt 2 from step ", "succeeded", "Result:  accuracy 0.9",
    ]  # fmt: skip
    shown = out[out.index("Timeline of digits") :]
    assert re.search(".*".join(map(re.escape, story)), shown, re.DOTALL), shown
    times = [float(t) for t in re.findall(r"^ *(\d+\.\d) s  ", out, re.MULTILINE)]
    assert len(times) > 5
    assert times == sorted(times)
    logs = re.search(r"^Logs: +(\S+)$", out, re.MULTILINE)
    assert logs is not None
    assert any(Path(logs[1]).rglob("*.log")), "the logs are kept after the end"


def test_two_demos_at_once_beside_the_users_own_cluster_leave_each_other_alone(
    tmp_path: Path,
) -> None:
    own = Shell(tmp_path / "own")
    own.root.mkdir()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    own.up("--nodes", "0", "--listen", "127.0.0.1:0")
    try:
        own.run("submit", str(_sleeper(own.root)), "--name", "digits")
        eventually(lambda: own.state("digits"), "Running")
        with training(own.root) as stranger:
            demos = [start_demo(temporary), start_demo(temporary, "--nodes", "20")]
            outputs = [demo.communicate(timeout=ANSWER_SECONDS_MAX) for demo in demos]
            assert stranger.poll() is None
        left = processes_of(temporary)
        assert own.state("digits") == "Running"
        assert own.job("digits")["status"]["attempt"] == 1
    finally:
        kill(processes_of(temporary))
        own.down()
        kill(processes_of(own.data))
    for demo, (out, err) in zip(demos, outputs, strict=True):
        assert (demo.returncode, err) == (0, ""), out + err
        check_story(out)
    assert left == []


def _sleeper(directory: Path) -> Path:
    script = directory / "sleep.sh"
    script.write_text("#!/bin/sh\n#FAIRLEAD --cpus 10m\nexec sleep 600\n")
    return script


@pytest.fixture
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


def record_member(data: Path, pid: int) -> None:
    """Record a member as the local node does: pod.json, and shim.json of its container."""
    container = data / "local" / "pods" / "uid-1" / "containers" / "main" / "0"
    container.mkdir(parents=True)
    pod = {"namespace": "default", "name": "digits-1-worker-2"}
    (data / "local" / "pods" / "uid-1" / "pod.json").write_text(json.dumps(pod))
    (container / "shim.json").write_text(json.dumps({"pid": pid, "ticks": 1, "boot": "b"}))


def test_the_demo_kills_the_rank_of_its_own_cluster_and_no_other(
    tmp_path: Path, demo: ModuleType
) -> None:
    data = tmp_path / "data"
    checkpoints = {"FAIRLEAD_CHECKPOINT_DIR": str(data / "checkpoints")}
    # Started last, so that its number is the highest: a search of all processes would find it.
    with training(tmp_path, **checkpoints) as mine, training(tmp_path) as stranger:
        record_member(data, mine.pid)
        assert demo.kill_rank(data, "digits", 2) == mine.pid
        assert mine.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert stranger.poll() is None


def test_the_demo_kills_nothing_when_a_recorded_number_belongs_to_another_program(
    tmp_path: Path, demo: ModuleType
) -> None:
    with training(tmp_path) as stranger:
        record_member(tmp_path / "data", stranger.pid)
        with pytest.raises(demo.Failed, match="rank 2 of job digits has no process"):
            demo.kill_rank(tmp_path / "data", "digits", 2)
        assert stranger.poll() is None


def test_a_demo_removes_what_an_ended_one_left_and_keeps_what_is_in_use(
    tmp_path: Path, demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.tempfile, "gettempdir", lambda: str(tmp_path))
    with demo.own_directory() as ended:
        pass
    assert ended.exists()
    with demo.own_directory() as first, demo.own_directory() as second:
        assert not ended.exists()
        assert first != second
        assert first.exists()
