"""What is left to pull before a gang starts: counted where nodes say it, timed as measured."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.kubernetes.core import Container, Event, EventSource, PodTemplate
from fairlead.decide.images.outlook import NOT_MEASURED, GangOutlook, PullRates, outlook, size_text
from fairlead.decide.images.pulled import pulls_of
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


def of(count: int, rates: PullRates) -> GangOutlook:
    job = make_job("train", count=8, image=IMAGE)
    return outlook(job, make_placement(NODES), nodes_with(count), rates)


def pulled(image: str, seconds: str, size: int = 11 * 10**8) -> str:
    """Return what a kubelet says of a pull."""
    return (
        f'Successfully pulled image "{image}" in {seconds} (9.9s including waiting). '
        f"Image size: {size} bytes."
    )


def measured(*pulls: tuple[str, str]) -> PullRates:
    """Return the rates of pulls: of each its node, and what its kubelet says."""
    return PullRates.measured(pulls_of(
        Event(source=EventSource(host=node), message=message) for node, message in pulls
    ))  # fmt: skip


GBS = PullRates({"r.example": 1.1e9}, {})


def test_what_is_left_is_counted_on_nodes_that_say_what_they_have() -> None:
    found = of(3, GBS)
    assert found.lines == (
        "r.example/torch:1, 17 GB: on 3 of 7 nodes, the rest in about 15s at 1.1 GB/s, as measured",
        "the gang starts with its slowest node: n3 has its images last, in about 15s",
    )
    assert found.images[0].facts["sizeBytes"] == 17 * 10**9
    assert found.facts["slowestPull"] == {"node": "n3", "seconds": 15.455}


def test_a_gang_starts_with_the_node_that_pulls_longest() -> None:
    rates = measured(
        ("n1", pulled(IMAGE, "1s")), ("n5", pulled("r.example/any", "10s")),
        ("n6", pulled("s.example/any", "100ms")),
    )  # fmt: skip
    assert (rates.of("n5", IMAGE), rates.of("n6", IMAGE)) == (1.1e8, 6.05e8)
    found = of(3, rates)
    assert (found.slowest_node, round(found.seconds)) == ("n5", 155)
    assert found.images[0].words.endswith("the rest in about 2m34s at 110 MB/s, as measured")


def test_a_node_pulls_one_image_after_another() -> None:
    job = make_job("train", image=IMAGE)
    spec = job.spec.roles[0].template.spec
    spec = replace(spec, init_containers=(Container("init", image=OTHER),))
    role = replace(job.spec.roles[0], template=PodTemplate(spec=spec))
    job = make_job("train", roles=[role])
    nodes = {"n0": a_node("n0", pause=1),
             "n9": a_node("n9", **{IMAGE: 17 * 10**9, OTHER: 5 * 10**9})}  # fmt: skip
    found = outlook(job, make_placement(["n0"]), nodes, GBS)
    assert [each.image for each in found.images] == [IMAGE, OTHER]
    assert found.seconds == 20.0
    unknown = {**nodes, "n9": a_node("n9", **{IMAGE: 17 * 10**9})}
    found = outlook(job, make_placement(["n0"]), unknown, GBS)
    assert len(found.lines) == 2, "a size that is not known gives no time"
    assert "slowestPull" not in found.facts


def test_no_time_is_said_where_nothing_was_measured_or_nobody_knows_the_size() -> None:
    (found,) = of(3, NOT_MEASURED).images
    assert found.words == (
        "r.example/torch:1, 17 GB: on 3 of 7 nodes; how long the rest takes is not known"
    )
    assert "bytesPerSecond" not in found.facts
    (unknown,) = of(0, GBS).images
    assert unknown.words == (
        "r.example/torch:1: on 0 of 7 nodes; how long the rest takes is not known"
    )


def test_an_image_that_is_on_all_nodes_is_no_matter() -> None:
    found = of(7, GBS)
    assert not found
    assert (found.lines, found.facts) == ((), {})


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("4.94s", 4.94), ("2m3.5s", 123.5), ("1h0m1s", 3601.0), ("950ms", 0.95),
     ("20500.5µs", 0.0205005)],
)  # fmt: skip
def test_the_rate_is_read_from_the_words_of_kubelets(time: str, seconds: float) -> None:
    size = 605 * 10**6
    rates = measured(("n1", pulled(IMAGE, time, size)))
    assert rates.of("n2", IMAGE) == pytest.approx(size / seconds)
    assert rates.of("n1", OTHER) == rates.of("n2", IMAGE), "it is of the same registry"
    assert rates.of("n1", "s.example/torch:1") is None


def test_what_is_no_measure_counts_for_nothing() -> None:
    small = f'Successfully pulled image "{IMAGE}" in 1s (1s waiting). Image size: 300 bytes.'
    texts = [
        "", "Pulled", small, small.replace("1s", "0s").replace("300", "999999999"),
        f'Container image "{IMAGE}" already present on machine',
        small.replace("300", "9" * 40), small.replace("1s", "....s").replace("300", "999999999"),
    ]  # fmt: skip
    assert measured(*(("n1", text) for text in texts)) == NOT_MEASURED
    assert NOT_MEASURED.of("n1", IMAGE) is None


def test_sizes_are_of_three_digits() -> None:
    assert size_text(1.1e9) == "1.1 GB"
