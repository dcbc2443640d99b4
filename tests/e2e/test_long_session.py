"""One session with many bytes through it, both ways, while everything around it breaks.

FAIRLEAD_SESSION_MEGABYTES says how many; `make soak` has them be 1,000.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.e2e.cut_relay import Relay
from tests.e2e.test_interactive import Terminal
from tests.patience import PATIENCE_SECONDS

from fairlead.kube.kubeconfig import load_connection

pytestmark = pytest.mark.e2e
OPTIONS = ("--nodes", "0", "--listen", "127.0.0.1:0")
SIZE = int(os.environ.get("FAIRLEAD_SESSION_MEGABYTES", "2")) * 1_000_000
TYPED = SIZE // 16
RESIZES, CUTS = 10, 3
BEGIN = b"\r\n[fairlead: "
LINE = re.compile(re.escape(BEGIN) + rb"[^\]]*\]\r\n")
#: Takes what is typed, then writes numbered blocks; says the digests of both and its last size.
PROGRAM = """
import hashlib, json, os, signal, sys, termios, tty
typed, size = map(int, sys.argv[1:])
sizes = []
signal.signal(signal.SIGWINCH, lambda *_: sizes.append(tuple(os.get_terminal_size(0))))
tty.setraw(0)
os.write(1, b"<<ready>>")
taken = hashlib.sha256()
while typed:
    data = os.read(0, min(typed, 65536))
    taken.update(data)
    typed -= len(data)
os.write(1, b"<<data>>")
written, at = hashlib.sha256(), 0
while at < size:
    block = (b"%016x" % at * 4096)[: size - at]
    written.update(block)
    at += len(block)
    while block:
        block = block[os.write(1, block):]
while not sizes or sizes[-1] != (120, 45):
    signal.pause()
said = {"typed": taken.hexdigest(), "written": written.hexdigest(), "sizes": len(sizes)}
os.write(1, json.dumps(said).encode() + b"<<end>>")
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    world = Shell(tmp_path)
    world.up(*OPTIONS)
    (world.root / "program.py").write_text(PROGRAM)
    (world.root / "held.sh").write_text("#!/bin/sh\n#FAIRLEAD --cpus 50m\nexec sleep 36000\n")
    world.run("submit", "held.sh", "--name", "held")
    world.run("wait", "held", "--for", "started", "--timeout", "100s")
    yield world
    world.down()


class Person(Terminal):
    """A terminal that takes the lines of the command itself out of the output of its program."""

    def __init__(self, world: Shell, *arguments: str) -> None:
        super().__init__(world, *arguments)
        self.unread, self.partial, self.said = b"", b"", b""

    def read(self) -> bytes:
        """Return the next output, at most 1 MB; b"" where a line of the command has begun."""
        if self.unread:
            data, self.unread = self.unread, b""
            return data
        assert select.select([self.ours], [], [], PATIENCE_SECONDS)[0], self.said
        data = self.partial + os.read(self.ours, 1 << 20)
        self.said += b"".join(LINE.findall(data))
        data = LINE.sub(b"", data)
        begun = data.rfind(BEGIN)
        if begun < 0:
            ends = (n for n in range(len(BEGIN) - 1, 0, -1) if data.endswith(BEGIN[:n]))
            begun = len(data) - next(ends, 0)
        self.partial = data[begun:]
        return data[:begun]

    def resize_now(self, rows: int, columns: int) -> None:
        self.resize(rows, columns)
        self.process.send_signal(signal.SIGWINCH)


def type_all(person: Person, events: list[Callable[[], None]]) -> str:
    """Type `TYPED` bytes, with the events at equal distances; return their digest."""
    digest, at, block = hashlib.sha256(), 0, b"abcdefghijklmno_" * 64
    os.set_blocking(person.ours, False)
    due = [TYPED * (n + 1) // (len(events) + 1) for n in range(len(events))]
    while at < TYPED:
        if due and at >= due[0]:
            due.pop(0)
            events.pop(0)()
        assert select.select([], [person.ours], [], PATIENCE_SECONDS)[1]
        sent = os.write(person.ours, block[: TYPED - at])
        digest.update(block[:sent])
        at += sent
    os.set_blocking(person.ours, True)
    return digest.hexdigest()


def read_all(person: Person, events: list[Callable[[], None]]) -> str:
    """Read `SIZE` bytes, with the events at equal distances; return their digest."""
    digest, at = hashlib.sha256(), 0
    due = [SIZE * (n + 1) // (len(events) + 1) for n in range(len(events))]
    while at < SIZE:
        if due and at >= due[0]:
            due.pop(0)
            events.pop(0)()
        data = person.read()
        data, person.unread = data[: SIZE - at], data[SIZE - at :]
        digest.update(data)
        at += len(data)
    return digest.hexdigest()


def until(person: Person, text: bytes) -> bytes:
    """Return what comes before a text."""
    shown = b""
    while text not in shown:
        shown += person.read()
    before, _, person.unread = shown.partition(text)
    return before


def test_no_byte_is_lost_or_shown_twice_whatever_breaks_meanwhile(shell: Shell) -> None:
    def server() -> tuple[str, int]:
        found = load_connection(path=shell.data / "kubeconfig").server
        return "127.0.0.1", int(found.rpartition(":")[2])

    relay = Relay(server)
    text = (shell.data / "kubeconfig").read_text()
    (shell.root / "kubeconfig").write_text(
        re.sub(r"https://127\.0\.0\.1:\d+", f"https://127.0.0.1:{relay.port}", text)
    )
    person = Person(shell, "shell", "--kubeconfig", str(shell.root / "kubeconfig"), "held")
    person.type(b"stty -echo; exec python3 %s/program.py %d %d\r"
                % (str(shell.root).encode(), TYPED, SIZE))  # fmt: skip
    until(person, b"<<ready>>")

    def kill() -> None:
        os.kill(shell.pid(), signal.SIGKILL)
        shell.up(*OPTIONS)

    def resize(number: int) -> Callable[[], None]:
        return lambda: person.resize_now(30 + number, 100 + number)

    typed = type_all(person, [relay.cut, resize(0)])
    until(person, b"<<data>>")
    sizes = [resize(number) for number in range(1, RESIZES - 1)]
    events = [*sizes[:2], relay.cut, *sizes[2:4], kill, *sizes[4:6], relay.cut, *sizes[6:]]
    written = read_all(person, events)
    person.resize_now(45, 120)
    said = json.loads(until(person, b"<<end>>"))
    assert (said["typed"], said["written"]) == (typed, written)
    assert said["sizes"] >= 1
    assert person.said.count(b"joined again") == CUTS + 1, person.said
    assert person.end() == 0
