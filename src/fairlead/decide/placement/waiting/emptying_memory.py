"""What the search for nodes to empty keeps, so that nothing is searched again while it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Between two searches.
LOOK_SECONDS = 60.0


@dataclass(slots=True)
class EmptyingMemory:
    """The latest search. Instants are seconds since the epoch."""

    #: What it looked at; it is searched again when that differs.
    basis: tuple[object, ...] = ()
    looked_at: float = float("-inf")
    #: When time alone may change what it finds.
    again_at: float = float("-inf")
    #: Nodes that found no place for their gangs, on the same basis.
    tried: dict[str, None] = field(default_factory=dict[str, None])
