"""An administrator's own checks: both conventions, time-outs, and what a program may leave."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from tests.unit.node.host_tree import HostTree, Looks, changed, named

from fairlead.model.health.faults import Action, Ending, Severity
from fairlead.node.readers import look_once
from fairlead.node.reports.watch import MachineWatch
from fairlead.node.running.program_run import OUTPUT_BYTES_MAX, ProgramOutcome, adopt_orphans, run
from fairlead.node.settings import AgentSettings, ProgramSettings
from fairlead.node.source import SourceState
from fairlead.node.sources.programs import ProgramReader, judge


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path / "host")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "checks"
    made.mkdir()
    return made


def program(directory: Path, name: str, text: str, mode: int = 0o755) -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def watched(tree: HostTree, directory: Path, **fields: object) -> Looks:
    settings = changed(AgentSettings(), "programs", directory=str(directory), **fields)
    return Looks(tree, "programs", settings=settings)


def all_run(looks: Looks) -> MachineWatch:
    """Let each program that is due run to its end."""
    asyncio.run(look_once(looks.sources, looks.watch, looks.host, 30))
    return looks.watch


def test_the_convention_of_node_problem_detector(tree: HostTree, directory: Path) -> None:
    program(directory, "good", "echo fine; exit 0")
    program(directory, "bad", "echo NTP is down; echo more; exit 1")
    program(directory, "unknown", "echo no answer; exit 2")
    program(directory, "odd", "exit 7")
    looks = watched(tree, directory)
    (fault,) = all_run(looks).faults
    assert (fault.identity.component, fault.evidence) == ("bad", "NTP is down")
    assert (fault.verdict.severity, fault.verdict.action) == (Severity.WARNING, Action.WATCH)
    assert looks.health().unreadable == ("odd: exit code 7", "unknown: exit code 2: no answer")


def test_a_line_of_json_says_more(tree: HostTree, directory: Path) -> None:
    line = json.dumps({"component": "sdb", "codes": ["7"], "severity": "Critical",
                       "action": "Replace", "message": "7 bad sectors", "extra": 1})  # fmt: skip
    program(directory, "disk", f"echo '{line}'; exit 1")
    program(directory, "wrong", 'echo \'{"severity": "Awful"}\'; exit 1')
    looks = watched(tree, directory)
    (fault,) = all_run(looks).faults
    assert named([fault]) == [("own-check", "disk: sdb", ("7",))]
    assert (fault.verdict.severity, fault.verdict.action) == (Severity.CRITICAL, Action.REPLACE)
    assert (
        "wrong: the line is no result: Invalid enum value 'Awful'" in looks.health().unreadable[0]
    )


def test_a_fault_is_over_when_its_check_is_good_and_stays_while_it_is_unknown(
    tree: HostTree, directory: Path
) -> None:
    program(directory, "disk", "exit 1")
    looks = watched(tree, directory)
    assert len(all_run(looks).faults) == 1
    program(directory, "disk", "exit 2")
    tree.passes(60)
    assert len(all_run(looks).faults) == 1
    program(directory, "disk", "exit 0")
    assert len(all_run(looks).faults) == 1, "it is not due"
    tree.passes(60)
    assert all_run(looks).faults == ()


def test_a_check_that_was_removed_leaves_no_fault(tree: HostTree, directory: Path) -> None:
    path = program(directory, "disk", "exit 1")
    looks = watched(tree, directory)
    assert len(all_run(looks).faults) == 1
    looks.restart()
    assert len(looks.look()) == 1, "its first run after a restart is still to come"
    path.unlink()
    assert all_run(looks).faults == ()
    program(directory, "disk", "exit 1")
    tree.passes(60)
    assert len(all_run(looks).faults) == 1
    looks.settings = AgentSettings()
    looks.sources = ()
    assert MachineWatch((), looks.watch.kept(), boot_id="x", now=looks.host.now()).ended[
        -1
    ].ending is (Ending.CHECK_REMOVED)


def test_a_check_that_forks_and_takes_too_long_is_killed_with_all_that_it_started(
    tmp_path: Path,
) -> None:
    adopt_orphans()
    note = tmp_path / "pids"
    text = (
        f"sleep 600 & echo $! >> {note}; (sleep 600 & echo $! >> {note}); echo $$ >> {note}; wait"
    )
    path = program(tmp_path, "slow", text)
    outcome = run(path, 0.5)
    assert outcome.why == "killed after 0.5 s"
    pids = [int(line) for line in note.read_text().split()]
    assert len(pids) == 3
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == [], (
        "neither alive nor a zombie"
    )


def test_a_check_that_leaves_a_child_with_its_output_has_ended(tmp_path: Path) -> None:
    adopt_orphans()
    note = tmp_path / "pid"
    path = program(tmp_path, "leaves", f"sleep 600 & echo $! > {note}; echo done; exit 0")
    ran = run(path, 60)
    assert (ran.code, ran.line, ran.why) == (0, "done", "")
    assert not Path(f"/proc/{note.read_text().strip()}").exists()


def test_output_is_bounded_and_does_not_block_the_program(tmp_path: Path) -> None:
    path = program(tmp_path, "loud", "head -c 5000000 /dev/zero | tr '\\0' x; exit 1")
    outcome = run(path, 60)
    assert outcome.code == 1
    assert len(outcome.line) == OUTPUT_BYTES_MAX


def test_a_program_that_cannot_be_started_or_is_killed_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "no-interpreter"
    path.write_text("#!/no/such/shell\n")
    path.chmod(0o755)
    assert run(path, 5).why == "cannot be started: No such file or directory"
    assert run(program(tmp_path, "dies", "kill -9 $$"), 5).why == "ended by signal 9 (Killed)"


class Stuck:
    """What is left of a program that sleeps uninterruptibly."""

    def __init__(self) -> None:
        self.has_ended = False

    def poll(self) -> int | None:
        return 0 if self.has_ended else None


def test_a_program_in_state_d_holds_up_no_other_and_is_not_started_again(
    tree: HostTree, directory: Path
) -> None:
    for name in ("a-hangs", "b", "c"):
        program(directory, name, "exit 0")
    stuck, begun, begin = Stuck(), list[str](), threading.Event()

    def stand_in(path: Path, _seconds: float) -> ProgramOutcome:
        begun.append(path.name)
        begin.wait()
        if path.name == "a-hangs":
            leftover: subprocess.Popen[bytes] = stuck  # type: ignore[assignment]
            return ProgramOutcome(None, why="hangs in the kernel", leftover=leftover)
        return ProgramOutcome(0)

    begin.set()
    reader = ProgramReader(
        tree.host(), ProgramSettings(directory=str(directory), concurrency=1), stand_in
    )
    rounds = 0
    while reader.read() and (rounds < 3 or reader.is_busy()):
        if not reader.is_busy():
            rounds += 1
            tree.passes(60)
    assert begun.count("a-hangs") == 1
    assert begun.count("b") >= 3
    stuck.has_ended = True
    tree.passes(60)
    while "a-hangs" not in begun[1:]:
        reader.read()


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_program_that_others_can_write_to_is_not_run(
    tree: HostTree, directory: Path, mode: int
) -> None:
    program(directory, "open", "exit 1", mode)
    program(directory, "data", "exit 1", 0o644)
    looks = watched(tree, directory)
    assert all_run(looks).faults == ()
    assert looks.health().unreadable == ("open: others than its owner can write to it",)
    assert stat.S_IMODE((directory / "open").stat().st_mode) == mode


def test_a_link_to_nothing_leaves_the_others_running(tree: HostTree, directory: Path) -> None:
    program(directory, "good", "exit 1")
    (directory / "lost").symlink_to(directory / "nothing")
    looks = watched(tree, directory)
    assert len(all_run(looks).faults) == 1
    assert looks.health().unreadable == ("lost: No such file or directory",)


def test_a_run_that_cannot_be_watched_is_unknown_and_ends(tree: HostTree, directory: Path) -> None:
    program(directory, "any", "exit 0")

    def fails(_path: Path, _seconds: float) -> ProgramOutcome:
        raise OSError(38, "Function not implemented")

    reader = ProgramReader(tree.host(), ProgramSettings(directory=str(directory)), fails)
    while not (found := reader.read().outcomes):
        pass
    (outcome,) = found.values()
    assert outcome == ProgramOutcome(None, why="cannot be watched: Function not implemented")


def test_what_a_program_says_is_waited_for_until_it_was_read(
    tree: HostTree, directory: Path
) -> None:
    """It may end right after a read, and no other read would come."""
    program(directory, "any", "exit 0")
    ended = threading.Event()

    def stand_in(_path: Path, _seconds: float) -> ProgramOutcome:
        ended.wait()
        return ProgramOutcome(1, "late")

    reader = ProgramReader(tree.host(), ProgramSettings(directory=str(directory)), stand_in)
    assert reader.read().outcomes == {}
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "program-any":
            thread.join()
    assert reader.is_busy()
    assert reader.read().outcomes == {"any": ProgramOutcome(1, "late")}
    assert not reader.is_busy()


def test_a_directory_that_is_not_there_is_skipped(tree: HostTree, directory: Path) -> None:
    looks = watched(tree, directory / "none")
    looks.look()
    assert looks.health().state is SourceState.SKIPPED


def test_judging_is_pure(tree: HostTree, directory: Path) -> None:
    """The same facts and memory give the same."""
    program(directory, "disk", "exit 1")
    looks = watched(tree, directory)
    all_run(looks)
    source = looks.sources[0]
    facts, now = source.read(), looks.host.now()
    first = judge(facts, source.memory_type(), now, settings=looks.settings.programs)
    assert first == judge(facts, source.memory_type(), now, settings=looks.settings.programs)
    assert first.observations
