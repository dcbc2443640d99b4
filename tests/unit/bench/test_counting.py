"""What the counting proxy takes a request for: who asked, which verb, which kind."""

from pathlib import Path

import msgspec
import pytest
from bench.real.counting import Asked, Counting, Tally, asked_of

JOBS = "/apis/fairlead.dev/v1alpha1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"


def _body(value: object) -> bytes:
    return msgspec.json.encode(value)


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "expected"),
    [
        ("GET", "/api/v1/nodes", {"limit": "500"}, b"", Asked("mirrors", "list", "nodes")),
        ("GET", "/api/v1/nodes", {"continue": "x"}, b"", Asked("mirrors", "page", "nodes")),
        ("GET", "/api/v1/pods", {"watch": "true"}, b"", Asked("mirrors", "watch", "pods")),
        ("GET", f"{JOBS}/a", {}, b"", Asked("jobs controller", "get", "jobs")),
        ("POST", PODS, {}, b"{}", Asked("jobs controller", "post", "pods")),
        (
            "PATCH", f"{JOBS}/a/status", {}, _body({"status": {"placement": {}}}),
            Asked("scheduler", "patch", "jobs/status"),
        ),
        (
            "PATCH", f"{JOBS}/a/status", {}, _body({"status": {"state": "Starting"}}),
            Asked("jobs controller", "patch", "jobs/status"),
        ),
        (
            "PATCH", "/apis/coordination.k8s.io/v1/namespaces/default/leases/fairlead", {}, b"{}",
            Asked("leader election", "patch", "leases"),
        ),
        ("POST", "/api/v1/namespaces/default/events", {}, b"{}", Asked("events", "post", "events")),
    ],
)  # fmt: skip
def test_a_request_is_counted_for_who_asked_and_what_for(
    method: str, path: str, query: dict[str, str], body: bytes, expected: Asked
) -> None:
    assert asked_of(method, path, query, body) == expected


def test_what_was_counted_before_a_snapshot_is_no_part_of_what_came_since(
    tmp_path: Path,
) -> None:
    pods, nodes = Asked("mirrors", "watch", "pods"), Asked("mirrors", "list", "nodes")
    made = Counting(tmp_path, {pods: Tally(1, 0, 100), nodes: Tally(1, 0, 50)})
    before = made.snapshot()
    made.tallies[pods].received_bytes += 11
    assert made.since(before) == {pods: Tally(0, 0, 11)}
