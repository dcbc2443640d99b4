"""What every cluster has: accounts, authorities, the Service of the API server, node leases."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.unit.embedded.test_service import EPOCH, create, make, sweeping

from fairlead.api.resources import LEASES, NODES
from fairlead.api.status import NotFound
from fairlead.embedded import builtins
from fairlead.embedded.own_controllers.node_leases import NAMESPACE, NodeLeases, NodeLeaseTimes
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import DeleteOptions, ListOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.verbs.sweeps.cluster_objects import Address
from fairlead.runtime.client import PatchType
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import make_node
from fairlead.testing.fake_client import FakeClient

HERE = Address("127.0.0.1", 6443, "PEM")


def _names(service: ApiService, info: Any, namespace: str) -> list[str]:
    return [r.name for r in service.list(info, namespace, ListOptions()).records]


def _plain(service: ApiService, info: Any, namespace: str, name: str) -> dict[str, Any]:
    return service.get(info, namespace, name).plain()


def test_every_namespace_has_its_account_and_its_authority_and_gets_them_again() -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            await asyncio.sleep(1)
            assert _names(service, builtins.SERVICE_ACCOUNTS, "kube-system") == ["default"]
            assert _names(service, builtins.CONFIG_MAPS, "kube-system") == []  # not served yet
            service.serves_at(HERE)
            await create(service, builtins.NAMESPACES, "team")
            await asyncio.sleep(1)
            for namespace in ("default", "kube-public", "team"):
                assert _names(service, builtins.SERVICE_ACCOUNTS, namespace) == ["default"]
                data = _plain(service, builtins.CONFIG_MAPS, namespace, "kube-root-ca.crt")["data"]
                assert data == {"ca.crt": "PEM"}
            key = ("team", "kube-root-ca.crt")
            await service.delete(builtins.CONFIG_MAPS, key, DeleteOptions())
            await service.delete(builtins.SERVICE_ACCOUNTS, ("team", "default"), DeleteOptions())
            patch = {"data": {"ca.crt": "other", "mine": "kept"}}
            await service.patch(
                builtins.CONFIG_MAPS, ("default", "kube-root-ca.crt"), patch, WriteOptions(),
                patch_type=PatchType.MERGE,
            )  # fmt: skip
            await asyncio.sleep(1)
            assert _names(service, builtins.SERVICE_ACCOUNTS, "team") == ["default"]
            assert _names(service, builtins.CONFIG_MAPS, "team") == ["kube-root-ca.crt"]
            found = _plain(service, builtins.CONFIG_MAPS, "default", "kube-root-ca.crt")["data"]
            assert found == {"ca.crt": "PEM", "mine": "kept"}

    run(main())


def test_a_namespace_that_goes_takes_them_with_it_for_good() -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            service.serves_at(HERE)
            await create(service, builtins.NAMESPACES, "team")
            await asyncio.sleep(1)
            assert _names(service, builtins.CONFIG_MAPS, "team") == ["kube-root-ca.crt"]
            await service.delete(builtins.NAMESPACES, ("", "team"), DeleteOptions())
            await asyncio.sleep(5)
            with pytest.raises(NotFound):
                service.get(builtins.NAMESPACES, "", "team")
            assert _names(service, builtins.CONFIG_MAPS, "team") == []

    run(main())


def test_the_service_of_the_api_server_says_where_it_listens_now() -> None:
    async def main() -> None:
        async with sweeping(make(Store.open(None))) as service:
            await service.bootstrap()
            service.serves_at(HERE)
            await asyncio.sleep(1)
            service.serves_at(Address("127.0.0.1", 7000, "PEM"))  # the next start
            await asyncio.sleep(1)
            spec = _plain(service, builtins.SERVICES, "default", "kubernetes")["spec"]
            assert spec["clusterIP"] == "127.0.0.1"
            assert [p["port"] for p in spec["ports"]] == [7000]
            found = _plain(service, builtins.ENDPOINT_SLICES, "default", "kubernetes")
            assert found["addressType"] == "IPv4"
            assert found["endpoints"][0]["addresses"] == ["127.0.0.1"]
            assert [p["port"] for p in found["ports"]] == [7000]
            version = service.store.version
            service.serves_at(Address("127.0.0.1", 7000, "PEM"))
            await asyncio.sleep(1)
            assert service.store.version == version  # nothing new, nothing written

    run(main())


def test_a_node_that_is_ready_renews_its_lease_and_one_that_is_not_does_not() -> None:
    async def main() -> None:
        client, clock = FakeClient(), LoopClock(EPOCH)
        ours = {"fairlead.dev/node-type": "virtual"}
        for name, ready, labels in (
            ("v0", True, ours), ("v1", False, ours), ("foreign", True, {}),
        ):  # fmt: skip
            await client.create(NODES, make_node(name, ready=ready, labels=labels))
        mirror = Mirror(client, NODES, clock=clock, rng=random.Random(1))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(mirror.run()),
                group.create_task(NodeLeases(client, clock, mirror).run()),
            ]
            await asyncio.sleep(1)
            [lease] = client.stored(LEASES)
            assert lease.metadata.key == (NAMESPACE, "v0")
            assert lease.metadata.owner_references[0].name == "v0"
            assert (
                lease.spec.lease_duration_seconds
                == NodeLeaseTimes().lease_seconds
                > NodeLeaseTimes().renew_seconds
            )
            first = lease.spec.renew_time
            await client.create(NODES, make_node("v2", labels=ours))
            await asyncio.sleep(NodeLeaseTimes().renew_seconds + 10)
            again, late = client.stored(LEASES)
            assert late.metadata.name == "v2"
            assert (again.spec.renew_time or "") > (first or "")
            for task in tasks:
                task.cancel()

    run(main())
