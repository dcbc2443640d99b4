"""File systems on disks: those that the kernel made read-only, and those that are full.

After an error the kernel makes a whole file system read-only: its super block says `ro`, while the
mount still says `rw`. A mount that was meant to be read-only says so itself. File systems of a
network are left out: a server that is gone would hang the look.

How full a file system is can be asked at any of its directories. So a container knows that of each
one of which it has some directory, wherever that is mounted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.devices import read_each
from fairlead.node.running.host import Absent, FileSystemSize, Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource

READ_ONLY, FULL = "disk-read-only", "disk-full"
MOUNTS_MAX = 512
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """The first mount of a file system; `is_read_only` if it was meant to be.

    `number` is that of the file system, "major:minor".
    """

    number: str
    place: str
    device: str
    is_read_only: bool
    is_file_system_read_only: bool


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """File systems by place, and the share in use of each: of space, and of inodes."""

    mounts: tuple[Mount, ...]
    used: dict[str, tuple[float, float]]
    unreadable: tuple[str, ...] = ()


class DiskMemory(msgspec.Struct, frozen=True):
    """File systems that were seen to be writable since boot."""

    writable: frozenset[str] = frozenset()


def read(host: Host, types: tuple[str, ...]) -> DiskFacts:
    """Return what is mounted, as process 1 sees it; Absent when no type is known."""
    mounts = parse_mounts(host.present("proc/1/mountinfo"), types)
    if not mounts:
        raise Absent(f"nothing of the types {', '.join(types)} is mounted")
    own = {mount.number: mount.place for mount in parse_mounts(host.own_mounts(), types)}
    seen = {mount.place: Path(own[mount.number]) for mount in mounts if mount.number in own}
    used, unreadable = read_each(list(seen), lambda place: _used(host.usage(seen[place])))
    return DiskFacts(mounts, used, unreadable)


def parse_mounts(text: str, types: tuple[str, ...]) -> tuple[Mount, ...]:
    """Return the first mount of each file system of these types (proc_pid_mountinfo(5))."""
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        left, right = head.split(), tail.split()
        if len(left) < 6 or len(right) < 3 or right[0] not in types or len(found) >= MOUNTS_MAX:
            continue
        place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), left[4])
        mount = Mount(
            left[2], place, right[1], "ro" in left[5].split(","), "ro" in right[2].split(",")
        )
        found.setdefault(left[2], mount)
    return tuple(found.values())


def _used(size: FileSystemSize) -> tuple[float, float]:
    """Return the percentages in use, of what others than root can use, as df(1) has them."""
    blocks = size.f_blocks - size.f_bfree + size.f_bavail
    space = 100 * (1 - size.f_bavail / blocks) if blocks else 0.0
    inodes = 100 * (1 - size.f_ffree / size.f_files) if size.f_files else 0.0
    return space, inodes


def judge(
    facts: DiskFacts, memory: DiskMemory, at: Moment, *, settings: AgentSettings
) -> Judged[DiskMemory]:
    """A file system is never a reason to replace a machine, as long as it can be emptied."""
    limits, stable = settings.disk, settings.stable_seconds
    observations: list[Observation] = []
    for mount in facts.mounts:
        was_writable = mount.place in memory.writable and mount.is_file_system_read_only
        if was_writable or (mount.is_file_system_read_only and not mount.is_read_only):
            verdict = steady(Severity.CRITICAL, Action.REBOOT, stable)
            text = f"{mount.device} became read-only"
            observations.append(observed(identity(READ_ONLY, mount.place), verdict, text, at))
    for place, shares in facts.used.items():
        for what, percent in zip(("space", "inodes"), shares, strict=True):
            if percent >= limits.warning_percent:
                verdict = steady(Severity.WARNING, Action.WATCH, stable)
                if percent >= limits.critical_percent:
                    verdict = steady(Severity.CRITICAL, Action.ASK_PERSON, stable)
                text = f"{percent:.1f} % of {what} in use"
                observations.append(observed(identity(FULL, place, (what,)), verdict, text, at))
    writable = {mount.place for mount in facts.mounts if not mount.is_file_system_read_only}
    places = {mount.place for mount in facts.mounts}
    return Judged(
        DiskMemory(frozenset(writable | (memory.writable & places))), tuple(observations),
        frozenset(places), unreadable=facts.unreadable,
    )  # fmt: skip


def source(host: Host, settings: AgentSettings) -> SignalSource[DiskFacts, DiskMemory]:
    """Return the source of file systems."""
    return SignalSource(
        "disks", (READ_ONLY, FULL), DiskMemory, partial(read, host, settings.disk.types),
        partial(judge, settings=settings), period_seconds=10,
    )  # fmt: skip
