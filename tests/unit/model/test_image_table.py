"""Which nodes lack how many of some images, kept as nodes change what they report."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fairlead.api.kubernetes.core import ContainerImage
from fairlead.model.inventory import image_table
from fairlead.model.inventory.image_table import IMAGES_PER_NODE_MAX, LACKING_MAX, ImageTable

A, B = "docker.io/library/a:latest", "docker.io/library/b:1"


def images(*names: str) -> tuple[ContainerImage, ...]:
    return tuple(ContainerImage((name,)) for name in names)


def test_what_nodes_lack_follows_what_they_report() -> None:
    table = ImageTable(4)
    assert not table
    table.set(1, images("a", "b:1"))
    table.set(2, images("b:1"))
    assert table
    assert table.lacking((A, B)).tolist() == [2, 0, 1, 2]
    assert table.lacking((A,)).tolist() == [1, 0, 1, 1]
    table.set(2, images("other", "a"))
    table.set(1, ())
    assert table.lacking((A, B)).tolist() == [2, 2, 1, 2]
    assert table.lacking((A,)).tolist() == [1, 1, 0, 1]
    table.resize(6)
    table.set(5, images("a"))
    assert table.lacking((A, B)).tolist() == [2, 2, 1, 2, 2, 1]
    table.set(2, ())
    table.set(5, ())
    assert not table
    assert table.lacking((A,)).tolist() == [1] * 6


def test_each_name_counts_and_a_tag_may_be_another_image_elsewhere() -> None:
    table = ImageTable(3)
    table.set(0, (ContainerImage(("a@sha256:1", "docker.io/library/a:latest")),))
    table.set(1, (ContainerImage(("a@sha256:2", "docker.io/library/a:latest")),))
    table.set(2, (ContainerImage(("a@sha256:2",)), ContainerImage(None)))
    assert table.lacking((A,)).tolist() == [0, 0, 1]
    assert table.lacking(("docker.io/library/a@sha256:2",)).tolist() == [1, 0, 0]


def test_of_a_node_the_first_images_count_and_of_many_that_are_lacking_a_few() -> None:
    table = ImageTable(2)
    others = [f"x{i}" for i in range(IMAGES_PER_NODE_MAX - 1)]
    table.set(0, images(*others, "a"))
    table.set(1, images("y", *others, "a"))
    assert table.lacking((A,)).tolist() == [0, 1]
    many = tuple(f"docker.io/library/z{i}:latest" for i in range(9))
    assert table.lacking(many).tolist() == [LACKING_MAX, LACKING_MAX]


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
            (A, [0, 1, 1]),
            (_full(after), [0, 1, 1]),
            (_full(before), [1, 0, 1]),
        ):
            assert table.lacking((name,)).tolist() == expected
            assert table.lacking((name,)).tolist() == expected


def _full(name: str) -> str:
    return f"docker.io/library/{name}:latest"
