"""The open faults of one machine: looks go in, each fault ends by its own rule.

Equal observations are counted, not kept: 800,000 equal lines are one fault. A fault never ends
because an event is old, but because its check has looked for long enough, without a break, and not
seen it; or by the boot, the counter or the person that its verdict names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from fairlead.model.health.faults import (
    Action,
    EndedFault,
    Ending,
    Fault,
    Identity,
    Look,
    Observation,
    Recovery,
)

#: With more open faults the least harmful ones are left out, and counted.
FAULTS_MAX = 1_000


class FaultBook:
    """Open faults by identity. `dropped` counts those that had no room, `begun` all that began."""

    def __init__(self, faults: Iterable[Fault] = (), *, boot_id: str, dropped: int = 0) -> None:
        self.boot_id = boot_id
        self.dropped = dropped
        self.begun = 0
        self._open: dict[Identity, Fault] = {fault.identity: fault for fault in faults}

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The open faults, the worst first, then by identity."""
        return tuple(sorted(self._open.values(), key=_by_harm))

    def resume(
        self, checks: Collection[str], *, logs: Collection[str], now: float
    ) -> list[EndedFault]:
        """Return what ended while nothing looked; to be called at the start.

        `checks` are all that there are, `logs` those of them that read a log, which was written
        while nothing looked. Faults of other boots end if a boot ends them; what is left of them is
        looked for from now on.
        """
        ended: list[EndedFault] = []
        for fault in self.faults:
            is_of_other_boot = fault.boot_id != self.boot_id
            if fault.identity.check not in checks:
                ended.append(self._end(fault, Ending.CHECK_REMOVED, now))
            elif is_of_other_boot and fault.verdict.ends_with_boot:
                ended.append(self._end(fault, Ending.BOOT, now))
            elif is_of_other_boot or fault.identity.check not in logs:
                self._replace(fault, quiet_since=None)
        return ended

    def fold(self, look: Look) -> list[EndedFault]:
        """Take in a look; return the faults that it ended."""
        ended = [
            self._end(self._open[each], ending, look.at.time)
            for found, ending in (
                (look.counter_resets, Ending.COUNTER_RESET), (look.recovered, Ending.RECOVERED)
            )
            for each in sorted(found) if each in self._open
        ]  # fmt: skip
        for observation in look.observations:
            self._observe(observation, is_log=look.is_log)
        seen = set() if look.is_log else {each.identity for each in look.observations}
        ended += [
            self._end(fault, ending, look.at.time)
            for fault in self._of(look.checks)
            if fault.identity not in seen and (ending := self._judge_quiet(fault, look))
        ]
        return ended

    def not_looked(self, checks: Collection[str]) -> None:
        """Note that these checks could not look: what is quiet is so only when it is seen to be."""
        for fault in self._of(checks):
            if fault.quiet_since is not None:
                self._replace(fault, quiet_since=None)

    def remove(self, checks: Collection[str], now: float) -> list[EndedFault]:
        """End the faults of checks that are no longer made; return them."""
        return [self._end(fault, Ending.CHECK_REMOVED, now) for fault in self._of(checks)]

    def gpus_reset(self, addresses: Collection[str], now: float) -> list[EndedFault]:
        """End what asked for the reset of these GPUs and no more; return the faults.

        `addresses` are of PCI, with the function; a component may lack it.
        """
        whole = {each.lower() for each in addresses}
        meant = whole | {each.rpartition(".")[0] for each in whole}
        return [
            self._end(fault, Ending.GPU_RESET, now)
            for fault in self.faults
            if fault.verdict.action is Action.RESET_GPU
            and fault.identity.component.lower() in meant
        ]

    def clear(self, of: Identity, now: float) -> EndedFault | None:
        """End a fault because a person says so; None when it is not open."""
        fault = self._open.get(of)
        return self._end(fault, Ending.PERSON, now) if fault else None

    def _of(self, checks: Collection[str]) -> list[Fault]:
        found = [fault for fault in self._open.values() if fault.identity.check in checks]
        return sorted(found, key=lambda fault: fault.identity)

    def _observe(self, seen: Observation, *, is_log: bool) -> None:
        fault = self._open.get(seen.identity)
        quiet_since = seen.at.uptime_seconds if is_log else None
        if fault is None:
            self.begun += 1
            self._open[seen.identity] = Fault(
                seen.identity, seen.verdict, seen.evidence, first_seen=seen.at.time,
                last_seen=seen.at.time, boot_id=self.boot_id, quiet_since=quiet_since, due=seen.due,
            )  # fmt: skip
            self._make_room()
            return
        begins_again = is_log or fault.quiet_since is not None
        is_worse = seen.verdict.rank >= fault.verdict.rank or not is_log
        self._replace(
            fault,
            verdict=seen.verdict if is_worse else fault.verdict,
            evidence=seen.evidence,
            last_seen=max(fault.last_seen, seen.at.time),
            boot_id=self.boot_id,
            count=fault.count + begins_again,
            quiet_since=quiet_since,
            due=seen.due,
        )

    def _judge_quiet(self, fault: Fault, look: Look) -> Ending | None:
        """Return why a fault that was not seen is over, or note since when it is quiet."""
        component = fault.identity.component
        if look.components is not None and component not in look.components:
            self._replace(fault, quiet_since=None)
            return Ending.COMPONENT_GONE if fault.boot_id != self.boot_id else None
        now = look.at.uptime_seconds
        since = fault.quiet_since
        if since is None or look.is_lossy:
            since = now
            self._replace(fault, quiet_since=since)
        is_stable = now - since >= fault.verdict.stable_seconds
        is_over = fault.verdict.recovery is Recovery.STABLE_TIME and is_stable
        return Ending.STABLE_TIME if is_over else None

    def _replace(self, fault: Fault, **changes: object) -> None:
        self._open[fault.identity] = msgspec.structs.replace(fault, **changes)

    def _end(self, fault: Fault, ending: Ending, now: float) -> EndedFault:
        del self._open[fault.identity]
        return EndedFault(fault, ending, now)

    def _make_room(self) -> None:
        if len(self._open) > FAULTS_MAX:
            least = max(self._open.values(), key=_by_harm)
            del self._open[least.identity]
            self.dropped += 1


def _by_harm(fault: Fault) -> tuple[int, int, Identity]:
    severity, action = fault.verdict.rank
    return (-severity, -action, fault.identity)
