"""Programs beside the containers of the local node, and connections to what its pods listen on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import BadRequest, InternalError, TooManyRequests
from fairlead.embedded.http.streams.pod_streams import ExecOptions
from fairlead.embedded.local.containers import ContainerMount, rewrite
from fairlead.embedded.local.listening import listening_address
from fairlead.embedded.local.memory import PROC, measure
from fairlead.embedded.local.node import LocalNode
from fairlead.embedded.local.pod import LocalPod
from fairlead.embedded.local.processes.execution import LocalExecution
from fairlead.embedded.local.processes.process import Run
from fairlead.embedded.local.processes.shim_session import SESSIONS_MAX


class LocalStreams:
    """A `StreamSource` of the machine's own node; `node` gives the present one, if it has begun."""

    def __init__(self, node: Callable[[], LocalNode | None]) -> None:
        self._node = node
        self._open: Counter[Path] = Counter()  # by run: its further programs

    async def execute(self, pod: Pod, container: str, options: ExecOptions) -> LocalExecution:
        """Start a program beside a container; BadRequest when that does not run here."""
        run, mounts = self._running(pod, container)
        command = tuple(rewrite(word, mounts) for word in options.command)
        if any("\0" in word for word in command):
            raise BadRequest("a command may hold no NUL")
        if self._open[run.path] >= SESSIONS_MAX:
            raise TooManyRequests(
                f'container "{container}" runs {SESSIONS_MAX} further programs, the most at a time'
            )

        def closed() -> None:
            self._open[run.path] -= 1
            if not self._open[run.path]:
                del self._open[run.path]

        try:
            made = LocalExecution(run, command, options, closed)
        except OSError as error:
            name = pod.metadata.name
            raise InternalError(
                f'container "{container}" of pod {name} takes no further program: {error}'
            ) from error
        self._open[run.path] += 1
        return made

    async def connect(
        self, pod: Pod, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to what the pod's own processes listen on; OSError, BadRequest."""
        found = (run.shim_pid() for run in self._known(pod).running.values())
        shims = [pid for pid in found if pid is not None]
        address = await asyncio.to_thread(self._address, shims, port, pod.status.pod_ip)
        if address is None:
            raise ConnectionRefusedError(f"no process of the pod listens on port {port}")
        return await asyncio.open_connection(address, port)

    def _address(self, shims: list[int], port: int, pod_ip: str) -> str | None:
        pids = [pid for each in measure(shims, PROC).values() for pid in each.pids]
        return listening_address(pids, port, pod_ip, PROC)

    def _running(self, pod: Pod, container: str) -> tuple[Run, tuple[ContainerMount, ...]]:
        found = self._known(pod).entered(container)
        if found is None:
            name = pod.metadata.name
            raise BadRequest(f'container "{container}" in pod "{name}" is not running')
        return found

    def _known(self, pod: Pod) -> LocalPod:
        """Return the pod as the node has it; BadRequest when it is not of the local node."""
        name, node = pod.metadata.name, self._node()
        if node is None or pod.spec.node_name != node.name:
            raise BadRequest(
                f"pod {name} has no processes: node {pod.spec.node_name} is simulated; "
                "only pods of the local node take programs and connections"
            )
        known = node.pod(pod.metadata.uid)
        if known is None:
            raise BadRequest(f"pod {name} has not begun to run on its node")
        return known
