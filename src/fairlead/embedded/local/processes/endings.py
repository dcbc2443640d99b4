"""How runs of containers end: by themselves, as their shims recorded it, or because they must."""

from __future__ import annotations

import asyncio
import os

from fairlead.api.kubernetes.core import Pod
from fairlead.embedded.local.poddir import TERMINATION_LOG
from fairlead.embedded.local.processes.process import ExitFile, Run
from fairlead.embedded.virtual.stages.status import Terminated, terminated

SIGKILL = 9
EXIT_CODE_UNKNOWN = 255
START_ERROR = "StartError"


OUT_OF_MEMORY = "OOMKilled"
#: Of a termination message (kubelet `pkg/kubelet/container/helpers.go`).
MESSAGE_BYTES_MAX = 4096


def recorded_end(run: Run, ended: ExitFile) -> Terminated:
    """Return the recorded end for the status; OSError."""
    reason, message = START_ERROR if ended.error else "", ended.error
    excess = run.memory_excess()
    if excess and (ended.signal or ended.exit_code):
        reason, message = OUT_OF_MEMORY, excess
    return terminated(
        ended.exit_code,
        ended.signal,
        reason=reason,
        message=message or _left(run),
        started_at=ended.started_at,
        finished_at=ended.finished_at,
    )


def restarts(pod: Pod, ended: Terminated) -> bool:
    """True when a container that ended so is started again, as its pod's policy says."""
    policy = pod.spec.restart_policy
    return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)


def _left(run: Run) -> str:
    """Return the termination message, of which a kubelet keeps the end."""
    # A program may have put something else in its place, and nobody waits for a pipe.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(run.path.parent / TERMINATION_LOG, flags), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MESSAGE_BYTES_MAX))
            return file.read(MESSAGE_BYTES_MAX).decode(errors="replace")
    except OSError:  # the program may have taken it away
        return ""


def outcome(run: Run, now: float) -> Terminated:
    """Return how a run ended; when its shim could not write that down, what is known."""
    try:
        ended = run.exit()
        started = run.started()
        if ended is not None:
            return recorded_end(run, ended)
    except OSError as error:
        return terminated(EXIT_CODE_UNKNOWN, message=str(error), finished_at=now)
    if started is None:
        message = f"the supervisor failed: {run.last_words()}"
        return terminated(EXIT_CODE_UNKNOWN, reason=START_ERROR, message=message, finished_at=now)
    run.kill_survivors()
    return terminated(
        0,
        SIGKILL,
        message="the supervisor of this container was killed",
        started_at=started.started_at,
        finished_at=now,
    )


class Stopper:
    """Ends runs: SIGTERM, SIGKILL after the grace period, and so on until they are gone."""

    def __init__(self, kill_seconds: float) -> None:
        """`kill_seconds` is how long a shim may take over SIGKILL before it is killed itself."""
        self._kill_seconds = kill_seconds
        self._scopes: list[asyncio.Timeout] = []

    async def stop(self, run: Run, grace_seconds: float) -> None:
        """Return once the run's processes are gone."""
        if grace_seconds > 0:
            run.terminate()
            if await self._ended_within(run, grace_seconds):
                return
        run.kill()
        if await self._ended_within(run, self._kill_seconds):
            return
        run.destroy()
        await run.wait()
        run.kill_survivors()

    def shorten(self, seconds: float) -> None:
        """Let what is being waited for take no longer than this from now on."""
        for scope in self._scopes:
            scope.reschedule(asyncio.get_running_loop().time() + seconds)

    async def _ended_within(self, run: Run, seconds: float) -> bool:
        """Wait for the end; False when the time, which may have been shortened, is over."""
        try:
            async with asyncio.timeout(seconds) as scope:
                self._scopes.append(scope)
                try:
                    await run.wait()
                finally:
                    self._scopes.remove(scope)
        except TimeoutError:
            return False
        return True
