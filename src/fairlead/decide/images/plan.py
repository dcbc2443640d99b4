"""Decides which pulls begin and which end (pure but for the book that it keeps).

A wish is an image that is to be on some nodes. The most urgent come first, and of each as many
nodes as the limits leave: pulls at a time on a node, of a registry, for a namespace and in all, and
pulls of a registry that begin within a minute. An image that no node has is first pulled by one
node, so that a name that is none, or a registry that refuses, costs one pull and not one for each
node; it also says how large the image is.

Pulls give way to work. While work on a node needs an image, no other image is begun there, and the
pod of a pull goes. A kubelet ends no transfer that it has begun, though: one that pulls one image
at a time makes the work wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.image_names import full_image_name
from fairlead.decide.images.book import PullBook
from fairlead.decide.images.policy import (
    REPORT_SECONDS,
    UNKNOWN_BYTES,
    UNPACKED_FACTOR,
    ImagesPolicy,
)
from fairlead.decide.images.view import (
    REPORTED_MAX,
    ImageNode,
    ImagesView,
    Owner,
    PullKey,
    PullState,
    SeenPull,
    Wish,
)
from fairlead.decide.verdict import earliest


class PullEnding(Enum):
    """Why the pod of a pull is deleted. The closed set."""

    PULLED = "Pulled"
    FAILED = "Failed"
    UNWANTED = "Unwanted"
    NODE_CLOSED = "NodeClosed"
    NODE_STARTS_WORK = "NodeStartsWork"


class PullHold(Enum):
    """What becomes of an image on a node that is wished there. The closed set, with the words."""

    PRESENT = "has it"
    PULLING = "pulls it"
    NODE_CLOSED = "not ready, closed, or without a runtime that reports images"
    NODE_STARTS_WORK = "starts work"
    NODE_PULLS = "pulls another image"
    NO_ROOM = "has no room on its disk"
    REMOVED = "removed it, and is asked again later"
    FAILED = "waits after a failure"
    FIRST = "waits for the first node"
    QUOTA = "the quota of the namespace has no room"
    RATE = "waits for its turn"


@dataclass(frozen=True, slots=True)
class StartPull:
    """Create the pod that pulls an image onto a node."""

    owner: Owner
    image: str
    role: str
    node: str
    node_uid: str


@dataclass(frozen=True, slots=True)
class EndPull:
    """Delete this very pod."""

    pod: Pod
    why: PullEnding


PullAction: TypeAlias = StartPull | EndPull
_COUNTED = (PullHold.PRESENT, PullHold.PULLING)
#: Characters of a kubelet's words.
_MESSAGE_MAX = 240


@dataclass(frozen=True, slots=True)
class ImageTally:
    """What becomes of one image of one owner, in nodes."""

    holds: Mapping[PullHold, int] = field(default_factory=dict[PullHold, int])
    #: Of a failure, the words of the kubelet.
    message: str = ""

    @property
    def words(self) -> str:
        """Why nodes lack the image that do not pull it, the most first."""
        rest = [(count, hold) for hold, count in self.holds.items() if hold not in _COUNTED]
        parts = [
            f"{count:,} {'node' if count == 1 else 'nodes'}: {hold.value}"
            for count, hold in sorted(rest, key=lambda each: (-each[0], each[1].name))
        ]
        return "; ".join([*parts, *([self.message[:_MESSAGE_MAX]] if self.message else [])])


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What to do, what became of each wish, and when time alone changes it (an instant)."""

    actions: tuple[PullAction, ...] = ()
    tallies: Mapping[tuple[str, str], ImageTally] = field(
        default_factory=dict[tuple[str, str], ImageTally]
    )
    wake_at: float | None = None


def registry_of(image: str) -> str:
    """Return the registry of an image, by full name."""
    return image.partition("/")[0]


def scope_of(owner: Owner) -> str:
    """Return whose credentials pull: a failure says nothing of another one's."""
    return f"{owner.kind}/{owner.namespace or owner.name}"


def plan(view: ImagesView, book: PullBook, policy: ImagesPolicy, instant: float) -> PullPlan:
    """Return the pulls that end, and those that begin. The book takes down both."""
    return _Planner(view, book, policy, instant).run()


class _Planner:
    """One decision."""

    def __init__(
        self, view: ImagesView, book: PullBook, policy: ImagesPolicy, instant: float
    ) -> None:
        self._view, self._book, self._policy, self._instant = view, book, policy, instant
        self._wishes: dict[PullKey, Wish] = {
            (wish.owner.uid, wish.image, node): wish
            for wish in reversed(view.wishes) for node in wish.nodes
        }  # fmt: skip
        self._on_node: Counter[str] = Counter()
        self._of_registry: Counter[str] = Counter()
        self._of_namespace: Counter[str] = Counter()
        self._of_image: Counter[tuple[str, str]] = Counter()
        self._running: dict[PullKey, SeenPull] = {}
        #: Images that a node pulls already, whoever asked for it.
        self._pulled_on: set[tuple[str, str]] = set()
        #: How many nodes report each image, and its size.
        self._sizes: dict[str, int] = {}
        for node in view.nodes.values():
            for name, size in node.images.items():
                self._sizes[name] = max(self._sizes.get(name, 0), size)
        self._wakes: list[float] = []

    def run(self) -> PullPlan:
        actions: list[PullAction] = list(self._ends())
        tallies: dict[tuple[str, str], ImageTally] = {}
        for wish in self._view.wishes:
            holds: Counter[PullHold] = Counter()
            for node in wish.nodes:
                hold = self._hold(wish, node)
                if hold is None:
                    actions.append(self._start(wish, self._view.nodes[node]))
                    hold = PullHold.PULLING
                holds[hold] += 1
            failure = self._book.failure(scope_of(wish.owner), full_image_name(wish.image))
            message = failure.message if failure is not None else ""
            tallies[wish.owner.uid, wish.image] = ImageTally(holds, message)
        return PullPlan(tuple(actions), tallies, earliest(*self._wakes))

    # Pulls that are there

    def _ends(self) -> Iterator[EndPull]:
        """Yield the pulls that are over or not wanted any more, and count the others."""
        for pull in sorted(self._view.pulls, key=lambda each: each.pod.metadata.key):
            wish = self._wishes.get(pull.key)
            why = self._ending(pull, wish)
            if wish is not None and why in (PullEnding.PULLED, PullEnding.FAILED):
                self._note_end(pull, wish)
            if pull.state is PullState.PULLING:
                self._count(pull, wish)  # one that ends now, too: its kubelet goes on for a moment
            if pull.pod.metadata.deletion_timestamp is not None:
                continue
            if why is not None:
                yield EndPull(pull.pod, why)
            else:
                self._running[pull.key] = pull

    def _ending(self, pull: SeenPull, wish: Wish | None) -> PullEnding | None:
        image, node = full_image_name(pull.key[1]), self._view.nodes.get(pull.key[2])
        if wish is None or pull.key in self._running:
            return PullEnding.UNWANTED
        if pull.pod.metadata.namespace != (wish.owner.namespace or self._policy.namespace):
            return PullEnding.UNWANTED
        if pull.state is PullState.PULLED:
            return PullEnding.PULLED
        if pull.state in (PullState.FAILED, PullState.LOST):
            return PullEnding.FAILED
        if node is None or not node.is_open:
            return PullEnding.NODE_CLOSED
        needed = self._view.starting.get(node.name)
        if needed is not None and image not in needed:
            return PullEnding.NODE_STARTS_WORK
        return None

    def _note_end(self, pull: SeenPull, wish: Wish) -> None:
        image, node = full_image_name(wish.image), self._view.nodes.get(pull.key[2])
        if node is None:
            return
        if pull.state is PullState.PULLED:
            self._book.note_pulled(scope_of(wish.owner), node.uid, image, self._instant)
        else:
            self._book.note_failure(
                scope_of(wish.owner), node.uid, image, pull.message, policy=self._policy,
                instant=self._instant, is_of_node=pull.state is PullState.LOST,
            )  # fmt: skip

    def _count(self, pull: SeenPull, wish: Wish | None) -> None:
        """Count a pull that goes on. One that nobody wished is no one's, but its node is busy."""
        image = full_image_name(pull.key[1])
        self._on_node[pull.key[2]] += 1
        if wish is not None:
            self._count_started(wish, image, pull.key[2])

    def _count_started(self, wish: Wish, image: str, node: str) -> None:
        self._of_registry[registry_of(image)] += 1
        self._of_namespace[wish.owner.namespace] += 1
        self._of_image[scope_of(wish.owner), image] += 1
        self._pulled_on.add((node, image))

    # Pulls that begin

    def _hold(self, wish: Wish, name: str) -> PullHold | None:
        """Return what keeps a pull from beginning; None: nothing."""
        node, image = self._view.nodes.get(name), full_image_name(wish.image)
        if node is None:
            return PullHold.NODE_CLOSED
        if self._has(node, image):
            return PullHold.PRESENT
        if (wish.owner.uid, wish.image, name) in self._running or (name, image) in self._pulled_on:
            return PullHold.PULLING
        if not node.is_open:
            return PullHold.NODE_CLOSED
        if name in self._view.starting:
            return PullHold.NODE_STARTS_WORK
        if self._on_node[name] >= self._policy.pulls_per_node_max:
            return PullHold.NODE_PULLS
        if not self._has_room(node, image):
            return PullHold.NO_ROOM
        until = 0.0
        if node.reported < REPORTED_MAX:
            until = self._book.left_alone_until(
                node.uid, image, policy=self._policy, instant=self._instant
            )
        if self._instant < until:
            self._wakes.append(until)
            return PullHold.REMOVED
        for scope in (scope_of(wish.owner), node.uid):
            failure = self._book.failure(scope, image)
            if failure is not None and self._instant < failure.until:
                self._wakes.append(failure.until)
                return PullHold.FAILED
        return self._limit(wish, image)

    def _limit(self, wish: Wish, image: str) -> PullHold | None:
        """Return what holds an image up on all nodes alike."""
        policy, scope, registry = self._policy, scope_of(wish.owner), registry_of(image)
        failure = self._book.failure(scope, image)
        is_proven = image in self._sizes and failure is None
        if not is_proven and self._of_image[scope, image]:
            return PullHold.FIRST
        if wish.quota is not None and self._of_namespace[wish.owner.namespace] >= wish.quota:
            return PullHold.QUOTA
        if (
            self._of_registry.total() >= policy.pulls_max
            or self._of_registry[registry] >= policy.pulls_per_registry_max
            or (wish.owner.namespace
                and self._of_namespace[wish.owner.namespace] >= policy.pulls_per_namespace_max)
        ):  # fmt: skip
            return PullHold.RATE
        if self._book.starts_left(registry, policy, self._instant) <= 0:
            self._wakes.append(self._book.next_start_at(registry))
            return PullHold.RATE
        return None

    def _has(self, node: ImageNode, image: str) -> bool:
        """True where a node has an image: it says so, or it got it and cannot have said so yet.

        One that reports as many as it may is believed for longer, as it may never say so.
        """
        is_reported, says_all = image in node.images, node.reported < REPORTED_MAX
        if is_reported and says_all:
            self._book.note_reported(node.uid, image)
        seconds = REPORT_SECONDS if says_all else self._policy.believed_seconds
        return is_reported or self._book.has(node.uid, image, self._instant, seconds)

    def _has_room(self, node: ImageNode, image: str) -> bool:
        if not node.disk_bytes:
            return True
        size = self._sizes.get(image) or UNKNOWN_BYTES
        limit = node.disk_bytes * self._policy.disk_percent_max // 100
        return (node.used_bytes + size) * UNPACKED_FACTOR <= limit

    def _start(self, wish: Wish, node: ImageNode) -> StartPull:
        image = full_image_name(wish.image)
        self._on_node[node.name] += 1
        self._count_started(wish, image, node.name)
        self._book.note_start(registry_of(image), self._instant)
        return StartPull(wish.owner, wish.image, wish.role, node.name, node.uid)
