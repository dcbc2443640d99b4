"""In-place resize of a pod on the local node: memory limits follow what the node has allocated.

Only memory is limited on the local node, so only a memory limit has to be changed in running
containers: in the control group, or for those who measure. A limit is never set below what is in
use, which would kill the container; the resize then stays in progress and is tried again, as a
kubelet does (kubernetes `validateMemoryResizeAction`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from fairlead.api.kubernetes.core import Pod
from fairlead.embedded.local.containers import ContainerLaunch, memory_limit
from fairlead.embedded.local.host import PodHost
from fairlead.embedded.local.memory import above_limit
from fairlead.embedded.local.processes.process import Run
from fairlead.embedded.local.track import ContainerTrack
from fairlead.embedded.virtual.stages.resizing import PodAmounts, ResizeReason


class PodResizer:
    """The resizes of one pod. `wake` is called from events; `follow` is a task of the pod."""

    def __init__(self, host: PodHost, changed: Callable[[], Awaitable[None]]) -> None:
        """`changed` writes the pod's status."""
        self._host = host
        self._changed = changed
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look at what the pod asks."""
        self._wake.set()

    def launch(self, pod: Pod, container: str, launch: ContainerLaunch) -> ContainerLaunch:
        """Return how to start a container with the memory limit that is allocated now."""
        amounts = self._host.amounts(pod)
        return replace(launch, memory_bytes=memory_limit(amounts.allocated, container))

    async def follow(self, pod: Callable[[], Pod], tracks: Sequence[ContainerTrack]) -> None:
        """Resize the pod whenever its spec asks for that and there is room, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked = pod()
            amounts = self._host.amounts(asked)
            if self._host.resizes.look(asked, amounts, self._host.now(), self._wake.set):
                self._report(asked, amounts)
                await self._changed()
            if not amounts.is_settled:
                await self._apply(asked, amounts, tracks)

    def _report(self, pod: Pod, amounts: PodAmounts) -> None:
        pending = amounts.pending
        if pending is not None:
            reason = (
                "ResizeDeferred" if pending.reason is ResizeReason.DEFERRED else "ResizeInfeasible"
            )
            self._host.event(pod, reason, pending.message, warning=True)
        elif not amounts.is_settled:
            self._host.event(pod, "ResizeStarted", "the pod's new amounts are allocated")

    async def _apply(self, pod: Pod, amounts: PodAmounts, tracks: Sequence[ContainerTrack]) -> None:
        wanted = amounts.allocated
        error = await self._set_limits(amounts, tracks)
        assert amounts.progress is not None, "what is allocated and not there is in progress"
        if error:
            if error != amounts.progress.error:
                self._host.event(pod, "ResizeError", error, warning=True)
                amounts.progress = replace(amounts.progress, error=error)
                await self._changed()
            delay = self._host.options.retry_seconds
            asyncio.get_running_loop().call_later(delay, self._wake.set)
            return
        amounts.actual, amounts.progress = wanted, None
        self._host.event(pod, "ResizeCompleted", "the containers have the pod's new amounts")
        await self._changed()

    async def _set_limits(self, amounts: PodAmounts, tracks: Sequence[ContainerTrack]) -> str:
        """Set the memory limits of the containers that run; return why that cannot be done."""
        changed: dict[str, tuple[Run, int]] = {}
        lower: dict[int, str] = {}
        for track in tracks:
            name, run = track.spec.name, track.run
            before, after = (memory_limit(s, name) for s in (amounts.actual, amounts.allocated))
            if before == after or run is None or not run.has_shim:
                continue
            changed[name] = run, after
            shim = run.shim_pid()
            if shim is not None and (not before or after < before):
                lower[shim] = name
        try:
            limits = {shim: changed[name][1] for shim, name in lower.items()}
            used = await asyncio.to_thread(above_limit, limits) if limits else {}
            for shim, now in used.items():
                name = lower[shim]
                return (
                    f'attempting to set container "{name}" memory limit ({changed[name][1]}) below '
                    f"current usage ({now})"
                )
            for run, limit in changed.values():
                run.limit_memory(limit, self._host.memory_groups)
        except OSError as error:
            return f"the memory limit cannot be set: {error}"
        return ""
