"""One image that all nodes pull, and how long that takes by a formula (pure).

S is the size of the image, N the number of nodes, C what the registry sends, D what a node
receives, U what a node sends to peers, W how many nodes pull at a time.

* Nobody shares: W nodes share the registry, in waves: `S * max(N / C, ceil(N / W) / D)`.
* Peers share whole layers, as spegel does: a node serves what it has pulled completely, and a node
  that finds no peer asks the registry. The first wave has no peers, so it is as if nobody shared;
  each further one of w nodes has h holders before it: `S / min(D, U * h / w)`.
* Peers share pieces, as Dragonfly does: one seed reads the image from the registry once, and
  pieces spread while it does: `S / min(C, D, U)`, and the last piece of p bytes passes through
  `log2(N + 1)` nodes, each of which serves k at a time: `k * p / U`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil, log2

#: Parts that a node pulls at a time (`max_concurrent_downloads` of containerd), and pieces that a
#: peer serves at a time; others wait for a peer that has room.
PARALLEL, UPLOADS = 3, 3


class PeerSharing(Enum):
    """What nodes serve to each other."""

    NONE = "none"
    LAYERS = "layers"
    PIECES = "pieces"


@dataclass(frozen=True, slots=True)
class PullLoad:
    """An image of `units` parts of one size, which are layers or pieces, and who pulls it.

    Rates are bytes a second: of the registry, and of a node in each direction. Where `proves`, one
    node pulls alone at first, as the images controller has it.
    """

    sharing: PeerSharing
    nodes: int
    image_bytes: float
    units: int
    registry: float
    receives: float
    sends: float
    at_a_time: int
    proves: bool = False

    @property
    def waves(self) -> list[int]:
        """How many nodes pull at a time, one wave after the other."""
        first = [1] if self.proves and self.nodes else []
        left = self.nodes - len(first)
        full, rest = divmod(left, self.at_a_time)
        return [*first, *[self.at_a_time] * full, *([rest] if rest else [])]


def estimated_seconds(load: PullLoad) -> float:
    """Return when the last node has the image."""
    size, nodes = load.image_bytes, load.nodes
    if load.sharing is PeerSharing.PIECES:
        last_piece = UPLOADS * size / load.units / load.sends * log2(nodes + 1)
        return size / min(load.registry, load.receives, load.sends) + last_piece
    if load.sharing is PeerSharing.NONE:
        waves = ceil(nodes / load.at_a_time)
        return size * max(nodes / load.registry, waves / load.receives)
    seconds, holders = 0.0, 0
    for wave in load.waves:
        rate = load.sends * holders / wave if holders else load.registry / wave
        seconds += size / min(load.receives, rate)
        holders += wave
    return seconds
