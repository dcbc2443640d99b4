"""Runs of real programs: what they record, and what survives kills and hostile lines."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import crash, kill, processes_of
from tests.e2e.mlflow_server import FakeMlflow, serving

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("runs")]

#: A training: its loss depends on a parameter of the submission.
TRAIN = """
import os, fairlead.run
lr = float(os.environ["FAIRLEAD_PARAM_lr"])
fairlead.run.param("batch", 32)
for step in range(100):
    fairlead.run.metric("loss", 1 / (1 + lr * step), step)
fairlead.run.note("done \\x1b]0;title\\x07</script>")
"""
#: Writes single facts and what is none, ends in the middle of a line, and is killed.
HOSTILE = """
import os, sys
with open(os.environ["FAIRLEAD_RUN_FILE"], "ab") as file:
    file.write(b'{"step": 7, "checkpoint": true}\\n')
    file.write(b'not json \\xff\\n{"metric": "\\x1b[31m", "value": 1}\\n[[[[[[\\n')
    for value in range(100_000):
        file.write(b'{"metric": "loss", "value": %d}\\n' % value)
    file.write(b'{"metric": "loss", "val')
os.kill(os.getpid(), 9)
"""
#: Says how long it works on a step, and goes on until a file is there.
SLOW = """
import json, os, pathlib, sys, time
seconds = 1.0 if os.environ["RANK"] == "2" else 0.5
work = {"seconds": seconds, "steps": 60, "spanSeconds": 600}
with open(os.environ["FAIRLEAD_PROGRESS_FILE"], "a") as file:
    file.write(json.dumps({"step": 60, "work": work}) + "\\n")
while not (pathlib.Path(sys.argv[0]).parent / "go").exists():
    time.sleep(0.05)
"""
#: Records, says so, and goes on until it is stopped.
LONG = """
import time, fairlead.run
fairlead.run.metric("loss", 0.5, 1)
time.sleep(1.1)
fairlead.run.metric("loss", 0.25, 2)
print("recorded", flush=True)
time.sleep(600)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.up("--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


def program(shell: Shell, text: str) -> tuple[str, ...]:
    path = shell.root / f"program-{len(text)}.py"
    path.write_text(text)
    return ("--", sys.executable, str(path))


def shown(shell: Shell, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(shell.run("runs", "show", name, "-o", "json").out)
    return found


def test_runs_are_recorded_listed_compared_and_run_again(shell: Shell) -> None:
    for rate in ("0.5", "0.1"):
        shell.run("run", "--param", f"lr={rate}", "--tag", "first", "--note", "by hand",
                  "--name", f"train-{rate[2:]}", *program(shell, TRAIN))  # fmt: skip
    listed = shell.run("runs", "--tag", "first", "--sort", "-loss", "-o", "csv",
                       "--columns", "name,lr,batch,loss,loss.max").out  # fmt: skip
    [head, slow, fast] = csv.reader(io.StringIO(listed))
    assert head == ["name", "lr", "batch", "loss", "loss.max"]
    assert (slow[:3], fast[:3]) == (["train-1", "0.1", "32"], ["train-5", "0.5", "32"])
    assert float(slow[3]) == pytest.approx(1 / 10.9)
    assert slow[4] == fast[4] == "1.0"
    text = shell.run("runs", "show", "train-5").out
    assert "note      by hand" in text
    assert "\x1b" not in text
    assert "in 100 values" in text
    differing = shell.run("runs", "compare", "train-5", "train-1").out.splitlines()
    assert [line.split()[0] for line in differing[1:]] == [
        "params.lr", "metrics.loss.last", "metrics.loss.min",
    ]  # fmt: skip
    with serving() as mlflow:
        _are_exported(shell, mlflow)
    again = shell.run("runs", "rerun", "train-5").out.strip()
    shell.run("wait", again)
    differing = shell.run("runs", "compare", "train-5", again, code=None).out
    assert "loss" not in differing, "the same parameters make the same metrics"
    shell.delete_job("train-5")
    shell.down()
    assert [line.split()[0] for line in shell.run("runs", "--no-headers").out.splitlines()] == [
        again, "train-1", "train-5",
    ]  # fmt: skip
    assert shown(shell, "train-5")["params"] == {"lr": "0.5", "batch": "32"}


def _are_exported(shell: Shell, mlflow: FakeMlflow) -> None:
    to = ("runs", "export", "--to", f"mlflow:{mlflow.address.replace('//', '//ann:s3cret@')}")
    for dry, action in (("--dry-run", "create"), (None, "create"), (None, "none")):
        done = shell.run(*to, "--tag", "first", "-o", "json", *([dry] if dry else []))
        assert [each["action"] for each in json.loads(done.out)] == [action] * 2
        assert "s3cret" not in done.out + done.err
    found = {run["name"]: run for run in mlflow.runs.values()}
    assert sorted(found) == ["train-1", "train-5"]
    assert found["train-5"]["status"] == "FINISHED"
    assert found["train-5"]["params"] == {"lr": "0.5", "batch": "32"}
    loss = [each for each in found["train-5"]["points"] if each["key"] == "loss"]
    assert (len(loss), loss[-1]["step"]) == (32, 99)
    assert loss[-1]["value"] == pytest.approx(1 / 50.5)


def test_a_member_that_is_slow_is_named_while_its_gang_runs_and_later(shell: Shell) -> None:
    script = str(_script_of(shell, SLOW))
    name = shell.run(
        "submit", "--nodes", "4", "--cpus", "10m", "--name", "slow", script
    ).out.strip()
    words = "worker-2 on"

    def is_named() -> bool:
        return words in shell.run("why", name).out

    eventually(is_named, expected=True)
    assert shell.state(name) == "Running"
    assert "it slows the gang by up to 100%" in shell.run("why", name).out
    assert "worker-2 slows it by up to 100%" in shell.run("ps", name).out
    [attempt] = shell.status(name)["attempts"]
    [found] = attempt["stragglers"]
    node = found["node"]
    assert f"job default/{name}, worker-2 on {node} needs 1 s" in shell.run("node", node).out
    (shell.root / "go").touch()
    shell.run("wait", name)
    assert words in shell.run("why", name).out


def test_hostile_lines_and_a_program_that_is_killed_in_one(shell: Shell) -> None:
    shell.run("run", "--no-restart", "--name", "bad", *program(shell, HOSTILE), code=None)
    found = shown(shell, "bad")
    assert found["state"] == "Failed"
    [loss] = found["metrics"].values()  # type: ignore[attr-defined] # JSON
    assert {key: loss[key] for key in ("last", "count", "min", "max")} == {
        "last": 99_999, "count": 100_000, "min": 0, "max": 99_999,
    }  # fmt: skip
    assert len(loss["steps"]) == 32
    assert "isPartial" not in found
    assert "[31m" not in shell.run("runs", "show", "bad").out
    _, job = shell.get("/apis/fairlead.dev/v1alpha1/namespaces/default/jobs/bad")
    assert job["status"]["progress"]["checkpointStep"] == 7


def test_metrics_of_files_for_tensorboard_are_those_of_the_run(shell: Shell) -> None:
    """The file is one that tensorboardX wrote; an earlier run of the directory has one, too."""
    (shell.root / "logs").mkdir()
    events = Path(__file__).parents[1] / "unit/member/data/events.out.tfevents.tensorboardX-2.6.5"
    (shell.root / "logs" / "earlier.tfevents").write_bytes(events.read_bytes())
    script = f"mkdir logs/new; cp {events} logs/new/; exit 3"
    reader = (sys.executable, "-m", "fairlead.member.metrics", "--tensorboard", "logs", "--")
    shell.run("run", "--name", "board", "--", *reader, "sh", "-c", script, code=3)
    found = json.loads(shell.run("runs", "show", "board", "-o", "json").out)["metrics"]
    assert {name: (each["count"], each["step"]) for name, each in found.items()} == {
        "new/loss/train": (100, 99), "new/acc": (10, 90),
    }  # fmt: skip
    assert "board" in shell.run("runs", "--sort", "new/acc").out


def test_a_run_is_known_while_it_goes_on_and_after_the_cluster_was_killed(shell: Shell) -> None:
    name = shell.run("submit", "--name", "long", "--tag", "x", str(_script(shell))).out.strip()

    def is_known() -> bool:
        lines = shell.run("runs", "--tag", "x", "-o", "json").out
        return any(each["run"].get("metrics") for each in json.loads(lines))

    eventually(is_known, expected=True)
    assert "Running" in shell.run("runs", "--tag", "x").out
    crash(shell)
    shell.up()
    shell.run("cancel", name)
    shell.run("wait", name, code=None)
    found = shown(shell, name)
    assert found["state"] == "Cancelled"
    loss = found["metrics"]["loss"]  # type: ignore[index] # JSON
    assert (loss["last"], loss["step"], loss["count"]) == (0.25, 2, 2)


def _script(shell: Shell) -> Path:
    return _script_of(shell, LONG)


def _script_of(shell: Shell, text: str) -> Path:
    _, *command = program(shell, text)
    path = shell.root / f"program-{len(text)}.sh"
    path.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
    return path


def test_a_sweep_is_one_array_whose_elements_are_runs(shell: Shell) -> None:
    (shell.root / "sweep.yaml").write_text(
        "parameters: {lr: [0.1, 0.5], batch: {min: 8, max: 16, steps: 2}}\nparallelism: 2\n"
    )
    (shell.root / "bad.yaml").write_text("parameters: {lr: []}\n")
    refused = shell.run("sweep", "bad.yaml", *program(shell, TRAIN), code=2)
    assert "bad.yaml:1:14" in refused.err
    command = (*program(shell, TRAIN), "{lr}")
    name = shell.run("sweep", "sweep.yaml", "--tag", "s", "--name", "s", *command).out.strip()
    _, array = shell.get(f"/apis/fairlead.dev/v1alpha1/namespaces/default/jobarrays/{name}")
    assert array["spec"]["parameters"] == {
        "lr": ["0.1", "0.1", "0.5", "0.5"], "batch": ["8", "16", "8", "16"],
    }  # fmt: skip
    shell.run("wait", name)
    listed = json.loads(shell.run("runs", "--tag", "s", "--sort", "name", "-o", "json").out)
    rates = [(each["name"], each["run"]["params"]["lr"]) for each in listed]
    assert rates == [("s-0", "0.1"), ("s-1", "0.1"), ("s-2", "0.5"), ("s-3", "0.5")]
    # What the program says of a parameter is later, and counts.
    assert {each["run"]["params"]["batch"] for each in listed} == {"32"}
    assert all(each["run"]["metrics"]["loss"]["last"] < 0.1 for each in listed)
    assert shown(shell, "s[3]")["tags"] == ["s"]
