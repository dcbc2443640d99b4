"""Intervals give each address the class of its longest prefix, as `ipaddress` says."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.input.errors import CliError
from fairlead.input.sections import parse
from fairlead.node.registry import conflicts
from fairlead.node.settings import AgentSettings
from fairlead.node.traffic.classes import (
    BLOCKS_MAX,
    INTERNET,
    Blocks,
    Interval,
    Network,
    blocks,
    by_prefix,
    intervals,
    parse_lists,
    shipped_lists,
)

CLASSES = ("internal", "peered", "storage", INTERNET)


@st.composite
def networks(draw: st.DrawFn, family: int) -> Network:
    """Prefixes that nest and touch: their first bits are few."""
    bits = 32 if family == 4 else 128
    length = draw(
        st.sampled_from((0, 1, 7, 8, 9, 10, 11, 12, 16, 17, 24, bits - 2, bits - 1, bits))
    )
    head = draw(st.integers(0, (1 << 12) - 1)) << (bits - 12)
    tail = draw(st.sampled_from((0, 1, 2, 3, 4, (1 << (bits - 12)) - 1)))
    value = (head | tail) >> (bits - length) << (bits - length) if length else 0
    kind = ipaddress.IPv4Network if family == 4 else ipaddress.IPv6Network
    return kind((value, length))


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, dict[Network, str]]:
    family = draw(st.sampled_from((4, 6)))
    return family, draw(
        st.dictionaries(networks(family), st.sampled_from(CLASSES), min_size=1, max_size=24)
    )


def longest(table: dict[Network, str], address: object) -> str:
    having = [each for each in table if address in each]
    return table[max(having, key=lambda each: each.prefixlen)] if having else INTERNET


@given(tables())
def test_each_address_has_the_class_of_its_longest_prefix(
    drawn: tuple[int, dict[Network, str]],
) -> None:
    family, table = drawn
    found = intervals(table, family)
    last = (1 << (32 if family == 4 else 128)) - 1
    kind = ipaddress.IPv4Address if family == 4 else ipaddress.IPv6Address
    edges = {int(each[i]) + step for each in table for i in (0, -1) for step in (-1, 0, 1)}
    for number in sorted(each for each in edges if 0 <= each <= last):
        address = kind(number)
        got = [each.traffic_class for each in found if each.first <= address <= each.last]
        wanted = longest(table, address)
        assert got == ([] if wanted == INTERNET else [wanted]), address


def looked_up(
    lengths: Sequence[Blocks], left: Sequence[Interval], address: ipaddress.IPv4Address
) -> str:
    """Return the class of an address, as the kernel finds it."""
    for each in lengths:
        first = ipaddress.IPv4Network((address, each.bits), strict=False).network_address
        found = each.classes.get(first, INTERNET)
        if found is not None:
            return found
    return next((e.traffic_class for e in left if e.first <= address <= e.last), INTERNET)


@given(st.dictionaries(networks(4), st.sampled_from(CLASSES), min_size=1, max_size=12))
def test_blocks_and_what_is_left_give_each_address_the_class_of_its_longest_prefix(
    table: dict[Network, str],
) -> None:
    lengths, left = blocks(intervals(table, 4))
    assert all(len(each.classes) <= BLOCKS_MAX for each in lengths)
    edges = {int(each[i]) + step for each in table for i in (0, -1) for step in (-1, 0, 1)}
    for number in sorted(each for each in edges if 0 <= each < 1 << 32):
        address = ipaddress.IPv4Address(number)
        assert looked_up(lengths, left, address) == longest(table, address), address


def test_blocks_that_are_too_many_are_left_to_the_intervals() -> None:
    most = [Interval(ipaddress.IPv4Address(n << 24 | 1), ipaddress.IPv4Address((n + 1 << 24) - 1),
                     "peered") for n in range(65)]  # fmt: skip
    assert [each.bits for each in blocks(most[:64])[0]] == [8, 16, 24]
    lengths, left = blocks(most)
    assert [each.bits for each in lengths] == [8]
    assert left == tuple(most)
    assert looked_up(lengths, left, ipaddress.IPv4Address("7.0.0.0")) == INTERNET
    assert looked_up(lengths, left, ipaddress.IPv4Address("7.0.0.1")) == "peered"


@given(tables())
def test_intervals_are_apart_in_order_and_joined(drawn: tuple[int, dict[Network, str]]) -> None:
    found = intervals(drawn[1], drawn[0])
    for one, next_ in itertools.pairwise(found):
        assert one.last < next_.first
        touches = int(one.last) + 1 == int(next_.first)
        assert not (touches and one.traffic_class == next_.traffic_class)


def test_the_shipped_lists_say_internal_of_private_space_and_nothing_of_the_rest() -> None:
    table = by_prefix(shipped_lists(), ())
    for address, wanted in (
        ("10.1.2.3", "internal"), ("172.31.0.1", "internal"), ("192.168.0.1", "internal"),
        ("100.64.0.1", "internal"), ("169.254.169.254", "internal"), ("fd00::1", "internal"),
        ("fe80::1", "internal"), ("199.36.153.9", "storage"), ("8.8.8.8", INTERNET),
        ("2a00:1450::1", INTERNET), ("172.32.0.1", INTERNET), ("11.0.0.1", INTERNET),
    ):  # fmt: skip
        assert longest(table, ipaddress.ip_address(address)) == wanted, address


def test_an_administrators_list_wins_where_the_prefix_is_the_same_and_where_it_is_longer() -> None:
    own, wrong = parse_lists([("peered", ("10.0.0.0/8",)), ("lab", ("192.168.7.0/24",))])
    assert wrong == []
    table = by_prefix(shipped_lists(), own)
    assert longest(table, ipaddress.ip_address("10.1.2.3")) == "peered"
    assert longest(table, ipaddress.ip_address("192.168.7.1")) == "lab"
    assert longest(table, ipaddress.ip_address("192.168.8.1")) == "internal"


def test_each_wrong_prefix_is_refused_with_its_line() -> None:
    text = """\
traffic:
  pods: /run/pods.json
  lists:
    - class: peered
      prefixes:
        - 203.0.113.0/24
        - 203.0.113.7/24
        - 2001:db8::/129
        - everything
    - class: Lab 1
      prefixes: []
    - class: lab
      prefixes: [203.0.113.0/24, fe80::1%eth0]
"""
    with pytest.raises(CliError) as caught:
        parse(text, AgentSettings, conflicts, source="node.yaml")
    found = [(each.where, each.message) for each in caught.value.problems]
    assert found == [
        ("node.yaml:7:11", "'203.0.113.7/24' has bits behind its length; "
                           "did you mean 203.0.113.0/24?"),
        ("node.yaml:8:11", "'2001:db8::/129' is no prefix such as 192.0.2.0/24 or 2001:db8::/32"),
        ("node.yaml:9:11", "'everything' is no prefix such as 192.0.2.0/24 or 2001:db8::/32"),
        ("node.yaml:10:7", "'Lab 1' is no name of a class; accepted: lower-case "
                           "letters, digits and '-', 20 characters at most"),
        ("node.yaml:13:18", "203.0.113.0/24 is in the class peered already"),
        ("node.yaml:13:34", "'fe80::1%eth0': a prefix has no zone"),
    ]  # fmt: skip


def test_more_classes_than_the_kernels_table_has_are_refused() -> None:
    lists = "".join(f"\n    - {{class: own-{n}, prefixes: []}}" for n in range(5))
    with pytest.raises(CliError, match="9 classes; accepted: 8"):
        parse(f"traffic:\n  lists:{lists}\n", AgentSettings, conflicts, source="node.yaml")
