"""The members of a gang find each other, and nobody else gets in: other users of the machine, too.

The attackers run under another uid, as a second user of the machine would.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_port

from fairlead.member import gang_link, gang_peers
from fairlead.member.gang_link import Gang, NoKeyError

STRANGER_UID = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


def gang_of(size: int, address: str = "127.7.7.7") -> Gang:
    return Gang(0, size, address, free_port(), "uid/1", os.urandom(32))


async def member(gang: Gang, rank: int) -> dict[str, str]:
    """Come together with the others, tell them something, and end well."""
    async with (
        gang_link.spawning() as spawn,
        gang_peers.gathered(replace(gang, rank=rank), spawn) as peers,
    ):
        values = await peers.fence({f"rank-{rank}": str(rank)})
        assert await peers.ended(0)
        return dict(values)


async def whole(gang: Gang) -> None:
    """Run all members, those that connect first."""
    ranks = reversed(range(gang.size))
    expected = {f"rank-{rank}": str(rank) for rank in range(gang.size)}
    async with asyncio.timeout(PATIENCE_SECONDS):
        found = await asyncio.gather(*(member(gang, rank) for rank in ranks))
    assert found == [expected] * gang.size


def test_members_come_together_and_tell_each_other_their_addresses() -> None:
    asyncio.run(whole(gang_of(5)))


def test_a_loopback_address_is_bound_as_it_is() -> None:
    with gang_link.listen(gang_of(2, "127.0.0.5")) as listener:
        assert listener.getsockname()[0] == "127.0.0.5"


@pytest.mark.parametrize("address", ["10.1.2.3", "worker-0.train-1-peers.default.svc"])
def test_a_name_or_an_address_of_elsewhere_takes_the_wildcard(address: str) -> None:
    gang = gang_of(2, address)
    with gang_link.listen(gang) as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")
        with socket.create_connection(("127.0.0.1", gang.port), timeout=PATIENCE_SECONDS):
            pass


def test_the_other_ports_follow_from_the_key() -> None:
    gang = gang_of(2)
    assert gang.ports() == replace(gang, rank=1).ports()
    assert gang.ports()[1:] != replace(gang, key=os.urandom(32)).ports()[1:]


def test_without_a_key_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(NoKeyError, match="cannot be read: No such file"):
        gang_link.read_key(tmp_path / "key")
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(NoKeyError, match="less than 32 bytes"):
        gang_link.read_key(tmp_path / "key")


@pytest.mark.parametrize("change", ["key", "scope", "size"])
def test_a_member_of_another_gang_or_attempt_is_no_member(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = gang_of(2)
    others = {"key": os.urandom(32), "scope": "uid/0", "size": 3}
    monkeypatch.setattr(gang_peers, "GATHER_SECONDS_MAX", 0.5)

    async def both() -> None:
        other = replace(gang, **{change: others[change]})  # type: ignore[arg-type] # one of three
        found = await asyncio.gather(member(gang, 0), member(other, 1), return_exceptions=True)
        assert [type(each) for each in found] == [gang_peers.MpiError] * 2, found

    asyncio.run(both())


async def _others(gang: Gang) -> None:
    await asyncio.gather(*(member(gang, rank) for rank in range(1, gang.size)))


async def _listens(gang: Gang) -> None:
    """Return once the first member accepts connections."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(gang.address, gang.port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            return


def test_a_link_that_breaks_off_before_all_are_there_is_made_again() -> None:
    gang = gang_of(3)

    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(member(gang, 0))
            await _listens(gang)
            link = await gang_link._join_at(replace(gang, rank=1), gang.port)
            link.close()
            await _others(gang)

    asyncio.run(play())


def test_a_first_member_that_breaks_off_before_all_are_there_is_asked_again() -> None:
    gang = gang_of(2)

    async def play() -> None:
        came: list[int] = []

        async def welcome(rank: int, link: gang_link.Link) -> None:
            came.append(rank)
            if len(came) == 1:
                link.close()
                return
            await link.send({"start": True})
            with pytest.raises(gang_link.LinkLost):
                await link.receive()

        async with gang_link.spawning() as spawn:
            listener = gang_link.listen(gang)
            spawn(gang_link.Reception(gang, welcome, spawn).serve(listener))
            link, message = await gang_link.join(replace(gang, rank=1), 10.0)
            assert (came, message) == ([1, 1], {"start": True})
            link.close()

    asyncio.run(play())


@pytest.mark.parametrize("tamper", ["changed", "repeated"])
def test_a_message_that_was_changed_or_repeated_ends_the_link(tamper: str) -> None:
    gang = gang_of(2)

    async def play() -> None:
        heard: list[object] = []

        async def welcome(_rank: int, link: gang_link.Link) -> None:
            while True:
                heard.append(await link.receive())

        async with gang_link.spawning() as spawn:
            listener = gang_link.listen(gang)
            spawn(gang_link.Reception(gang, welcome, spawn).serve(listener))
            await converse(heard)

    async def converse(heard: list[object]) -> None:
        link = await gang_link._join_at(replace(gang, rank=1), gang.port)
        sent = bytearray()
        write = link._writer.write
        link._writer.write = sent.extend  # type: ignore[method-assign]
        await link.send({"ended": 1})
        write(bytes(sent) if tamper == "repeated" else bytes(sent).replace(b"1}", b"0}"))
        write(bytes(sent))
        with pytest.raises(gang_link.LinkLost):
            await link.receive()
        assert heard == ([{"ended": 1}] if tamper == "repeated" else [])

    asyncio.run(play())


# A second user of the machine

SQUATTER = """
import json, os, socket, sys, threading
port, answer = int(sys.argv[1]), sys.argv[2]
listener = socket.create_server(("0.0.0.0", port), backlog=1000)
os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
kept = []
while True:
    connection, _ = listener.accept()
    kept.append(connection)
    if answer == "silent":
        continue
    hello = connection.recv(4096)
    if answer == "arguments":
        touch = ["--control-port", "127.0.0.1:1", "touch", sys.argv[3]]
        connection.sendall(json.dumps(touch).encode() + b"\\n")
    elif answer == "reflected":
        connection.sendall(b" ".join(hello.split()[::-1][:2]) + b"\\n")
    elif answer == "wrong":
        connection.sendall(b"00" * 32 + b" " + b"00" * 32 + b"\\n")
    elif answer == "endless":
        try:
            connection.sendall(b"0" * 10_000_000)
        except OSError:
            pass
"""
CALLER = """
import os, resource, socket, sys, time
address, port, sort, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"".encode("idna")
os.setgid(65534); os.setuid(65534)
said = {
    "silent": b"", "old": b'{"token": "uid/1", "rank": 1}\\n', "rank": b"1 " + b"00" * 32 + b"\\n",
    "http": b"GET / HTTP/1.1\\r\\n\\r\\n", "large": b"1 " * 100_000, "none": b"9 00\\n",
}[sort]
kept = []
while len(kept) < count:
    try:
        kept.append(socket.create_connection((address, port), 10))
        kept[-1].sendall(said)
        if sort == "rank":
            kept[-1].recv(4096)
            kept[-1].sendall(b"00" * 32 + b"\\n")
    except OSError:
        time.sleep(0.01)
    if len(kept) == min(count, 30):
        print("ready", flush=True)
print("all", flush=True)
time.sleep(3600)
"""


@contextmanager
def stranger(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@needs_root
@pytest.mark.parametrize("answer", ["silent", "arguments", "reflected", "wrong", "endless"])
def test_who_listens_first_is_not_believed_and_the_job_ends_well(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gang_link, "PROOF_SECONDS_MAX", 1.0)
    gang = gang_of(3)
    with stranger(SQUATTER, gang.port, answer, tmp_path / "pwned") as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        asyncio.run(whole(gang))
    assert "does not prove that it is the first member" in capsys.readouterr().err
    assert not (tmp_path / "pwned").exists()


async def _with_the_first(gang: Gang, then: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(member(gang, 0))
        await then()
        others = [group.create_task(member(gang, rank)) for rank in range(1, gang.size)]
        await asyncio.wait((first, *others), timeout=PATIENCE_SECONDS)
        assert first.done(), "the gang is not together"


@needs_root
@pytest.mark.parametrize(
    ("sort", "count"),
    [("silent", 30), ("silent", 1000), ("old", 3), ("rank", 3), ("http", 3), ("large", 3)],
)
@pytest.mark.parametrize("descriptors", [gang_link.UNPROVED_MAX + 200, 64])
def test_who_connects_first_delays_nothing_and_takes_no_rank(
    sort: str, count: int, descriptors: int,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(gang_link, "PROOF_SECONDS_MAX", 10 * PATIENCE_SECONDS)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before))
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in used)
    limit = next(itertools.islice(free, descriptors, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    gang = gang_of(3)
    with stranger(CALLER, gang.address, gang.port, sort, count) as caller:

        async def connected() -> None:
            assert caller.stdout is not None
            lines = ["ready", "all"] if count > 30 else ["ready"]
            for line in lines:
                assert await asyncio.to_thread(caller.stdout.readline) == f"{line}\n"

        async def in_time() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await _with_the_first(gang, connected)

        asyncio.run(in_time())


def test_a_recorded_proof_is_worth_nothing_in_another_connection() -> None:
    gang = gang_of(3)

    async def play() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(member(gang, 0))
            await _listens(gang)
            recorded = bytearray()

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                up_reader, up = await asyncio.open_connection(gang.address, gang.port)
                for _ in range(2):
                    recorded.extend(line := await reader.readline())
                    up.write(line)
                    if len(recorded) == len(line):
                        writer.write(await up_reader.readline())
                up.close()
                writer.close()

            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            link = await gang_link._join_at(replace(gang, rank=1, address="127.0.0.1"), port)
            link.close()
            server.close()
            reader, writer = await asyncio.open_connection(gang.address, gang.port)
            writer.write(recorded)
            assert len(await reader.readline()) > 64
            assert await reader.read() == b""
            writer.close()
            await _others(gang)

    asyncio.run(play())
