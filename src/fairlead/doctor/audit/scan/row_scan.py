"""Adds the rows of many lines up, compiled by numba.

What is met for the first time (a form of URI, an identity, a kind of row) ends the scan at that
line: Python works it out, notes its number in a table, and the scan goes on. All that a scan keeps
lies in one piece of memory, in places of eight bytes; a function takes its address.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from fairlead.doctor.audit.scan.event_scan import (
    ACCEPTED,
    ADDRESS,
    AGENT,
    CODE,
    COMPLETE,
    ENDED,
    ID,
    NODE,
    POD,
    RECEIVED,
    SEEN,
    SPANS_KEPT,
    STAGE,
    STARTED,
    URI,
    USER,
    VERB,
    WAIT,
    scan_event,
)
from fairlead.doctor.audit.scan.json_scan import (
    U,
    byte_at,
    compiled,
    inner,
    number_at,
    prefetch,
    put,
    signed,
    word_at,
)
from fairlead.doctor.audit.scan.uri_scan import (
    NAME,
    NAME_END,
    NAMED,
    NAMESPACE,
    NAMESPACE_END,
    URI_PLACES,
    fold_uri,
    hash_of,
    mix,
)


class Stop(IntEnum):
    """Why a scan ended."""

    END = 0
    NEW_URI = 1
    NEW_IDENTITY = 2
    NEW_ROW = 3
    FULL = 4


OUT_ROWS = 8_192
KINDS = 65_536
GENERATION_MAX = 40_000
#: Places: counters of the scan, numbers of rows in each output, and where and why it stopped.
ROWS, FIRST, LAST, STEPPED, DUPLICATES, EARLY, BEGUN, GENERATION = range(URI_PLACES, URI_PLACES + 8)
NAMES_OUT, PAIRS_OUT, WAITS_OUT, LISTS_OUT, LINES_OUT = range(GENERATION + 1, GENERATION + 6)
WHY, HASH, REQUEST, IDENTITY = range(LINES_OUT + 1, LINES_OUT + 5)
LINE = IDENTITY + 1  # the spans of the line, and what is kept with them
#: Tables: places of hashes, then as many of numbers; `_BITS` are the bits of an index.
RECENT_BITS, FORM_BITS, IDENTITY_BITS, ROW_BITS, PAIR_BITS, SEEN_BITS = 14, 17, 18, 17, 17, 17
RECENT = LINE + SPANS_KEPT
FORMS = RECENT + (2 << RECENT_BITS)
IDENTITIES = FORMS + (2 << FORM_BITS)
ROWS_TABLE = IDENTITIES + (2 << IDENTITY_BITS)
PAIRS = ROWS_TABLE + (2 << ROW_BITS)  # hashes only: a pair that is put out again does no harm
AUDIT_IDS = PAIRS + (1 << PAIR_BITS)  # two generations of hashes
#: Of each kind of row: what it is, how many, and their microseconds, summed and longest.
MARKS = AUDIT_IDS + (2 << SEEN_BITS)
REQUESTS, MICROS, LONGEST = MARKS + KINDS, MARKS + 2 * KINDS, MARKS + 3 * KINDS
CRC = MARKS + 4 * KINDS
OUT = CRC + 256
PLACES = OUT + 10 * OUT_ROWS
LONG, LIST = 1, 2
#: The number of an identity is that of its caller and its own.
OWN_BITS = 20
OWN = (1 << OWN_BITS) - 1
_ZERO, _ONE = U(0), U(1)
_FACTOR, _LOW, _BYTE, _EIGHT = U(2_654_435_761), U(0xFFFFFFFF), U(255), U(8)
_RECENT_SHIFT, _PAIR_SHIFT = U(64 - RECENT_BITS), U(64 - PAIR_BITS)


@inner
def _get(memory: int, place: int) -> int:
    return number_at(memory + 8 * place)


@inner
def _set(memory: int, place: int, number: int) -> None:
    put(memory + 8 * place, number)


@inner
def _count(memory: int, place: int, number: int) -> None:
    put(memory + 8 * place, number_at(memory + 8 * place) + number)


@inner
def _span(memory: int, place: int) -> int:
    return number_at(memory + 8 * (LINE + place))


@inner
def _span_hash(memory: int, place: int) -> np.uint64:
    """Return the hash of a text of the line; 0 for one that is absent."""
    start = _span(memory, place)
    return hash_of(start, _span(memory, place + 1), memory) if start else _ZERO


@inner
def slot(table: int, bits: int, value: np.uint64) -> int:
    """Return the index of a hash in the table at an address, or of its free place."""
    mask = (1 << bits) - 1
    index = signed(value & U(mask))
    while True:
        found = word_at(table + 8 * index)
        if not found or found == value:
            return index
        index = (index + 1) & mask


@compiled
def insert(memory: int, table: int, bits: int, number: int) -> None:
    """Give the hash at which the scan stopped its number in the table at a place."""
    value = word_at(memory + 8 * HASH)
    index = table + slot(memory + 8 * table, bits, value)
    _set(memory, index, signed(value))
    _set(memory, index + (1 << bits), number)


@inner
def _find(table: int, bits: int, value: np.uint64) -> int:
    """Return the number of a hash; -1 when it has none."""
    index = slot(table, bits, value)
    if word_at(table + 8 * index) == _ZERO:
        return -1
    return number_at(table + 8 * (index + (1 << bits)))


@compiled
def is_fresh(value: np.uint64, memory: int) -> bool:
    """Note an audit id; False when it is among the last 40,000 to 80,000."""
    turn = _get(memory, GENERATION) // GENERATION_MAX & 1
    current = memory + 8 * (AUDIT_IDS + (turn << SEEN_BITS))
    previous = memory + 8 * (AUDIT_IDS + ((1 - turn) << SEEN_BITS))
    index = slot(current, SEEN_BITS, value)
    if word_at(current + 8 * index) != _ZERO:
        return False
    if word_at(previous + 8 * slot(previous, SEEN_BITS, value)) != _ZERO:
        return False
    put(current + 8 * index, signed(value))
    _count(memory, GENERATION, 1)
    if _get(memory, GENERATION) % GENERATION_MAX == 0:
        for place in range(1 << SEEN_BITS):
            put(previous + 8 * place, 0)
    return True


@inner
def _prefetch_id(value: np.uint64, memory: int) -> None:
    """Have both places where an audit id may be read while the rest of its line is looked up."""
    place = signed(value & U((1 << SEEN_BITS) - 1))
    prefetch(memory + 8 * (AUDIT_IDS + place))
    prefetch(memory + 8 * (AUDIT_IDS + (1 << SEEN_BITS) + place))


@inner
def _emit(memory: int, kind: int, first: int, second: int) -> None:
    """Append two numbers to one of the outputs."""
    place = OUT + (kind - NAMES_OUT) * 2 * OUT_ROWS + 2 * _get(memory, kind)
    _set(memory, place, first)
    _set(memory, place + 1, second)
    _count(memory, kind, 1)


@inner
def _room(memory: int) -> int:
    """Return how many lines fit into the outputs; each puts out at most one of a kind."""
    largest = 0
    for kind in range(NAMES_OUT, LINES_OUT + 1):
        largest = max(largest, _get(memory, kind))
    return OUT_ROWS - largest


@inner
def _crc(memory: int, crc: np.uint64, byte: int) -> np.uint64:
    return word_at(memory + 8 * (CRC + signed((crc ^ U(byte)) & _BYTE))) ^ (crc >> _EIGHT)


@inner
def _value_of_name(memory: int) -> int:
    """Return what `Distinct` counts `namespace/name` by: its CRC-32 times a factor."""
    crc = _LOW
    for at in range(_get(memory, NAMESPACE), _get(memory, NAMESPACE_END) + 1):
        crc = _crc(memory, crc, byte_at(at))  # up to the slash behind the namespace
    for at in range(_get(memory, NAME), _get(memory, NAME_END)):
        crc = _crc(memory, crc, byte_at(at))
    return signed(((crc ^ _LOW) * _FACTOR) & _LOW)


@inner
def _request_of(memory: int) -> int:
    """Return the number of what the URI asks for; -1 when its form is new."""
    start, end = _span(memory, URI), _span(memory, URI + 1)
    value = hash_of(start, end, memory) | _ONE
    place = RECENT + signed(value >> _RECENT_SHIFT)
    if word_at(memory + 8 * place) == value:
        return _get(memory, place + (1 << RECENT_BITS))
    form = fold_uri(start, end, memory) | _ONE
    request = _find(memory + 8 * FORMS, FORM_BITS, form)
    if request < 0:
        _set(memory, HASH, signed(form))
        return -1
    if _get(memory, NAMED):
        _emit(memory, NAMES_OUT, request, _value_of_name(memory))
    _set(memory, place, signed(value))
    _set(memory, place + (1 << RECENT_BITS), request)
    return request


@inner
def _identity_of(memory: int) -> int:
    """Return the number of the identity; -1 when it is new."""
    value = mix(_span_hash(memory, USER), _span_hash(memory, AGENT), memory)
    value = mix(value, _span_hash(memory, ADDRESS), memory)
    if _span(memory, NODE) or _span(memory, POD):
        value = mix(value, _span_hash(memory, NODE), memory)
        value = mix(value, _span_hash(memory, POD), memory)
    value = value | _ONE
    identity = _find(memory + 8 * IDENTITIES, IDENTITY_BITS, value)
    if identity < 0:
        _set(memory, HASH, signed(value))
    return identity


@inner
def _row_of(memory: int, request: int, identity: int) -> int:
    """Return the number of the row's kind; -1 when it is new."""
    caller = identity >> OWN_BITS
    value = mix(_span_hash(memory, VERB), U(request) << U(32) | U(caller), memory)
    value = mix(value, U(_span(memory, CODE)), memory) | _ONE
    row = _find(memory + 8 * ROWS_TABLE, ROW_BITS, value)
    if row < 0:
        _set(memory, HASH, signed(value))
        _set(memory, REQUEST, request)
        _set(memory, IDENTITY, caller)
    return row


@inner
def _add(memory: int, row: int, identity: int, audit_id: np.uint64) -> None:
    """Add a row up."""
    if _span(memory, WAIT):
        _emit(memory, WAITS_OUT, row, _span(memory, WAIT))
    if not is_fresh(audit_id, memory):
        _count(memory, DUPLICATES, 1)
        return
    start, end = _span(memory, RECEIVED) - 1, _span(memory, ENDED) - 1
    micros = end - start
    if micros < 0 or start <= 0:
        _count(memory, STEPPED, 1)
        micros = 0
    _count(memory, ROWS, 1)
    _count(memory, REQUESTS + row, 1)
    marks = _get(memory, MARKS + row)
    if not marks & LONG:
        _count(memory, MICROS + row, micros)
        if micros > _get(memory, LONGEST + row):
            _set(memory, LONGEST + row, micros)
    if marks & LIST:
        _emit(memory, LISTS_OUT, start // 1_000_000, 0)
    if end > 0:
        if _get(memory, FIRST) == 0 or end < _get(memory, FIRST):
            _set(memory, FIRST, end)
        if end > _get(memory, LAST):
            _set(memory, LAST, end)
    pair = mix(U(row), U(identity), memory) | _ONE
    place = PAIRS + signed(pair >> _PAIR_SHIFT)
    if word_at(memory + 8 * place) != pair:
        _set(memory, place, signed(pair))
        _emit(memory, PAIRS_OUT, row, identity & OWN)


@inner
def _is_usable(memory: int) -> bool:
    return (
        _span(memory, STAGE) == COMPLETE and _span(memory, SEEN) & 1 > 0
        and _span(memory, ID) < _span(memory, ID + 1)
        and _span(memory, URI) < _span(memory, URI + 1)
        and _span(memory, VERB) > 0
        and _span(memory, RECEIVED) > 0 and _span(memory, ENDED) > 0
    )  # fmt: skip


@inner
def _line_end(at: int) -> int:
    while byte_at(at) != 10:
        at += 1
    return at


@compiled
def scan_rows(at: int, end: int, memory: int) -> int:
    """Add the lines in [at, end) up and return where it stopped; the place WHY says why.

    The last line ends in a line feed. Lines that are not of the usual form are put out for the
    decoder.
    """
    spans = memory + 8 * LINE
    room = _room(memory)
    while at < end:
        if room == 0:
            room = _room(memory)
            if room == 0:
                _set(memory, WHY, 4)
                return at
        room -= 1
        after = scan_event(at, spans)
        stage = _span(memory, STAGE)
        if after >= 0 and stage == ACCEPTED:
            _count(memory, EARLY, 1)
        elif after >= 0 and stage == STARTED:
            _count(memory, BEGUN, 1)
        elif after < 0 or not _is_usable(memory):
            after = _line_end(at)
            _emit(memory, LINES_OUT, at, after)
        else:
            audit_id = _span_hash(memory, ID) | _ONE
            _prefetch_id(audit_id, memory)
            request = _request_of(memory)
            identity = _identity_of(memory) if request >= 0 else -1
            row = _row_of(memory, request, identity) if identity >= 0 else -1
            if row < 0:
                _set(memory, WHY, 1 if request < 0 else 2 if identity < 0 else 3)
                return at
            _add(memory, row, identity, audit_id)
        at = after + 1
    _set(memory, WHY, 0)
    return at
