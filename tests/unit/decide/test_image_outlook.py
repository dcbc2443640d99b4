"""What is left to pull before a gang starts: counted where nodes say it, timed as measured."""

from __future__ import annotations

import pytest

from fairlead.decide.images.outlook import ImageOutlook, outlook, pull_rate, size_text
from fairlead.decide.images.view import ImageNode
from fairlead.testing.builders import make_job, make_placement

IMAGE, OTHER = "r.example/torch:1", "r.example/other:1"
NODES = [f"n{i}" for i in range(8)]


def a_node(name: str, **images: int) -> ImageNode:
    return ImageNode(name, name, images, len(images), sum(images.values()), 0, is_open=True)


def nodes_with(count: int) -> dict[str, ImageNode]:
    """Return NODES; the first of them have the image, the last one reports nothing."""
    found = {
        name: a_node(name, **({IMAGE: 17 * 10**9} if i < count else {OTHER: 1}))
        for i, name in enumerate(NODES)
    }
    return {**found, "n7": a_node("n7")}


def of(count: int, rate: float | None) -> tuple[ImageOutlook, ...]:
    job = make_job("train", count=8, image=IMAGE)
    return outlook(job, make_placement(NODES), nodes_with(count), rate)


def test_what_is_left_is_counted_on_nodes_that_say_what_they_have() -> None:
    (found,) = of(3, 1.1e9)
    assert found.words == (
        "r.example/torch:1, 17 GB: on 3 of 7 nodes, the rest in about 15s at 1.1 GB/s, as measured"
    )
    assert found.facts["sizeBytes"] == 17 * 10**9


def test_no_time_is_said_where_nothing_was_measured_or_nobody_knows_the_size() -> None:
    (found,) = of(3, None)
    assert found.words == (
        "r.example/torch:1, 17 GB: on 3 of 7 nodes; how long the rest takes is not known"
    )
    assert "bytesPerSecond" not in found.facts
    (unknown,) = of(0, 1.1e9)
    assert unknown.words == (
        "r.example/torch:1: on 0 of 7 nodes; how long the rest takes is not known"
    )


def test_an_image_that_is_on_all_nodes_is_no_matter() -> None:
    assert of(7, 1.1e9) == ()


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("4.94s", 4.94), ("2m3.5s", 123.5), ("1h0m1s", 3601.0), ("950ms", 0.95), ("9.5µs", 9.5e-6)],
)  # fmt: skip
def test_the_rate_is_read_from_the_words_of_kubelets(time: str, seconds: float) -> None:
    size = 605 * 10**6
    text = (
        f'Successfully pulled image "{IMAGE}" in {time} (9.9s including waiting). '
        f"Image size: {size} bytes."
    )
    assert pull_rate([text]) == pytest.approx(size / seconds)


def test_what_is_no_measure_counts_for_nothing() -> None:
    small = f'Successfully pulled image "{IMAGE}" in 1s (1s waiting). Image size: 300 bytes.'
    texts = [
        "", "Pulled", small, small.replace("1s", "0s").replace("300", "999999999"),
        f'Container image "{IMAGE}" already present on machine',
        small.replace("300", "9" * 40), small.replace("1s", "....s").replace("300", "999999999"),
    ]  # fmt: skip
    assert pull_rate(texts) is None
    assert pull_rate([]) is None


def test_sizes_are_of_three_digits() -> None:
    assert size_text(1.1e9) == "1.1 GB"
