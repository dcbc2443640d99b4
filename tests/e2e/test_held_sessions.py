"""Terminals that stay in their member when their viewer goes: `shell`, `attach`, `sessions`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.test_interactive import Terminal, until_gone
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e
OPTIONS = ("--nodes", "0", "--listen", "127.0.0.1:0")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    world = Shell(tmp_path_factory.mktemp("held"))
    # Not below pytest's, which other users are kept out of.
    with TemporaryDirectory(prefix="held-") as places:
        Path(places).chmod(0o1777)
        world.environment["TMPDIR"] = places
        world.up(*OPTIONS)
        (world.root / "gang.sh").write_text("#!/bin/sh\n#FAIRLEAD --cpus 50m\nexec sleep 3600\n")
        world.run("submit", "gang.sh", "--name", "gang", "--nodes", "2")
        world.run("wait", "gang", "--for", "started", "--timeout", "100s")
        yield world
        world.down()


def sessions(shell: Shell, job: str = "") -> dict[str, dict[str, object]]:
    found = json.loads(shell.run("sessions", *filter(None, [job]), "-o", "json").out)
    return {each["session"]: each for each in found}


def opened(shell: Shell, job: str, *flags: str) -> tuple[Terminal, str]:
    """Open a shell; return its terminal and what the session is called."""
    before = set(sessions(shell, job))
    terminal = Terminal(shell, "shell", job, *flags)
    terminal.type(b"PS1=; echo re''ady\n")
    terminal.until(b"ready")
    (name,) = set(sessions(shell, job)) - before
    return terminal, name


def number(terminal: Terminal, expression: bytes) -> int:
    """Return what the shell expands to a number."""
    terminal.type(b"echo num''ber=" + expression + b".\n")
    terminal.until(b"number=")
    terminal.until(b".\r\n")
    return int(terminal.shown.rsplit(b"number=", 1)[1].split(b".")[0])


def lose(terminal: Terminal) -> None:
    terminal.process.kill()
    terminal.process.wait(PATIENCE_SECONDS)


def close(terminal: Terminal, code: int = 0) -> None:
    terminal.type(f"exit {code}\n".encode())
    assert terminal.end() == code


def test_a_killed_client_leaves_a_shell_with_its_variables_that_another_terminal_goes_on_with(
    shell: Shell,
) -> None:
    terminal, name = opened(shell, "gang/1")
    assert name.startswith("gang/worker-1:")
    terminal.type(b"kept=42; cd /; echo was''-shown\n")
    terminal.until(b"was-shown")
    lose(terminal)
    eventually(lambda: sessions(shell, "gang")[name]["is_joined"], False)
    again = Terminal(shell, "attach", name)
    again.until(b"was-shown")
    again.resize(45, 120)
    again.process.send_signal(signal.SIGWINCH)
    again.type(b"until [ \"$(stty size)\" = '45 120' ]; do :; done; echo $kept in $PWD $RANK.\n")
    again.until(b"42 in / 1.")
    close(again, 3)
    eventually(lambda: name in sessions(shell, "gang"), False)


def test_a_key_leaves_it_and_two_of_them_are_one_for_the_program(shell: Shell) -> None:
    terminal, name = opened(shell, "gang")
    terminal.type(b"stty raw -echo; echo go''es; head -c1 | od -An -c; stty sane\n")
    terminal.until(b"goes")
    terminal.type(b"\x1d\x1d")
    terminal.until(b"035")
    terminal.type(b"\x1dd")
    terminal.until(f"it goes on: fairlead attach {name}".encode())
    assert terminal.end() == 0
    again = Terminal(shell, "attach", "gang")  # its only one
    again.type(b"echo $((40 + 2))\n")
    again.until(b"42")
    close(again)


def test_the_latest_terminal_takes_the_session_over(shell: Shell) -> None:
    first, name = opened(shell, "gang")
    second = Terminal(shell, "attach", name)
    first.until(b"another terminal has joined the session")
    assert first.end() == 130
    second.type(b"echo mi''ne\n")
    second.until(b"mine")
    close(second)


def test_a_killed_server_loses_no_byte_and_the_client_joins_again_by_itself(shell: Shell) -> None:
    terminal, name = opened(shell, "gang")
    terminal.type(b"for i in $(seq 1 400); do echo line-$i; sleep 0.02; done; echo al''l\n")
    terminal.until(b"line-20\r\n")
    os.kill(shell.pid(), signal.SIGKILL)
    terminal.until(b"the connection is lost")
    terminal.type(b"echo typed''-meanwhile\n")
    shell.up(*OPTIONS)
    terminal.until(b"joined again")
    terminal.until(b"typed-meanwhile")
    lines = [int(each) for each in re.findall(rb"line-(\d+)\r\n", terminal.shown)]
    assert lines == list(range(1, 401))
    assert sessions(shell, "gang")[name]["is_joined"] is True
    close(terminal)


def test_ctrl_c_leaves_a_session_that_cannot_be_reached(shell: Shell) -> None:
    terminal, name = opened(shell, "gang")
    os.kill(shell.pid(), signal.SIGKILL)
    terminal.until(b"the connection is lost")
    terminal.type(b"\x03")
    assert terminal.end() == 0
    shell.up(*OPTIONS)
    again = Terminal(shell, "attach", name)
    close(again)


def test_a_program_that_floods_its_terminal_is_held_back_by_its_viewer_and_by_none_without_one(
    shell: Shell,
) -> None:
    terminal, name = opened(shell, "gang")
    script = (
        "import sys; [sys.stdout.write('%07d\\n' % i) for i in range(400000)]; print('en' + 'd')"
    )
    terminal.type(f'stty -onlcr; python3 -c "{script}"\n'.encode())
    terminal.until(b"0300000\n")
    terminal.until(b"end\n")
    begin = terminal.shown.index(b"0000000\n")
    shown = terminal.shown[begin : terminal.shown.index(b"end\n")]
    wanted = b"".join(b"%07d\n" % i for i in range(400000))
    assert hashlib.sha256(shown).digest() == hashlib.sha256(wanted).digest()
    terminal.type(b"(sleep 1; yes | head -c 30000000; touch done-flood; echo ov''er) \n")
    terminal.type(b"\x1dd")
    assert terminal.end() == 0
    eventually(lambda: (shell.root / "done-flood").exists(), True)
    again = Terminal(shell, "attach", name)
    again.until(b"over")
    assert len(again.shown) < 80 << 10, "the scrollback is bounded"
    close(again)


def test_a_client_that_stops_reading_stops_the_program_and_loses_nothing(shell: Shell) -> None:
    terminal, _ = opened(shell, "gang")
    terminal.process.send_signal(signal.SIGSTOP)
    terminal.type(b"stty -onlcr; seq 1 300000; echo fin''ished\n")
    time.sleep(1.0)
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until(b"finished")
    begin = terminal.shown.index(b"1\n2\n")
    shown = terminal.shown[begin : terminal.shown.index(b"finished", begin)]
    assert shown == b"".join(b"%d\n" % i for i in range(1, 300001))
    close(terminal)


def test_what_a_program_writes_is_no_message_and_the_modes_that_it_set_are_taken_back(
    shell: Shell,
) -> None:
    terminal, name = opened(shell, "gang")
    forged = rb"printf '\145\0\0\0\026{\042code\042: 0}'; "
    terminal.type(forged + rb"printf '\033[?1049h\033[?1003hdra'; echo wn" + b"\n")
    terminal.until(b"\x1b[?1049h\x1b[?1003hdrawn")
    lose(terminal)
    again = Terminal(shell, "attach", name)
    again.until(b"\x1b[?1003h")
    again.type(b"\x1dd")
    again.until(b"\x1b[?1003l\x1b[?1049l")
    assert again.end() == 0
    last = Terminal(shell, "attach", name)
    close(last, 4)


def test_an_idle_session_warns_and_ends_and_a_key_keeps_it(shell: Shell) -> None:
    terminal, name = opened(shell, "gang", "--idle", "12s")
    terminal.until(b"nothing was typed or shown; the session ends in ")
    pid = number(terminal, b"$$")
    terminal.until(b"the session ends: it was idle for 12s")
    assert terminal.end() == 129
    until_gone(pid)
    eventually(lambda: name in sessions(shell, "gang"), False)


def test_the_time_limit_is_warned_of(shell: Shell) -> None:
    shell.run("submit", "gang.sh", "--name", "short", "--time", "59s")
    shell.run("wait", "short", "--for", "started", "--timeout", "100s")
    terminal, _ = opened(shell, "short")
    terminal.until(b"the job ends at its time limit in ")
    shell.run("cancel", "short")
    assert terminal.end() == 137
    assert sessions(shell) == {}


def test_two_sessions_are_told_apart(shell: Shell) -> None:
    one, first = opened(shell, "gang/0")
    two, second = opened(shell, "gang/1")
    which = Terminal(shell, "attach", "gang")
    which.until(b"job gang has 2 sessions")
    which.until(second.encode())
    assert which.end() == 2
    member = Terminal(shell, "attach", "gang/0")
    member.type(b"echo rank-$RANK\n")
    member.until(b"rank-0")
    assert one.end() == 130
    close(member)
    close(two)
    none = Terminal(shell, "attach", first)
    none.until(b"gang/worker-0 has no session")
    assert none.end() == 4


def sockets(shell: Shell) -> list[Path]:
    return list(Path(shell.environment["TMPDIR"]).glob(".fairlead-session-*/socket"))


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    directory = os.open(path.parent, os.O_RDONLY)
    made.connect(f"/proc/self/fd/{directory}/socket")  # a socket's own path is limited
    os.close(directory)
    return made


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_machine_neither_joins_nor_deceives(shell: Shell) -> None:
    before = set(sockets(shell))  # of containers that were killed
    terminal, name = opened(shell, "gang")
    (path,) = set(sockets(shell)) - before
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    code = (
        f"import os; os.chdir({str(path.parent)!r}); from socket import *; "
        "s = socket(AF_UNIX); s.connect('socket'); print(s.recv(9))"
    )
    tried = subprocess.run(
        ["python3", "-c", code], user=65534, group=65534, extra_groups=[], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert "PermissionError" in tried.stderr
    path.parent.chmod(0o755)  # even where a directory were open: the peer's user is looked at
    path.chmod(0o777)
    tried = subprocess.run(
        ["python3", "-c", code], user=65534, group=65534, extra_groups=[], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert tried.stdout == "b''\n" or "ConnectionReset" in tried.stderr, tried
    assert sessions(shell, "gang") == {}, "a directory that others may enter is not trusted"
    path.parent.chmod(0o700)
    planted = path.parent.with_name(f"{path.parent.name[:-8]}planted0")
    serve = (
        "import os, socket, sys; os.mkdir(sys.argv[1], 0o700); os.chdir(sys.argv[1]); "
        "s = socket.socket(socket.AF_UNIX); s.bind('socket'); s.listen(); print(1, flush=True); "
        "s.accept(); print(2, flush=True)"
    )
    with subprocess.Popen(
        ["python3", "-c", serve, str(planted)], user=65534, group=65534, extra_groups=[],
        stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        link = planted.with_name(f"{planted.name}-link")
        link.symlink_to(path.parent)
        assert list(sessions(shell, "gang")) == [name]
        assert not select.select([other.stdout], [], [], 0.2)[0], "nothing connected to it"
        other.kill()
    link.unlink()
    close(terminal)
    eventually(lambda: path in sockets(shell), False)


def test_messages_that_no_viewer_sends_end_that_connection_and_not_the_session(
    shell: Shell,
) -> None:
    before = set(sockets(shell))
    terminal, _ = opened(shell, "gang")
    (path,) = set(sockets(shell)) - before
    for sent in (b"z\0\0\0\0", b"i\xff\xff\xff\xff", b"h\0\0\0\2{}", b"h\0\0\0\3abc"):
        with connected(path) as other:
            other.sendall(sent)
            other.settimeout(0.5 if sent.startswith(b"z") else PATIENCE_SECONDS)
            try:
                assert other.recv(100) == b""
            except TimeoutError:
                assert sent.startswith(b"z"), "a guest that is no viewer is not listened to"
    guests = [connected(path) for _ in range(20)]
    terminal.type(b"echo sti''ll\n")
    terminal.until(b"still")
    for guest in guests:
        guest.close()
    close(terminal)


def test_an_image_without_python_has_a_session_that_ends_with_its_terminal(shell: Shell) -> None:
    bare = shell.root / "bare"
    bare.mkdir()
    for program in ("sh", "env", "sleep", "tty"):
        (bare / program).symlink_to(f"/usr/bin/{program}")
    shell.run("submit", "gang.sh", "--name", "bare", "--env", f"PATH={bare}")
    shell.run("wait", "bare", "--for", "started", "--timeout", "100s")
    terminal = Terminal(shell, "shell", "bare")
    terminal.until(b"note: the session ends with this terminal: the image has no Python")
    pid = number(terminal, b"$$")
    assert "no sessions" in shell.run("sessions", "bare").err
    lose(terminal)
    until_gone(pid)
    shell.run("cancel", "bare")


def test_directories_of_holders_that_were_killed_are_removed_by_the_next_one(shell: Shell) -> None:
    before = set(sockets(shell))
    terminal, name = opened(shell, "gang")
    (path,) = set(sockets(shell)) - before
    os.kill(int(name.rpartition(":")[2]), signal.SIGKILL)
    terminal.end()
    assert sessions(shell, "gang") == {}
    assert path.exists(), "one that is as young may be about to listen"
    os.utime(path.parent, (0, 0))
    close(opened(shell, "gang/1")[0])
    assert not path.parent.exists()


def test_a_cancelled_job_ends_its_sessions_and_what_they_started(shell: Shell) -> None:
    shell.run("submit", "gang.sh", "--name", "ends")
    shell.run("wait", "ends", "--for", "started", "--timeout", "100s")
    terminal, _ = opened(shell, "ends")
    terminal.type(b"setsid sleep 1000 &\n")
    pid = number(terminal, b"$!")
    lose(terminal)
    shell.run("cancel", "ends")
    until_gone(pid)
