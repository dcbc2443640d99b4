"""Pods judged by shape: the same findings as when each is judged by itself."""

from __future__ import annotations

import copy
import random
from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes import core
from fairlead.embedded import builtins
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.records import Record
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.verbs.strategies import pod_shapes, validation
from fairlead.embedded.verbs.uids import Uids
from fairlead.runtime.client import PatchType
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run


def pod(**changes: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "train:1", "env": [{"name": "RANK", "value": "0"}]}
    container |= changes.pop("container", {})
    return {"spec": {"restartPolicy": "Never", "containers": [container], **changes}}


def found(obj: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    shape = pod_shapes.shape_of(obj["spec"])
    typed = msgspec.convert(obj, core.Pod)
    return pod_shapes.pod_problems(typed, shape), list(validation.pod_problems(typed))


def mounted(*paths: tuple[str, str | None]) -> dict[str, Any]:
    """Return a pod with mounts of one volume, by path and path below it."""
    mounts: list[dict[str, Any]] = [
        {"name": "data", "mountPath": path} | ({} if below is None else {"subPath": below})
        for path, below in paths
    ]
    return pod(container={"volumeMounts": mounts}, volumes=[{"name": "data", "emptyDir": {}}])


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
        mounted(("/data", "a"), ("/peers", None)),
        mounted(("/data", "/a")),
        mounted(("/data", "a/../b")),
        mounted(("/data", "")),
        mounted(("", "a")),
        mounted(("/data", "a"), ("/data", "b")),
        mounted(("/data", "a"), ("/data", None)),
        mounted(("/data", "a"), ("/0", None)),
    ],
)
def test_the_findings_are_those_of_the_pod_itself_whatever_was_judged_before(obj: dict[str, Any]):
    assert found(pod()) == ([], [])
    by_shape, by_itself = found(obj)
    assert by_shape == by_itself
    assert found(obj)[0] == by_itself


def test_pods_that_differ_in_the_paths_of_their_checkpoints_have_one_shape_and_keep_the_paths():
    first, second = [mounted((f"/data/{i}", f"a/{i}"), ("/peers", None)) for i in range(2)]
    shape = pod_shapes.shape_of(first["spec"])
    assert shape is not None
    assert shape is pod_shapes.shape_of(second["spec"])
    assert shape is not pod_shapes.shape_of(mounted(("/data/0", "a/0"), ("/else", None))["spec"])
    for obj in (first, second, first):
        filled = shape.filled(obj["spec"])
        mounts = obj["spec"]["containers"][0]["volumeMounts"]
        assert filled["containers"][0]["volumeMounts"] == mounts
        known = shape.known({"spec": filled, "status": {}}).spec
        assert known == msgspec.convert(filled, core.PodSpec)


def test_judging_leaves_the_pod_as_it_is():
    obj = pod(nodeName="node-1", **mounted(("/data", "a"))["spec"])
    before = msgspec.json.encode(obj)
    found(obj)
    assert msgspec.json.encode(obj) == before


async def started() -> ApiService:
    clock, rng = LoopClock(1_800_000_000), random.Random(1)
    service = ApiService(Store.open(None), Registry.with_builtins(), clock, ids=Uids(), rng=rng)
    await service.bootstrap()
    return service


INIT = {"name": "set-up", "image": "set-up", "env": [{"name": "A", "value": "1"}]}


@pytest.mark.parametrize(
    "obj",
    [
        pod(container={"env": [{"name": "RANK", "value": "7"}]}),
        pod(container={"env": [{"name": "A", "valueFrom": FIELD}, {"name": "B", "value": "b"}]}),
        pod(container={"env": [{"name": "B", "value": ""}, {"name": "C"}]}),
        pod(container={"env": []}),
        pod(nodeName="node-1", initContainers=[INIT]),
        pod(containers=[{"name": "a", "image": "a"}, {**INIT, "image": "a:1"}], initContainers=[]),
        pod(schedulingGates=[{"name": "wait"}]),
        pod(priorityClassName="system-node-critical"),
        pod(someField={"from": "the future"}),
    ],
)
def test_what_a_shape_gives_is_what_decoding_and_defaulting_would_give(obj: dict[str, Any]):
    async def stored() -> tuple[Record, Record]:
        service = await started()
        first = {"metadata": {"name": "p-0", "labels": {"a": "b"}}, **obj}
        # the same pod by the long way: its spec cannot have a shape
        long_way = copy.deepcopy(first)
        long_way["metadata"]["name"] = "p-1"
        long_way["spec"]["x"] = "." * pod_shapes.SHAPE_BYTES_MAX
        options = WriteOptions(field_validation="Ignore", reads_model=True)
        one = await service.create(builtins.PODS, "default", first, options)
        other = await service.create(builtins.PODS, "default", long_way, options)
        return one, other

    one, other = run(stored())
    assert one.has_shared_spec
    assert not other.has_shared_spec
    assert one.typed(core.Pod) == msgspec.json.decode(one.data, type=core.Pod)
    assert one.typed(core.Pod).spec == other.typed(core.Pod).spec
    plain, expected = one.plain(), other.plain()
    del expected["spec"]["x"]
    assert plain["spec"] == expected["spec"]
    assert plain["status"] == expected["status"]


def test_a_status_patch_leaves_the_spec_unread_and_the_object_whole():
    async def patched() -> tuple[Record, Record]:
        service = await started()
        options = WriteOptions(field_validation="Ignore", reads_model=True)
        body = {"metadata": {"name": "p"}, **pod(futureField={"a": [1, 2.50]})}
        made = await service.create(builtins.PODS, "default", body, options)
        change = {"status": {"phase": "Running", "podIP": "10.0.0.1"}}
        written = await service.patch(
            builtins.PODS, made.key, change, options,
            patch_type=PatchType.MERGE, subresource="status",
        )  # fmt: skip
        return made, written

    made, written = run(patched())
    assert written.plain()["spec"] == made.plain()["spec"]
    assert written.plain()["status"] == made.plain()["status"] | {
        "phase": "Running",
        "podIP": "10.0.0.1",
    }
    assert written.typed(core.Pod) == msgspec.json.decode(written.data, type=core.Pod)
    assert msgspec.json.encode(written.plain(), order="sorted") == written.data


def test_uids_are_of_version_4_and_never_repeat():
    drawn = iter(bytes(range(256)) * 16 + bytes(255 - i for i in range(256)) * 16)
    uids = Uids(lambda count: bytes(next(drawn) for _ in range(count)))
    assert uids() == "00010203-0405-4607-8809-0a0b0c0d0e0f"
    assert uids() == "10111213-1415-4617-9819-1a1b1c1d1e1f"
    real = Uids()
    made = [real() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(uid[14] == "4" and uid[19] in "89ab" and len(uid) == 36 for uid in made)
