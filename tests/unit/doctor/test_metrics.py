"""Pages of metrics: what is kept of them, quantiles, rates and counters that start again."""

from __future__ import annotations

import pytest
from tests.unit.doctor.facts_of import scraped

from fairlead.doctor.expressions import PerSecond
from fairlead.doctor.facts import ClusterFacts, NotSeen, Source
from fairlead.doctor.metrics import pair, quantile
from fairlead.doctor.readers.pages import PageReader, PageTarget
from fairlead.runtime.exported.metrics_page import BadPage, parse_page

PAGE = b"""# HELP a Something.
# TYPE a counter
a{x="1"} 5
a{x="2"} 6 1700000000000
b 7
a_long 8
process_start_time_seconds 900
"""


def test_only_wanted_samples_are_parsed() -> None:
    found = parse_page(PAGE, {"a"})
    assert found["a"] == {(("x", "1"),): 5.0, (("x", "2"),): 6.0}
    assert set(found) == {"a", "process_start_time_seconds"}


@pytest.mark.parametrize(
    "page", [b"a{x=1} 5\n", b"a{ 5\n", b"a five\n", b'a\xff{x="\xfe"} 1\na 1 2 3 z\n']
)
def test_a_page_that_is_no_page_is_refused_or_empty(page: bytes) -> None:
    try:
        found = parse_page(page, {"a"})
    except BadPage:
        return
    assert all(isinstance(value, float) for each in found.values() for value in each.values())


def test_a_quantile_is_interpolated_in_its_bucket() -> None:
    buckets = [(0.01, 90.0), (0.02, 100.0), (float("inf"), 100.0)]
    assert quantile(buckets, 0.95) == pytest.approx(0.015)
    assert quantile([(0.01, 0.0), (float("inf"), 5.0)], 0.99) == pytest.approx(0.01)
    assert quantile([], 0.5) is None


def test_a_counter_that_started_again_counts_from_zero() -> None:
    name = "etcd_server_slow_apply_total"
    facts = scraped(Source.ETCD, f"{name} 30\n", before=f"{name} 500\n")
    (reading,) = PerSecond(Source.ETCD, name)(facts)
    assert reading.value == pytest.approx(3.0)


def test_one_scrape_gives_the_mean_since_the_start_and_none_without_it() -> None:
    name = "etcd_server_slow_apply_total"
    facts = scraped(Source.ETCD, f"{name} 30\nprocess_start_time_seconds 700\n")
    (reading,) = PerSecond(Source.ETCD, name)(facts)
    assert reading.value == pytest.approx(0.1)
    with pytest.raises(NotSeen):
        list(PerSecond(Source.ETCD, name)(scraped(Source.ETCD, f"{name} 30\n")))


def test_a_page_that_fails_the_second_time_counts_as_read_once() -> None:
    name = "etcd_server_slow_apply_total"
    pages = [f"{name} 30\nprocess_start_time_seconds 700\n".encode()]

    def fetch() -> bytes:
        if not pages:
            raise OSError("gone")
        return pages.pop()

    reader = PageReader({Source.ETCD: frozenset((name,))}, lambda: 1000.0)
    scrapes = reader.read([PageTarget(Source.ETCD, "e", fetch)], lambda: None)
    (reading,) = PerSecond(Source.ETCD, name)(ClusterFacts(scrapes=scrapes))
    assert reading.value == pytest.approx(0.1)
    assert "gone" in reader.absent[Source.ETCD]


def test_a_counter_that_appears_with_its_first_event_is_zero_on_a_page_of_its_component() -> None:
    name = "apiserver_terminated_watchers_total"
    known = scraped(Source.APISERVER, 'apiserver_storage_objects{resource="pods"} 3\n')
    assert list(PerSecond(Source.APISERVER, name, is_lazy=True)(known)) == []
    with pytest.raises(NotSeen):
        list(PerSecond(Source.APISERVER, name)(known))
    stranger = scraped(Source.APISERVER, "process_start_time_seconds 700\nother 1\n")
    with pytest.raises(NotSeen):
        list(PerSecond(Source.APISERVER, name, is_lazy=True)(stranger))


def test_a_pair_of_scrapes_has_their_distance() -> None:
    now = parse_page(PAGE, {"a"})
    assert pair("i", now, before=now, seconds=10.0, at=1000.0).families["a"].seconds == 10.0
