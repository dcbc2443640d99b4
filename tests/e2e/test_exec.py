"""Programs beside a container, over the WebSocket protocol: streams, ends, bounds and refusals."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import random
import signal
import socket
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest
from tests.conformance.http_server import eventually
from tests.e2e.session_world import V4, V5, Exec, SessionWorld, gone, session_world

from fairlead.api.resources import PODS
from fairlead.embedded.http.streams.websockets import MESSAGE_BYTES_MAX
from fairlead.embedded.local.processes.execution import PIPE_BYTES
from fairlead.embedded.local.processes.shim_session import SESSIONS_MAX

pytestmark = pytest.mark.e2e
TERMINAL = ("stdin", "stdout", "tty")
#: The kernel's buffers and ours between a program and a client that does not read.
IN_FLIGHT_BYTES_MAX = 16 << 20


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SessionWorld]:
    async with session_world(tmp_path) as made:
        yield made


async def pid_of(session: Exec) -> int:
    """Return the process that a program has named on its first line."""
    await session.until(b"\n")
    return int(session.out.split(b"\n")[0])


def _text(path: Path) -> str:
    return path.read_text()


def written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


# Streams and ends


async def test_a_program_has_the_environment_the_directory_and_the_parent_of_its_container(
    world: SessionWorld,
) -> None:
    env = [{"name": "COLOUR", "value": "green"}]
    script = "cut -d' ' -f4 /proc/self/stat; exec sleep 600"
    container = {"name": "main", "image": "", "command": ["sh", "-c", script], "env": env}
    await world.running_pod("p", containers=[container])
    main, _ = await world.output("p", "sh", "-c", "echo $COLOUR; pwd; cut -d' ' -f4 /proc/$$/stat")
    colour, directory, parent = main.decode().split()
    assert colour == "green"
    assert Path(directory).parts[-2:] == ("work", "main"), "of the pod, by the container's name"
    log = next((world.data / "logs").rglob("p.log")).resolve()
    await eventually(log.read_text)
    own = await world.output("p", "cut", "-d ", "-f4", "/proc/self/stat")
    assert own == (f"{parent}\n".encode(), 0), "each further program has the shim as its parent"


async def test_output_errors_and_exit_code_come_apart(world: SessionWorld) -> None:
    await world.running_pod("p")
    async with world.exec("p", "sh", "-c", "echo out; echo err >&2; exit 7") as session:
        await session.until_end()
    assert (session.out, session.err, session.exit_code) == (b"out\n", b"err\n", 7)
    assert session.socket.protocol == V5
    assert session.socket.close_code == 1000
    assert await world.output("p", "sh", "-c", "kill -9 $$") == (b"", 137)
    async with world.exec("p", "no-such-program") as session:
        await session.until_end()
    assert session.status["reason"] == "InternalError"
    assert "exec 'no-such-program': executable file not found" in session.status["message"]


@pytest.mark.parametrize("protocol", [V5, V4])
async def test_input_reaches_the_program_and_ends_where_the_protocol_can_say_so(
    world: SessionWorld, protocol: str
) -> None:
    await world.running_pod("p")
    async with world.exec("p", "cat", protocol=protocol) as session:
        await session.send(0, b"a line\n")
        await session.until(b"a line\n")
        await session.end_input()
        if protocol == V4:
            assert not await session.receive(), "255 is no channel of version 4"
            assert session.socket.close_code == 1002
            return
        await session.until_end()
        assert session.exit_code == 0


async def test_what_a_session_leaves_behind_does_not_hold_it_up_and_ends_with_the_container(
    world: SessionWorld,
) -> None:
    await world.running_pod("p")
    out, code = await world.output("p", "sh", "-c", "sleep 600 & echo $!")
    assert code == 0
    left = int(out)
    os.kill(left, 0)
    await world.client.delete(PODS, "p", namespace="default", grace_period_seconds=0)
    await gone(left)


async def test_a_hundred_megabytes_go_through_both_ways_byte_for_byte(world: SessionWorld) -> None:
    await world.running_pod("p")
    rng, sent, came = random.Random(5), hashlib.sha256(), hashlib.sha256()
    pieces = [rng.randbytes(rng.randrange(1, 1 << 20)) for _ in range(200)]
    assert sum(map(len, pieces)) > 100_000_000 / 1.1
    async with world.exec("p", "cat") as session:

        async def send() -> None:
            for piece in pieces:
                sent.update(piece)
                await session.send(0, piece)
            await session.end_input()

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            total = 0
            while await session.receive():
                came.update(session.out)
                total += len(session.out)
                session.out.clear()
        assert session.exit_code == 0
    assert total == sum(map(len, pieces))
    assert came.digest() == sent.digest()


async def test_a_client_that_does_not_read_stops_the_program_and_loses_nothing(
    world: SessionWorld,
) -> None:
    await world.running_pod("p")
    size = 200_000_000
    script = f"echo $$; exec head -c {size} /dev/zero"
    async with world.exec("p", "sh", "-c", script, flags=("stdout",)) as session:
        pid = await pid_of(session)
        seen: list[int] = []

        def stands() -> bool:
            seen.append(written_bytes(pid))
            return len(seen) > 20 and seen[-1] == seen[-20] > PIPE_BYTES

        await eventually(stands)
        assert seen[-1] < IN_FLIGHT_BYTES_MAX
        os.kill(pid, 0)
        total = len(session.out)
        session.out.clear()
        while await session.receive():
            total += len(session.out)
            session.out.clear()
        assert total == size + len(f"{pid}\n")
        assert session.exit_code == 0


async def test_two_sessions_of_one_container_have_nothing_to_do_with_each_other(
    world: SessionWorld,
) -> None:
    await world.running_pod("p")
    async with world.exec("p", "cat") as first, world.exec("p", "cat") as second:
        await first.send(0, b"one")
        await second.send(0, b"two")
        await first.until(b"one")
        await second.until(b"two")
        await first.end_input()
        await first.until_end()
        await second.send(0, b"more")
        await second.until(b"twomore")
    assert first.out == b"one"
    assert first.exit_code == 0


# Terminals


SIZES = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print("ready", flush=True)
while signal.sigwait({signal.SIGWINCH}):
    print(*os.get_terminal_size(0), flush=True)
"""


async def test_a_terminal_has_the_size_that_the_client_says_and_signals_its_changes(
    world: SessionWorld,
) -> None:
    await world.running_pod("p")
    async with world.exec("p", sys.executable, "-c", SIZES, flags=TERMINAL) as session:
        await session.until(b"ready")
        for columns, rows in ((100, 30), (7, 3), (300, 90)):
            await session.send(4, json.dumps({"Width": columns, "Height": rows}).encode())
            await session.until(f"{columns} {rows}\r\n".encode())
        await session.send(4, b'{"Width":0,"Height":70000}')
        await session.send(4, b'{"Width":81,"Height":25}')
        await session.until(b"81 25\r\n")


async def test_control_c_interrupts_what_runs_in_the_terminal_and_not_the_shell(
    world: SessionWorld,
) -> None:
    await world.running_pod("p")
    async with world.exec("p", "bash", "--norc", "-i", flags=TERMINAL) as session:
        await session.send(0, b"tty; sh -c 'echo $$; exec sleep 600'\n")
        while (lines := session.out.split(b"\r\n")) and not any(x.isdigit() for x in lines[:-1]):
            assert await session.receive()
        sleeper = next(int(line) for line in lines if line.isdigit())
        assert b"/dev/pts/" in session.out
        await session.send(0, b"\x03")
        await gone(sleeper)
        await session.send(0, b"echo code=$?; exit 9\n")
        await session.until(b"code=130")
        await session.until_end()
    assert session.exit_code == 9


# Clients that go


IGNORES_HANG_UP = "trap '' HUP; echo $$; sleep 600 & sleep 600 & wait"


@pytest.mark.parametrize("flags", [("stdin", "stdout"), TERMINAL])
async def test_a_client_that_goes_leaves_no_process_even_of_one_that_ignores_it(
    world: SessionWorld, flags: tuple[str, ...]
) -> None:
    await world.running_pod("p")
    async with world.exec("p", "sh", "-c", IGNORES_HANG_UP, flags=flags) as session:
        pid = await pid_of(session)
        children = Path(f"/proc/{pid}/task/{pid}/children")
        await eventually(lambda: len(children.read_text().split()) == 2)
        family = [pid, *map(int, _text(children).split())]
        abort(session)
        for each in family:
            await gone(each)
    assert (await world.output("p", "echo", "again"))[0] == b"again\n"


async def test_a_client_that_goes_while_its_input_is_not_read_leaves_no_process(
    world: SessionWorld,
) -> None:
    await world.running_pod("p")
    async with world.exec("p", "sh", "-c", "echo $$; exec sleep 600") as session:
        pid = await pid_of(session)
        sending = asyncio.ensure_future(session.send(0, bytes(30_000_000)))
        await eventually(lambda: unread_bytes(pid) > 0)
        abort(session)
        await gone(pid)
        await asyncio.wait([sending])


def unread_bytes(pid: int) -> int:
    """Return what waits in the pipe that is a process's input."""
    descriptor = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        count = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)
    finally:
        os.close(descriptor)


def abort(session: Exec) -> None:
    """Break the connection as a killed client's kernel does."""
    transport = session.socket.get_extra_info("socket")
    transport.shutdown(socket.SHUT_RDWR)


# Containers that end


async def test_a_session_ends_with_its_container(world: SessionWorld) -> None:
    pod = await world.running_pod("p")
    async with world.exec("p", "sh", "-c", IGNORES_HANG_UP) as session:
        pid = await pid_of(session)
        await world.client.delete(
            PODS, "p", namespace="default", grace_period_seconds=0, uid=pod.metadata.uid
        )
        await session.until_end()
        assert session.exit_code == 137
        await gone(pid)


async def test_a_session_that_was_opened_before_the_container_ends_sees_its_last_output(
    world: SessionWorld,
) -> None:
    await world.running_pod("p", "sh", "-c", "while [ ! -e end ]; do sleep 0.02; done")
    out, code = await world.output("p", "sh", "-c", "echo before; touch end; exec sleep 600")
    assert (out, code) == (b"before\n", 137)
    await world.until_phase("p", "Succeeded")


# Refusals and bounds


async def refusal(world: SessionWorld, url: str, protocol: str = V5) -> tuple[int, str]:
    """Return the code and the message that refuse a handshake."""
    headers = {
        "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": protocol,
    }  # fmt: skip
    async with world.api.session.get(url, headers=headers) as response:
        return response.status, (await response.json())["message"]


async def test_what_cannot_be_served_is_refused_with_a_reason_before_anything_starts(
    world: SessionWorld,
) -> None:
    ls: tuple[tuple[str, str], ...] = (("command", "ls"), ("stdout", "true"))
    await world.running_pod("p")
    await world.pod("ended", "true")
    await world.until_phase("ended", "Succeeded")
    await world.pod("elsewhere", node="virtual-1")
    await world.client.create(
        PODS, {"metadata": {"name": "waits"}, "spec": {"containers": [{"name": "main"}]}},
        namespace="default",
    )  # fmt: skip
    cases: list[tuple[str, tuple[tuple[str, str], ...], int, str]] = [
        ("none", ls, 404, 'pods "none" not found'),
        ("p", (*ls, ("container", "x")), 400, "container x is not valid for pod p"),
        ("p", ls[1:], 400, "you must specify at least one command"),
        ("p", ls[:1], 400, "at least 1 of stdin, stdout, stderr"),
        ("p", (("command", "a\0b"), ls[1]), 400, "NUL"),
        ("ended", ls, 400, "completed pod; current phase is Succeeded"),
        ("waits", ls, 400, "pod waits does not have a host assigned"),
        ("elsewhere", ls, 400, "node virtual-1 is simulated"),
    ]
    for name, pairs, code, words in cases:
        got, message = await refusal(world, world.url(name, "exec", *pairs))
        assert (got, words in message) == (code, True), (name, pairs, got, message)
    assert (await refusal(world, world.url("p", "exec", *ls), "v9.channel.k8s.io"))[0] == 400
    async with world.api.session.get(world.url("p", "exec", *ls)) as response:
        assert (response.status, "WebSocket" in await response.text()) == (400, True)
    no_token = {"Authorization": "Bearer of-another"}
    async with world.api.session.get(world.url("p", "exec", *ls), headers=no_token) as response:
        assert response.status == 401


@pytest.mark.parametrize(
    "message",
    [b"\x07x", b"\x02x", b"\x04{", b'\x04{"Width":"x","Height":1}'],
    ids=["unknown channel", "channel of ours", "no JSON", "no number"],
)
async def test_frames_that_break_the_protocol_end_the_session_and_its_program(
    world: SessionWorld, message: bytes
) -> None:
    await world.running_pod("p")
    async with world.exec("p", "sh", "-c", "echo $$; exec sleep 600", flags=TERMINAL) as session:
        pid = await pid_of(session)
        await session.socket.send_bytes(message)
        await session.until_end()
        assert (session.socket.close_code, session.status) == (1002, {})
        await gone(pid)
    assert (await world.output("p", "echo", "again"))[0] == b"again\n"


async def test_a_frame_beyond_the_bound_ends_the_session_and_its_program(
    world: SessionWorld,
) -> None:
    await world.running_pod("p")
    async with world.exec("p", "sh", "-c", "echo $$; exec cat") as session:
        pid = await pid_of(session)
        with suppress(
            aiohttp.ClientError, ConnectionError
        ):  # the server may close before it has come whole
            await session.socket.send_bytes(bytes(MESSAGE_BYTES_MAX + 1))
        await gone(pid)
        await session.until_end()
        assert len(session.out) < IN_FLIGHT_BYTES_MAX
    assert (await world.output("p", "echo", "again"))[0] == b"again\n"


async def test_a_container_takes_a_bounded_number_of_further_programs(world: SessionWorld) -> None:
    await world.running_pod("p")
    async with AsyncExitStack() as stack:
        for _ in range(SESSIONS_MAX):
            session = await stack.enter_async_context(world.exec("p", "cat"))
            await session.send(0, b"x")
            await session.until(b"x")
        query = (("command", "ls"), ("stdout", "true"))
        code, message = await refusal(world, world.url("p", "exec", *query))
        assert (code, f"{SESSIONS_MAX} further programs" in message) == (429, True)
        await session.end_input()
        await session.until_end()
        await eventually(lambda: session.socket.closed)
        assert (await world.output("p", "echo", "again"))[0] == b"again\n"


async def test_a_stopped_server_ends_sessions_and_their_programs(tmp_path: Path) -> None:
    async with session_world(tmp_path) as world:
        await world.running_pod("p")
        async with world.exec("p", "sh", "-c", "echo $$; exec sleep 600") as session:
            pid = await pid_of(session)
            world.api.server.stop()
            await session.until_end()
            assert session.socket.close_code == 1000
            await gone(pid)


async def test_a_killed_supervisor_ends_the_sessions_of_its_container(world: SessionWorld) -> None:
    await world.running_pod("p")
    async with world.exec("p", "sh", "-c", "echo $$ $PPID; exec sleep 600") as session:
        await session.until(b"\n")
        pid, shim = map(int, session.out.split())
        os.kill(shim, signal.SIGKILL)
        await session.until_end()
        assert session.exit_code == 137
        await gone(pid)


# Attach


async def test_attach_shows_what_the_container_writes_from_now_on_and_takes_no_input(
    world: SessionWorld,
) -> None:
    await world.running_pod("p", "sh", "-c", "echo past; read x; while [ ! -e go ]; do sleep 0.02;"
                            " done; echo new; echo more >&2")  # fmt: skip
    log = (world.data / "logs/default/pods/p.log").resolve()
    await eventually(lambda: "past" in log.read_text())
    url = world.url("p", "attach", ("stdout", "true"), ("stderr", "true"), ("stdin", "true"))
    async with world.api.session.ws_connect(url, protocols=(V5,)) as socket:
        session = Exec(socket)
        assert await session.receive()
        await session.send(0, b"ignored\n")
        await world.output("p", "touch", "go")
        await session.until_end()
    assert (session.out, session.exit_code) == (b"new\nmore\n", 0)
