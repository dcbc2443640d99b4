"""Metrics out of files that other libraries write: TensorBoard's events, W&B's offline runs.

Both are frames around messages of protobuf, of which a handful of fields is read here, from a
stream that may be cut anywhere: what has not come to its end yet is waited for. A frame that is
larger than a fact can be is passed over, and bytes that are no such file end its reading. Formats:
TFRecord (tensorflow `core/lib/io/record_writer.h`) with `event.proto` and `summary.proto`; the log
of LevelDB (`doc/log_format.md`) with `wandb_internal.proto`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple

#: A message that is larger has no number that is a metric: images, graphs, the code of a model.
MESSAGE_BYTES_MAX = 1 << 20
#: A number of protobuf has so many bytes at most.
_VARINT_BYTES_MAX = 10
_CRC_POLYNOMIAL = 0x82F63B78
_CRC_MASK = 0xA282EAD8
_HEAD = struct.Struct("<QI")
_DATA_CRC_BYTES = 4
_BLOCK_BYTES = 32768
_LOG_HEAD = struct.Struct("<IHB")
_WANDB_BEGIN = b":W&B"
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_WHOLE_NUMBER, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
#: Tensors of one number by their type: the struct of a `tensor_content`, and the field of values.
_TENSORS = {1: ("<f", 5), 2: ("<d", 6), 3: ("<i", 7), 9: ("<q", 10)}
_WHOLE_TENSORS = (3, 9)


class NotMetricFileError(Exception):
    """The bytes are none of such a file, or it is damaged; where."""


class MetricPoint(NamedTuple):
    """A value of a metric; without a step where none is known."""

    name: str
    value: float
    step: int | None


class RunParameter(NamedTuple):
    """A parameter of the run."""

    name: str
    value: str | float | bool | None


Fact = MetricPoint | RunParameter


class TensorBoardEvents:
    """Reads a file of TensorBoard's events, piece by piece."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._passes = 0  # bytes of a message that is too large

    def feed(self, data: bytes) -> list[Fact]:
        """Return the scalars of the events that are whole now; NotMetricFileError."""
        if self._passes:
            passed = min(self._passes, len(data))
            self._passes -= passed
            data = data[passed:]
        self._data += data
        found: list[Fact] = []
        at = 0
        while len(self._data) - at >= _HEAD.size:
            size, check = _HEAD.unpack_from(self._data, at)
            if _masked_crc(bytes(self._data[at : at + 8])) != check:
                raise NotMetricFileError("it is no file of events, or it is damaged")
            whole = _HEAD.size + size + _DATA_CRC_BYTES
            if size > MESSAGE_BYTES_MAX:
                self._passes = max(0, at + whole - len(self._data))
                at = min(at + whole, len(self._data))
                continue
            if len(self._data) - at < whole:
                break
            begin = at + _HEAD.size
            found += _event(bytes(self._data[begin : begin + size]))
            at += whole
        del self._data[:at]
        return found


class WandbRun:
    """Reads a file of a W&B run, piece by piece."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0  # of the file
        self._message: bytearray | None = None  # of which pieces have come

    def feed(self, data: bytes) -> list[Fact]:
        """Return metrics and parameters of the records that are whole now; NotMetricFileError."""
        self._data += data
        found: list[Fact] = []
        while True:
            left = _BLOCK_BYTES - self._at % _BLOCK_BYTES
            if self._at == 0:
                taken = self._begin()
            elif left < _LOG_HEAD.size:
                taken = left if len(self._data) >= left else 0
            else:
                taken = self._record(left, found)
            if not taken:
                return found
            del self._data[:taken]
            self._at += taken

    def _begin(self) -> int:
        if not _WANDB_BEGIN.startswith(self._data[: len(_WANDB_BEGIN)]):
            raise NotMetricFileError("it is no file of a W&B run")
        return _LOG_HEAD.size if len(self._data) >= _LOG_HEAD.size else 0

    def _record(self, left: int, found: list[Fact]) -> int:
        """Take the next piece of a message; return its bytes, 0 where it is not whole yet."""
        if len(self._data) < _LOG_HEAD.size:
            return 0
        _, size, kind = _LOG_HEAD.unpack_from(self._data)
        whole = _LOG_HEAD.size + size
        if whole > left or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            raise NotMetricFileError(f"it is damaged at byte {self._at}")
        if len(self._data) < whole:
            return 0
        piece = self._data[_LOG_HEAD.size : whole]
        if kind in (_FULL, _FIRST):
            self._message = bytearray()
        if self._message is not None:
            self._message += piece
            if len(self._message) > MESSAGE_BYTES_MAX:
                self._message = None
            elif kind in (_FULL, _LAST):
                found += _wandb_record(bytes(self._message))
                self._message = None
        return whole


def _masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of TFRecord, of some bytes only."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CRC_POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF


class _Field(NamedTuple):
    """A field of a message: its number, and its value by its wire type."""

    number: int
    kind: int
    whole: int
    data: bytes


def _fields(message: bytes) -> Iterator[_Field]:
    """Yield the fields of a message of protobuf; NotMetricFileError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        whole, size = 0, 0
        if kind == _WHOLE_NUMBER:
            whole, at = _varint(message, at)
        elif kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise NotMetricFileError("a message is damaged")
        if at + size > len(message):
            raise NotMetricFileError("a message is damaged")
        yield _Field(number, kind, whole, message[at : at + size])
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found & 0xFFFFFFFFFFFFFFFF, at
    raise NotMetricFileError("a message is damaged")


def _signed(whole: int) -> int:
    return whole - (1 << 64) if whole >> 63 else whole


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _event(message: bytes) -> list[Fact]:
    """Return the scalars of an `Event`."""
    step, found = 0, list[tuple[str, float]]()
    for field in _fields(message):
        if field.number == 2 and field.kind == _WHOLE_NUMBER:
            step = _signed(field.whole)
        elif field.number == 5 and field.kind == _BYTES:
            values = [each.data for each in _fields(field.data) if each.number == 1]
            found += filter(None, map(_summary_value, values))
    return [MetricPoint(name, value, step if step >= 0 else None) for name, value in found]


def _summary_value(message: bytes) -> tuple[str, float] | None:
    """Return tag and scalar of a `Summary.Value`; None for an image, a histogram, a text."""
    tag, value = "", None
    for field in _fields(message):
        if field.number == 1 and field.kind == _BYTES:
            tag = _text(field.data)
        elif field.number == 2 and field.kind == _FOUR:
            value = struct.unpack("<f", field.data)[0]
        elif field.number == 8 and field.kind == _BYTES:
            value = _tensor(field.data)
    return None if value is None else (tag, value)


def _tensor(message: bytes) -> float | None:
    """Return the number of a `TensorProto` that has one, and no dimension; else None."""
    fields = list(_fields(message))
    kinds = [each.whole for each in fields if each.number == 1 and each.kind == _WHOLE_NUMBER]
    form, values = _TENSORS.get(kinds[-1] if kinds else 0, ("", 0))
    if not form or any(
        each.number == 2 and any(inner.number == 2 for inner in _fields(each.data))
        for each in fields
    ):
        return None
    for each in fields:
        if each.number == 4 and each.kind == _BYTES and len(each.data) == struct.calcsize(form):
            return float(struct.unpack(form, each.data)[0])
        if each.number != values:
            continue
        if each.kind == _WHOLE_NUMBER:
            return float(_signed(each.whole))
        if kinds[-1] in _WHOLE_TENSORS:  # packed
            whole, at = _varint(each.data, 0)
            return float(_signed(whole)) if at == len(each.data) else None
        if len(each.data) == struct.calcsize(form):
            return float(struct.unpack(form, each.data)[0])
    return None


def _wandb_record(message: bytes) -> list[Fact]:
    """Return what a `Record` says of metrics (`HistoryRecord`) and parameters (`ConfigRecord`)."""
    found: list[Fact] = []
    for field in _fields(message):
        if field.kind != _BYTES:
            continue
        if field.number == 2:
            found += _history(field.data)
        elif field.number == 5:
            found += _config(field.data)
        elif field.number == 17:  # RunRecord, with the first configuration
            for inner in _fields(field.data):
                if inner.number == 4 and inner.kind == _BYTES:
                    found += _config(inner.data)
    return found


def _history(message: bytes) -> list[Fact]:
    step, found = None, list[tuple[str, float]]()
    for field in _fields(message):
        if field.number == 2 and field.kind == _BYTES:
            step = next(
                (_signed(each.whole) for each in _fields(field.data) if each.number == 1), 0
            )
        elif field.number == 1 and field.kind == _BYTES:
            name, value = _item(field.data)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and not name.startswith("_"):
                found.append((name, _as_float(value)))
            elif is_number and name == "_step" and step is None:
                step = int(_as_float(value)) if abs(_as_float(value)) < 1 << 53 else None
    return [MetricPoint(name, value, step) for name, value in found]


def _config(message: bytes) -> list[Fact]:
    found: list[Fact] = []
    for field in _fields(message):
        if field.number == 1 and field.kind == _BYTES:
            name, value = _item(field.data)
            if not name.startswith("_") and isinstance(value, (str, int, float, type(None))):
                found.append(RunParameter(name, value))
    return found


def _item(message: bytes) -> tuple[str, object]:
    """Return the name of an item, with parts joined by dots, and its value; "" for none."""
    key, parts, value = "", list[str](), None
    for field in _fields(message):
        if field.kind != _BYTES:
            continue
        if field.number == 1:
            key = _text(field.data)
        elif field.number == 2:
            parts.append(_text(field.data))
        elif field.number == 16:
            try:
                value = json.loads(field.data)
            except (ValueError, RecursionError):
                return "_", None
    return ".".join([*filter(None, [key]), *parts]) or "_", value


def _as_float(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else float("nan")
    except OverflowError:
        return float("nan")
