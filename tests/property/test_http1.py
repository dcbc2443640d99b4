"""A client's connections against servers that send what they like, when they like.

Bytes are handed to the connection itself, in virtual time: an answer is the one to its request or a
typed error, whatever the segments, and a connection on which a byte too many was seen carries no
further request. The asynchronous and the blocking sender meet the same servers and must send the
same bytes and end alike. FAIRLEAD_RANDOM=1 explores.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import math
import socket
import tracemalloc
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.status import ApiError, BadRequest, NotFound, Timeout, Unavailable
from fairlead.kube.blocking import BlockingClient
from fairlead.kube.http1 import HEAD_BYTES_MAX
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import HttpOptions, HttpRequest
from fairlead.kube.transport import Transport
from fairlead.sim.loop import VirtualTimeLoop

BODY_BYTES_MAX = 1 << 20
CONNECTION = Connection(
    "http://127.0.0.1:1", "a test", token="secret",
    impersonate_user="ann", impersonate_groups=("vision", "research"),
)  # fmt: skip
#: Beside what a test's answers take: nothing may hold a multiple of the limits.
OPTIONS = HttpOptions(connections_max=1, answer_bytes_max=BODY_BYTES_MAX, request_seconds=30.0)
quick = settings(deadline=None, max_examples=200)


@dataclass(frozen=True)
class Say:
    """What a server sends, and how long after the request or what it sent before."""

    data: bytes
    after_seconds: float = 0.0


@dataclass(frozen=True)
class Close:
    """The server closes the connection."""

    after_seconds: float = 0.0


Script = Sequence[Say | Close]
#: Makes what is said of the request's path; the number counts the server's requests.
Server = Callable[[str, int], Script]


class Wire(asyncio.Transport):
    """The server's end of a connection, without a socket."""

    def __init__(self, loop: WireLoop, protocol: asyncio.Protocol, server: Server) -> None:
        super().__init__()
        self._loop, self._protocol, self._server = loop, protocol, server
        self._is_closed = False
        #: The paths that were asked on this connection, and all that was sent.
        self.asked: list[str] = []
        self.sent = b""
        self.unsent_bytes = 0

    def write(self, data: Any) -> None:
        assert not self._is_closed
        path = bytes(data).split(b" ", 2)[1].decode()
        self.asked.append(path)
        self.sent += bytes(data)
        self._loop.request_count += 1
        seconds = 0.0
        for each in self._server(path, self._loop.request_count):
            seconds += each.after_seconds
            if isinstance(each, Say):
                self._loop.call_later(seconds, self._send, each.data)
            else:
                self._loop.call_later(seconds, self.close)

    def _send(self, data: bytes) -> None:
        if data and not self._is_closed:
            self._protocol.data_received(data)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closed

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._loop.silent_socket if name == "socket" else default


class WireLoop(VirtualTimeLoop):
    """Virtual time, and connections to one scripted server."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self.wires: list[Wire] = []
        self.request_count = 0
        #: Stands in where a connection asks its socket whether something came unread.
        self.silent_socket = socket.create_server(("127.0.0.1", 0))
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    async def create_connection(self, factory: Any, *args: Any, **kwargs: Any) -> Any:
        protocol = factory()
        wire = Wire(self, protocol, self._server)
        self.wires.append(wire)
        protocol.connection_made(wire)
        return wire, protocol

    def close(self) -> None:
        self.silent_socket.close()
        super().close()


class BlockingWire:
    """A blocking socket whose other end is the server's script, on a clock of the test."""

    def __init__(self, world: BlockingWorld) -> None:
        self._world = world
        self._timeout: float | None = OPTIONS.request_seconds
        #: What comes, and when; None is the end.
        self._coming: deque[tuple[float, bytes | None]] = deque()
        self._is_closed = False
        self.asked: list[str] = []
        self.sent = b""

    def sendall(self, data: bytes) -> None:
        path = data.split(b" ", 2)[1].decode()
        self.asked.append(path)
        self.sent += data
        self._world.request_count += 1
        at = self._world.now
        for each in self._world.server(path, self._world.request_count):
            at += each.after_seconds
            if isinstance(each, Close):
                self._coming.append((at, None))
            elif each.data:
                self._coming.append((at, each.data))
        self._coming = deque(sorted(self._coming, key=lambda each: each[0]))

    def recv(self, size: int) -> bytes:
        assert not self._is_closed
        limit = math.inf if self._timeout is None else self._world.now + self._timeout
        at, data = self._coming[0] if self._coming else (math.inf, None)
        if at > limit:
            self._world.now = limit
            raise TimeoutError("timed out")
        self._world.now = max(self._world.now, at)
        if data is None:
            return b""
        self._coming.popleft()
        if len(data) > size:
            self._coming.appendleft((at, data[size:]))
        return data[:size]

    def fileno(self) -> int:
        """Return the number of a real socket that is as readable as this one."""
        is_readable = bool(self._coming) and self._coming[0][0] <= self._world.now
        return self._world.pair[0 if is_readable else 1].fileno()

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def close(self) -> None:
        self._is_closed = True


class BlockingWorld:
    """The blocking sender's connections to one scripted server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.now = 0.0
        self.request_count = 0
        self.wires: list[BlockingWire] = []
        #: The first one has something to read, and the second one has nothing.
        self.pair = socket.socketpair()
        self.pair[1].sendall(b"x")

    def connect(self, *_: Any) -> Any:
        self.wires.append(BlockingWire(self))
        return self.wires[-1]

    def close(self) -> None:
        for each in self.pair:
            each.close()


@dataclass
class Outcome:
    """What a client got for its paths, one after the other, and what it asked on each wire."""

    answers: list[bytes | ApiError] = field(default_factory=list[bytes | ApiError])
    wires: list[list[str]] = field(default_factory=list[list[str]])
    sent: list[bytes] = field(default_factory=list[bytes])
    seconds: float = 0.0


def ask(server: Server, *paths: str, pause_seconds: float = 0.0) -> Outcome:
    """Ask a server for paths in turn; anything but an answer or an ApiError is a failure.

    Both senders ask, and must not differ.
    """
    got = ask_async(server, *paths, pause_seconds=pause_seconds)
    blocking = ask_blocking(server, *paths, pause_seconds=pause_seconds)
    for one, other in zip(got.answers, blocking.answers, strict=True):
        if isinstance(one, ApiError):
            assert isinstance(other, type(one))
            assert other.message == one.message
        else:
            assert other == one
    assert (blocking.wires, blocking.sent) == (got.wires, got.sent)
    return got


def ask_blocking(server: Server, *paths: str, pause_seconds: float = 0.0) -> Outcome:
    """Ask with the blocking sender."""
    outcome, world = Outcome(), BlockingWorld(server)
    client = BlockingClient(CONNECTION, OPTIONS, connect=world.connect)
    for path in paths:
        try:
            outcome.answers.append(client.send(HttpRequest("GET", path)).body)
        except ApiError as error:
            outcome.answers.append(error)
        world.now += pause_seconds
    client.close()
    world.close()
    outcome.wires = [wire.asked for wire in world.wires]
    outcome.sent = [wire.sent for wire in world.wires]
    outcome.seconds = world.now
    return outcome


def ask_async(server: Server, *paths: str, pause_seconds: float = 0.0) -> Outcome:
    """Ask with the asynchronous sender."""
    outcome = Outcome()

    async def main() -> None:
        transport = Transport(CONNECTION, OPTIONS)
        for path in paths:
            try:
                outcome.answers.append(await transport.request("GET", path))
            except ApiError as error:
                outcome.answers.append(error)
            await asyncio.sleep(pause_seconds)
        await transport.close()

    _run(server, main(), outcome)
    return outcome


def _run(server: Server, main: Coroutine[Any, Any, None], outcome: Outcome) -> None:
    loop = WireLoop(server)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main)
        outcome.wires = [wire.asked for wire in loop.wires]
        outcome.sent = [wire.sent for wire in loop.wires]
        outcome.seconds = loop.time()
    assert not loop.errors, "an exception came out of a callback"


# What servers say


def answer_to(path: str, form: str = "length") -> bytes:
    """Return an honest answer whose body names the path."""
    body = b"answer to %b\n" % path.encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
    match form:
        case "length":
            return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        case "chunks":
            coded = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (body[:3], body[3:]))
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n"
        case "trailer":
            coded = b"%x;a=b\r\n%b\r\n" % (len(body), body)
            end = b"0\r\nContent-Encoding: gzip\r\nX: y\r\n\r\n"
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + coded + end
        case "gzip":
            packed = gzip.compress(body, mtime=0)
            head += b"Content-Encoding: gzip\r\n"
            return head + b"Content-Length: %d\r\n\r\n%b" % (len(packed), packed)
        case "informed":
            early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
            return early + answer_to(path)
        case _:
            raise AssertionError(form)


FORMS = ("length", "chunks", "trailer", "gzip", "informed")
EXPECTED = [b"answer to /a\n", b"answer to /b\n", b"answer to /c\n"]


def cut(data: bytes, at: Sequence[int]) -> list[Say]:
    """Return data in segments."""
    ends = [0, *sorted(at), len(data)]
    return [Say(data[a:b], 0.001) for a, b in itertools.pairwise(ends) if b > a]


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_is_the_same_wherever_it_is_split(form: str) -> None:
    size = len(answer_to("/a", form))
    for at in range(1, size):
        got = ask(lambda path, _, at=at: cut(answer_to(path, form), [at]), "/a", "/b", "/c")
        assert got.answers == EXPECTED
        assert got.wires == [["/a", "/b", "/c"]]
    got = ask(lambda path, _: cut(answer_to(path, form), range(size + 20)), "/a", "/b", "/c")
    assert got.answers == EXPECTED
    assert got.wires == [["/a", "/b", "/c"]]


EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL"
SURPLUS = (
    b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\0", b"x", b"H",
    b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n",
    EVIL, EVIL + EVIL, b"\r\n" + EVIL, b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\nanswer to /X\n",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("surplus", SURPLUS, ids=range(len(SURPLUS)))
def test_a_connection_that_brought_more_than_the_answer_is_not_used_again(
    form: str, surplus: bytes
) -> None:
    def in_one_segment(path: str, count: int) -> Script:
        return [Say(answer_to(path, form) + (surplus if count == 1 else b""))]

    def split_at_every_byte(path: str, count: int) -> Script:
        whole = answer_to(path, form) + (surplus if count == 1 else b"")
        return [Say(whole[i : i + 1]) for i in range(len(whole))]

    def behind_the_answer(path: str, count: int) -> Script:
        return [Say(answer_to(path, form)), Say(surplus if count == 1 else b"", 0.5)]

    for server in (in_one_segment, split_at_every_byte, behind_the_answer):
        got = ask(server, "/a", "/b", "/c", pause_seconds=1.0)
        assert got.answers == EXPECTED
        assert got.wires == [["/a"], ["/b", "/c"]]


@quick
@given(
    forms=st.lists(st.sampled_from(FORMS), min_size=3, max_size=3),
    noise=st.lists(st.binary(max_size=30) | st.sampled_from(SURPLUS), min_size=3, max_size=3),
    cuts=st.lists(st.integers(1, 250), max_size=6),
)
def test_whatever_follows_an_answer_belongs_to_no_other_request(
    forms: list[str], noise: list[bytes], cuts: list[int]
) -> None:
    paths = ("/a", "/b", "/c")

    def server(path: str, _: int) -> Script:
        turn = paths.index(path)
        whole = answer_to(path, forms[turn]) + noise[turn]
        return cut(whole, [at for at in cuts if at < len(whole)])

    got = ask(server, *paths, pause_seconds=1.0)
    assert got.answers == EXPECTED
    for wire in got.wires:
        assert not any(noise[paths.index(path)] for path in wire[:-1])


@quick
@given(form=st.sampled_from(FORMS), data=st.data())
def test_an_answer_that_is_cut_off_or_altered_is_an_error_or_harms_only_itself(
    form: str, data: st.DataObject
) -> None:
    honest = answer_to("/a", form)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(honest))] * 2)))
    put = data.draw(st.binary(max_size=10) | st.just(honest[start:end] * 2))
    altered = honest[:start] + put + honest[end:]

    def server(path: str, _: int) -> Script:
        if path == "/b":
            return [Say(answer_to(path))]
        return [*cut(altered, []), Close(1.0)]

    got = ask(server, "/a", "/b")
    assert len(got.answers) == 2  # no time-out, nothing raised but ApiError
    assert got.answers[1] == b"answer to /b\n"


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_is_cut_off_is_an_error_at_every_byte(form: str) -> None:
    honest = answer_to("/a", form)
    for size in range(len(honest)):
        script = [Say(honest[:size]), Close()]
        got = ask(lambda _path, _count, script=script: script, "/a")
        assert isinstance(got.answers[0], Unavailable)
        assert "the server closed the connection" in got.answers[0].message


@pytest.mark.parametrize("seconds", [0.05, 5.0])
def test_a_slow_answer_comes_whole_or_not_at_all(seconds: float) -> None:
    def server(path: str, count: int) -> Script:
        if count > 1:
            return [Say(answer_to(path))]
        return [Say(bytes([byte]), seconds) for byte in answer_to(path)]

    # A person waits for the blocking sender, and may end it: only silence has a limit there.
    assert ask_blocking(server, "/a", "/b").answers == EXPECTED[:2]
    got = ask_async(server, "/a", "/b")
    assert got.answers[1] == b"answer to /b\n"
    if seconds < 1:
        assert got.answers[0] == b"answer to /a\n"
        assert got.wires == [["/a", "/b"]]
    else:
        assert isinstance(got.answers[0], Timeout)
        assert got.seconds == OPTIONS.request_seconds
        assert got.wires == [["/a"], ["/b"]]  # its late end is nobody's answer


def _endless(start: bytes, part: bytes) -> Iterator[Say]:
    yield Say(start)
    for _ in range(4 * (BODY_BYTES_MAX + HEAD_BYTES_MAX) // len(part)):
        yield Say(part, 1e-6)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ZIPPED = OK + b"Content-Encoding: gzip\r\n"
ENDLESS = {
    "a header's value": (OK + b"A: ", b"x" * 1000),
    "a header's name": (OK, b"x" * 1000),
    "headers": (OK, b"A: b\r\n" * 100),
    "a reason": (b"HTTP/1.1 200 ", b"x" * 1000),
    "informational answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "lines before it": (b"", b"\r\n" * 500),
    "a trailer": (CHUNKED + b"1\r\na\r\n0\r\nA: ", b"x" * 1000),
    "a chunk's extension": (CHUNKED + b"1;a=", b"x" * 1000),
    "chunks of nothing but framing": (CHUNKED, (b"1;a=%b\r\nx\r\n" % (b"x" * 1000))),
    "zeros of a chunk's size": (CHUNKED, b"0" * 1000),
    "a body": (OK + b"Content-Length: 9000000000\r\n\r\n", b"x" * 100_000),
    "chunks": (CHUNKED, b"2710\r\n%b\r\n" % (b"x" * 10_000)),
    "a body without a length": (OK + b"\r\n", b"x" * 100_000),
    "a compression of nothing": (
        ZIPPED + b"Transfer-Encoding: chunked\r\n\r\na\r\n%b\r\n" % gzip.compress(b"")[:10],
        b"5;a=%b\r\n\0\0\0\xff\xff\r\n" % (b"x" * 1000),
    ),
    "an empty compression": (
        ZIPPED + b"Transfer-Encoding: chunked\r\n\r\na\r\n%b\r\n" % gzip.compress(b"")[:10],
        b"1388\r\n%b\r\n" % (b"\0\0\0\xff\xff" * 1000),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_end_is_an_error_long_before(what: str) -> None:
    start, part = ENDLESS[what]
    sent = 0

    def server(path: str, count: int) -> Script:
        if count > 1:
            return [Say(answer_to(path))]
        nonlocal sent
        parts = list(_endless(start, part))
        sent = len(parts)
        return parts

    got = ask(server, "/a", "/b")
    assert sent
    assert isinstance(got.answers[0], Unavailable)
    assert "the answer has more than" in got.answers[0].message
    assert got.answers[1] == b"answer to /b\n"
    assert got.seconds < 1e-6 * sent / 2


@cache
def _bomb() -> bytes:
    """Return 200 MB of zeros, compressed."""
    return gzip.compress(bytes(200 << 20), 9)


@pytest.mark.parametrize("is_split", [False, True])
def test_a_bomb_is_not_inflated(is_split: bool) -> None:
    bomb = _bomb()
    whole = ZIPPED + b"Content-Length: %d\r\n\r\n%b" % (len(bomb), bomb)
    segments = cut(whole, range(0, len(whole), 1000) if is_split else [])
    tracemalloc.start()
    try:
        got = ask(lambda _path, _count: segments, "/a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(got.answers[0], Unavailable)
    assert "the answer has more than" in got.answers[0].message
    assert peak < 8 * BODY_BYTES_MAX


UPGRADE = b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
SURPRISES = {
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\n" + UPGRADE,
    "another protocol, unnamed": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "HTTP/2": b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x80",
    "TLS": b"\x15\x03\x01\0\x02\x02\x16",
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a length and chunks": OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": OK + b"Content-Length: -3\r\n\r\n",
    "a length beyond any": OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a folded header": OK + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a bare line feed": OK + b"A: b\nContent-Length: 0\r\n\r\n",
    "a NUL in a header": OK + b"A: \0\r\nContent-Length: 0\r\n\r\n",
    "an unknown compression": OK + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\nok",
    "two compressions": OK + b"Content-Encoding: gzip, gzip\r\nContent-Length: 2\r\n\r\nok",
    "no compression where one was said": ZIPPED + b"Content-Length: 2\r\n\r\nok",
    "two compressed parts": ZIPPED
    + b"Content-Length: 40\r\n\r\n"
    + 2 * gzip.compress(b"", mtime=0),
}


@pytest.mark.parametrize("what", SURPRISES)
def test_what_is_no_answer_is_an_error_of_ours(what: str) -> None:
    def server(path: str, count: int) -> Script:
        return [Say(SURPRISES[what] if count == 1 else answer_to(path))]

    got = ask(server, "/a", "/b")
    assert isinstance(got.answers[0], Unavailable)
    words = ("this is no HTTP", "compression", "the server switched to another protocol")
    assert any(each in got.answers[0].message for each in words)
    assert got.answers[1] == b"answer to /b\n"
    assert got.wires == [["/a"], ["/b"]]


def test_an_error_answer_is_the_error_of_its_request_and_keeps_the_connection() -> None:
    def server(path: str, _: int) -> Script:
        if path == "/b":
            return [Say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")]
        return [Say(answer_to(path))]

    got = ask(server, "/a", "/b", "/c")
    assert isinstance(got.answers[1], NotFound)
    assert got.answers[::2] == EXPECTED[::2]
    assert got.wires == [["/a", "/b", "/c"]]


def test_a_connection_with_an_unsent_rest_of_the_request_is_not_used_again() -> None:
    outcome = Outcome()

    async def main() -> None:
        transport = Transport(CONNECTION, OPTIONS)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WireLoop)
        outcome.answers.append(await transport.request("GET", "/a"))
        loop.wires[0].unsent_bytes = 1
        outcome.answers.append(await transport.request("POST", "/b", body=b"{}"))
        outcome.answers.append(await transport.request("GET", "/c"))

    _run(lambda path, _: [Say(answer_to(path))], main(), outcome)
    assert outcome.answers == EXPECTED
    assert outcome.wires == [["/a", "/b"], ["/c"]]


@pytest.mark.parametrize(
    "target", ["/a\r\nX: y", "/a\n", "/a\0", "/a b", "/a\x7f", "/a\x1b", "/\ud800"]
)
def test_a_target_that_would_be_read_otherwise_is_refused(target: str) -> None:
    got = ask(lambda path, _: [Say(answer_to(path))], target, "/a")
    assert isinstance(got.answers[0], BadRequest)
    assert got.answers[1] == b"answer to /a\n"
    assert got.wires == [["/a"]]
