"""What the planner says of a job, as values: they go over the wire, and the command line reads them
without loading the planner.

`explain.py` makes explanations, `forecast.py` and `expected_start.py` what is foreseen of a start,
`suggestions.py` what would change it.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from fairlead.api.jobs.placement import Placement
from fairlead.api.values.quantity import humanize
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.backoff import BorrowerBackOff
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.decide.words import duration, resource_word

#: Jobs of each list that are shown.
AHEAD_MAX = HOLDERS_MAX = WAITS_FOR_MAX = VOLUMES_MAX = CLAIMED_NODES_MAX = 10
#: Ends that a forecast looks at; a job behind more of them gets none.
ENDS_MAX = 500
#: The least time that a job takes.
RUN_SECONDS_MIN = 1.0


class Amounts(msgspec.Struct, frozen=True):
    """One resource in base units: what the gang asks in all, what is free for it, what there is.

    `short` is `asked - free` where that is above zero, else 0.
    """

    resource: str
    asked: int
    free: int
    total: int
    short: int

    @property
    def message(self) -> str:
        """E.g. "GPUs: asks 64, 44 of 72 are free, 20 short"."""
        asked, free, total = (
            humanize(self.resource, n) for n in (self.asked, self.free, self.total)
        )
        text = f"{resource_word(self.resource)}: asks {asked}, {free} of {total} are free"
        return f"{text}, {humanize(self.resource, self.short)} short" if self.short else text


class Ahead(msgspec.Struct, frozen=True):
    """The job's place in the queue; `jobs` are those nearest the head, at most AHEAD_MAX."""

    position: int
    waiting: int
    jobs: tuple[ObjectKey, ...]


class Holder(msgspec.Struct, frozen=True):
    """A job that holds what this one needs; `ends_at` by its time limit, None without one."""

    key: ObjectKey
    resource: str
    amount: int
    nodes: int
    ends_at: float | None


class VolumePlace(msgspec.Struct, frozen=True):
    """A claim of the job, its volume, "" while it has none, and labels of nodes that reach that."""

    claim: str
    volume: str
    reach: str


class ClaimHolder(msgspec.Struct, frozen=True):
    """A claim that has devices beside those that members have by their places, and the first pods
    that it is reserved for, at most HOLDERS_MAX.
    """

    key: ObjectKey
    devices: int
    pods: tuple[str, ...]


class ClaimedPlace(msgspec.Struct, frozen=True):
    """On how many of the nodes that the job may use there are any of the devices that its claims
    ask for, or volumes of a driver can be attached, and on how many one more is free.

    `free_on` and `taken_on` are the first of those with and without one that is free, at most
    CLAIMED_NODES_MAX each; `holders` the first claims that pods share, or of pods that are over,
    with such devices, at most HOLDERS_MAX.
    """

    resource: str
    nodes: int
    free_nodes: int
    free_on: tuple[str, ...] = ()
    taken_on: tuple[str, ...] = ()
    holders: tuple[ClaimHolder, ...] = ()


class OverduePod(msgspec.Struct, frozen=True):
    """A pod that was to be gone at `since`, and still uses its node."""

    key: ObjectKey
    node: str
    since: float


class UnknownBound(Enum):
    """Why there is no bound, in words."""

    NO_TIME_LIMIT = "a job that holds the room, or is ahead, has no time limit"
    RESTARTING = "a job that holds the room restarts"
    PREEMPTING = "a job of higher priority preempts others first"
    DEPENDENT = "a job that waits for another one may come first"
    NO_ROOM = "the ends of all jobs together do not make room for it"
    TOO_MANY = f"more than {ENDS_MAX} jobs end before"
    TOO_LONG = "to look so far ahead takes the controllers too long"


class Forecast(msgspec.Struct, frozen=True, tag_field="kind"):
    """By when the gang starts under the assumptions of `forecast.py`."""

    may_start_by: float
    #: The last jobs on nodes that it could use whose end it waits for, the latest first, at most
    #: WAITS_FOR_MAX.
    waits_for: tuple[ObjectKey, ...]


class PreemptionAhead(msgspec.Struct, frozen=True, tag_field="kind", tag="Preemption"):
    """Jobs of lower priority have to give their nodes to the gang, from an instant on.

    Without victims the gang gets nodes that others leave anyway.
    """

    begins_at: float
    victims: tuple[ObjectKey, ...]
    #: How many nodes of the gang's own team each victim borrows.
    borrowed: tuple[int, ...] = ()
    #: When the victims have ended; None where one may save a checkpoint first, or cannot be known.
    ends_by: float | None = None


class ExpectedStart(msgspec.Struct, frozen=True):
    """The earliest and latest start of all draws and the one in the middle, as instants."""

    earliest: float
    median: float
    latest: float
    #: Past jobs whose run times were learned from.
    past_jobs: int

    def says_more(self, now: float, bound: float | None) -> bool:
        """True unless it says no more than that the job starts between now and the bound."""
        if bound is None or self.latest < bound:
            return True
        return now + RUN_SECONDS_MIN < self.earliest < bound


class Suggestion(msgspec.Struct, frozen=True):
    """A change under which the gang would start; it was tried.

    `change` is what to set: `count` of a role, the amount of a resource per member in base units,
    `time`, the limit of the whole job in seconds, or `reservation`, a name.
    """

    role: str
    change: str
    #: None where nothing was set.
    before: int | None
    after: int | str
    #: When it starts then; None: now.
    at: float | None = None

    @property
    def message(self) -> str:
        """E.g. "5 instead of 8 members of role worker: starts now"."""
        starts = "starts now" if self.at is None else f"starts at {format_time(self.at)}"
        if isinstance(self.after, str):
            return f"nodes that its team has reserved: {starts}"
        if self.change == "count":
            return f"{self.after} instead of {self.before} members of role {self.role}: {starts}"
        if self.change == "time":
            return f"a time limit of at most {duration(self.after)}: {starts}"
        assert self.before is not None
        after, before = humanize(self.change, self.after), humanize(self.change, self.before)
        word = resource_word(self.change)
        return f"{after} instead of {before} {word} per member of role {self.role}: {starts}"


class Explanation(msgspec.Struct, frozen=True):
    """The answer, part by part; parts that do not apply are empty or None."""

    job: ObjectKey
    verdict: Verdict
    #: Since when the status says so, None when it says something else or nothing.
    since: float | None
    arithmetic: tuple[Amounts, ...] = ()
    #: Where its volumes can be reached from some nodes only, at most VOLUMES_MAX.
    volumes: tuple[VolumePlace, ...] = ()
    #: Where there are devices that its claims ask for, and what its volumes' drivers attach.
    claimed: tuple[ClaimedPlace, ...] = ()
    ahead: Ahead | None = None
    holders: tuple[Holder, ...] = ()
    #: Of a job that stops its own pods, of one that waits those on nodes that it could use.
    overdue: tuple[OverduePod, ...] = ()
    forecast: Forecast | PreemptionAhead | UnknownBound | None = None
    #: By the run times of past jobs, where that was asked and they say more than the forecast.
    expected: ExpectedStart | None = None
    suggestions: tuple[Suggestion, ...] = ()
    #: Of a job that may not borrow nodes of other teams for now.
    borrower_backoff: BorrowerBackOff | None = None
    #: Where it would start now, of a job that is asked about as if it were submitted so.
    place: Placement | None = None


class Alternatives(msgspec.Struct, frozen=True, rename="camel"):
    """What could be asked instead of what the nodes can never hold; empty: nothing is known."""

    #: Role and key of taints that keep its members from nodes that their selector allows.
    taints: tuple[tuple[str, str], ...] = ()
    #: The levels of the topology, where the one that is asked for does not exist.
    levels: tuple[str, ...] = ()
    #: The next wider level that would hold the gang.
    wider_level: str = ""
    #: With so many members, each with all GPUs of the largest node, it would fit.
    spread_members: int = 0
