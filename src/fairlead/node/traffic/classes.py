"""Prefix lists, and the intervals that they are compiled to: the longest prefix wins (pure).

The kernel's interval sets refuse what overlaps, so nested prefixes are cut into disjoint intervals
here, and neighbours of one class are joined. What no prefix has is the class `internet`.

A look-up in intervals costs the logarithm of their number, one in a hash table costs the same for
any number. So intervals of IPv4 are cut further, at blocks of 8, 16 and 24 bits, which hash tables
can have; what is finer stays intervals.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

INTERNET = "internet"
#: The classes that are always there, in the order in which people read them.
CLASSES = ("internal", "peered", "storage", INTERNET)
CLASSES_MAX = 8
#: Lengths in bits at which the addresses of IPv4 are cut into blocks, and blocks of one length.
_BLOCK_BITS = (8, 16, 24)
BLOCKS_MAX = 16_384
PREFIXES_MAX = 20_000
FAMILIES = (4, 6)
_CLASS = re.compile(r"[a-z][a-z0-9-]{0,19}")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrefixConflict(ValueError):
    """Two lists give one prefix to different classes, or there are too many."""


@dataclass(frozen=True, slots=True)
class PrefixList:
    """Prefixes of one class."""

    traffic_class: str
    prefixes: tuple[Network, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """Addresses of one class, both ends inclusive."""

    first: Address
    last: Address
    traffic_class: str


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of `bits` bits by their first address, and the class of each; None: not of one class.

    All addresses of a block that is not there are the internet's.
    """

    bits: int
    classes: Mapping[ipaddress.IPv4Address, str | None]


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    traffic_class: str = msgspec.field(name="class")
    source: str
    reason: str
    prefixes: tuple[str, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    list: tuple[_List, ...]


def parse_prefix(text: str) -> Network:
    """Return a prefix; ValueError with what is accepted."""
    try:
        found = ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise ValueError(f"'{text}' is no prefix such as 192.0.2.0/24 or 2001:db8::/32") from error
    if "%" in text:
        raise ValueError(f"'{text}': a prefix has no zone")
    if str(found.network_address) != str(ipaddress.ip_address(text.partition("/")[0])):
        raise ValueError(f"'{text}' has bits behind its length; did you mean {found}?")
    return found


def parse_lists(
    lists: Iterable[tuple[str, Sequence[str]]],
) -> tuple[tuple[PrefixList, ...], list[tuple[int, int | None, str]]]:
    """Return lists of (class, prefixes), and what is wrong.

    A mistake is (index of the list, index of the prefix or None for the class, message); what is
    wrong is left out.
    """
    found: list[PrefixList] = []
    wrong: list[tuple[int, int | None, str]] = []
    seen: dict[Network, str] = {}
    for i, (name, texts) in enumerate(lists):
        if not _CLASS.fullmatch(name):
            accepted = "lower-case letters, digits and '-', 20 characters at most"
            wrong.append((i, None, f"'{name}' is no name of a class; accepted: {accepted}"))
            continue
        prefixes: list[Network] = []
        for j, text in enumerate(texts):
            try:
                prefix = parse_prefix(text)
            except ValueError as error:
                wrong.append((i, j, str(error)))
                continue
            other = seen.setdefault(prefix, name)
            if other != name:
                wrong.append((i, j, f"{prefix} is in the class {other} already"))
            prefixes.append(prefix)
        found.append(PrefixList(name, tuple(prefixes)))
    return tuple(found), wrong


@cache
def shipped_lists() -> tuple[PrefixList, ...]:
    """Return the lists of `prefixes.toml`."""
    text = Path(__file__).with_name("prefixes.toml").read_text("utf-8")
    file = msgspec.convert(tomllib.loads(text), _File)
    found, wrong = parse_lists((each.traffic_class, each.prefixes) for each in file.list)
    assert not wrong, wrong
    return found


def classes_of(lists: Iterable[PrefixList]) -> tuple[str, ...]:
    """Return all classes: those that are always there, and others by name; PrefixConflict."""
    others = {each.traffic_class for each in lists} - set(CLASSES)
    found = (*CLASSES, *sorted(others))
    if len(found) > CLASSES_MAX:
        raise PrefixConflict(f"{len(found)} classes; accepted: {CLASSES_MAX}, with {CLASSES}")
    return found


def by_prefix(shipped: Iterable[PrefixList], own: Iterable[PrefixList]) -> dict[Network, str]:
    """Return the class of each prefix; an administrator's own wins; PrefixConflict."""
    found = {
        prefix: each.traffic_class for each in (*shipped, *own) for prefix in each.prefixes
    }  # fmt: skip
    if len(found) > PREFIXES_MAX:
        raise PrefixConflict(f"{len(found):,} prefixes; accepted: {PREFIXES_MAX:,}")
    return found


def intervals(prefixes: Mapping[Network, str], family: int) -> tuple[Interval, ...]:
    """Return the disjoint intervals of one family, by address, without those of the internet.

    Prefixes nest or are apart, so one pass with a stack of those that are open gives each address
    to the innermost one.
    """
    address = ipaddress.IPv4Address if family == 4 else ipaddress.IPv6Address
    return tuple(
        Interval(address(first), address(last), name)
        for first, last, name in _joined(_pieces(prefixes, family))
        if name != INTERNET
    )


def blocks(found: Sequence[Interval]) -> tuple[tuple[Blocks, ...], tuple[Interval, ...]]:
    """Return disjoint intervals of IPv4 as blocks, short ones first, and intervals of what is left.

    An address is looked up in one length after the other, and then in the intervals, as long as its
    block has no class. A length with more than `BLOCKS_MAX` blocks, and those after it, are left
    to the intervals.
    """
    lengths: list[Blocks] = []
    left = [(int(each.first), int(each.last), each.traffic_class) for each in found]
    for bits in _BLOCK_BITS:
        shift = 32 - bits
        if sum((last >> shift) - (first >> shift) + 1 for first, last, _ in left) > BLOCKS_MAX:
            break
        classes: dict[ipaddress.IPv4Address, str | None] = {}
        finer: list[tuple[int, int, str]] = []
        for first, last, name in left:
            for number in range(first >> shift, (last >> shift) + 1):
                start, end = number << shift, ((number + 1) << shift) - 1
                is_whole = first <= start and end <= last
                classes[ipaddress.IPv4Address(start)] = name if is_whole else None
                if not is_whole:
                    finer.append((max(first, start), min(last, end), name))
        lengths.append(Blocks(bits, classes))
        left = finer
    address = ipaddress.IPv4Address
    rest = tuple(Interval(address(first), address(last), name) for first, last, name in left)
    return tuple(lengths), rest


def _pieces(prefixes: Mapping[Network, str], family: int) -> Iterator[tuple[int, int, str]]:
    """Yield (first, last, class) of disjoint pieces, by address."""
    opened: list[tuple[int, str]] = []
    start = 0

    def close_before(first: float) -> Iterator[tuple[int, int, str]]:
        nonlocal start
        while opened and opened[-1][0] < first:
            last, name = opened.pop()
            if start <= last:
                yield start, last, name
                start = last + 1

    ordered = sorted(
        (int(each.network_address), each.prefixlen, int(each.broadcast_address), name)
        for each, name in prefixes.items()
        if each.version == family
    )
    for first, _, last, name in ordered:
        yield from close_before(first)
        if opened and start < first:
            yield start, first - 1, opened[-1][1]
        start = first
        opened.append((last, name))
    yield from close_before(float("inf"))


def _joined(pieces: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Join pieces of one class that touch."""
    held: tuple[int, int, str] | None = None
    for first, last, name in pieces:
        if held and held[1] + 1 == first and held[2] == name:
            held = held[0], last, name
            continue
        if held:
            yield held
        held = first, last, name
    if held:
        yield held
