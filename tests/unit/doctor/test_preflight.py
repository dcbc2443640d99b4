"""What an agent will cost on a large cluster, from a trace of a small one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.doctor.audit_log import cluster_log, with_agent

from fairlead.cli.main import guarded
from fairlead.doctor.audit.cost import CostModel, summarise
from fairlead.doctor.audit.parallel import read_logs
from fairlead.doctor.preflight import PlannedAgent, forecast

MANIFEST = """kind: DaemonSet
apiVersion: apps/v1
metadata: {name: agent, namespace: monitoring}
spec:
  template:
    spec: {serviceAccountName: agent, containers: [{name: a, image: a}]}
"""


def preflight(
    tmp_path: Path, uri: str, *more: str, manifest: str = MANIFEST, nodes: int = 7500
) -> int:
    (tmp_path / "agent.yaml").write_text(manifest)
    (tmp_path / "audit.log").write_bytes(with_agent(cluster_log(), uri).text())
    agent, log = str(tmp_path / "agent.yaml"), str(tmp_path / "audit.log")
    words = ["doctor", "preflight", "-f", agent, "--trace", log, "--nodes", str(nodes)]
    return guarded([*words, "-o", "json", *more])


def test_an_agent_that_lists_everything_is_stopped_before_its_rollout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert preflight(tmp_path, "/api/v1/pods", "--objects", "pods=400") == 2
    (values,) = json.loads(capsys.readouterr().out)
    first = values["requests"][0]
    assert first["exponent"] == 2
    assert values["instances"] == 7500
    # 120 requests of 20 nodes in a minute; 7,500 nodes send 375 times as many, each of 375 times
    # as many pods: 10 ms become 3.75 s, 4 seats become 10.
    rate = first["requests_per_second"]
    assert rate == pytest.approx(120 / 60 * 375, rel=0.05)
    assert first["seats"] == pytest.approx(rate * 0.01 * 375 * 10, rel=1e-6)
    assert first["bytes_per_second"] == pytest.approx(rate * 400 * 375 * 6000, rel=1e-6)


def test_an_agent_that_asks_for_its_own_node_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn"
    assert preflight(tmp_path, uri, "--objects", "pods=400", nodes=5000) == 0
    (values,) = json.loads(capsys.readouterr().out)
    (own,) = values["requests"]
    assert own["exponent"] == 1
    assert 0 < values["share"] < 0.1
    # Each node has 20 pods on both clusters, while the API server takes the seats of all pods.
    rate = own["requests_per_second"]
    assert own["bytes_per_second"] == pytest.approx(rate * 20 * 6000, rel=1e-6)
    assert own["seats"] == pytest.approx(rate * 0.01 * 10, rel=1e-6)


def test_cost_grows_with_the_square_of_the_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shares: list[float] = []
    for nodes in (1000, 2000):
        preflight(tmp_path, "/api/v1/pods", "--objects", "pods=4000", nodes=nodes)
        shares.append(json.loads(capsys.readouterr().out)[0]["share"])
    assert shares[1] / shares[0] == pytest.approx(4.0)


def test_a_deployment_has_its_replicas_whatever_the_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = MANIFEST.replace("DaemonSet", "Deployment")
    manifest = manifest.replace("spec:\n  t", "spec:\n  replicas: 3\n  t")
    preflight(tmp_path, "/api/v1/pods", manifest=manifest)
    assert json.loads(capsys.readouterr().out)[0]["instances"] == 3


def test_an_agent_that_starts_lists_and_watches_at_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = with_agent(cluster_log(), "/api/v1/pods")
    path.write_bytes(with_agent(log, "/api/v1/pods?watch=true", verb="watch").text())
    trace = summarise(read_logs([str(path)]), CostModel())
    agent = PlannedAgent("monitoring", "agent", "agent", None)
    assert forecast(agent, trace, CostModel(), 100).burst == 200


def test_an_agent_that_the_trace_does_not_show_is_unknown(tmp_path: Path) -> None:
    manifest = MANIFEST.replace("namespace: monitoring", "namespace: other")
    assert preflight(tmp_path, "/api/v1/pods", manifest=manifest) == 3


@pytest.mark.parametrize("manifest", ["a: [", "kind: Pod\n", "3", ""])
def test_a_manifest_without_a_workload_is_refused(tmp_path: Path, manifest: str) -> None:
    assert preflight(tmp_path, "/api/v1/pods", manifest=manifest) == 2
