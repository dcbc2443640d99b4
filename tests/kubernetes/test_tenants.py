"""The best sequences of the simulated tenant on a real API server, in the name of a real user.

The same calls as in `tests/simulation/test_tenants.py`, by a user who holds the role `edit` in one
namespace, with the webhook, a team whose nodes are lent to nobody, and a ResourceQuota.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.hostile_world import CANARY_SECONDS_MAX, World, hostile_world
from tests.kubernetes.operating import http_client, job_body, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_hostile import define_tools
from tests.kubernetes.test_install import install
from tests.simulation.best_sequences import best_sequences

from fairlead.api import names
from fairlead.api.resources import (
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    TEAMS,
    Resource,
)
from fairlead.api.status import AlreadyExists, ApiError, NotFound
from fairlead.kube.client import HttpClient
from fairlead.sim.tenants.calls import EDITED, TENANT, Call, Verb, resolved
from fairlead.sim.tenants.quota import CLOSED_CLASS, QUOTAS

pytestmark = pytest.mark.kubernetes
SEQUENCES, BATCH_SIZE = 20, 4
#: The node of team rich, whom nobody else may use.
NODE = "v00007"
#: His waits are shortened to this: time is real here.
WAIT_SECONDS_MAX = 1.0
_BINDINGS: Resource[Any] = Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", dict
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with quotas, where Fairlead is installed."""
    for plane in own_plane(
        tmp_path_factory,
        scheduler=True,
        controllers=("resourcequota-controller", "clusterrole-aggregation-controller"),
    ):
        values = plane.directory / "values.yaml"
        values.write_text("webhook: {enabled: false}\n")
        install(plane, "--values", str(values))
        yield plane


@pytest.fixture(scope="module")
def sequences() -> tuple[tuple[Call, ...], ...]:
    """Chosen by simulations, which run event loops of their own."""
    return best_sequences(SEQUENCES)


class Tenant:
    """Sends the calls of the simulated tenant over HTTP."""

    def __init__(self, client: HttpClient, world: World) -> None:
        self._client = client
        self._world = world
        self.outcomes: Counter[str] = Counter()

    async def send(self, call: Call) -> None:
        await asyncio.sleep(min(call.wait, WAIT_SECONDS_MAX))
        resource = EDITED.get(call.kind)
        if resource is None or call.verb is Verb.WAIT:
            return
        try:
            await self._request(call, resource, await self._filled(call.body))
        except ApiError as error:
            self.outcomes[type(error).__name__] += 1
        else:
            self.outcomes["ok"] += 1

    async def _request(self, call: Call, resource: Resource[Any], body: Any) -> None:
        path = resource.path(TENANT, call.name)
        match call.verb:
            case Verb.CREATE:
                whole = {"kind": resource.kind, "apiVersion": resource.api_version, **body}
                await self._client.request(
                    "POST", resource.path(TENANT), body=msgspec.json.encode(whole)
                )
            case Verb.PATCH:
                kind = "json-patch" if isinstance(body, list) else "merge-patch"
                await self._client.request(
                    "PATCH", path, body=msgspec.json.encode(body),
                    content_type=f"application/{kind}+json",
                )  # fmt: skip
            case Verb.EVICT:
                eviction = {"kind": "Eviction", "apiVersion": "policy/v1",
                            "metadata": {"name": call.name, "namespace": TENANT}}  # fmt: skip
                await self._client.request(
                    "POST", f"{path}/eviction", body=msgspec.json.encode(eviction)
                )
            case _:
                grace = body.get("gracePeriodSeconds")
                params = {} if grace is None else {"gracePeriodSeconds": str(grace)}
                await self._client.request("DELETE", path, params=params)

    async def _filled(self, body: Any) -> Any:
        uids: dict[tuple[str, str, str], str] = {}

        def note(*asked: str) -> str:
            return uids.setdefault((asked[0], asked[1], asked[2]), "u")

        resolved(body, note, lambda _: NODE)
        for namespace, kind, name in uids:
            with suppress(ApiError, KeyError):
                found = EDITED[kind].only_metadata
                got = await self._world.admin.get(found, name, namespace=namespace)
                uids[namespace, kind, name] = got.metadata.uid
        return resolved(body, note, lambda team: NODE if team else "v00004")

    async def clean(self) -> None:
        """Delete what is his, with what holds it."""
        admin = self._world.admin

        async def is_empty() -> bool:
            left = 0
            for resource in (*EDITED.values(),):
                if resource.plural in ("serviceaccounts", "events"):
                    continue
                for obj in (await admin.list(resource.only_metadata, namespace=TENANT)).items:
                    if obj.metadata.name == "kube-root-ca.crt":
                        continue
                    left += 1
                    kept = [f for f in obj.metadata.finalizers
                            if resource is JOBS and f == names.JOB_FINALIZER]  # fmt: skip
                    with suppress(NotFound):
                        if len(kept) != len(obj.metadata.finalizers):
                            free = {"metadata": {"finalizers": kept or None}}
                            await admin.patch(
                                resource.only_metadata, obj.metadata.name, free, namespace=TENANT
                            )
                        await admin.delete(
                            resource, obj.metadata.name, namespace=TENANT, grace_period_seconds=0
                        )
            return not left

        await until(is_empty)


async def _prepare(world: World) -> None:
    """Make the tenant's namespace, role and quota; and team rich, whose gang runs."""
    admin = world.admin
    for space in (TENANT, "rich"):
        with suppress(AlreadyExists):
            await admin.create(NAMESPACES, {"metadata": {"name": space}})
    user = {"kind": "User", "name": TENANT, "apiGroup": "rbac.authorization.k8s.io"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {"metadata": {"name": TENANT}, "roleRef": role, "subjects": [user]}
    await admin.create(_BINDINGS, binding, namespace=TENANT)
    high = {"metadata": {"name": CLOSED_CLASS}, "value": 1_000}
    await admin.create(PRIORITY_CLASSES, high)
    for body in QUOTAS:
        await admin.create(RESOURCE_QUOTAS, body, namespace=TENANT)
    share = {"nodes": 1, "nodeSelector": {names.HOSTNAME: NODE}}
    spec = {"namespaces": ["rich"], "shares": [share], "borrowLimitNodes": 0, "lendLimitNodes": 0}
    await admin.create(TEAMS, {"metadata": {"name": "rich"}, "spec": spec})

    async def is_owned() -> bool:
        node = await admin.get(NODES, NODE)
        return any(taint.key == names.TEAM for taint in node.spec.taints)

    await until(is_owned, CANARY_SECONDS_MAX)
    body = job_body("rich-long", 1, gpus=4)
    body["spec"]["roles"][0]["template"]["spec"]["nodeSelector"] = {names.HOSTNAME: NODE}
    await admin.create(JOBS, body, namespace="rich")
    await world.runs("rich-long", "rich")


async def _harm(world: World) -> str:
    """Return what the tenant did to others; "" for nothing."""
    found = [await world.harm()]
    pods = (await world.admin.list(PODS, namespace=TENANT)).items
    found += [f"pod {p.metadata.name} is on {NODE}" for p in pods if p.spec.node_name == NODE]
    job = await world.job("rich-long", "rich")
    if (job.status.state, job.status.attempt, job.status.preemption) != ("Running", 1, None):
        found.append(f"rich-long: {job.status.state}, attempt {job.status.attempt}")
    return "; ".join(filter(None, found))


async def test_the_best_sequences_of_the_simulated_tenant_harm_no_other(
    cluster: ControlPlane, tmp_path: Path, sequences: tuple[tuple[Call, ...], ...]
) -> None:
    async with hostile_world(cluster, tmp_path, webhook=True) as world:
        await define_tools(world.admin)
        await _prepare(world)
        assert await _harm(world) == ""
        client = http_client(cluster, token="mallory-token")
        tenant, found = Tenant(client, world), list[str]()
        for start in range(0, len(sequences), BATCH_SIZE):
            found += await _harmful(world, tenant, sequences[start : start + BATCH_SIZE])
        await client.close()
        await world.admin.delete(JOBS, "rich-long", namespace="rich")
        print(f"{len(sequences)} sequences, {world.canaries} canaries: {tenant.outcomes}")
        assert found == []
        assert tenant.outcomes["ok"] >= SEQUENCES
        assert {"Invalid", "Forbidden", "NotFound"} <= tenant.outcomes.keys()


async def _harmful(world: World, tenant: Tenant, sequences: Sequence[Sequence[Call]]) -> list[str]:
    for calls in sequences:
        for call in calls:
            await tenant.send(call)
    harm = await _harm(world)
    await tenant.clean()
    return [f"{harm}: {[str(call) for calls in sequences for call in calls]}"] if harm else []
