"""What a pod asks of a node."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from fairlead.api.kubernetes.core import Container, PodSpec, ResourceRequirements, Toleration
from fairlead.model.asks.requests import RequestError, RequestReader, constraints_of
from fairlead.testing.builders import make_pod_spec


def container(restart_policy: str | None = None, **amounts: str) -> Container:
    return Container(
        name="c",
        resources=ResourceRequirements(requests=amounts),
        restart_policy=restart_policy,
    )


def test_containers_add_up_and_one_pod_comes_on_top() -> None:
    spec = PodSpec(containers=(container(cpu="500m", memory="1Gi"), container(cpu="1")))
    assert dict(RequestReader().request(spec)) == {"cpu": 1500, "memory": 1 << 30, "pods": 1}


def test_a_missing_request_equals_the_limit() -> None:
    limits = ResourceRequirements(limits={"nvidia.com/gpu": 8, "cpu": 4}, requests={"cpu": 2})
    spec = PodSpec(containers=(Container(name="c", resources=limits),))
    assert dict(RequestReader().request(spec)) == {"cpu": 2000, "nvidia.com/gpu": 8, "pods": 1}


def test_what_was_read_before_changes_no_answer() -> None:
    reader, gpus = RequestReader(), "nvidia.com/gpu"
    choices = ({}, {"cpu": 2}, {"cpu": 4}, {gpus: 1}, {gpus: 8})
    for limits, requests in product(choices, choices):
        resources = ResourceRequirements(limits=limits, requests=requests)
        spec = PodSpec(containers=(Container(name="c", resources=resources),))
        assert reader.request(spec) == RequestReader().request(spec), (limits, requests)


def test_an_init_container_counts_only_where_it_needs_more_than_the_rest() -> None:
    spec = PodSpec(
        containers=(container(cpu="2", memory="1Gi"),),
        init_containers=(container(cpu="1", memory="4Gi"),),
    )
    assert dict(RequestReader().request(spec)) == {"cpu": 2000, "memory": 4 << 30, "pods": 1}


def test_sidecars_run_beside_the_containers_and_the_init_containers_after_them() -> None:
    spec = PodSpec(
        containers=(container(cpu="2"),),
        init_containers=(
            container(cpu="5"),
            container(restart_policy="Always", cpu="1"),
            container(cpu="5"),
        ),
        overhead={"cpu": "100m"},
    )
    assert dict(RequestReader().request(spec)) == {"cpu": 6100, "pods": 1}


def test_an_unreadable_amount_is_named_with_its_path() -> None:
    spec = PodSpec(containers=(container(cpu="lots"),))
    with pytest.raises(RequestError) as caught:
        RequestReader().request(spec)
    assert caught.value.field == "containers[0].resources.requests.cpu"
    assert "lots" in str(caught.value)


def test_constraints_do_not_depend_on_the_order_they_are_written_in() -> None:
    tolerations = (Toleration(key="a", operator="Exists"), Toleration(key="b", value="1"))
    one = make_pod_spec(node_selector={"x": "1", "y": "2"}, tolerations=tolerations)
    other = make_pod_spec(node_selector={"y": "2", "x": "1"}, tolerations=tolerations[::-1])
    assert constraints_of(one) == constraints_of(other)
    assert hash(constraints_of(one)) == hash(constraints_of(other))
    assert constraints_of(one) != constraints_of(msgspec.structs.replace(one, node_selector={}))


def test_what_a_pod_asks_as_a_whole_is_read_and_named_like_what_containers_ask() -> None:
    whole = ResourceRequirements(requests={"cpu": "50"})
    spec = PodSpec(containers=(container(memory="1Gi"),), resources=whole)
    assert dict(RequestReader().request(spec)) == {"cpu": 50_000, "memory": 1 << 30, "pods": 1}
    bad = msgspec.structs.replace(spec, resources=ResourceRequirements(limits={"cpu": "lots"}))
    with pytest.raises(RequestError) as caught:
        RequestReader().request(bad)
    assert caught.value.field == "resources.limits.cpu"


def test_a_pod_without_a_readable_request_uses_all_that_it_may_ask_for() -> None:
    spec = PodSpec(
        containers=(container(cpu="2"), container(cpu="x")),
        resources=ResourceRequirements(limits={"cpu": "3"}),
        overhead={"cpu": "1"},
    )
    assert dict(RequestReader().bound_request(spec, ["cpu", "memory"])) == {"cpu": 4000, "pods": 1}
