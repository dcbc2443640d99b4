"""Our webhook, asked by a real API server: gates, refusals, outages, and certificates that change.

A real server takes up a configuration some time after it was accepted. So each test waits until a
dry run shows that it is in force.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry, generate_latest
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.operating import CLOCK, http_client, install_kinds, job_body, until
from tests.kubernetes.own_plane import own_plane
from tests.planted import VARIABLE
from tests.simulation.array_bodies import MIXED, OF_SCHEMA, WRONG_ARRAYS, has_paths
from tests.simulation.array_bodies import template as array_template

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.resources import (
    CRDS,
    JOB_ARRAYS,
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    SECRETS,
    TEAMS,
    Resource,
)
from fairlead.api.schema import crd
from fairlead.api.schema.conversion import ALPHA, BETA, converted, with_beta
from fairlead.api.status import AlreadyExists, ApiError, InternalError, Invalid, NotFound
from fairlead.install.installer import Done, ObjectState, apply, look
from fairlead.install.stored_versions import migrate
from fairlead.kube.blocking import BlockingClient
from fairlead.kube.client import HttpClient
from fairlead.kube.http1 import HttpResponse
from fairlead.kube.kubeconfig import load_connection
from fairlead.runtime.logs import SILENT
from fairlead.runtime.watching.mirror import Mirror
from fairlead.webhook.certificates import Step, Times, take_step, to_secret
from fairlead.webhook.configuration import MUTATING, SERVICE, VALIDATING, configurations
from fairlead.webhook.definitions import DEFINITIONS, conversion
from fairlead.webhook.service import Webhook, WebhookOptions

pytestmark = pytest.mark.kubernetes
OWN = "fairlead-system"
OPTED_IN = "opted-in"
ENABLED = {names.GANG_SCHEDULING: "enabled"}
DISABLED = {names.GANG_SCHEDULING: "disabled"}
CONTAINERS = [{"name": "c", "image": "i"}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    for name, labels in ((OWN, ENABLED), (OPTED_IN, ENABLED), ("plain", {})):
        try:
            await client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        except AlreadyExists:
            continue
    try:
        yield client
    finally:
        for resource in (MUTATING, VALIDATING):
            await client.delete_collection(resource)
        for namespace in ("default", OWN, OPTED_IN, "plain", "kube-system"):
            await client.delete_collection(PODS, namespace=namespace, grace_period_seconds=0)
        await client.delete_collection(SECRETS, namespace=OWN)
        await client.delete_collection(JOBS, namespace="default")
        await client.close()


class SteppedClock:
    """The wall clock, some time ago; moved on by hand."""

    def __init__(self, behind_seconds: float) -> None:
        self.behind_seconds = behind_seconds

    def now(self) -> float:
        return CLOCK.now() - self.behind_seconds


@dataclass(slots=True)
class Running:
    """A replica's webhook in this process."""

    webhook: Webhook
    registry: CollectorRegistry
    task: asyncio.Task[None]

    def count(self, outcome: str) -> float:
        """Requests that ended so."""
        name = "fairlead_webhook_request_duration_seconds_count"
        lines = generate_latest(self.registry).decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith(name) and f'outcome="{outcome}"' in line
        )


@asynccontextmanager
async def webhook(
    client: HttpClient, *, port: int = 0, clock: Any = CLOCK, times: Times | None = None,
    look_seconds: float = 0.2, converts: bool = False, **mirrors: Mirror[Any],
) -> AsyncIterator[Running]:  # fmt: skip
    """One replica's webhook on loopback, until the end of the block, with the mirrors it reads."""
    options = WebhookOptions(
        host="127.0.0.1", port=port, hosts=("127.0.0.1",), look_seconds=look_seconds,
        times=times or Times(), converts=converts,
    )  # fmt: skip
    registry = CollectorRegistry()
    made = Webhook(
        options, client, registry, clock=clock, rng=random.Random(1), log=SILENT, **mirrors
    )
    async with asyncio.TaskGroup() as group, made.listening():
        task = group.create_task(made.run())
        following = [group.create_task(mirror.run()) for mirror in mirrors.values()]
        try:
            yield Running(made, registry, task)
        finally:
            for each in (task, *following):
                each.cancel()


def at_url(manifest: Mapping[str, Any], port: int) -> dict[str, Any]:
    """A configuration that calls loopback instead of a Service, which nobody routes here."""
    copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    for each in copy["webhooks"]:
        service = each["clientConfig"].pop("service")
        each["clientConfig"]["url"] = f"https://127.0.0.1:{port}{service['path']}"
    return copy


async def configure(client: HttpClient, port: int, *, bundle: str = "") -> None:
    """Store our configurations."""
    for resource, manifest in zip(
        (MUTATING, VALIDATING), configurations(OWN, SERVICE, bundle), strict=True
    ):
        await client.create(resource, at_url(manifest, port))


def pod(name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": dict(labels or {})}
    return {"metadata": metadata, "spec": {"containers": CONTAINERS, **spec}}


async def in_force(client: HttpClient) -> None:
    """Return once a pod of each way to opt in would be gated."""

    async def is_gated() -> bool:
        try:
            of_namespace = await client.create(PODS, pod("probe"), namespace=OPTED_IN, dry_run=True)
            of_pod = await client.create(
                PODS, pod("probe", ENABLED), namespace="plain", dry_run=True
            )
            await client.create(JOBS, job_body("probe", 1), namespace="default", dry_run=True)
        except InternalError:  # asked, but it does not trust us yet
            return False
        return bool(gates(of_namespace) and gates(of_pod))

    await until(is_gated)


def gates(made: Pod) -> list[str]:
    return [gate.name for gate in made.spec.scheduling_gates]


async def test_pods_that_opt_in_are_gated_and_labelled_and_all_others_left_alone(
    client: HttpClient,
) -> None:
    async with webhook(client) as running:
        await configure(client, running.webhook.port)
        await in_force(client)
        before = running.count("left-alone")

        async def create(name: str, namespace: str, **more: Any) -> Pod:
            return await client.create(PODS, pod(name, **more), namespace=namespace)

        by_namespace = await create("a", OPTED_IN)
        assert gates(by_namespace) == [names.GANG_GATE]
        assert by_namespace.metadata.labels == ENABLED
        by_label = await create("a", "plain", labels={**ENABLED, "app": "x"})
        assert gates(by_label) == [names.GANG_GATE]
        behind = [{"name": "example.com/quota"}]
        both = await create("b", OPTED_IN, schedulingGates=behind)
        assert gates(both) == ["example.com/quota", names.GANG_GATE]
        labelled = await create("c", OPTED_IN, labels={"app": "y"})
        assert labelled.metadata.labels == {"app": "y", **ENABLED}

        owner = {"name": "o", "uid": "u", "controller": True}
        daemon = pod("daemon")
        daemon["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", **owner}
        ]
        member = pod("member")
        member["metadata"]["ownerReferences"] = [
            {"apiVersion": names.API_VERSION, "kind": "Job", **owner}
        ]
        mirror = pod("mirror", nodeName="n")
        mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
        left_alone = [
            await create("bound", OPTED_IN, nodeName="n"),
            await create("no", OPTED_IN, labels=DISABLED),
            await create("other", OPTED_IN, schedulerName="volcano"),
            await create("system", "kube-system", labels=ENABLED),
            await create("own", OWN),
            await create("own-label", OWN, labels=ENABLED),
            await create("nobody", "plain"),
            *[
                await client.create(PODS, each, namespace=OPTED_IN)
                for each in (daemon, member, mirror)
            ],
        ]
        assert {each.metadata.name: gates(each) for each in left_alone if gates(each)} == {}
        assert running.count("left-alone") == before, "the server asked about pods in vain"


async def test_a_dry_run_is_answered_and_leaves_nothing(client: HttpClient) -> None:
    async with webhook(client) as running:
        await configure(client, running.webhook.port)
        await in_force(client)
        shown = await client.create(PODS, pod("dry"), namespace=OPTED_IN, dry_run=True)
        assert gates(shown) == [names.GANG_GATE]
        assert (await client.list(PODS, namespace=OPTED_IN)).items == ()


async def test_without_a_webhook_only_those_outside_opted_in_namespaces_get_in(
    client: HttpClient,
) -> None:
    async with webhook(client) as running:
        port = running.webhook.port
        await configure(client, port)
        await in_force(client)
    with pytest.raises(InternalError, match=r"failed calling webhook .*namespaces\.pods\.fairlead"):
        await client.create(PODS, pod("held"), namespace=OPTED_IN)
    with pytest.raises(InternalError, match=r"jobs\.fairlead"):
        await client.create(JOBS, job_body("x", 1), namespace="default")
    let_in = await client.create(PODS, pod("free", ENABLED), namespace="plain")
    assert gates(let_in) == []
    async with webhook(client, port=port):
        await in_force(client)
        assert gates(await client.create(PODS, pod("held"), namespace=OPTED_IN))


async def test_a_job_with_three_mistakes_is_refused_with_three_paths(client: HttpClient) -> None:
    async with webhook(client) as running:
        await configure(client, running.webhook.port)
        await in_force(client)
        bad = job_body("bad", 1, after=[{"job": "bad"}])
        role = bad["spec"]["roles"][0]
        role["template"]["spec"]["nodeName"] = "n"
        role["template"]["spec"]["containers"][0]["resources"] = {
            "requests": {"nvidia.com/gpu": "0.5"}
        }
        with pytest.raises(Invalid) as refused:
            await client.create(JOBS, bad, namespace="default")
        details = refused.value.status.details
        assert details is not None
        at = "spec.roles[0].template.spec"
        assert [cause.field for cause in details.causes] == [
            f"{at}.containers[0].resources.requests.nvidia.com/gpu", f"{at}.nodeName",
            "spec.after[0].job",
        ]  # fmt: skip
        assert running.count("refused") == 1

        await client.create(JOBS, job_body("good", 2), namespace="default")
        other = {"spec": {"roles": job_body("good", 3)["spec"]["roles"]}}
        with pytest.raises(Invalid, match=r"spec\.roles: Invalid value: field is immutable"):
            await client.patch(JOBS, "good", other, namespace="default")
        await client.patch(JOBS, "good", {"spec": {"suspend": True}}, namespace="default")
    # metadata stays ours to write when no webhook answers: the controllers live by it
    await client.patch(
        JOBS, "good", {"metadata": {"finalizers": [names.JOB_FINALIZER]}}, namespace="default"
    )
    await client.patch(JOBS, "good", {"metadata": {"finalizers": None}}, namespace="default")


async def test_wrong_arrays_are_refused_with_the_paths_that_an_embedded_cluster_names(
    client: HttpClient,
) -> None:
    classes = Mirror(client, PRIORITY_CLASSES, clock=CLOCK, rng=random.Random(2), log=SILENT)
    async with webhook(client, priority_classes=classes) as running:
        await configure(client, running.webhook.port)
        await in_force(client)

        async def are_known() -> bool:
            return classes.synced

        await until(are_known)
        sound = {"indices": "0-9", "template": array_template()}
        for number, (spec, paths) in enumerate([*WRONG_ARRAYS, (MIXED, OF_SCHEMA)]):
            body = {"metadata": {"name": f"wrong-{number}"}, "spec": {**sound, **spec}}
            with pytest.raises(Invalid) as refused:
                await client.create(JOB_ARRAYS, body, namespace="default")
            has_paths(refused.value, paths)
        await client.create(
            JOB_ARRAYS, {"metadata": {"name": "sound"}, "spec": sound}, namespace="default"
        )
        for change in ({"indices": "0-10"}, {"template": array_template(gpus=2)}):
            with pytest.raises(Invalid, match="field is immutable"):
                await client.patch(JOB_ARRAYS, "sound", {"spec": change}, namespace="default")
        await client.delete(JOB_ARRAYS, "sound", namespace="default")


async def test_defaults_of_a_team_are_filled_in_and_a_longer_limit_is_refused(
    client: HttpClient,
) -> None:
    teams = Mirror(client, TEAMS, clock=CLOCK, rng=random.Random(2), log=SILENT)
    mounts = [{"path": "/data", "claim": "data"}]
    spec: dict[str, Any] = {
        "namespaces": ["plain"], "jobMaxima": {"timeLimitSeconds": 3600},
        "jobDefaults": {"image": "registry/torch:1", "env": {"TZ": "UTC"}, "mounts": mounts},
    }  # fmt: skip
    body = job_body("defaulted", 1)
    body["spec"]["roles"][0]["template"]["spec"]["containers"][0].pop("image", None)
    try:
        async with webhook(client, teams=teams) as running:
            await configure(client, running.webhook.port)
            await in_force(client)
            on_hosts = {"jobDefaults": {"mounts": [{"path": "/x", "hostPath": "/etc"}]}}
            with pytest.raises(Invalid, match="only the settings of the cluster"):
                await client.create(TEAMS, {"metadata": {"name": "hosts"}, "spec": on_hosts})
            await client.create(TEAMS, {"metadata": {"name": "plain"}, "spec": spec})

            async def is_known() -> bool:
                return teams.get("", "plain") is not None

            await until(is_known)
            stored = await client.create(JOBS.raw, body, namespace="plain")
            pod = stored["spec"]["roles"][0]["template"]["spec"]
            assert pod["containers"][0]["image"] == "registry/torch:1"
            given = [each["name"] for each in pod["containers"][0]["env"]]
            assert given == ["TZ", VARIABLE]
            assert pod["containers"][0]["env"][0]["value"] == "UTC"
            assert pod["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "data"}
            assert stored["spec"]["timeLimitSeconds"] == 3600
            assert stored["metadata"]["annotations"][names.DEFAULTS] == (
                "image=team/plain,env=team/plain,mounts=team/plain,timeLimitSeconds=team/plain"
            )
            longer = job_body("longer", 1, timeLimitSeconds=7200)
            with pytest.raises(Invalid, match="team plain allows at most 1h"):
                await client.create(JOBS, longer, namespace="plain")
            again = {"spec": {"roles": body["spec"]["roles"]}}
            after = await client.patch(JOBS.raw, "defaulted", again, namespace="plain")
            assert after["spec"] == stored["spec"]
    finally:
        await client.delete_collection(TEAMS)
        await client.delete_collection(JOBS, namespace="plain")


# Versions


class BetaJob(Wire, frozen=True):
    """A job of v1beta1, as a client without its types sees it."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


WATCHED = Resource(names.GROUP, names.BETA_VERSION, "jobs", "Job", BetaJob)
BETA_JOBS = WATCHED.raw


def beta_job(name: str, **spec: Any) -> dict[str, Any]:
    return converted({"apiVersion": ALPHA, "kind": "Job", **job_body(name, 1, **spec)}, BETA)


def beta_definitions(port: int) -> list[dict[str, Any]]:
    """Definitions with v1beta1, which a webhook on loopback converts."""
    told = conversion(OWN, SERVICE)
    service = told["webhook"]["clientConfig"].pop("service")
    told["webhook"]["clientConfig"]["url"] = f"https://127.0.0.1:{port}{service['path']}"
    both = [with_beta(each) for each in crd.manifests()]
    return [{**each, "spec": {**each["spec"], "conversion": told}} for each in both]


async def is_beta_served(client: HttpClient) -> None:
    """Return once the API server has jobs converted."""

    async def is_served() -> bool:
        try:
            await client.create(BETA_JOBS, beta_job("probe"), namespace="default", dry_run=True)
        except ApiError:
            return False
        return True

    await until(is_served)


async def test_v1beta1_is_converted_both_ways_and_goes_again(
    client: HttpClient, cluster: ControlPlane, tmp_path: Path
) -> None:
    alpha = JOBS.raw
    kubectl = Kubectl(cluster.binaries / "kubectl", tmp_path, cluster.kubeconfig())
    old = await client.create(alpha, job_body("old", 1, team="red"), namespace="default")
    blocking = BlockingClient(load_connection(path=cluster.kubeconfig()))

    async def install(manifests: list[dict[str, Any]]) -> set[Done]:
        return {await asyncio.to_thread(apply, blocking, each) for each in manifests}

    async def states(manifests: list[dict[str, Any]]) -> set[ObjectState]:
        return {(await asyncio.to_thread(look, blocking, each)).state for each in manifests}

    try:
        async with webhook(client, converts=True) as running:
            await configure(client, running.webhook.port)
            await in_force(client)
            definitions = beta_definitions(running.webhook.port)
            assert await install(definitions) == {Done.CHANGED}
            await is_beta_served(client)
            since = (await client.list(BETA_JOBS, namespace="default")).resource_version
            body = beta_job("new", team="red", after=[{"job": "old"}])
            made = await client.create(BETA_JOBS, body, namespace="default")
            assert made["spec"]["teamName"] == "red"
            assert made["spec"]["after"] == [
                {"jobName": "old", "state": "Succeeded", "onUnmet": "Cancel"}
            ]
            stored = await client.get(alpha, "new", namespace="default")
            assert converted(stored, BETA)["spec"] == made["spec"]
            assert stored["spec"]["team"] == "red"
            seen = await client.get(BETA_JOBS, "old", namespace="default")
            assert converted(seen, ALPHA)["spec"] == old["spec"]

            # Rules of the webhook, and fields, are found under either name.
            wrong = beta_job("wrong", after=[{"job": "wrong"}])
            with pytest.raises(Invalid, match=r"spec\.after\[0\]\.job"):
                await client.create(BETA_JOBS, wrong, namespace="default")
            found = await client.list(
                BETA_JOBS, namespace="default", field_selector="spec.teamName=red"
            )
            assert [each["metadata"]["name"] for each in found.items] == ["new", "old"]

            by_group = await kubectl("get", "jobs.fairlead.dev", "old", "-o", "jsonpath={.spec}")
            assert '"teamName":"red"' in by_group.out, by_group.err
            told = await kubectl("explain", "job.spec", f"--api-version={BETA}")
            assert "teamName" in told.out, told.err
            stays = await kubectl("get", "jobs.v1alpha1.fairlead.dev", "-o", "wide")
            assert stays.out.count("red") == 2, stays.err

            times = {"status": {"startedAt": "2026-01-02T03:04:05Z"}}
            await client.patch(alpha, "new", times, namespace="default", subresource="status")
            await client.patch(BETA_JOBS, "new", {"spec": {"teamName": None}}, namespace="default")
            events: list[BetaJob] = []
            async for event in client.watch(
                WATCHED, resource_version=since, namespace="default", timeout_seconds=30
            ):
                if event.object is not None:
                    events.append(event.object)
                if len(events) == 3:
                    break
            assert [each.status.get("startTime") for each in events] == [
                None, *[times["status"]["startedAt"]] * 2
            ]  # fmt: skip
            assert ["teamName" in each.spec for each in events] == [True, True, False]
            assert running.count("converted") > 0
            assert running.count("malformed") == 0

            async def trusts() -> bool:
                found = [await client.get(DEFINITIONS, name) for name in crd.definition_names()]
                ways = [each.spec.conversion.webhook for each in found]
                return all(way is not None and way.client_config.ca_bundle for way in ways)

            await until(trusts)
            assert await states(definitions) == {ObjectState.SAME}, "the authority would go"
        # What no webhook converts cannot be read; what is stored can.
        await client.get(alpha, "old", namespace="default")
        with pytest.raises(InternalError, match="conversion webhook"):
            await client.get(BETA_JOBS, "old", namespace="default")
    finally:
        taken_back = await install(crd.manifests())
    assert taken_back == {Done.CHANGED}
    assert await states(crd.manifests()) == {ObjectState.SAME}

    async def is_gone() -> bool:
        try:
            await client.get(BETA_JOBS, "old", namespace="default")
        except NotFound:
            return True
        except ApiError:
            return False
        return False

    await until(is_gone)
    found = [await client.get(CRDS, name) for name in crd.definition_names()]
    assert all(each.status["storedVersions"] == [names.VERSION] for each in found)
    assert (await client.get(alpha, "old", namespace="default"))["spec"] == old["spec"]


class Killed(Exception):
    """The process of an installation ended."""


@dataclass(slots=True)
class DyingClient:
    """The client of a process that ends right after its last request was carried out."""

    client: BlockingClient
    requests_left: int

    def request(self, method: str, path: str, **more: Any) -> HttpResponse:
        self.requests_left -= 1
        answer = self.client.request(method, path, **more)
        if not self.requests_left:
            raise Killed
        return answer


def stored_versions_of_jobs(cluster: ControlPlane) -> dict[str, str]:
    """In which version etcd has each job of the namespace default."""
    found = cluster.stored("/registry/fairlead.dev/jobs/default/")
    return {key.rpartition("/")[2]: json.loads(each)["apiVersion"] for key, each in found.items()}


async def test_objects_of_a_later_version_are_rewritten_before_it_goes_wherever_that_is_interrupted(
    client: HttpClient, cluster: ControlPlane
) -> None:
    blocking = BlockingClient(load_connection(path=cluster.kubeconfig()))
    [plain] = [each for each in crd.manifests() if each["spec"]["names"]["kind"] == "Job"]
    alpha = JOBS.raw

    async def stored() -> list[str]:
        return (await client.get(CRDS, plain["metadata"]["name"])).status["storedVersions"]

    await client.create(alpha, job_body("old", 1), namespace="default")
    async with webhook(client, converts=True) as running:
        await configure(client, running.webhook.port)
        await in_force(client)
        try:
            [both] = [
                each for each in beta_definitions(running.webhook.port)
                if each["metadata"] == plain["metadata"]
            ]  # fmt: skip
            versions = [
                {**each, "storage": each["name"] == names.BETA_VERSION}
                for each in both["spec"]["versions"]
            ]
            later = {**both, "spec": {**both["spec"], "versions": versions}}
            await asyncio.to_thread(apply, blocking, later)
            await is_beta_served(client)

            async def is_stored() -> bool:
                await client.patch(alpha, "old", {"spec": {"suspend": True}}, namespace="default")
                await client.patch(alpha, "old", {"spec": {"suspend": None}}, namespace="default")
                return stored_versions_of_jobs(cluster)["old"] == BETA

            await until(is_stored)
            for i in range(4):
                body = job_body(f"j{i}", 1, team="red")
                await client.create(alpha, body, namespace="default")
            assert set(stored_versions_of_jobs(cluster).values()) == {BETA}
            assert await stored() == [names.VERSION, names.BETA_VERSION]
            before = (await client.list(alpha, namespace="default")).items
            with pytest.raises(Invalid, match="storedVersions"):
                await asyncio.to_thread(apply, blocking, plain)

            for requests in range(1, 100):
                dying: Any = DyingClient(blocking, requests)
                try:
                    count = await asyncio.to_thread(migrate, dying, plain)
                except Killed:
                    if await stored() != [names.VERSION]:
                        continue
                    count = 0  # it ended after the last write
                break
            assert requests > len(before), "it was never interrupted"
            assert set(stored_versions_of_jobs(cluster).values()) == {ALPHA}
            assert await stored() == [names.VERSION]
            assert count in (0, len(before))
            after = (await client.list(alpha, namespace="default")).items
            assert [each["spec"] for each in after] == [each["spec"] for each in before]
            assert await asyncio.to_thread(migrate, blocking, plain) == 0
            assert await asyncio.to_thread(apply, blocking, plain) is Done.CHANGED
        finally:
            await asyncio.to_thread(migrate, blocking, plain)
            await asyncio.to_thread(apply, blocking, plain)
    assert (await client.get(alpha, "j0", namespace="default"))["spec"]["team"] == "red"


# Certificates


async def secret_of(client: HttpClient) -> dict[str, str]:
    return (await client.get(SECRETS, SERVICE, namespace=OWN)).data


async def handshake(port: int, *, trusting: str) -> None:
    """Connect as a server does that knows these authorities only."""
    bundle = base64.b64decode(trusting).decode()
    context = ssl.create_default_context(cadata=bundle)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.close()


async def creating(client: HttpClient, is_over: asyncio.Event, lost: list[str]) -> int:
    """Create pods without a pause until it is over; note every one that is refused or ungated."""
    count = 0
    while not is_over.is_set():
        name = f"p{count}"
        try:
            made = await client.create(PODS, pod(name), namespace=OPTED_IN, dry_run=True)
            if not gates(made):
                lost.append(f"{name}: no gate")
        except ApiError as error:
            lost.append(f"{name}: {error}")
        count += 1
    return count


async def test_a_certificate_changes_while_pods_are_created_and_none_is_lost(
    client: HttpClient,
) -> None:
    times = Times(overlap_seconds=6.0)
    clock = SteppedClock(behind_seconds=0.61 * times.life_seconds)
    lost: list[str] = []
    is_over = asyncio.Event()
    async with webhook(client, clock=clock, times=times) as running:
        await configure(client, running.webhook.port)
        await in_force(client)
        # every question comes over a connection of its own, and so meets what is shown just then
        running.webhook._server._is_leaving = True
        first = await secret_of(client)

        async def is_settled_anew() -> bool:
            data = await secret_of(client)
            is_new = data["tls.crt"] != first["tls.crt"] and "next.crt" not in data
            return is_new and len(data["ca.crt"]) <= len(first["ca.crt"]) + 8

        async with asyncio.TaskGroup() as group:
            counts = [group.create_task(creating(client, is_over, lost)) for _ in range(4)]
            try:
                clock.behind_seconds = 0.0
                await until(is_settled_anew)
                second = await secret_of(client)
                await handshake(running.webhook.port, trusting=second["ca.crt"])
                with pytest.raises(ssl.SSLCertVerificationError):
                    await handshake(running.webhook.port, trusting=first["ca.crt"])
                # a new bundle makes the server connect anew
                await asyncio.sleep(2.0)
            finally:
                is_over.set()
        assert lost == []
        assert sum(count.result() for count in counts) > 100
        assert running.count("gated") > 100


async def test_two_replicas_agree_on_one_certificate_and_mend_what_was_tampered_with(
    client: HttpClient,
) -> None:
    async with webhook(client) as one, webhook(client) as two:
        await configure(client, one.webhook.port)
        await in_force(client)

        async def both_are_ready() -> bool:
            return one.webhook.is_ready and two.webhook.is_ready

        await until(both_are_ready)
        first = await secret_of(client)
        bundles = [await bundle_of(client, resource) for resource in (MUTATING, VALIDATING)]
        assert bundles == [{first["ca.crt"]}, {first["ca.crt"]}]

        await client.patch(SECRETS, SERVICE, {"data": {"tls.key": "aGVsbG8="}}, namespace=OWN)

        async def is_mended() -> bool:
            data = await secret_of(client)
            return data["tls.crt"] != first["tls.crt"] and await bundle_of(client, MUTATING) == {
                data["ca.crt"]
            }

        await until(is_mended)
        await in_force(client)


async def bundle_of(client: HttpClient, resource: Any) -> set[str]:
    found = await client.get(resource, "fairlead")
    return {each.client_config.ca_bundle for each in found.webhooks}


# The command, and a replica


def run_cli(cluster: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments, "--kubeconfig", str(cluster.kubeconfig())],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


async def test_the_command_explains_a_pod_that_is_there(
    cluster: ControlPlane, client: HttpClient
) -> None:
    await client.create(PODS, pod("early"), namespace=OPTED_IN)
    said = await asyncio.to_thread(
        run_cli, cluster, "webhook", "--explain", "early", "-n", OPTED_IN
    )
    assert said.returncode == 0, said.stderr
    assert "waits for its gang's place: its namespace's label" in said.stdout
    assert "No API server asks" in said.stderr
    for resource, manifest in zip(
        (MUTATING, VALIDATING), configurations(OWN, SERVICE, ""), strict=True
    ):
        await client.create(resource, manifest)
    await client.create(PODS, pod("bound", nodeName="n7"), namespace="plain")
    said = await asyncio.to_thread(
        run_cli, cluster, "webhook", "--explain", "pod/bound", "-n", "plain", "-o", "json"
    )
    assert msgspec.json.decode(said.stdout)["ruling"] == "not-asked"
    assert "It is on n7 now" in said.stderr
    assert "No API server asks" not in said.stderr
    said = await asyncio.to_thread(run_cli, cluster, "webhook", "--explain", "x", "-n", "plain")
    assert said.returncode == 3
    assert "error[E305]: there is no pod 'x' in plain" in said.stderr


async def test_replicas_serve_whoever_leads_and_hand_the_server_over_when_they_end(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    """Two processes with a certificate from files; the one that is asked ends while pods come."""
    material = take_step(Step.MAKE, None, ("127.0.0.1",), now=CLOCK.now(), times=Times())
    (tmp_path / "tls.crt").write_bytes(material.serving.certificate)
    (tmp_path / "tls.key").write_bytes(material.serving.key)
    with ExitStack() as stack:
        replicas = [Replica(stack, cluster, tmp_path, name) for name in ("one", "two")]
        for replica in replicas:
            await until(replica.is_ready)
        assert sorted([await r.leads() for r in replicas]) == [False, True]
        follower = replicas[0] if await replicas[1].leads() else replicas[1]
        bundle = to_secret(material)["ca.crt"]
        await configure(client, follower.webhook_port, bundle=str(bundle))
        await in_force(client)
        assert gates(await client.create(PODS, pod("x"), namespace=OPTED_IN)) == [names.GANG_GATE]
        (tmp_path / "tls.crt").write_bytes(b"spoilt")
        assert await follower.is_ready(), "it goes on with the last good one"
        assert "[+] webhook: running" in await follower.health()
        follower.process.terminate()
        assert await asyncio.to_thread(follower.process.wait, PATIENCE_SECONDS) == 0
        assert "Stopped" in follower.log.read_text()


class Replica:
    """A `fairlead controller` with a webhook on a free port."""

    def __init__(
        self, stack: ExitStack, cluster: ControlPlane, certificates: Path, name: str
    ) -> None:
        self.log = certificates / f"{name}.log"
        output = stack.enter_context(self.log.open("wb"))
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "fairlead", "controller", "--listen", "127.0.0.1:0",
                "--webhook-listen", "127.0.0.1:0", "--webhook-cert-dir", str(certificates),
                "--kubeconfig", str(cluster.kubeconfig()),
            ],
            stdout=output, stderr=output,
        )  # fmt: skip
        stack.callback(self._end)

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def webhook_port(self) -> int:
        return int(self._started()["webhook_port"])

    def _started(self) -> dict[str, Any]:
        for line in self.log.read_text().splitlines():
            if '"Started"' in line:
                return msgspec.json.decode(line)
        return {}

    async def _get(self, path: str) -> tuple[int, str]:
        port = self._started().get("port")
        if port is None:
            return 0, ""
        url = f"http://127.0.0.1:{port}{path}"
        async with ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def is_ready(self) -> bool:
        status, text = await self._get("/readyz")
        return status == 200 and "[+] webhook: certificate in date" in text

    async def health(self) -> str:
        return (await self._get("/healthz"))[1]

    async def leads(self) -> bool:
        _, text = await self._get("/metrics")
        return "fairlead_leader 1.0" in text
