"""The alert rules and boards, by Prometheus' own engine over scrapes of a real run.

A gang runs on a real API server under a real replica of the controllers. The pages of the replica,
the API server and etcd are scraped three times; the engine (`tools/promql`) gets them as of a
minute apart and evaluates every query of every rule and panel.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes.controlplane import ControlPlane, NoControlPlane, find_binaries
from tests.kubernetes.operating import (
    ended,
    http_client,
    install_kinds,
    job_body,
    remove_report,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.replicas import leader, replicas

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.resources import FLEETS, JOBS, NODE_POOLS
from fairlead.api.status import NotFound
from fairlead.api.values.egress import TrafficDirection
from fairlead.cli.views import budget_dry_run
from fairlead.doctor.expressions import Recorded
from fairlead.doctor.monitoring.alerts import OWN, groups
from fairlead.doctor.monitoring.boards import boards
from fairlead.doctor.query import JOBS as SCRAPE_JOBS
from fairlead.doctor.registry import CHECKS
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
SCRAPES, SECONDS = 3, 60.0
#: Panels that a healthy run leaves empty: no teams, balloons, notices, node health and webhook.
EMPTY = {
    "Nodes owned", "Nodes missing", "Nodes used", "Nodes lent", "Nodes borrowed", "GPUs held",
    "Jobs placed", "Jobs waiting", "Restarts after faults", "Objects set aside", "Why jobs wait",
    "Time of an answer", "Answers", "Certificate ends in", "Launches refused",
    "Removals held back", "Part of the limits used", "Balloons", "Nodes out of service",
    "Sick nodes in service", "What holds health back", "Notices by how a try ended",
    "Tickets of nodes",
    "Sent to the internet", "Received from the internet", "Traffic by class",
    "Budgets of internet traffic", "Budgets of destinations", "Nodes by what they count",
    "GPUs held and not used",
    "Jobs that use almost nothing", "What the idle policy does",
    "Exported by team, median", "Exported by the fleet, p99", "Nodes whose exporters count",
}  # fmt: skip
#: Panels of checks that every control plane must fill.
FILLED = ("ETCD-04", "ETCD-09B", "ETCD-01", "ETCD-02", "ETCD-15", "API-18", "API-04", "API-07")


@pytest.fixture(scope="module")
def engine() -> Path:
    try:
        binary = find_binaries() / "promql"
    except NoControlPlane as reason:
        pytest.skip(f"no promql: {reason}")
    if not binary.exists():
        pytest.skip("promql not built: make kubernetes")
    return binary


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(plane)
    await install_kinds(client)
    await remove_report(client)
    yield client
    await sweep(client)
    await client.close()


def evaluate(engine: Path, pages: list[dict[str, Any]], queries: list[str]) -> list[dict[str, Any]]:
    """Return the series of each query right after the last page; fails on any error."""
    at = max(page["seconds"] for page in pages) + 1
    request = {"pages": pages, "at": at, "queries": queries, "rules": yaml.safe_dump(groups())}
    done = subprocess.run(
        [engine], input=json.dumps(request), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["rules"] == []
    errors = {q: each["error"] for q, each in zip(queries, answer["results"], strict=True)}
    assert {query: error for query, error in errors.items() if error} == {}
    return [each["series"] for each in answer["results"]]


def firing(engine: Path, pages: list[dict[str, Any]]) -> set[str]:
    """Return the names of Fairlead's own alerts whose expression has samples."""
    series = evaluate(engine, pages, [each.expression for each in OWN])
    return {each.name for each, found in zip(OWN, series, strict=True) if found}


def panels() -> Iterator[tuple[str, str]]:
    """Yield the title and the query of each line of each panel."""
    for board in boards().values():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


async def scrape(
    client: HttpClient, plane: ControlPlane, own: Any, seconds: float
) -> list[dict[str, Any]]:
    answer = await client.request("GET", "/metrics")
    etcd = await asyncio.to_thread(
        subprocess.run, ["curl", "-sf", f"{plane.etcd_url}/metrics"], capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    texts = {"apiserver": bytes(answer).decode(), "kube-etcd": etcd.stdout, "fairlead": own}
    return [
        {"labels": {"job": job, "instance": "127.0.0.1"}, "seconds": seconds, "text": text}
        for job, text in texts.items()
    ]


@asynccontextmanager
async def static_pool(client: HttpClient, directory: Path) -> AsyncGenerator[None]:
    """A pool of machines that all sleep."""
    power, inventory = directory / "power", directory / "inventory.json"
    power.write_text("#!/bin/sh\necho []\n")
    power.chmod(0o755)
    inventory.write_text(json.dumps({"machines": [{"id": "one"}], "power": str(power)}))
    spec = {
        "provider": {"type": "Static", "reference": str(inventory)}, "max": 1, "mode": "Active",
        "pricePerHour": "2.50",
        "template": {"resources": {"example.com/none": 1}},
    }  # fmt: skip
    await client.create(NODE_POOLS, {"metadata": {"name": "static"}, "spec": spec})
    try:
        yield
    finally:  # whoever would release it has ended before
        await client.delete(NODE_POOLS, "static")
        with suppress(NotFound):
            await client.patch(NODE_POOLS, "static", {"metadata": {"finalizers": None}})


async def sees_clearly(client: HttpClient) -> bool:
    try:
        fleet = await client.get(FLEETS, FLEET_NAME)
    except NotFound:
        return False
    return fleet.status.since is not None and not fleet.status.blind


def day(minute: int) -> Iterator[dict[str, Any]]:
    """Yield the pages of a minute: etcd grows, nodes join, one flaps, many pods are pulled."""
    texts = {
        "kube-apiserver": f'apiserver_storage_objects{{resource="nodes"}} '
        f"{7_300 if minute > 600 else 100}\n",
        "kube-etcd": f"etcd_mvcc_db_total_size_in_bytes {1e9 + minute * 60e6}\n"
        f"etcd_server_quota_backend_bytes {1e12}\n",
        "kube-state-metrics": f'kube_node_status_condition{{node="n",condition="Ready",'
        f'status="true"}} {minute % 2}\nkube_node_status_capacity{{node="n",resource="pods"}} 110\n'
        'kube_endpoint_address{namespace="a",endpoint="b",ip="1"} 1\n'
        'kube_endpoint_address{namespace="a",endpoint="b",ip="2"} 1\n',
        "kubelet": f'kubelet_running_pods{{node="n"}} 55\n'
        f'kubelet_runtime_operations_total{{operation_type="pull_image"}} {minute * 120_000}\n',
    }
    for job, text in texts.items():
        yield {"labels": {"job": job, "instance": "i"}, "seconds": minute * 60.0, "text": text}


def test_what_a_budget_would_have_held_back_is_computed_by_prometheus_engine(
    engine: Path,
) -> None:
    """Two hours, of which one in ten minutes is beyond the budget; two leaders overlap."""
    labels = 'team="vision",class="internet",direction="out"'
    pages = [
        {"labels": {"job": "fairlead", "instance": pod}, "seconds": minute * 60.0,
         "text": f"fairlead_traffic_bits_per_second{{{labels}}} "
                 f"{8e9 if minute % 10 == 0 else 1e9}\n"}
        for minute in range(120) for pod in ("a", "b")
    ]  # fmt: skip
    of = budget_dry_run.BudgetOf("vision", "", TrafficDirection.EGRESS)
    asked = budget_dry_run.queries(of, 5 * 10**9, 3600)
    found = {
        name: float(series[0]["value"])
        for name, series in zip(asked, evaluate(engine, pages, [*asked.values()]), strict=True)
    }
    assert found == pytest.approx({"mean": 1.7e9, "peak": 8e9, "beyond": 0.3e9, "time": 0.1})


def test_what_only_records_show_is_computed_by_prometheus_engine(engine: Path) -> None:
    recorded = [check for check in CHECKS if isinstance(check.measure, Recorded)]
    queries = [query.value for each in recorded if (query := each.query(SCRAPE_JOBS))]
    pages = [page for minute in range(1_440) for page in day(minute)]
    found = {
        check.id: [float(each["value"]) for each in series]
        for check, series in zip(recorded, evaluate(engine, pages, queries), strict=True)
    }
    assert found.pop("MET-14") == []  # Prometheus makes this metric itself when it scrapes
    assert found["ETCD-06"] == pytest.approx([(1e12 - 1e9 - 1_439 * 60e6) / 1e6 / 3600])
    assert 600 <= found["CA-03"][0] <= 900, "7,200 nodes within two minutes"
    assert found["KUB-04"] == [14]
    assert (found["KUB-05"], found["NET-10"]) == ([0.5], [2])
    assert found["IMG-10"] == pytest.approx([2_000], rel=0.01)
    # A database of three hours has no growth of four.
    young = [page for page in pages if page["seconds"] <= 180 * 60]
    assert evaluate(engine, young, [queries[0]]) == [[]]
    assert recorded[0].id == "ETCD-06"


async def test_every_rule_and_panel_is_answered_by_prometheus_engine(
    plane: ControlPlane, client: HttpClient, engine: Path, tmp_path: Path
) -> None:
    pages: list[dict[str, Any]] = []
    async with virtual_nodes(client, 2), static_pool(client, tmp_path), replicas(plane) as world:
        await world.start()
        replica = await leader(client, world)
        await until(lambda: sees_clearly(client))

        async def has_examined() -> bool:
            return "\nfairlead_doctor_findings{" in (await replica.get("/metrics"))[1]

        await until(has_examined)
        for number in range(SCRAPES):
            name = f"scraped-{number}"
            await client.create(JOBS, job_body(name, 2, seconds=0.5), namespace="default")
            await ended(client, name)
            await until(lambda: sees_clearly(client))
            own = (await replica.get("/metrics"))[1]
            pages += await scrape(client, plane, own, number * SECONDS)
    shown = list(panels())
    found = evaluate(engine, pages, [query for _, query in shown])
    filled = {title for (title, _), series in zip(shown, found, strict=True) if series}
    own_titles = {
        panel["title"] for name, board in boards().items() if name != "fairlead-control-plane.json"
        for panel in board["panels"] if panel["type"] != "row"
    }  # fmt: skip
    assert own_titles - filled == EMPTY
    assert [each for each in FILLED if not any(t.startswith(f"{each} ") for t in filled)] == []

    assert firing(engine, pages) == set()
    others = [page for page in pages if page["labels"]["job"] != "fairlead"]
    assert firing(engine, others) == {"FairleadMissing"}
