"""What two members measure between them: round trips, then data, compared on arrival. In a gang
data goes in one direction, as each member is at both ends of some pair; a pair alone has both.

One of them listens, and the other one connects and shows the token of this meeting, a MAC by the
key of the attempt; the listener answers with another one. Everything blocks, with a time-out, so it
runs in a thread.

Data is a probe of the path's MTU besides: TCP sends full segments that no router may cut up. Where
the kernel sends them again and again, without an answer, while a new connection is made at once,
packets of full size are lost on the way, which is a measurement and no silence.
"""

from __future__ import annotations

import random
import socket
import struct
from contextlib import suppress
from hmac import compare_digest
from time import monotonic, perf_counter, sleep

from fairlead.api.cluster.machine_result import PairMeasure
from fairlead.member.gang_link import Gang, is_loopback

CHUNK_BYTES = 1 << 18
#: Of one direction; the best of `REPEATS` counts.
SECONDS, REPEATS = 0.2, 3
ROUND_TRIPS = 20
#: How long one meeting may take.
MEETING_SECONDS_MAX = 4.0
#: A connection that shows no token within this time is a stranger's.
_TOKEN_SECONDS = 0.5
#: Data that has not moved for so long is stuck; the kernel has sent it again this often by then.
STUCK_SECONDS, _SENT_AGAIN_MIN = 3.0, 2
#: Of struct tcp_info (linux/tcp.h): how often the oldest segment was sent again, and how many have
#: no answer.
_TCP_INFO = struct.Struct("=2xB21xI")
_RETRY_SECONDS = 0.2
_LENGTH_BYTES = 8
_PING = b"p" * 64
_DATA = random.Random(20261107).randbytes(CHUNK_BYTES)  # noqa: S311 # a pattern, no secret


class MeetingFailed(Exception):
    """The two did not measure; it says nothing about hardware."""


class _FullPacketsLostError(MeetingFailed):
    """The kernel sends the same data again and again, and has no answer."""

    def __init__(self) -> None:
        super().__init__("data was sent again and again without an answer")


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a socket for meetings; 0: on a port that the system gives out; OSError."""
    host = address if is_loopback(address) else ""
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, port))
    return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)


def token(gang: Gang, side: str, *, number: int, client: int, server: int) -> bytes:
    """Return what one side of a meeting shows the other one."""
    return gang.mac("pair", side, str(number), str(client), str(server))


def serve(
    gang: Gang, listener: socket.socket, number: int, client: int, *, data: bytes = _DATA,
    wait_seconds: float = 0.0, is_both_ways: bool = False,
) -> PairMeasure:  # fmt: skip
    """Wait for the client of a meeting, and measure what it sends; `data` is what is expected.

    `wait_seconds`: so much longer for the client to come.
    """
    latest = monotonic() + wait_seconds + MEETING_SECONDS_MAX
    try:
        with _accept(gang, listener, number=number, client=client, deadline=latest) as found:
            deadline = min(latest, monotonic() + MEETING_SECONDS_MAX)
            found.settimeout(MEETING_SECONDS_MAX)
            for _ in range(ROUND_TRIPS):
                found.sendall(_exactly(found, len(_PING)))
            rate, is_wrong = _received(found, data, deadline)
            if is_both_ways:
                back, was_wrong = _sent(found, data, deadline)
                rate, is_wrong = min(rate, back), is_wrong or was_wrong
            return PairMeasure(client, _rounded(rate), is_wrong=is_wrong)
    except _FullPacketsLostError:  # the client has answered until now, and sent as much
        return PairMeasure(client, loses_full_packets=True)
    except (OSError, MeetingFailed) as error:
        return PairMeasure(client, error=_words(error))


def meet(
    gang: Gang, address: str, port: int, *, number: int, server: int, data: bytes = _DATA,
    wait_seconds: float = 0.0, is_both_ways: bool = False,
) -> PairMeasure:  # fmt: skip
    """Connect to the server of a meeting, and measure what is sent to it.

    `wait_seconds`: for so long it is tried again where nothing listens yet.
    """
    latest = monotonic() + wait_seconds
    try:
        with _connect(address, port, latest) as found:
            deadline = monotonic() + MEETING_SECONDS_MAX
            found.settimeout(MEETING_SECONDS_MAX)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.sendall(token(gang, "client", number=number, client=gang.rank, server=server))
            _check(found, token(gang, "server", number=number, client=gang.rank, server=server))
            trips = list[float]()
            for _ in range(ROUND_TRIPS):
                started = perf_counter()
                found.sendall(_PING)
                _exactly(found, len(_PING))
                trips.append(perf_counter() - started)
            try:
                rate, is_wrong = _sent(found, data, deadline)
            except _FullPacketsLostError:
                if _connects(address, port):
                    trip = _rounded(min(trips))
                    return PairMeasure(server, 0.0, trip, loses_full_packets=True)
                raise
            if is_both_ways:
                back, was_wrong = _received(found, data, deadline)
                rate, is_wrong = min(rate, back), is_wrong or was_wrong
            return PairMeasure(server, _rounded(rate), _rounded(min(trips)), is_wrong)
    except (OSError, MeetingFailed) as error:
        return PairMeasure(server, error=_words(error))


def _accept(
    gang: Gang, listener: socket.socket, *, number: int, client: int, deadline: float
) -> socket.socket:
    """Return the connection of the client; strangers are turned away."""
    wanted = token(gang, "client", number=number, client=client, server=gang.rank)
    while (left := deadline - monotonic()) > 0:
        listener.settimeout(left)
        found, _ = listener.accept()
        found.settimeout(min(_TOKEN_SECONDS, left))
        with suppress(OSError, MeetingFailed):
            _check(found, wanted)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.sendall(token(gang, "server", number=number, client=client, server=gang.rank))
            return found
        found.close()
    raise MeetingFailed("the other member did not come")


def _check(found: socket.socket, wanted: bytes) -> None:
    if not compare_digest(_exactly(found, len(wanted)), wanted):
        raise MeetingFailed("what listens there is not the member")


def _connect(address: str, port: int, latest: float) -> socket.socket:
    """Return a connection; what refuses it is tried again until `latest`."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=MEETING_SECONDS_MAX)
        except ConnectionRefusedError:
            if monotonic() >= latest:
                raise
        sleep(_RETRY_SECONDS)


def _is_sent_again(found: socket.socket) -> bool:
    """True where the kernel sends again what has no answer; it waits where only the reader does."""
    info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    again, unanswered = _TCP_INFO.unpack(info)
    return again >= _SENT_AGAIN_MIN and unanswered > 0


def _connects(address: str, port: int) -> bool:
    """True where small packets still arrive: those of a new connection."""
    with suppress(OSError), socket.create_connection((address, port), timeout=_TOKEN_SECONDS):
        return True
    return False


def _received(found: socket.socket, data: bytes, deadline: float) -> tuple[float, bool]:
    """Return the best of some rates at which data arrives, and whether any was changed."""
    runs = [_receive(found, data, deadline) for _ in range(REPEATS)]
    return max(rate for rate, _ in runs), any(is_wrong for _, is_wrong in runs)


def _sent(found: socket.socket, data: bytes, deadline: float) -> tuple[float, bool]:
    found.settimeout(STUCK_SECONDS)
    try:
        runs = [_send(found, data, deadline) for _ in range(REPEATS)]
    except TimeoutError:
        if _is_sent_again(found):
            raise _FullPacketsLostError from None
        raise
    found.settimeout(MEETING_SECONDS_MAX)
    return max(rate for rate, _ in runs), any(is_wrong for _, is_wrong in runs)


def _receive(found: socket.socket, data: bytes, deadline: float) -> tuple[float, bool]:
    """Return bytes per second until the sender stops, and whether any of them were changed."""
    buffer, total, is_wrong, started = bytearray(len(data)), 0, False, 0.0
    view = memoryview(buffer)
    while True:
        length = int.from_bytes(_exactly(found, _LENGTH_BYTES))
        started = started or perf_counter()
        if not length:
            break
        if length != len(data) or monotonic() > deadline:
            raise MeetingFailed("the other member sends something else")
        got = 0
        while got < length:
            count = found.recv_into(view[got:])
            if not count:
                raise MeetingFailed("the other member is gone")
            got += count
        is_wrong |= bytes(view) != data
        total += length
    seconds = max(perf_counter() - started, 1e-9)
    found.sendall(bytes([is_wrong]))
    return total / seconds, is_wrong


def _send(found: socket.socket, data: bytes, deadline: float) -> tuple[float, bool]:
    """Send for some time; return bytes per second, and whether any arrived changed."""
    head, total, started = len(data).to_bytes(_LENGTH_BYTES), 0, perf_counter()
    while perf_counter() - started < SECONDS or not total:
        if monotonic() > deadline:
            raise MeetingFailed("it took too long")
        found.sendall(head)
        found.sendall(data)
        total += len(data)
    found.sendall(bytes(_LENGTH_BYTES))
    is_wrong = _exactly(found, 1) != b"\0"
    return total / (perf_counter() - started), is_wrong


def _exactly(found: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = found.recv(count - len(data))
        if not more:
            raise MeetingFailed("the other member is gone")
        data += more
    return data


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _words(error: OSError | MeetingFailed) -> str:
    if isinstance(error, TimeoutError):
        return "the other member did not answer in time"
    return f"{error}"[:100] or type(error).__name__
