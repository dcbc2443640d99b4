"""The readers: a bounded number of requests, flags of manifests, facts of nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.doctor.facts_of import seen

from fairlead.api.status import Forbidden, Unavailable
from fairlead.doctor.facts import Source
from fairlead.doctor.objects import SeenContainer, SeenPod, SeenPodSpec
from fairlead.doctor.readers.budget import BudgetedGet, finished
from fairlead.doctor.readers.cluster import ClusterReader
from fairlead.doctor.readers.flags import (
    BadManifest,
    flags_of_objects,
    flags_of_pods,
    parse_flags,
    read_manifests,
)
from fairlead.doctor.readers.node_pods import parse_node_facts


class Server:
    """Answers lists with one page and a number of remaining objects."""

    def __init__(self, remaining: int = 0, denied: str = "-") -> None:
        self.remaining = remaining
        self.denied = denied
        self.asked: list[tuple[str, dict[str, str]]] = []

    def __call__(self, path: str, query: Mapping[str, str], /) -> bytes:
        self.asked.append((path, dict(query)))
        if self.denied in path:
            raise Forbidden(f"{path} is forbidden")
        body: dict[str, Any] = {"items": []}
        if path == "/version":
            body = {"gitVersion": "v1.36.3"}
        elif path == "/api/v1/nodes":
            items = [{"metadata": {"name": f"n{i}"}} for i in range(50)]
            body = {"items": items, "metadata": {"remainingItemCount": self.remaining}}
        return json.dumps(body).encode()


def test_the_number_of_requests_does_not_depend_on_the_number_of_nodes() -> None:
    counts: list[int] = []
    for remaining in (0, 7_450):
        server = Server(remaining)
        get = BudgetedGet(server)
        reader = ClusterReader(get.read)
        finished(reader.read())
        assert reader.nodes == 50 + remaining
        counts.append(get.requests)
        assert all("limit" in query for path, query in server.asked
                   if path != "/version" and "configmaps" not in path)  # fmt: skip
    assert counts[0] == counts[1] <= 20


def test_what_is_forbidden_is_absent_with_the_reason() -> None:
    reader = ClusterReader(BudgetedGet(Server(denied="webhookconfigurations")).read)
    objects = finished(reader.read())
    assert objects.webhooks is None
    assert objects.deployments == ()
    assert "forbidden" in reader.absent()[Source.API]


def test_a_server_that_refuses_everything_gives_unknown_and_no_error() -> None:
    reader = ClusterReader(BudgetedGet(Server(denied="/")).read)
    objects = finished(reader.read())
    assert (objects.version, objects.counts, objects.nodes, reader.nodes) == ("", {}, None, None)
    assert "/version is forbidden" in reader.absent()[Source.API]


def test_an_answer_that_is_no_json_is_a_problem_and_no_error() -> None:
    reader = ClusterReader(BudgetedGet(lambda _path, _query: b"<html>").read)
    assert finished(reader.read()).version == ""
    assert reader.problems


def test_the_budget_ends_the_reading() -> None:
    get = BudgetedGet(Server(), requests_max=2)
    get("/version", {})
    get("/version", {})
    with pytest.raises(Unavailable, match="budget of 2 requests"):
        get("/version", {})


def test_flags_are_read_with_and_without_an_equals_sign() -> None:
    words = ["kube-apiserver", "--a=1", "--b", "2", "--c", "--d=x=y"]
    assert parse_flags(words) == {"a": "1", "b": "2", "c": "true", "d": "x=y"}


def test_static_pods_give_the_flags_of_their_component(tmp_path: Path) -> None:
    (tmp_path / "api.yaml").write_text(
        "kind: Pod\nspec:\n  containers:\n  - name: kube-apiserver\n"
        "    command: [kube-apiserver, --etcd-servers=https://a]\n"
    )
    assert read_manifests(tmp_path).flags == {"kube-apiserver": {"etcd-servers": "https://a"}}
    assert read_manifests(tmp_path).scheduler_config is None
    (tmp_path / "scheduler.yaml").write_text("kind: KubeSchedulerConfiguration\nprofiles: []\n")
    assert read_manifests(tmp_path).scheduler_config is not None
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(BadManifest, match=r"broken\.yaml"):
        read_manifests(tmp_path)


def test_the_flags_of_an_autoscaler_come_from_its_deployment() -> None:
    containers = [{"name": "ca", "command": ["./cluster-autoscaler", "--scale-down-enabled=false"]}]
    deployment = {"metadata": {"name": "x"}, "spec": {"template": {"spec": {
        "containers": containers}}}}  # fmt: skip
    objects = seen(deployments=[deployment]).objects
    assert objects is not None
    assert flags_of_objects(objects) == {"cluster-autoscaler": {"scale-down-enabled": "false"}}


def test_of_several_pods_of_a_component_the_first_gives_its_flags() -> None:
    seen = [SeenContainer(command=["etcd", f"--name={name}"]) for name in ("a", "b")]
    pods = [SeenPod(spec=SeenPodSpec(containers=[each])) for each in seen]
    assert flags_of_pods(pods) == {"etcd": {"name": "a"}}


def test_node_facts_take_both_forms_of_keys() -> None:
    text = "net/ipv4/a = 1\nnet.ipv4.b=2 \n# c = 3\nsysctl: permission denied\n"
    assert parse_node_facts(text) == {"net.ipv4.a": "1", "net.ipv4.b": "2"}
