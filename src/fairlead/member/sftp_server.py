"""An SFTP server in a member, for `scp`, `sftp` and editors that come by `ssh JOB.fairlead`.

Version 3 of the protocol with the extensions that OpenSSH's client uses, on the process's own
streams, one request at a time. It acts as the member's user and has no other limits than that
user's: who is given it may run commands here in any case. Sent to members as text: standard library
only, of Python 3.8. Design: docs/design/interactive.md.

Source: draft-ietf-secsh-filexfer-02; OpenSSH's PROTOCOL, section 4.
"""

# Paths are bytes, as they come.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH111, PTH115, PTH116, PTH118, PTH208, PTH211

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKET_BYTES_MAX = 256 << 10
READ_BYTES_MAX = PACKET_BYTES_MAX - 1024
HANDLES_MAX = 256
NAMES_MAX = 100
VERSION = 3
_INIT, _VERSION, _STATUS, _HANDLE, _DATA, _NAME, _ATTRS, _EXTENDED, _REPLY = (
    1, 2, 101, 102, 103, 104, 105, 200, 201,
)  # fmt: skip
_OK, _EOF, _NO_FILE, _DENIED, _FAILURE, _UNSUPPORTED = 0, 1, 2, 3, 4, 8
_CODES = {errno.ENOENT: _NO_FILE, errno.ENOTDIR: _NO_FILE, errno.EACCES: _DENIED,
          errno.EPERM: _DENIED, errno.EROFS: _DENIED}  # fmt: skip
_SIZE, _OWNER, _MODE, _TIMES, _EXTRA = 1, 2, 4, 8, 0x80000000
#: What a client asks for when it opens a file: read, write, append, create, truncate, exclusive.
_READ, _WRITE, _APPEND, _CREATE, _TRUNCATE, _EXCLUSIVE = 1, 2, 4, 8, 16, 32
_EXTENSIONS = (
    (b"posix-rename@openssh.com", b"1"), (b"hardlink@openssh.com", b"1"),
    (b"fsync@openssh.com", b"1"), (b"limits@openssh.com", b"1"),
    (b"expand-path@openssh.com", b"1"),
)  # fmt: skip


class BrokenPacketError(Exception):
    """What breaks the protocol: the connection ends."""


class FileAttributes(NamedTuple):
    """What a client sets of a file; None: not that."""

    size: int | None = None
    owner: tuple[int, int] | None = None
    mode: int | None = None
    times: tuple[int, int] | None = None


class Fields:
    """The fields of one packet, in their order; BrokenPacketError where one is missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str = "I") -> int:
        """Return an integer without a sign: of 8, 32 or 64 bits for B, I and Q."""
        size = struct.calcsize(">" + form)
        return int(struct.unpack(">" + form, self._take(size))[0])

    def text(self) -> bytes:
        """Return a string."""
        return self._take(self.number())

    def path(self) -> bytes:
        """Return a path; an empty one is the directory of the process."""
        return self.text() or b"."

    def attributes(self) -> FileAttributes:
        """Return attributes."""
        flags = self.number()
        size = self.number("Q") if flags & _SIZE else None
        owner = (self.number(), self.number()) if flags & _OWNER else None
        mode = stat.S_IMODE(self.number()) if flags & _MODE else None
        times = (self.number(), self.number()) if flags & _TIMES else None
        if flags & _EXTRA:
            for _ in range(self.number()):
                self.text()
                self.text()
        return FileAttributes(size, owner, mode, times)

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise BrokenPacketError("a packet ends too early")
        self._at += size
        return piece


def text_of(data: bytes) -> bytes:
    """Return a string as a field."""
    return struct.pack(">I", len(data)) + data


def attributes_of(found: os.stat_result) -> bytes:
    """Return a file's attributes as a field."""
    numbers = (found.st_uid, found.st_gid, found.st_mode, found.st_atime, found.st_mtime)
    bounded = [max(0, min(int(each), 0xFFFFFFFF)) for each in numbers]
    return struct.pack(">IQIIIII", _SIZE | _OWNER | _MODE | _TIMES, found.st_size, *bounded)


def long_name(name: bytes, found: os.stat_result) -> bytes:
    """Return a file's line in `ls -l`, in which owners are numbers."""
    when = time.strftime("%b %d %H:%M", time.localtime(found.st_mtime))
    if abs(time.time() - found.st_mtime) > 180 * 86400:
        when = time.strftime("%b %d  %Y", time.localtime(found.st_mtime))
    line = (f"{stat.filemode(found.st_mode)} {found.st_nlink:>4} {found.st_uid:<8} "
            f"{found.st_gid:<8} {found.st_size:>8} {when} ")  # fmt: skip
    return line.encode() + name


class SftpServer:
    """Answers the requests of one client. Handles are the numbers of descriptors and listings."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, bool]] = {}  # a descriptor, and whether it appends
        self._listings: dict[int, tuple[bytes, Iterator[bytes]]] = {}
        self._next = itertools.count()
        self._requests: dict[int, Callable[[Fields], bytes]] = {
            3: self._open, 4: self._close, 5: self._read, 6: self._write, 7: self._lstat,
            8: self._fstat, 9: self._set, 10: self._set_open, 11: self._list, 12: self._names,
            13: self._remove, 14: self._make_directory, 15: self._remove_directory,
            16: self._real_path, 17: self._stat, 18: self._rename, 19: self._read_link,
            20: self._link_symbolic, _EXTENDED: self._extended,
        }  # fmt: skip
        self._more: dict[bytes, Callable[[Fields], bytes]] = {
            b"posix-rename@openssh.com": self._replace, b"hardlink@openssh.com": self._link,
            b"fsync@openssh.com": self._sync, b"limits@openssh.com": self._limits,
            b"expand-path@openssh.com": self._expand,
        }  # fmt: skip

    def answer(self, packet: bytes) -> bytes:
        """Return the answer to one packet, without its length; BrokenPacketError."""
        fields = Fields(packet)
        kind = fields.number("B")
        if kind == _INIT:
            pairs = b"".join(text_of(name) + text_of(value) for name, value in _EXTENSIONS)
            return struct.pack(">BI", _VERSION, VERSION) + pairs
        number = fields.number()
        act = self._requests.get(kind)
        try:
            done = _status(_UNSUPPORTED, "not supported") if act is None else act(fields)
        except OSError as error:
            code = _CODES.get(error.errno or 0, _FAILURE)
            done = _status(code, error.strerror or str(error))
        except (ValueError, OverflowError) as error:  # such as a NUL in a path
            done = _status(_FAILURE, str(error))
        return done[:1] + struct.pack(">I", number) + done[1:]

    def close(self) -> None:
        """Close what the client left open."""
        for descriptor, _ in self._files.values():
            with suppress(OSError):
                os.close(descriptor)

    def _handle(self) -> int:
        if len(self._files) + len(self._listings) >= HANDLES_MAX:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return next(self._next)

    def _file(self, fields: Fields) -> tuple[int, bool]:
        found = self._files.get(_handle_number(fields))
        if found is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    def _open(self, fields: Fields) -> bytes:
        path, asked, given = fields.path(), fields.number(), fields.attributes()
        both = asked & _READ and asked & _WRITE
        flags = os.O_RDWR if both else os.O_WRONLY if asked & _WRITE else os.O_RDONLY
        for flag, meaning in ((_APPEND, os.O_APPEND), (_CREATE, os.O_CREAT),
                              (_TRUNCATE, os.O_TRUNC), (_EXCLUSIVE, os.O_EXCL)):  # fmt: skip
            flags |= meaning if asked & flag else 0
        handle = self._handle()
        mode = 0o666 if given.mode is None else given.mode
        self._files[handle] = os.open(path, flags | os.O_CLOEXEC, mode), bool(asked & _APPEND)
        return bytes((_HANDLE,)) + text_of(struct.pack(">I", handle))

    def _close(self, fields: Fields) -> bytes:
        handle = _handle_number(fields)
        if self._listings.pop(handle, None) is None:
            descriptor, _ = self._files.pop(handle, (-1, False))
            os.close(descriptor)
        return _status(_OK)

    def _read(self, fields: Fields) -> bytes:
        (descriptor, _), offset, size = self._file(fields), fields.number("Q"), fields.number()
        data = os.pread(descriptor, min(size, READ_BYTES_MAX), offset)
        return bytes((_DATA,)) + text_of(data) if data else _status(_EOF, "end of file")

    def _write(self, fields: Fields) -> bytes:
        (descriptor, appends), offset = self._file(fields), fields.number("Q")
        data = memoryview(fields.text())
        while data:
            written = os.write(descriptor, data) if appends else os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
        return _status(_OK)

    def _lstat(self, fields: Fields) -> bytes:
        return bytes((_ATTRS,)) + attributes_of(os.lstat(fields.path()))

    def _stat(self, fields: Fields) -> bytes:
        return bytes((_ATTRS,)) + attributes_of(os.stat(fields.path()))

    def _fstat(self, fields: Fields) -> bytes:
        return bytes((_ATTRS,)) + attributes_of(os.fstat(self._file(fields)[0]))

    def _set(self, fields: Fields) -> bytes:
        return _apply(fields.path(), fields.attributes())

    def _set_open(self, fields: Fields) -> bytes:
        return _apply(self._file(fields)[0], fields.attributes())

    def _list(self, fields: Fields) -> bytes:
        path, handle = fields.path(), self._handle()
        self._listings[handle] = path, iter([b".", b"..", *os.listdir(path)])
        return bytes((_HANDLE,)) + text_of(struct.pack(">I", handle))

    def _names(self, fields: Fields) -> bytes:
        path, names = self._listings.get(_handle_number(fields), (b"", iter(())))
        found: list[tuple[bytes, os.stat_result]] = []
        for name in itertools.islice(names, NAMES_MAX):
            with suppress(FileNotFoundError):  # it went meanwhile
                found.append((name, os.lstat(os.path.join(path, name))))
        return _named(found) if found else _status(_EOF, "end of file")

    def _remove(self, fields: Fields) -> bytes:
        os.unlink(fields.path())
        return _status(_OK)

    def _make_directory(self, fields: Fields) -> bytes:
        path, given = fields.path(), fields.attributes()
        os.mkdir(path, 0o777 if given.mode is None else given.mode)
        return _status(_OK)

    def _remove_directory(self, fields: Fields) -> bytes:
        os.rmdir(fields.path())
        return _status(_OK)

    def _real_path(self, fields: Fields) -> bytes:
        return _path(os.path.realpath(fields.path()))

    def _expand(self, fields: Fields) -> bytes:
        return _path(os.path.realpath(os.path.expanduser(fields.path())))

    def _read_link(self, fields: Fields) -> bytes:
        return _path(os.readlink(fields.path()))

    def _rename(self, fields: Fields) -> bytes:
        source, target = fields.path(), fields.path()
        if os.path.lexists(target):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(source, target)
        return _status(_OK)

    def _replace(self, fields: Fields) -> bytes:
        os.rename(fields.path(), fields.path())
        return _status(_OK)

    def _link(self, fields: Fields) -> bytes:
        os.link(fields.path(), fields.path(), follow_symlinks=False)
        return _status(_OK)

    def _link_symbolic(self, fields: Fields) -> bytes:
        # OpenSSH's order, which all clients have come to use: the target first.
        os.symlink(fields.path(), fields.path())
        return _status(_OK)

    def _sync(self, fields: Fields) -> bytes:
        os.fsync(self._file(fields)[0])
        return _status(_OK)

    def _limits(self, _fields: Fields) -> bytes:
        limits = (PACKET_BYTES_MAX, READ_BYTES_MAX, READ_BYTES_MAX, HANDLES_MAX)
        return struct.pack(">BQQQQ", _REPLY, *limits)

    def _extended(self, fields: Fields) -> bytes:
        act = self._more.get(fields.text())
        return _status(_UNSUPPORTED, "not supported") if act is None else act(fields)


def _handle_number(fields: Fields) -> int:
    text = fields.text()
    return int.from_bytes(text, "big") if len(text) == 4 else -1


def _status(code: int, text: str = "") -> bytes:
    return struct.pack(">BI", _STATUS, code) + text_of(text.encode()) + text_of(b"")


def _path(path: bytes) -> bytes:
    fields = text_of(path) + text_of(path) + struct.pack(">I", 0)
    return struct.pack(">BI", _NAME, 1) + fields


def _named(found: list[tuple[bytes, os.stat_result]]) -> bytes:
    fields = (text_of(name) + text_of(long_name(name, each)) + attributes_of(each)
              for name, each in found)  # fmt: skip
    return struct.pack(">BI", _NAME, len(found)) + b"".join(fields)


def _apply(target: bytes | int, given: FileAttributes) -> bytes:
    """Set attributes of a file by its path or its descriptor."""
    if given.size is not None:
        os.truncate(target, given.size)
    if given.mode is not None:
        os.chmod(target, given.mode)
    if given.times is not None:
        os.utime(target, given.times)
    if given.owner is not None:
        os.chown(target, *given.owner)
    return _status(_OK)


def serve(given: IO[bytes], out: IO[bytes]) -> None:
    """Answer a client until its end; BrokenPacketError."""
    server = SftpServer()
    try:
        while head := given.read(4):
            size = int.from_bytes(head, "big")
            if len(head) < 4 or not 0 < size <= PACKET_BYTES_MAX:
                raise BrokenPacketError(f"a packet of {size} bytes")
            packet = given.read(size)
            if len(packet) < size:
                raise BrokenPacketError("a packet ends too early")
            answer = server.answer(packet)
            out.write(struct.pack(">I", len(answer)) + answer)
            out.flush()
    finally:
        server.close()


def main(_arguments: list[str]) -> Any:
    """Serve on stdin and stdout; return the exit code."""
    with open(0, "rb", closefd=False) as given, open(1, "wb", closefd=False) as out:
        try:
            serve(given, out)
        except BrokenPipeError:
            os._exit(0)  # the client went; what is buffered goes nowhere
        except BrokenPacketError as error:
            sys.stderr.write(f"sftp: {error}\n")
            return 1
    return 0
