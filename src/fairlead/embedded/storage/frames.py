"""The frames of the log: length, crc32, payload; and what a damaged one means.

The first frame of each batch that was written with one sync says so. A batch begins only when the
one before it is on disk. So damage with the beginning of a batch behind it has hit acknowledged
writes, and damage without is the batch that a crash interrupted: the difference between refusing to
start and cutting a torn end away. In logs of an earlier version no frame says so; there, damage in
the last log always counts as a torn end.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

_FRAME = struct.Struct("<II")
_PAYLOAD = struct.Struct("<QBBHHH")  # version, operation, place, lengths of table, ns, name
_PUT, _DELETE, _END = 1, 2, 3
_WITHIN, _BEGINS = 0, 1  # place in the batch
FRAME_BYTES_MAX = 64 << 20
#: The end of a version (below 2**48), the operation and the place of a frame that begins a batch.
_BEGINNINGS = (bytes((0, 0, _PUT, _BEGINS)), bytes((0, 0, _DELETE, _BEGINS)))
_BEGINNING_OFFSET = _FRAME.size + 6


class LoggedWrite(msgspec.Struct, frozen=True, gc=False):
    """One logged write: `data` None is a deletion."""

    version: int
    table: str
    namespace: str
    name: str
    data: bytes | None


def encode_frame(entry: LoggedWrite) -> bytes:
    """Return the frame of one write."""
    return _encode(entry, _WITHIN)


def encode_batch(entries: Sequence[LoggedWrite]) -> bytes:
    """Return the frames of writes that become durable together; at least one."""
    frames = list(map(encode_frame, entries))
    frames[0] = _encode(entries[0], _BEGINS)
    return b"".join(frames)


def encode_end(version: int, count: int) -> bytes:
    """Return the frame that ends a snapshot of `count` objects."""
    return _frame(LoggedWrite(version, "", "", str(count), None), _END, _WITHIN, b"")


def _encode(entry: LoggedWrite, place: int) -> bytes:
    if entry.data is None:
        return _frame(entry, _DELETE, place, b"")
    return _frame(entry, _PUT, place, entry.data)


def _frame(entry: LoggedWrite, operation: int, place: int, data: bytes) -> bytes:
    table, namespace, name = entry.table.encode(), entry.namespace.encode(), entry.name.encode()
    head = _PAYLOAD.pack(entry.version, operation, place, len(table), len(namespace), len(name))
    payload = b"".join((head, table, namespace, name, data))
    return _FRAME.pack(len(payload), crc32(payload)) + payload


def read_frames(path: Path) -> Iterator[tuple[int, LoggedWrite]]:
    """Yield (offset of the frame's end, entry) up to the first frame that is cut off or damaged.

    The end frame of a snapshot comes as an entry of table "" with the count in `name`.
    """
    if path.stat().st_size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        offset, size = 0, len(data)
        while offset + _FRAME.size <= size:
            length, checksum = _FRAME.unpack_from(data, offset)
            end = offset + _FRAME.size + length
            if length < _PAYLOAD.size or length > FRAME_BYTES_MAX or end > size:
                return
            payload = data[offset + _FRAME.size : end]
            if crc32(payload) != checksum:
                return
            yield end, _decode(payload)
            offset = end


def batch_begins_after(path: Path, offset: int) -> bool:
    """True when a whole frame that begins a batch stands anywhere after the offset, exclusive."""
    if path.stat().st_size <= offset:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for pattern in _BEGINNINGS:
            found = data.find(pattern, offset + 1 + _BEGINNING_OFFSET)
            while found != -1:
                if _is_frame(data, found - _BEGINNING_OFFSET):
                    return True
                found = data.find(pattern, found + 1)
    return False


def _is_frame(data: mmap.mmap, offset: int) -> bool:
    length, checksum = _FRAME.unpack_from(data, offset)
    begin = offset + _FRAME.size
    if not _PAYLOAD.size <= length <= min(FRAME_BYTES_MAX, len(data) - begin):
        return False
    return crc32(data[begin : begin + length]) == checksum


def _decode(payload: bytes) -> LoggedWrite:
    version, operation, _, table, namespace, name = _PAYLOAD.unpack_from(payload)
    a = _PAYLOAD.size
    b = a + table
    c = b + namespace
    d = c + name
    return LoggedWrite(
        version,
        payload[a:b].decode(),
        payload[b:c].decode(),
        payload[c:d].decode(),
        payload[d:] if operation == _PUT else None,
    )
