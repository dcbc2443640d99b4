"""The machine as files below a root directory, and the few facts that no file has.

Every reader takes its files from here, so a directory of files stands for a machine, and a
container reads the host that is mounted into it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fairlead.model.health.faults import Moment
from fairlead.node.running.program_run import PROGRAM_PATH
from fairlead.runtime.clock import Clock, SystemClock

TEXT_BYTES_MAX = 1 << 20
_DIGITS_MAX = 20
_PRODUCT = "sys/class/dmi/id/product_uuid"
_BOOT_ID = "proc/sys/kernel/random/boot_id"


class Absent(Exception):
    """The machine has no such thing, or nothing is expected of it: the check is skipped."""


class NotAHost(Exception):
    """The root directory is not that of a machine; the message says what it lacks."""


class FileSystemSize(Protocol):
    """What `os.statvfs` returns, of that what is used."""

    @property
    def f_blocks(self) -> int:
        """Size in blocks."""
        ...

    @property
    def f_bfree(self) -> int:
        """Free blocks."""
        ...

    @property
    def f_bavail(self) -> int:
        """Blocks that are free for others than root."""
        ...

    @property
    def f_files(self) -> int:
        """Inodes."""
        ...

    @property
    def f_ffree(self) -> int:
        """Free inodes."""
        ...


def whole_number(text: str) -> int | None:
    """Return the number of 64 bits, with or without a sign, that a text is; None for another."""
    if len(text) > _DIGITS_MAX or not text.removeprefix("-").isdecimal():
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else None


@dataclass(frozen=True, slots=True)
class ClockState:
    """What the kernel knows of its clock (adjtimex(2))."""

    is_synchronized: bool
    offset_seconds: float


class _Timex(ctypes.Structure):
    """`struct timex` of Linux; what follows `time` is not used."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000


def kernel_clock() -> ClockState:
    """Return the state of the kernel's clock; OSError."""
    call = ctypes.CDLL(None, use_errno=True).adjtimex
    state = _Timex()
    if call(ctypes.byref(state)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    unit = 1e9 if state.status & _STA_NANO else 1e6
    return ClockState(not state.status & _STA_UNSYNC, state.offset / unit)


def kernel_mounts() -> str:
    """Return this process's own mounts; a place may have any bytes in its name. OSError."""
    return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class GpuModes:
    """Modes of a GPU, on or off, "" for what it lacks; `pending` is of ECC, from its next start."""

    persistence: str
    ecc: str
    pending: str


class ModesReader(Protocol):
    """Returns the modes by address; `is_fresh`: as they are now. Absent, OSError."""

    def __call__(self, *, is_fresh: bool = False) -> Mapping[str, GpuModes]:
        """Return the modes."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. What has a default is the kernel's but in tests.

    `own_mounts` returns the mounts that this process has, as proc_pid_mountinfo(5) writes them.
    `containerd_dump` returns containerd's settings in effect, as TOML; None: by asking containerd.
    `programs` has the programs of the machine; None: those of this machine, for its own root alone.
    `gpu_modes` returns the modes of its GPUs by address; None: they are not looked at.
    """

    root: Path = Path("/")
    clock: Clock = field(default_factory=SystemClock)
    usage: Callable[[Path], FileSystemSize] = os.statvfs
    clock_state: Callable[[], ClockState] = kernel_clock
    own_mounts: Callable[[], str] = kernel_mounts
    containerd_dump: Callable[[], str] | None = None
    programs: Path | None = None
    gpu_modes: ModesReader | None = None

    def path(self, *parts: str) -> Path:
        """Return a path of the machine, such as `proc/meminfo`, as one that can be opened."""
        return self.root.joinpath(*(part.lstrip("/") for part in parts))

    def text(self, *parts: str) -> str:
        """Return the text of a file, at most 1 MiB, without white space around it; OSError."""
        with self.path(*parts).open("rb", buffering=0) as file:
            data = bytearray()
            while (more := file.read(TEXT_BYTES_MAX - len(data))) and len(data) < TEXT_BYTES_MAX:
                data += more
        return data.decode("utf-8", "replace").strip()

    def number(self, *parts: str) -> int:
        """Return the whole number that a file is; OSError, also where it is none."""
        text = self.text(*parts)
        number = whole_number(text)
        if number is None:
            raise OSError(f"{self.path(*parts)} has no number: {text[:40]!r}")
        return number

    def names(self, *parts: str) -> list[str]:
        """Return the names in a directory, sorted; Absent when there is none, OSError."""
        try:
            return sorted(each.name for each in self.path(*parts).iterdir())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Absent(f"no {'/'.join(parts)}") from error

    def present(self, *parts: str) -> str:
        """Return the text of a file; Absent when there is none, OSError."""
        try:
            return self.text(*parts)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Absent(f"no {'/'.join(parts)}") from error

    def program(self, name: str) -> Path:
        """Return a program of the machine; Absent, also where this process runs on another one."""
        if self.programs is None and self.root != Path("/"):
            raise Absent(f"the agent runs in a container, where it cannot start the host's {name}")
        path = PROGRAM_PATH if self.programs is None else str(self.programs)
        found = shutil.which(name, path=path)
        if found is None:
            raise Absent(f"no program {name}")
        return Path(found)

    def boot_id(self) -> str:
        """Return the id of this boot; NotAHost."""
        return self._needed(_BOOT_ID)

    def machine_id(self) -> str:
        """Return the identity of the hardware, whatever the name of the node; "": not known."""
        try:
            return self.text(_PRODUCT)
        except OSError:
            return ""

    def now(self) -> Moment:
        """Return the instant; NotAHost."""
        text = self._needed("proc/uptime")
        try:
            return Moment(self.clock.now(), float(text.split()[0]))
        except (ValueError, IndexError) as error:
            raise NotAHost(f"{self.path('proc/uptime')} has no time in seconds") from error

    def _needed(self, path: str) -> str:
        try:
            return self.text(path)
        except OSError as error:
            raise NotAHost(f"{self.path(path)} cannot be read: {error.strerror}") from error
