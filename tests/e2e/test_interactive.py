"""`fairlead exec`, `shell` and `forward` on a cluster of `fairlead up`, with real processes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from msgspec import structs
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.command_server import Started, command_server
from tests.e2e.slurm_world import Tools
from tests.patience import PATIENCE_SECONDS

from fairlead.api.resources import PODS
from fairlead.api.status import NotFound, Unauthorized
from fairlead.cli.sessions.session import V4, V5
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.websocket import SocketServer, pod_socket

pytestmark = pytest.mark.e2e
SCRIPT = """#!/bin/sh
#FAIRLEAD --cpus 100m
exec python3 -u -m http.server 0 --bind 127.0.0.1
"""


#: A port on which no process of a pod listens.
NOBODYS = 9


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    world = Shell(tmp_path_factory.mktemp("interactive"))
    world.up("--nodes", "0", "--listen", "127.0.0.1:0")
    (world.root / "serve.sh").write_text(SCRIPT)
    (world.root / "gang.sh").write_text("#!/bin/sh\n#FAIRLEAD --cpus 50m\nexec sleep 600\n")
    world.run("submit", "serve.sh", "--name", "one")
    world.run("submit", "gang.sh", "--name", "gang", "--nodes", "3")
    world.run("wait", "one", "gang", "--for", "started", "--timeout", "100s")
    yield world
    world.down()


def until_gone(pid: int) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < limit, f"process {pid} is still there"
        time.sleep(0.02)


def _in_terminal(
    world: Shell | Tools | Ssh, arguments: Sequence[str], theirs: int
) -> Started | subprocess.Popen[bytes]:
    environment = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    if isinstance(world, Shell | Tools):
        command = structs.replace(world.forked(*arguments, **environment), is_session=True)
        return command_server().start(command, [theirs] * 3)
    return subprocess.Popen(
        world.command(*arguments), cwd=world.root, env={**world.environment, **environment},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip


class Ssh(Protocol):
    """OpenSSH's client with a configuration of its own."""

    root: Path
    environment: dict[str, str]

    def command(self, *words: str) -> list[str]:
        """Return the argument vector of a command."""
        ...


class Terminal:
    """A command in a terminal of its own, and what it shows."""

    def __init__(self, world: Shell | Tools | Ssh, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(31, 97)
        self.before = termios.tcgetattr(theirs)
        self.process = _in_terminal(world, arguments, theirs)
        self.theirs = theirs
        self.shown = b""

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: bytes) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while text not in self.shown:
            assert select.select([self.ours], [], [], limit - time.monotonic())[0], self.shown
            self.shown += os.read(self.ours, 65536)

    def end(self) -> int:
        code = self.process.wait(PATIENCE_SECONDS)
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal is as it was"
        return code


def test_a_command_runs_beside_the_first_member_with_its_streams_and_exit_code(
    shell: Shell,
) -> None:
    done = shell.run(
        "exec", "one", "--", "sh", "-c", "cat; echo no >&2; exit 5", code=5, stdin="in"
    )
    assert (done.out, done.err) == ("in", "no\n")
    rank = shell.run("exec", "gang/2", "--", "sh", "-c", "echo $RANK $0 --flag")
    assert rank.out == "2 sh --flag\n"
    assert shell.run("exec", "job/gang/worker-1", "--", "sh", "-c", "echo $RANK").out == ("1\n")
    logged = (shell.data / "log" / "fairlead.log").read_text().splitlines()
    sessions = [line for line in map(json.loads, logged) if "session" in line]
    first = next(line for line in sessions if "echo no" in line.get("asked", ""))
    assert (first["message"], first["kind"]) == ("Session requested", "exec")
    assert first["pod"].startswith("default/one-")
    ends = [line["message"] for line in sessions if line["session"] == first["session"]]
    assert ends == ["Session requested", "Session ended"]


def test_a_command_runs_beside_all_members_with_their_ranks_before_the_lines(shell: Shell) -> None:
    script = "echo line $RANK; exit $RANK"
    done = shell.run("exec", "gang", "--all", "--", "sh", "-c", script, code=2)
    assert sorted(done.out.splitlines()) == [f"[worker-{i}] line {i}" for i in range(3)]
    assert sorted(done.err.splitlines()) == [f"[worker-{i}] exit code {i}" for i in (1, 2)]


def test_what_cannot_be_reached_is_said_with_what_to_do(shell: Shell) -> None:
    assert (
        "job gang has no member worker-7"
        in shell.run("exec", "gang/worker-7", "--", "ls", code=3).err
    )
    assert "did you mean gang?" in shell.run("exec", "gan", "--", "ls", code=3).err
    assert "executable file not found" in shell.run("exec", "one", "--", "nope", code=5).err
    assert "needs a terminal" in shell.run("shell", "one", code=2).err
    assert "must be PORT or LOCAL:PORT" in shell.run("forward", "one", "99999", code=2).err
    shell.run("submit", "gang.sh", "--name", "ended", "--time", "1h")
    shell.run("cancel", "ended")
    shell.run("wait", "ended", "--for", "finished", "--timeout", "100s", code=None)
    ended = shell.run("exec", "ended", "--", "ls", code=4).err
    assert "job ended is Cancelled: it has no running process" in ended
    assert "fairlead why ended" in ended


def test_a_hundred_megabytes_come_and_go_byte_for_byte(shell: Shell) -> None:
    content = os.urandom(1 << 20) * 100
    done = subprocess.run(
        shell.command("exec", "one", "--", "cat"), cwd=shell.root, env=shell.environment,
        input=content, capture_output=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(content).digest()


def test_a_shell_has_the_terminal_its_size_and_its_keys(shell: Shell) -> None:
    terminal = Terminal(shell, "shell", "gang/1")
    # The size follows the start, as kubectl's does.
    terminal.type(b"until [ \"$(stty size)\" = '31 97' ]; do sleep 0.02; done; echo si''zed\n")
    terminal.until(b"sized")
    terminal.type(b"echo rank-$RANK $TERM\n")
    terminal.until(b"rank-1 xterm")
    terminal.resize(45, 120)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.type(b"until [ \"$(stty size)\" = '45 120' ]; do sleep 0.02; done; echo fol''lowed\n")
    terminal.until(b"followed")
    terminal.type(b"sh -c 'echo be\"\"gun; exec sleep 600'\n")
    terminal.until(b"begun")
    terminal.type(b"\x03")
    terminal.type(b"echo code-$?; exit 6\n")
    terminal.until(b"code-130")
    assert terminal.end() == 6


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_of_exec_whose_client_is_ended_leaves_no_process(
    shell: Shell, number: signal.Signals
) -> None:
    terminal = Terminal(shell, "exec", "--tty", "one", "--", "sh")
    terminal.type(b"trap '' HUP; echo pid-$$-\n")
    terminal.until(b"-\r\n")
    while (
        b"pid-$$" in terminal.shown.split(b"pid-")[-1]
        or not (text := terminal.shown.rpartition(b"pid-")[2].partition(b"-")[0]).isdigit()
    ):
        terminal.shown += os.read(terminal.ours, 65536)
    terminal.process.send_signal(number)
    terminal.process.wait(PATIENCE_SECONDS)
    if number is not signal.SIGKILL:
        terminal.end()
    until_gone(int(text))


def test_a_port_is_forwarded_until_it_is_interrupted(shell: Shell) -> None:
    eventually(lambda: "Serving HTTP on" in shell.run("logs", "one").out, expected=True)
    port = shell.run("logs", "one").out.partition(" port ")[2].partition(" ")[0]
    process = shell.start("forward", "one", f"0:{port}", f"0:{NOBODYS}")
    assert process.stdout is not None
    assert process.stderr is not None
    ports = [int(process.stdout.readline().split(":")[1].split(" ")[0]) for _ in range(2)]
    made = [socket.create_connection(("127.0.0.1", ports[0])) for _ in range(5)]
    for each in made:
        each.sendall(b"GET / HTTP/1.0\r\n\r\n")
    for each in made:
        answer = b""
        while data := each.recv(65536):
            answer += data
        assert answer.startswith(b"HTTP/1.0 200")
    with socket.create_connection(("127.0.0.1", ports[1])) as refused:
        assert refused.recv(1) == b""
    assert f"no process of the pod listens on port {NOBODYS}" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 0


def test_a_killed_server_ends_sessions_not_members_and_serves_sessions_again(
    shell: Shell,
) -> None:
    member = shell.run("exec", "one", "--", "sh", "-c", "echo $PPID").out
    process = shell.start("exec", "one", "--", "sh", "-c", "trap '' HUP; echo $$; sleep 600 & wait")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    os.kill(shell.pid(), signal.SIGKILL)
    assert process.wait(PATIENCE_SECONDS) == 6, "the cluster cannot be reached"
    until_gone(pid)
    shell.up("--nodes", "0", "--listen", "127.0.0.1:0")
    shell.run("wait", "one", "--for", "started", "--timeout", "100s")
    assert shell.run("exec", "one", "--", "sh", "-c", "echo $PPID").out == member


async def test_a_refused_handshake_has_the_words_of_the_server(shell: Shell) -> None:
    connection = load_connection(path=shell.data / "kubeconfig")
    path = PODS.path("default", "no-such-pod", "exec")
    query = [("command", "ls"), ("stdout", "true")]
    for token, kind, words in (
        ("of-another", Unauthorized, "Unauthorized"),
        (connection.token, NotFound, 'pods "no-such-pod" not found'),
    ):
        with pytest.raises(kind, match=words):
            async with pod_socket(SocketServer(connection, token), path, query, (V5, V4)):
                pytest.fail("the server should have refused this")
