"""How much of some images nodes lack, kept as nodes change what they report."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.kubernetes.core import ContainerImage
from fairlead.model.inventory import image_table
from fairlead.model.inventory.image_table import IMAGES_PER_NODE_MAX, LACKING_MAX, ImageTable

A, B = "docker.io/library/a:latest", "docker.io/library/b:1"


SIZES = st.integers(0, 9)
Step: TypeAlias = tuple[int, dict[str, int]]


def sized(**sizes: int) -> tuple[ContainerImage, ...]:
    return tuple(
        ContainerImage(({"a": "a", "b": "b:1"}[name],), size) for name, size in sizes.items()
    )


def images(*names: str) -> tuple[ContainerImage, ...]:
    return tuple(ContainerImage((name,)) for name in names)


def test_what_nodes_lack_follows_what_they_report() -> None:
    table = ImageTable(4)
    assert not table
    table.set(1, images("a", "b:1"))
    table.set(2, images("b:1"))
    assert table
    assert table.lacking((A, B)).tolist() == [3, 0, 2, 3]
    assert table.lacking((A,)).tolist() == [3, 0, 3, 3]
    table.set(2, images("other", "a"))
    table.set(1, ())
    assert table.lacking((A, B)).tolist() == [3, 3, 0, 3], "b is on no node: all are to pull it"
    assert table.lacking((A,)).tolist() == [3, 3, 0, 3]
    table.resize(6)
    table.set(5, images("a"))
    assert table.lacking((A, B)).tolist() == [3, 3, 0, 3, 3, 0]
    table.set(2, ())
    table.set(5, ())
    assert not table
    assert table.lacking((A,)).tolist() == [0] * 6
    assert table.uneven((A,), np.ones(6, dtype=np.bool_)) is None


def test_each_name_counts_and_a_tag_may_be_another_image_elsewhere() -> None:
    table = ImageTable(3)
    table.set(0, (ContainerImage(("a@sha256:1", "docker.io/library/a:latest")),))
    table.set(1, (ContainerImage(("a@sha256:2", "docker.io/library/a:latest")),))
    table.set(2, (ContainerImage(("a@sha256:2",)), ContainerImage(None)))
    assert table.lacking((A,)).tolist() == [0, 0, 3]
    assert table.lacking(("docker.io/library/a@sha256:2",)).tolist() == [3, 0, 0]


def test_of_a_node_the_first_images_count() -> None:
    table = ImageTable(2)
    others = [f"x{i}" for i in range(IMAGES_PER_NODE_MAX - 1)]
    table.set(0, images(*others, "a"))
    table.set(1, images("y", *others, "a"))
    assert table.lacking((A,)).tolist() == [0, 3]


def test_what_a_node_lacks_is_counted_by_its_bytes() -> None:
    table = ImageTable(4)
    table.set(0, sized(a=17_000, b=300))
    table.set(1, sized(a=17_000))
    table.set(2, sized(b=300))
    assert table.lacking((A, B)).tolist() == [0, 1, 3, LACKING_MAX]
    table.set(0, sized(b=90_000))  # the tag is another image here
    assert table.lacking((A, B)).tolist() == [1, 3, 1, LACKING_MAX]
    table.set(0, ())
    assert table.lacking((A, B)).tolist() == [LACKING_MAX, 1, 3, LACKING_MAX]


def test_a_size_that_cannot_be_true_makes_no_order_up() -> None:
    table = ImageTable(3)
    table.set(0, sized(a=1 << 63, b=-5))
    table.set(1, sized(b=7))
    assert table.lacking((A, B)).tolist() == [0, 3, 3]


@given(st.lists(st.tuples(st.integers(0, 2), st.dictionaries(st.sampled_from("ab"), SIZES))))
def test_what_is_kept_is_what_a_table_that_begins_now_says(steps: list[Step]) -> None:
    kept, now = ImageTable(3), dict[int, dict[str, int]]()
    for slot, held in steps:
        kept.set(slot, sized(**held))
        now[slot] = held
        fresh = ImageTable(3)
        for each, images_ in now.items():
            fresh.set(each, sized(**images_))
        for names in ((A,), (A, B)):
            assert kept.lacking(names).tolist() == fresh.lacking(names).tolist()


def test_what_is_kept_stays_right_however_many_changes_and_images_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image_table, "_NUMBERS_SPARE_MAX", 2)
    monkeypatch.setattr(image_table, "_KEPT_MAX", 2)
    table = ImageTable(3)
    steps = [f"v{i}" for i in range(30)]
    for before, after in pairwise(steps):
        table.set(0, images("a", after))
        table.set(1, images(before))
        for name, expected in (
            (A, [0, 3, 3]),
            (_full(after), [0, 3, 3]),
            (_full(before), [3, 0, 3]),
        ):
            assert table.lacking((name,)).tolist() == expected
            assert table.lacking((name,)).tolist() == expected


def _full(name: str) -> str:
    return f"docker.io/library/{name}:latest"
