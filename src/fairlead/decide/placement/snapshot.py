"""All that one decision depends on, as values, and the decision made from them again.

    objects       what the mirrors held
    policy, levels, now, contains_faults
    carried       what the process knew beside the objects
    recall        the answers that were taken from memory (`decide/placement/desk/memory.py`)

`replay` builds a state from the objects and decides once, with the code that every cycle runs. The
actions are the same, to the bit: places are chosen by names, never by the order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.decide.placement.actions import Action
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import GivenMemory, Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.asks.topology import Level
from fairlead.model.claimed.device_asks import DeviceKind
from fairlead.model.holdings.team_use import SavedSums
from fairlead.model.objects import Objects


class CarriedState(msgspec.Struct, frozen=True, rename="camel"):
    """What the process of a scheduler knows that no object shows."""

    #: What teams have used: of the dominant resource, and GPU-seconds.
    shares: SavedSums = SavedSums()
    gpu_seconds: SavedSums = SavedSums()
    #: Jobs whose last write was refused.
    write_blocked: tuple[ObjectKey, ...] = ()
    #: Placements whose write had no answer.
    uncertain: tuple[tuple[ObjectKey, Placement], ...] = ()
    #: Placements that count as given back, and whether until the job ends.
    forfeited: tuple[tuple[ObjectKey, bool], ...] = ()
    #: Since when room is kept for waiting jobs.
    kept_since: tuple[tuple[ObjectKey, float], ...] = ()
    #: The kinds of devices that it knew of which there are; None: all that jobs ask for.
    device_kinds: tuple[DeviceKind, ...] | None = None

    @classmethod
    def of(cls, state: PlacementState) -> CarriedState:
        """Return what a state holds now."""
        cluster = state.cluster
        return cls(
            cluster.uses.shares.save(), cluster.uses.gpu_seconds.save(),
            tuple(state.write_blocked), tuple(cluster.uncertain.items()),
            tuple(cluster.forfeited.items()), tuple(state.kept_since.items()),
            cluster.devices.kinds,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All inputs of one decision."""

    now: float
    objects: Objects = field(default_factory=Objects)
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    levels: tuple[Level, ...] = ()
    carried: CarriedState = field(default_factory=CarriedState)
    recall: Recall = field(default_factory=Recall)
    contains_faults: bool = False


def replay(snapshot: Snapshot) -> Decision[Action]:
    """Return the decision on a snapshot.

    With `contains_faults` objects that cannot be taken in are left out; else what they raise is
    raised.
    """
    state = _state(snapshot)
    return decide(
        state, snapshot.policy, snapshot.now, contains_faults=snapshot.contains_faults,
        memory=GivenMemory(snapshot.recall),
    )  # fmt: skip


def _state(snapshot: Snapshot) -> PlacementState:
    objects, carried = snapshot.objects, snapshot.carried
    contains = snapshot.contains_faults
    cluster = objects.state(snapshot.levels, contains=contains)
    if carried.device_kinds is not None:
        cluster.devices.count_only(carried.device_kinds)
    cluster.uses.shares.load(carried.shares)
    cluster.uses.gpu_seconds.load(carried.gpu_seconds)
    for key, is_final in carried.forfeited:
        if key in cluster.jobs:
            cluster.forfeit(cluster.jobs[key].job, is_final=is_final)
    state = PlacementState(cluster, contain=_leave_out if contains else None)
    for key, placement in carried.uncertain:
        if key in cluster.jobs:
            state.book_uncertain(cluster.jobs[key].job, placement)
    state.kept_since.update(carried.kept_since)
    state.write_blocked.update(dict.fromkeys(carried.write_blocked))
    return state


def _leave_out(_job: Job, _error: Exception) -> None:
    """Take no notice: the job is not in the state."""
