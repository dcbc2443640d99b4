"""Foreign teams' nodes on a real API server: what a user with the role `edit` in a namespace of no
team tries, the webhook and the admission policies refuse, each alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    http_client,
    install_kinds,
    is_served,
    job_body,
    kubeconfig_of,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_own_webhook import configure
from tests.kubernetes.test_team_pods import ACCOUNTS, BINDINGS, ROLES, teams_of, webhook_of

from fairlead.api import names
from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.resources import (
    FLEETS,
    JOB_ARRAYS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    TEAMS,
    Resource,
)
from fairlead.api.status import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.kube.client import HttpClient, HttpOptions
from fairlead.kube.kubeconfig import load_connection
from fairlead.model.asks.teams import owner_of
from fairlead.webhook.configuration import MUTATING, VALIDATING
from fairlead.webhook.policies import BINDING, POLICY, policies

pytestmark = pytest.mark.kubernetes
OWN, SPACE, MONITORING = "fairlead-system", "mallory", "monitoring"
FOREIGN = {"key": names.TEAM, "value": "rich", "effect": "NoSchedule"}
#: Each lets a pod onto nodes of other teams.
CLAIMS = (
    FOREIGN,
    {"key": names.TEAM, "operator": "Exists"},
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoSchedule"},
)
GATE = {"name": "example.com/mine"}
_GROUP = "admissionregistration.k8s.io"
POLICIES: Resource[Any] = Resource(
    _GROUP, "v1", "validatingadmissionpolicies", POLICY, dict, namespaced=False
)
POLICY_BINDINGS: Resource[Any] = Resource(
    _GROUP, "v1", "validatingadmissionpolicybindings", BINDING, dict, namespaced=False
)
DAEMONS: Resource[Any] = Resource("apps", "v1", "daemonsets", "DaemonSet", dict)
BUDGETS: Resource[Any] = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", dict
)
EDIT = [
    {"apiGroups": [""], "resources": ["pods"],
     "verbs": ["create", "get", "list", "patch", "update", "delete"]},
    {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["create", "patch"]},
    {"apiGroups": [names.GROUP], "resources": ["jobs"], "verbs": ["create", "get", "patch"]},
]  # fmt: skip
PLACES = [
    {"apiGroups": [names.GROUP], "resources": ["jobs", "jobs/status"], "verbs": ["*"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, controllers=("daemonset-controller",))


async def _account(
    client: HttpClient, cluster: ControlPlane, home: str, name: str, rules: list[Any]
) -> HttpClient:
    """Return the client of a service account of `home` with these rights in the namespace."""
    body = {"metadata": {"name": name}}
    with contextlib.suppress(AlreadyExists):
        await client.create(ACCOUNTS, body, namespace=home)
    await client.create(ROLES, {**body, "rules": rules}, namespace=SPACE)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": home}
    binding = {**body, "roleRef": role, "subjects": [subject]}
    await client.create(BINDINGS, binding, namespace=SPACE)
    path = await kubeconfig_of(client, cluster, home, name)
    return HttpClient(load_connection(path=path), HttpOptions())


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    await until(lambda: is_served(client, TEAMS))
    for name in (OWN, SPACE, MONITORING):
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
    with contextlib.suppress(AlreadyExists):
        team = {"namespaces": ["rich"], "borrowLimitNodes": 0, "lendLimitNodes": 0}
        await client.create(TEAMS, {"metadata": {"name": "rich"}, "spec": team})
        node = {"metadata": {"name": "n1"}, "spec": {"taints": [FOREIGN]}}
        await client.create(NODES, node)
    with contextlib.suppress(AlreadyExists):
        await client.create(FLEETS, {"metadata": {"name": FLEET_NAME}, "spec": {}})
    await _publish(client, {"rich": "rich="})
    yield client
    for resource in (MUTATING, VALIDATING, POLICY_BINDINGS, POLICIES):
        await client.delete_collection(resource)
    for resource in (DAEMONS, PODS, JOBS):
        for namespace in (SPACE, MONITORING):
            await client.delete_collection(
                resource, namespace=namespace, grace_period_seconds=0
            )  # fmt: skip
    for resource in (ACCOUNTS, ROLES, BINDINGS):
        await client.delete_collection(resource, namespace=SPACE)
    await client.close()


async def _publish(client: HttpClient, teams: dict[str, str | None]) -> None:
    """Write what the teams controller publishes for the policies."""
    status = {"status": {"teamsCount": 1, "teams": teams}}
    await client.patch(FLEETS, FLEET_NAME, status, subresource="status")


@asynccontextmanager
async def _held_by(client: HttpClient, what: str) -> AsyncGenerator[None]:
    """Let the webhook, or the policies, or both hold the boundary."""
    async with AsyncExitStack() as stack:
        if what in ("webhook", "both"):
            port = await stack.enter_async_context(webhook_of(client))
            await configure(client, port)
        if what in ("policies", "both"):
            for manifest in policies(OWN):
                await client.create(
                    POLICIES if manifest["kind"] == POLICY else POLICY_BINDINGS, manifest
                )
        yield


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def _daemons(*tolerations: dict[str, str], **spec: Any) -> dict[str, Any]:
    template = {
        **_pod("x", tolerations=list(tolerations), **spec),
        "metadata": {"labels": {"a": "b"}},
    }
    return {"metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}  # fmt: skip


async def _is_refused(attempt: Callable[[], Awaitable[Any]]) -> bool:
    try:
        await attempt()
    except (Forbidden, Invalid) as error:
        # of a webhook, and of a policy
        return any(said in error.message for said in ("denied the request", "denied request"))
    except ApiError:
        return False
    return False


async def _in_force(admin: HttpClient, mallory: HttpClient, what: str) -> None:
    """Return once each kind of attempt is refused: a real server takes up new rules in a while."""

    async def is_refused() -> bool:
        try:
            await admin.create(JOBS, _adopting("probe"), namespace=SPACE, dry_run=True)
        except ApiError:  # it is asked, but the server does not trust it yet
            return False
        bodies = (
            (PODS, _pod("probe", nodeName="n1")), (PODS, _pod("probe", tolerations=[FOREIGN])),
            (JOBS, _adopting("probe")),
            *(() if what == "webhook" else ((DAEMONS, _daemons(FOREIGN)),)),
        )  # fmt: skip
        return all(
            [
                await _is_refused(
                    lambda r=resource, b=body: mallory.create(r, b, namespace=SPACE, dry_run=True)
                )
                for resource, body in bodies
            ]
        )

    await until(is_refused)


def _adopting(name: str) -> dict[str, Any]:
    body = job_body(name, 1)
    body["spec"]["adopts"] = {"apiVersion": "v1", "kind": "Pod", "name": "x"}
    return body


@pytest.mark.parametrize("what", ["webhook", "policies", "both"])
async def test_no_user_of_another_namespace_gets_onto_a_teams_nodes(
    cluster: ControlPlane, client: HttpClient, what: str
) -> None:
    mallory = await _account(client, cluster, SPACE, "mallory", EDIT)
    async with _held_by(client, what):
        await _in_force(client, mallory, what)

        async def refused(attempt: Callable[[], Awaitable[Any]], why: str) -> None:
            assert await _is_refused(attempt), why

        # 1: at creation
        for i, claim in enumerate(CLAIMS):
            body = _pod(f"new{i}", tolerations=[claim])
            await refused(lambda b=body: mallory.create(PODS, b, namespace=SPACE), str(claim))
        # 2: later, while a gate of one's own, or nothing, keeps the pod unbound
        await mallory.create(PODS, _pod("gated", schedulingGates=[GATE]), namespace=SPACE)
        await mallory.create(PODS, _pod("free"), namespace=SPACE)
        for name in ("gated", "free"):
            known = [t async for t in _tolerations(mallory, name)]
            for claim in CLAIMS:
                patch = {"spec": {"tolerations": [*known, claim], "schedulingGates": None}}
                await refused(
                    lambda n=name, p=patch: mallory.patch(PODS, n, p, namespace=SPACE), str(claim)
                )
        # 3: past the scheduler
        await refused(
            lambda: mallory.create(PODS, _pod("bound", nodeName="n1"), namespace=SPACE), "node"
        )
        binding = {"metadata": {"name": "free"}, "target": {"kind": "Node", "name": "n1"}}
        path = PODS.path(SPACE, "free", "binding")
        with pytest.raises(Forbidden):
            await mallory.request("POST", path, body=_encoded("Binding", binding))
        # too many to be searched at a bounded cost
        many = [{"key": f"k{i}", "operator": "Exists"} for i in range(20_000)]
        body = _pod("many", tolerations=[*many, FOREIGN])
        if what != "webhook":
            await refused(lambda: mallory.create(PODS, body, namespace=SPACE), "many")
            for each in (
                _daemons({"operator": "Exists"}),
                _daemons(FOREIGN),
                _daemons(nodeName="n1"),
            ):
                await refused(lambda b=each: mallory.create(DAEMONS, b, namespace=SPACE), "daemons")
        # 4: as a group of pods that Fairlead would place
        await refused(lambda: mallory.create(JOBS, _adopting("own"), namespace=SPACE), "adopts")
        await client.create(JOBS, _adopting("theirs"), namespace=SPACE)
        await refused(
            lambda: mallory.patch(
                JOBS, "theirs", {"spec": {"priorityClassName": "x"}}, namespace=SPACE
            ),
            "spec of an adopting job",
        )
        held = await mallory.patch(JOBS, "theirs", {"spec": {"suspend": True}}, namespace=SPACE)
        assert held.spec.suspend
    await mallory.close()


@pytest.mark.parametrize("what", ["webhook", "policies", "both"])
async def test_what_belongs_to_the_cluster_and_what_claims_nothing_is_let_in(
    cluster: ControlPlane, client: HttpClient, what: str
) -> None:
    mallory = await _account(client, cluster, SPACE, "mallory", EDIT)
    fairlead = await _account(client, cluster, OWN, "placer", PLACES)
    async with _held_by(client, what):
        await _in_force(client, mallory, what)
        await client.create(DAEMONS, _daemons({"operator": "Exists"}), namespace=MONITORING)

        async def has_daemon() -> bool:
            found = await client.list(PODS, namespace=MONITORING)
            return any(pod.metadata.name.startswith("d-") for pod in found.items)

        await until(has_daemon)
        soft = {"operator": "Exists", "effect": "NoExecute"}
        await mallory.create(PODS, _pod("own", tolerations=[soft]), namespace=SPACE)
        await mallory.create(PODS, _pod("gated", schedulingGates=[GATE]), namespace=SPACE)
        other = {"key": "disk", "operator": "Exists"}
        known = [t async for t in _tolerations(mallory, "gated")]
        patch: dict[str, Any] = {"spec": {"tolerations": [*known, other]}}
        await mallory.patch(PODS, "gated", patch, namespace=SPACE)
        patch = {"spec": {"tolerations": [*known, other, FOREIGN], "schedulingGates": None}}
        released = await fairlead.patch(PODS, "gated", patch, namespace=SPACE)
        assert any(t.value == "rich" for t in released.spec.tolerations)
        patch = {"metadata": {"labels": {"a": "b"}}}  # what it has already is not judged again
        await mallory.patch(PODS, "gated", patch, namespace=SPACE)
        await client.create(PODS, _pod("debug", nodeName="n1"), namespace=SPACE)
        await fairlead.create(JOBS, _adopting("made"), namespace=SPACE)
        patch = {"spec": {"timeLimitSeconds": 60}}
        await fairlead.patch(JOBS, "made", patch, namespace=SPACE)
    await mallory.close()
    await fairlead.close()


async def test_the_policies_know_what_a_namespace_of_a_team_may_tolerate(
    cluster: ControlPlane, client: HttpClient
) -> None:
    """By what the teams controller publishes, and from then on when it does."""
    mallory = await _account(client, cluster, SPACE, "mallory", EDIT)
    own, every = {"key": names.TEAM, "value": "poor"}, {"operator": "Exists"}

    async def is_let_in(claim: dict[str, str], label: str = "") -> bool:
        body = _pod("probe", tolerations=[claim])
        body["metadata"]["labels"] = {names.TEAM: label} if label else {}
        return not await _is_refused(
            lambda: mallory.create(PODS, body, namespace=SPACE, dry_run=True)
        )

    async with _held_by(client, "policies"):
        await _in_force(client, mallory, "policies")
        for teams, label, of_own, of_every in (
            ("poor=", "", True, False), ("poor=-1", "", True, False), ("poor=0", "", True, True),
            ("poor=0,rich=9", "", True, False), ("poor=0,rich=9", "poor", True, True),
            ("poor=0,rich=9", "other", True, False), ("poorer=0", "", False, True),
        ):  # fmt: skip
            await _publish(client, {SPACE: teams})

            async def is_so(
                label: str = label, wanted: tuple[bool, bool] = (of_own, of_every)
            ) -> bool:
                return (await is_let_in(own, label), await is_let_in(every, label)) == wanted

            await until(is_so)
        off = {"status": {"teamsCount": None, "teams": {SPACE: None}}}
        await client.patch(FLEETS, FLEET_NAME, off, subresource="status")
        await until(lambda: is_let_in(every))
    await _publish(client, {SPACE: None})
    await mallory.close()


@pytest.mark.parametrize("what", ["webhook", "policies"])
async def test_a_user_makes_no_job_an_element_of_an_array_and_takes_none_out(
    client: HttpClient, cluster: ControlPlane, what: str
) -> None:
    """Also where the array is his own: what the array counts is what Fairlead has made."""
    mallory = await _account(client, cluster, SPACE, "mallory", EDIT)
    array, template = f"swept-by-{what}", job_body("x", 1)["spec"]
    swept = {"metadata": {"name": array}, "spec": {"indices": "0-3", "template": template}}
    made = await client.create(JOB_ARRAYS, swept, namespace=SPACE)
    owner = {"apiVersion": names.API_VERSION, "kind": "JobArray", "name": array,
             "uid": made.metadata.uid, "controller": True}  # fmt: skip
    owned, free = {"ownerReferences": [owner]}, {"ownerReferences": None}

    def element(index: int) -> dict[str, Any]:
        body = job_body(f"{array}-{index}", 1)
        return {**body, "metadata": {**body["metadata"], **owned}}

    async def forges() -> bool:
        return await _is_refused(
            lambda: mallory.create(JOBS, element(3), namespace=SPACE, dry_run=True)
        )

    async with _held_by(client, what):
        await _in_force(client, mallory, what)
        await until(forges)
        await client.create(JOBS, element(0), namespace=SPACE)
        await mallory.create(JOBS, job_body(f"{array}-1", 1), namespace=SPACE)
        for name, change in ((f"{array}-0", free), (f"{array}-1", owned)):
            body = {"metadata": change}
            assert await _is_refused(
                lambda n=name, b=body: mallory.patch(JOBS, n, b, namespace=SPACE)
            )
        marked = {"metadata": {"labels": {names.ARRAY: "other"}}, "spec": {"suspend": True}}
        await mallory.patch(JOBS, f"{array}-0", marked, namespace=SPACE)
    await client.delete(JOB_ARRAYS, array, namespace=SPACE)
    await mallory.close()


async def test_a_pod_that_got_onto_a_teams_node_is_evicted_where_the_team_asks_for_it(
    client: HttpClient,
) -> None:
    """Nothing refused it: no webhook and no policy was there. It goes as the API's evictions do."""
    policy = TeamsPolicy(
        intruder_seconds=5.0, clock_seconds=0.0, look_seconds=0.5, doubt_seconds=0.0,
        eviction_seconds=1.0, retry_seconds=1.0, publishes=True,
    )  # fmt: skip
    shares = {"spec": {"shares": [{"nodes": 2}], "intruders": "Evict"}}
    budget = {"metadata": {"name": "b"}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}}  # fmt: skip
    await client.create(BUDGETS, budget, namespace=SPACE)
    await _publish(client, {"gone": "gone=0"})
    async with virtual_nodes(client, 2), teams_of(client, policy):
        await client.patch(TEAMS, "rich", shares)

        async def is_published() -> bool:
            status = (await client.get(FLEETS, FLEET_NAME)).status
            return (status.teams_count, status.teams) == (1, {"rich": "rich="})

        await until(is_published)

        async def is_rich() -> bool:
            nodes = (await client.list(NODES)).items
            return all(owner_of(node.spec.taints) == "rich" for node in nodes)

        await until(is_rich)
        await asyncio.sleep(2)  # times in objects are whole seconds
        for name, node in (("stranger", "v00000"), ("kept", "v00001")):
            body = _pod(name, nodeName=node)
            body["metadata"]["labels"] = {"app": name}
            await client.create(PODS, body, namespace=SPACE)

        async def is_going() -> bool:
            pod = await client.get(PODS, "stranger", namespace=SPACE)
            conditions = {each.reason for each in pod.status.conditions}
            return bool(pod.metadata.deletion_timestamp) and "EvictionByEvictionAPI" in conditions

        await until(lambda: _gone_or(is_going))

        async def is_counted() -> bool:
            return (await client.get(TEAMS, "rich")).status.use.intruders >= 1

        await until(is_counted)
        kept = await client.get(PODS, "kept", namespace=SPACE)
        assert kept.metadata.deletion_timestamp is None, "its budget keeps it"
    await client.delete_collection(BUDGETS, namespace=SPACE)


async def _gone_or(is_going: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await is_going()
    except NotFound:
        return True


async def _tolerations(client: HttpClient, name: str) -> AsyncGenerator[dict[str, Any]]:
    found: dict[str, Any] = await client.get(PODS.raw, name, namespace=SPACE)
    for each in found["spec"].get("tolerations") or ():
        yield each


def _encoded(kind: str, body: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"apiVersion": "v1", "kind": kind, **body})
