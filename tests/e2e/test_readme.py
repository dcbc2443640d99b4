"""Every command of README works as written, on the cluster that README starts.

So do those of the pages for operators, which speak of a cluster of the reader's.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.e2e.command_server import command_server
from tests.e2e.disaster_world import kill, processes_of
from tests.unit.doctor.audit_log import cluster_log, with_agent
from tests.unit.doctor.test_preflight import MANIFEST

from fairlead.cli.main import INTERRUPTED

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
KUBECTL = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")
#: Ranks of MPI poll while they wait: on few cores beside other work, each step waits for turns.
COMMAND_SECONDS_MAX = 400.0
COMMAND = re.compile(r"^(?:    |\$ |)((?:fairlead|kubectl|make|python|zstd|\.) .*?)(?:   *#.*)?$")
#: Commands of README that other tests run, or that would need more than an embedded cluster.
ELSEWHERE = {
    "make demo": "tests/e2e/test_demo.py",
    "make test": "these tests",
    ". .venv/bin/activate": "the environment of the tests",
    "fairlead install --image REGISTRY/fairlead:0.1.0": "tests/kubernetes/test_install.py",
    "fairlead install --check": "tests/kubernetes/test_install.py",
    "kubectl label namespace team fairlead.dev/gang-scheduling=enabled":
        "tests/kubernetes/test_adoption_whole.py",
    "fairlead sim run examples/scenarios/small-day.yaml --out day":
        "test_the_commands_of_the_simulator_page_work",
    "python -m fairlead.sim --seed 7": "tests/simulation/test_world.py",
    "make cluster-packages && make cluster": "tests/kubernetes/nodes",
    "make demo-cluster": "a target",
    "make cluster-down": "tests/kubernetes/nodes",
    "make test-kubernetes": "a target",
    "make soak MINUTES=10": "a target",
    "make mutants": "a target",
    "make lint": "a target",
    "make bench": "a target",
    "make scale": "a target",
}  # fmt: skip


def commands_of(text: str) -> list[str]:
    """The commands of a page, indented or in a block, without their comments."""
    found = (COMMAND.match(line) for line in text.splitlines())
    return [match[1] for match in found if match is not None]


class Reader:
    """Somebody who types what a page says, with a home and a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.shell = Shell(root)
        self.data = root / ".local" / "share" / "fairlead"
        self.shell.data = self.data
        (root / "examples").symlink_to(ROOT / "examples")
        self.environment = {
            k: v for k, v in self.shell.environment.items() if k != "FAIRLEAD_KUBECONFIG"
        }
        self.finds_programs_in(Path(sys.executable).parent)

    def finds_programs_in(self, directory: Path) -> None:
        """Put a directory in front of the PATH."""
        self.environment["PATH"] = f"{directory}{os.pathsep}{self.environment['PATH']}"

    def types(self, command: str, codes: Collection[int] = (0,)) -> str:
        """Run a command line and check its exit code."""
        real = command.replace("fairlead up ", "fairlead up --listen 127.0.0.1:0 ")
        done = subprocess.run(
            real, shell=True, cwd=self.shell.root, env=self.environment, text=True, check=False,
            capture_output=True, timeout=COMMAND_SECONDS_MAX, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode in codes, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        if reader.data.exists():
            reader.types("fairlead down", range(256))
        kill(processes_of(reader.data))


@pytest.fixture
def quick_reader(reader: Reader) -> Reader:
    """A reader whose commands are forked: that they start is shown by README's own."""
    reader.finds_programs_in(command_server().programs)
    return reader


def blocks(text: str) -> list[str]:
    """The indented blocks of a page."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    return ["\n".join(line[4:] for line in block.splitlines()) + "\n" for block in found]


def test_every_command_of_readme_works_as_written(reader: Reader) -> None:
    text = (ROOT / "README.md").read_text()
    commands = [c for c in commands_of(text) if c not in ELSEWHERE]
    down = commands.index("fairlead down")
    assert "fairlead up --nodes 200 --detach" in commands[:down]
    (reader.shell.root / "audit.log").write_bytes(cluster_log().text())
    for command in commands[:down]:
        if command.startswith("kubectl") and KUBECTL is None:
            continue
        reader.types(command)
    for command in commands[down + 1 :]:
        examines = command.startswith("fairlead doctor")  # 0 to 3 say what was found
        assert examines or command == "fairlead decisions", f"{command} is run by no test"
        reader.types(command, range(4) if examines else (0,))
    (script,) = (block for block in blocks(text) if "#FAIRLEAD" in block)
    (reader.shell.root / "job.sh").write_text(script.strip() + "\n")
    assert reader.types("fairlead submit job.sh").strip() == "job-1"
    reader.types("fairlead wait job-1 --for started --timeout 60s")
    reader.types("fairlead cancel job-1")
    reader.types(commands[down])


def test_the_answer_of_why_looks_as_readme_shows_it(quick_reader: Reader) -> None:
    (shown,) = (b for b in blocks((ROOT / "README.md").read_text()) if "$ fairlead why" in b)
    (quick_reader.shell.root / "all.sh").write_text("true\n")
    quick_reader.types("fairlead up --nodes 200 --detach")
    for name in ("all-a", "all-b"):
        quick_reader.types(f"fairlead submit all.sh --name {name} --nodes 200 --gpus 8 --time 10m "
                     "--simulate 10m")  # fmt: skip
        if name == "all-a":
            quick_reader.types("fairlead wait all-a --for started --timeout 60s")
    found = ""
    for _ in range(20):
        found = quick_reader.types("fairlead why all-b")
        if "may start" in found:
            break
    assert _form(found) == _form(shown)


def _form(text: str) -> list[str]:
    """What is said, without the times that differ from run to run."""
    text = re.sub(r"\d+(?:h|m|s)(?:\d+s)?", "TIME", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("$ ")]


def test_the_targets_that_readme_names_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    named = {c.split()[1] for c in commands_of(text) if c.startswith("make ")}
    there = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= there
    assert set(ELSEWHERE) <= set(commands_of(text)), "README has these commands no more"


# The pages for operators

SCENARIO = "cluster: {nodes: 4}\nload: {days: 1, jobsPerDay: 20, membersMax: 2}\n"


def replaced(command: str, words: Mapping[str, str]) -> str:
    for old, new in words.items():
        command = command.replace(old, new)
    return command


def test_the_commands_of_the_simulator_page_work(quick_reader: Reader) -> None:
    tmp_path = quick_reader.shell.root
    (tmp_path / "examples").unlink()
    scenarios = tmp_path / "examples" / "scenarios"
    scenarios.mkdir(parents=True)
    for scenario in (ROOT / "examples" / "scenarios").glob("*.yaml"):
        (scenarios / scenario.name).write_text(SCENARIO)
    lines = ["submit_seconds,run_seconds,members,gpus,name,tenant,limit_seconds"]
    lines += [f"{60 * i},600,1,8,job-{i},a,3600" for i in range(5)]
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    stages = ROOT / "tests" / "golden" / "data" / "kwok" / "general.yaml"
    (tmp_path / "stages.yaml").write_text(stages.read_text())
    text = (ROOT / "docs" / "howto" / "simulate.md").read_text()
    small = {"--nodes 100": "--nodes 4", "--days 30": "--days 1", "job-00017": "job-00003"}
    commands = commands_of(text)
    assert len(commands) > 4
    # What `sim record` records.
    quick_reader.types("fairlead up --nodes 2 --detach")
    (tmp_path / "train.sh").write_text("true\n")
    quick_reader.types("fairlead submit train.sh --name train --nodes 1 --gpus 8 --simulate 1s")
    quick_reader.types("fairlead wait train --timeout 60s")
    for command in commands:
        quick_reader.types(replaced(command, small))
    assert (tmp_path / "day" / "report.html").exists()


def test_the_commands_of_the_doctor_page_work(quick_reader: Reader) -> None:
    root = quick_reader.shell.root
    log = with_agent(cluster_log(), "/api/v1/pods").text()
    for name in ("audit.log", "before.log", "after.log", "audit-1.log"):
        (root / name).write_bytes(log)
    (root / "agent.yaml").write_text(MANIFEST)
    (root / "node-1.facts").write_text("vm.max_map_count = 65530\n")
    text = (ROOT / "docs" / "howto" / "doctor.md").read_text()
    (suppressions,) = re.findall(r"```yaml\n(suppressions:.*?)```", text, re.DOTALL)
    (root / "doctor.yaml").write_text(suppressions)
    quick_reader.types("fairlead up --nodes 2 --detach")
    words = {
        "/var/log/kubernetes/audit*.log*": "audit*.log*",
        "fairlead doctor ": (
            "fairlead doctor --interval 1 --kubeconfig ~/.local/share/fairlead/kubeconfig "
        ),
    }
    commands = commands_of(text)
    assert len(commands) > 10
    for command in commands:
        if command.startswith("zstd") or "--node-pods" in command:
            continue  # a package that is optional; nodes that run pods, in tests/kubernetes
        is_subcommand = re.match(
            r"fairlead doctor (audit|checks|preflight|alerts|dashboards|snapshot|--explain)",
            command,
        )
        used = {key: word for key, word in words.items() if not is_subcommand or "log" in key}
        command = replaced(command, used)
        if " --follow " in command:  # a report at each interval, until it is interrupted
            command = f"timeout --preserve-status --signal INT 8 {command} --interval 2"
            assert "REQUESTS" in quick_reader.types(command, [INTERRUPTED])
            continue
        quick_reader.types(command, range(4))
    assert quick_reader.types("fairlead doctor --interval 1 --node-facts node-1.facts", range(4))


@pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL")
def test_the_commands_of_the_drain_page_move_a_job_to_another_node(quick_reader: Reader) -> None:
    quick_reader.types("fairlead up --nodes 3 --detach")
    quick_reader.environment["KUBECONFIG"] = str(quick_reader.data / "kubeconfig")
    (quick_reader.shell.root / "train.sh").write_text("true\n")
    quick_reader.types("fairlead submit train.sh --name train --nodes 2 --gpus 8 --simulate 1h")
    quick_reader.types("fairlead wait train --for started --timeout 60s")
    node = quick_reader.types("kubectl get pods -o jsonpath={.items[0].spec.nodeName}").strip()
    commands = commands_of((ROOT / "docs" / "howto" / "drain.md").read_text())
    assert [command.split()[1] for command in commands] == [
        "annotate", "annotate", "drain", "uncordon", "taint", "taint",
    ]  # fmt: skip
    for command in commands:
        # The page's maintenance is over when this is run, some day.
        quick_reader.types(command.replace("NODE", node).replace("2026-", "2999-"))
        if "2026-" in command:
            assert "maintenance from 2999-12-01T08:00:00Z" in quick_reader.types("fairlead nodes")
            quick_reader.types(
                "fairlead submit train.sh --name late --nodes 3 --gpus 8 --simulate 1h"
            )
            quick_reader.types("fairlead wait late --for started --timeout 3s", [124])
            assert "Maintenance" in quick_reader.types("fairlead why late")
            quick_reader.types("fairlead cancel late")
        if " drain " in command:
            quick_reader.types("fairlead wait train --for started --timeout 60s")
            assert (
                node not in quick_reader.types("kubectl get pods -o jsonpath={..nodeName}").split()
            )
