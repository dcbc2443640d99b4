"""Sets of an array's elements survive the wire whatever is in them, and stay within bounds."""

from __future__ import annotations

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.values.indices import (
    ELEMENTS_MAX,
    INDEX_MAX,
    Indices,
    IndicesError,
    parse_indices,
)
from fairlead.model.element_sets import (
    TEXT_MAX,
    ElementSetError,
    decode_set,
    encode_set,
    lowest,
)

MILLION = parse_indices(f"0-{ELEMENTS_MAX - 1}")
STATUS_MAX = 200_000


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[int]]:
    first = draw(st.integers(0, 300))
    last = draw(st.integers(first, first + 60))
    step = draw(st.integers(1, 9))
    text = draw(st.sampled_from([f"{first}-{last}:{step}", f" {first}-{last}:{step}"]))
    if step == 1:
        text = f"{first}-{last}"
    if first == last:
        text = str(first)
    return text, list(range(first, last + 1, step))


@given(st.lists(ranges(), min_size=1, max_size=8))
def test_a_list_has_the_indices_of_its_ranges_or_names_one_that_is_listed_twice(
    parts: list[tuple[str, list[int]]],
) -> None:
    text = ",".join(part for part, _ in parts)
    listed = [index for _, indices in parts for index in indices]
    try:
        indices = parse_indices(text)
    except IndicesError as error:
        assert len(set(listed)) < len(listed)
        twice = int(str(error).split("index ")[1].split(" ")[0])
        assert listed.count(twice) > 1
        return
    assert list(indices) == sorted(listed)
    assert [indices.position(index) for index in sorted(listed)] == list(range(len(listed)))
    assert all(indices.position(index) is None for index in set(range(400)) - set(listed))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lists no index"),
        ("  ", "lists no index"),
        ("1-", '"1-" is no index'),
        ("1,,2", '"" is no index'),
        ("-3", '"-3" is no index'),
        ("5-2", "write 2-5"),
        ("0-9:0", "step 0"),
        ("0-9%0", '"0-9%0" is no index'),
        ("0-10,7", "index 7 twice"),
        ("3,3", "index 3 twice"),
        (f"{INDEX_MAX + 1}", "too large"),
        ("0-4000000", "4,000,001 elements"),
        ("\u0661", "is no index"),
        ("9" * 70_000, "at most 65536 characters"),
    ],
)
def test_what_is_no_list_of_indices_is_refused_with_the_part_that_is_wrong(
    text: str, said: str
) -> None:
    with pytest.raises(IndicesError, match=said):
        parse_indices(text)


@given(st.sampled_from(["0-199", "5-600:3", "1,4,9-12,400", "7"]).map(parse_indices), st.data())
def test_a_set_survives_the_wire(indices: Indices, data: st.DataObject) -> None:
    elements = data.draw(st.integers(0, (1 << len(indices)) - 1))
    text = encode_set(elements, indices)
    assert decode_set(text, indices) == elements
    positions = [p for p in range(len(indices)) if elements >> p & 1]
    assert lowest(elements, len(indices)) == positions
    assert lowest(elements, 3) == positions[:3]


@pytest.mark.parametrize("share", [0.0, 0.000_02, 0.001, 0.1, 0.5, 0.9, 1.0])
def test_a_million_elements_stay_small_in_any_pattern(share: float) -> None:
    rng = random.Random(f"pattern {share}")
    bits = bytes(
        sum((rng.random() < share) << bit for bit in range(8)) for _ in range(ELEMENTS_MAX // 8)
    )
    elements = int.from_bytes(bits, "little")
    text = encode_set(elements, MILLION)
    assert decode_set(text, MILLION) == elements
    assert len(text) < STATUS_MAX
    if share <= 0.000_02 or share == 1.0:
        assert len(text) < 1_000
    if share == 0.5:
        assert len(text) > TEXT_MAX, "the compressed form was not needed"


def test_neighbours_are_those_of_the_array() -> None:
    assert encode_set(0b10111, parse_indices("0-8:2")) == "0-4,8"


@pytest.mark.parametrize(
    "text",
    ["x", "0-", "9", "2-1", "0,,1", "z:", "z:!!", "z:AAAA", "0-9999999999"],
)
def test_what_is_no_set_of_these_elements_is_refused(text: str) -> None:
    with pytest.raises(ElementSetError):
        decode_set(text, parse_indices("0-8"))


def test_a_bitmap_that_unfolds_to_more_than_the_array_is_refused_and_not_unfolded() -> None:
    bomb = base64.b64encode(zlib.compress(b"\1" * (64 << 20))).decode()
    with pytest.raises(ElementSetError, match="is no bitmap of 9 elements"):
        decode_set(f"z:{bomb}", parse_indices("0-8"))
