"""Folds what sources read into the book of faults, and keeps what each judge remembers. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlead.model.health.fault_book import FaultBook
from fairlead.model.health.faults import EndedFault, Fault, Identity, Look, Moment
from fairlead.node.source import AnySource, Judged, SkippedCheck, SourceHealth, SourceState

ENDED_MAX = 100
WHY_MAX = 200
#: A source that was not read for so many of its periods is stale.
STALE_PERIODS = 5


class Memory(msgspec.Struct, frozen=True):
    """What one source remembers, as JSON, and of which boot it is."""

    boot_id: str
    document: bytes
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """What outlives the process."""

    faults: tuple[Fault, ...] = ()
    ended: tuple[EndedFault, ...] = ()
    memories: Mapping[str, Memory] = field(default_factory=dict[str, Memory])
    dropped: int = 0


class MachineWatch:
    """All that is known of one machine; a source reports by one of the methods `read` to `hung`."""

    def __init__(self, sources: Sequence[AnySource], kept: Kept, *, boot_id: str, now: Moment):
        self.boot_id = boot_id
        self._sources = {source.name: source for source in sources}
        self._book = FaultBook(kept.faults, boot_id=boot_id, dropped=kept.dropped)
        self._ended = deque(kept.ended, ENDED_MAX)
        self._memories: dict[str, Any] = {}
        self._encoded: dict[str, Memory] = {}
        self._lost: dict[str, int] = {}
        self._health: dict[str, SourceHealth] = {}
        self._skipped: dict[str, tuple[SkippedCheck, ...]] = {}
        self._started = now.uptime_seconds
        self._read_uptime: dict[str, float] = {}
        for name, memory in kept.memories.items():
            if name in self._sources and memory.boot_id == boot_id:
                self._recall(self._sources[name], memory)
        checks = {check for source in sources for check in source.checks}
        logs = {check for source in sources if source.is_log for check in source.checks}
        self._ended.extend(self._book.resume(checks, logs=logs, now=now.time))

    def _recall(self, source: AnySource, memory: Memory) -> None:
        try:
            found = msgspec.json.decode(memory.document, type=source.memory_type)
        except ValueError:  # of another version: begin again
            return
        self._memories[source.name] = found
        self._lost[source.name] = memory.lost

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Open faults, the worst first."""
        return self._book.faults

    @property
    def dropped(self) -> int:
        """How many faults had no room."""
        return self._book.dropped

    @property
    def begun(self) -> int:
        """How many faults have begun since the start of the process."""
        return self._book.begun

    @property
    def is_healthy(self) -> bool:
        """True when no open fault is worse than information."""
        return not any(fault.is_sick for fault in self._book.faults)

    def read(self, source: AnySource, facts: object, at: Moment) -> None:
        """Judge what was read."""
        memory = self._memories.get(source.name)
        judged: Judged[Any] = source.judge(facts, memory or source.memory_type(), at)
        self._memories[source.name] = judged.memory
        self._encoded.pop(source.name, None)
        lost = self._lost.get(source.name, 0) + judged.lost
        self._lost[source.name] = lost
        self._skipped[source.name] = judged.skipped
        unlooked = {each.check for each in judged.skipped}
        self._book.not_looked(unlooked)
        unset = {each.check for each in judged.skipped if each.is_unset}
        self._ended.extend(self._book.remove(unset, at.time))
        self._ended.extend(self._book.fold(Look(
            tuple(check for check in source.checks if check not in unlooked), at,
            judged.observations, judged.components, judged.counter_resets, judged.recovered,
            is_log=source.is_log, is_lossy=judged.lost > 0,
        )))  # fmt: skip
        is_skipped = bool(unlooked) and len(unlooked) == len(source.checks)
        state = SourceState.SKIPPED if is_skipped else SourceState.OK
        why = judged.skipped[0].why if is_skipped else ""
        if judged.lost:
            state, why = SourceState.LOSSY, f"{judged.lost:,} records were lost"
        elif judged.unreadable and judged.components == frozenset():
            state, why = SourceState.BLIND, judged.unreadable[0]
        self._note(source, state, why, at, read_at=at.time, unreadable=judged.unreadable)

    def absent(self, source: AnySource, why: str, at: Moment) -> None:
        """Note that there is nothing to look at: what was there before a reboot is gone."""
        self._ended.extend(self._book.fold(Look(source.checks, at, components=frozenset())))
        self._not_looked(source, SourceState.SKIPPED, why, at)

    def blind(self, source: AnySource, why: str, at: Moment) -> None:
        """Note that a read failed."""
        self._not_looked(source, SourceState.BLIND, why, at)

    def hung(self, source: AnySource, seconds: float, at: Moment) -> None:
        """Note that a read has not returned for so long."""
        self._not_looked(source, SourceState.HUNG, f"a read has not returned for {seconds:g} s", at)

    def _not_looked(self, source: AnySource, state: SourceState, why: str, at: Moment) -> None:
        self._book.not_looked(source.checks)
        before = self._health.get(source.name)
        self._skipped[source.name] = ()
        self._note(source, state, why, at, read_at=before.read_at if before else None)

    def _note(
        self, source: AnySource, state: SourceState, why: str, at: Moment, *,
        read_at: float | None, unreadable: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        if read_at == at.time:
            self._read_uptime[source.name] = at.uptime_seconds
        self._health[source.name] = SourceHealth(
            source.name, state, why[:WHY_MAX], read_at, self._lost.get(source.name, 0), unreadable
        )

    def clear(self, identities: Iterable[Identity], now: float) -> None:
        """End faults because a person says so."""
        ended = (self._book.clear(each, now) for each in identities)
        self._ended.extend(each for each in ended if each)

    def gpus_reset(self, addresses: Collection[str], now: float) -> None:
        """End the faults that asked for the reset of these GPUs."""
        self._ended.extend(self._book.gpus_reset(addresses, now))

    def health(self, now: Moment) -> tuple[SourceHealth, ...]:
        """Return how each source does, by name; one that was not read in time is stale."""
        return tuple(self._aged(self._sources[name], now) for name in sorted(self._sources))

    def _aged(self, source: AnySource, now: Moment) -> SourceHealth:
        found = self._health.get(source.name)
        read_at = found.read_at if found else None
        passed = now.uptime_seconds - self._read_uptime.get(source.name, self._started)
        late = passed > STALE_PERIODS * source.period_seconds
        if found is None or (late and found.state in (SourceState.OK, SourceState.LOSSY)):
            why = f"not read for {passed:.0f} s"
            return SourceHealth(source.name, SourceState.STALE, why, read_at,
                                self._lost.get(source.name, 0))  # fmt: skip
        return found

    def checks(self, source: str) -> tuple[str, ...]:
        """Return the checks of a source."""
        return self._sources[source].checks

    def memory(self, source: str) -> object:
        """Return what a source remembers; None before its first look."""
        return self._memories.get(source)

    def skipped(self) -> tuple[SkippedCheck, ...]:
        """Return the checks of working sources that did not look, and why."""
        return tuple(each for name in sorted(self._skipped) for each in self._skipped[name])

    def kept(self) -> Kept:
        """Return what is to outlive the process."""
        for name in sorted(self._memories.keys() - self._encoded.keys()):
            document = msgspec.json.encode(self._memories[name])
            self._encoded[name] = Memory(self.boot_id, document, self._lost.get(name, 0))
        return Kept(self._book.faults, tuple(self._ended), dict(self._encoded), self._book.dropped)

    @property
    def ended(self) -> tuple[EndedFault, ...]:
        """The faults that ended last, the oldest first."""
        return tuple(self._ended)
