"""What controllers that decide object by object have in common.

Handlers of the mirrors `mark` the objects to look at again; `decide` takes what is marked or due,
decides on each object alone, and collects the results. Ten thousand objects that nothing happens to
add nothing to a cycle. A fault over one object stays with that object: it is set aside and looked
at again when it changes, or after a delay that doubles.

An action on a part of an object (a pod of a job) has a key of its own (`part_key`), so that parts
are acted on side by side; `requeue` finds the object again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fairlead.api.meta import ObjectMeta
from fairlead.decide.verdict import Decision, ObjectKey, Verdict
from fairlead.runtime.clock import loop_time
from fairlead.runtime.queue import KeyQueue
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.set_aside import AsideEntry, AsideStage, SetAside

A = TypeVar("A")
#: A clock that is set back by less only delays what is due.
_SET_BACK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class KeyedOptions:
    """Bounds of one cycle; what is left over begins the next one, which starts at once."""

    #: Objects that one cycle looks at.
    keys_max: int = 512
    #: Actions of one cycle after which no further object is looked at.
    actions_max: int = 4096
    #: Longest delay before an object that cannot be decided on is tried again.
    retry_seconds_max: float = 600.0


class KeyedDecider(Generic[A]):
    """The queue of one controller's objects, and the decision over those that are marked or due."""

    def __init__(
        self,
        mirror: Mirror[Any],
        decide_one: Callable[[ObjectKey, float], Decision[A] | None],
        *,
        set_aside: SetAside,
        on_fault: Callable[[AsideEntry, float], Sequence[A]] | None = None,
        options: KeyedOptions | None = None,
        instant: Callable[[], float] | None = None,
    ) -> None:
        """Decide on objects of `mirror`, by key, with `decide_one`; None: nothing to decide on.

        `on_fault` returns the actions that report an object that was set aside. `instant` returns
        seconds that are never set back: without it, the running loop's time.
        """
        self._mirror = mirror
        self._decide_one = decide_one
        self._set_aside = set_aside
        self._on_fault = on_fault
        self._options = options or KeyedOptions()
        self._queue = KeyQueue[ObjectKey]()
        self._instant = instant or loop_time
        #: What the wall clock shows beyond that, as of the last cycle.
        self._clock_offset = float("-inf")

    def mark(self, key: ObjectKey) -> None:
        """Look at an object in the next cycle."""
        self._queue.add(key)

    def mark_at(self, key: ObjectKey, instant: float) -> None:
        """Look at an object at an instant, or earlier when it is marked."""
        self._queue.add_at(key, instant)

    def requeue(self, key: ObjectKey) -> None:
        """Look again at the object that a key of an action belongs to (`Controller.changed`)."""
        namespace, name = key
        whole = name.partition("/")[0]
        if whole:
            self._queue.add((namespace, whole))

    def due_at(self) -> float | None:
        """Return when the next object is due: 0.0 when one is marked, None when there is none."""
        return 0.0 if len(self._queue) else self._queue.wake_at()

    def decide(self, now: float) -> Decision[A]:
        """Decide on the objects that are marked or due, in key order.

        After the wall clock was set back also on those that are due later: by as much too late.
        """
        offset = now - self._instant()
        if offset < self._clock_offset - _SET_BACK_SECONDS:
            self._queue.add_timed()
        self._clock_offset = offset
        actions: list[A] = []
        verdicts: dict[ObjectKey, Verdict] = {}
        for key in sorted(self._queue.pop(now, self._options.keys_max)):
            if len(actions) >= self._options.actions_max:
                self._queue.add(key)
                continue
            decision = self._contained(key, now)
            if decision is None:  # it is gone, and so is what it waited for
                self._queue.discard(key)
                continue
            actions.extend(decision.actions)
            verdicts.update(decision.verdicts)
            if decision.wake_at is not None:
                self._queue.add_at(key, decision.wake_at)
        wake_at = now if len(self._queue) else self._queue.wake_at()
        return Decision(tuple(actions), verdicts, wake_at)

    def _contained(self, key: ObjectKey, now: float) -> Decision[A] | None:
        resource = self._mirror.resource
        try:
            decision = self._decide_one(key, now)
        except Exception as error:  # noqa: BLE001 - over one object, so it is that object's
            found = self._mirror.get(*key)
            metadata = found.metadata if found is not None else ObjectMeta(key[1], namespace=key[0])
            entry = self._set_aside.note(resource, metadata, AsideStage.DECIDE, error)
            delay = min(2.0 ** min(entry.count, 20), self._options.retry_seconds_max)
            reports = self._on_fault(entry, now) if self._on_fault is not None else ()
            return Decision(tuple(reports), wake_at=now + delay)
        if decision is not None:
            self._set_aside.clear(resource, key, AsideStage.DECIDE)
        return decision


class KeyedController(Generic[A]):
    """What a controller has that decides by nothing but its decider (`loop.Controller`)."""

    _decider: KeyedDecider[A]

    def decide(self, now: float) -> Decision[A]:
        """Decide on the objects that changed or are due."""
        return self._decider.decide(now)

    def due_at(self) -> float | None:
        """Return when there is something to decide."""
        return self._decider.due_at()

    def changed(self, key: ObjectKey) -> None:
        """Look again at the object that a key of an action belongs to."""
        self._decider.requeue(key)


def part_key(key: ObjectKey, part: str) -> ObjectKey:
    """Return the key of actions on one part of an object; its actions run in order."""
    namespace, name = key
    return (namespace, f"{name}/{part}")
