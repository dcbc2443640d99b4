"""How long members work on a step by themselves, as they report it, and how a role compares.

A gang that exchanges data in each step is as slow as its slowest member, so all of its members take
equally long for a step. What differs is the part of a step in which a member waits for no other
one. Members report that part (`fairlead.member.progress`), and it is compared within a role: others
may do other work.

Members write this, so it proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import msgspec

from fairlead.api.values.bounds import STEP_MAX

#: Shorter or longer is no part of a step.
SECONDS_MIN, SECONDS_MAX = 1e-6, 1e6
_SPAN_SECONDS_MAX = 1e9
_LENGTH_MAX = 200
#: Members of a role that are compared at least: of fewer it is not clear which one is slow.
MEMBERS_MIN = 4
#: Who has reported fewer steps is not compared yet.
_STEPS_MIN = 10
#: The slowest of each role that are known by name.
SLOWEST_MAX = 8
#: They are compared again once this part of the members has reported.
_ROUND_SHARE = 8
#: Members of an attempt that are kept: as many as a gang has, also where forged pods come and go.
KEPT_MAX = 20_000


class OwnWork(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The own work of the latest steps of a member: the median of one, how many they were, and how
    long they took with all that is between them.
    """

    seconds: float
    steps: int
    span_seconds: float

    @property
    def is_sound(self) -> bool:
        """False for what no program measures."""
        is_step = SECONDS_MIN <= self.seconds <= SECONDS_MAX and 1 <= self.steps <= STEP_MAX
        return is_step and 0 <= self.span_seconds <= _SPAN_SECONDS_MAX


def encode_work(work: OwnWork) -> str:
    """Return the text of the annotation."""
    return msgspec.json.encode(work).decode()


def work_of(value: object) -> OwnWork | None:
    """Return what a value of a line says; None when it says nothing that can be used: a line may
    have a word of this name for its own purposes.
    """
    try:
        work = msgspec.convert(value, OwnWork)
    except ValueError:
        return None
    return work if work.is_sound else None


def decode_work(text: str) -> OwnWork | None:
    """Return what an annotation says; None when it says nothing that can be used."""
    if len(text) > _LENGTH_MAX:
        return None
    try:
        return work_of(msgspec.json.decode(text))
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class RoleWork:
    """A role: how many members are compared, the median of their own work in seconds, the median
    distance from it (MAD), and the slowest members by index, the slowest first.
    """

    role: str
    count: int
    median: float
    deviation: float
    slowest: tuple[tuple[int, OwnWork], ...]


def compare(works: Mapping[str, Mapping[int, OwnWork]]) -> tuple[RoleWork, ...]:
    """Return each role of which enough members are compared, by name.

    `works` is by role and index.
    """
    out: list[RoleWork] = []
    for role, members in sorted(works.items()):
        known = [(i, work) for i, work in members.items() if work.steps >= _STEPS_MIN]
        if len(known) < MEMBERS_MIN:
            continue
        middle = median(work.seconds for _, work in known)
        deviation = median(abs(work.seconds - middle) for _, work in known)
        known.sort(key=lambda each: (-each[1].seconds, each[0]))
        out.append(RoleWork(role, len(known), middle, deviation, tuple(known[:SLOWEST_MAX])))
    return tuple(out)


class WorkTimes:
    """What the members of one attempt report, pods that are gone included.

    They are compared again once an eighth of them has reported, so a report costs about the same in
    any gang.
    """

    def __init__(self) -> None:
        self._works: dict[str, dict[int, OwnWork]] = {}
        self._count = 0
        self._changes = 0
        self._roles: tuple[RoleWork, ...] = ()

    def take(self, role: str, index: int, work: OwnWork) -> None:
        """Take in what a member reports, in place of what it said before."""
        before = self._works.get(role, {}).get(index)
        if before == work:
            return
        if before is None:
            if self._count >= KEPT_MAX:
                return
            self._count += 1
        self._works.setdefault(role, {})[index] = work
        self._changes += 1

    @property
    def roles(self) -> tuple[RoleWork, ...]:
        """The roles as of now, or as of some reports ago."""
        if self._changes and self._changes >= self._count // _ROUND_SHARE:
            self._changes, self._roles = 0, self.compared()
        return self._roles

    def compared(self) -> tuple[RoleWork, ...]:
        """Return the roles as of now."""
        return compare(self._works)
