"""Memory limits of containers: by a control group where one can be made, else by measuring.

A control group (version 1 or 2) is made beside or below our own where its directory may be written
to; the kernel then kills at the limit. Elsewhere the node measures: it adds up the resident memory
of all descendants of a container's supervisor, a few times a second, and kills the container whose
sum is above its limit. Pages that processes share count once for each of them in that sum, so
before it kills it asks for the proportional sizes (`smaps_rollup`, proc(5)), which costs more. What
is allocated and used between two looks is not seen: the limit holds within about a second.

Sources: kernel.org, "Control Group v2" and "Memory Resource Controller"; kubelet sets
`memory.oom.group` as we do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.embedded.local.machine import read_text

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
_VERSION_2 = {"memory.max": "limit", "memory.swap.max": "0", "memory.oom.group": "1"}
_VERSION_1 = {"memory.limit_in_bytes": "limit", "memory.memsw.limit_in_bytes": "limit"}
_NEEDED = ("memory.max", "memory.limit_in_bytes")


class MemoryGroups:
    """Makes control groups that limit memory."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._base, self._files = next(_bases(root), (None, {}))

    def limit(self, group: Path, limit_bytes: int) -> None:
        """Change the limit of a group; OSError."""
        files = [file for file, value in self._files.items() if value == "limit"]
        try:
            # Memory with swap may not be less than memory: what grows, grows there first.
            _write_limits(group, files, limit_bytes)
        except OSError:
            _write_limits(group, files[::-1], limit_bytes)

    def make(self, name: str, limit_bytes: int) -> Path | None:
        """Return the directory of a group with this limit; None where none can be made."""
        if self._base is None:
            return None
        group = self._base / name
        try:
            group.mkdir(exist_ok=True)
            for file, value in self._files.items():
                if file in _NEEDED or (group / file).exists():
                    (group / file).write_text(str(limit_bytes) if value == "limit" else value)
        except OSError:
            remove_group(group)
            return None
        return group


def _write_limits(group: Path, files: Iterable[str], limit_bytes: int) -> None:
    for file in files:
        if file in _NEEDED or (group / file).exists():
            (group / file).write_text(str(limit_bytes))


def _bases(root: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield directories in which groups can be made, and the files that limit a group there."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = root / "sys/fs/cgroup"
        if number == "0" and not controllers:
            own = mount / path.strip("/")
            # With processes of its own a group has none below it: then beside ours.
            for base in (own, own.parent) if own != mount else (own,):
                if "memory" in read_text(base / "cgroup.subtree_control").split() and _is_writable(
                    base
                ):
                    yield base, _VERSION_2
        elif "memory" in controllers.split(","):
            own = mount / controllers / path.strip("/")
            if (own / "memory.limit_in_bytes").exists() and _is_writable(own):
                yield own, _VERSION_1


def _is_writable(group: Path) -> bool:
    return os.access(group, os.W_OK | os.X_OK) and os.access(group / "cgroup.procs", os.W_OK)


def kill_count(group: Path) -> int:
    """Return how many processes of the group the kernel has killed for their memory."""
    for file in ("memory.events", "memory.oom_control"):
        words = read_text(group / file).split()
        if "oom_kill" in words[:-1]:
            return int(words[words.index("oom_kill") + 1])
    return 0


def remove_group(group: Path) -> None:
    """Remove a group; one that still has processes, or is gone, is left."""
    try:
        group.rmdir()
    except OSError:
        return


@dataclass(frozen=True, slots=True)
class ProcessTreeUse:
    """What the descendants of a supervisor use: resident memory, and processor time, that of those
    who have ended and were waited for counted in.
    """

    resident_bytes: int
    cpu_milliseconds: int
    pids: list[int]


def measure(supervisors: Iterable[int], proc: Path = PROC) -> dict[int, ProcessTreeUse]:
    """Return the use of each supervisor's descendants; one that is gone is left out."""
    children: dict[int, list[int]] = {}
    resident: dict[int, int] = {}
    #: In clock ticks: own, and that of children that were waited for.
    own: dict[int, int] = {}
    waited: dict[int, int] = {}
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        try:
            fields = (proc / entry.name / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        resident[pid] = int(fields[21]) * PAGE_BYTES
        own[pid] = int(fields[11]) + int(fields[12])
        waited[pid] = int(fields[13]) + int(fields[14])
    out: dict[int, ProcessTreeUse] = {}
    for supervisor in supervisors:
        if supervisor not in resident:
            continue
        found: list[int] = []
        pending = list(children.get(supervisor, ()))
        while pending:
            pid = pending.pop()
            found.append(pid)
            pending += children.get(pid, ())
        ticks = waited[supervisor] + sum(own[pid] + waited[pid] for pid in found)
        out[supervisor] = ProcessTreeUse(
            sum(resident[pid] for pid in found), ticks * 1000 // TICKS_PER_SECOND, found
        )
    return out


def proportional_bytes(pids: Iterable[int], proc: Path = PROC) -> int:
    """Return the memory of processes, each shared page divided by the number of its users."""
    total = 0
    for pid in pids:
        for line in read_text(proc / str(pid) / "smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def above_limit(limits: dict[int, int], proc: Path = PROC) -> dict[int, int]:
    """Return the bytes of those supervisors whose descendants use more than their limit.

    It reads files of all processes: call it in a thread.
    """
    out: dict[int, int] = {}
    for supervisor, found in measure(limits, proc).items():
        if found.resident_bytes > limits[supervisor]:
            used = proportional_bytes(found.pids, proc)
            if used > limits[supervisor]:
                out[supervisor] = used
    return out
