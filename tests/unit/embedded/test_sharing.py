"""Pods that say the same share what they say."""

from __future__ import annotations

import random

import msgspec
import pytest
from bench.objects import pod_body

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import JOB_UID
from fairlead.api.resources import CONFIG_MAPS, NODES
from fairlead.api.status import BadRequest
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import WatchRequest
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.sharing import PodSharing
from fairlead.sim.loop import run


def decoded(name: str) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(pod_body(name)), type=Pod)


def test_equal_parts_of_two_pods_become_one_and_the_pods_stay_what_they_are() -> None:
    sharing, first, second = PodSharing(), decoded("a"), decoded("b")
    sharing.share(first)
    sharing.share(second)
    assert second == decoded("b")
    assert second.spec.volumes is first.spec.volumes
    pairs = zip(first.spec.containers[0].env, second.spec.containers[0].env, strict=True)
    assert all(one is other for one, other in pairs)
    assert second.metadata.name == "b"
    assert second.metadata.owner_references is first.metadata.owner_references
    assert second.metadata.labels[JOB_UID] is first.metadata.labels[JOB_UID]
    asked, also = first.spec.containers[0].resources, second.spec.containers[0].resources
    assert also.limits is asked.limits


def test_a_full_table_forgets_and_goes_on() -> None:
    sharing = PodSharing(parts_max=3)
    for i in range(5):
        pod = decoded(f"p-{i}")
        sharing.share(pod)
        assert pod == decoded(f"p-{i}")


def test_the_table_holds_what_no_pod_has_any_more_only_until_it_has_doubled() -> None:
    sharing = PodSharing(parts_few=8)
    lasting = decoded("lasting")
    sharing.share(lasting)
    few = len(sharing)
    for i in range(100):
        pod = msgspec.json.decode(
            msgspec.json.encode(pod_body("passing")).replace(b"train", b"train%d" % i), type=Pod
        )
        assert pod != decoded("passing")
        sharing.share(pod)
    assert len(sharing) <= 4 * few
    again = decoded("lasting")
    sharing.share(again)
    assert again.spec.volumes is lasting.spec.volumes


def test_other_kinds_are_left_alone() -> None:
    node = Node()
    PodSharing().share(node)
    assert node == Node()


def test_what_this_process_writes_stays_decoded_only_while_its_kind_is_watched() -> None:
    async def main() -> None:
        store = Store.open(None)
        service = ApiService(
            store, Registry.with_builtins(), LoopClock(0.0), ids=lambda: "uid", rng=random.Random(1)
        )
        await service.bootstrap()
        client = InProcessClient(service)

        async def is_decoded(name: str) -> bool:
            data = {"metadata": {"name": name}, "data": {"a": "b"}}
            written = await client.create(CONFIG_MAPS, data, namespace="default")
            found = store.get(CONFIG_MAPS.plural, ("default", name))
            assert found is not None
            assert written.data == {"a": "b"}
            patch = {"data": {"a": "c"}}
            written = await client.patch(CONFIG_MAPS, name, patch, namespace="default")
            assert written.data == {"a": "c"}
            now = store.get(CONFIG_MAPS.plural, ("default", name))
            assert now is not None
            assert found.is_decoded(CONFIG_MAPS.type) is now.is_decoded(CONFIG_MAPS.type)
            return now.is_decoded(CONFIG_MAPS.type)

        assert not await is_decoded("before")
        watch = client.watch_records(WatchRequest(CONFIG_MAPS, resource_version="1"))
        assert await is_decoded("meanwhile")
        watch.close()
        assert not await is_decoded("after")

    run(main())


def test_objects_with_equal_specs_have_one_read_model_of_it() -> None:
    async def main() -> None:
        service = ApiService(
            Store.open(None), Registry.with_builtins(), LoopClock(0.0),
            ids=lambda: "uid", rng=random.Random(1),
        )  # fmt: skip
        await service.bootstrap()
        client = InProcessClient(service)

        async def created(name: str, **spec: object) -> Node:
            return await client.create(NODES, {"metadata": {"name": name}, "spec": spec})

        taint = {"key": "a", "value": "b", "effect": "NoSchedule"}
        one, two = await created("one", taints=[taint]), await created("two", taints=[taint])
        assert one.spec is two.spec
        assert one.spec.taints[0].value == "b"
        assert (one.metadata.name, two.metadata.name) == ("one", "two")
        other = await created("other", taints=[{**taint, "value": "c"}])
        assert other.spec.taints[0].value == "c"
        with pytest.raises(BadRequest, match=r"spec\.taints"):
            await created("wrong", taints=7)
        assert (await created("bare")).spec == Node().spec

    run(main())
