"""The data directory: made, checked, and everything that can be wrong with it put into words."""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from fairlead.app.run_file import STORE_DIRECTORY, TOKEN_FILE, read_running, write_private
from fairlead.input.errors import CliError, Code, fail

_TOKEN_BYTES = 32
_PARTS = ("log", STORE_DIRECTORY)
_WRITABLE_BY_ALL = stat.S_IWOTH
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def prepare(data: Path) -> None:
    """Make the directory and its parts, private to the user; CliError when it cannot be used."""
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_own(data)
        _make_private(data)
        for part in _PARTS:
            (data / part).mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=data) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        raise unusable(data, error) from error


def require_own(data: Path) -> None:
    """Return when no other user can have written to the directory. CliError E711, OSError.

    It holds what makes a caller an administrator of the cluster, and what runs as this user: its
    owner, or who may write to it, could plant a token or lead a write elsewhere by a link.
    """
    for parent in data.resolve().parents:
        mode = parent.stat().st_mode
        if mode & _WRITABLE_BY_ALL and not mode & stat.S_ISVTX:
            raise _writable(data, parent, mode)
    _require_owner(data, data)
    mode = data.stat().st_mode
    if mode & _WRITABLE_BY_OTHERS:
        raise _writable(data, data, mode)
    store = data / STORE_DIRECTORY
    parts = [*data.iterdir(), *(store.iterdir() if store.is_dir() else ())]
    for part in sorted(parts):
        _require_owner(data, part)
        mode = part.stat().st_mode if part.exists() else 0
        if mode & _WRITABLE_BY_ALL:
            raise _writable(data, part, mode)


def _make_private(data: Path) -> None:
    """Take from others what they may do in an own directory, and with all that is in it.

    A directory that is private already is left as it is: nothing in it can be reached. What others
    have open stays open to them, so SQLite's index of its log, in which a reader can hold locks, is
    removed where no cluster runs: it is made again.
    """
    if not data.stat().st_mode & _BY_OTHERS:
        return
    data.chmod(0o700)
    is_in_use = read_running(data) is not None
    for folder, folders, files in os.walk(data):
        for path in (Path(folder, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError, PermissionError):  # gone, or another user's
                mode = path.lstat().st_mode
                if mode & _BY_OTHERS and not stat.S_ISLNK(mode):
                    path.chmod(stat.S_IMODE(mode) & ~_BY_OTHERS)
                    if path.name.endswith("-shm") and not is_in_use:
                        path.unlink()


def _require_owner(data: Path, path: Path) -> None:
    """Refuse what belongs to somebody else, and a link of anybody's to such a place."""
    owners = {path.lstat().st_uid, path.stat().st_uid} if path.exists() else {path.lstat().st_uid}
    for uid in owners - {os.geteuid()}:
        raise foreign(data, path, uid)


def foreign(data: Path, path: Path, uid: int) -> CliError:
    """Return what to say of a part of the directory that belongs to another user."""
    return fail(
        Code.DATA_UNSAFE, f"{path} belongs to {user_name(uid)}, not to you",
        detail=("its owner could act as an administrator of the cluster, and run programs as you",),
        help=(f"--data DIR chooses another directory; {data} is left as it is",),
    )  # fmt: skip


def _writable(data: Path, path: Path, mode: int) -> CliError:
    return fail(
        Code.DATA_UNSAFE, f"other users can write to {path} (mode {stat.S_IMODE(mode):04o})",
        detail=("they could act as administrators of the cluster, and run programs as you",),
        help=(f"chmod go-w {path}, if you trust what {data} holds already",
              "--data DIR chooses another directory"),
    )  # fmt: skip


def user_name(uid: int) -> str:
    """Return a user's name for a message, or the number where there is none."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def unusable(data: Path, error: OSError) -> CliError:
    """Return what to say of an operating system's error in the data directory."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return fail(
            Code.DISK_FULL, f"the disk of {data} is full",
            detail=("nothing that was acknowledged is lost",),
            help=("free some space and start again, or choose another --data DIR",),
        )  # fmt: skip
    if error.errno == errno.EFBIG:
        return fail(
            Code.DISK_FULL, f"a limit on the size of files stops the writing in {data}",
            detail=("nothing that was acknowledged is lost",),
            help=("ulimit -f shows the limit; ulimit -f unlimited lifts it, then start again",),
        )  # fmt: skip
    if error.errno == errno.EIO:
        return fail(
            Code.DATA_UNWRITABLE, f"the disk of {data} reports an input/output error",
            detail=("nothing that was acknowledged is lost, as long as the disk can be read",),
            help=("look at dmesg; copy the directory to a sound disk and start with --data DIR",),
        )  # fmt: skip
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return fail(Code.DATA_UNWRITABLE, f"{error.filename or data} is not a directory",
                    help=("--data DIR chooses another one",))  # fmt: skip
    return fail(
        Code.DATA_UNWRITABLE, f"{data} cannot be written: {error.strerror or error}",
        help=("correct its permissions, or choose another one with --data DIR",),
    )  # fmt: skip


def in_use(data: Path) -> CliError:
    """Return what to say when another process holds the directory."""
    running = read_running(data)
    who = f"a cluster (process {running.pid}, {running.server})" if running else "another process"
    return fail(
        Code.DATA_IN_USE, f"{who} uses {data} already",
        help=(f"fairlead status --data {data} shows it, fairlead down --data {data} stops it",),
    )  # fmt: skip


def read_token(data: Path) -> str:
    """Return the directory's bearer token, drawing it the first time."""
    path = data / TOKEN_FILE
    try:
        token = path.read_text(encoding="ascii").strip()
        if token:
            path.chmod(0o600)
            return token
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise fail(Code.DATA_UNWRITABLE, f"{path} cannot be read",
                   help=(f"rm {path} draws a new token at the next start",)) from error  # fmt: skip
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    write_private(path, token.encode())
    return token


def size_bytes(data: Path) -> int:
    """Return the bytes that the directory takes on disk; vanished files count nothing."""
    total = 0
    pending = [data]
    while pending:
        try:
            entries = list(pending.pop().iterdir())
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir() and not entry.is_symlink():
                    pending.append(entry)
                else:
                    total += entry.lstat().st_blocks * 512
            except OSError:
                continue
    return total
