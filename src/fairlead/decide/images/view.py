"""What a decision about images looks at: nodes, wishes and pulls (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from fairlead.api import names
from fairlead.api.kubernetes.core import ContainerImage, ContainerStatus, Node, Pod
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.api.values.quantity import EPHEMERAL_STORAGE, QuantityError, resources_to_base
from fairlead.model.health.node_health import is_ready

#: A kubelet reports so many images unless it is told otherwise (`nodeStatusMaxImages`): beyond,
#: an image that is not reported may be there.
REPORTED_MAX = 50
#: Lists of images of which nodes share the names and sizes: the latest ones.
LISTS_SHARED_MAX = 256
#: Of the kubelet's `containerRuntimeVersion`: those that pull images.
_RUNTIMES = ("containerd://", "cri-o://", "docker://")
_PRESSURE = "DiskPressure"
#: What a kubelet says of a container whose image it cannot get
#: (`pkg/kubelet/images/types.go`, `pkg/kubelet/kuberuntime/util`).
_REFUSED = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
        "RegistryUnavailable", "SignatureValidationFailed", "ImageInspectError",
    }
)  # fmt: skip
#: And of one whose image it has.
_BEYOND = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
)
#: Of a container that was made from its image and could not be started.
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})


class PullState(Enum):
    """How far a pull is."""

    PULLING = "Pulling"
    PULLED = "Pulled"
    FAILED = "Failed"  # the image cannot be got
    LOST = "Lost"  # the node has ended the pod


@dataclass(frozen=True, slots=True)
class Owner:
    """The job or image set for which is pulled; its uid is of no other object."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Wish:
    """An image that is to be on nodes, the most urgent first. `role` is the job's role with it."""

    owner: Owner
    image: str
    nodes: tuple[str, ...]
    role: str = ""
    #: Pulls that the quota of the namespace leaves room for; None: any number.
    quota: int | None = None


@dataclass(frozen=True, slots=True)
class ImageNode:
    """A node, as far as images are concerned. Equal facts are equal."""

    name: str
    uid: str
    #: Sizes in bytes by full name.
    images: Mapping[str, int]
    reported: int
    used_bytes: int
    #: Of the disk; 0: not known.
    disk_bytes: int
    is_open: bool

    @classmethod
    def of(cls, node: Node) -> ImageNode:
        """Return what a node says. A new one has no image yet, but names its runtime; one that has
        neither is a process, or a virtual node, and pulls nothing.
        """
        try:
            disk = resources_to_base(node.status.capacity).get(EPHEMERAL_STORAGE, 0)
        except QuantityError:
            disk = 0
        pressed = any(c.type == _PRESSURE and c.status == "True" for c in node.status.conditions)
        runtime = node.status.node_info.container_runtime_version
        pulls = bool(node.status.images) or runtime.startswith(_RUNTIMES)
        is_leaving = node.spec.unschedulable or names.REMOVAL in node.metadata.annotations
        return cls(
            node.metadata.name, node.metadata.uid, _sizes_of(node.status.images),
            len(node.status.images),
            sum(each.size_bytes for each in node.status.images), disk,
            is_ready(node) and not is_leaving and not pressed and pulls,
        )  # fmt: skip

    def size_of(self, image: str) -> int:
        """Return the size of an image in bytes; 0 where the node does not report it."""
        return self.images.get(full_image_name(image), 0)


@lru_cache(maxsize=LISTS_SHARED_MAX)  # nodes of a pool report the same images
def _sizes_of(images: tuple[ContainerImage, ...]) -> Mapping[str, int]:
    """Return the sizes by full name; equal lists have the same mapping."""
    return {full_image_name(name): each.size_bytes for each in images for name in each.names or ()}


@dataclass(frozen=True, slots=True)
class SeenPull:
    """A pod that pulls."""

    pod: Pod
    state: PullState
    message: str = ""

    @property
    def key(self) -> PullKey:
        """What it pulls, for whom and where."""
        pod = self.pod
        return (pod.metadata.labels[names.IMAGE_PULL], pod.spec.containers[0].image,
                pod.spec.node_name)  # fmt: skip

    @classmethod
    def of(cls, pod: Pod) -> SeenPull:
        """Return how far it is, by what the kubelet says of its container."""
        for status in pod.status.container_statuses:
            found = _state_of(status)
            if found is not None:
                state, message = found
                # Runtimes name the image before each cause, which then has no room to be shown.
                last = message.rpartition(f'{pod.spec.containers[0].image}": ')[2]
                return cls(pod, state, last or message)
        if pod.is_terminal:  # evicted, no room for a pod, too late
            return cls(pod, PullState.LOST, pod.status.message or pod.status.reason)
        return cls(pod, PullState.PULLING)


#: Uid of the owner, image as it is written, node.
PullKey = tuple[str, str, str]


def _state_of(status: ContainerStatus) -> tuple[PullState, str] | None:
    state = status.state
    ended = state.terminated
    if ended is not None and (status.image_id or ended.reason in _NOT_STARTED):
        return PullState.PULLED, ""
    if state.running is not None:
        return PullState.PULLED, ""
    if state.waiting is not None:
        if state.waiting.reason in _REFUSED:
            return PullState.FAILED, state.waiting.message or state.waiting.reason
        if state.waiting.reason in _BEYOND:
            return PullState.PULLED, ""
    return None


def pulls_for(pod: Pod) -> frozenset[str]:
    """Return the images that a node may be pulling for a pod of others, by full name."""
    if pod.is_terminal or not pod.spec.node_name or pod.metadata.deletion_timestamp is not None:
        return frozenset()
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    for status in statuses:
        waiting = status.state.waiting
        if waiting is not None and waiting.reason in _REFUSED | _BEYOND:
            return frozenset()  # nothing is pulled, and nobody knows until when
    started = {
        status.name for status in statuses
        if status.image_id or status.state.running or status.state.terminated
    }  # fmt: skip
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    missing = [each.image for each in containers if each.name not in started and each.image]
    return frozenset(map(full_image_name, missing))


@dataclass(frozen=True, slots=True)
class ImagesView:
    """All of it. `starting`: the images that work on a node needs now, by node; no other one is
    pulled there.
    """

    nodes: Mapping[str, ImageNode] = field(default_factory=dict[str, ImageNode])
    #: The most urgent first.
    wishes: Sequence[Wish] = ()
    pulls: Sequence[SeenPull] = ()
    starting: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
