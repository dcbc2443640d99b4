"""Pods that say the same share what they say."""

from __future__ import annotations

import random

import msgspec
import pytest
from bench.objects import pod_body

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import Condition
from fairlead.api.names import JOB_UID, SUBMITTED_BY
from fairlead.api.resources import CONFIG_MAPS, NODES
from fairlead.api.status import BadRequest
from fairlead.api.values.times import format_time
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import WatchRequest
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.watching.sharing import JobSharing, PodSharing
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job


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


def test_ended_jobs_hold_equal_texts_once_and_stay_what_they_are() -> None:
    sharing, first, second = JobSharing(), ended_job("a"), ended_job("b")
    sharing.share(first)
    sharing.share(second)
    assert second == ended_job("b")
    texts, others = texts_of(first), texts_of(second)
    assert {"Succeeded", format_time(EPOCH), "alice"} <= texts.keys()
    shared = {text for text in others if texts.get(text) is others[text]}
    assert others.keys() - shared == {"1", "b", second.metadata.uid}  # its version, name and uid


def test_a_job_that_runs_is_not_searched_for_equal_texts() -> None:
    running = msgspec.json.decode(msgspec.json.encode(make_job("a")), type=Job)
    sharing = JobSharing()
    sharing.share(running)
    other = ended_job("b")
    sharing.share(other)
    assert texts_of(running)["a"] is not texts_of(other).get("a")
    assert texts_of(running)["default"] is not texts_of(other)["default"]


def ended_job(name: str) -> Job:
    at = format_time(EPOCH)
    conditions = tuple(Condition(type_, "True", "Ended", "all is over", None, at)
                       for type_ in ("Admitted", "Running", "Succeeded"))  # fmt: skip
    status = {"state": "Succeeded", "finished_at": at, "started_at": at,
              "attempts": (Attempt(1, begun_at=at, finished_at=at),)}  # fmt: skip
    job = make_job(name, conditions=conditions, status=status, labels={SUBMITTED_BY: "alice"})
    return msgspec.json.decode(msgspec.json.encode(job), type=Job)


def texts_of(job: Job) -> dict[str, str]:
    """Return the texts of metadata and status, each under itself, as the last one that has it."""
    found: dict[str, str] = {}

    def walk(value: object) -> None:
        if isinstance(value, str):
            found[value] = value
        elif isinstance(value, dict):
            for each in value.values():
                walk(each)
        elif isinstance(value, tuple):
            for each in value:
                walk(each)
        elif isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                walk(getattr(value, name))

    walk(job.metadata)
    walk(job.status)
    return {text: each for text, each in found.items() if text}


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
