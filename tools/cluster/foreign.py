"""The base of an image for an architecture that this machine cannot run.

Debian's packages are unpacked and not configured, as their scripts would have to run. What the
scripts make (accounts, certificates, alternatives) is of no architecture, so it is taken from the
base of this machine: each file that is there alone and holds no program of this one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ELF = b"\x7fELF"
#: Paths that name an architecture, and what a linker or an installer remembers of one.
_OF_MACHINE = re.compile(
    r"(x86_64|aarch64|x86-64|amd64|arm64)|^etc/ld\.so\.cache$|^var/(lib/(dpkg|apt)|cache|log)/"
)
#: Machines in the header of a program (e_machine).
ELF_MACHINES = {"amd64": 62, "arm64": 183}


class WrongMachine(Exception):
    """A tree has a program of another architecture than its own; the text says which."""


@dataclass(frozen=True, slots=True)
class ForeignTree:
    """What makes the base of an architecture of this machine's own base."""

    native: Path
    arch: str

    def packages(self) -> list[str]:
        """Return the packages of this machine's base."""
        status = (self.native / "var/lib/dpkg/status").read_text()
        return sorted(set(re.findall(r"^Package: (\S+)$", status, re.MULTILINE)))

    def complete(self, root: Path) -> None:
        """Add what scripts of packages made; WrongMachine where a program does not belong."""
        for path in _walk(self.native):
            name = path.relative_to(self.native)
            target = root / name
            if _OF_MACHINE.search(name.as_posix()) or target.is_symlink() or target.exists():
                continue
            if path.is_symlink():
                target.symlink_to(path.readlink())
            elif path.is_dir():
                target.mkdir()
                shutil.copystat(path, target)
            elif path.is_file() and machine_of(path) is None:
                shutil.copy2(path, target)
        check_machine(root, self.arch)


def check_machine(root: Path, arch: str) -> int:
    """Return how many programs and libraries a tree has, all of the architecture; WrongMachine."""
    count = 0
    for path in _walk(root):
        if path.is_symlink() or not path.is_file():
            continue
        machine = machine_of(path)
        if machine not in (None, ELF_MACHINES[arch]):
            raise WrongMachine(f"{path.relative_to(root)} is no program of {arch}")
        count += machine is not None
    return count


def machine_of(path: Path) -> int | None:
    """Return the machine of a program or a library, None for any other file."""
    with path.open("rb") as file:
        head = file.read(20)
    return int.from_bytes(head[18:20], "little") if head.startswith(_ELF) else None


def _walk(root: Path) -> Iterator[Path]:
    """Yield all paths below a directory, parents first; links are not followed."""
    for path in sorted(root.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
