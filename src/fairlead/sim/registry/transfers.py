"""A discrete simulation of all transfers of one image: who pulls which part from whom.

Each node pulls a few parts at a time (`max_concurrent_downloads` of containerd). A sender and a
receiver share their lines alike among their transfers, and a transfer gets the lesser of its two
shares; whenever one ends, all rates are counted anew. Transfers that end within a small share of
the time that one part takes end together, which keeps a thousand nodes within seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from fairlead.sim.registry.pull_load import PARALLEL, UPLOADS, PeerSharing, PullLoad

#: Of the time that a part takes at the full rate of a node: transfers so near end together.
_TOGETHER = 0.02


@dataclass(frozen=True, slots=True)
class PullOutcome:
    """When nodes had the image, in seconds, and what the registry has sent."""

    last_seconds: float
    median_seconds: float
    registry_bytes: float


class _Simulation:
    """One run. Nodes are numbers; the registry is the number after the last one."""

    def __init__(self, load: PullLoad, rng: Random) -> None:
        self.load, self.rng = load, rng
        self.count = load.nodes + (load.sharing is PeerSharing.PIECES)
        self.registry = self.count  # its number as a sender
        shape = self.count, load.units
        #: Parts that nodes have, and that they have or pull; with pieces the last one is the seed.
        self.has, self.asked = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        self.copies = np.zeros(load.units, dtype=np.int64)
        self.sending = np.zeros(self.count + 1, dtype=np.int64)
        self.done: dict[int, float] = {}
        self.part_bytes = load.image_bytes / load.units
        self.sender = np.empty(0, dtype=np.int64)
        self.receiver = np.empty(0, dtype=np.int64)
        self.part = np.empty(0, dtype=np.int64)
        self.left = np.empty(0)
        self.now, self.registry_bytes = 0.0, 0.0
        self.active: dict[int, int] = {}  # transfers under way by node
        self.waiting = list(range(load.nodes))

    def run(self) -> PullOutcome:
        """Let all nodes pull; return how it went."""
        load = self.load
        seed = [load.nodes] if load.sharing is PeerSharing.PIECES else []
        first = 1 if load.proves else load.at_a_time
        self._start([*seed, *self._next(first)])
        while len(self.left):
            ended = self._advance()
            free = [node for node in ended if self.has[node].all()]
            for node in free:
                del self.active[node]
                self.done[node] = self.now
            is_proven = bool(self.done) or not load.proves
            pulling = sum(node < load.nodes for node in self.active)
            self._start(self._next(load.at_a_time - pulling if is_proven else 0))
        times = np.array([self.done[node] for node in range(load.nodes)])
        return PullOutcome(float(times.max()), float(np.median(times)), self.registry_bytes)

    def _next(self, count: int) -> list[int]:
        """Return the nodes that begin now."""
        found, self.waiting = self.waiting[:count], self.waiting[count:]
        return found

    def _start(self, nodes: list[int]) -> None:
        """Let nodes begin, and all that have room pull further parts."""
        self.active.update(dict.fromkeys(nodes, 0))
        made: list[tuple[int, int, int]] = []
        order = list(self.active)
        self.rng.shuffle(order)
        for node in order:
            while self.active[node] < PARALLEL and (found := self._choose(node)) is not None:
                sender, part = found
                self.active[node] += 1
                self.asked[node, part] = True
                self.copies[part] += 1
                self.sending[sender] += 1
                made.append((sender, node, part))
        if made:
            new = np.array(made, dtype=np.int64)
            self.sender = np.concatenate((self.sender, new[:, 0]))
            self.receiver = np.concatenate((self.receiver, new[:, 1]))
            self.part = np.concatenate((self.part, new[:, 2]))
            self.left = np.concatenate((self.left, np.full(len(made), self.part_bytes)))

    def _choose(self, node: int) -> tuple[int, int] | None:
        """Return the sender and the part that a node pulls next; None where it waits."""
        load = self.load
        missing = np.flatnonzero(~self.asked[node])
        if not len(missing):
            return None
        if load.sharing is not PeerSharing.PIECES:
            part = int(missing[0])
            holders = np.flatnonzero(self.has[:, part])
            is_shared = load.sharing is PeerSharing.LAYERS and len(holders)
            return self.rng.choice(holders.tolist()) if is_shared else self.registry, part
        if node == load.nodes:
            return self.registry, int(missing[0])
        free = np.flatnonzero(self.sending[:-1] < UPLOADS)
        there = np.flatnonzero(self.has[np.ix_(free, missing)].any(axis=0))
        if not len(there):
            return None
        copies = self.copies[missing[there]]
        fewest = there[copies == copies.min()]
        part = int(missing[self.rng.choice(fewest.tolist())])
        holders = free[self.has[free, part]]
        return int(self.rng.choice(holders.tolist())), part

    def _advance(self) -> list[int]:
        """Go on to the next end; return the nodes with a part more."""
        load, count = self.load, self.count
        limits = np.full(count + 1, load.sends)
        limits[self.registry] = load.registry
        shares = limits / np.maximum(np.bincount(self.sender, minlength=count + 1), 1)
        got = load.receives / np.maximum(np.bincount(self.receiver, minlength=count), 1)
        rates = np.minimum(shares[self.sender], got[self.receiver])
        together = _TOGETHER * self.part_bytes / min(load.receives, load.registry)
        seconds = float((self.left / rates).min()) + together
        moved = np.minimum(self.left, rates * seconds)
        self.now += seconds
        self.registry_bytes += float(moved[self.sender == self.registry].sum())
        self.left = self.left - moved
        over = self.left <= 0
        ended = self.receiver[over]
        self.has[ended, self.part[over]] = True
        np.subtract.at(self.sending, self.sender[over], 1)
        for node in ended.tolist():
            self.active[node] -= 1
        keep = ~over
        self.sender, self.receiver = self.sender[keep], self.receiver[keep]
        self.part, self.left = self.part[keep], self.left[keep]
        return list(dict.fromkeys(ended.tolist()))


def simulated(load: PullLoad, seed: int = 0) -> PullOutcome:
    """Return how it goes; equal seeds give equal outcomes."""
    return _Simulation(load, Random(seed)).run()  # noqa: S311 - not a secret
