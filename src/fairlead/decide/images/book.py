"""What the images controller remembers between two decisions, in the process alone.

All of it may be lost: what nodes have, they report, and pulls are pods. After a start every
registry counts as if it had just been used as much as it may be, so its rate holds over restarts,
too. An image that a node does not report is asked for once more, which costs the registry nothing.

Instants are of a clock that never jumps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

from fairlead.decide.images.policy import RATE_SECONDS, ImagesPolicy

#: Entries that are kept; the oldest go first.
_KNOWN_MAX = 200_000
_FAILURES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class PullFailure:
    """An image that could not be pulled: how often in a row, and until when it is left alone."""

    count: int
    until: float
    message: str


class PullBook:
    """When pulls began, what nodes have that they do not report, and what failed."""

    def __init__(self, began: float) -> None:
        """`began` is when the controller began: before, anything may have been pulled."""
        self._began = began
        self._starts: dict[str, list[float]] = defaultdict(list)
        self._known: dict[tuple[str, str], float] = {}
        self._succeeded: dict[tuple[str, str], float] = {}
        #: By whom and image, since what one namespace may pull says nothing of another one; and by
        #: the node's uid and image.
        self._failures: dict[tuple[str, str], PullFailure] = {}
        #: Images that nodes removed after they had got them, by the node's uid and image.
        self._removals: dict[tuple[str, str], PullFailure] = {}

    def note_start(self, registry: str, instant: float) -> None:
        """Note that a pull begins."""
        self._starts[registry].append(instant)

    def starts_left(self, registry: str, policy: ImagesPolicy, instant: float) -> int:
        """Return how many pulls of a registry may begin now."""
        if instant < self._began + RATE_SECONDS:
            return 0
        starts = self._starts.get(registry)
        if starts is None:
            return policy.starts_per_registry_max
        del starts[: bisect_right(starts, instant - RATE_SECONDS)]
        if not starts:
            del self._starts[registry]
            return policy.starts_per_registry_max
        return policy.starts_per_registry_max - len(starts)

    def next_start_at(self, registry: str) -> float:
        """Return when a registry without starts left has some again."""
        starts = self._starts.get(registry)
        return (starts[0] if starts else self._began) + RATE_SECONDS

    def note_pulled(self, scope: str, node_uid: str, image: str, instant: float) -> None:
        """Note that a node has got an image, by full name."""
        for failed in (scope, node_uid):
            self._failures.pop((failed, image), None)
        for known, key, most in (
            (self._known, (node_uid, image), _KNOWN_MAX),
            (self._succeeded, (scope, image), _FAILURES_MAX),
        ):
            known.pop(key, None)
            known[key] = instant
            if len(known) > most:
                del known[next(iter(known))]

    def has(self, node_uid: str, image: str, instant: float, seconds: float) -> bool:
        """True where a node got an image at most so long ago."""
        at = self._known.get((node_uid, image))
        return at is not None and instant < at + seconds

    def note_reported(self, node_uid: str, image: str) -> None:
        """Note that a node reports an image: from now on it is there as long as the node says."""
        if (node_uid, image) in self._known:
            self._known[node_uid, image] = float("-inf")

    def left_alone_until(
        self, node_uid: str, image: str, *, policy: ImagesPolicy, instant: float
    ) -> float:
        """Return until when a node is not asked for an image that it does not have; 0: it may be.

        A kubelet that removes what was pulled has no room for it. It is asked again after a time
        that doubles, and begins at the shortest once an image has stayed for the longest.
        """
        key, before = (node_uid, image), self._removals.pop((node_uid, image), None)
        if self._known.pop(key, None) is not None:
            is_new = before is None or instant >= before.until + policy.retry_seconds_max
            count = 1 if before is None or is_new else before.count + 1
            wait = min(policy.retry_seconds * 2 ** min(count, 32), policy.retry_seconds_max)
            before = PullFailure(count, instant + wait, "")
        if before is None:
            return 0.0
        self._removals[key] = before
        if len(self._removals) > _FAILURES_MAX:
            del self._removals[next(iter(self._removals))]
        return before.until

    def note_failure(
        self, scope: str, node_uid: str, image: str, message: str, *, policy: ImagesPolicy,
        instant: float, is_of_node: bool = False,
    ) -> None:  # fmt: skip
        """Note that a node could not get an image.

        Where it was got elsewhere not long ago, or `is_of_node`, that says something of the node
        alone. Else the image is left alone on all nodes, and this node is not the next to try.
        """
        succeeded = self._succeeded.get((scope, image))
        seconds = policy.retry_seconds, policy.retry_seconds_max
        self._fail((node_uid, image), message, instant, (2 * seconds[0], seconds[1]))
        if is_of_node or (succeeded and instant < succeeded + policy.believed_seconds):
            return
        self._fail((scope, image), message, instant, seconds)

    def _fail(
        self, key: tuple[str, str], message: str, instant: float, seconds: tuple[int, int]
    ) -> None:
        before = self._failures.pop(key, None)
        if before is None or instant >= before.until:
            count = 1 if before is None else before.count + 1
            wait = min(seconds[0] * 2 ** min(count - 1, 32), seconds[1])
            before = PullFailure(count, instant + wait, message)
        self._failures[key] = before
        if len(self._failures) > _FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    def failure(self, scope: str, image: str) -> PullFailure | None:
        """Return the last failure of an image that was not pulled since: by whom, or on a node."""
        return self._failures.get((scope, image))
