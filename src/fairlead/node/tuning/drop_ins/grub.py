"""GRUB's menu, made again with other arguments of the kernel, and nothing else changed in it.

`grub-mkconfig` writes to a file of the agent's; it replaces the menu only where its entries differ
from those of the menu in the agent's arguments alone. So no edit of the menu by hand is
lost, and no edit of /etc/default/grub that is not in the menu yet takes effect with them. The menu
is replaced by one rename, and kept beside it. (`update-grub` copies over it, line by line.)

Only where mkconfig reads /etc/default/grub.d, as Debian's and Ubuntu's does: what other boot
loaders and grubby have is a file of others that is edited in place, or one entry for each kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath

from fairlead.node.files import read_file, replace_file
from fairlead.node.running.host import Absent, Host
from fairlead.node.running.program_run import run
from fairlead.node.tuning.boot_settings import without_run

DIRECTORY = "/etc/default/grub.d"
GENERATED, FORMER = "fairlead-generated.cfg", "grub.cfg.fairlead-former"
_MENU_BYTES_MAX = 4 << 20
_SECONDS_MAX = 180.0
#: The menu, and the program that makes it.
_MENUS = (("boot/grub/grub.cfg", "grub-mkconfig"), ("boot/grub2/grub.cfg", "grub2-mkconfig"))
#: Both outputs are one, since the program writes the menu to its file.
_SHELL = 'unset LC_ALL; LANG="$2" exec "$0" -o "$1" 2>&1'
_LANGUAGE = re.compile(rb"^\s*set lang=([A-Za-z_]+)\s*$", re.MULTILINE)
_ENTRIES = ("linux", "linux16", "linuxefi")
#: What has arguments of the kernel elsewhere, by a file of it, and why the agent leaves it alone.
_OTHERS = (
    ("run/ostree-booted", "its images are ostree's: use rpm-ostree kargs"),
    ("boot/loader/entries", "each entry of /boot/loader/entries has its own arguments, which "
     "grubby edits in place"),
    ("efi/loader/entries", "each entry of /efi/loader/entries has its own arguments"),
    ("boot/efi/loader/entries", "each entry of /boot/efi/loader/entries has its own arguments"),
    ("etc/kernelstub", "kernelstub has all arguments in one file"),
    ("etc/kernel/cmdline", "all arguments are in one file, /etc/kernel/cmdline"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grub:
    """The menu as a path of the host, and the program that makes it."""

    menu: str
    program: Path


def find_grub(host: Host) -> Grub:
    """Return the boot loader; Absent with the reason where it is not one that is known, OSError."""
    for sign, why in _OTHERS:
        if host.path(sign).exists():
            raise Absent(f"no boot loader whose arguments an agent sets: {why}")
    found = next((each for each in _MENUS if host.path(each[0]).is_file()), None)
    if found is None:
        raise Absent("no boot loader whose arguments an agent sets: no menu of GRUB is there")
    menu, name = found
    program = host.program(name)
    if b"/default/grub.d/" not in read_file(program.resolve(), _MENU_BYTES_MAX):
        raise Absent(f"{name} does not read {DIRECTORY}")
    if any(line.split()[:1] == ["blscfg"] for line in _lines(_read(host, menu))):
        raise Absent(f"/{menu} takes its entries from /boot/loader/entries, not from {DIRECTORY}")
    return Grub(menu, program)


def menu_has(host: Host, menu: str, words: Sequence[str]) -> bool:
    """True when the first entry of the menu has these arguments in a row; OSError."""
    return _first_has(_lines(_read(host, menu)), words)


def make_menu(host: Host, grub: Grub, *, words: Sequence[str], former: Sequence[str]) -> None:
    """Make the menu with the arguments of the drop-in, in place of `former` ones; OSError.

    On an error the menu is what it was.
    """
    folder = str(PurePosixPath(grub.menu).parent)
    generated = host.path(folder, GENERATED)
    old = _read(host, grub.menu)
    try:
        outcome = run(
            Path("/bin/sh"), _SECONDS_MAX, "-c", _SHELL, str(grub.program), str(generated),
            _language(old), output_bytes_max=_MENU_BYTES_MAX,
        )  # fmt: skip
        if outcome.code != 0:
            said = outcome.why or outcome.text.strip().rpartition("\n")[2][:200]
            raise OSError(f"{grub.program.name} failed: {said}")
        new = read_file(generated, _MENU_BYTES_MAX)
        if problem := difference(old, new, words=words, former=former):
            raise OSError(problem.format(menu=f"/{grub.menu}"))
        if new != old:
            path = host.path(grub.menu)
            mode = path.stat().st_mode & 0o777
            replace_file(path.with_name(FORMER), old, mode=mode, is_durable=True)
            replace_file(path, new, mode=mode, is_durable=True)
    finally:
        for path in (generated, generated.with_name(f"{GENERATED}.new")):
            path.unlink(missing_ok=True)


def _language(menu: bytes) -> str:
    """Return the LANG with which a menu was made: its titles and `set lang` are of it."""
    found = _LANGUAGE.search(menu)
    return f"{found[1].decode()}.UTF-8" if found else ""


def difference(
    old: bytes, new: bytes, *, words: Sequence[str], former: Sequence[str]
) -> str:  # fmt: skip
    """Return what keeps a new menu from replacing an old one, "" for nothing (pure)."""
    before, after = _lines(old), _lines(new)
    if words and not _first_has(after, words):
        return "the first entry of {menu} would not have " + " ".join(words)
    runs = sorted((words, former), key=len, reverse=True)  # the one may be a part of the other
    for number, (was, now) in enumerate(zip_longest(before, after, fillvalue=""), 1):
        kept = next((left for each in runs if each and (left := _left(was, each))
                     != _left(was, ())), _left(was, ()))  # fmt: skip
        if kept != _left(now, words):
            return (
                f"{{menu}} would change in other ways, first in line {number}: it was edited, "
                "or not made again after an edit of its sources; run grub-mkconfig, look at it, "
                "then --restore"
            )
    return ""


def _first_has(lines: Sequence[str], words: Sequence[str]) -> bool:
    entries = (line.split() for line in lines)
    first = next((each for each in entries if each[:1] and each[0] in _ENTRIES), [])
    return not words or without_run(first, words) != first


def _left(line: str, words: Sequence[str]) -> list[str]:
    """Return what a line says without the arguments: of an entry by word, of others as it is."""
    parts = line.split()
    if not parts or parts[0] not in _ENTRIES:
        return [line]
    return without_run(parts, words)


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "surrogateescape").splitlines()


def _read(host: Host, menu: str) -> bytes:
    return read_file(host.path(menu), _MENU_BYTES_MAX)
