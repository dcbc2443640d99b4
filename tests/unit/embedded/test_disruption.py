"""Evictions and NoExecute taints: what they write on a pod, and when it goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.embedded.test_service import EPOCH, create, make, pod_spec, sweeping

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.status import Conflict, TooManyRequests
from fairlead.embedded.builtins import BUDGETS, NODES, PODS, SERVICE_ACCOUNTS
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import DeleteOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.stages.status import PodNow, PodPhase, pod_patch
from fairlead.runtime.client import PatchType
from fairlead.sim.loop import run

NODE, POD = ("", "n1"), ("default", "p")


async def _pod(service: ApiService, name: str = "p", **spec: Any) -> None:
    await create(service, PODS, name, spec={**pod_spec(), "nodeName": "n1", **spec})


def _read(service: ApiService, name: str = "p") -> Pod:
    return service.get(PODS, "default", name).typed(Pod)


async def _taint(service: ApiService, *taints: dict[str, Any]) -> None:
    patch = {"spec": {"taints": list(taints)}}
    await service.patch(NODES, NODE, patch, WriteOptions(), patch_type=PatchType.STRATEGIC)


def _toleration(seconds: int | None, **more: Any) -> dict[str, Any]:
    bound = {} if seconds is None else {"tolerationSeconds": seconds}
    return {"key": "a", "operator": "Exists", "effect": "NoExecute", **bound, **more}


def test_an_eviction_marks_the_pod_and_deletes_it_with_its_grace() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await _pod(service)
        version = str(service.get(PODS, *POD).version)
        with pytest.raises(Conflict):
            await service.evict(POD, DeleteOptions(resource_version="1"))
        assert _read(service).status.conditions == ()
        await service.evict(POD, DeleteOptions(dry_run=True))
        assert _read(service).status.conditions == ()
        await service.evict(POD, DeleteOptions(resource_version=version))
        pod = _read(service)
        condition = pod.status.conditions[-1]
        assert (condition.type, condition.status) == ("DisruptionTarget", "True")
        assert condition.reason == "EvictionByEvictionAPI"
        assert pod.metadata.deletion_grace_period_seconds == 30
        await service.evict(POD, DeleteOptions())  # kubectl drain asks again
        assert len(_read(service).status.conditions) == 1

    run(main())


@pytest.mark.parametrize("disrupted", ["", "TerminationByKubelet"])
def test_what_the_node_writes_leaves_the_mark_of_the_eviction(disrupted: str) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await _pod(service)
        await service.evict(POD, DeleteOptions())
        now = PodNow(PodPhase.FAILED, (), "10.0.0.1", "10.0.0.2", EPOCH, EPOCH, disrupted=disrupted)
        patch = pod_patch(_read(service), now)
        await service.patch(
            PODS, POD, patch, WriteOptions(), patch_type=PatchType.MERGE, subresource="status"
        )
        pod = _read(service)
        assert pod.status.phase == "Failed"
        found = {c.type: c.reason for c in pod.status.conditions}
        assert list(found).count("Ready") == 1
        assert found["DisruptionTarget"] == (disrupted or "EvictionByEvictionAPI")

    run(main())


def test_a_taint_is_replaced_as_the_list_that_it_is_in() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, NODES, "n1")
        both = [{"key": "a", "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        await _taint(service, *both)
        assert service.get(NODES, *NODE).plain()["spec"]["taints"] == both
        await _taint(service, {"key": "b", "effect": "NoSchedule"})
        assert [t.key for t in service.get(NODES, *NODE).typed(Node).spec.taints] == ["b"]

    run(main())


def test_the_pull_secrets_of_an_account_are_replaced() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, SERVICE_ACCOUNTS, "sa", imagePullSecrets=[{"name": "a"}])
        patch = {"imagePullSecrets": [{"name": "b"}]}
        record = await service.patch(
            SERVICE_ACCOUNTS, ("default", "sa"), patch, WriteOptions(),
            patch_type=PatchType.STRATEGIC,
        )  # fmt: skip
        assert record.plain()["imagePullSecrets"] == [{"name": "b"}]

    run(main())


def test_a_no_execute_taint_evicts_what_does_not_tolerate_it() -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            await create(service, NODES, "n1")
            await _pod(service)
            await _pod(service, "tolerant", tolerations=[_toleration(None)])
            await _pod(service, "elsewhere", nodeName="n2")
            await _taint(service, {"key": "a", "effect": "NoSchedule"})
            await asyncio.sleep(1)
            assert not service.get(PODS, *POD).is_deleting
            await _taint(service, {"key": "a", "effect": "NoExecute"})
            await asyncio.sleep(1)
            pod = _read(service)
            assert pod.metadata.deletion_timestamp is not None
            assert pod.status.conditions[-1].reason == "DeletionByTaintManager"
            for name in ("tolerant", "elsewhere"):
                assert not service.get(PODS, "default", name).is_deleting
            await _pod(service, "late")  # a pod that comes to a tainted node
            await asyncio.sleep(1)
            assert service.get(PODS, "default", "late").is_deleting

    run(main())


def test_a_toleration_for_some_time_delays_the_eviction() -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            await create(service, NODES, "n1")
            await _pod(service, tolerations=[_toleration(60), _toleration(90)])
            await _pod(service, "forever", tolerations=[_toleration(None)])
            await _taint(service, {"key": "a", "effect": "NoExecute"})
            await asyncio.sleep(59)
            assert not service.get(PODS, *POD).is_deleting
            await asyncio.sleep(2)
            assert service.get(PODS, *POD).is_deleting
            assert not service.get(PODS, "default", "forever").is_deleting

    run(main())


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_several_taints_the_one_that_evicts_first_counts(order: tuple[str, str]) -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            await create(service, NODES, "n1")
            await _pod(service, tolerations=[_toleration(60), _toleration(90, key="b")])
            await _taint(service, *({"key": key, "effect": "NoExecute"} for key in order))
            await asyncio.sleep(59)
            assert not service.get(PODS, *POD).is_deleting
            await asyncio.sleep(2)
            assert service.get(PODS, *POD).is_deleting

    run(main())


def test_a_taint_that_goes_in_time_evicts_nobody_and_one_that_is_old_evicts_at_once() -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            await create(service, NODES, "n1")
            await _pod(service, tolerations=[_toleration(60)])
            await _taint(service, {"key": "a", "effect": "NoExecute"})
            await asyncio.sleep(30)
            await _taint(service)
            await asyncio.sleep(60)
            assert not service.get(PODS, *POD).is_deleting
            added = "2023-11-14T22:13:20Z"  # the epoch
            assert EPOCH == 1_700_000_000
            await _taint(service, {"key": "a", "effect": "NoExecute", "timeAdded": added})
            await asyncio.sleep(1)
            assert service.get(PODS, *POD).is_deleting

    run(main())


def test_a_restart_goes_on_with_the_taints_that_it_finds() -> None:
    async def main() -> None:
        store = Store.open(None)
        service = make(store)
        await service.bootstrap()
        await create(service, NODES, "n1")
        await _pod(service)
        await _taint(service, {"key": "a", "effect": "NoExecute"})
        async with sweeping(make(store)) as again:
            await asyncio.sleep(1)
            assert again.get(PODS, *POD).is_deleting

    run(main())


def test_the_taint_of_a_node_that_is_gone_evicts_nobody() -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            await create(service, NODES, "n1")
            await _taint(service, {"key": "a", "effect": "NoExecute"})
            await service.delete(NODES, NODE, DeleteOptions())
            await create(service, NODES, "n2")
            patch = {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}
            await service.patch(
                NODES, ("", "n2"), patch, WriteOptions(), patch_type=PatchType.MERGE
            )
            await _pod(service, "elsewhere", nodeName="n2")
            await _pod(service)
            await asyncio.sleep(1)
            assert service.get(PODS, "default", "elsewhere").is_deleting
            assert not service.get(PODS, *POD).is_deleting

    run(main())


async def _budgeted_pods(service: ApiService, *pods: str) -> None:
    """Make running pods, one of which must stay."""
    labels = {"app": "x"}
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    await create(service, BUDGETS, "b", spec=budget)
    for name in pods:
        spec = {**pod_spec(), "nodeName": "n1"}
        await create(service, PODS, name, metadata={"labels": labels}, spec=spec)
        now = PodNow(PodPhase.RUNNING, (), "10.0.0.1", "10.0.0.2", EPOCH, EPOCH)
        await service.patch(
            PODS, ("default", name), pod_patch(_read(service, name), now), WriteOptions(),
            patch_type=PatchType.MERGE, subresource="status",
        )  # fmt: skip


def test_a_pod_that_is_being_deleted_is_none_of_those_that_its_budget_needs() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await _budgeted_pods(service, "p", "q")
        await service.evict(POD, DeleteOptions())
        with pytest.raises(TooManyRequests):
            await service.evict(("default", "q"), DeleteOptions())

    run(main())


def test_a_pod_that_is_being_deleted_may_be_evicted_whatever_its_budget_says() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await _budgeted_pods(service, "p")
        with pytest.raises(TooManyRequests):
            await service.evict(POD, DeleteOptions())
        await service.delete(PODS, POD, DeleteOptions())
        await service.evict(POD, DeleteOptions(grace_period_seconds=5))
        assert _read(service).metadata.deletion_grace_period_seconds == 5

    run(main())


def test_a_binding_that_is_a_dry_run_leaves_the_pod_without_a_node() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, PODS, "p", spec=pod_spec())
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
        for is_dry, node in ((True, ""), (False, "n1")):
            before = service.get(PODS, *POD).version
            await service.bind(POD, binding, WriteOptions(dry_run=is_dry))
            assert _read(service).spec.node_name == node
            assert (service.get(PODS, *POD).version == before) is is_dry

    run(main())


@pytest.mark.parametrize("given", [{}, {"annotations": None}, {"annotations": {"b": "2"}}])
def test_a_binding_adds_the_annotations_that_it_has(given: dict[str, Any]) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, PODS, "p", metadata={"annotations": {"a": "1"}}, spec=pod_spec())
        binding = {"metadata": {"name": "p", **given}, "target": {"kind": "Node", "name": "n1"}}
        await service.bind(POD, binding, WriteOptions())
        assert _read(service).spec.node_name == "n1"
        assert _read(service).metadata.annotations == {"a": "1", **(given.get("annotations") or {})}

    run(main())
