"""What keeps tenants apart on a real API server: quotas, classes, and the page that names them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.e2e.cli_world import Shell
from tests.e2e.users_world import UserBrowser
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    CLOCK,
    controllers,
    http_client,
    install_kinds,
    job_body,
    kubeconfig_of,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_logs import operator
from tests.kubernetes.test_own_webhook import configure, webhook
from tests.kubernetes.web_page import served_page

from fairlead.api.jobs.job import Job
from fairlead.api.names import CORDONED_BY, DEFRAGMENT
from fairlead.api.resources import JOBS, NAMESPACES, NODES, PODS, PRIORITY_CLASSES, TEAMS, Resource
from fairlead.api.status import AlreadyExists, InternalError, Invalid, NotFound
from fairlead.app.queries.messages import TOKEN_HEADER
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.install.manifests import Install, manifests
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.watching.mirror import Mirror
from fairlead.webhook.configuration import MUTATING, VALIDATING

pytestmark = pytest.mark.kubernetes

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "tenancy.md"
_PLURALS = {
    "Namespace": "namespaces", "ResourceQuota": "resourcequotas", "RoleBinding": "rolebindings",
    "NetworkPolicy": "networkpolicies",
}  # fmt: skip
CLUSTER_WIDE = ("Namespace",)
_RBAC = ("rbac.authorization.k8s.io", "v1")
ACCOUNTS: Resource[Any] = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict)
ROLES: Resource[Any] = Resource(*_RBAC, "clusterroles", "ClusterRole", dict, namespaced=False)
BINDINGS: Resource[Any] = Resource(*_RBAC, "rolebindings", "RoleBinding", dict)
CLUSTER_BINDINGS: Resource[Any] = Resource(
    *_RBAC, "clusterrolebindings", "ClusterRoleBinding", dict, namespaced=False
)
QUOTAS: Resource[Any] = Resource("", "v1", "resourcequotas", "ResourceQuota", dict)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


async def apply_page(client: HttpClient) -> list[str]:
    """Create everything that the page shows as YAML; return the kinds."""
    kinds: list[str] = []
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for body in yaml.safe_load_all(block):
            group, _, version = body["apiVersion"].rpartition("/")
            kind, namespace = body["kind"], body["metadata"].get("namespace", "")
            resource: Resource[Any] = Resource(
                group, version, _PLURALS[kind], kind, dict, namespaced=kind not in CLUSTER_WIDE
            )
            with contextlib.suppress(AlreadyExists):
                await client.create(resource, body, namespace=namespace)
            kinds.append(kind)
    return kinds


async def test_what_the_page_tells_the_admin_to_add_is_accepted(client: HttpClient) -> None:
    kinds = await apply_page(client)
    assert set(kinds) == {"Namespace", "ResourceQuota", "RoleBinding", "NetworkPolicy"}


async def test_a_namespace_without_quota_holds_nothing_and_another_is_served_at_once(
    client: HttpClient,
) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": "poor"}})
    quota = {"metadata": {"name": "no-pods"}, "spec": {"hard": {"pods": "0"}}}
    await client.create(QUOTAS, quota, namespace="poor")
    # What the quota controller would write, which this control plane does not run.
    status = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    await client.patch(QUOTAS, "no-pods", status, namespace="poor", subresource="status")

    async def job(name: str, namespace: str) -> Job:
        return await client.get(JOBS, name, namespace=namespace)

    async with virtual_nodes(client, 2), controllers(client):
        await client.create(JOBS, job_body("greedy", 2), namespace="poor")

        async def refused() -> bool:
            status = (await job("greedy", "poor")).status
            verdict = status.verdict
            return status.placement is None and verdict is not None and (
                verdict.reason == "QuotaExceeded"
            )  # fmt: skip

        await until(refused)
        await client.create(JOBS, job_body("honest", 2, seconds=1), namespace="default")

        async def served() -> bool:
            return (await job("honest", "default")).is_finished

        await until(served)
        greedy = await job("greedy", "poor")
        assert [a.reason for a in greedy.status.attempts] == ["QuotaExceeded"]
        assert "exceeded quota" in greedy.status.attempts[0].message
        assert (await client.list(PODS, namespace="poor")).items == ()
        await client.patch(JOBS, "greedy", {"spec": {"cancel": True}}, namespace="poor")
        await client.delete(QUOTAS, "no-pods", namespace="poor")


async def test_the_head_of_the_queue_keeps_no_nodes_that_its_quota_would_refuse_it(
    client: HttpClient,
) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": "poor"}})
    hard, used = {"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "0"}
    quota = {"metadata": {"name": "one-node"}, "spec": {"hard": hard}}
    await client.create(QUOTAS, quota, namespace="poor")
    status = {"status": {"hard": hard, "used": used}}
    await client.patch(QUOTAS, "one-node", status, namespace="poor", subresource="status")

    async def reason(name: str, namespace: str) -> str:
        verdict = (await client.get(JOBS, name, namespace=namespace)).status.verdict
        return "" if verdict is None else verdict.reason

    async def waits_for_quota() -> bool:
        return await reason("head", "poor") == "AwaitingQuota"

    async def is_served() -> bool:
        return (await client.get(JOBS, "small", namespace="default")).is_finished

    strict = PlacementPolicy(starvation_seconds=0.0)
    async with virtual_nodes(client, 2), controllers(client, placement=strict):
        await client.create(JOBS, job_body("running", 1), namespace="default")
        await until(lambda: _has(reason, "running", "Placed"))
        await client.create(JOBS, job_body("head", 2), namespace="poor")
        await until(waits_for_quota)
        await client.create(JOBS, job_body("small", 1, seconds=1), namespace="default")
        await until(is_served)
        # With room in the quota the job keeps the nodes free for itself.
        wide = {"requests.nvidia.com/gpu": "16"}
        status = {"spec": {"hard": wide}, "status": {"hard": wide, "used": used}}
        await client.patch(QUOTAS, "one-node", status, namespace="poor")
        await client.patch(QUOTAS, "one-node", status, namespace="poor", subresource="status")
        await until(lambda: _has(reason, "head", "InsufficientCapacity", "poor"))
        await client.create(JOBS, job_body("late", 1, seconds=1), namespace="default")
        await until(lambda: _has(reason, "late", "BehindEarlierJob"))
        for name, namespace in (("head", "poor"), ("late", "default"), ("running", "default")):
            await client.patch(JOBS, name, {"spec": {"cancel": True}}, namespace=namespace)
        await client.delete(QUOTAS, "one-node", namespace="poor")


async def _has(
    reason: Callable[[str, str], Awaitable[str]], name: str, wanted: str, namespace: str = "default"
) -> bool:
    return await reason(name, namespace) == wanted


async def test_a_user_of_one_namespace_submits_and_sees_nodes_by_the_roles_that_are_shipped(
    client: HttpClient, cluster: ControlPlane, tmp_path: Path
) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": "ours"}})
    await client.create(ACCOUNTS, {"metadata": {"name": "ana"}}, namespace="ours")
    for each in manifests(Install()):
        if each["metadata"]["name"] in ("fairlead-edit", "fairlead-cluster-view"):
            await client.create(ROLES, each)
    ana = {"kind": "ServiceAccount", "name": "ana", "namespace": "ours"}
    binding = {"metadata": {"name": "ana"}, "roleRef": _role("fairlead-edit"), "subjects": [ana]}
    await client.create(BINDINGS, binding, namespace="ours")
    team = {"metadata": {"name": "vision"}, "spec": {"namespaces": ["ours"]}}
    await client.create(TEAMS, team)
    shell = Shell(tmp_path)
    kubeconfig = await kubeconfig_of(client, cluster, "ours", "ana")
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(kubeconfig)
    async with virtual_nodes(client, 1):

        async def submit(name: str) -> str:
            kind = {"apiVersion": JOBS.api_version, "kind": JOBS.kind}
            path = tmp_path / "job.yaml"
            body = job_body(name, 1, gpus=1)
            path.write_text(json.dumps({**kind, **body}))
            arguments = ("submit", "-n", "ours", "-f", str(path))
            done = await asyncio.to_thread(shell.run, *arguments)
            return done.out + done.err

        assert "not checked" in await submit("first")
        refused = await asyncio.to_thread(functools.partial(shell.run, "nodes", code=None))
        assert refused.code != 0
        assert "--clusterrole=fairlead-cluster-view" in refused.err
        sees = {**binding, "roleRef": _role("fairlead-cluster-view")}
        await client.create(CLUSTER_BINDINGS, sees)

        async def sees_nodes() -> bool:
            return (await asyncio.to_thread(shell.run, "nodes", code=None)).code == 0

        await until(sees_nodes)
        assert "fits now" in await submit("second")
    for resource, name in ((TEAMS, "vision"), (CLUSTER_BINDINGS, "ana")):
        await client.delete(resource, name)


async def test_a_user_of_one_namespace_is_answered_about_his_own_jobs_and_nothing_of_others(
    client: HttpClient, cluster: ControlPlane, tmp_path: Path
) -> None:
    for name in ("mine", "theirs"):
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
    await client.create(ACCOUNTS, {"metadata": {"name": "eve"}}, namespace="mine")
    for each in manifests(Install()):
        if each["metadata"]["name"] == "fairlead-edit":
            with contextlib.suppress(AlreadyExists):
                await client.create(ROLES, each)
    eve = {"kind": "ServiceAccount", "name": "eve", "namespace": "mine"}
    binding = {"metadata": {"name": "eve"}, "roleRef": _role("fairlead-edit"), "subjects": [eve]}
    await client.create(BINDINGS, binding, namespace="mine")
    path = await kubeconfig_of(client, cluster, "mine", "eve")
    token = load_connection(path=path).token
    async with (
        virtual_nodes(client, 2),
        operator(client, str(tmp_path / "history.db")) as port,
        aiohttp.ClientSession() as session,
    ):

        async def ask(path: str, question: object) -> tuple[int, str]:
            url = f"https://127.0.0.1:{port}/fairlead/v1/{path}"
            sent, headers = json.dumps(question), {TOKEN_HEADER: token}
            async with session.post(url, data=sent, headers=headers, ssl=False) as answer:
                return answer.status, await answer.text()

        async def verdict(name: str, namespace: str) -> str:
            found = (await client.get(JOBS, name, namespace=namespace)).status
            return "Placed" if found.placement else found.verdict.reason if found.verdict else ""

        await client.create(JOBS, job_body("secret", 2), namespace="theirs")
        await until(lambda: _has(verdict, "secret", "Placed", "theirs"))
        await client.create(JOBS, job_body("own", 2), namespace="mine")
        await until(lambda: _has(verdict, "own", "InsufficientCapacity", "mine"))
        status, said = await ask("explain", {"namespace": "mine", "name": "own"})
        assert status == 200, said
        assert "secret" not in said
        explanation, own = json.loads(said)["explanation"], await client.get(
            JOBS, "own", namespace="mine"
        )  # fmt: skip
        assert own.status.verdict is not None
        assert explanation["verdict"]["reason"] == own.status.verdict.reason
        assert explanation["verdict"]["facts"] == own.status.verdict.facts
        assert explanation["ahead"]["position"] == 0
        assert explanation["arithmetic"][0]["free"] == 0
        job = {"metadata": {"name": "next", "namespace": "mine"}, **job_body("next", 1)}
        job["metadata"] = {"name": "next", "namespace": "mine"}
        status, said = await ask("fit", {"job": job})
        assert (status, "InsufficientCapacity" in said, "secret" in said) == (200, True, False)
        job["metadata"]["namespace"] = "theirs"
        for path_, question in (
            ("explain", {"namespace": "theirs", "name": "secret"}), ("fit", {"job": job}),
            ("teams", {}),
        ):  # fmt: skip
            status, said = await ask(path_, question)
            assert status == 403, said
            assert "eve may not list" in said
        for name, namespace in (("own", "mine"), ("secret", "theirs")):
            await client.patch(JOBS, name, {"spec": {"cancel": True}}, namespace=namespace)


async def test_two_users_of_the_page_see_and_change_what_is_theirs_and_nothing_of_each_other(
    client: HttpClient, cluster: ControlPlane, tmp_path: Path
) -> None:
    tokens: list[str] = []
    for each in manifests(Install()):
        if each["metadata"]["name"] == "fairlead-edit":
            with contextlib.suppress(AlreadyExists):
                await client.create(ROLES, each)
    for space, user in (("left", "uma"), ("right", "vic")):
        await client.create(NAMESPACES, {"metadata": {"name": space}})
        await client.create(ACCOUNTS, {"metadata": {"name": user}}, namespace=space)
        subject = {"kind": "ServiceAccount", "name": user, "namespace": space}
        binding = {"metadata": {"name": user}, "subjects": [subject]}
        await client.create(
            BINDINGS, {**binding, "roleRef": _role("fairlead-edit")}, namespace=space
        )
        await client.create(JOBS, job_body(f"{user}-job", 1), namespace=space)
        path = await kubeconfig_of(client, cluster, space, user)
        tokens.append(load_connection(path=path).token)
    async with served_page(client, cluster, tmp_path) as page:
        uma, vic = [await page.signed_in(token) for token in tokens]
        assert "uma-job" in await uma.page("/jobs")
        for path_ in ("/", "/jobs", "/jobs?namespace=right", "/jobs?q=job", "/cluster", "/teams"):
            assert "vic-job" not in await uma.page(path_)
        for path_ in ("/jobs/right/vic-job", "/change/cancel/right/vic-job"):
            assert (await uma.get(path_))[0].status == 404
        assert "cannot get resource" in (await uma.get("/jobs/right/vic-job"))[1]
        change = "/change/cancel/right/vic-job"
        form = {"csrf": await vic.csrf(change)}
        assert (await uma.post(change, form))[0].status in (403, 404)
        answer, said = await vic.post(change, form)
        assert answer.status == 303, said
        assert (await client.get(JOBS, "vic-job", namespace="right")).spec.cancel
        assert not (await client.get(JOBS, "uma-job", namespace="left")).spec.cancel
        await _nodes_are_changed_by_who_may(client, uma, vic)
        await client.delete(BINDINGS, "uma", namespace="left")

        async def is_blind() -> bool:
            return "uma-job" not in await uma.page("/jobs")

        await until(is_blind)
        assert "vic-job" in await vic.page("/jobs")


async def _nodes_are_changed_by_who_may(
    client: HttpClient, uma: UserBrowser, vic: UserBrowser
) -> None:
    """Both see a node of the page; uma may patch nodes, and vic may not."""
    await client.create(NODES, {"metadata": {"name": "shared"}})
    for name, verbs, users in (("looks-at-nodes", ["list"], ("left/uma", "right/vic")),
                               ("keeps-nodes", ["get", "patch"], ("left/uma",))):  # fmt: skip
        rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": verbs}
        await client.create(ROLES, {"metadata": {"name": name}, "rules": [rule]})
        subjects = [
            {"kind": "ServiceAccount", "namespace": space, "name": user}
            for space, user in (each.split("/") for each in users)
        ]
        binding = {"metadata": {"name": name}, "subjects": subjects, "roleRef": _role(name)}
        await client.create(CLUSTER_BINDINGS, binding)
    cordon = "/change/cordon/shared"

    async def sees(browser: UserBrowser, text: str) -> bool:
        return text in (await browser.get(cordon))[1]

    await until(lambda: sees(uma, '<button class="main">Cordon'))
    await until(lambda: sees(vic, "You may not patch nodes"))
    assert '<button class="main">' not in await vic.page(cordon)
    answer, said = await vic.post(cordon, {"csrf": await vic.csrf(cordon), "reason": "mine"})
    assert answer.status == 409, said
    assert not (await client.get(NODES, "shared")).spec.unschedulable
    answer, said = await uma.post(cordon, {"csrf": await uma.csrf(cordon), "reason": "fan"})
    assert answer.status == 303, said
    node = await client.get(NODES, "shared")
    assert node.spec.unschedulable
    assert node.metadata.annotations[CORDONED_BY] == "system:serviceaccount:left:uma: fan"
    assert "You may not create nodetests" in await uma.page("/change/test/shared")


def _role(name: str) -> dict[str, str]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}


async def test_the_class_of_a_job_orders_the_queue_without_any_webhook(client: HttpClient) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
    async with virtual_nodes(client, 1), controllers(client):
        await client.create(JOBS, job_body("running", 1), namespace="default")

        async def is_placed(name: str) -> bool:
            try:
                found = await client.get(JOBS, name, namespace="default")
            except NotFound:
                return False
            return found.status.placement is not None

        await until(lambda: is_placed("running"))
        greedy = job_body("greedy", 1, priority=2**31 - 1)
        await client.create(JOBS, greedy, namespace="default")
        await asyncio.sleep(1.1)  # creation times are whole seconds
        urgent = job_body("urgent", 1, priorityClassName="urgent")
        await client.create(JOBS, urgent, namespace="default")

        async def both_wait() -> bool:
            jobs = {job.metadata.name: job for job in (await client.list(JOBS)).items}
            return all(jobs[name].status.verdict is not None for name in ("greedy", "urgent"))

        await until(both_wait)
        await client.patch(JOBS, "running", {"spec": {"cancel": True}}, namespace="default")
        await until(lambda: is_placed("urgent"))
        assert not await is_placed("greedy")


CHANGES = "changes"


@dataclass(frozen=True)
class Users:
    """A user, the admin of its team, and the cluster's administrator."""

    ann: HttpClient
    lead: HttpClient
    root: HttpClient

    async def patch(self, who: HttpClient, spec: dict[str, Any] | None = None, **meta: Any) -> Job:
        body = {"spec": spec or {}, "metadata": meta}
        return await who.patch(JOBS, "runs", body, namespace=CHANGES)

    async def job(self, name: str = "runs") -> Job:
        return await self.root.get(JOBS, name, namespace=CHANGES)

    async def is_placed(self, name: str = "runs", attempt: int = 1) -> bool:
        placement = (await self.job(name)).status.placement
        return placement is not None and placement.attempt == attempt

    async def is_judged(self) -> bool:
        """True once the webhook is asked, and knows the team."""
        try:
            made = await self.ann.create(
                JOBS, job_body("probe", 1), namespace=CHANGES, dry_run=True
            )
        except InternalError:  # asked, but it is not trusted yet
            return False
        return made.spec.team == "changing"


async def client_as(client: HttpClient, cluster: ControlPlane, account: str) -> HttpClient:
    """Return a client of a service account that holds the role for users of the namespace."""
    for resource, body in (
        (ACCOUNTS, {}),
        (BINDINGS, {
            "roleRef": _role("fairlead-edit"),
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": CHANGES}],
        }),
    ):  # fmt: skip
        with contextlib.suppress(AlreadyExists):
            named = {"metadata": {"name": account}, **body}
            await client.create(resource, named, namespace=CHANGES)
    kubeconfig = await kubeconfig_of(client, cluster, CHANGES, account)
    return HttpClient(load_connection(path=kubeconfig), HttpOptions())


@pytest.fixture
async def users(client: HttpClient, cluster: ControlPlane) -> AsyncIterator[Users]:
    """Users of a namespace of a team, on one node, with the webhook and the controllers."""
    members, admins = (
        {"users": [f"system:serviceaccount:{CHANGES}:{name}"]} for name in ("ann", "lead")
    )
    spec = {"namespaces": [CHANGES], "members": members, "admins": admins}
    team = {"metadata": {"name": "changing"}, "spec": spec}
    [role] = [m for m in manifests(Install()) if m["metadata"]["name"] == "fairlead-edit"]
    for resource, body in (
        (NAMESPACES, {"metadata": {"name": CHANGES}}),
        (NAMESPACES, {"metadata": {"name": "fairlead-system"}}),
        (PRIORITY_CLASSES, {"metadata": {"name": "first"}, "value": 1000}),
        (PRIORITY_CLASSES, {"metadata": {"name": "second"}, "value": 500}),
        (ROLES, role),
        (TEAMS, team),
    ):
        with contextlib.suppress(AlreadyExists):
            await client.create(resource, body)
    ann, lead = [await client_as(client, cluster, name) for name in ("ann", "lead")]
    made = Users(ann, lead, client)
    policy = PlacementPolicy(preemption_min_run_seconds=0.0)
    mirrors = {
        name: Mirror(client, resource, clock=CLOCK, rng=random.Random(3))
        for name, resource in (("priority_classes", PRIORITY_CLASSES), ("teams", TEAMS))
    }
    async with webhook(client, **mirrors) as serving, virtual_nodes(client, 1):
        await configure(client, serving.webhook.port)
        await until(made.is_judged)
        async with controllers(client, placement=policy):
            limited = job_body("runs", 1, seconds=3600, timeLimitSeconds=3600)
            await ann.create(JOBS, limited, namespace=CHANGES)
            await until(made.is_placed)
            yield made
        for resource in (MUTATING, VALIDATING):
            await client.delete_collection(resource)
    for who in (ann, lead):
        await who.close()
    await client.delete(TEAMS, "changing")


async def test_the_limit_of_a_job_that_runs_is_raised_by_who_answers_for_others_only(
    users: Users,
) -> None:
    for wanted in (7200, None):
        with pytest.raises(Invalid, match=r"less than 3600; an admin of team changing, or"):
            await users.patch(users.ann, {"timeLimitSeconds": wanted})
    for who, seconds in ((users.ann, 1800), (users.lead, 7200), (users.root, 10_800)):
        await users.patch(who, {"timeLimitSeconds": seconds})
        assert (await users.job()).spec.time_limit_seconds == seconds


async def test_only_administrators_request_that_jobs_of_others_are_moved(users: Users) -> None:
    for who in (users.ann, users.lead):
        with pytest.raises(Invalid, match="only administrators may set this annotation"):
            await users.patch(who, annotations={DEFRAGMENT: "true"})
    await users.patch(users.root, annotations={DEFRAGMENT: "true"})


async def test_a_class_that_is_raised_while_a_job_runs_counts_from_its_next_attempt(
    users: Users,
) -> None:
    raised = await users.patch(users.ann, {"priorityClassName": "first"})
    assert (raised.spec.priority_class_name, raised.spec.priority) == ("first", 1000)
    assert raised.status.placement is not None
    assert raised.status.placement.priority == 0
    other = job_body("other", 1, seconds=3600, priorityClassName="second")
    await users.ann.create(JOBS, other, namespace=CHANGES)
    # The other one is placed in its stead, for a moment: now the first is above it.
    await until(functools.partial(users.is_placed, attempt=2))
    attempts = [
        each for name in ("runs", "other") for each in (await users.job(name)).status.attempts
    ]
    assert [each.message for each in attempts if each.reason == "Preempted"] == [
        "gives its nodes back for job changes/other of priority 500",
        "gives its nodes back for job changes/runs of priority 1000",
    ]
    placement = (await users.job()).status.placement
    assert placement is not None
    assert placement.priority == 1000
