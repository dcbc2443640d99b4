"""`fairlead run --pty`: a job whose program has the terminal, and that ends with the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.test_interactive import Terminal, until_gone
from tests.patience import PATIENCE_SECONDS

from fairlead.cli.sessions import terminal_job

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    world = Shell(tmp_path_factory.mktemp("pty"))
    # Of this world alone, and not below pytest's, which other users are kept out of.
    with TemporaryDirectory(prefix="pty-") as places:
        Path(places).chmod(0o1777)
        world.environment["TMPDIR"] = places
        world.up("--nodes", "0", "--listen", "127.0.0.1:0")
        yield world
        world.down()


def run_pty(shell: Shell, name: str, *command: str, flags: tuple[str, ...] = ()) -> Terminal:
    return Terminal(
        shell, "run", "--pty", "--name", name, *(flags or ("--cpus", "50m")), "--", *command
    )


def test_the_program_has_the_terminal_and_its_exit_code_ends_the_command_and_the_job(
    shell: Shell,
) -> None:
    terminal = run_pty(shell, "good", "sh", "-c", "tty && echo rank-$RANK $TERM; read a; exit $a")
    terminal.until(b"/dev/pts/")
    terminal.until(b"rank-0 xterm")
    terminal.type(b"7\n")
    assert terminal.end() == 7
    assert shell.state("good") == "Failed"
    assert "7" in shell.run("why", "good").out
    zero = run_pty(shell, "zero", "true")
    assert zero.end() == 0
    assert shell.state("zero") == "Succeeded"
    assert shell.run("logs", "zero").out == "", "nothing, but where --log asks for it"


def test_keys_such_as_ctrl_c_reach_the_program_and_do_not_end_the_job(shell: Shell) -> None:
    waits = "trap 'echo caught; exit 4' INT; echo up; while :; do sleep 0.1; done"
    terminal = run_pty(shell, "keys", "sh", "-c", waits)
    terminal.until(b"up\r\n")
    terminal.type(b"\x03")
    terminal.until(b"caught")
    assert terminal.end() == 4
    assert shell.state("keys") == "Failed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_can_neither_end_the_job_nor_read_its_pipe(
    shell: Shell,
) -> None:
    """The name of the pipe stands in the arguments of a process, which all users can read."""
    terminal = run_pty(shell, "private", "sh", "-c", "echo up; read a; exit $a")
    terminal.until(b"up\r\n")
    pipes = list(Path(shell.environment["TMPDIR"]).glob(".fairlead-run-*"))
    assert len(pipes) == 1
    seen = ["pgrep", "-f", f"fairlead-run {pipes[0].name.rpartition('-')[2]}"]
    assert subprocess.run(seen, capture_output=True, check=True).stdout
    for pipe in pipes:
        for access in (f"exec 3>{pipe}", f"exec 3<{pipe}"):
            tried = subprocess.run(
                ["/bin/sh", "-c", access], user=65534, group=65534, extra_groups=[],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert "Permission denied" in tried.stderr
    terminal.type(b"5\n")
    assert terminal.end() == 5
    assert not any(pipe.exists() for pipe in pipes)


def test_the_reason_is_shown_while_it_waits_and_ctrl_c_cancels_it(shell: Shell) -> None:
    most = f"{(os.cpu_count() or 1) * 600}m"
    (shell.root / "hold.sh").write_text("#!/bin/sh\nexec sleep 600\n")
    shell.run("submit", "--name", "holds", "--cpus", most, "hold.sh")
    eventually(lambda: shell.state("holds"), "Running")
    terminal = run_pty(shell, "waits", "true", flags=("--cpus", most))
    terminal.until(b"waits Waiting")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    eventually(lambda: shell.state("waits"), "Cancelled")
    shell.run("cancel", "holds")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_lost_terminal_leaves_the_program_for_another_one_to_go_on_with(
    shell: Shell, number: signal.Signals
) -> None:
    name = f"lost-{number.value}"
    terminal = run_pty(shell, name, "sh", "-c", "echo pid=$$=; read code; exit $code")
    terminal.until(b"=\r\n")
    terminal.process.send_signal(number)
    terminal.process.wait(PATIENCE_SECONDS)
    again = Terminal(shell, "attach", name)
    again.until(b"=\r\n")
    assert shell.state(name) == "Running"
    again.type(b"5\n")
    assert again.end() == 5
    eventually(lambda: shell.state(name), "Failed")
    assert "exited with code 5" in shell.run("why", name).out


def test_a_terminal_that_is_idle_for_too_long_ends_its_job(shell: Shell) -> None:
    flags = ("--cpus", "50m", "--idle", "2s")
    terminal = run_pty(shell, "idle", "sh", "-c", "echo pid=$$=; exec sleep 600", flags=flags)
    terminal.until(b"=\r\n")
    pid = int(terminal.shown.split(b"=")[1])
    terminal.until(b"the session ends: it was idle for 2s")
    assert terminal.end() == terminal_job.LOST
    until_gone(pid)
    assert shell.state("idle") == "Failed"
    assert "the session was idle for too long" in shell.run("logs", "idle").out


def test_a_holder_that_is_killed_ends_the_program_and_the_job(shell: Shell) -> None:
    terminal = run_pty(shell, "unheld", "sh", "-c", "echo parent=$PPID=; exec sleep 600")
    terminal.until(b"=\r\n")
    wrapper = int(terminal.shown.split(b"parent=")[1].split(b"=")[0])
    fields = Path(f"/proc/{wrapper}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(fields[1]), signal.SIGKILL)  # its parent, the holder
    assert terminal.end() == terminal_job.LOST
    assert shell.state("unheld") == "Failed"


def test_a_job_that_nobody_joins_ends_by_itself(shell: Shell) -> None:
    held = terminal_job.TerminalJob(("true",))
    command = [word.replace(f"sleep {terminal_job.JOIN_SECONDS}", "sleep 1")
               for word in held.program.arguments]  # fmt: skip
    shell.run("run", "--name", "unjoined", "--cpus", "50m", "--", *command, code=terminal_job.LOST)
    assert shell.state("unjoined") == "Failed"


def test_a_node_that_is_killed_meanwhile_is_joined_again_and_the_exit_code_is_the_programs(
    shell: Shell,
) -> None:
    terminal = run_pty(shell, "crash", "sh", "-c", "echo up; read code; exit $code")
    terminal.until(b"up\r\n")
    os.kill(shell.pid(), signal.SIGKILL)
    terminal.until(b"the connection is lost")
    shell.up("--nodes", "0", "--listen", "127.0.0.1:0")
    terminal.until(b"joined again")
    terminal.type(b"4\n")
    assert terminal.end() == 4
    eventually(lambda: shell.state("crash"), "Failed")


def test_what_the_terminal_shows_is_kept_in_the_log_of_the_job_where_that_is_asked_for(
    shell: Shell,
) -> None:
    shows = "stty -echo; echo \033[1mbold\033[0m; read secret; stty echo; read code; exit $code"
    flags = ("--cpus", "50m", "--log")
    terminal = run_pty(shell, "logged", "sh", "-c", shows, flags=flags)
    terminal.until(b"is kept in the log of the job, which others may read")
    terminal.until(b"bold")
    terminal.type(b"hunter2\n")
    eventually(lambda: b"session" in shell.run("logs", "logged").out.encode(), True)
    found = json.loads(shell.run("sessions", "logged", "-o", "json").out)
    assert [each["is_logged"] for each in found] == [True]
    terminal.type(b"6\n")
    assert terminal.end() == 6
    begin = f"[session {found[0]['name']}] "
    lines = [each for each in shell.run("logs", "logged").out.splitlines() if each]
    assert all(each.startswith(begin) for each in lines)
    assert f"{begin}bold" in lines
    assert f"{begin}6" in lines
    assert not any("hunter2" in each or "\x1b" in each for each in lines)
    (shell.root / "away.sh").write_text("#!/bin/sh\nexec sleep 600 >away.txt\n")
    shell.run("submit", "--name", "away", "--cpus", "50m", "away.sh")
    shell.run("wait", "away", "--for", "started", "--timeout", "100s")
    refused = Terminal(shell, "shell", "--log", "away")
    refused.until(b"the job's program has sent its output elsewhere")
    refused.until(b"without --log the session opens")
    assert refused.end() == 4
    assert (shell.root / "away.txt").read_bytes() == b""
    shell.run("cancel", "away")


def test_what_cannot_have_a_terminal_is_refused_with_what_to_do(shell: Shell) -> None:
    assert "needs a terminal" in shell.run("run", "--pty", "--", "sh", code=2).err
    gang = Terminal(shell, "run", "--pty", "--nodes", "2", "--", "sh")
    gang.until(b"--pty is for one member")
    assert gang.end() == 2
