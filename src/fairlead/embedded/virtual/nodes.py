"""Virtual nodes: thousands of simulated kubelets in one object.

Mechanism: a mirror of the pods that have a node, a mirror of config maps, one timer heap, and a
fixed number of writers. An event or a timer changes a pod's record and notes what must be written
("wants"); writers carry wants out, one write at a time per pod, and try again for as long as it
takes. So a write that fails, comes late or is repeated does no harm: the newest status wins.

Cost is per state change. There are no heartbeats: a node is alive until a fault hook says
otherwise, and the hook sets one timer (docs/design/nodes.md). Nothing here knows whether time is
real: the same code runs embedded, in the simulator and against a real API server.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fairlead.api import names
from fairlead.api.kubernetes.core import ConfigMap, Node, Pod
from fairlead.api.kubernetes.device_shapes import DeviceShape
from fairlead.api.resources import CONFIG_MAPS, PODS
from fairlead.api.status import ApiError, Conflict, NotFound
from fairlead.api.values import quantity
from fairlead.embedded.http.metrics import Measure, MeasuredUse
from fairlead.embedded.virtual.fleet import (
    VIRTUAL,
    FleetReport,
    NodeFleet,
    create_node,
    ensure_fleet,
    host_address,
)
from fairlead.embedded.virtual.hardware import Quality
from fairlead.embedded.virtual.node_slices import NodeSlices
from fairlead.embedded.virtual.node_writes import write_node
from fairlead.embedded.virtual.pods import PodLives
from fairlead.embedded.virtual.profile import PodState, Profile
from fairlead.embedded.virtual.pulls import ImagePulls
from fairlead.embedded.virtual.stages.records import (
    READINESS_OF_FAULT,
    NodeFault,
    NodeState,
    PodRecord,
    Timers,
    VirtualNodeRecord,
    Want,
    node_record,
    use_of,
)
from fairlead.embedded.virtual.stages.status import Readiness, node_conditions
from fairlead.runtime.backoff import BackoffOptions, delay_seconds
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, Recorder
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.mirror import Change, Mirror, MirrorOptions
from fairlead.runtime.watching.reader import MirrorReader, follow

COMPONENT = "fairlead-virtual-nodes"
#: Until a cluster notices that a machine has ended, as kube-controller-manager does.
_DETECT_SECONDS = 40.0
#: Limits of the machinery, not of what is simulated.
WRITES_PARALLEL_MAX, TIMERS_BATCH_MAX = 64, 256
_BACKOFF = BackoffOptions(seconds=0.1, seconds_max=10.0)
#: A speed at which a second of work takes 30 years.
STALLED = 1e-9
#: Addresses in the range of `host_address`.
_ADDRESSES = (1 << 22) - 2


class VirtualNodes:
    """A fleet of virtual nodes and the lives of the pods on them.

    `start` creates what is missing; `run` drives the pods until cancelled and calls `start` first
    if that has not happened. After a restart the state comes from the API: running pods keep their
    start times.
    """

    def __init__(
        self,
        client: Client,
        fleet: NodeFleet,
        profile: Profile,
        *,
        clock: Clock,
        rng: random.Random,
        log: Logger = SILENT,
        pods: Mirror[Pod] | None = None,
        reader: MirrorReader | None = None,
    ) -> None:
        """With `pods`, a mirror of all pods that others run and read too, `reader` is needed."""
        self.fleet = fleet
        self.report: FleetReport | None = None
        self._client = client
        self._clock = clock
        self._rng = rng
        self._log = log
        self._timers = Timers()
        self._timer_wake = asyncio.Event()
        self._queue: asyncio.Queue[PodRecord | VirtualNodeRecord] = (
            asyncio.Queue()
        )  # each at most once
        self._nodes: dict[str, VirtualNodeRecord] = {}
        self._profile = profile
        self._slices = NodeSlices(client, fleet.shape)
        self._runs_pods = pods is None
        self._reader = reader
        self._pods: Mirror[Pod] = (
            pods if pods is not None else self._mirror(PODS, "spec.nodeName!=")
        )
        self._maps: Mirror[ConfigMap] = self._mirror(CONFIG_MAPS, "")
        self._images = ImagePulls(
            profile.images, now=clock.now, timer=self._set_timer, changed=self._images_changed
        )
        self._lives = PodLives(
            profile, clock=clock, rng=rng, maps=self._maps, timer=self._set_timer,
            write=self._enqueue, warn=self._warn, images=self._images,
        )  # fmt: skip
        # A source of its own: what it draws must not change what else is simulated.
        self._events = Recorder(client, clock, COMPONENT, rng=random.Random(0), log=log)  # noqa: S311

    def _mirror(self, resource: Any, fields: str) -> Mirror[Any]:
        return Mirror(
            self._client,
            resource,
            clock=self._clock,
            rng=random.Random(self._rng.getrandbits(64)),  # noqa: S311
            options=MirrorOptions(field_selector=fields),
            log=self._log,
        )

    async def start(self) -> FleetReport:
        """Create missing nodes and return what was found; repeated calls return the same report."""
        if self.report is None:
            self.report = await ensure_fleet(self._client, self.fleet, self._clock)
            await self._slices.start()
            for node in self.report.nodes:
                self._add(node)
            if self.report.extra:
                self._log.warning(
                    "Found virtual nodes beyond the fleet",
                    nodes=len(self.report.extra),
                    first=self.report.extra[0],
                )
        return self.report

    async def run(self) -> None:
        """Drive the pods until cancelled. Only faults of ours end it otherwise."""
        await self.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._events.run())
            group.create_task(self._maps.run())
            await self._maps.wait_synced()
            removers = (
                self._maps.on_change(self._lives.config_changed),
                follow(self._pods, self._pod_changed, self._reader),
            )
            try:
                if self._runs_pods:
                    group.create_task(self._pods.run())
                if self._reader is not None:
                    group.create_task(self._reader.wait_fault())
                group.create_task(self._run_timers())
                for _ in range(WRITES_PARALLEL_MAX):
                    group.create_task(self._run_writer())
                await asyncio.get_running_loop().create_future()
            finally:
                for remove in removers:
                    remove()

    async def wait_synced(self) -> None:
        """Return once the pods that exist already are known."""
        await self._pods.wait_synced()

    # Fault hooks. They act at once and return; writes follow.

    def fail_node(
        self, name: str, fault: NodeFault = NodeFault.CRASHED, *, detect_seconds: float = 0.0
    ) -> None:
        """Break a node; `detect_seconds` later its condition and taints say so. KeyError if
        unknown.

        Its pods stop answering: no transitions are seen, deletions are not confirmed. Breaking a
        broken node changes the fault.
        """
        node = self._nodes[name]
        node.fault = fault
        if fault is NodeFault.CRASHED:
            for record in list(node.pods.values()):
                self._lives.lose(record)
        self._set_timer(self._clock.now() + detect_seconds, partial(self._detect, node, fault))

    def recover_node(self, name: str) -> None:
        """Mend a node: it answers again, and its pods report what became of them meanwhile.

        Pods of a node that had crashed are reported as Failed with reason NodeRestarted (those that
        had not started yet start now). A node whose machine has ended stays as it is.
        """
        node = self._nodes.get(name)
        if node is None or node.is_ended:
            return
        crashed = node.fault is NodeFault.CRASHED
        node.fault = None
        node.readiness = Readiness.READY
        self._enqueue(node)
        for record in list(node.pods.values()):
            self._lives.resume(record, crashed=crashed)

    def fail_gpu(self, name: str, draw: float) -> bool:
        """Break one GPU of a node; False when it has none left. KeyError if unknown.

        The node offers one GPU less from now on. `draw`, in [0, 1), says which one it is: where a
        pod uses it, the program of the pod ends with exit code 1, as after a CUDA error.
        """
        node = self._nodes[name]
        left = node.use.allocatable.get(quantity.GPU, 0)
        if not left:
            return False
        self._offer(node, left - 1)
        number = int(draw * left)
        for record in list(node.pods.values()):
            if record.state is PodState.RUNNING and node.fault is not NodeFault.CRASHED:
                number -= record.requests.get(quantity.GPU, 0)
                if number < 0:
                    self._lives.kill(record.pod.metadata.key, exit_code=1, signal=0)
                    break
        return True

    def mend_gpu(self, name: str) -> None:
        """Mend one GPU of a node; nothing where none is lost."""
        node = self._nodes.get(name)
        if node is not None and node.gpus_lost:
            self._offer(node, node.use.allocatable[quantity.GPU] + 1)

    def _offer(self, node: VirtualNodeRecord, gpus: int) -> None:
        node.gpus_lost += node.use.allocatable[quantity.GPU] - gpus
        node.use.allocatable[quantity.GPU] = gpus
        self._enqueue(node)

    async def fail_device(self, name: str, draw: float) -> bool:
        """Do the same with a device that claims ask for: its slice lacks it, and its parts."""
        node = self._nodes[name]
        unit = self._slices.fail(name, draw)
        if unit is None:
            return False
        self._offer_devices(node)
        pods = () if node.fault is NodeFault.CRASHED else [r.pod for r in node.pods.values()]
        for pod in await self._slices.users_of(name, unit, pods):
            with suppress(KeyError):  # it has ended meanwhile
                self._lives.kill(pod.metadata.key, exit_code=1, signal=0)
        return True

    def mend_device(self, name: str) -> None:
        """Mend the device of a node that failed first; nothing where none is lost."""
        node = self._nodes.get(name)
        if node is not None and self._slices.mend(name):
            self._offer_devices(node)

    def _offer_devices(self, node: VirtualNodeRecord) -> None:
        node.devices += 1
        self._enqueue(node)

    def set_speed(self, name: str, speed: float) -> None:
        """Let the programs on a node do so many seconds of work in a second; nothing if unknown.

        1 is full speed. With `STALLED` nothing gets on; pods still start and stop.
        """
        node = self._nodes.get(name)
        if node is not None:
            self._lives.set_speed(node, speed)

    def set_quality(self, name: str, quality: Quality) -> None:
        """Say what tests of a node find from now on."""
        self._lives.hardware.changed[name] = quality

    async def register(self, body: Mapping[str, Any], devices: Sequence[DeviceShape] = ()) -> None:
        """Create a node, ready, and drive its pods; nothing happens when it exists."""
        await self._slices.ensure_classes(devices)
        metadata: dict[str, Any] = {**body["metadata"]}
        metadata["labels"] = {**metadata.get("labels", {}), names.NODE_TYPE: VIRTUAL}
        conditions = node_conditions(Readiness.READY, self._clock.now())
        number = zlib.crc32(metadata["name"].encode()) % _ADDRESSES
        addresses = [{"type": "InternalIP", "address": host_address(number)}]
        status = {**body["status"], "conditions": conditions, "addresses": addresses}
        whole = {**body, "metadata": metadata, "status": status}
        self._add(await create_node(self._client, whole), devices)

    def _add(self, node: Node, devices: Sequence[DeviceShape] | None = None) -> None:
        record = self._nodes[node.metadata.name] = node_record(node)
        if self._slices.add(node, devices):
            self._offer_devices(record)
        self._images.register(node.metadata.name, node.status.images)

    def _images_changed(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is not None:
            node.images += 1
            self._enqueue(node)

    async def unregister(self, name: str) -> None:
        """End the machine of a node: it stops answering, and its object says so after a while."""
        if name in self._nodes:
            self.fail_node(name, detect_seconds=_DETECT_SECONDS)
            self._nodes[name].is_ended = True

    def fail_pod(self, key: tuple[str, str], *, exit_code: int = 1, signal: int = 0) -> None:
        """End a pod's processes now; KeyError when no such pod is alive on a virtual node."""
        self._lives.kill(key, exit_code=exit_code, signal=signal)

    @property
    def records(self) -> Mapping[str, VirtualNodeRecord]:
        """The nodes that are driven here, by name."""
        return self._nodes

    def node_names(self) -> tuple[str, ...]:
        """Return the names of all nodes that are driven here and have a machine, sorted."""
        return tuple(sorted(name for name, node in self._nodes.items() if not node.is_ended))

    def _detect(self, node: VirtualNodeRecord, fault: NodeFault) -> None:
        if node.fault is fault:
            node.readiness = READINESS_OF_FAULT[fault]
            self._enqueue(node)

    # Events

    def _pod_changed(self, change: Change[Pod]) -> None:
        new = change.new
        if new is not None and new.spec.node_name in self._nodes:
            self._lives.observe(new, self._nodes[new.spec.node_name])
        elif change.old is not None:
            self._lives.forget(change.old.metadata.uid)

    def _warn(self, pod: Pod, message: str) -> None:
        reason = "UnreadableAnnotation"
        self._events.record(PODS, pod.metadata, EventKind.WARNING, reason=reason, message=message)

    # Timers

    def _set_timer(self, instant: float, action: Any) -> None:
        if self._timers.add(instant, action):
            self._timer_wake.set()

    async def _run_timers(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            count = 0
            while (action := self._timers.pop_due(self._clock.now())) is not None:
                action()
                count += 1
                if count % TIMERS_BATCH_MAX == 0:
                    await asyncio.sleep(0)
            self._timer_wake.clear()
            head = self._timers.head
            handle = None
            if head is not None:
                handle = loop.call_later(max(head - self._clock.now(), 0.0), self._timer_wake.set)
            await self._timer_wake.wait()
            if handle is not None:
                handle.cancel()

    # What they use

    def measured_pods(self) -> Iterator[MeasuredUse]:
        """Yield what pods use now, where the profile says which share of their requests that is."""
        spec = self._profile.use
        for node in self._nodes.values() if spec is not None else ():
            for record in node.pods.values():
                part = self._measure((record,))
                if spec is not None and part is not None:
                    meta = record.pod.metadata
                    containers = record.pod.spec.containers
                    parts = {containers[0].name: part} if containers else {}
                    so_far = use_of(record, spec, part.at)
                    yield MeasuredUse(meta.name, meta.namespace, meta.labels, parts, so_far)

    def measured_nodes(self) -> Iterator[MeasuredUse]:
        """Yield what nodes use now: what their pods do."""
        if self._profile.use is not None:
            for node in self._nodes.values():
                part = self._measure(tuple(node.pods.values()))
                if part is not None:
                    yield MeasuredUse(node.name, "", {names.HOSTNAME: node.name}, {"": part})

    def _measure(self, records: Sequence[PodRecord]) -> Measure | None:
        spec, now = self._profile.use, self._clock.now()
        running = [each for each in records if each.state is PodState.RUNNING]
        if spec is None or not running:
            return None
        cpu = sum(each.requests.get(quantity.CPU, 0) for each in running)
        memory = sum(each.requests.get(quantity.MEMORY, 0) for each in running)
        return Measure(
            now, 1.0, round(cpu * spec.cpu_share), round(memory * spec.memory_mean_share)
        )

    # Writes

    def _enqueue(self, record: PodRecord | VirtualNodeRecord) -> None:
        if not record.queued and not record.writing:
            record.queued = True
            self._queue.put_nowait(record)

    async def _run_writer(self) -> None:
        while True:
            record = await self._queue.get()
            record.queued = False
            record.writing = True
            retry = False
            try:
                if isinstance(record, VirtualNodeRecord):
                    await self._write_node(record)
                else:
                    await self._write_pod(record)
                record.failures = 0
            except ApiError as error:
                retry = self._failed(record, error)
            finally:
                record.writing = False
            if retry:
                delay = delay_seconds(self._rng, record.failures, _BACKOFF)
                record.failures += 1
                self._set_timer(self._clock.now() + delay, partial(self._enqueue, record))
            elif self._must_write(record):
                self._enqueue(record)

    def _must_write(self, record: PodRecord | VirtualNodeRecord) -> bool:
        if isinstance(record, VirtualNodeRecord):
            return record.written != record.state
        return bool(record.wants) and record.node.fault is None

    def _failed(self, record: PodRecord | VirtualNodeRecord, error: ApiError) -> bool:
        """Judge a failed write; True when it should be tried again."""
        if isinstance(record, VirtualNodeRecord):
            if isinstance(error, NotFound):
                self._written(record, record.state)
                return False
            return error.retryable or isinstance(error, Conflict)
        if error.retryable:
            return True
        record.wants = Want.NOTHING
        if isinstance(error, NotFound | Conflict):  # gone, or a later pod has its name
            self._lives.forget(record.uid)
        else:
            self._log.error(
                "API refused a virtual pod's status",
                pod="/".join(record.pod.metadata.key),
                error=error.message,
            )
        return False

    async def _write_pod(self, record: PodRecord) -> None:
        namespace, name = record.pod.metadata.key
        if record.node.fault is None and Want.PROGRESS in record.wants:
            body = {"metadata": {"uid": record.uid, "annotations": record.reports}}
            patch = self._client.patch(PODS, name, body, namespace=namespace)
            await self._carry_out(record, Want.PROGRESS, patch)
        if record.node.fault is None and Want.STATUS in record.wants:
            body = self._lives.status(record)
            patch = self._client.patch(PODS, name, body, namespace=namespace, subresource="status")
            await self._carry_out(record, Want.STATUS, patch)
        if record.node.fault is None and Want.DELETE in record.wants:
            delete = self._client.delete(
                PODS, name, namespace=namespace, grace_period_seconds=0, uid=record.uid
            )
            await self._carry_out(record, Want.DELETE, delete)

    async def _carry_out(
        self, record: PodRecord, want: Want, call: Coroutine[Any, Any, object]
    ) -> None:
        """Await the call; when it fails, the want stands again."""
        record.wants &= ~want
        try:
            await call
        except BaseException:
            record.wants |= want
            raise

    async def _write_node(self, record: VirtualNodeRecord) -> None:
        """Write devices, then the Node object, each where it has changed."""
        state = *_, images, devices = record.state
        if devices != record.written[3]:
            await self._slices.publish(record.name)
        if state[:3] == record.written[:3]:
            self._written(record, state)
            return
        report = None if images == record.written[2] else self._images.report(record.name)
        await write_node(self._client, record, images=report, now=self._clock.now())
        self._written(record, state)

    def _written(self, record: VirtualNodeRecord, state: NodeState) -> None:
        """Note what the API has; a node whose machine has ended is not driven any more."""
        record.written = state
        if record.is_ended and state[0] is Readiness.UNKNOWN:
            self._nodes.pop(record.name, None)
            self._slices.forget(record.name)
