"""What the local node does for its pods: claims, GPUs, addresses, logs, and writes to the API."""

from __future__ import annotations

import asyncio
import os
import random
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.api.status import ApiError, Conflict, NotFound
from fairlead.api.values import quantity
from fairlead.embedded.local import logfiles
from fairlead.embedded.local.config import ConfigData, ConfigMirrors
from fairlead.embedded.local.logfiles import LogLimits
from fairlead.embedded.local.machine import Machine
from fairlead.embedded.local.memory import MemoryGroups
from fairlead.embedded.local.poddir import PodDir, PodRecordFile
from fairlead.embedded.local.processes.shim_server import ShimServer
from fairlead.embedded.virtual.stages.resizing import NodeResizes, PodAmounts, amounts_of
from fairlead.embedded.virtual.stages.status import NodeClaims, PodNow, pod_patch, pod_requests
from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, Recorder
from fairlead.runtime.logs import Logger

COMPONENT = "fairlead-local-node"
PODS_MAX = 110
FIRST = 1 << 16  # 127.1.0.0
COUNT = (1 << 24) - FIRST

#: What pods inherit from this program's environment. Nothing else: it may hold secrets.
INHERITED = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH",
    "SHELL", "TERM", "TMPDIR", "TZ", "USER",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Patience of the local node, in seconds, and what it keeps."""

    restart_back_off_seconds: float = 10.0
    restart_back_off_seconds_max: float = 300.0
    restart_back_off_reset_seconds: float = 600.0  # a run this long makes the next back-off short
    progress_seconds: float = 1.0
    memory_seconds: float = 0.5  # between two looks at the memory of containers with a limit
    use_seconds: float = 5.0  # between two looks at what containers use, at least
    retry_seconds: float = 5.0  # after a disk that is full, or a reference that is missing
    prune_seconds: float = 600.0  # between two looks at the logs that are kept
    logs: LogLimits = field(default_factory=LogLimits)
    kill_seconds: float = 5.0  # how long a shim may take after SIGKILL before it is killed itself


class Addresses:
    """Loopback addresses of pods: 127.x.y.z, one each, so that peers can listen on equal ports.

    On Linux all of 127.0.0.0/8 is this machine without any set-up. The address follows from the
    pod's uid (and is kept in its directory), so that a restart of the node changes nothing; a taken
    one moves on to the next. 127.0.x.y is left to others.
    """

    def __init__(self, salt: str = "") -> None:
        """`salt` keeps two nodes on one machine apart (mostly: addresses are not reserved)."""
        self._salt = salt
        self._owner: dict[str, str] = {}

    def take(self, uid: str) -> str:
        """Return the pod's address, the same for the same uid unless another pod has it."""
        number = zlib.crc32(f"{self._salt}/{uid}".encode()) % COUNT
        for _ in range(COUNT):
            value = FIRST + number
            address = f"127.{value >> 16}.{value >> 8 & 255}.{value & 255}"
            usable = value & 255 not in (0, 255)
            if usable and self._owner.setdefault(address, uid) == uid:
                return address
            number = (number + 1) % COUNT
        raise AssertionError("16 million pods on one machine")

    def adopt(self, address: str, uid: str) -> None:
        """Note the address of a pod that exists already."""
        self._owner.setdefault(address, uid)

    def give_back(self, address: str, uid: str) -> None:
        """Free it."""
        if self._owner.get(address) == uid:
            del self._owner[address]


class PodHost:
    """What the node does for its pods; also used by the node itself."""

    def __init__(
        self,
        client: Client,
        data_dir: Path,
        machine: Machine,
        *,
        clock: Clock,
        rng: random.Random,
        options: LocalOptions,
        memory_groups: MemoryGroups,
        log: Logger,
    ) -> None:
        self.options = options
        self.machine = machine
        self.boot = machine.boot_id
        self.memory_groups = memory_groups
        self.shims = ShimServer(data_dir)
        self.pods_dir = data_dir / "local" / "pods"
        self.trash_dir = data_dir / "local" / "trash"
        self.claims_dir = data_dir / "local" / "claims"
        self.logs_dir = data_dir / "logs"
        self.config_mirrors = ConfigMirrors(client, clock, rng, log)
        self.recorder = Recorder(client, clock, COMPONENT, rng=rng, log=log)
        #: What is wrong with this machine's disk or data directory.
        self.trouble: OSError | None = None
        self.trouble_changed = asyncio.Event()
        self._client = client
        self._clock = clock
        self._rng = rng
        self._log = log
        self._addresses = Addresses(str(data_dir.resolve()))
        self._use = NodeClaims(quantity.resources_to_base(self.resources()))
        self.resizes = NodeResizes(self._use)
        self._claims: dict[str, PodAmounts] = {}
        self._gpus: dict[int, str] = {}  # GPU index to the pod's uid

    def resources(self) -> dict[str, str]:
        """Return what the node offers."""
        machine = self.machine
        out = {
            quantity.CPU: quantity.format_base(quantity.CPU, machine.cpu_milli),
            quantity.MEMORY: quantity.format_base(quantity.MEMORY, machine.memory_bytes),
            quantity.PODS: str(PODS_MAX),
        }
        if machine.gpus:
            out[quantity.GPU] = str(len(machine.gpus))
        return out

    async def persist(self, what: str, write: Callable[[], Awaitable[object]]) -> None:
        """Write for as long as it takes; what is gone, or another's by now, is left alone."""
        backoff = Backoff(self._rng, BackoffOptions(seconds=0.1, seconds_max=10.0))
        while True:
            try:
                await write()
            except (NotFound, Conflict):
                return
            except ApiError as error:
                if not error.retryable:
                    self._log.error("API refused a write", object=what, error=error.message)
                    return
                await asyncio.sleep(backoff.next(error.retry_after_seconds))
            else:
                return

    def now(self) -> float:
        """Return the instant."""
        return self._clock.now()

    def admit(self, pod: Pod) -> str:
        """Take the pod's claims; return "" or why they do not fit, as `Reason: message`."""
        requests = pod_requests(pod)
        lacking = self._use.lacks(requests)
        if lacking:
            return f"OutOf{lacking}: {self._use.message(lacking, requests)}"
        self.readmit(pod)
        return ""

    def readmit(self, pod: Pod) -> None:
        """Take the claims of a pod that was admitted in a previous life."""
        if pod.metadata.uid not in self._claims:
            self._claims[pod.metadata.uid] = amounts_of(pod)
            self._use.add(self._claims[pod.metadata.uid].requests)

    def amounts(self, pod: Pod) -> PodAmounts:
        """Return what the node has given an admitted pod; of another, what its status says."""
        return self._claims.get(pod.metadata.uid) or amounts_of(pod)

    def release(self, pod: Pod) -> None:
        """Give the claims back; harmless when repeated."""
        claims = self._claims.pop(pod.metadata.uid, None)
        if claims is not None:
            self.resizes.leave(pod.metadata.uid)
            self._use.remove(claims.requests)
            self.resizes.room_came()
        self.free_gpus(pod.metadata.uid)

    def free_gpus(self, uid: str) -> None:
        """Give back the GPUs of a pod."""
        for index in [i for i, owner in self._gpus.items() if owner == uid]:
            del self._gpus[index]

    def adopt(self, record: PodRecordFile) -> None:
        """Note the address and the GPUs that a pod of an earlier life has."""
        self._addresses.adopt(record.address, record.uid)
        for indices in record.gpus.values():
            self._gpus.update(dict.fromkeys(indices, record.uid))

    def give_back(self, record: PodRecordFile) -> None:
        """Free the address and the GPUs of a pod that is gone."""
        self._addresses.give_back(record.address, record.uid)
        self.free_gpus(record.uid)

    def address(self, uid: str) -> str:
        """Return the pod's address."""
        return self._addresses.take(uid)

    def assign_gpus(self, pod: Pod) -> dict[str, tuple[int, ...]]:
        """Return GPU indices by container; admission made sure that there are enough."""
        self.free_gpus(pod.metadata.uid)
        out: dict[str, tuple[int, ...]] = {}
        for container in pod.spec.containers:
            merged = {**container.resources.limits, **container.resources.requests}
            count = quantity.resources_to_base(merged).get(quantity.GPU, 0)
            free = [gpu.index for gpu in self.machine.gpus if gpu.index not in self._gpus]
            out[container.name] = tuple(free[:count])
            self._gpus.update(dict.fromkeys(free[:count], pod.metadata.uid))
        taken = [index for indices in out.values() for index in indices]
        for container in pod.spec.init_containers:  # they run before, with the same ones
            merged = {**container.resources.limits, **container.resources.requests}
            count = quantity.resources_to_base(merged).get(quantity.GPU, 0)
            free = [gpu.index for gpu in self.machine.gpus if gpu.index not in self._gpus]
            out[container.name] = tuple([*taken, *free][:count])
            self._gpus.update(dict.fromkeys(out[container.name], pod.metadata.uid))
        return out

    def base_environment(self, gpus: Sequence[int]) -> dict[str, str]:
        """Return the environment below the declared one: a few of ours, and which GPUs to see."""
        out = {name: os.environ[name] for name in INHERITED if name in os.environ}
        if self.machine.gpus:
            uuids = {gpu.index: gpu.uuid for gpu in self.machine.gpus}
            visible = ",".join(uuids[index] for index in gpus if index in uuids)
            out["CUDA_VISIBLE_DEVICES"] = visible
            out["NVIDIA_VISIBLE_DEVICES"] = visible or "none"
        return out

    def config(self, namespace: str) -> ConfigData:
        """Return the ConfigMaps and Secrets as they are now."""
        return self.config_mirrors.of(namespace)

    def claims_path(self, namespace: str) -> Path:
        """Return the directory that holds persistent volume claims."""
        return self.claims_dir / namespace

    def open_logs(self, pod: Pod) -> dict[str, str]:
        """Prepare the pod's log files and return their paths by container; OSError."""
        return logfiles.open_logs(self.logs_dir, pod)

    def log_restarts(self, log: str) -> None:
        """Put the container's log aside as the previous one; OSError."""
        logfiles.put_aside(Path(log))

    def close_logs(self, pod: Pod, logs: dict[str, str]) -> None:
        """Note that nothing more will be written to these logs."""
        logfiles.close_logs(logs)

    async def write_status(self, pod: Pod, now: PodNow) -> None:
        """Write the status, for as long as it takes; silently when the pod is gone."""
        namespace, name = pod.metadata.key
        body = pod_patch(pod, now)
        await self.persist(
            f"pod {namespace}/{name}",
            lambda: self._client.patch(PODS, name, body, namespace=namespace, subresource="status"),
        )

    async def write_reports(self, pod: Pod, annotations: Mapping[str, str]) -> None:
        """Write what the pod's program reports; silently when the pod is gone."""
        namespace, name = pod.metadata.key
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": annotations}}
        await self.persist(
            f"pod {namespace}/{name}",
            lambda: self._client.patch(PODS, name, body, namespace=namespace),
        )

    async def confirm_deletion(self, pod: Pod) -> None:
        """Delete with grace 0; silently when the pod is gone."""
        namespace, name = pod.metadata.key
        await self.persist(
            f"pod {namespace}/{name}",
            lambda: self._client.delete(
                PODS, name, namespace=namespace, grace_period_seconds=0, uid=pod.metadata.uid
            ),
        )

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event."""
        kind = EventKind.WARNING if warning else EventKind.NORMAL
        self.recorder.record(PODS, pod.metadata, kind, reason=reason, message=message)

    def problem(self, error: OSError | None) -> None:
        """Note that this machine's disk or data directory is in trouble, or (None) is not."""
        if (error is None) == (self.trouble is None):
            return
        self.trouble = error
        self.trouble_changed.set()
        if error is not None:
            self._log.error("Local node is in trouble", error=str(error))

    async def remove(self, directory: PodDir) -> None:
        """Remove the directory of a pod that is gone, and free its address."""
        try:
            record = directory.read()
            if record is not None:
                self._addresses.give_back(record.address, record.uid)
            await directory.remove(self.trash_dir)
        except OSError as error:
            self.problem(error)
