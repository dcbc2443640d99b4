"""What a decision takes from earlier ones: the answers that it uses without working them out.

A decision depends on the objects, the policy and the instant, and on what the planner remembers:
verdicts that are not due yet, searches that found nothing, jobs that are left alone after a fault.
That memory refers to versions of columns, which mean nothing in another process. Its answers do: a
decision looks at a bounded number of jobs, and `Recall` has the answer that each of them got. With
the answers of a decision given, a state that was built from the same objects decides the same.

Stages ask a `PlanMemory` and give it what is known now; which of the two answers, they do not see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import msgspec

from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Fact, ObjectKey, Verdict

#: Pass, job and number of reservations (-1: a repair) of a gang whose search failed.
Failure: TypeAlias = tuple[int, ObjectKey, int]


class StandingVerdict(msgspec.Struct, frozen=True):
    """What was said of a job, and not made again."""

    job: ObjectKey
    reason: Reason
    facts: Mapping[str, Fact] = {}


class Recall(msgspec.Struct, rename="camel"):
    """The answers that one decision took from memory, by the job that they were about."""

    #: The jobs whose written verdict was missing or out of date, as far as they were looked at.
    unwritten: list[ObjectKey] = []
    #: Verdicts that were not made again.
    verdicts: list[StandingVerdict] = []
    #: Jobs over which an earlier decision raised.
    left_alone: list[ObjectKey] = []
    #: Jobs for which an earlier search found no victims.
    no_victims: list[ObjectKey] = []
    #: The first jobs of the groups that had their turn to look for borrowers of their team's nodes.
    sought: list[ObjectKey] = []
    #: Nodes that earlier searches have tried to empty; None: the decision tried none.
    tried_nodes: list[str] | None = None
    #: For each pass of the fit stage: None where it looked at all groups that may fit, else the
    #: first jobs of the groups whose turn it was.
    tried: list[list[ObjectKey] | None] = []
    #: Gangs that were not tried again, as they had failed; empty unless the decision tried as many
    #: as it may, since these made room.
    failed: list[Failure] = []


class PlanMemory:
    """What earlier decisions of this process have found; `recall` takes what is used of it."""

    def __init__(self, recall: Recall | None = None) -> None:
        self.recall = recall or Recall()
        #: The jobs in three lists of it.
        self._judged, self._left, self._hopeless = (set[ObjectKey]() for _ in range(3))

    def unwritten(self, find: Callable[[], list[ObjectKey]]) -> list[ObjectKey]:
        """Return the jobs whose written verdict is missing or out of date, as `find` finds them."""
        found = find()
        self.recall.unwritten.extend(found)
        return found

    def verdict(
        self, key: ObjectKey, standing: Callable[[], Verdict | None], *, is_new: bool
    ) -> Verdict | None:
        """Return the verdict on a job that stands; None where it is to be made.

        `is_new` for one that this decision has made itself, over a job of the same shape.
        """
        found = standing()
        if found is not None and not is_new and _enters(self._judged, key):
            self.recall.verdicts.append(StandingVerdict(key, found.reason, found.facts))
        return found

    def is_left_alone(self, key: ObjectKey, *, has_faulted: bool) -> bool:
        """True for a job over which an earlier decision raised, while nothing has changed."""
        if has_faulted and _enters(self._left, key):
            self.recall.left_alone.append(key)
        return has_faulted

    def has_no_victims(self, key: ObjectKey, *, is_known: bool) -> bool:
        """True for a job for which an earlier search found no victims."""
        if is_known and _enters(self._hopeless, key):
            self.recall.no_victims.append(key)
        return is_known

    def sought(self, choose: Callable[[], list[ObjectKey]]) -> list[ObjectKey]:
        """Return the first jobs of the groups that have their turn to look for borrowers."""
        chosen = choose()
        self.recall.sought.extend(chosen)
        return chosen

    def tried_nodes(self, find: Callable[[], list[str] | None]) -> list[str] | None:
        """Return the nodes that were tried to be emptied; None: none is tried now."""
        self.recall.tried_nodes = find()
        return self.recall.tried_nodes

    def turn(self, _number: int) -> Collection[ObjectKey] | None:
        """Return the first jobs of the groups whose turn it is in a pass; None: as the queue says.

        The numbers of passes begin at 0.
        """
        return None

    def note_turn(self, firsts: list[ObjectKey] | None) -> None:
        """Keep the first jobs of the groups of a pass; None where it looks at all that may fit."""
        self.recall.tried.append(firsts)

    def has_failed(self, failure: Failure, *, is_known: bool) -> bool:
        """True for a search that failed before, and would fail again."""
        if is_known:
            self.recall.failed.append(failure)
        return is_known

    def forget_failures(self) -> None:
        """Take it that the decision tried all that it would: no failure has made room."""
        self.recall.failed.clear()


class GivenMemory(PlanMemory):
    """What the memory of another decision has answered, on the same objects."""

    def __init__(self, given: Recall) -> None:
        super().__init__()
        self._given = given
        self._failed = frozenset(given.failed)
        self._alone, self._without = frozenset(given.left_alone), frozenset(given.no_victims)
        self._verdicts = {each.job: Verdict(each.reason, each.facts) for each in given.verdicts}

    def unwritten(self, find: Callable[[], list[ObjectKey]]) -> list[ObjectKey]:
        """Return the jobs that were unwritten then."""
        return self._given.unwritten

    def verdict(
        self, key: ObjectKey, standing: Callable[[], Verdict | None], *, is_new: bool
    ) -> Verdict | None:
        """Return the verdict that stood then; one that this decision has made itself stands."""
        if is_new and key not in self._verdicts:
            return standing()
        return self._verdicts.get(key)

    def is_left_alone(self, key: ObjectKey, *, has_faulted: bool) -> bool:
        """True for a job that was left alone then."""
        return key in self._alone

    def has_no_victims(self, key: ObjectKey, *, is_known: bool) -> bool:
        """True also for a job for which it was known then."""
        return is_known or key in self._without

    def sought(self, choose: Callable[[], list[ObjectKey]]) -> list[ObjectKey]:
        """Return those that had their turn then."""
        return self._given.sought

    def tried_nodes(self, find: Callable[[], list[str] | None]) -> list[str] | None:
        """Return the nodes that had been tried then."""
        return self._given.tried_nodes

    def turn(self, number: int) -> Collection[ObjectKey] | None:
        """Return the first jobs of the groups that a pass looked at then; None for all."""
        tried = self._given.tried
        due = tried[number] if number < len(tried) else None
        return None if due is None else frozenset(due)

    def has_failed(self, failure: Failure, *, is_known: bool) -> bool:
        """True also for a search that had failed then."""
        return is_known or failure in self._failed


def _enters(noted: set[ObjectKey], key: ObjectKey) -> bool:
    """True for a job that was not there; now it is."""
    is_new = key not in noted
    noted.add(key)
    return is_new
