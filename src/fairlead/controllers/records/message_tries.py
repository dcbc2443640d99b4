"""The tries of one process to send messages: which are on their way, how they ended, whose turn it
is. Notices of jobs and tickets of nodes are both sent so, by the same sender; the key is that of
their object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from fairlead.decide.notices import Delivery, NoticesPolicy, Post, TryOutcome, TryReason, Turns
from fairlead.decide.verdict import Decision, ObjectKey, earliest
from fairlead.runtime.keyed_controller import KeyedDecider

K = TypeVar("K", bound=Hashable)
W = TypeVar("W")
A = TypeVar("A")


class NoticeSender(Protocol):
    """Sends one letter; the simulator has its own."""

    async def send(self, delivery: Delivery) -> TryOutcome:
        """Send it, once, and return how that ended; within the policy's `try_seconds_max`."""
        ...

    async def post_ticket(self, post: Post) -> TryOutcome:
        """Send the ticket of a node in the same way; without a URL to that of a file."""
        ...


class MessageTries(Generic[K]):
    """`K` tells one try of one message of an object from others."""

    def __init__(
        self,
        policy: NoticesPolicy,
        mark: Callable[[ObjectKey], None],
        counted: Callable[[TryReason], None],
    ) -> None:
        """`mark` has an object looked at; `counted` is called with how each try ended."""
        self._mark, self._counted = mark, counted
        self._turns = Turns(policy)
        self._sending: set[ObjectKey] = set()
        #: How those ended whose messages are not settled.
        self._outcomes: dict[ObjectKey, dict[K, TryOutcome]] = {}

    def is_sending(self, key: ObjectKey) -> bool:
        """True while a try for an object is on its way."""
        return key in self._sending

    def outcomes(self, key: ObjectKey, is_past: Callable[[K], bool]) -> Mapping[K, TryOutcome]:
        """Return how tries for an object ended, and drop those that are past."""
        outcomes = self._outcomes.get(key, {})
        for known in [each for each in outcomes if is_past(each)]:
            del outcomes[known]
        return outcomes

    def has_turn(self, key: ObjectKey, now: float, *, wants: bool) -> bool:
        """Return whether the object may send now; one that does not want to gives its turn back."""
        if key in self._sending:
            return False
        if not wants:
            self._turns.release(key)
            return False
        return self._turns.take(key, now)

    def due_at(self, decider: KeyedDecider[Any], now: float) -> float | None:
        """Return when something is to be decided; None: when an object changes, or a turn ends."""
        return earliest(decider.due_at(), self._turns.wake_at(now))

    def decide(self, decider: KeyedDecider[A], now: float) -> Decision[A]:
        """Decide on the objects that are marked or due, and on those whose turn it is by now."""
        for key in self._turns.granted(now):
            self._mark(key)
        decision = decider.decide(now)
        return replace(decision, wake_at=earliest(decision.wake_at, self._turns.wake_at(now)))

    def forget(self, key: ObjectKey) -> None:
        """Drop what is known of an object that sends nothing any more."""
        self._outcomes.pop(key, None)
        if key not in self._sending:
            self._turns.release(key)

    async def send(
        self,
        key: ObjectKey,
        of_try: K,
        write: Awaitable[W],
        attempt: Callable[[], Awaitable[TryOutcome]],
    ) -> W:
        """Write that a try begins, and then make it."""
        self._sending.add(key)
        try:
            written = await write
            outcome = await attempt()
            self._counted(outcome.reason)
            self._outcomes.setdefault(key, {})[of_try] = outcome
            return written
        finally:
            self._sending.discard(key)
            self._turns.release(key)
            self._mark(key)
