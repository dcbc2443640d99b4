"""The real kubectl and the official Python client in sessions with processes of a local node."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import shutil
import socket
import struct
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.stream import portforward, stream
from tests.conformance.http_server import TOKEN, eventually
from tests.e2e.session_world import SessionWorld, gone, session_world
from tests.patience import PATIENCE_SECONDS
from tests.ports import free_port

import kubernetes

KUBECTL = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")
pytestmark = pytest.mark.e2e
with_kubectl = pytest.mark.skipif(
    KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL"
)
SERVES = """
import http.server, os
open("page", "wb").write(b"0123456789" * 100_000)
http.server.HTTPServer(("127.0.0.1", PORT), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SessionWorld]:
    async with session_world(tmp_path / "data", with_tls=True) as made:
        made.api.write_kubeconfig(tmp_path / "kubeconfig")
        (tmp_path / "authority").write_bytes(made.api.authority)
        yield made


#: With these kubectl does what it did before 1.30, and what programs with SPDY executors still do.
SPDY_ALONE = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")


@pytest.fixture(params=["websocket", "spdy"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test by WebSocket, and by SPDY."""
    for name in SPDY_ALONE:
        monkeypatch.setenv(name, str(request.param == "websocket").lower())


by_each_way = pytest.mark.usefixtures("each_way")


def environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", *SPDY_ALONE) if name in os.environ}
    return {**kept, "HOME": str(home), "KUBECONFIG": str(home / "kubeconfig")}


async def started(home: Path, *words: str, **streams: Any) -> asyncio.subprocess.Process:
    assert KUBECTL is not None
    return await asyncio.create_subprocess_exec(
        KUBECTL, *words, env=environment(home), cwd=home,
        stdin=streams.get("stdin", asyncio.subprocess.PIPE),
        stdout=streams.get("stdout", asyncio.subprocess.PIPE),
        stderr=streams.get("stderr", asyncio.subprocess.PIPE), start_new_session=True,
    )  # fmt: skip


async def kubectl(home: Path, *words: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Return the exit code, the output and the errors of a command."""
    process = await started(home, *words)
    async with asyncio.timeout(PATIENCE_SECONDS):
        out, err = await process.communicate(stdin)
    return process.returncode or 0, out, err.decode()


@asynccontextmanager
async def serving_pod(world: SessionWorld, program: str = SERVES) -> AsyncIterator[int]:
    """A pod that serves a page of a million bytes on loopback."""
    port = free_port()
    await world.running_pod("web", "python3", "-c", program.replace("PORT", str(port)))

    def answers() -> bool:
        with socket.socket() as made:
            return made.connect_ex(("127.0.0.1", port)) == 0

    await eventually(answers)
    yield port


PAGE = b"0123456789" * 100_000
GET = b"GET /page HTTP/1.0\r\n\r\n"


async def fetched(port: int) -> bytes:
    """Return the page as it comes through a local port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


@with_kubectl
@by_each_way
async def test_kubectl_exec_passes_streams_and_exit_codes(
    world: SessionWorld, tmp_path: Path
) -> None:
    await world.running_pod("p")
    script = "cat; echo error >&2; exit 3"
    code, out, err = await kubectl(
        tmp_path, "exec", "-i", "p", "--", "sh", "-c", script, stdin=PAGE * 20
    )
    assert (code, out) == (3, PAGE * 20)
    assert err == "error\ncommand terminated with exit code 3\n"


@with_kubectl
async def test_kubectl_cp_copies_both_ways(world: SessionWorld, tmp_path: Path) -> None:
    await world.running_pod("p")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(PAGE)
    assert (await kubectl(tmp_path, "cp", "there", "p:copied"))[0] == 0
    assert (await world.output("p", "cat", "copied/file"))[0] == PAGE
    assert (await kubectl(tmp_path, "cp", "p:copied", "back"))[0] == 0
    assert (tmp_path / "back" / "file").read_bytes() == PAGE


@with_kubectl
@by_each_way
async def test_kubectl_exec_has_a_terminal_that_follows_the_size_of_the_persons(
    world: SessionWorld, tmp_path: Path
) -> None:
    await world.running_pod("p")
    ours, theirs = pty.openpty()
    shown = bytearray()
    asyncio.get_running_loop().add_reader(ours, lambda: shown.extend(os.read(ours, 65536)))
    resize(ours, 30, 100)
    words = ("exec", "-it", "p", "--", "bash", "--norc")
    process = await started(tmp_path, *words, stdin=theirs, stdout=theirs, stderr=theirs)
    await eventually(lambda: b"# " in shown or b"$ " in shown)
    os.write(ours, b"stty size\n")
    await eventually(lambda: b"30 100" in shown)
    resize(ours, 50, 90)
    process.send_signal(28)
    os.write(ours, b"until [ \"$(stty size)\" = '50 90' ]; do sleep 0.02; done; echo fol''lowed\n")
    await eventually(lambda: b"followed" in shown)
    os.write(ours, b"sh -c 'echo be\"\"gun; exec sleep 600'\n")
    await eventually(lambda: b"begun" in shown)
    os.write(ours, b"\x03")
    os.write(ours, b"echo aft''er; exit 7\n")
    await eventually(lambda: b"after" in shown)
    assert await process.wait() == 7
    asyncio.get_running_loop().remove_reader(ours)


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@with_kubectl
@by_each_way
async def test_a_killed_kubectl_leaves_no_process(world: SessionWorld, tmp_path: Path) -> None:
    await world.running_pod("p")
    process = await started(
        tmp_path, "exec", "-i", "p", "--", "sh", "-c", "trap '' HUP; echo $$; sleep 600 & wait"
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    process.kill()
    await process.wait()
    await gone(pid)


@with_kubectl
@by_each_way
async def test_kubectl_attach_shows_what_is_written_from_then_on(
    world: SessionWorld, tmp_path: Path
) -> None:
    script = "echo past; while [ ! -e go ]; do echo again; sleep 0.05; done; echo last"
    await world.running_pod("p", "sh", "-c", script)
    process = await started(tmp_path, "attach", "p", stdin=asyncio.subprocess.DEVNULL)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"again\n"
    await world.output("p", "touch", "go")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await process.stdout.read()).endswith(b"last\n")
    assert await process.wait() == 0


#: Listens on FULL with a queue that is full, so that who connects waits, and serves as SERVES does.
SERVES_BESIDE_FULL = (
    """
import socket
full = socket.create_server(("127.0.0.1", FULL), backlog=0)
held = [socket.socket() for _ in range(3)]
for each in held:
    each.setblocking(False)
    each.connect_ex(("127.0.0.1", FULL))
"""
    + SERVES
)


@with_kubectl
async def test_a_forwarded_connection_that_hangs_holds_up_no_other(
    world: SessionWorld, tmp_path: Path
) -> None:
    full = free_port()
    async with serving_pod(world, SERVES_BESIDE_FULL.replace("FULL", str(full))) as port:
        process = await started(tmp_path, "port-forward", "pod/web", f":{full}", f":{port}")
        assert process.stdout is not None
        local: dict[int, int] = {}
        while len(local) < 2:
            line = (await process.stdout.readline()).decode()
            if line.startswith("Forwarding from 127.0.0.1:"):
                here, _, there = line.removeprefix("Forwarding from 127.0.0.1:").split()
                local[int(there)] = int(here)
        _, stuck = await asyncio.open_connection("127.0.0.1", local[full])
        stuck.write(b"x")
        while not (await process.stdout.readline()).startswith(b"Handling"):
            pass
        pages = await asyncio.gather(*(fetched(local[port]) for _ in range(3)))
        stuck.close()
        process.terminate()
        await process.wait()
    assert pages == [PAGE] * 3


@with_kubectl
@by_each_way
async def test_kubectl_port_forward_carries_many_connections_at_once(
    world: SessionWorld, tmp_path: Path
) -> None:
    async with serving_pod(world) as port:
        process = await started(tmp_path, "port-forward", "pod/web", f":{port}")
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        local = int(line.removeprefix("Forwarding from 127.0.0.1:").split(" ")[0])
        pages = await asyncio.gather(*(fetched(local) for _ in range(10)))
        assert pages == [PAGE] * 10
        process.terminate()
        await process.wait()


@with_kubectl
async def test_kubectl_port_forward_reaches_nothing_that_is_not_the_pods(
    world: SessionWorld, tmp_path: Path
) -> None:
    await world.running_pod("other")
    async with serving_pod(world) as port:
        process = await started(tmp_path, "port-forward", "pod/other", f":{port}")
        assert process.stdout is not None
        assert process.stderr is not None
        line = (await process.stdout.readline()).decode()
        local = int(line.removeprefix("Forwarding from 127.0.0.1:").split(" ")[0])
        assert await fetched(local) == b""
        assert b"no process of the pod listens on port" in await process.stderr.readline()
        process.terminate()
        await process.wait()


# The official Python client: v4 of the protocol


async def beside(world: SessionWorld, home: Path, work: Callable[[Any], object]) -> None:
    """Run blocking work with the official client, beside the server."""
    settings = kubernetes.client.Configuration(
        host=world.api.server.url, api_key={"authorization": f"Bearer {TOKEN}"}
    )
    settings.ssl_ca_cert = str(home / "authority")
    with kubernetes.client.ApiClient(settings) as api:
        core = kubernetes.client.CoreV1Api(api)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.to_thread(work, core)


async def test_the_official_client_streams_both_ways_and_reads_the_exit_code(
    world: SessionWorld, tmp_path: Path
) -> None:
    await world.running_pod("p")

    def work(core: Any) -> None:
        answer = stream(
            core.connect_get_namespaced_pod_exec, "p", "default",
            command=["sh", "-c", "read x; echo got $x; echo error >&2; exit 4"],
            stdin=True, stdout=True, stderr=True, tty=False, _preload_content=False,
        )  # fmt: skip
        answer.write_stdin("a line\n")
        answer.run_forever(timeout=PATIENCE_SECONDS)
        assert answer.read_stdout() == "got a line\n"
        assert answer.read_stderr() == "error\n"
        assert answer.returncode == 4

    await beside(world, tmp_path, work)


async def test_the_official_client_forwards_a_port(world: SessionWorld, tmp_path: Path) -> None:
    async with serving_pod(world) as port:

        def work(core: Any) -> None:
            forward = portforward(
                core.connect_get_namespaced_pod_portforward, "web", "default", ports=str(port)
            )
            made = forward.socket(port)
            made.sendall(GET)
            answer = b""
            while data := made.recv(65536):
                answer += data
            assert answer.partition(b"\r\n\r\n")[2] == PAGE
            assert forward.error(port) is None

        await beside(world, tmp_path, work)


async def test_a_refused_port_is_an_error_of_its_own_channel(
    world: SessionWorld, tmp_path: Path
) -> None:
    await world.running_pod("p")
    port = free_port()

    def work(core: Any) -> None:
        forward = portforward(
            core.connect_get_namespaced_pod_portforward, "p", "default", ports=str(port)
        )
        made = forward.socket(port)
        while made.recv(65536):
            pass
        assert f"no process of the pod listens on port {port}" in forward.error(port)

    await beside(world, tmp_path, work)
