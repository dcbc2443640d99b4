"""Builds the files of a machine, as the kernel shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from fairlead.model.health.faults import EndedFault, Fault, Moment
from fairlead.node.registry import SOURCES
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.running.host import Absent, ClockState, Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import AnySource, SourceHealth

BOOT = "5e5a1d4e-0000-4000-8000-000000000001"
NEXT_BOOT = "5e5a1d4e-0000-4000-8000-000000000002"
EPOCH = 1_790_000_000.0


@dataclass
class HostTree:
    """A machine that is up for an hour. Its time passes only by `passes`."""

    root: Path
    uptime: float = 3600.0
    lines: int = 0
    boot_id: str = BOOT
    synchronized: bool = True
    offset: float = 0.0
    sizes: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    #: Places that this process has no mount of.
    not_mounted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.boots(BOOT, self.uptime)

    def now(self) -> float:
        return EPOCH + self.uptime

    def host(self) -> Host:
        return Host(
            self.root, self, self._usage, lambda: ClockState(self.synchronized, self.offset),
            self._own_mounts,
        )  # fmt: skip

    def _own_mounts(self) -> str:
        """Return the mounts of the machine, as they are mounted below its root."""
        lines = (self.root / "proc/1/mountinfo").read_text(errors="replace").splitlines()
        rows = (line.split(" ", 5) for line in lines if line.count(" ") > 4)
        return "\n".join(
            " ".join((*row[:4], f"{self.root}{'' if row[4] == '/' else row[4]}", row[5]))
            for row in rows
            if row[4] not in self.not_mounted
        )

    def write(self, path: str, text: str | int) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.new")
        fresh.write_text(f"{text}\n")
        fresh.replace(target)  # whole at any time: an agent may look at it meanwhile

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def passes(self, seconds: float) -> None:
        self.uptime += seconds
        self.write("proc/uptime", f"{self.uptime:.2f} 0.00")

    def boots(self, boot_id: str, uptime: float = 10.0) -> None:
        self.uptime = uptime
        self.write("proc/uptime", f"{uptime:.2f} 0.00")
        self.boot_id = boot_id
        self.write("proc/sys/kernel/random/boot_id", boot_id)
        self.lines = 0
        (self.root / "dev").mkdir(exist_ok=True)
        (self.root / "dev/kmsg").write_text("")

    def log(self, *texts: str, at: float | None = None) -> None:
        """Write lines to the kernel's log, now or at an uptime."""
        with (self.root / "dev/kmsg").open("a") as file:
            for text in texts:
                file.write(self.record(text, at))

    def record(self, text: str, at: float | None = None) -> str:
        when = self.uptime if at is None else at
        line = f"4,{self.lines},{int(when * 1e6)},-;{text}\n SUBSYSTEM=pci\n"
        self.lines += 1
        return line

    def xid(
        self, code: int, text: str = "pid=7", *, gpu: str = "0000:3b:00", times: int = 1
    ) -> None:
        self.log(*[f"NVRM: Xid (PCI:{gpu}): {code}, {text}"] * times)

    def _usage(self, path: Path) -> SimpleNamespace:
        blocks, free, inodes, free_inodes = self.sizes[path.as_posix()]
        return SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=free, f_files=inodes,
                               f_ffree=free_inodes)  # fmt: skip


class Looks:
    """The agent's look at a machine, without threads; `restart` keeps only what is kept."""

    def __init__(
        self, tree: HostTree, *names: str, settings: AgentSettings | None = None,
        host: Host | None = None,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.settings = settings or AgentSettings()
        self.names: Sequence[str] = names or tuple(SOURCES)
        self.host = host or tree.host()
        self._begin(Kept())

    def _begin(self, kept: Kept) -> None:
        made = (SOURCES[name](self.host, self.settings) for name in self.names)
        self.sources: tuple[AnySource, ...] = tuple(source for source in made if source)
        self.watch = MachineWatch(
            self.sources, kept, boot_id=self.host.boot_id(), now=self.host.now()
        )  # fmt: skip

    def restart(self, *names: str) -> None:
        self.names = names or self.names
        self._begin(self.watch.kept())

    def look(self, after: float = 0) -> tuple[Fault, ...]:
        """Look once, so many seconds later; return the open faults."""
        from fairlead.node.readers import report

        if after:
            self.tree.passes(after)
        for source in self.sources:
            try:
                answer: tuple[object, Exception | None] = (source.read(), None)
            except (Absent, OSError) as error:
                answer = (None, error)
            report(source, self.watch, answer, self.host.now())
        return self.watch.faults

    def looks(self, count: int, every: float) -> tuple[Fault, ...]:
        for _ in range(count):
            self.look(every)
        return self.watch.faults

    def health(self, name: str = "") -> SourceHealth:
        return next(
            each
            for each in self.watch.health(self.host.now())
            if each.source == (name or self.names[0])
        )

    @property
    def ended(self) -> tuple[EndedFault, ...]:
        return self.watch.ended


def named(faults: Iterable[Fault]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(f.identity.check, f.identity.component, f.identity.codes) for f in faults]


def moment(uptime: float) -> Moment:
    return Moment(EPOCH + uptime, uptime)


def changed(settings: AgentSettings, section: str, **fields: object) -> AgentSettings:
    import msgspec

    part = msgspec.structs.replace(getattr(settings, section), **fields)
    return msgspec.structs.replace(settings, **{section: part})
