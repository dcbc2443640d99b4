"""Levels of the network, and what a gang asks of them.

A level is a name for a node label whose values are its domains: zone, superpod, block, rack, NVLink
domain, host. An administrator lists the levels, widest first; a job names a level of the list, or a
label. What a job asks becomes a ladder of levels, narrowest first: the planner takes the first one
that has a domain with room for the whole gang. The last one must hold; "" there means any nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace

from fairlead.api.jobs.topology import Topology
from fairlead.api.names import BLOCK, HOSTNAME, RACK, ZONE


class Level(Struct, frozen=True, cache_hash=True):
    """A level: its name, and the label whose values are its domains."""

    name: str
    key: str


#: No level: all nodes are one domain.
ANYWHERE = Level("", "")
#: What a cluster has that is configured with no other.
DEFAULT_LEVELS = (
    Level("zone", ZONE), Level("block", BLOCK), Level("rack", RACK), Level("host", HOSTNAME)
)  # fmt: skip


class TopologyRequest(Struct, frozen=True, cache_hash=True, dict=True):
    """What a gang asks of the topology.

    `ladder` are the levels of which one domain may hold the gang, narrowest first. Every
    `slice_size` consecutive members of a role are in one domain of `slice_level`; its last members
    may be fewer. Ranks follow `path`, label keys, widest first.
    """

    ladder: tuple[Level, ...] = (ANYWHERE,)
    #: How long the first level of the ladder is the only one.
    preferred_seconds: int = 0
    slice_level: Level = ANYWHERE
    slice_size: int = 1
    path: tuple[str, ...] = ()
    #: True while the gang waits for the level that it prefers: `ladder` has no other.
    is_patient: bool = False
    #: The ladder once it has waited.
    later: tuple[Level, ...] = ()

    @property
    def required(self) -> Level:
        """The level of which one domain must hold the gang; ANYWHERE: none."""
        return self.ladder[-1]

    @property
    def within(self) -> Level:
        """The level of which one domain must hold the gang, patient or not."""
        return (self.later or self.ladder)[-1]

    @property
    def is_sliced(self) -> bool:
        """True when members must be together in slices."""
        return self.slice_size > 1

    @property
    def is_bound(self) -> bool:
        """True when it takes more than nodes with room for all members."""
        return bool(self.required.key) or self.is_sliced

    @cached_property
    def patient(self) -> TopologyRequest:
        """The request while the preferred level is the only one."""
        if self.is_patient or not self.preferred_seconds:
            return self
        return replace(self, ladder=self.ladder[:1], is_patient=True, later=self.ladder)

    @cached_property
    def accepting(self) -> TopologyRequest:
        """The request once wider levels are accepted, too."""
        if not self.is_patient:
            return self
        return replace(self, ladder=self.later, is_patient=False, later=())


def topology_of(asked: Topology | None, levels: Sequence[Level]) -> TopologyRequest:
    """Return what a job asks, with the configured levels, widest first; ValueError says what is
    wrong with which field.
    """
    if asked is None:
        return _any_nodes(tuple(levels))
    keys = _any_nodes(tuple(levels)).path
    key, preferred = _level(asked.key, levels), _level(asked.preferred, levels)
    required = key if asked.required else ANYWHERE
    narrow = preferred if preferred.key else key
    sliced = _level(asked.slice_level, levels)
    if narrow.key != required.key and narrow in levels and required in levels:
        wider = levels.index(required) < levels.index(narrow)
        if not wider:
            names = ", ".join(level.name for level in levels)
            raise ValueError(f"preferred: {narrow.name} is not narrower than {required.name}; "
                             f"the levels are, widest first: {names}")  # fmt: skip
    own = [each.key for each in (required, narrow, sliced) if each.key not in ("", HOSTNAME, *keys)]
    return TopologyRequest(
        tuple(_ladder(narrow, required, levels)) or (ANYWHERE,),
        asked.preferred_seconds if narrow.key != required.key else 0,
        sliced,
        asked.slice_size or 1,
        (*keys, *own),
    )


@lru_cache(maxsize=8)
def _any_nodes(levels: tuple[Level, ...]) -> TopologyRequest:
    """Return what most jobs ask: any nodes, with ranks along the levels."""
    keys = tuple(level.key for level in levels if level.key != HOSTNAME)  # names order hosts
    return TopologyRequest(path=keys)


def _level(name: str, levels: Sequence[Level]) -> Level:
    """Return the level of this name or label; a level of its own for another label."""
    return next((each for each in levels if name in (each.name, each.key)), Level(name, name))


def _ladder(narrow: Level, required: Level, levels: Sequence[Level]) -> Iterator[Level]:
    """Yield the levels from the narrow one to the required one."""
    if narrow.key and narrow.key != required.key:
        yield narrow
        first = levels.index(required) + 1 if required in levels else 0
        if narrow in levels and (required in levels or not required.key):
            yield from reversed(levels[first : levels.index(narrow)])
    yield required
