"""Files and directories as a stream of tar, and back, for `fairlead cp`: the same at both ends.

What comes is not trusted. It is made in a new directory beside the destination, in which no name is
followed through a link, and gets its own name once all of it has come; so nothing outside is
touched, and what is cut leaves nothing under that name. Links are made last, and only those that
lead to a place within the copy. Sent to members as text: standard library only, of Python 3.8.
Design: docs/design/interactive.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    Note = Callable[[str], None]
    Parts = tuple[str, ...]

#: What the copied file or directory is called in a stream, and an empty file after all else.
TOP, LAST = "copied", "end"
CHUNK_BYTES = 1 << 20
HEADER_BYTES_MAX = 1 << 20
ENTRIES_MAX = 2_000_000
PARTS_MAX = 128
_BLOCK = 512
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class CopyError(Exception):
    """What cannot be copied, with the reason."""


def send_tree(path: Path, out: IO[bytes], note: Note) -> None:
    """Write a file or a directory; CopyError, OSError. Other kinds of files are noted.

    What goes wrong leaves the stream without its end.
    """
    if not path.exists():
        raise CopyError(f"{path}: no such file or directory")
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        _send(tar, path.resolve(), note)
        tar.addfile(tarfile.TarInfo(LAST))


def _send(tar: Any, top: Path, note: Note) -> None:
    waiting = [(top, TOP)]
    while waiting:
        path, name = waiting.pop()
        info: tarfile.TarInfo | None = tar.gettarinfo(path, name)
        tar.inodes = {}  # each file whole: no links between them
        if info is None or not (info.isreg() or info.isdir() or info.issym()):
            note(f"{path} is no file, directory or link; left out")
            continue
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if info.isreg():
            with path.open("rb") as file:
                tar.addfile(info, file)
            continue
        tar.addfile(info)
        if info.isdir():
            inside = sorted(path.iterdir(), reverse=True)
            waiting += [(each, f"{name}/{each.name}") for each in inside]


class _Stream:
    """A stream that is only read on, in pieces of bounded size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, 0
        self.last = b""

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> None:
        while self._at < position:
            if not self.take(position - self._at):
                return

    def read(self, size: int) -> bytes:
        if size > HEADER_BYTES_MAX:
            raise tarfile.ReadError("a header is too long")
        pieces: list[bytes] = []
        while size and (piece := self.take(size)):
            pieces.append(piece)
            size -= len(piece)
        self.last = b"".join(pieces)
        return self.last

    def take(self, size: int) -> bytes:
        """Return the next bytes, at most so many; b"" at the end."""
        piece = self._file.read(min(size, CHUNK_BYTES))
        self._at += len(piece)
        return piece


class Receiver:
    """Makes what comes, in a directory of its own."""

    def __init__(self, directory: Path, note: Note) -> None:
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        self._note = note
        self._modes: list[tuple[Parts, int]] = []
        self._links: list[tuple[Parts, str]] = []

    def receive(self, file: IO[bytes]) -> None:
        """Take the whole stream; CopyError, OSError."""
        stream, count = _Stream(file), 0
        try:
            tar: Any = tarfile.TarFile(fileobj=stream, mode="r")  # pyright: ignore[reportArgumentType] # only read on
            while (info := tar.next()) is not None:
                tar.members = []
                count += 1
                if count > ENTRIES_MAX:
                    raise CopyError(f"more than {ENTRIES_MAX} files")
                self._take(info, stream)
        except (tarfile.TarError, RecursionError, ValueError, EOFError) as error:
            raise CopyError(f"what comes is no tar that can be read: {error}") from error
        if stream.last != bytes(_BLOCK):
            raise CopyError("the end is missing: the connection was lost")
        self._finish()

    def close(self) -> None:
        """Close the directory."""
        os.close(self._root)

    def _take(self, info: tarfile.TarInfo, stream: _Stream) -> None:
        if info.name == LAST:
            return
        parts = _inside(info.name)
        if info.isdir():
            self._in_parent(parts, lambda name, at: os.mkdir(name, 0o700, dir_fd=at))
            self._modes.append((parts, info.mode))
        elif info.issym():
            self._links.append((parts, info.linkname))
        elif info.islnk():
            self._in_parent(parts, lambda name, at: self._link(_inside(info.linkname), name, at))
        elif info.isreg() and not info.issparse() and info.size >= 0:
            self._in_parent(parts, lambda name, at: _write(name, at, info, stream))
        else:
            self._note(f"{info.name} is no file, directory or link; left out")

    def _in_parent(self, parts: Parts, make: Callable[[str, int], None]) -> None:
        """Make something in its directory, which is reached without following a link."""
        at = os.dup(self._root)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=at)
                os.close(at)
                at = inner
            make(parts[-1], at)
        except OSError as error:
            raise CopyError(f"{'/'.join(parts)}: {error.strerror}") from error
        finally:
            os.close(at)

    def _link(self, source: Parts, name: str, at: int) -> None:
        def make(found: str, inside: int) -> None:
            os.link(found, name, src_dir_fd=inside, dst_dir_fd=at, follow_symlinks=False)

        self._in_parent(source, make)

    def _finish(self) -> None:
        """Make the links that stay within the copy, then set the modes of directories."""
        for parts, target in self._links:
            if _stays(parts, target):
                self._in_parent(parts, lambda name, at, to=target: os.symlink(to, name, dir_fd=at))
            else:
                self._note(f"{'/'.join(parts)} leads out of the copy, to {target}; left out")
        for parts, mode in reversed(self._modes):
            self._in_parent(
                parts, lambda name, at, to=mode: os.chmod(name, to & 0o777 | 0o700, dir_fd=at)
            )


def _inside(name: str) -> Parts:
    """Return the parts of a name, which begins with one that is the same for all; CopyError."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    is_bad = name.startswith("/") or ".." in parts or "\0" in name
    if is_bad or not parts or len(parts) > PARTS_MAX:
        raise CopyError(f"the other side sends a name that is none of a copy: {name[:200]!r}")
    return (TOP, *parts[1:])


def _stays(parts: Parts, target: str) -> bool:
    """Say whether a link leads to a place within the copy, whatever links are on the way.

    Up it goes first and by no more than its own depth, through directories that are none but real
    ones; further on each link that it may meet fulfils the same.
    """
    words = [word for word in target.split("/") if word not in ("", ".")]
    ups = next((i for i, word in enumerate(words) if word != ".."), len(words))
    is_flat = ".." not in words[ups:] and not target.startswith("/")
    return is_flat and ups <= len(parts) - 2


def _write(name: str, at: int, info: tarfile.TarInfo, stream: _Stream) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
    descriptor = os.open(name, flags, 0o600, dir_fd=at)
    with open(descriptor, "wb", buffering=0) as file:
        left = info.size
        while left:
            piece = stream.take(left)
            if not piece:
                raise CopyError("the end is missing: the connection was lost")
            left -= len(piece)
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
        os.fchmod(descriptor, info.mode & 0o777)
        with suppress(OSError, OverflowError, ValueError):
            os.utime(descriptor, (info.mtime, info.mtime))


def receive_tree(
    file: IO[bytes], target: str, name: str, *, replaces: bool, note: Note,
    is_whole: Callable[[], bool] = lambda: True,
) -> Path:  # fmt: skip
    """Make a copy as `target`, or in that directory as `name`; return where. CopyError, OSError.

    A file is replaced; a directory only with `replaces`. `is_whole` is asked before the copy gets
    its name.
    """
    final = Path(target)
    if final.is_dir():
        final /= name
    elif target.endswith("/"):
        raise CopyError(f"{target}: no such directory")
    try:
        work = Path(tempfile.mkdtemp(prefix=".fairlead-cp-", dir=final.absolute().parent))
    except OSError as error:
        raise CopyError(f"{final.parent} cannot be written: {error.strerror}") from error
    try:
        receiver = Receiver(work, note)
        try:
            receiver.receive(file)
        finally:
            receiver.close()
        if not os.path.lexists(work / TOP):
            raise CopyError("nothing came")
        if is_whole():
            _rename(work, final, replaces=replaces)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def _rename(work: Path, final: Path, *, replaces: bool) -> None:
    """Give the copy its name; CopyError where something is there that is not replaced."""
    made, aside = work / TOP, work / "old"
    is_directory = final.is_dir() and not final.is_symlink()
    if made.is_dir() != is_directory and os.path.lexists(final):
        raise CopyError(f"{final} is {'a' if is_directory else 'no'} directory")
    if is_directory and not replaces:
        raise CopyError(f"{final} exists; --force replaces it")
    try:
        if is_directory:
            final.rename(aside)
        made.rename(final)
    except OSError as error:
        if aside.exists():
            aside.rename(final)
        raise CopyError(f"{final} cannot be written: {error.strerror}") from error


def _stop(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(1)


def main(argv: list[str]) -> int:
    """Entry of `send PATH` and `receive TARGET NAME yes|no`, in a member."""
    # A hang-up ends the stream, too; it would come in the middle of the clean-up that this begins.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)

    def note(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    try:
        if argv[0] == "send":
            with open(1, "wb", closefd=False) as out:
                send_tree(Path(argv[1]), out, note)
        else:
            with open(0, "rb", closefd=False) as file:
                receive_tree(file, argv[1], argv[2], replaces=argv[3] == "yes", note=note)
    except (CopyError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0
