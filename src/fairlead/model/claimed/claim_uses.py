"""Which members of a job ask for the devices of a claim, and which of its jobs gets them first.

Each member asks for a claim that is made for it. A claim that members share has its devices once:

    its job has one member      that member asks for them
    all members name the claim  those of the role with the fewest, together; the gang is on one node
    only some of them do        the job waits until another pod has got the devices

Of the jobs that share a claim without devices, those that hold nodes come first, then those of one
member, which any gang can follow to the node of the devices, then gangs, by priority and age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import TypeAlias

from msgspec import Struct

from fairlead.api.jobs.job import Job
from fairlead.model.claimed.device_asks import ClaimName, DeviceAsk, DeviceClaims, DeviceKind
from fairlead.model.claimed.volumes import Turn
from fairlead.model.gang.gangs import JobKey

#: When a job gets a claim that it shares with others; the smallest comes first.
_SharedTurn: TypeAlias = tuple[bool, bool, int, str, JobKey]


class ClaimUse(Struct, frozen=True):
    """How a job uses a claim."""

    #: When the job was created.
    at: str
    members: int
    #: None: it does not ask for a shared claim now, or each member has its own.
    turn: _SharedTurn | None = None
    #: Of a shared claim: the index of the role whose members ask for the devices, and how many do;
    #: (-1, 0) where the gang cannot be placed before these are known.
    asked_by: tuple[int, int] = (-1, 0)


def uses_of(job: Job, claims: DeviceClaims, turn: Turn = None) -> dict[ClaimName, ClaimUse]:
    """Return how a job uses each claim; `turn` is when it gets what it shares with other jobs."""
    members = Counter[ClaimName]()
    for role, names in zip(job.spec.roles, claims, strict=True):
        members.update(dict.fromkeys(names, role.count))
    at = job.metadata.creation_timestamp or ""
    return {
        name: _shared_use(job, claims, name, ClaimUse(at, count), turn=turn)
        if name.is_shared
        else ClaimUse(at, count)
        for name, count in members.items()
    }


def _shared_use(
    job: Job, claims: DeviceClaims, name: ClaimName, use: ClaimUse, *, turn: Turn
) -> ClaimUse:
    roles = [(role.least, i) for i, role in enumerate(job.spec.roles) if name in claims[i]]
    if use.members > 1 and (len(roles) < len(claims) or _has_other_domain(job)):
        return use
    least, index = min(roles)
    shared_turn = None if turn is None else (turn[0], use.members > 1, *turn[1:])
    return ClaimUse(use.at, use.members, shared_turn, (index, least))


def _has_other_domain(job: Job) -> bool:
    """True for a gang that has to be in a domain, or in slices, of its own choice."""
    asked = job.spec.topology
    return asked is not None and bool((asked.required and asked.key) or asked.slice_size)


def first_of(uses: Iterable[ClaimUse]) -> JobKey | None:
    """Return the job that gets the devices of a claim before all others that use it, if any."""
    turns = [each.turn for each in uses if each.turn is not None]
    return min(turns)[-1] if turns else None


def shared_asks(asks: tuple[DeviceAsk, ...], sharers: int) -> tuple[DeviceAsk, ...] | None:
    """Return what each of so many members asks for where they have devices together; None for what
    is not counted so: alternatives, all devices of a node, devices that are alike or differ.
    """
    if sharers == 1:
        return asks
    if any(ask.kind.is_made_up for ask in asks):
        return None
    return tuple(DeviceAsk(DeviceKind(options=(ask,), sharers=sharers), 1) for ask in asks)


def kinds_of(asks: tuple[DeviceAsk, ...], uses: Iterable[ClaimUse]) -> dict[DeviceKind, None]:
    """Return the kinds that jobs ask for by a claim, each after those that it is made up of."""
    counts = dict.fromkeys(use.asked_by[1] for use in uses)
    shared = chain.from_iterable(shared_asks(asks, n) or () for n in counts if n > 1)
    return dict.fromkeys(kind for ask in (*asks, *shared) for kind in ask.kind.parts)
