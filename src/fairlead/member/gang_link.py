"""Connections between the first member of a gang and the others, proved at both ends.

The members of an attempt share a random key, which the job controller makes (docs/design/mpi.md).
Before an end uses anything that the other one sends, each proves that it has the key: by a MAC over
its own side, the attempt, the member's rank and two random numbers, one of each end. So neither a
stranger that listens first nor one that connects first is taken for a member, and nothing can be
replayed. Every message after that carries a MAC over its number and content.

The first member listens at MASTER_PORT. Where another program of the machine has that port, it
takes the first free one of a sequence that follows from the key, which others cannot foresee.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

#: How long an end may take to prove itself.
PROOF_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 3.0
#: Connections that have not proved themselves; beyond it the oldest one gives way.
UNPROVED_MAX = 256
#: Connections that wait to be accepted.
BACKLOG = 4096
RETRY_SECONDS = 0.05
PORTS_BESIDE = 8
_PORTS = range(10_000, 30_000)  # below those that systems give out by themselves
_NONCE_BYTES = 32
_KEY_BYTES_MIN = 32
_PROOF_BYTES_MAX = 1024
_MESSAGE_BYTES_MAX = 256 << 20
_LENGTH_BYTES = 4
_MAC_BYTES = hashlib.sha256().digest_size

Message: TypeAlias = Mapping[str, Any]
#: Starts a task.
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class LinkLost(Exception):
    """The other end is gone."""


class Stranger(Exception):
    """The other end has not proved that it is a member of this attempt."""


class NoKeyError(Exception):
    """The gang has no key; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Gang:
    """This member's place in its gang, and what proves it."""

    rank: int
    size: int
    address: str
    port: int
    #: The job and the attempt.
    scope: str
    key: bytes

    def mac(self, *parts: str) -> bytes:
        """Return a MAC over a text of each kind; no two kinds or gangs have the same text."""
        text = json.dumps([self.scope, self.size, *parts]).encode()
        return hmac.digest(self.key, text, "sha256")

    def communicator(self) -> str:
        """Return a name that the ranks have in common, and others neither have nor know."""
        return self.mac("communicator").hex()[:32] if self.key else secrets.token_hex(16)

    def ports(self) -> list[int]:
        """Return where the first member may listen, the most likely first."""
        macs = (self.mac("port", str(number)) for number in range(PORTS_BESIDE))
        return [self.port, *(_PORTS[int.from_bytes(mac[:8]) % len(_PORTS)] for mac in macs)]


def read_key(path: Path) -> bytes:
    """Return the gang's key; NoKeyError."""
    try:
        key = path.read_bytes()
    except OSError as error:
        raise NoKeyError(f"the key of the gang, {path}, cannot be read: {error.strerror}") from None
    if len(key) < _KEY_BYTES_MIN:
        raise NoKeyError(f"the key of the gang, {path}, has less than {_KEY_BYTES_MIN} bytes")
    return key


class Link:
    """A connection whose other end has proved itself. Messages come whole and in order."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        send_key: bytes,
        receive_key: bytes,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = self._received = 0

    async def send(self, message: Message) -> None:
        """Send a message; LinkLost."""
        await self.send_encoded(encode(message))

    async def send_encoded(self, body: Encoded) -> None:
        """Send a message that goes to several; LinkLost."""
        mac = _message_mac(self._send_key, self._sent, body.digest)
        self._sent += 1
        try:
            self._writer.write(len(body.data).to_bytes(_LENGTH_BYTES) + mac)
            self._writer.write(body.data)
            await self._writer.drain()
        except OSError as error:
            raise LinkLost from error

    async def receive(self) -> Message:
        """Return the next message; LinkLost."""
        try:
            head = await self._reader.readexactly(_LENGTH_BYTES + _MAC_BYTES)
            length = int.from_bytes(head[:_LENGTH_BYTES])
            if length > _MESSAGE_BYTES_MAX:
                raise LinkLost
            data = await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LinkLost from error
        digest = hashlib.sha256(data).digest()
        if not hmac.compare_digest(
            head[_LENGTH_BYTES:], _message_mac(self._receive_key, self._received, digest)
        ):
            raise LinkLost
        self._received += 1
        message: Message = json.loads(data)
        return message

    def close(self) -> None:
        """End the connection; what was sent arrives."""
        self._writer.close()


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as it is sent."""

    data: bytes
    digest: bytes


def encode(message: Message) -> Encoded:
    """Return a message as it is sent."""
    data = json.dumps(message).encode()
    return Encoded(data, hashlib.sha256(data).digest())


def _message_mac(key: bytes, number: int, digest: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8) + digest, "sha256")


# The proofs: RANK NONCE -> NONCE MAC -> MAC, one line each


async def prove_first(
    gang: Gang, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[int, Link]:
    """Prove to a client that this is the first member; return its rank and link. Stranger."""
    theirs = await _line(reader, 2)
    rank = int(theirs[0]) if theirs[0].isdecimal() and len(theirs[0]) < 8 else 0
    if not 0 < rank < gang.size:
        raise Stranger
    ours = secrets.token_hex(_NONCE_BYTES)
    session = (str(rank), theirs[1], ours)
    await _write(writer, ours, gang.mac("first", *session).hex())
    _check((await _line(reader, 1))[0], gang.mac("member", *session))
    return rank, Link(
        reader, writer,
        send_key=gang.mac("from first", *session), receive_key=gang.mac("to first", *session),
    )  # fmt: skip


async def prove_member(
    gang: Gang, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Link:
    """Prove to a server which member this is; Stranger: the server is not the first member."""
    ours = secrets.token_hex(_NONCE_BYTES)
    await _write(writer, str(gang.rank), ours)
    theirs, mac = await _line(reader, 2)
    session = (str(gang.rank), ours, theirs)
    _check(mac, gang.mac("first", *session))
    await _write(writer, gang.mac("member", *session).hex())
    return Link(
        reader, writer,
        send_key=gang.mac("to first", *session), receive_key=gang.mac("from first", *session),
    )  # fmt: skip


def _check(text: str, mac: bytes) -> None:
    if not hmac.compare_digest(text.encode(), mac.hex().encode()):
        raise Stranger


async def _line(reader: asyncio.StreamReader, count: int) -> list[str]:
    """Return the words of a line; Stranger: there are not so many, or it is too long."""
    try:
        line = await reader.readuntil(b"\n")
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Stranger from error
    words = line.decode("ascii", "replace").split()
    if len(words) != count or len(line) > _PROOF_BYTES_MAX:
        raise Stranger
    return words


async def _write(writer: asyncio.StreamWriter, *words: str) -> None:
    try:
        writer.write((" ".join(words) + "\n").encode())
        await writer.drain()
    except OSError as error:
        raise Stranger from error


# The ends


@asynccontextmanager
async def spawning() -> AsyncGenerator[Spawn]:
    """Give what starts tasks that end with the block; what the block raises passes as it is."""
    failed: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks: dict[asyncio.Task[None], None] = {}

        def spawn(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            task = group.create_task(coroutine)
            tasks[task] = None
            task.add_done_callback(tasks.pop)
            return task

        try:
            yield spawn
        except Exception as error:  # noqa: BLE001 # a group would wrap it
            failed = error
        finally:
            for task in tuple(tasks):
                task.cancel()
    if failed is not None:
        raise failed


def listen(gang: Gang) -> socket.socket:
    """Return a socket on which the first member waits for the others; OSError: no port is free.

    It is bound to a loopback address as it is; any other one may be a name that does not resolve
    yet, or an address that this container does not have (a Service's), so the wildcard is taken.
    """
    ports = gang.ports()
    for port in ports[:-1]:
        with suppress(OSError):
            return _listen_at(gang.address, port)
    return _listen_at(gang.address, ports[-1])


def _listen_at(address: str, port: int) -> socket.socket:
    host = address if is_loopback(address) else ""
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, port), backlog=BACKLOG)
    return socket.create_server(
        ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
    )


def is_loopback(address: str) -> bool:
    """True for an address of this machine alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class Reception:
    """Accepts members side by side: no connection waits for one that does not prove itself."""

    def __init__(
        self,
        gang: Gang,
        welcome: Callable[[int, Link], Coroutine[Any, Any, None]],
        spawn: Spawn,
    ) -> None:
        """`welcome` is awaited with each member's rank and link, for as long as that is in use."""
        self.gang = gang
        self._welcome = welcome
        self.spawn = spawn
        self._unproved: dict[asyncio.StreamWriter, None] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Accept connections until cancelled, then close the listener.

        One at a time: a server of asyncio accepts all that wait before it looks at the first, and
        so runs out of descriptors.
        """
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        with listener:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                    streams = await asyncio.open_connection(sock=connection, limit=_PROOF_BYTES_MAX)
                except OSError as error:  # it is gone already, or there is no descriptor now
                    is_full = error.errno in (errno.EMFILE, errno.ENFILE)
                    await asyncio.sleep(0 if is_full and self._abort_oldest() else RETRY_SECONDS)
                else:
                    self.spawn(self._converse(*streams))

    def _abort_oldest(self) -> bool:
        """End the connection that has proved nothing for longest; return whether there was one."""
        oldest = next(iter(self._unproved), None)
        if oldest is None:
            return False
        del self._unproved[oldest]
        oldest.transport.abort()
        return True

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._unproved[writer] = None
        if len(self._unproved) > UNPROVED_MAX:
            self._abort_oldest()
        try:
            async with asyncio.timeout(PROOF_SECONDS_MAX):
                rank, link = await prove_first(self.gang, reader, writer)
            self._unproved.pop(writer, None)
            await self._welcome(rank, link)
        except (Stranger, LinkLost, TimeoutError):
            return
        finally:
            self._unproved.pop(writer, None)
            writer.close()


async def join(gang: Gang, seconds_max: float) -> tuple[Link, Message]:
    """Return the link to the first member with its first message; TimeoutError.

    A link that breaks off before that is made again.
    """
    strangers = set[int]()
    async with asyncio.timeout(seconds_max):
        for port in _ports_to_try(gang):
            try:
                link = await _join_at(gang, port)
                return link, await link.receive()
            except (OSError, LinkLost):  # nothing listens there yet, or it broke off
                pass
            except Stranger:
                if port not in strangers:
                    strangers.add(port)
                    sys.stderr.write(
                        f"fairlead mpirun: what listens at {gang.address}:{port} does not prove "
                        "that it is the first member; looking further\n"
                    )
            await asyncio.sleep(RETRY_SECONDS)
    raise AssertionError("unreachable: the ports have no end")


def _ports_to_try(gang: Gang) -> Iterator[int]:
    """Yield MASTER_PORT before each of the others: most often it is that one."""
    first, *others = gang.ports()
    while True:
        for other in others:
            yield first
            yield other


async def _join_at(gang: Gang, port: int) -> Link:
    """Return a link to the first member; OSError, Stranger."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(gang.address, port)
    except TimeoutError as error:
        raise ConnectionError from error
    try:
        async with asyncio.timeout(PROOF_SECONDS_MAX):
            return await prove_member(gang, reader, writer)
    except TimeoutError as error:
        writer.close()
        raise Stranger from error
    except BaseException:
        writer.close()
        raise
