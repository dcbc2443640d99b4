"""Facts at which a check is easily wrong: near its rule, or of which a part is missing."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.doctor import cases_of_parts
from tests.unit.doctor.facts_of import scraped, seen

from fairlead.doctor.check import Passed, Unknown, evaluate
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.registry import BY_ID

A, S = Source.APISERVER, Source.SCHEDULER
PODS = scraped(A, 'apiserver_resource_objects{resource="pods"} 100000\n').scrapes[A][0]
EMPTY = scraped(A, "process_start_time_seconds 700\n").scrapes[A][0]
QUEUE = 'scheduler_pending_pods{{queue="active"}} {}\nscheduler_schedule_attempts_total 0\n'
GPU_NODES = cases_of_parts.scaled("r/i:1").seen_objects()
NOWHERE = [{"spec": {}}, {"spec": {}}, {"spec": {"nodeName": "a"}}, {"spec": {"nodeName": "b"}}]

EDGES: dict[str, tuple[str, ClusterFacts, type]] = {
    "API servers that all have the same objects": (
        "API-19", ClusterFacts(nodes=9, scrapes={A: (PODS, PODS)}), Passed),
    "one page of two without a metric": (
        "API-17", ClusterFacts(nodes=9, scrapes={A: (PODS, EMPTY)}), Unknown),
    "a level for large clusters, and no number of nodes": (
        "ETCD-16", ClusterFacts(flags={"kube-apiserver": {}}), Unknown),
    "DNS pods that have no node yet": ("DNS-01", seen(dns_pods=NOWHERE), Passed),
    "API services that could not be listed": (
        "CA-05", replace(cases_of_parts.scaled("r/i:1"),
                         objects=msgspec.structs.replace(GPU_NODES, api_services=None)), Unknown),
    "a queue that filled only now": (
        "SCH-04", scraped(S, QUEUE.format(9_000), before=QUEUE.format(0)), Passed),
    "no time limit for a pull": (
        "IMG-05",
        cases_of_parts.pulling(17, containerd__image_pull_progress_timeout="0s"), Passed),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_a_check_is_right_at_its_edges(name: str) -> None:
    id_, facts, expected = EDGES[name]
    results = evaluate(BY_ID[id_], facts)
    assert [type(each) for each in results] == [expected], results
