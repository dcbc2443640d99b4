"""What the virtual nodes remember: one record per node, one per pod, and the timer heap."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, Flag
from typing import Any, TypeAlias, assert_never

from fairlead.api import names
from fairlead.api.jobs.use import MemberUse, encode_use
from fairlead.api.kubernetes.core import Container, Node, Pod
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.api.values import quantity
from fairlead.api.values.times import parse_time
from fairlead.embedded.virtual.profile import PodState, Stage, UseSpec
from fairlead.embedded.virtual.stages.resizing import NodeResizes, PodAmounts
from fairlead.embedded.virtual.stages.status import (
    ContainerNow,
    ContainerStateNow,
    NodeClaims,
    PodNow,
    PodPhase,
    Readiness,
    Running,
    Terminated,
    Waiting,
    pod_patch,
)

#: Instants closer than this are one (floats of the epoch have a spacing of 0.24 µs).
SIMULTANEOUS_SECONDS = 1e-6


class NodeFault(Enum):
    """What is wrong with a node. In all three its pods stop answering."""

    CRASHED = "Crashed"  # power lost: processes are gone; Ready becomes Unknown
    UNREACHABLE = "Unreachable"  # cut off: processes go on unseen; Ready becomes Unknown
    NOT_READY = "NotReady"  # the node agent is broken and says so; Ready becomes False


class Want(Flag):
    """What must still be written for a pod."""

    NOTHING = 0
    STATUS = 1
    PROGRESS = 2
    DELETE = 4


READINESS_OF_FAULT = {
    NodeFault.CRASHED: Readiness.UNKNOWN,
    NodeFault.UNREACHABLE: Readiness.UNKNOWN,
    NodeFault.NOT_READY: Readiness.NOT_READY,
}


#: Readiness, GPUs lost, and the versions of images and devices.
NodeState: TypeAlias = tuple[Readiness, int, int, int]


@dataclass(slots=True, eq=False)
class VirtualNodeRecord:
    """One virtual node."""

    name: str
    address: str
    use: NodeClaims
    resizes: NodeResizes
    fault: NodeFault | None = None
    readiness: Readiness = Readiness.READY
    #: GPUs that have failed; the node offers the others.
    gpus_lost: int = 0
    #: Seconds of work that the programs on it do in a second.
    speed: float = 1.0
    #: How often its images changed.
    images: int = 0
    #: How often the devices changed that its drivers offer.
    devices: int = 0
    #: `state` as the API has it.
    written: NodeState = (Readiness.READY, 0, 0, 0)
    pods: dict[str, PodRecord] = field(default_factory=dict)
    queued: bool = False
    writing: bool = False
    failures: int = 0
    #: The machine is gone for good: nothing mends it.
    is_ended: bool = False

    def at_speed(self, instant: float, now: float) -> float:
        """Return when work is done on it that takes until an instant at full speed."""
        return instant if self.speed == 1.0 else now + (instant - now) / self.speed

    @property
    def state(self) -> NodeState:
        """What is to be written of it: readiness, GPUs lost, versions of images and devices."""
        return self.readiness, self.gpus_lost, self.images, self.devices


@dataclass(slots=True, eq=False)
class PodRecord:
    """One pod on a virtual node.

    `generation` rises whenever earlier timers become void. `wants` is what must still be written;
    setting a want and queueing the record is all that a transition does.
    """

    pod: Pod
    node: VirtualNodeRecord
    amounts: PodAmounts
    address: str
    bound_at: float
    state: PodState = PodState.BOUND
    changed_at: float = 0.0
    begun: bool = False
    admitted: bool = False
    start_is_due: bool = False
    #: Why an image cannot be pulled for it.
    image_error: str = ""
    stage: Stage | None = None
    stage_at: float = 0.0
    started_at: float = 0.0
    restart_count: int = 0
    ended: Terminated | None = None
    #: The test of the node before the program: since when, and how it ended.
    gate_at: float = 0.0
    gate: Terminated | None = None
    reason: str = ""
    message: str = ""
    disrupted: str = ""
    step: int = 0
    step_next: int = 0
    step_at: float = 0.0
    #: Annotations with which its program reports what it has done.
    reports: dict[str, str] = field(default_factory=dict[str, str])
    generation: int = 0
    wants: Want = Want.NOTHING
    queued: bool = False
    writing: bool = False
    failures: int = 0

    @property
    def requests(self) -> dict[str, int]:
        """What is allocated to the pod."""
        return self.amounts.requests

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.pod.metadata.uid

    def take_run(self) -> None:
        """Take from the pod's status since when it runs, and how often it was restarted."""
        self.started_at = self.bound_at
        for status in self.pod.status.container_statuses:
            self.restart_count = max(self.restart_count, status.restart_count)
            running = status.state.running
            if running is not None and running.started_at:
                self.started_at = parse_time(running.started_at)

    @property
    def is_first(self) -> bool:
        """True for the first member of a gang, and for a pod of none."""
        return self.pod.metadata.labels.get(names.RANK, "0") == "0"

    @property
    def has_gate(self) -> bool:
        """True for a pod that tests its node before its program."""
        return self._gate_container is not None

    @property
    def wants_network(self) -> bool:
        """True for one that also tests the connections of its gang."""
        found = self._gate_container
        return found is not None and "network" in found.command

    @property
    def _gate_container(self) -> Container | None:
        found = (each for each in self.pod.spec.init_containers)
        return next((each for each in found if each.name == names.PREFLIGHT_CONTAINER), None)

    @property
    def is_over(self) -> bool:
        """True once the pod's processes have ended for good."""
        return self.state in (PodState.SUCCEEDED, PodState.FAILED, PodState.GONE)


def use_of(record: PodRecord, spec: UseSpec, until: float) -> MemberUse | None:
    """Return what a pod has used by an instant, as its profile says: a share of what it asked for;
    None of one that has not run. Runs before the latest are not counted, and it says so.
    """
    if not record.started_at:
        return None
    milliseconds = max(round((until - record.started_at) * 1000), 0)
    cpu, memory = record.requests.get(quantity.CPU), record.requests.get(quantity.MEMORY)
    gpus = record.requests.get(quantity.GPU) if spec.gpu_share is not None else None
    return MemberUse(
        milliseconds,
        cpu_milliseconds=None if cpu is None else round(cpu * spec.cpu_share * milliseconds / 1000),
        memory_peak_bytes=None if memory is None else round(memory * spec.memory_share),
        memory_mean_bytes=None if memory is None else round(memory * spec.memory_mean_share),
        is_partial=record.restart_count > 0,
        gpu_milliseconds=gpus * milliseconds or None if gpus else None,
        gpu_busy_milliseconds=(
            round(gpus * milliseconds * (spec.gpu_share or 0.0)) if gpus and milliseconds else None
        ),
    )


def status_patch(record: PodRecord, waits_for: str, use: UseSpec | None = None) -> dict[str, Any]:
    """Return the patch that writes the record's present state; `waits_for` is said while Bound,
    and what was used, where the profile says it, once it is over.
    """
    phase, state = _phase(record, waits_for)
    containers: tuple[ContainerNow, ...] = ()
    if state is not None:
        last = record.ended if state is not record.ended else None
        one = ContainerNow("", "", state, record.restart_count, last, f"simulated://{record.uid}")
        containers = tuple(
            replace(one, name=c.name, image=c.image, image_id=_image_id(state, c.image))
            for c in record.pod.spec.containers
        )
    inits: tuple[ContainerNow, ...] = ()
    if record.gate_at:
        gate = record.gate or Running(record.gate_at)
        inits = (ContainerNow(names.PREFLIGHT_CONTAINER, "", gate),)
    now = PodNow(
        phase,
        containers,
        record.address,
        record.node.address,
        record.bound_at,
        record.changed_at or record.bound_at,
        record.reason,
        record.message,
        record.disrupted,
        _use_text(record, use),
        inits,
        actual=record.amounts.actual,
        allocated=record.amounts.allocated,
        resizing=() if record.is_over else record.amounts.conditions(),
    )
    return pod_patch(record.pod, now)


def _image_id(state: ContainerStateNow, image: str) -> str:
    """Return the id of a container's image, which a kubelet knows once it has the image."""
    return "" if isinstance(state, Waiting) else f"simulated://{full_image_name(image)}"


def _use_text(record: PodRecord, spec: UseSpec | None) -> str:
    if spec is None or not record.is_over:
        return ""
    use = use_of(record, spec, record.changed_at)
    return "" if use is None else encode_use(use)


def _phase(record: PodRecord, waits_for: str) -> tuple[PodPhase, ContainerStateNow | None]:
    """Return the phase and the state that all containers share; None for a refused pod."""
    match record.state:
        case PodState.BOUND if record.image_error:
            return PodPhase.PENDING, Waiting("ErrImagePull", record.image_error)
        case PodState.BOUND:
            why = "PodInitializing" if record.gate_at else "ContainerCreating"
            return PodPhase.PENDING, Waiting(why, waits_for)
        case PodState.BACK_OFF:
            message = "the container ended and waits to be restarted"
            return PodPhase.RUNNING, Waiting("CrashLoopBackOff", message)
        case PodState.RUNNING | PodState.TERMINATING | PodState.GONE:
            return PodPhase.RUNNING, Running(record.started_at)
        case PodState.SUCCEEDED:
            return PodPhase.SUCCEEDED, record.ended
        case PodState.FAILED:
            return PodPhase.FAILED, record.ended
        case _:
            assert_never(record.state)


class Timers:
    """One heap of (instant, sequence number, action). Equal instants keep the order of `add`.

    Actions that became void check that themselves (`PodRecord.generation`); each record has at
    most a few timers, so that the heap stays a small multiple of the number of pods.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def head(self) -> float | None:
        """The earliest instant, or None."""
        return self._heap[0][0] if self._heap else None

    def add(self, instant: float, action: Callable[[], None]) -> bool:
        """Set a timer; True when it is now the earliest."""
        self._sequence += 1
        heapq.heappush(self._heap, (instant, self._sequence, action))
        return self._heap[0][1] == self._sequence

    def pop_due(self, now: float) -> Callable[[], None] | None:
        """Take the earliest action that is due; None when none is."""
        if self._heap and self._heap[0][0] <= now + SIMULTANEOUS_SECONDS:
            return heapq.heappop(self._heap)[2]
        return None


class AddressPool:
    """Addresses of 10.0.0.0/8, never two pods with the same; given in rising order, then round
    again.
    """

    def __init__(self) -> None:
        self._next = 1
        self._used: set[str] = set()

    def take(self) -> str:
        """Return a free address. There are 16 million, far more than pods fit on the nodes."""
        while True:
            number = self._next
            self._next = self._next + 1 if self._next < (1 << 24) - 2 else 1
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            if number & 255 not in (0, 255) and address not in self._used:
                self._used.add(address)
                return address

    def adopt(self, address: str) -> None:
        """Note an address that a pod has already."""
        self._used.add(address)

    def give_back(self, address: str) -> None:
        """Free it."""
        self._used.discard(address)


def node_record(node: Node) -> VirtualNodeRecord:
    """Return the record of a node as the API has it; one that is not ready counts as
    unreachable.
    """
    allocatable = quantity.resources_to_base(node.status.allocatable)
    addresses = [a.address for a in node.status.addresses if a.type == "InternalIP"]
    address, use = addresses[0] if addresses else "", NodeClaims(allocatable)
    record = VirtualNodeRecord(node.metadata.name, address, use, NodeResizes(use))
    conditions = {c.type: c for c in node.status.conditions}
    ready = conditions.get(names.READY)
    if ready is not None and ready.status != Readiness.READY.value:
        record.readiness = Readiness(ready.status)
        record.fault = NodeFault.UNREACHABLE
    capacity = quantity.resources_to_base(node.status.capacity)
    owned = capacity.get(quantity.GPU, 0)
    record.gpus_lost = max(owned - allocatable.get(quantity.GPU, owned), 0)
    record.written = record.state
    return record
