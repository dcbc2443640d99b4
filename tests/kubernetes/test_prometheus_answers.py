"""Checks answered by a real Prometheus say what the pages say that it scraped.

It scrapes a real API server and its etcd. Every query of every check is evaluated by it; gauges,
shares and quantiles are compared with those of the pages. (A rate over five minutes is low on a
server that has run for seconds.) When etcd is killed, its checks become unknown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.prometheus_server import Server, prometheus, scrape_at, scrape_of, until

from fairlead.doctor.check import Check, MeasuredValue
from fairlead.doctor.expressions import CodeShare, Gauge, Quantile, Ratio
from fairlead.doctor.facts import ClusterFacts, NotSeen, Source
from fairlead.doctor.prometheus.answers import seen_directly
from fairlead.doctor.readers.pages import PageReader, page_target
from fairlead.doctor.readers.prometheus import PrometheusAnswers
from fairlead.doctor.registry import CHECKS, wanted_samples
from fairlead.runtime.outside.fetch import Web, WebAccess

pytestmark = pytest.mark.kubernetes
SCRAPED = (Source.APISERVER, Source.ETCD)
#: Of a gauge that moves, and of a quantile over a window that begins a scrape earlier.
FACTOR_MAX = 4.0
REQUESTS = 200


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, syncs=True)


def over_pages(plane: ControlPlane, server: Server) -> ClusterFacts:
    """Return what the pages of the API server and etcd say, over a burst of requests and the
    scrapes after it: Prometheus counts the same time, however busy the machine is in parts of it.
    """
    web = Web(WebAccess(token=plane.token, ca_file=str(plane.ca_file)))
    etcd = page_target(f"etcd={plane.etcd_url}/metrics")
    apiserver = page_target(f"apiserver={plane.url}/metrics", web)
    assert etcd is not None
    assert apiserver is not None

    def burst() -> None:
        for number in range(REQUESTS):
            body = json.dumps({"metadata": {"name": f"c{number}"}}).encode()
            web.fetch(f"{plane.url}/api/v1/namespaces/default/configmaps", body)
            web.fetch(f"{plane.url}/api/v1/namespaces/default/configmaps/c{number}")
        server.scraped(6)

    reader = PageReader(wanted_samples(), time.time)
    scrapes = reader.read([apiserver, etcd], burst)
    return ClusterFacts(nodes=900, scrapes=scrapes)


def worst(found: tuple[MeasuredValue, ...]) -> float:
    return max(each.value for each in found)


def answered(url: str, checks: list[Check]) -> dict[str, tuple[MeasuredValue, ...] | NotSeen]:
    return PrometheusAnswers(url, Web(), time.monotonic).read(checks, ClusterFacts(nodes=900))


def test_a_real_prometheus_answers_as_the_pages_do(fresh: ControlPlane, tmp_path: Path) -> None:
    jobs = [scrape_of(fresh), scrape_at("kube-etcd", fresh.etcd_url)]
    checks = [each for each in CHECKS if each.needs[0] in SCRAPED]
    with prometheus(tmp_path / "data", jobs) as server:
        server.scraped(1)
        direct = over_pages(fresh, server)
        answers = answered(server.url, checks)
        text = Shell(tmp_path).run(
            "doctor", "--offline", "--prometheus", server.url, "--nodes", "900",
            "--only", "ETCD-*", "-o", "json", code=None,
        ).out  # fmt: skip
        fresh.kill("etcd")
        until(lambda: isinstance(answered(server.url, checks)["ETCD-09B"], NotSeen))
        after = answered(server.url, checks)["ETCD-09B"]

    refused = {name: str(each) for name, each in answers.items() if isinstance(each, NotSeen)}
    assert [each for each in refused.values() if "no such series" not in each] == []
    compared, differ = set[type](), set[str]()
    for check in checks:
        page, answer = seen_directly(check, direct), answers[check.id]
        if not isinstance(check.measure, Gauge | Ratio | Quantile | CodeShare) or not page:
            continue
        if answer == ():
            continue  # too few observations for it
        if isinstance(page, NotSeen) or isinstance(answer, NotSeen):
            differ.add(check.id)
            continue
        compared.add(type(check.measure))
        low, high = sorted((worst(page), worst(answer)))
        assert high <= FACTOR_MAX * low + 1e-3, (check.id, page, answer)
    assert differ == {"ETCD-08"}, "alarms are no metric"
    assert compared == {Gauge, Ratio, Quantile, CodeShare}

    report = json.loads(text)
    (quota,) = (each for each in report["findings"] if each["id"] == "ETCD-05")
    assert f"from Prometheus at {server.url}" in quota["evidence"]
    evaluated = {*report["passed"], *(each["id"] for each in report["findings"])}
    assert {"ETCD-04", "ETCD-09B", "ETCD-01", "ETCD-07", "ETCD-18"} <= evaluated
    unknown = {each["id"]: each["reason"] for each in report["unknown"]}
    assert {"ETCD-08", "ETCD-11"} <= set(unknown)
    assert "no such series" in unknown["ETCD-11"]
    assert "no job that is up matches .*etcd.*" in str(after)
