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
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODES, PODS
from fairlead.api.status import AlreadyExists
from fairlead.embedded.http.metrics import MeasuredUse
from fairlead.embedded.local import logfiles
from fairlead.embedded.local.containers import HOST_IP
from fairlead.embedded.local.host import LocalOptions, PodHost
from fairlead.embedded.local.machine import Gpu, Machine, nvml_gpus, read_machine
from fairlead.embedded.local.memory import MemoryGroups, above_limit
from fairlead.embedded.local.pod import LocalPod
from fairlead.embedded.local.poddir import PodDir, made, remove_tree
from fairlead.embedded.local.processes.process import Run
from fairlead.embedded.local.use import MachineLooks, keep_looking, measure_of
from fairlead.embedded.virtual.stages.status import Readiness, node_conditions
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Change, Mirror, MirrorOptions

LOCAL = "local"
DATA_CONDITION = "DataDirectoryHealthy"
DISK_CONDITION = "DiskPressure"
#: Looks at the memory of containers take one part in so many of the time at most.
_MEMORY_SHARE = 20


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
        gpus: Callable[[], tuple[Gpu, ...]] = nvml_gpus,
        memory_groups: MemoryGroups | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`data_dir` belongs to this node alone while it runs. OSError when proc is not there."""
        self.name = name
        self.machine: Machine = read_machine(gpus)
        self._host = PodHost(
            client, data_dir, self.machine, clock=clock, rng=rng,
            options=options or LocalOptions(), memory_groups=memory_groups or MemoryGroups(),
            log=log,
        )  # fmt: skip
        self._client = client
        self._clock = clock
        self._log = log
        self._pods: dict[str, LocalPod] = {}
        self._done: set[str] = set()
        self._use = MachineLooks()
        self._group: asyncio.TaskGroup | None = None
        mirror = MirrorOptions(field_selector=f"spec.nodeName={name}")
        self._pod_mirror: Mirror[Pod] = Mirror(
            client, PODS, clock=clock, rng=rng, options=mirror, log=log
        )

    # Running

    async def run(self) -> None:
        """Register the node and run its pods until cancelled."""
        self._make_folders()
        try:
            await self._run()
        finally:
            self._host.shims.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._host.recorder.run())
            await self._register()
            group.create_task(self._keep_conditions())
            group.create_task(self._watch_memory())
            looking = keep_looking(
                lambda: self.pods, self._clock.now, machine=self._use,
                seconds=self._host.options.use_seconds, problem=self._host.problem,
            )  # fmt: skip
            group.create_task(looking)
            keeping = logfiles.keep_within(
                self._host.logs_dir, self._host.options.logs, self._clock,
                seconds=self._host.options.prune_seconds, log=self._log,
            )  # fmt: skip
            group.create_task(keeping)
            self._host.config_mirrors.start(group)
            await self._host.config_mirrors.wait_synced()
            self._adopt_directories()
            self._pod_mirror.on_change(self._pod_changed)
            group.create_task(self._pod_mirror.run())
            await self._pod_mirror.wait_synced()
            await self._remove_orphans()
            for path in sorted(self._host.trash_dir.iterdir()):
                await remove_tree(path)  # what an earlier life did not get round to removing

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
        for folder in (
            self._host.pods_dir,
            self._host.trash_dir,
            self._host.claims_dir,
            self._host.logs_dir,
        ):
            made(folder)

    def _pod_changed(self, change: Change[Pod]) -> None:
        old, new = change.old, change.new
        if new is None:
            assert old is not None
            self._pods[old.metadata.uid].gone()
            self._forget_if_done(old.metadata.uid)
        elif new.metadata.uid in self._pods:
            self._pods[new.metadata.uid].observe(new)
        else:
            pod = LocalPod(new, self._host, PodDir(self._host.pods_dir / new.metadata.uid))
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
                self._host.problem(error)
                continue
            if record is not None:
                self._host.adopt(record)

    def _directories(self) -> list[PodDir]:
        return [PodDir(path) for path in sorted(self._host.pods_dir.iterdir()) if path.is_dir()]

    async def _remove_orphans(self) -> None:
        """Kill and remove what belongs to pods that are no longer in the API."""
        for directory in self._directories():
            if directory.uid in self._pods:
                continue
            try:
                record = directory.read()
                held = [run for run in self._runs_in(directory) if run.attach()]
            except OSError as error:
                self._host.problem(error)
                continue
            for run in held:
                run.kill()
                await run.wait()
                run.remove_group()
            self._log.info("Removed orphan", pod_uid=directory.uid, processes=len(held))
            if record is not None:
                logfiles.close_logs(record.logs)
                self._host.give_back(record)
            await self._host.remove(directory)

    @property
    def pods(self) -> tuple[LocalPod, ...]:
        """The pods that are bound here."""
        return tuple(self._pods.values())

    def measured_pods(self) -> Iterator[MeasuredUse]:
        """Yield what the containers of pods use now."""
        for each in self.pods:
            found = ((name, measure_of(looks)) for name, looks in each.use.looks.items())
            parts = {name: part for name, part in found if part is not None}
            meta = each.pod.metadata
            so_far = each.use.use(max(part.at for part in parts.values())) if parts else None
            yield MeasuredUse(meta.name, meta.namespace, meta.labels, parts, so_far)

    def measured_nodes(self) -> Iterator[MeasuredUse]:
        """Yield what this machine uses now, by whomever."""
        part = measure_of(self._use.looks)
        if part is not None:
            yield MeasuredUse(self.name, "", {names.HOSTNAME: self.name}, {"": part})

    @property
    def living(self) -> tuple[str, ...]:
        """The names of pods that have processes now, sorted."""
        return tuple(sorted(p.pod.metadata.name for p in self._pods.values() if p.running))

    def pod(self, uid: str) -> LocalPod | None:
        """Return a pod of this node; None when there is no such one (yet)."""
        return self._pods.get(uid)

    async def _watch_memory(self) -> None:
        """Kill containers above their limit where no control group does it, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_at = loop.time()
            try:
                await self._look_at_memory()
            except OSError as error:
                self._host.problem(error)
            taken = loop.time() - began_at
            await asyncio.sleep(max(self._host.options.memory_seconds, _MEMORY_SHARE * taken))

    async def _look_at_memory(self) -> None:
        """Look at the runs that are to be measured; without any it costs nothing."""
        measured: dict[int, Run] = {}
        limits: dict[int, int] = {}
        for pod in self._pods.values():
            for run in pod.running.values():
                found = run.measured_limit()
                if found is not None:
                    shim, limits[found[0]] = found
                    measured[shim] = run
        if not limits:
            return
        for shim, used in (await asyncio.to_thread(above_limit, limits)).items():
            measured[shim].kill_for_memory(used)

    def _runs_in(self, directory: PodDir) -> list[Run]:
        folder = directory.path / "containers"
        if not folder.is_dir():
            return []
        containers = sorted(path.name for path in folder.iterdir())
        return [Run(path, self._host.boot) for name in containers for path in directory.runs(name)]

    # The Node object

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
                "capacity": self._host.resources(),
                "allocatable": self._host.resources(),
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
                lost = {key: None for key in sorted(keys) if key not in self._host.resources()}
                status = dict(body["status"])
                status["capacity"] = status["allocatable"] = {**lost, **self._host.resources()}
                status["conditions"] = self._conditions(node.status.conditions)
                patch = {"status": status}
                await self._client.patch(NODES, self.name, patch, subresource="status")

        await self._host.persist("node", write)

    def _conditions(self, present: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the node's conditions as they are now; foreign ones stay."""
        now = self._clock.now()
        ours = node_conditions(Readiness.READY, now)
        trouble = self._host.trouble
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
            await self._host.trouble_changed.wait()
            self._host.trouble_changed.clear()

            async def write() -> None:
                node: Node = await self._client.get(NODES, self.name)
                patch = {"status": {"conditions": self._conditions(node.status.conditions)}}
                await self._client.patch(NODES, self.name, patch, subresource="status")

            await self._host.persist("node", write)
