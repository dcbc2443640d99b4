"""Kernels of Jupyter as jobs, by `jupyter_client` as JupyterLab uses it.

The kernel is a small one of our own that speaks Jupyter's protocol, and starts in an instant.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS

from fairlead.cli.jupyter.provisioner import FairleadProvisioner

pytestmark = pytest.mark.e2e

KERNEL = """
import json, os, sys, threading, zmq
from jupyter_client.session import Session

info, context = json.load(open(sys.argv[1])), zmq.Context()
session = Session(key=info["key"].encode())


def bound(kind, name):
    socket = context.socket(kind)
    socket.bind(f"tcp://127.0.0.1:{info[name]}")
    return socket


def beat(socket):
    while True:
        socket.send(socket.recv())


shell, control = bound(zmq.ROUTER, "shell_port"), bound(zmq.ROUTER, "control_port")
iopub, _stdin = bound(zmq.PUB, "iopub_port"), bound(zmq.ROUTER, "stdin_port")
threading.Thread(target=beat, args=(bound(zmq.REP, "hb_port"),), daemon=True).start()
poller, names = zmq.Poller(), {}
poller.register(shell, zmq.POLLIN)
poller.register(control, zmq.POLLIN)
print("serves", flush=True)
while True:
    try:
        ready = poller.poll()
    except KeyboardInterrupt:
        continue
    for socket, _ in ready:
        idents, parts = session.feed_identities(socket.recv_multipart())
        asked = session.deserialize(parts)
        kind, content = asked["header"]["msg_type"], {"status": "ok"}
        session.send(iopub, "status", {"execution_state": "busy"}, parent=asked)
        if kind == "kernel_info_request":
            content.update(protocol_version="5.3", implementation="small", banner="",
                           language_info={"name": "python", "version": "3"})
        if kind == "execute_request":
            try:
                exec(asked["content"]["code"], names)
                text = str(names.get("said", ""))
                session.send(iopub, "stream", {"name": "stdout", "text": text}, parent=asked)
            except KeyboardInterrupt:
                content = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "",
                           "traceback": []}
        session.send(socket, kind.replace("request", "reply"), content, parent=asked, ident=idents)
        session.send(iopub, "status", {"execution_state": "idle"}, parent=asked)
        if kind == "shutdown_request":
            sys.exit(0)
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    world = Shell(tmp_path_factory.mktemp("kernels"))
    world.up("--nodes", "0", "--listen", "127.0.0.1:0")
    (world.root / "kernel.py").write_text(KERNEL)
    yield world
    world.down()


class Kernel:
    """A kernel of JupyterLab's, and a client of it."""

    def __init__(self, manager: AsyncKernelManager, client: Any) -> None:
        self.manager = manager
        self.client = client

    @property
    def provisioner(self) -> FairleadProvisioner:
        found = self.manager.provisioner
        assert isinstance(found, FairleadProvisioner)
        return found

    @property
    def job(self) -> str:
        assert self.provisioner.job is not None
        return self.provisioner.job.name

    async def says(self, code: str) -> str:
        """Run code, and return what it left in `said`."""
        heard: list[str] = []

        def hear(message: Any) -> None:
            if message["msg_type"] == "stream":
                heard.append(message["content"]["text"])

        reply = await self.client.execute_interactive(
            code, output_hook=hear, timeout=PATIENCE_SECONDS
        )
        assert reply["content"]["status"] == "ok", reply
        return "".join(heard)


def specify(shell: Shell, *flags: str, **config: Any) -> str:
    """Write the specification of kernels that begin from now on; return the directory."""
    place = shell.root / "kernels" / "cluster"
    place.mkdir(parents=True, exist_ok=True)
    config["flags"] = ["--cpus", "50m", *flags]
    provisioner = {"provisioner_name": "fairlead", "config": config}
    (place / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, str(shell.root / "kernel.py"), "{connection_file}"],
        "display_name": "On the cluster",
        "language": "python",
        "metadata": {"kernel_provisioner": provisioner},
    }))  # fmt: skip
    return str(place.parent)


@asynccontextmanager
async def kernel(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, *flags: str, **config: Any
) -> AsyncIterator[Kernel]:
    """Start a kernel by its specification, as JupyterLab does."""
    monkeypatch.setenv("FAIRLEAD_KUBECONFIG", shell.environment["FAIRLEAD_KUBECONFIG"])
    monkeypatch.chdir(shell.root)
    specifications = KernelSpecManager(kernel_dirs=[specify(shell, *flags, **config)])
    manager = AsyncKernelManager(
        kernel_name="cluster", kernel_spec_manager=specifications,
        connection_file=str(shell.root / f"connection-{os.urandom(4).hex()}.json"),
    )  # fmt: skip
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=PATIENCE_SECONDS)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        if manager.has_kernel:
            await manager.shutdown_kernel(now=True)


async def test_a_kernel_runs_is_interrupted_begins_again_and_ends(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kernel(shell, monkeypatch, "--name", "lab") as lab:
        assert await lab.says("import os; said = os.environ['RANK']") == "0"
        first = await lab.says("said = os.getpid()")
        waiting = asyncio.ensure_future(lab.client.execute_interactive(
            f"open({str(shell.root / 'begun')!r}, 'w'); import time; time.sleep(600)"
        ))  # fmt: skip
        await asyncio.to_thread(eventually, (shell.root / "begun").exists, True)
        await lab.manager.interrupt_kernel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await waiting)["content"]["ename"] == "KeyboardInterrupt"
        assert await lab.manager.is_alive()
        # Again in the same job, under the same address.
        ports = lab.manager.ports
        await lab.manager.restart_kernel()
        await lab.client.wait_for_ready(timeout=PATIENCE_SECONDS)
        assert await lab.says("import os; said = os.getpid()") != first
        assert (lab.job, lab.manager.ports) == ("lab", ports)
        assert shell.status("lab")["attempt"] == 1
        # A crash is seen as one of a process here is.
        os.kill(int(await lab.says("said = os.getpid()")), signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await lab.provisioner.wait()
        await lab.manager.restart_kernel(now=True)
        await lab.client.wait_for_ready(timeout=PATIENCE_SECONDS)
        assert await lab.says("said = 'back'") == "back"
        await lab.manager.shutdown_kernel()
    eventually(lambda: shell.state("lab"), "Succeeded")


async def test_the_key_is_known_to_those_alone_who_may_run_commands_in_the_job(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kernel(shell, monkeypatch, "--name", "secret") as lab:
        key = lab.manager.session.key.decode()
        assert len(key) == 64
        for read in (("ps", "secret", "-o", "json"), ("logs", "secret"), ("why", "secret")):
            assert key not in shell.run(*read).out
        processes = await asyncio.create_subprocess_exec("ps", "axeww", stdout=subprocess.PIPE)
        listed, _ = await processes.communicate()
        assert key not in listed.decode(errors="replace")
        uid = shell.job("secret")["metadata"]["uid"]
        place = Path(os.environ.get("TMPDIR", "/tmp")) / f".fairlead-kernel-{uid}"
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert key in (place / "connection.json").read_text()
    assert not place.exists()


#: A Jupyter that is killed.
JUPYTER = """
import sys, time
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
manager = KernelManager(
    kernel_name="cluster", kernel_spec_manager=KernelSpecManager(kernel_dirs=[sys.argv[1]])
)
manager.start_kernel()
print("began", flush=True)
time.sleep(600)
"""


async def test_a_lost_cluster_is_found_again_and_a_lost_jupyter_ends_the_job(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kernel(shell, monkeypatch) as lab:
        first = await lab.says("import os; said = os.getpid()")
        specify(shell, lost_seconds=6.0)  # of the other one: the cluster may be away for longer
        lost = await asyncio.to_thread(of_a_killed_jupyter, shell, lab.job)
        os.kill(shell.pid(), signal.SIGKILL)
        shell.up("--nodes", "0", "--listen", "127.0.0.1:0")
        await lab.client.wait_for_ready(timeout=PATIENCE_SECONDS)
        assert await lab.says("said = os.getpid()") == first
        await asyncio.to_thread(eventually, lambda: shell.state(lost), "Failed")
        assert "no Jupyter was there" in shell.run("logs", lost).out
        assert await lab.says("said = os.getpid()") == first


def of_a_killed_jupyter(shell: Shell, other: str) -> str:
    """Have a Jupyter start a kernel, and be killed; return the job, which is not the other one."""
    with subprocess.Popen(
        [sys.executable, "-c", JUPYTER, str(shell.root / "kernels")], cwd=shell.root,
        env=shell.environment, stdout=subprocess.PIPE,
    ) as jupyter:  # fmt: skip
        assert jupyter.stdout is not None
        assert jupyter.stdout.readline() == b"began\n"
        found = next(name for name in names(shell) if name != other)
        jupyter.kill()
    return found


def names(shell: Shell) -> list[str]:
    """Return the jobs that run."""
    _, body = shell.get("/apis/fairlead.dev/v1alpha1/namespaces/default/jobs")
    return [
        each["metadata"]["name"] for each in body["items"]
        if each.get("status", {}).get("state") == "Running"
    ]  # fmt: skip


async def test_a_job_that_cannot_run_is_an_error_that_says_why(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags, words in {
        ("--nodes", "2"): "for one member",
        ("--nosuch",): "No such option",
        ("--time", "soon"): "soon",
    }.items():
        with pytest.raises(RuntimeError, match=words):
            async with kernel(shell, monkeypatch, *flags):
                pytest.fail("it began")
