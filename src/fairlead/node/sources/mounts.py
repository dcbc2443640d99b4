"""File systems of a network: mounts that hang, whose handle is stale, or that are not there.

A server that is gone holds up whatever looks at its mount, so each mount is tried in a thread of
its own, and no second time while the first try hangs. Most of what is found is the matter of the
server, and a warning; a stale handle is that of the machine, which has to mount again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import Absent, Host
from fairlead.node.running.probes import Answer, Probes, Strikes, failures
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource
from fairlead.node.sources.disks import parse_mounts

SOURCE = "mounts"
HUNG, STALE, MISSING = "storage-hung", "storage-stale", "storage-missing"
_ESTALE = os.strerror(errno.ESTALE)
_STRIKES = 2


@dataclass(frozen=True, slots=True)
class MountFacts:
    """What came of each mount by its place, and places where nothing is mounted."""

    answers: dict[str, Answer]
    missing: tuple[str, ...] = ()


class MountReader:
    """Tries mounts of a network. Used by one thread."""

    def __init__(self, host: Host, settings: AgentSettings) -> None:
        self._host, self._settings = host, settings.storage
        self._probes = Probes(lambda: host.now().uptime_seconds)

    def read(self) -> MountFacts:
        """Return what came of all; Absent where nothing of a network is mounted or expected.

        A container tries the mounts of which it has a directory itself.
        """
        host, types = self._host, self._settings.types
        text = host.present("proc/1/mountinfo")
        mounts = parse_mounts(text, types)
        places = {fields[4] for line in text.splitlines() if len(fields := line.split()) > 4}
        missing = tuple(each for each in self._settings.mounts if each not in places)
        own = {mount.number: mount.place for mount in parse_mounts(host.own_mounts(), types)}
        calls: dict[str, Callable[[], object]] = {
            mount.place: partial(host.usage, Path(own[mount.number]))
            for mount in mounts
            if mount.number in own
        }
        if not calls and not self._settings.mounts:
            raise Absent(f"no file system of a network ({', '.join(types[:4])}, ...) is mounted")
        return MountFacts(self._probes.look(calls), missing)


def judge(
    facts: MountFacts, memory: Strikes, at: Moment, *, settings: AgentSettings
) -> Judged[Strikes]:
    """Give a fault for each mount that does not answer, is stale, or is missing."""
    stable = settings.stable_seconds
    found, strikes = failures(
        facts.answers, memory, seconds_max=settings.storage.seconds_max, strikes=_STRIKES
    )
    warning = steady(Severity.WARNING, Action.WATCH, stable)
    observations: list[Observation] = []
    for place, why in found.items():
        is_stale = why == _ESTALE
        verdict = steady(Severity.CRITICAL, Action.REBOOT, stable) if is_stale else warning
        of = identity(STALE if is_stale else HUNG, place)
        observations.append(observed(of, verdict, why, at))
    for place in facts.missing:
        verdict = steady(Severity.CRITICAL, Action.ASK_PERSON, stable)
        of = identity(MISSING, place)
        observations.append(observed(of, verdict, "nothing is mounted there", at))
    answered = (place for place, each in facts.answers.items() if not each.is_pending)
    looked = frozenset({*answered, *settings.storage.mounts})
    return Judged(strikes, tuple(observations), looked)


def source(host: Host, settings: AgentSettings) -> SignalSource[MountFacts, Strikes]:
    """Return the source of mounts of a network."""
    return SignalSource(
        SOURCE, (HUNG, STALE, MISSING), Strikes, MountReader(host, settings).read,
        partial(judge, settings=settings), period_seconds=30,
    )  # fmt: skip
