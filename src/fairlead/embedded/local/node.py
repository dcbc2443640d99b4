"""The local node: one Node object for this machine, and one task per pod that is bound to it.

Mechanism: mirrors of the node's pods, ConfigMaps and Secrets; a new pod starts a `LocalPod` task.
The processes belong to shims and not to us, so that `kill -9` of this program loses nothing: the
next start reads the pods' directories, attaches to running processes, reports those that ended, and
kills those that no pod claims.

The node carries the taint `fairlead.dev/local:NoSchedule`: no pod that was meant for other nodes
runs commands here by surprise.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fairlead.api import names, quantity
from fairlead.api.core import Node, Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODES, PODS
from fairlead.api.status import AlreadyExists, ApiError, Conflict, NotFound
from fairlead.embedded.local import logfiles
from fairlead.embedded.local.addresses import Addresses
from fairlead.embedded.local.config import ConfigData, ConfigMirrors
from fairlead.embedded.local.host import LocalOptions
from fairlead.embedded.local.machine import GpuProbe, Machine, NvmlProbe, read_machine
from fairlead.embedded.local.memory import MemoryGroups
from fairlead.embedded.local.memory_watch import watch_memory
from fairlead.embedded.local.pod import LocalPod
from fairlead.embedded.local.poddir import PodDir, remove_tree
from fairlead.embedded.local.process import Run
from fairlead.embedded.virtual.status import (
    NodeUse,
    PodNow,
    Readiness,
    node_conditions,
    pod_patch,
    pod_requests,
)
from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, Recorder
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.mirror import Change, Mirror, MirrorOptions

LOCAL = "local"
COMPONENT = "fairlead-local-node"
PODS_MAX = 110
HOST_IP = "127.0.0.1"
DATA_CONDITION = "DataDirectoryHealthy"
DISK_CONDITION = "DiskPressure"

#: What pods inherit from this program's environment. Nothing else: it may hold secrets.
INHERITED = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH",
    "SHELL", "TERM", "TMPDIR", "TZ", "USER",
)  # fmt: skip


class LocalNode:
    """This machine as a node. `run` works until cancelled and leaves the processes running then.

    `shut_down`, after `run` has ended, ends the processes too; the pods are reported as Failed with
    reason NodeRestarted at the next start.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        data_dir: Path,
        *,
        clock: Clock,
        rng: random.Random,
        options: LocalOptions | None = None,
        probe: GpuProbe | None = None,
        memory_groups: MemoryGroups | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`data_dir` belongs to this node alone while it runs. OSError when proc is not there."""
        self.name = name
        self.options = options or LocalOptions()
        self.machine: Machine = read_machine(probe or NvmlProbe())
        self.boot = self.machine.boot_id
        self.memory_groups = memory_groups or MemoryGroups()
        self._client = client
        self._clock = clock
        self._rng = rng
        self._log = log
        self._pods_dir = data_dir / "local" / "pods"
        self._trash_dir = data_dir / "local" / "trash"
        self._claims_dir = data_dir / "local" / "claims"
        self._logs_dir = data_dir / "logs"
        self._addresses = Addresses(str(data_dir.resolve()))
        self._use = NodeUse(quantity.resources_to_base(self._resources()))
        self._claims: dict[str, dict[str, int]] = {}
        self._gpus: dict[int, str] = {}  # GPU index to the pod's uid
        self._pods: dict[str, LocalPod] = {}
        self._done: set[str] = set()
        self._trouble: OSError | None = None
        self._trouble_changed = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        mirror = MirrorOptions(field_selector=f"spec.nodeName={name}")
        self._pod_mirror: Mirror[Pod] = Mirror(
            client, PODS, clock=clock, rng=rng, options=mirror, log=log
        )
        self._config = ConfigMirrors(client, clock, rng, log)
        self._recorder = Recorder(client, clock, COMPONENT, rng=rng, log=log)

    # Running

    async def run(self) -> None:
        """Register the node and run its pods until cancelled."""
        self._make_folders()
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._recorder.run())
            await self._register()
            group.create_task(self._keep_conditions())
            group.create_task(watch_memory(self, self._living_runs))
            keeping = logfiles.keep_within(
                self._logs_dir, self.options.logs, self._clock,
                seconds=self.options.prune_seconds, log=self._log,
            )  # fmt: skip
            group.create_task(keeping)
            self._config.start(group)
            await self._config.wait_synced()
            self._adopt_directories()
            self._pod_mirror.on_change(self._pod_changed)
            group.create_task(self._pod_mirror.run())
            await self._pod_mirror.wait_synced()
            await self._remove_orphans()
            for path in self._trash():
                await remove_tree(path)

    async def wait_synced(self) -> None:
        """Return once the pods that exist already are known."""
        await self._pod_mirror.wait_synced()

    async def shut_down(self, grace_seconds: float) -> None:
        """End all processes: SIGTERM, and SIGKILL after the grace period. Call it after `run`."""
        async with asyncio.TaskGroup() as group:
            for uid in sorted(self._pods):
                group.create_task(self._pods[uid].stop_for_shutdown(grace_seconds))

    def _make_folders(self) -> None:
        """OSError when the data directory cannot be used: nothing can run then."""
        for folder in (self._pods_dir, self._trash_dir, self._claims_dir, self._logs_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _pod_changed(self, change: Change[Pod]) -> None:
        old, new = change.old, change.new
        if new is None:
            assert old is not None
            self._pods[old.metadata.uid].gone()
            self._forget_if_done(old.metadata.uid)
        elif new.metadata.uid in self._pods:
            self._pods[new.metadata.uid].observe(new)
        else:
            pod = LocalPod(new, self, PodDir(self._pods_dir / new.metadata.uid))
            self._pods[new.metadata.uid] = pod
            assert self._group is not None
            self._group.create_task(self._run_pod(new.metadata.uid, pod))

    async def _run_pod(self, uid: str, pod: LocalPod) -> None:
        await pod.run()
        self._done.add(uid)
        self._forget_if_done(uid)

    def _forget_if_done(self, uid: str) -> None:
        """Forget a pod once its task is done and the mirror said that it is gone, not before:

        a late event about it would look like a new pod.
        """
        if uid in self._done and self._pods[uid].is_gone:
            self._done.discard(uid)
            del self._pods[uid]

    # Earlier lives

    def _adopt_directories(self) -> None:
        """Note the addresses and GPUs that pods of an earlier life have."""
        for directory in self._directories():
            try:
                record = directory.read()
            except OSError as error:
                self.problem(error)
                continue
            if record is not None:
                self._addresses.adopt(record.address, record.uid)
                for indices in record.gpus.values():
                    self._gpus.update(dict.fromkeys(indices, record.uid))

    def _directories(self) -> list[PodDir]:
        return [PodDir(path) for path in sorted(self._pods_dir.iterdir()) if path.is_dir()]

    async def _remove_orphans(self) -> None:
        """Kill and remove what belongs to pods that are no longer in the API."""
        for directory in self._directories():
            if directory.uid in self._pods:
                continue
            try:
                record = directory.read()
                held = [run for run in self._runs_in(directory) if run.attach()]
            except OSError as error:
                self.problem(error)
                continue
            for run in held:
                run.kill()
                await run.wait()
                run.remove_group()
            self._log.info("Removed orphan", pod_uid=directory.uid, processes=len(held))
            if record is not None:
                logfiles.close_logs(record.logs)
                self._addresses.give_back(record.address, record.uid)
                self._free_gpus(record.uid)
            await self.remove(directory)

    @property
    def living(self) -> tuple[str, ...]:
        """The names of pods that have processes now, sorted."""
        return tuple(sorted(p.pod.metadata.name for p in self._pods.values() if p.runs))

    def _living_runs(self) -> list[Run]:
        return [run for pod in self._pods.values() for run in pod.runs]

    def _trash(self) -> list[Path]:
        """Return what an earlier life did not get round to removing."""
        return sorted(self._trash_dir.iterdir())

    def _runs_in(self, directory: PodDir) -> list[Run]:
        folder = directory.path / "containers"
        if not folder.is_dir():
            return []
        containers = sorted(path.name for path in folder.iterdir())
        return [Run(path, self.boot) for name in containers for path in directory.runs(name)]

    # The Node object

    def _resources(self) -> dict[str, str]:
        machine = self.machine
        out = {
            quantity.CPU: quantity.format_base(quantity.CPU, machine.cpu_milli),
            quantity.MEMORY: quantity.format_base(quantity.MEMORY, machine.memory_bytes),
            quantity.PODS: str(PODS_MAX),
        }
        if machine.gpus:
            out[quantity.GPU] = str(len(machine.gpus))
        return out

    def _node_object(self) -> dict[str, Any]:
        machine = self.machine
        labels = {
            names.HOSTNAME: self.name,
            names.NODE_TYPE: LOCAL,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine.architecture,
        }
        return {
            "metadata": {"name": self.name, "labels": labels},
            "spec": {"taints": [{"key": names.TAINT_LOCAL, "effect": "NoSchedule"}]},
            "status": {
                "capacity": self._resources(),
                "allocatable": self._resources(),
                "addresses": [
                    {"type": "InternalIP", "address": HOST_IP},
                    {"type": "Hostname", "address": self.name},
                ],
                "nodeInfo": {
                    "machineID": machine.machine_id,
                    "bootID": machine.boot_id,
                    "kernelVersion": machine.kernel,
                    "osImage": machine.os_image,
                    "kubeletVersion": "fairlead-local",
                    "containerRuntimeVersion": "process://1",
                    "operatingSystem": "linux",
                    "architecture": machine.architecture,
                },
            },
        }

    async def _register(self) -> None:
        """Create the Node, or bring an existing one up to date; a person's changes stay."""
        body = self._node_object()
        body["status"]["conditions"] = self._conditions(())

        async def write() -> None:
            try:
                await self._client.create(NODES, body)
            except AlreadyExists:
                labels = {"metadata": {"labels": body["metadata"]["labels"]}}
                node = await self._client.patch(NODES, self.name, labels)
                # null first: a merge patch would keep resources that the machine lost (GPUs)
                keys = {**node.status.capacity, **node.status.allocatable}
                lost = {key: None for key in sorted(keys) if key not in self._resources()}
                status = dict(body["status"])
                status["capacity"] = status["allocatable"] = {**lost, **self._resources()}
                status["conditions"] = self._conditions(node.status.conditions)
                patch = {"status": status}
                await self._client.patch(NODES, self.name, patch, subresource="status")

        await self._persist("node", write)

    def _conditions(self, present: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the node's conditions as they are now; foreign ones stay."""
        now = self._clock.now()
        ours = node_conditions(Readiness.READY, now)
        trouble = self._trouble
        stamp = ours[-1]["lastTransitionTime"]
        healthy: dict[str, Any] = {
            "type": DATA_CONDITION,
            "status": "False" if trouble else "True",
            "reason": "InputOutputError" if trouble else "Usable",
            "message": str(trouble) if trouble else "pods can be stored and logged",
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": stamp,
        }
        if trouble is not None and trouble.errno in (errno.ENOSPC, errno.EDQUOT):
            for condition in ours:
                if condition["type"] == DISK_CONDITION:
                    condition.update(status="True", reason="DiskFull", message=str(trouble))
        ours.append(healthy)
        kinds = [condition["type"] for condition in ours]
        return [to_wire(c) for c in present if c.type not in kinds] + ours

    async def _keep_conditions(self) -> None:
        """Write the conditions when the machine's trouble comes or goes."""
        while True:
            await self._trouble_changed.wait()
            self._trouble_changed.clear()

            async def write() -> None:
                node: Node = await self._client.get(NODES, self.name)
                patch = {"status": {"conditions": self._conditions(node.status.conditions)}}
                await self._client.patch(NODES, self.name, patch, subresource="status")

            await self._persist("node", write)

    async def _persist(self, what: str, write: Callable[[], Awaitable[None]]) -> None:
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

    # PodHost

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
            self._claims[pod.metadata.uid] = pod_requests(pod)
            self._use.add(self._claims[pod.metadata.uid])

    def release(self, pod: Pod) -> None:
        """Give the claims back; harmless when repeated."""
        claims = self._claims.pop(pod.metadata.uid, None)
        if claims is not None:
            self._use.remove(claims)
        self._free_gpus(pod.metadata.uid)

    def _free_gpus(self, uid: str) -> None:
        for index in [i for i, owner in self._gpus.items() if owner == uid]:
            del self._gpus[index]

    def address(self, uid: str) -> str:
        """Return the pod's address."""
        return self._addresses.take(uid)

    def assign_gpus(self, pod: Pod) -> dict[str, tuple[int, ...]]:
        """Return GPU indices by container; admission made sure that there are enough."""
        self._free_gpus(pod.metadata.uid)
        out: dict[str, tuple[int, ...]] = {}
        for container in pod.spec.containers:
            merged = {**container.resources.limits, **container.resources.requests}
            count = quantity.resources_to_base(merged).get(quantity.GPU, 0)
            free = [gpu.index for gpu in self.machine.gpus if gpu.index not in self._gpus]
            out[container.name] = tuple(free[:count])
            self._gpus.update(dict.fromkeys(free[:count], pod.metadata.uid))
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
        return self._config.of(namespace)

    async def config_changed(self) -> None:
        """Return after any change of ConfigMaps or Secrets."""
        await self._config.changed()

    def claims_path(self, namespace: str) -> Path:
        """Return the directory that holds persistent volume claims."""
        return self._claims_dir / namespace

    def open_logs(self, pod: Pod) -> dict[str, str]:
        """Prepare the pod's log files and return their paths by container; OSError."""
        return logfiles.open_logs(self._logs_dir, pod)

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

        async def write() -> None:
            await self._client.patch(PODS, name, body, namespace=namespace, subresource="status")

        await self._persist(f"pod {namespace}/{name}", write)

    async def write_progress(self, pod: Pod, text: str) -> None:
        """Write the progress annotation; silently when the pod is gone."""
        namespace, name = pod.metadata.key
        metadata = {"uid": pod.metadata.uid, "annotations": {names.PROGRESS: text}}

        async def write() -> None:
            await self._client.patch(PODS, name, {"metadata": metadata}, namespace=namespace)

        await self._persist(f"pod {namespace}/{name}", write)

    async def confirm_deletion(self, pod: Pod) -> None:
        """Delete with grace 0; silently when the pod is gone."""
        namespace, name = pod.metadata.key

        async def write() -> None:
            await self._client.delete(
                PODS, name, namespace=namespace, grace_period_seconds=0, uid=pod.metadata.uid
            )

        await self._persist(f"pod {namespace}/{name}", write)

    def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event."""
        kind = EventKind.WARNING if warning else EventKind.NORMAL
        self._recorder.record(PODS, pod.metadata, kind, reason=reason, message=message)

    def problem(self, error: OSError | None) -> None:
        """Note that this machine's disk or data directory is in trouble, or (None) is not."""
        if (error is None) == (self._trouble is None):
            return
        self._trouble = error
        self._trouble_changed.set()
        if error is not None:
            self._log.error("Local node is in trouble", error=str(error))

    async def remove(self, directory: PodDir) -> None:
        """Remove the directory of a pod that is gone, and free its address."""
        try:
            record = directory.read()
            if record is not None:
                self._addresses.give_back(record.address, record.uid)
            await directory.remove(self._trash_dir)
        except OSError as error:
            self.problem(error)
