"""The process that forks shims: it may be gone at any moment, and may not answer."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.patience import PATIENCE_SECONDS

from fairlead.embedded.local.containers import ContainerLaunch
from fairlead.embedded.local.logfiles import LogLimits
from fairlead.embedded.local.machine import read_machine
from fairlead.embedded.local.memory import MemoryGroups
from fairlead.embedded.local.processes import shim_server
from fairlead.embedded.local.processes.process import Run
from fairlead.embedded.local.processes.shim_server import ShimServer

pytestmark = pytest.mark.e2e


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ShimServer]:
    server = ShimServer(tmp_path)
    try:
        yield server
    finally:
        server.close()
        kill(processes_of(tmp_path))


class Program:
    """One start of `bash -c LINE`, in a directory of its own."""

    def __init__(self, server: ShimServer, root: Path, name: str) -> None:
        self._server, self._root = server, root
        self.run = Run(root / name, read_machine(lambda: ()).boot_id)
        self.run.path.mkdir()

    def start(self, line: str) -> None:
        launch = ContainerLaunch(("/bin/bash", "-c", line), {}, str(self._root))
        log = self.run.path / "log"
        self.run.start(launch, log, LogLimits(), MemoryGroups(), shims=self._server)

    async def exit_code(self) -> int:
        await self.run.wait()
        found = self.run.exit()
        assert found is not None, self.run.last_words()
        return found.exit_code


def servers(root: Path) -> list[int]:
    """The processes of ours that fork shims; shims are their children."""
    return [pid for pid in processes_of(root) if parent(pid) == os.getpid()]


def parent(pid: int) -> int:
    """Return the parent of a process; 0 when it has gone, which a shim may at any moment."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


async def test_a_program_outlives_the_server_and_another_server_starts_the_next(
    server: ShimServer, tmp_path: Path
) -> None:
    first, second = (Program(server, tmp_path, name) for name in ("first", "second"))
    os.mkfifo(tmp_path / "go")
    first.start("read line < go; exit 3")
    await first.run.wait_started()
    [before] = servers(tmp_path)
    os.kill(before, signal.SIGKILL)
    second.start("exit 4")
    assert await second.exit_code() == 4
    [after] = servers(tmp_path)
    assert after != before
    (tmp_path / "go").write_text("\n")
    assert await first.exit_code() == 3


async def test_a_server_ends_when_its_node_does_and_what_it_started_does_not(
    server: ShimServer, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    program = Program(server, tmp_path, "one")
    program.start("read line < go; exit 5")
    await program.run.wait_started()
    server.close()
    assert servers(tmp_path) == []
    (tmp_path / "go").write_text("\n")
    assert await program.exit_code() == 5


async def test_a_start_without_an_answer_is_given_up_and_never_happens(
    server: ShimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Program(server, tmp_path, "known")
    known.start("exit 0")
    assert await known.exit_code() == 0
    [pid] = servers(tmp_path)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(shim_server, "ANSWER_SECONDS_MAX", 0.2)
    late = Program(server, tmp_path, "late")
    with pytest.raises(TimeoutError):
        late.start("touch ran")
    assert late.run.never_started()
    again = Program(server, tmp_path, "again")
    monkeypatch.setattr(shim_server, "ANSWER_SECONDS_MAX", PATIENCE_SECONDS)
    again.start("exit 6")
    assert await again.exit_code() == 6
    assert not (tmp_path / "ran").exists()


async def test_programs_that_have_ended_leave_no_processes(
    server: ShimServer, tmp_path: Path
) -> None:
    for number in range(20):
        program = Program(server, tmp_path, str(number))
        program.start("exit 0")
        assert await program.exit_code() == 0
    eventually(lambda: len(processes_of(tmp_path)), 1)
