"""The latest decisions of the scheduler, and what each was made on.

Objects are kept once: a decision keeps what changed after it, as it was before (an undo log). So a
change costs one entry in a dictionary, and the objects that a decision saw are those of the mirrors
with the later changes undone. A decision that did nothing gives way to the next one.

    log.note(...)            after each decision
    log.snapshot(number)     all inputs of one that is still kept (`decide/placement/snapshot.py`)
"""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.placement.actions import Action
from fairlead.decide.placement.desk.memory import Recall
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.snapshot import CarriedState, Snapshot
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.image_pulls import is_pull
from fairlead.model.objects import Objects
from fairlead.model.pools.balloons import is_balloon
from fairlead.model.pools.yielding_tests import is_yielding
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow

#: Decisions that are kept.
CYCLES_MAX = 200
#: Objects as they were before a change, and actions, that are kept for all of them together.
ENTRIES_MAX = 10_000
#: Of those objects as JSON, as which they are kept, of all but the latest decisions compressed:
#: their makers choose how large they are. Not compressed, for a look at a decision reads them.
BYTES_MAX = 32 << 20
#: Of zlib: what a higher one saves of texts that repeat each other is not worth its time.
PACK_LEVEL = 1


class Before(NamedTuple):
    """An object as it was: its type, None where there was none, and the object as JSON.

    Decoded it takes up several times as much, and hardly any is asked for again.
    """

    type: type[Any] | None
    data: bytes

    @property
    def obj(self) -> Any:
        """The object, or None."""
        return None if self.type is None else msgspec.json.decode(self.data, type=self.type)


@dataclass(slots=True)
class Cycle:
    """One decision."""

    now: float
    #: How long it took.
    seconds: float
    waiting_count: int
    contains_faults: bool
    actions: tuple[Action, ...]
    recall: Recall
    carried: CarriedState
    #: Jobs that it took for admitted before their objects said so.
    admitted: tuple[Job, ...] = ()
    #: Counts from the start of the scheduler; set by the log.
    number: int = 0
    #: By field of `Objects` and key: what changed after it, as it was at the decision; once
    #: nothing more comes, without the JSON.
    _before: dict[tuple[str, ObjectKey], Before] = field(
        default_factory=dict[tuple[str, ObjectKey], Before]
    )
    #: The lengths of those JSON, in order, and all of it compressed, once nothing more comes.
    _packed: tuple[tuple[int, ...], bytes] | None = None
    #: Of the JSON, together.
    byte_count: int = 0

    @property
    def action_counts(self) -> dict[str, int]:
        """How many actions of each kind it had."""
        counts = Counter(type(action).__name__ for action in self.actions)
        return dict(sorted(counts.items()))

    @property
    def size(self) -> int:
        """What it counts for in the limit of entries."""
        return len(self._before) + len(self.actions) + len(self.admitted)

    def keeps(self, key: tuple[str, ObjectKey]) -> bool:
        """True for an object that is kept as it was."""
        return key in self._before

    def keep(self, key: tuple[str, ObjectKey], before: Before) -> None:
        """Keep an object as it was, unless it has changed before. Not of one that is packed."""
        if key not in self._before:
            self._before[key] = before
            self.byte_count += len(before.data)

    def before(self) -> Iterator[tuple[tuple[str, ObjectKey], Before]]:
        """Yield what changed after it, by field of `Objects` and key, as it was at the decision."""
        if self._packed is None:
            yield from self._before.items()
            return
        lengths, packed = self._packed
        text, start = zlib.decompress(packed), 0
        for (key, empty), length in zip(self._before.items(), lengths, strict=True):
            yield key, Before(empty.type, text[start : start + length])
            start += length

    def pack(self) -> None:
        """Compress what is kept: objects of a few kinds, which differ in a few words each."""
        if self._packed is not None:
            return
        texts = [each.data for each in self._before.values()]
        self._packed = tuple(map(len, texts)), zlib.compress(b"".join(texts), PACK_LEVEL)
        for key, before in self._before.items():
            self._before[key] = Before(before.type, b"")


class DecisionLog:
    """The latest decisions of one scheduler."""

    def __init__(
        self, world: ClusterWorld, policy: PlacementPolicy, reader: MirrorReader | None
    ) -> None:
        """Follow the mirrors of the world until `close`."""
        self._world = world
        self._policy = policy
        self._cycles: deque[Cycle] = deque()
        self._count = self._size = self._byte_count = 0
        mirrors = world.mirrors
        self._mirrors: dict[str, Mirror[Any]] = {
            "nodes": mirrors.nodes,
            "jobs": mirrors.jobs,
            "pods": mirrors.pods,
            "priority_classes": mirrors.priority_classes,
            "teams": mirrors.teams,
            "pools": mirrors.pools,
            "quotas": mirrors.quotas,
            "claims": mirrors.claims,
            "volumes": mirrors.volumes,
            "storage_classes": mirrors.storage_classes,
            "csi_nodes": mirrors.csi_nodes,
            "attachments": mirrors.attachments,
            "device_claims": mirrors.devices.claims,
            "device_templates": mirrors.devices.templates,
            "device_classes": mirrors.devices.classes,
            "slices": mirrors.devices.slices,
        }
        self._unregister: list[Callable[[], None]] = [
            follow(mirror, partial(self._changed, kind), reader)
            for kind, mirror in self._mirrors.items()
        ]

    def close(self) -> None:
        """Take the handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        """The decisions that are kept, the latest first."""
        return tuple(reversed(self._cycles))

    def note(self, made: Cycle) -> None:
        """Take in a decision, before anything changes."""
        self._drop_idle()
        self._count += 1
        made.number = self._count
        if len(self._cycles) > 1:  # the last one may get what comes while nothing is done
            self._cycles[-2].pack()
        self._cycles.append(made)
        self._add(made, 1)
        self._trim()

    def snapshot(self, number: int) -> tuple[Cycle, Snapshot] | None:
        """Return a decision and all its inputs; None when it is not kept (any more)."""
        cycle = next((each for each in self._cycles if each.number == number), None)
        if cycle is None:
            return None
        found: dict[str, dict[ObjectKey, Any]] = {
            kind: {each.metadata.key: each for each in mirror.items()}
            for kind, mirror in self._mirrors.items()
        }
        for later in self.cycles:
            for (kind, key), before in later.before():
                found[kind][key] = before.obj
            if later is cycle:
                break
        found["jobs"].update((job.metadata.key, job) for job in cycle.admitted)
        objects: dict[str, Any] = {
            kind: tuple(obj for _, obj in sorted(by_key.items()) if obj is not None)
            for kind, by_key in found.items()
        }
        namespace = self._world.state.balloon_namespace
        objects["pods"] = tuple(  # balloons, pulls and tests decide nothing
            pod for pod in objects["pods"]
            if not (is_balloon(pod, namespace) or is_pull(pod) or is_yielding(pod, namespace))
        )  # fmt: skip
        return cycle, Snapshot(
            cycle.now, Objects(**objects), self._policy, self._world.state.levels,
            cycle.carried, cycle.recall, cycle.contains_faults,
        )  # fmt: skip

    def _changed(self, kind: str, change: Change[Any]) -> None:
        if not self._cycles:
            return
        last, key, old = self._cycles[-1], (kind, change.key), change.old
        if not last.keeps(key):
            none = Before(None, b"")
            before = none if old is None else Before(type(old), msgspec.json.encode(old))
            last.keep(key, before)
            self._size += 1
            self._byte_count += len(before.data)
            self._trim()

    def _drop_idle(self) -> None:
        """Drop the last decision if it did nothing; the one before it has its changes from now."""
        if not self._cycles or self._cycles[-1].actions:
            return
        idle = self._cycles.pop()
        self._add(idle, -1)
        if self._cycles:
            last = self._cycles[-1]
            self._add(last, -1)
            for key, before in idle.before():
                last.keep(key, before)
            self._add(last, 1)

    def _add(self, cycle: Cycle, sign: int) -> None:
        self._size += sign * cycle.size
        self._byte_count += sign * cycle.byte_count

    def _trim(self) -> None:
        while self._cycles and (
            len(self._cycles) > CYCLES_MAX
            or self._size > ENTRIES_MAX
            or self._byte_count > BYTES_MAX
        ):
            self._add(self._cycles.popleft(), -1)
