"""What the local node does for its pods, as a protocol, and how patient it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairlead.api.core import Pod
from fairlead.embedded.local.config import ConfigData
from fairlead.embedded.local.logfiles import LogLimits
from fairlead.embedded.local.memory import MemoryGroups
from fairlead.embedded.local.poddir import PodDir
from fairlead.embedded.virtual.status import PodNow


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Patience of the local node, in seconds, and what it keeps."""

    restart_back_off_seconds: float = 10.0
    restart_back_off_seconds_max: float = 300.0
    restart_back_off_reset_seconds: float = 600.0  # a run this long makes the next back-off short
    progress_seconds: float = 1.0
    memory_seconds: float = 0.5  # between two looks at the memory of containers with a limit
    retry_seconds: float = 5.0  # after a disk that is full, or a reference that is missing
    prune_seconds: float = 600.0  # between two looks at the logs that are kept
    logs: LogLimits = field(default_factory=LogLimits)
    kill_seconds: float = 5.0  # how long a shim may take after SIGKILL before it is killed itself


class PodHost(Protocol):
    """What the node does for its pods."""

    options: LocalOptions
    boot: str
    memory_groups: MemoryGroups

    def now(self) -> float:
        """Return the instant."""
        ...

    def admit(self, pod: Pod) -> str:
        """Take the pod's claims; return "" or why they do not fit."""
        ...

    def readmit(self, pod: Pod) -> None:
        """Take the claims of a pod that was admitted in a previous life."""
        ...

    def release(self, pod: Pod) -> None:
        """Give the claims back; harmless when repeated."""
        ...

    def address(self, uid: str) -> str:
        """Return the pod's address."""
        ...

    def assign_gpus(self, pod: Pod) -> dict[str, tuple[int, ...]]:
        """Return GPU indices by container, reserved until `release`."""
        ...

    def base_environment(self, gpus: Sequence[int]) -> dict[str, str]:
        """Return the environment below the declared one."""
        ...

    def config(self, namespace: str) -> ConfigData:
        """Return the ConfigMaps and Secrets as they are now."""
        ...

    async def config_changed(self) -> None:
        """Return after any change of ConfigMaps or Secrets."""
        ...

    def claims_path(self, namespace: str) -> Path:
        """Return the directory that holds persistent volume claims."""
        ...

    def open_logs(self, pod: Pod) -> dict[str, str]:
        """Prepare the pod's log files and return their paths by container; OSError."""
        ...

    def log_restarts(self, log: str) -> None:
        """Put the container's log aside as the previous one; OSError."""
        ...

    def close_logs(self, pod: Pod, logs: dict[str, str]) -> None:
        """Note that nothing more will be written to these logs."""
        ...

    async def write_status(self, pod: Pod, now: PodNow) -> None:
        """Write the status, for as long as it takes; silently when the pod is gone."""
        ...

    async def write_progress(self, pod: Pod, text: str) -> None:
        """Write the progress annotation; silently when the pod is gone."""
        ...

    async def confirm_deletion(self, pod: Pod) -> None:
        """Delete with grace 0; silently when the pod is gone."""
        ...

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event, once per pod and reason and message."""
        ...

    def problem(self, error: OSError | None) -> None:
        """Note that this machine's disk or data directory is in trouble, or (None) is not."""
        ...

    async def remove(self, directory: PodDir) -> None:
        """Remove the directory of a pod that is gone."""
        ...
