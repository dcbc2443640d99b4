"""Pods judged by shape: the same findings as when each is judged by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.api import core
from fairlead.embedded.verbs import pod_shapes, validation
from fairlead.embedded.verbs.uids import Uids


def pod(**changes: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "train:1", "env": [{"name": "RANK", "value": "0"}]}
    container |= changes.pop("container", {})
    return {"spec": {"restartPolicy": "Never", "containers": [container], **changes}}


def found(obj: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    typed = msgspec.convert(obj, core.Pod)
    return pod_shapes.pod_problems(obj, typed), list(validation.pod_problems(typed))


FIELD = {"fieldRef": {"fieldPath": "metadata.name"}}


@pytest.mark.parametrize(
    "obj",
    [
        pod(container={"env": [{"name": "RANK", "value": "7"}]}),
        pod(nodeName="node-1"),
        pod(nodeName="Not A Name"),
        pod(nodeName="node-1", schedulingGates=[{"name": "wait"}]),
        pod(container={"env": [{"name": "", "value": "7"}]}),
        pod(container={"env": [{"name": "A", "value": "7", "valueFrom": FIELD}]}),
        pod(container={"env": [{"name": "A", "value": "", "valueFrom": FIELD}]}),
        pod(container={"name": "Main"}),
        pod(restartPolicy="Sometimes"),
        pod(initContainers=[{"name": "main"}]),
        pod(containers=[]),
    ],
)
def test_the_findings_are_those_of_the_pod_itself_whatever_was_judged_before(obj: dict[str, Any]):
    assert found(pod()) == ([], [])
    by_shape, by_itself = found(obj)
    assert by_shape == by_itself
    assert found(obj)[0] == by_itself


def test_judging_leaves_the_pod_as_it_is():
    obj = pod(nodeName="node-1")
    before = msgspec.json.encode(obj)
    found(obj)
    assert msgspec.json.encode(obj) == before


def test_uids_are_of_version_4_and_never_repeat():
    drawn = iter(bytes(range(256)) * 16 + bytes(255 - i for i in range(256)) * 16)
    uids = Uids(lambda count: bytes(next(drawn) for _ in range(count)))
    assert uids() == "00010203-0405-4607-8809-0a0b0c0d0e0f"
    assert uids() == "10111213-1415-4617-9819-1a1b1c1d1e1f"
    real = Uids()
    made = [real() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(uid[14] == "4" and uid[19] in "89ab" and len(uid) == 36 for uid in made)
