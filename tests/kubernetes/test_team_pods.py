"""Teams on a real API server with kube-scheduler: taints, the webhook's tolerations, and borrowing.

The teams controller taints the nodes, the webhook answers the API server, and kube-scheduler places
the pods: nothing of Fairlead places them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    CLOCK,
    http_client,
    install_kinds,
    is_served,
    kubeconfig_of,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_own_webhook import configure

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import NAMESPACES, NODES, PODS, TEAMS, Resource
from fairlead.api.status import AlreadyExists, Forbidden
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.placing.teams import TeamsController
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.kube.client import HttpClient, HttpOptions
from fairlead.kube.kubeconfig import load_connection
from fairlead.model.asks.teams import owner_of
from fairlead.runtime.logs import SILENT
from fairlead.runtime.loop import ControllerLoop
from fairlead.runtime.watching.mirror import Mirror
from fairlead.webhook.configuration import MUTATING, VALIDATING
from fairlead.webhook.service import Webhook, WebhookOptions

pytestmark = pytest.mark.kubernetes
OWN = "fairlead-system"
_RBAC = ("rbac.authorization.k8s.io", "v1")
BINDINGS: Resource[Any] = Resource(*_RBAC, "rolebindings", "RoleBinding", dict)
ROLES: Resource[Any] = Resource(*_RBAC, "roles", "Role", dict)
ACCOUNTS: Resource[Any] = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict)
CLASSES: Resource[Any] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict, namespaced=False
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True)


@asynccontextmanager
async def teams_of(client: HttpClient, policy: TeamsPolicy | None = None) -> AsyncGenerator[None]:
    """The teams controller, for the length of the block."""
    rng = random.Random(1)
    world = ClusterWorld.make(client, clock=CLOCK, rng=rng)
    loop = ControllerLoop(TeamsController(client, world, policy=policy), clock=CLOCK, rng=rng)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(world.mirrors.priority_classes.run()),
                 group.create_task(loop.run())]  # fmt: skip
        yield
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def webhook_of(client: HttpClient) -> AsyncGenerator[int]:
    """One replica's webhook, which follows the teams; yields its port."""
    teams = Mirror(client, TEAMS, clock=CLOCK, rng=random.Random(2))
    options = WebhookOptions(host="127.0.0.1", port=0, hosts=("127.0.0.1",), look_seconds=0.2)
    made = Webhook(
        options, client, CollectorRegistry(), clock=CLOCK, rng=random.Random(1), log=SILENT,
        teams=teams,
    )  # fmt: skip
    async with asyncio.TaskGroup() as group, made.listening():
        tasks = [group.create_task(each) for each in (made.run(), teams.run(), made.follow_nodes())]
        try:
            yield made.port
        finally:
            for task in tasks:
                task.cancel()


async def _member(client: HttpClient, cluster: ControlPlane, namespace: str) -> HttpClient:
    """Return the client of a user who may edit one namespace."""
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {
            "name": namespace, "labels": {names.TEAM: namespace}}})  # fmt: skip
    await client.create(ACCOUNTS, {"metadata": {"name": "ana"}}, namespace=namespace)
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list"]}]
    await client.create(ROLES, {"metadata": {"name": "edit"}, "rules": rules}, namespace=namespace)
    edits = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "edit"}
    ana = {"kind": "ServiceAccount", "name": "ana", "namespace": namespace}
    binding = {"metadata": {"name": "ana"}, "roleRef": edits, "subjects": [ana]}
    await client.create(BINDINGS, binding, namespace=namespace)
    path = await kubeconfig_of(client, cluster, namespace, "ana")
    return HttpClient(load_connection(path=path), HttpOptions())


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    requests = {"cpu": "1", "nvidia.com/gpu": "8"}
    resources = {"requests": requests, "limits": {"nvidia.com/gpu": "8"}}
    containers = [{"name": "c", "image": "i", "resources": resources}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


async def test_foreign_pods_run_on_their_teams_nodes_and_borrow_by_priority(
    cluster: ControlPlane,
) -> None:
    client = http_client(cluster)
    await install_kinds(client)
    await until(lambda: is_served(client, TEAMS))
    await client.create(NAMESPACES, {"metadata": {"name": OWN}})
    await client.create(CLASSES, {"metadata": {"name": "high"}, "value": 10})
    vision = await _member(client, cluster, "vision")
    for name, nodes in (("vision", 1), ("speech", 2)):
        share = {"namespaces": [name], "shares": [{"nodes": nodes}]}
        await client.create(TEAMS, {"metadata": {"name": name}, "spec": share})
    async with virtual_nodes(client, 3), teams_of(client), webhook_of(client) as port:

        async def are_tainted() -> bool:
            owners = [owner_of(node.spec.taints) for node in (await client.list(NODES)).items]
            return sorted(owners) == ["speech", "speech", "vision"]

        await until(are_tainted)
        await configure(client, port)

        async def is_refused() -> bool:
            claim = {"key": names.TEAM, "value": "speech", "effect": "NoSchedule"}
            body = _pod("probe", tolerations=[claim])
            try:
                await vision.create(PODS, body, namespace="vision", dry_run=True)
            except Forbidden as error:
                return "open to namespace vision: vision" in error.message
            return False

        await until(is_refused)

        async def owner_of_node(name: str) -> str:
            async def is_bound() -> bool:
                return bool((await vision.get(PODS, name, namespace="vision")).spec.node_name)

            await until(is_bound)
            pod = await vision.get(PODS, name, namespace="vision")
            return owner_of((await client.get(NODES, pod.spec.node_name)).spec.taints)

        made = await vision.create(PODS, _pod("own", priorityClassName="high"), namespace="vision")
        assert _team_tolerations(made) == ["vision"]
        assert await owner_of_node("own") == "vision"
        made = await vision.create(PODS, _pod("borrower"), namespace="vision")
        assert _team_tolerations(made) == ["", "vision"]
        assert await owner_of_node("borrower") == "speech"
        await client.delete_collection(MUTATING)  # as with a webhook that is not asked
        await client.delete_collection(VALIDATING)
        await client.delete(PODS, "own", namespace="vision")
        await vision.create(PODS, _pod("late", priorityClassName="high"), namespace="vision")
        assert await owner_of_node("late") == "vision"
    await vision.close()
    await client.close()


def _team_tolerations(pod: Pod) -> list[str]:
    return sorted(t.value for t in pod.spec.tolerations if t.key == names.TEAM)
