"""ResourceQuotas of the embedded API: what is counted, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.pods.served_resources import SERVED_CLAIM
from fairlead.api.status import Forbidden, Invalid
from fairlead.api.values.amounts import Amounts, added, read, written
from fairlead.embedded.builtins import (
    CLAIMS,
    CONFIG_MAPS,
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    SERVICES,
)
from fairlead.embedded.quota.usage import usage_of
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import DeleteOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import PatchType
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run

GPU = "requests.nvidia.com/gpu"


async def cluster(directory: Path | None = None) -> ApiService:
    numbers = itertools.count(1)
    service = ApiService(
        Store.open(directory), Registry.with_builtins(), LoopClock(0.0),
        ids=lambda: f"uid-{next(numbers)}", rng=random.Random(1),
    )  # fmt: skip
    await service.bootstrap()
    return service


async def make(
    service: ApiService, info: ResourceInfo, name: str, *, dry_run: bool = False, **body: Any
) -> Any:
    body["metadata"] = {"name": name, **body.get("metadata", {})}
    options = WriteOptions(dry_run=dry_run)
    namespace = "default" if info.namespaced else ""
    return (await service.create(info, namespace, body, options)).plain()


def spec(requests: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    resources = {"requests": requests or {}, "limits": more.pop("limits", {})}
    main = {"name": "main", "image": "none", "resources": resources}
    return {"containers": [main], **more}


async def limit(service: ApiService, name: str = "q", **hard: Any) -> Any:
    more = hard.pop("more", {})
    return await make(service, RESOURCE_QUOTAS, name, spec={"hard": hard.pop("hard", hard), **more})


def used(service: ApiService, name: str = "q") -> dict[str, str]:
    record = service.store.latest(RESOURCE_QUOTAS.name, ("default", name))
    assert record is not None
    return record.plain()["status"]["used"]


async def settle(service: ApiService) -> None:
    task = asyncio.create_task(service.run())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert service.backlog == 0


async def delete(service: ApiService, info: ResourceInfo, name: str) -> None:
    await service.delete(info, ("default", name), DeleteOptions(grace_period_seconds=0))


def test_creations_at_once_cannot_exceed_a_limit_together() -> None:
    async def main() -> None:
        service = await cluster()
        await limit(service, pods="5", hard={"pods": "5", GPU: "40"})
        made = await asyncio.gather(
            *(make(service, PODS, f"p{n}", spec=spec({"nvidia.com/gpu": 8}, limits={
                "nvidia.com/gpu": 8})) for n in range(9)),
            return_exceptions=True,
        )  # fmt: skip
        refused = [each for each in made if isinstance(each, BaseException)]
        assert len(refused) == 4
        assert all(isinstance(each, Forbidden) for each in refused)
        assert used(service) == {"pods": "5", GPU: "40"}

    run(main())


def test_writes_that_the_disk_still_has_to_take_are_counted_once(tmp_path: Path) -> None:
    async def main() -> None:
        service = await cluster(tmp_path)
        await make(service, PODS, "before", spec=spec())
        made = await asyncio.gather(
            delete(service, PODS, "before"),
            limit(service, hard={"pods": "3"}),
            *(make(service, PODS, f"p{n}", spec=spec()) for n in range(5)),
            return_exceptions=True,
        )
        assert [type(each) for each in made if isinstance(each, BaseException)] == [Forbidden] * 2
        await settle(service)
        assert used(service) == {"pods": "3"}
        await service.store.close()

    asyncio.run(main())


def test_a_refusal_says_what_was_asked_used_and_limited() -> None:
    async def main() -> None:
        service = await cluster()
        await limit(service, hard={"requests.cpu": "1", "requests.memory": "1Gi", "pods": "9"})
        await make(service, PODS, "a", spec=spec({"cpu": "600m", "memory": "512Mi"}))
        with pytest.raises(Forbidden) as caught:
            await make(service, PODS, "b", spec=spec({"cpu": "0.5", "memory": "768Mi"}))
        assert caught.value.message == (
            'pods "b" is forbidden: exceeded quota: q, requested: requests.cpu=500m,'
            "requests.memory=768Mi, used: requests.cpu=600m,requests.memory=512Mi, "
            "limited: requests.cpu=1,requests.memory=1Gi"
        )
        with pytest.raises(
            Forbidden, match=r"failed quota: q: must specify requests.cpu for: main"
        ):
            await make(service, PODS, "c", spec=spec({"memory": "1Mi"}))
        await make(service, PODS, "d", dry_run=True, spec=spec({"cpu": "100m", "memory": "1Mi"}))
        with pytest.raises(Forbidden):
            await make(service, PODS, "d", dry_run=True, spec=spec({"cpu": 1, "memory": "1Mi"}))
        assert used(service) == {"pods": "1", "requests.cpu": "600m", "requests.memory": "512Mi"}

    run(main())


def test_what_ends_or_goes_gives_back_what_it_used() -> None:
    async def main() -> None:
        service = await cluster()
        await limit(service, hard={"pods": "2", "count/pods": "9", "requests.cpu": "2"})
        for name in "ab":
            await make(service, PODS, name, spec=spec({"cpu": 1}))
        await service.patch(
            PODS, ("default", "a"), {"status": {"phase": "Succeeded"}}, WriteOptions(),
            patch_type=PatchType.MERGE, subresource="status",
        )  # fmt: skip
        await settle(service)
        assert used(service) == {"pods": "1", "count/pods": "2", "requests.cpu": "1"}
        await make(service, PODS, "c", spec=spec({"cpu": 1}))
        for name in "abc":
            await delete(service, PODS, name)
        await settle(service)
        assert used(service) == {"pods": "0", "count/pods": "0", "requests.cpu": "0"}

    run(main())


def test_a_quota_counts_what_is_there_when_it_comes_and_when_its_limits_change() -> None:
    async def main() -> None:
        service = await cluster()
        await make(service, PODS, "a", spec=spec())
        await make(service, CONFIG_MAPS, "m", data={})
        quota = await limit(service, hard={"pods": "1"})
        assert quota["status"] == {"hard": {"pods": "1"}, "used": {"pods": "1"}}
        await delete(service, PODS, "a")  # before and after the count: given back once
        wider = {"spec": {"hard": {"pods": "1", "configmaps": "5", "count/secrets": "1"}}}
        await service.patch(
            RESOURCE_QUOTAS, ("default", "q"), wider, WriteOptions(), patch_type=PatchType.MERGE
        )
        await settle(service)
        assert used(service) == {"pods": "0", "configmaps": "1", "count/secrets": "0"}
        await delete(service, RESOURCE_QUOTAS, "q")
        await settle(service)
        for name in "bcd":
            await make(service, PODS, name, spec=spec())

    run(main())


def test_a_restart_counts_again() -> None:
    async def main() -> None:
        service = await cluster()
        await limit(service, hard={"pods": "9"})
        await make(service, PODS, "a", spec=spec())
        wrong = {"status": {"used": {"pods": "7"}}}
        await service.patch(
            RESOURCE_QUOTAS, ("default", "q"), wrong, WriteOptions(),
            patch_type=PatchType.MERGE, subresource="status",
        )  # fmt: skip
        again = ApiService(
            service.store, Registry.with_builtins(), LoopClock(0.0),
            ids=lambda: "x", rng=random.Random(1),
        )  # fmt: skip
        await settle(again)
        assert used(again) == {"pods": "1"}

    run(main())


SCOPES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 5}, True),
    ({"scopes": ["Terminating"]}, {}, False),
    ({"scopes": ["NotTerminating"]}, {}, True),
    ({"scopes": ["BestEffort"]}, {}, True),
    ({"scopes": ["NotBestEffort"]}, {}, False),
    ({"scopes": ["NotBestEffort", "NotTerminating"]}, {"requests": {"cpu": 1}}, True),
    ({"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]},
    ]}}, {"priorityClassName": "system-node-critical"}, True),
    ({"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "Exists"},
    ]}}, {}, False),
    ({"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]},
    ]}}, {}, True),
]  # fmt: skip


@pytest.mark.parametrize(("scopes", "pod", "counts"), SCOPES)
def test_scopes_select_pods(scopes: Any, pod: dict[str, Any], counts: bool) -> None:
    async def main() -> None:
        service = await cluster()
        await limit(service, hard={"pods": "5"}, more=scopes)
        given = dict(pod)
        await make(service, PODS, "a", spec=spec(given.pop("requests", None), **given))
        assert used(service) == {"pods": "1" if counts else "0"}

    run(main())


def test_services_and_claims_count_what_they_are_made_of() -> None:
    async def main() -> None:
        service = await cluster()
        hard = {"services.nodeports": "3", "services.loadbalancers": "1", "services": "9",
                "requests.storage": "10Gi", "persistentvolumeclaims": "2",
                "fast.storageclass.storage.k8s.io/requests.storage": "5Gi"}  # fmt: skip
        await limit(service, hard=hard)
        ports = [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]
        await make(service, SERVICES, "s", spec={"type": "LoadBalancer", "ports": ports})
        storage = {"resources": {"requests": {"storage": "4Gi"}}, "storageClassName": "fast",
                   "accessModes": ["ReadWriteOnce"]}  # fmt: skip
        await make(service, CLAIMS, "c", spec=storage)
        assert used(service) == {
            "services.nodeports": "2", "services.loadbalancers": "1",
            "requests.storage": "4Gi", "persistentvolumeclaims": "1",
            "fast.storageclass.storage.k8s.io/requests.storage": "4Gi",
            # The Service of the API server lies in this namespace only where one listens.
            "services": "1",
        }  # fmt: skip
        with pytest.raises(
            Forbidden, match=r"requested: fast.storageclass.storage.k8s.io/requests"
        ):
            await make(service, CLAIMS, "d", spec=storage)
        change = {"spec": {"type": "NodePort", "ports": [*ports, {"port": 82, "name": "c"},
                                                         {"port": 83, "name": "d"}]}}  # fmt: skip
        with pytest.raises(Forbidden, match=r"services.nodeports=2, used: services.nodeports=2"):
            await service.patch(
                SERVICES, ("default", "s"), change, WriteOptions(), patch_type=PatchType.MERGE
            )

    run(main())


def test_claims_for_devices_count_by_class_and_the_most_of_their_alternatives() -> None:
    def devices(name: str, **exactly: Any) -> dict[str, Any]:
        return {"name": name, "exactly": {"deviceClassName": "gpu", **exactly}}

    def option(name: str, count: int) -> dict[str, Any]:
        return {"name": f"{name}-{count}", "deviceClassName": name, "count": count}

    async def main() -> None:
        service = await cluster()
        of_class = "{}.deviceclass.resource.k8s.io/devices"
        hard = {of_class.format("gpu"): "8", of_class.format("nic"): "40",
                "count/resourceclaims.resource.k8s.io": "9"}  # fmt: skip
        await limit(service, hard=hard)
        either = {"name": "c", "firstAvailable": [
            option("gpu", 1), option("nic", 4), option("gpu", 3)
        ]}  # fmt: skip
        requests = [devices("a"), devices("b", count=2, allocationMode="ExactCount"), either]
        await make(service, RESOURCE_CLAIMS, "c", spec={"devices": {"requests": requests}})
        every = {"name": "a", "exactly": {"deviceClassName": "nic", "allocationMode": "All"}}
        await make(service, RESOURCE_CLAIMS, "d", spec={"devices": {"requests": [every]}})
        assert used(service) == {
            of_class.format("gpu"): "6", of_class.format("nic"): "36",
            "count/resourceclaims.resource.k8s.io": "2",
        }  # fmt: skip
        words = r"requested: gpu.deviceclass.resource.k8s.io/devices=3, used: .*=6, limited: .*=8"
        with pytest.raises(Forbidden, match=words):
            await make(service, RESOURCE_CLAIMS, "e", spec={"devices": {"requests": requests[:2]}})
        await delete(service, RESOURCE_CLAIMS, "c")
        await settle(service)
        assert used(service)[of_class.format("gpu")] == "0"

    run(main())


def test_claims_use_the_resource_that_their_class_serves_beyond_what_their_pod_uses() -> None:
    implied = "deviceclass.resource.kubernetes.io/gpu"
    implicit = f"requests.{implied.removesuffix('gpu')}"

    async def main() -> None:
        service = await cluster()
        card = {"extendedResourceName": "nvidia.com/gpu"}
        await make(service, DEVICE_CLASSES, "gpu", spec=card)
        await make(service, DEVICE_CLASSES, "nic", spec={})
        await limit(service, hard={GPU: "9", f"{implicit}gpu": "20", f"{implicit}nic": "9"})
        request = {"deviceClassName": "gpu", "count": 2}
        devices = {"devices": {"requests": [{"name": "a", "exactly": request}]}}
        await make(service, RESOURCE_CLAIMS, "c", spec=devices)
        assert used(service) == {GPU: "2", f"{implicit}gpu": "2", f"{implicit}nic": "0"}
        pod = await make(service, PODS, "p", spec=spec(limits={"nvidia.com/gpu": "2"}))
        assert used(service)[GPU] == "4"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "controller": True,
                 "uid": pod["metadata"]["uid"]}  # fmt: skip
        own = {"annotations": {SERVED_CLAIM: "true"}, "ownerReferences": [owner]}
        await make(service, RESOURCE_CLAIMS, "p-extended-resources", spec=devices, metadata=own)
        assert used(service) == {GPU: "4", f"{implicit}gpu": "4", f"{implicit}nic": "0"}
        await make(service, PODS, "i", spec=spec(limits={implied: "3"}))
        assert used(service)[f"{implicit}gpu"] == "7"
        request["count"] = 6
        words = r"requests\.nvidia\.com/gpu=6, used: .*=4, limited: .*=9"
        with pytest.raises(Forbidden, match=words):
            await make(service, RESOURCE_CLAIMS, "d", spec=devices)
        forged = r"requests\.nvidia\.com/gpu=6, used: "
        with pytest.raises(Forbidden, match=forged):  # a pod has one claim for its resources
            await make(service, RESOURCE_CLAIMS, "more", spec=devices, metadata=own)
        for name in ("p-extended-resources", "c"):
            await delete(service, RESOURCE_CLAIMS, name)
        await settle(service)
        assert used(service) == {GPU: "2", f"{implicit}gpu": "3", f"{implicit}nic": "0"}

    run(main())


def test_quotas_are_counted_again_when_a_class_names_another_resource() -> None:
    tpu = "requests.google.com/tpu"
    implicit = "requests.deviceclass.resource.kubernetes.io/gpu"
    request = {"name": "a", "exactly": {"deviceClassName": "gpu", "count": 2}}

    async def main() -> None:
        service = await cluster()
        await limit(service, hard={GPU: "9", tpu: "9", implicit: "9"})
        await limit(service, "other", pods="9")
        await make(service, DEVICE_CLASSES, "gpu", spec={})
        await make(service, RESOURCE_CLAIMS, "c", spec={"devices": {"requests": [request]}})
        assert used(service) == {GPU: "0", tpu: "0", implicit: "0"}
        other = service.store.latest(RESOURCE_QUOTAS.name, ("default", "other"))
        for name, expected in (("nvidia.com/gpu", GPU), ("google.com/tpu", tpu), ("", "")):
            body = {"spec": {"extendedResourceName": name or None}}
            await service.patch(
                DEVICE_CLASSES, ("", "gpu"), body, WriteOptions(), patch_type=PatchType.MERGE
            )
            await settle(service)
            counts = {each: "2" if each == expected else "0" for each in (GPU, tpu)}
            assert used(service) == {**counts, implicit: "2" if name else "0"}
        await make(service, DEVICE_CLASSES, "late", spec={"extendedResourceName": "a.example/b"})
        await service.patch(
            DEVICE_CLASSES, ("", "gpu"), {"spec": {"extendedResourceName": "google.com/tpu"}},
            WriteOptions(), patch_type=PatchType.MERGE,
        )  # fmt: skip
        await settle(service)
        await service.delete(DEVICE_CLASSES, ("", "gpu"), DeleteOptions())
        await settle(service)
        assert used(service) == {GPU: "0", tpu: "0", implicit: "0"}
        assert service.store.latest(RESOURCE_QUOTAS.name, ("default", "other")) is other

    run(main())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"hard": {"bananas": "1"}}, "spec.hard[bananas]"),
        ({"hard": {"pods": "-1"}}, "spec.hard[pods]"),
        ({"hard": {"pods": "1.5"}}, "spec.hard[pods]"),
        ({"hard": {"pods": "1"}, "scopes": ["Maybe"]}, "spec.scopes"),
        ({"hard": {"requests.cpu": "1"}, "scopes": ["BestEffort"]}, "spec.scopes"),
        ({"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}, "spec.scopes"),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(body: dict[str, Any], field: str) -> None:
    async def main() -> None:
        service = await cluster()
        with pytest.raises(Invalid) as caught:
            await make(service, RESOURCE_QUOTAS, "q", spec=body)
        details = caught.value.status.details
        assert details is not None
        assert field in [cause.field for cause in details.causes]

    run(main())


@pytest.mark.parametrize(
    ("texts", "total"),
    [
        (["0.5", "1"], "1500m"), (["512Mi", "512Mi"], "1Gi"), (["1Gi", "1"], "1073741825"),
        (["1G", "1Gi"], "2073741824"), (["100m", "900m"], "1"), (["0", "2Ki"], "2Ki"),
        (["1k"], "1k"), (["1000"], "1k"), (["512"], "512"), (["1e3"], "1k"),
    ],
)  # fmt: skip
def test_amounts_are_written_as_the_api_server_writes_them(texts: list[str], total: str) -> None:
    parts: list[Amounts] = []
    for text in texts:
        amount = read(text)
        assert amount is not None
        parts.append({"x": amount})
    assert written(added(parts)) == {"x": total}


def test_what_a_pod_asks_as_a_whole_is_what_quotas_count() -> None:
    whole = {
        "requests": {"cpu": "3", "hugepages-2Mi": "8Mi"},
        "limits": {"cpu": "4", "hugepages-2Mi": "8Mi"},
    }
    gpus = {"nvidia.com/gpu": "2"}
    asked = spec({"cpu": "1", **gpus}, limits=gpus, resources=whole, overhead={"cpu": "1"})
    found = usage_of("pods", {"spec": asked})
    assert {name: str(found[name]) for name in found if name != "count/pods"} == {
        "pods": "1", "cpu": "4", "requests.cpu": "4", "limits.cpu": "5",
        "hugepages-2Mi": "8Mi", "requests.hugepages-2Mi": "8Mi", GPU: "2",
    }  # fmt: skip
