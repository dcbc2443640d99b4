"""A recorded decision as a file: JSON Lines, its inputs in full, what does not matter left out.

    {"format": "fairlead.dev/decision", "version": 1, "now": ..., "policy": ..., "actions": ...}
    {"kind": "Node", "object": {...}}                              one line for each object

What no decision reads is left out, as it may be private: variables, commands, arguments and
mounts of containers, volumes that are no claims, most annotations, messages of pods. Names of
images are numbers here, the same ones for jobs and nodes, and those of nodes have their sizes. The
actions are the status patches that the scheduler sends, but for the digest of the template of a job
that starts; `digest` is the SHA-256 of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from dataclasses import replace as changed
from math import inf
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from fairlead import __version__
from fairlead.api import names
from fairlead.api.cluster.node_pool import NodePool, NodePoolStatus, Provider
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import (
    Container,
    ContainerImage,
    ContainerStatus,
    Node,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    PodTemplate,
    PriorityClass,
    Volume,
)
from fairlead.api.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.kubernetes.image_names import full_image_name, images_of
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.kubernetes.volumes import (
    BIND_COMPLETED,
    CLASS_ANNOTATION,
    DEFAULT_CLASS,
    SELECTED_NODE,
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.pods.pod_asks import RESIZE_PENDING
from fairlead.controllers.placing.decision_log import Cycle
from fairlead.decide.placement.actions import Action, PlaceJob
from fairlead.decide.placement.desk.memory import Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.outcome import status_patch
from fairlead.decide.placement.snapshot import CarriedState, Snapshot, replay
from fairlead.model.asks.topology import Level
from fairlead.model.inventory.image_table import IMAGES_PER_NODE_MAX
from fairlead.model.objects import Objects

T = TypeVar("T")
FORMAT, VERSION = "fairlead.dev/decision", 1
#: Larger files are refused, as are larger answers of a server.
FILE_BYTES_MAX = 512 << 20
#: Annotations that the planner reads.
_ANNOTATIONS = (
    names.SUBMITTED_BY, names.MAINTENANCE, names.MIRROR_POD,
    BIND_COMPLETED, SELECTED_NODE, CLASS_ANNOTATION, DEFAULT_CLASS,
)  # fmt: skip
#: Kind and field of `Objects`.
_KINDS: dict[str, tuple[str, type[Any]]] = {
    "PriorityClass": ("priority_classes", PriorityClass),
    "Team": ("teams", Team),
    "Node": ("nodes", Node),
    "Job": ("jobs", Job),
    "Pod": ("pods", Pod),
    "ResourceQuota": ("quotas", ResourceQuota),
    "NodePool": ("pools", NodePool),
    "PersistentVolumeClaim": ("claims", PersistentVolumeClaim),
    "PersistentVolume": ("volumes", PersistentVolume),
    "StorageClass": ("storage_classes", StorageClass),
    "CSINode": ("csi_nodes", CSINode),
    "VolumeAttachment": ("attachments", VolumeAttachment),
    "ResourceClaim": ("device_claims", ResourceClaim),
    "ResourceClaimTemplate": ("device_templates", ResourceClaimTemplate),
    "DeviceClass": ("device_classes", DeviceClass),
    "ResourceSlice": ("slices", ResourceSlice),
}
_Object: TypeAlias = (
    Node | Job | Pod | PriorityClass | Team | ResourceQuota | NodePool
    | PersistentVolumeClaim | PersistentVolume | StorageClass | CSINode | VolumeAttachment
    | ResourceClaim | ResourceClaimTemplate | DeviceClass | ResourceSlice
)  # fmt: skip


class Write(msgspec.Struct, frozen=True, rename="camel"):
    """One action: its kind, the version of the job that it is for, and the patch of its status."""

    action: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    patch: dict[str, Any]


class _Header(msgspec.Struct, frozen=True, rename="camel"):
    format: str
    version: int
    #: Of Fairlead.
    release: str
    cycle: int
    now: float
    #: Number of the lines that follow.
    objects: int
    #: Infinity is null.
    policy: dict[str, float | int | bool | None]
    levels: list[tuple[str, str]]
    contains_faults: bool
    carried: CarriedState
    recall: Recall
    actions: tuple[Write, ...]
    digest: str


class _Line(msgspec.Struct, frozen=True):
    kind: str
    object: msgspec.Raw


class DecisionFileError(Exception):
    """The file is not a recorded decision: in which line, at which field ("" for none), and why."""

    def __init__(self, line: int, why: str, field: str = "") -> None:
        super().__init__(why)
        self.line, self.field = line, field
        self.why = why


class DecisionHead(msgspec.Struct, frozen=True, rename="camel"):
    """The first line without what the decision was made on; `objects` is the number of those."""

    cycle: int
    release: str
    now: float
    objects: int
    actions: tuple[Write, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision as it was recorded. `digest` is that of the actions."""

    cycle: int
    release: str
    snapshot: Snapshot
    actions: tuple[Write, ...]
    digest: str

    def replay(self) -> tuple[Write, ...]:
        """Make the decision again and return its actions."""
        return writes_of(replay(self.snapshot).actions)


def writes_of(actions: Iterable[Action]) -> tuple[Write, ...]:
    """Return what actions write, in their order, but for digests of templates.

    Those are made from what a file leaves out.
    """
    return tuple(
        Write(
            type(action).__name__,
            *action.job.metadata.key,
            action.job.metadata.uid,
            action.job.metadata.resource_version,
            _plain(status_patch(_without_digest(action))),
        )
        for action in actions
    )


def _without_digest(action: Action) -> Action:
    if isinstance(action, PlaceJob) and action.begun is not None:
        return changed(action, begun=replace(action.begun, template_digest=""))
    return action


def _plain(value: Any) -> Any:
    """Return a patch as it is read back from a file."""
    return msgspec.json.decode(msgspec.json.encode(value))


def digest_of(writes: Sequence[Write]) -> str:
    """Return the digest of actions: equal for equal actions in the same order."""
    return "sha256:" + hashlib.sha256(_encode(writes)).hexdigest()


def write_lines(cycle: Cycle, snapshot: Snapshot) -> Iterator[bytes]:
    """Yield the lines of the file of a decision."""
    writes = writes_of(cycle.actions)
    objects = [
        (kind, each)
        for kind, (field, _) in _KINDS.items()
        for each in getattr(snapshot.objects, field)
    ]
    yield _line(_Header(
        FORMAT, VERSION, __version__, cycle.number, snapshot.now, len(objects),
        asdict(snapshot.policy), [(each.name, each.key) for each in snapshot.levels],
        snapshot.contains_faults,
        snapshot.carried,
        snapshot.recall,
        writes, digest_of(writes),
    ))  # fmt: skip
    images = _Images(snapshot.objects.jobs)
    for kind, each in objects:
        yield _line({"kind": kind, "object": _reduced(each, images)})


def _line(value: object) -> bytes:
    return _encode(value) + b"\n"


def _encode(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def read_head(line: bytes) -> DecisionHead:
    """Return what the first line of a file has; DecisionFileError."""
    return _first(1, line, DecisionHead)


def _first(number: int, first: bytes, type_: type[T]) -> T:
    head = _decode(number, first, _Start)
    if head.format != FORMAT:
        raise DecisionFileError(
            number, f"the format is {FORMAT}, not '{head.format[:40]}'", "format"
        )
    if head.version != VERSION:
        why = f"version {head.version} of the format is not known here, but {VERSION} is"
        raise DecisionFileError(number, why, "version")
    return _decode(number, first, type_)


def read_lines(lines: Iterable[bytes]) -> RecordedDecision:
    """Return what a file has; DecisionFileError."""
    numbered = ((n, line) for n, line in enumerate(lines, 1) if line.strip())
    number, first = next(numbered, (1, b""))
    header = _first(number, first, _Header)
    found: dict[str, list[Any]] = {field: [] for field, _ in _KINDS.values()}
    count = 0
    for number, text in numbered:
        line = _decode(number, text, _Line)
        if line.kind not in _KINDS:
            why = f"'{line.kind[:40]}' is none of {', '.join(_KINDS)}"
            raise DecisionFileError(number, why, "kind")
        field, type_ = _KINDS[line.kind]
        found[field].append(_decode(number, bytes(line.object), type_, prefix="object"))
        count += 1
    if count != header.objects:
        why = f"there are {count} objects, but the first line says {header.objects}: lines are lost"
        raise DecisionFileError(number, why)
    kinds: dict[str, Any] = {field: tuple(each) for field, each in found.items()}
    objects = Objects(**kinds)
    snapshot = Snapshot(
        header.now, objects, _policy(header.policy),
        tuple(Level(name, key) for name, key in header.levels),
        header.carried, header.recall, header.contains_faults,
    )  # fmt: skip
    return RecordedDecision(header.cycle, header.release, snapshot, header.actions, header.digest)


class _Start(msgspec.Struct, frozen=True):
    """What every version of the format begins with."""

    format: str
    version: int


def _decode(number: int, text: bytes, type_: type[T], *, prefix: str = "") -> T:
    try:
        return msgspec.json.decode(text, type=type_)
    except msgspec.ValidationError as error:
        why, _, path = str(error).partition(" - at `$")
        field = (prefix + path.rstrip("`")).lstrip(".")
        raise DecisionFileError(number, why, field) from error
    except (ValueError, RecursionError) as error:
        raise DecisionFileError(number, f"not JSON that can be read: {error}") from error


def _policy(given: dict[str, float | int | bool | None]) -> PlacementPolicy:
    finite = {name: inf if value is None else value for name, value in given.items()}
    try:
        return msgspec.convert(finite, PlacementPolicy)
    except msgspec.ValidationError as error:
        raise DecisionFileError(1, str(error).partition(" - at ")[0], "policy") from error


class _Images:
    """The images that jobs ask for, by number: image-1 and so on."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        specs = (role.template.spec for job in jobs for role in job.spec.roles)
        names = sorted({name for spec in specs for name in images_of(spec)})
        self._numbers = {name: f"image-{i}" for i, name in enumerate(names, 1)}
        #: By image of a node: what stands for it, None where no job asks for it.
        self._known: dict[ContainerImage, ContainerImage | None] = {}

    def of_container(self, name: str) -> str:
        """Return what stands for an image that a job asks for."""
        return self._numbers[full_image_name(name)] if name else ""

    def of_node(self, images: tuple[ContainerImage, ...]) -> tuple[ContainerImage, ...]:
        """Return what stands for the images of a node that count, those that jobs ask for."""
        found = map(self._of_image, images[:IMAGES_PER_NODE_MAX])
        return tuple(image for image in found if image is not None)

    def _of_image(self, image: ContainerImage) -> ContainerImage | None:
        if image not in self._known:
            full = {full_image_name(name) for name in image.names or ()}
            names = sorted(self._numbers[name] for name in full if name in self._numbers)
            size = image.size_bytes
            self._known[image] = ContainerImage(tuple(names), size) if names else None
        return self._known[image]


def _reduced(each: _Object, images: _Images) -> _Object:
    """Return an object with what the planner reads of it."""
    metadata = _reduced_metadata(each.metadata)
    match each:
        case Job():
            roles = tuple(_reduced_role(role, images) for role in each.spec.roles)
            progress = each.status.progress
            if progress is not None:
                progress = replace(progress, ignored_line="")
            return replace(
                each, metadata=metadata, spec=replace(each.spec, roles=roles),
                status=replace(each.status, progress=progress),
            )  # fmt: skip
        case Pod():
            status = _reduced_status(each.status)
            return replace(each, metadata=metadata, spec=_reduced_spec(each.spec), status=status)
        case Node():
            seen = images.of_node(each.status.images)
            return replace(each, metadata=metadata, status=replace(each.status, images=seen))
        case NodePool():
            spec = replace(each.spec, provider=Provider(each.spec.provider.type))
            status = NodePoolStatus(consolidates_to=each.status.consolidates_to)
            return NodePool(metadata, spec, status)
        case _:
            return replace(each, metadata=metadata)


def _reduced_metadata(metadata: ObjectMeta) -> ObjectMeta:
    kept = {key: text for key, text in metadata.annotations.items() if key in _ANNOTATIONS}
    return replace(metadata, annotations=kept)


def _reduced_role(role: Role, images: _Images) -> Role:
    metadata, spec = role.template.metadata, role.template.spec
    template = PodTemplate(_reduced_metadata(metadata), _reduced_spec(spec, images))
    return replace(role, template=template)


def _reduced_spec(spec: PodSpec, images: _Images | None = None) -> PodSpec:
    """Return a spec with what the planner reads of it; of a pod that is no image."""
    return replace(
        spec,
        volumes=tuple(
            Volume(each.name, persistent_volume_claim=claim, ephemeral=each.ephemeral)
            for each in spec.volumes
            if (claim := each.persistent_volume_claim) is not None or each.ephemeral is not None
        ),
        containers=tuple(_reduced_container(each, images) for each in spec.containers),
        init_containers=tuple(_reduced_container(each, images) for each in spec.init_containers),
    )  # fmt: skip


def _reduced_status(status: PodStatus) -> PodStatus:
    """Return a status with what decides on what the pod takes of its node."""
    return PodStatus(
        phase=status.phase,
        conditions=tuple(
            PodCondition(each.type, each.status, each.reason)
            for each in status.conditions
            if each.type == RESIZE_PENDING
        ),
        container_statuses=_reduced_states(status.container_statuses),
        init_container_statuses=_reduced_states(status.init_container_statuses),
        resources=status.resources,
        allocated_resources=status.allocated_resources,
    )


def _reduced_states(states: Iterable[ContainerStatus]) -> tuple[ContainerStatus, ...]:
    return tuple(
        ContainerStatus(
            each.name, resources=each.resources, allocated_resources=each.allocated_resources
        )
        for each in states
        if each.resources is not None
    )


def _reduced_container(container: Container, images: _Images | None) -> Container:
    return Container(
        container.name,
        image="" if images is None else images.of_container(container.image),
        ports=container.ports,
        resources=container.resources,
        restart_policy=container.restart_policy,
    )
