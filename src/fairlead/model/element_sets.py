"""Sets of an array's elements: in memory bitmaps over positions, on the wire bounded text.

Bit p of a set, which is one integer, is the element at position p of the array's indices. Written
down, runs of neighbouring elements come first (`0-41,43`; in an array of every second index, 0-6 is
four elements). A set that would take more than TEXT_MAX characters so is written as `z:` and the
base64 form of its compressed bitmap, which bounds it: a million elements in no order take 170 kB.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Collection

from fairlead.api.values.indices import Indices

#: The longest list of runs, in characters.
TEXT_MAX = 16_384
#: What a compressed bitmap begins with.
BITMAP = "z:"
_RUN = re.compile("1+")
_SOME = re.compile(rb"[^\0]", re.DOTALL)
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


class ElementSetError(ValueError):
    """A text that is no set of the array's elements."""


def encode_set(elements: int, indices: Indices) -> str:
    """Return the text of a set; "" of an empty one."""
    if not elements:
        return ""
    parts, size = list[str](), 0
    for run in _RUN.finditer(f"{elements:b}"[::-1]):
        first, last = indices.at(run.start()), indices.at(run.end() - 1)
        parts.append(str(first) if first == last else f"{first}-{last}")
        size += len(parts[-1]) + 1
        if size - 1 > TEXT_MAX:
            bitmap = elements.to_bytes((elements.bit_length() + 7) // 8, "little")
            return BITMAP + base64.b64encode(zlib.compress(bitmap)).decode("ascii")
    return ",".join(parts)


def decode_set(text: str, indices: Indices) -> int:
    """Return the set of a text. ElementSetError for what is no text of a set of these elements."""
    if text.startswith(BITMAP):
        return _decode_bitmap(text[len(BITMAP) :], len(indices))
    elements = 0
    for part in text.split(",") if text else ():
        match = _PART.fullmatch(part)
        if match is None:
            raise ElementSetError(f'"{part[:40]}" is no run of elements')
        first = indices.position(int(match[1]))
        last = first if match[2] is None else indices.position(int(match[2]))
        if first is None or last is None or last < first:
            raise ElementSetError(f'"{part[:40]}" does not begin and end with an element')
        elements |= ((1 << (last - first + 1)) - 1) << first
    return elements


def _decode_bitmap(text: str, count: int) -> int:
    size_max = (count + 7) // 8
    try:
        packed = base64.b64decode(text.encode("ascii"), validate=True)
        unpacker = zlib.decompressobj()
        bitmap = unpacker.decompress(packed, size_max + 1)  # bounded, whatever it claims to be
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ElementSetError(f"is no compressed bitmap: {error}") from error
    elements = int.from_bytes(bitmap, "little")
    if not unpacker.eof or elements.bit_length() > count:
        raise ElementSetError(f"is no bitmap of {count:,} elements")
    return elements


class Members:
    """Tells in constant time whether a position is in a set, for questions about many of them."""

    def __init__(self, elements: int) -> None:
        self._bytes = elements.to_bytes((elements.bit_length() + 7) // 8, "little")

    def __contains__(self, position: int) -> bool:
        """True when the element at the position is in the set."""
        place = position >> 3
        return place < len(self._bytes) and bool(self._bytes[place] >> (position & 7) & 1)


def set_of(positions: Collection[int]) -> int:
    """Return the set of these positions."""
    if not positions:
        return 0
    bits = bytearray((max(positions) >> 3) + 1)
    for position in positions:
        bits[position >> 3] |= 1 << (position & 7)
    return int.from_bytes(bits, "little")


def lowest(elements: int, count: int) -> list[int]:
    """Return the first positions of a set in ascending order, at most `count` of them."""
    found: list[int] = []
    if not elements:
        return found
    begin = ((elements & -elements).bit_length() - 1) >> 3
    octets = (elements >> 8 * begin).to_bytes((elements.bit_length() + 7) // 8 - begin, "little")
    for match in _SOME.finditer(octets):
        first, octet = (begin + match.start()) * 8, octets[match.start()]
        found += [first + bit for bit in range(8) if octet >> bit & 1]
        if len(found) >= count:
            break
    return found[:count]
