"""Hashes what a request URI asks for, without names and values, compiled by numba.

Two URIs with the same hash have the same `Request`: the hash covers the path without the namespace
and the name of an object, and of the query whatever decides the shape (see `request.shape_of`).
"""

from __future__ import annotations

import numpy as np

from fairlead.doctor.audit.scan.json_scan import (
    U,
    byte_at,
    compiled,
    inner,
    number_at,
    put,
    word,
    word_at,
)

_TWO, _FIVE, _SIX, _SEVEN = (U((1 << 8 * size) - 1) for size in (2, 5, 6, 7))
_API, _APIS = word(b"/api/"), word(b"/apis/")
_NAMESPACES, _NAMESPACES_END = word(b"/namespa"), word(b"espaces/")
_STATUS, _FINALIZE = word(b"status"), word(b"finalize")
_CONTINUE = word(b"continue")
_VERSION, _VERSION_END = word(b"resource"), word(b"eVersion")
_TIMEOUT, _TIMEOUT_END = word(b"timeout"), word(b"tSeconds")
_LABEL, _FIELD, _SELECTOR_END = word(b"labelSel"), word(b"fieldSel"), word(b"Selector")
_SHIFT, _BYTE = U(32), U(1)
QUERY_MAX = 4096
SLASHES_MAX = 8
#: Places of eight bytes in the memory of a scan: two odd numbers that are drawn for each scan, and
#: room for the places of slashes and names in a path.
KEYS, SLASHES = 0, 2
NAMED, NAMESPACE, NAMESPACE_END, NAME, NAME_END = range(10, 15)
URI_PLACES = 15


@inner
def mix(value: np.uint64, more: np.uint64, memory: int) -> np.uint64:
    """Return a hash of both, in this order."""
    value = ((value * word_at(memory + 8)) ^ more) * word_at(memory)
    value = (value ^ (value >> _SHIFT)) * word_at(memory + 8)
    return value ^ (value >> _SHIFT)


@compiled
def hash_of(at: int, end: int, memory: int) -> np.uint64:
    """Return a hash of the bytes in [at, end); seven bytes more must be readable."""
    value = U(end - at) * word_at(memory + 8)
    while at + 8 <= end:
        value = (value ^ word_at(at)) * word_at(memory)
        value = value ^ (value >> _SHIFT)
        at += 8
    return mix(value, word_at(at) & ((_BYTE << U(8 * (end - at))) - _BYTE), memory)


@inner
def fold_uri(at: int, end: int, memory: int) -> np.uint64:
    """Return the hash of what a URI asks for.

    The place NAMED is 1 where the path is of an object in a namespace; the places of both names
    are then kept, and the hash covers neither.
    """
    query = _path_end(at, end, memory)
    value = _fold_path(at, query, memory)
    if query == end:
        return value
    if end - query > QUERY_MAX:
        return mix(value, hash_of(query, end, memory), memory)
    at = query + 1
    while at < end:
        after = _pair_end(at, end)
        value = _fold_pair(at, after, memory, value)
        at = after + (6 if after < end and byte_at(after) == 92 else 1)
    return value


@inner
def _path_end(at: int, end: int, memory: int) -> int:
    """Return where the path ends and keep where its slashes are.

    The place NAMED is the number of slashes, or 0 when the path has escapes or too many parts.
    """
    count, is_plain = 0, True
    while at < end:
        byte = byte_at(at)
        if byte == 63:
            break
        if byte == 47:
            if count < SLASHES_MAX:
                put(memory + 8 * (SLASHES + count), at)
            count += 1
        is_plain = is_plain and byte != 37 and byte != 92
        at += 1
    put(memory + 8 * NAMED, count if is_plain and count <= SLASHES_MAX else 0)
    return at


@inner
def _slash(memory: int, number: int) -> int:
    return number_at(memory + 8 * (SLASHES + number))


@inner
def _fold_path(at: int, end: int, memory: int) -> np.uint64:
    count = number_at(memory + 8 * NAMED)
    put(memory + 8 * NAMED, 0)
    shift = -1
    if word_at(at) & _FIVE == _API:
        shift = 0
    elif word_at(at) & _SIX == _APIS:
        shift = 1
    if shift < 0 or (count != 6 + shift and count != 7 + shift):
        return hash_of(at, end, memory)
    before, namespace = _slash(memory, 2 + shift), _slash(memory, 3 + shift)
    resource, name = _slash(memory, 4 + shift), _slash(memory, 5 + shift)
    after = _slash(memory, 6 + shift) if count == 7 + shift else end
    length = name - resource - 1
    is_part = (length == 6 and word_at(resource + 1) & _SIX == _STATUS) or (
        length == 8 and word_at(resource + 1) == _FINALIZE
    )
    if (
        word_at(before) != _NAMESPACES or word_at(before + 4) != _NAMESPACES_END
        or namespace != before + 11 or after == name + 1 or is_part
    ):  # fmt: skip
        return hash_of(at, end, memory)
    put(memory + 8 * NAMED, 1)
    put(memory + 8 * NAMESPACE, namespace + 1)
    put(memory + 8 * NAMESPACE_END, resource)
    put(memory + 8 * NAME, name + 1)
    put(memory + 8 * NAME_END, after)
    value = mix(hash_of(at, namespace, memory), hash_of(resource, name, memory), memory)
    return mix(value, hash_of(after, end, memory), memory)


@inner
def _pair_end(at: int, end: int) -> int:
    """Return where a pair of a query ends: at `&`, as it is or as JSON escapes it."""
    while at < end:
        byte = byte_at(at)
        if byte == 38 or (byte == 92 and byte_at(at + 4) == 50):
            return at
        at += 1
    return end


@inner
def _fold_pair(at: int, end: int, memory: int, value: np.uint64) -> np.uint64:
    """Return the hash after a pair: of the values that do not matter, only whether they are empty.

    A value with escapes or spaces is taken as it is.
    """
    sign = at
    while sign < end and byte_at(sign) != 61:
        sign += 1
    length, size = sign - at, end - sign - 1
    first = word_at(at)
    if sign >= end:
        return mix(value, hash_of(at, end, memory), memory)
    if (length == 14 and first & _SEVEN == _TIMEOUT and word_at(at + 6) == _TIMEOUT_END) or (
        length == 7 and first & _SEVEN == _TIMEOUT
    ):
        return value
    is_label = length == 13 and first == _LABEL and word_at(at + 5) == _SELECTOR_END
    if is_label or (length == 8 and first == _CONTINUE):
        return mix(value, first + U(size > 0), memory)
    if length == 15 and first == _VERSION and word_at(at + 7) == _VERSION_END:
        if _is_number(sign + 1, end):
            return mix(value, first + U(size > 1 or byte_at(sign + 1) != 48), memory)
    elif length == 13 and first == _FIELD and word_at(at + 5) == _SELECTOR_END:
        return mix(value, _fold_fields(sign + 1, end, memory), memory)
    return mix(value, hash_of(at, end, memory), memory)


@inner
def _is_number(at: int, end: int) -> bool:
    if at >= end:
        return False
    while at < end:
        if byte_at(at) < 48 or byte_at(at) > 57:
            return False
        at += 1
    return True


@inner
def _fold_fields(at: int, end: int, memory: int) -> np.uint64:
    """Return the hash of the names in a field selector; of all of it where it has other escapes."""
    value = _FIELD
    first, begin, is_name = at, at, True
    while at < end:
        byte = byte_at(at)
        size, mark = 1, byte
        if byte == 37:
            size, mark = 3, 0
            if byte_at(at + 1) == 51 and byte_at(at + 2) == 68:
                mark = 61
            elif byte_at(at + 1) == 50 and byte_at(at + 2) == 67:
                mark = 44
        if mark == 0 or byte == 92 or byte == 43:
            return hash_of(first, end, memory)
        if is_name and (mark == 61 or mark == 44):
            value = mix(value, hash_of(begin, at, memory), memory)
            is_name = False
        if mark == 44:
            begin, is_name = at + size, True
        at += size
    if is_name:
        value = mix(value, hash_of(begin, end, memory), memory)
    return value
