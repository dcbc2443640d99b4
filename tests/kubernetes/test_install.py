"""`fairlead install` on a real API server, and its rights: all that the controllers need, no more.

The server also enforces who may name an owner whose deletion waits for dependents, as some
distributions do; so the right to do that is tried, too.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.kubernetes.adopting import BATCH, SETS, TOOLS, batch_job, stateful_set, template
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    CLOCK,
    POLICY,
    ended,
    http_client,
    job_body,
    kubeconfig_of,
    running,
    succeed,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.sharing import watched
from tests.kubernetes.webhook_route import FLAG, lead_to

from fairlead.api import names
from fairlead.api.podgroups import GroupApi, pod_groups
from fairlead.api.resources import (
    CLAIMS,
    CLUSTER_REPORTS,
    CONFIG_MAPS,
    CSI_NODES,
    DEVICE_CLASSES,
    EVENTS,
    IMAGE_SETS,
    JOB_ARRAYS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SECRETS,
    SERVICES,
    STORAGE_CLASSES,
    TEAMS,
    VOLUME_ATTACHMENTS,
    VOLUMES,
    Resource,
)
from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.app.configuration.policies import Policies
from fairlead.app.operator import OperatorSettings, ReplicaRun
from fairlead.app.queries.messages import ACCOUNT, TOKEN_HEADER
from fairlead.app.replica import ReplicaLogSource, ReplicaSettings
from fairlead.cli.cluster.archive import token_path
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.decide.leader_election import LeaseTimes
from fairlead.decide.pinning import Binding
from fairlead.decide.reasons import Reason
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.use.use_samples import UsePolicy
from fairlead.history.memory import MemoryHistory, MemoryLogs
from fairlead.install.history_storage import IS_DEFAULT
from fairlead.install.manifests import NAME, Install, Manifest, manifests
from fairlead.install.remover import GONE_SECONDS_MAX, KIND_SECONDS_MAX
from fairlead.install.values import HistoryKind, HistoryValues, Values
from fairlead.kube.client import HttpClient, HttpLogReader
from fairlead.runtime.kept.numbers import NumbersOptions
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.runtime.logs import SILENT
from fairlead.webhook.configuration import SERVICE
from fairlead.webhook.service import WebhookOptions

pytestmark = pytest.mark.kubernetes
#: group, resource with its sub-resource, verb
Right = tuple[str, str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with everything that the controllers can make use of.

    It also enforces rights on owner references.
    """
    flags = (
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement", FLAG,
        "--runtime-config=scheduling.k8s.io/v1alpha2=true",
    )  # fmt: skip
    yield from own_plane(
        tmp_path_factory,
        flags=flags,
        scheduler=True,
        gates=("GenericWorkload", "GangScheduling"),
        controllers=("podgroup-protection-controller", *TOOLS),
    )


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    yield client
    await client.close()


#: Longer than a command waits by itself, so that its own message says what it waited for.
COMMAND_SECONDS_MAX = GONE_SECONDS_MAX + 2 * KIND_SECONDS_MAX


def run_cli(cluster: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments, "--kubeconfig", str(cluster.kubeconfig())],
        capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def install(cluster: ControlPlane, *arguments: str) -> tuple[int, dict[str, str]]:
    """Run the command; return its exit code and what it said of each object."""
    done = run_cli(cluster, "install", *arguments)
    assert "error[" not in done.stderr, done.stderr
    lines = [line.rpartition(": ") for line in done.stdout.splitlines()]
    return done.returncode, {label: said for label, _, said in lines}


def test_what_is_missing_is_said_made_and_then_left_alone(cluster: ControlPlane) -> None:
    code, said = install(cluster, "--check")
    assert code == 1
    assert set(said.values()) == {"missing"}
    code, said = install(cluster, "--dry-run")
    assert (code, set(said.values())) == (0, {"would be created"})
    assert set(install(cluster, "--check")[1].values()) == {"missing"}, "a dry run wrote"

    code, said = install(cluster)
    assert (code, set(said.values())) == (0, {"created"})
    code, said = install(cluster)
    assert (code, set(said.values())) == (0, {"unchanged"})
    code, said = install(cluster, "--check")
    # nobody runs deployments here, and the check says so
    assert code == 1
    unwell = {label: what for label, what in said.items() if what != "ok"}
    nobody = "ok (no authority to trust yet, a running controller writes it)"
    assert unwell == {
        f"Deployment fairlead-system/{NAME}": "ok (0 of 2 replicas are available)",
        "MutatingWebhookConfiguration fairlead": nobody,
        "ValidatingWebhookConfiguration fairlead": nobody,
    }


async def test_what_was_tampered_with_is_found_and_mended(
    cluster: ControlPlane, client: HttpClient
) -> None:
    install(cluster)
    role = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{NAME}"
    service = "/api/v1/namespaces/fairlead-system/services/fairlead-metrics"
    patch = msgspec.json.encode({"rules": []})
    await client.request("PATCH", role, body=patch, content_type="application/merge-patch+json")
    await client.request("DELETE", service)
    notes = msgspec.json.encode({"metadata": {"annotations": {"note": "of an administrator"}}})
    await client.request("PATCH", role, body=notes, content_type="application/merge-patch+json")
    code, said = install(cluster, "--check")
    assert code == 1
    assert said[f"ClusterRole {NAME}"] == "differs"
    assert said["Service fairlead-system/fairlead-metrics"] == "missing"
    code, said = install(cluster)
    assert said[f"ClusterRole {NAME}"] == "changed"
    assert said["Service fairlead-system/fairlead-metrics"] == "created"
    found = msgspec.json.decode(await client.request("GET", role))
    assert found["rules"] == rules_of("ClusterRole")
    assert found["metadata"]["annotations"] == {"note": "of an administrator"}


def test_what_is_not_chosen_any_more_is_found_and_removed(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    install(cluster)
    values = tmp_path / "values.yaml"
    values.write_text("podDisruptionBudget: {enabled: false}\nnetworkPolicy: {enabled: true}\n")
    chosen = ("--values", str(values))
    budget = f"PodDisruptionBudget fairlead-system/{NAME}"
    policy = f"NetworkPolicy fairlead-system/{NAME}"
    code, said = install(cluster, "--check", *chosen)
    assert (code, said[budget], said[policy]) == (1, "not wanted any more", "missing")
    assert install(cluster, "--dry-run", *chosen)[1][budget] == "would be deleted"
    _, said = install(cluster, *chosen)
    assert (said[budget], said[policy]) == ("deleted", "created")
    _, said = install(cluster, "--check", *chosen)
    assert budget not in said
    assert install(cluster)[1][policy] == "deleted"


async def test_it_says_what_becomes_of_the_history_on_this_cluster(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    """The control plane has no StorageClass at first."""
    values = tmp_path / "values.yaml"
    values.write_text("history: {kind: sqlite}\nreplicas: 1\n")
    classes: Resource[Any] = Resource(
        "storage.k8s.io", "v1", "storageclasses", "StorageClass", dict, namespaced=False
    )

    async def said(*arguments: str) -> str:
        done = await asyncio.to_thread(run_cli, cluster, "install", *arguments)
        return done.stdout + done.stderr

    assert "has no StorageClass" in await said()
    check = ("--check", "--values", str(values))
    assert "StorageClass (the default): missing" in await said(*check)
    await client.create(classes, {"metadata": {"name": "fast"}, "provisioner": "example.com/none"})
    assert "(one of fast; none is the default)" in await said()
    note = {"metadata": {"annotations": {IS_DEFAULT: "true"}}}
    await client.patch(classes, "fast", note)
    assert "history.kind sqlite with replicas 1, or" in await said()
    assert "StorageClass" not in await said(*check)
    await client.delete(classes, "fast")


def test_what_the_values_name_and_others_make_is_asked_for_with_the_command(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("history: {kind: postgres}\npriorityClassName: system-cluster-critical\n")
    chosen = ("--values", str(values))
    install(cluster, *chosen)
    code, said = install(cluster, "--check", *chosen)
    remedy = "create secret generic fairlead-history --from-literal=url=postgresql://..."
    secret = next(label for label in said if label.startswith("Secret"))
    assert code == 1
    assert remedy in f"{secret}: {said[secret]}"
    assert said["PriorityClass system-cluster-critical"] == "ok"
    install(cluster)


def test_what_the_cluster_cannot_have_is_refused_before_anything_is_written(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("metrics: {serviceMonitor: {enabled: true}}\n")
    done = run_cli(cluster, "install", "--values", str(values), "-n", "elsewhere")
    assert done.returncode == 5
    assert "metrics.serviceMonitor.enabled: false" in done.stderr
    assert done.stdout == ""


# Rights


#: Logs are read where they are kept.
KEEPING_LOGS = Install(values=Values(history=HistoryValues(kind=HistoryKind.POSTGRES)))


def rules_of(kind: str, install: Install | None = None) -> list[Manifest]:
    """Return the rules of the controllers' own roles of a kind."""
    own = {NAME, "fairlead-node-leases"}
    return [
        rule
        for each in manifests(install or Install())
        if each["kind"] == kind and each["metadata"]["name"] in own
        for rule in each["rules"]
    ]


def granted() -> set[Right]:
    rights: set[Right] = set()
    for rule in (*rules_of("ClusterRole", KEEPING_LOGS), *rules_of("Role", KEEPING_LOGS)):
        rights |= {("", url, "get") for url in rule.get("nonResourceURLs", ())}
        for group in rule.get("apiGroups", ()):
            for resource in rule["resources"]:
                rights |= {(group, resource, verb) for verb in rule["verbs"]}
    return rights


def right_of(method: str, path: str, params: Mapping[str, str] | None) -> Right:
    """Return what the server asks RBAC about a request (kubernetes.io/docs, "Authorization")."""
    if not path.startswith("/api"):
        return "", path, "get"
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    resource = f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]
    verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method)
    if verb is None:
        is_watch = bool(params) and params.get("watch") == "true"
        verb = "watch" if is_watch else "get" if len(rest) > 1 else "list"
    return group, resource, verb


class Accountant:
    """A client as the controllers' service account, and the rights that it made use of."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.used: set[Right] = set()
        request, stream = client.request, client.stream

        async def requested(method: str, path: str, **more: Any) -> bytes:
            right = right_of(method, path, more.get("params"))
            try:
                answer = await request(method, path, **more)
            except NotFound:  # it was allowed to ask
                self.used.add(right)
                raise
            self.used.add(right)
            return answer

        async def streamed(method: str, path: str, **more: Any) -> AsyncGenerator[bytes]:
            right = right_of(method, path, more.get("params"))
            try:
                async for chunk in stream(method, path, **more):
                    self.used.add(right)
                    yield chunk
            except Forbidden:
                raise
            except ApiError:  # such as a log without a kubelet: it was allowed to ask
                self.used.add(right)
                raise

        client.request, client.stream = requested, streamed


@asynccontextmanager
async def accountant(cluster: ControlPlane, client: HttpClient) -> AsyncIterator[Accountant]:
    kubeconfig = await kubeconfig_of(client, cluster, "fairlead-system", NAME)
    from fairlead.kube.kubeconfig import load_connection

    account = HttpClient(load_connection(path=kubeconfig))
    try:
        yield Accountant(account)
    finally:
        await account.close()


@asynccontextmanager
async def operator(
    account: Accountant, identity: str, *, converts: bool = False
) -> AsyncIterator[ReplicaRun]:
    """One replica, until the end of the block; its webhook listens."""
    settings = OperatorSettings(
        ReplicaSettings(
            identity, LeaderOptions(times=LeaseTimes.of(6.0)),
            Policies(
                replace(POLICY, binding=Binding.NATIVE),
                doctor=DoctorPolicy(start_seconds=1.0, pause_seconds=0.05),
                teams=TeamsPolicy(publishes=True),
                numbers=NumbersOptions(names.OWN_NAMESPACE),
                use=UsePolicy(sample_seconds=1),
            ),
        ),
        host="127.0.0.1", port=0,
        webhook=WebhookOptions(port=0, look_seconds=0.5, converts=converts),
    )  # fmt: skip
    listens = asyncio.Event()
    archive = ReplicaLogSource(MemoryLogs(), HttpLogReader(account.client))
    replica = ReplicaRun(
        settings, account.client, MemoryHistory(), archive=archive, clock=CLOCK, log=SILENT
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(replica.run(lambda _port: listens.set()))
        try:
            await listens.wait()
            yield replica
        finally:
            replica.stop()


async def serve(client: HttpClient, replica: ReplicaRun) -> None:
    """Return once the API server asks this replica's webhook."""
    assert replica.webhook is not None
    await lead_to(client, replica.webhook.port)


async def spoil_certificate(client: HttpClient) -> None:
    """Let the replica renew its certificate."""

    async def certificate() -> str:
        found = await client.get(SECRETS, SERVICE, namespace="fairlead-system")
        return found.data["tls.crt"]

    before = await certificate()
    await client.patch(
        SECRETS, SERVICE, {"data": {"tls.key": "c3BvaWx0"}}, namespace="fairlead-system"
    )

    async def is_renewed() -> bool:
        return await certificate() != before

    await until(is_renewed)


#: Labels of a pod, and its controller, for each kind that is looked up; none is installed here,
#: which is an answer.
PODS_OF_TOOLS: dict[str, tuple[dict[str, str], tuple[str, str, str] | None]] = {
    "ray": (
        {"ray.io/cluster": "x", "ray.io/node-type": "head"}, ("ray.io/v1", "RayCluster", "x"),
    ),
    "plugins": ({"scheduling.x-k8s.io/pod-group": "x"}, None),
    "volcano": ({"scheduling.volcano.sh/group-name": "x"}, None),
    **{
        kind.lower(): (
            {"training.kubeflow.org/job-name": f"x-{kind.lower()}"},
            ("kubeflow.org/v1", kind, f"x-{kind.lower()}"),
        )
        for kind in ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob")
    },
}  # fmt: skip
#: Labels of the pods of a Job and a StatefulSet, which their tools make.
OF_JOB_SET = {
    "jobset.sigs.k8s.io/jobset-name": "x", "jobset.sigs.k8s.io/replicatedjob-name": "r",
}  # fmt: skip
OF_LEADER_WORKER_SET = {
    "leaderworkerset.sigs.k8s.io/name": "x", "leaderworkerset.sigs.k8s.io/group-index": "0",
    "leaderworkerset.sigs.k8s.io/worker-index": "0",
}  # fmt: skip


async def run_guests(client: HttpClient, account: Accountant) -> None:
    """Pods of all tools: two that run, others that nobody explains.

    They ask by their label, but for a StatefulSet that knows nothing of us: its namespace asks.
    """
    asking = {names.GANG_SCHEDULING: "enabled"}
    for name, (labels, controller) in PODS_OF_TOOLS.items():
        body = template(gated=False, gpus=1, labels={**asking, **labels})
        body["metadata"]["name"] = f"of-{name}"
        if controller is not None:
            keys = ("apiVersion", "kind", "name")
            owner = dict(zip(keys, controller, strict=True))
            body["metadata"]["ownerReferences"] = [{**owner, "uid": name, "controller": True}]
        await client.create(PODS, body, namespace="default")
    child = batch_job("x-r-0", 1, gated=False, labels={**asking, **OF_JOB_SET})
    await client.create(BATCH, child, namespace="default")
    leaders = stateful_set("x", 1, gated=False)
    leaders["spec"]["template"]["metadata"]["labels"] |= {**asking, **OF_LEADER_WORKER_SET}
    await client.create(SETS, leaders, namespace="default")
    made = batch_job("batch", 3, gated=False, labels=asking, seconds=0.2)
    await client.create(BATCH, made, namespace="default")
    await client.create(NAMESPACES, {"metadata": {"name": "team", "labels": asking}})
    await client.create(SETS, stateful_set("web", 3, gated=False), namespace="team")

    async def runs() -> bool:
        web = (await client.list(PODS, label_selector="set=web")).items
        done = (await client.get(BATCH, "batch", namespace="default")).status.get("succeeded")
        ran_as_gang = all(names.JOB_UID in pod.metadata.labels for pod in web)
        bound = [bool(pod.spec.node_name) for pod in web] == [True] * 3
        return done == 3 and bound and ran_as_gang

    await until(runs)
    own = ("", "fairlead.dev", "scheduling.k8s.io", "admissionregistration.k8s.io")
    lookups = {right for right in granted() if right[0] not in own and right[2] == "get"}

    async def are_looked_up() -> bool:
        return lookups <= account.used

    with suppress(TimeoutError):  # which one is missing is said in the end
        await until(are_looked_up)
    await client.delete(SETS, "web", namespace="team")
    await client.delete(SETS, "x", namespace="default")
    for name in ("batch", "x-r-0"):
        await client.delete(BATCH, name, namespace="default")
    await client.delete_collection(PODS, label_selector=f"{names.GANG_SCHEDULING}=enabled",
                                   grace_period_seconds=0)  # fmt: skip


async def ask_archive(client: HttpClient, replica: ReplicaRun) -> None:
    """Ask for history as accounts that may list jobs, and without a token."""
    assert replica.webhook is not None
    url = f"https://127.0.0.1:{replica.webhook.port}/fairlead/v1/history"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = token_path(names.OWN_NAMESPACE)
    for path, code in ((token, 200), (token.replace(ACCOUNT, NAME), 200), ("", 401)):
        headers: dict[str, str] = {}
        if path:
            answer = await client.request("POST", path, body=msgspec.json.encode(body))
            headers[TOKEN_HEADER] = msgspec.json.decode(answer)["status"]["token"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers=headers, ssl=False) as said,
        ):
            assert said.status == code, await said.text()


#: A pool without a machine: it has a status, and nothing of it is bought or removed.
POOL = {"provider": {"type": "Static", "reference": "/nowhere"}, "max": 0,
        "template": {"resources": {"cpu": "1"}}}  # fmt: skip
#: Used only where machines are bought or removed, and where a team has intruders evicted
#: (`test_team_boundary.py`).
FOR_MACHINES = {("", "nodes", "delete")}
FOR_INTRUDERS = {("", "pods/eviction", "create")}
#: What everybody may read, by system:public-info-viewer.
PUBLIC = {("", "/version", "get")}


async def run_stored(client: HttpClient) -> None:
    """A member with a claim of its own, whose volume nobody makes."""
    await client.create(STORAGE_CLASSES, {
        "metadata": {"name": "seen"}, "provisioner": "disk.test",
        "volumeBindingMode": "WaitForFirstConsumer",
    })  # fmt: skip
    body = job_body("stored", 1, seconds=1)
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    template = {"metadata": {"name": "data"}, "spec": {**wanted, "storageClassName": "seen"}}
    body["spec"]["roles"][0]["volumeClaimTemplates"] = [template]
    await client.create(JOBS, body, namespace="default")

    async def is_made() -> bool:
        claims = (await client.list(CLAIMS, namespace="default")).items
        return [claim.metadata.name for claim in claims] == ["data-stored-worker-0"]

    await until(is_made)
    await client.patch(JOBS, "stored", {"spec": {"cancel": True}}, namespace="default")
    await ended(client, "stored")
    await client.delete(STORAGE_CLASSES, "seen")
    spec = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/seen"},
            "accessModes": ["ReadWriteOnce"]}  # fmt: skip
    await client.create(VOLUMES, {"metadata": {"name": "seen"}, "spec": spec})
    free = {"metadata": {"finalizers": None}}  # no controller that protects them is here
    await client.patch(CLAIMS, "data-stored-worker-0", free, namespace="default")
    await client.patch(VOLUMES, "seen", free)
    attached = {"attacher": "disk.test", "nodeName": "v00000",
                "source": {"persistentVolumeName": "seen"}}  # fmt: skip
    await client.create(VOLUME_ATTACHMENTS, {"metadata": {"name": "seen"}, "spec": attached})
    await client.delete(VOLUME_ATTACHMENTS, "seen")
    await client.create(CSI_NODES, {"metadata": {"name": "seen"}, "spec": {"drivers": []}})
    await client.delete(CSI_NODES, "seen")
    await client.delete(VOLUMES, "seen")


async def run_with_devices(client: HttpClient) -> None:
    """A job whose claim for devices has no template, and each of the kinds once."""
    body = job_body("deviced", 1, seconds=1, gpus=0)
    claim = {"name": "gpu", "resourceClaimTemplateName": "seen"}
    body["spec"]["roles"][0]["template"]["spec"]["resourceClaims"] = [claim]
    await client.create(JOBS, body, namespace="default")

    async def is_said() -> bool:
        verdict = (await client.get(JOBS, "deviced", namespace="default")).status.verdict
        return verdict is not None and verdict.reason == Reason.DEVICE_CLAIM_MISSING.value

    await until(is_said, 30)
    await client.patch(JOBS, "deviced", {"spec": {"cancel": True}}, namespace="default")
    await ended(client, "deviced")
    asked = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "seen"}}]}}
    pool = {"name": "seen", "generation": 1, "resourceSliceCount": 1}
    made: tuple[tuple[Resource[Any], dict[str, Any], str], ...] = (
        (DEVICE_CLASSES, {}, ""),
        (RESOURCE_SLICES, {"driver": "seen.example.com", "nodeName": "none", "pool": pool}, ""),
        (RESOURCE_CLAIM_TEMPLATES, {"spec": asked}, "default"),
        (RESOURCE_CLAIMS, asked, "default"),
    )
    for resource, spec, namespace in made:
        named = {"metadata": {"name": "seen"}, "spec": spec}
        await client.create(resource, named, namespace=namespace)
        await client.delete(resource, "seen", namespace=namespace)


async def run_life(client: HttpClient, account: Accountant) -> None:
    """Gangs, a restart, a hold, a job that deletes itself, names that others took, a hand-over."""
    rng = random.Random(3)
    async with watched(client), virtual_nodes(client, 50, seed=rng.randrange(99)) as nodes:
        others = {"containers": [{"name": "c", "image": "i"}]}
        made = {
            PODS: ("taken-pod-1-worker-0", {"spec": others}),
            CONFIG_MAPS: ("taken-map-1-gang", {"data": {}}),
            SERVICES: ("taken-service-peers", {"spec": {"ports": [{"port": 1}]}}),
            pod_groups(GroupApi.V1ALPHA2): (
                "taken-group-1",
                {"spec": {"schedulingPolicy": {"basic": {}}}},
            ),
        }
        for resource, (name, body) in made.items():
            body = {"metadata": {"name": name}, **body}
            await client.create(resource, body, namespace="default")
        async with operator(account, "first") as first:
            await serve(client, first)
            await spoil_certificate(client)
            await serve(client, first)  # the server trusts the new one
            await ask_archive(client, first)
            await run_guests(client, account)
            bodies = [
                job_body("gang", 40, seconds=2, notify=[{"on": ["Start"], "urlKey": "url"}]),
                job_body("gone", 2, seconds=0.2, ttlSecondsAfterFinished=0),
                job_body("wounded", 3, restart={"limit": 2, "backoffSeconds": 0}),
                job_body("held", 2),
                job_body("late", 51, seconds=0.1),
            ]
            (role,) = bodies[0]["spec"]["roles"]
            role["template"]["metadata"]["annotations"][names.MPI] = "true"
            taken = ("taken-pod", "taken-map", "taken-service", "taken-group")
            bodies += [job_body(name, 2, restart={"policy": "Never"}) for name in taken]
            for body in bodies:
                await client.create(JOBS, body, namespace="default")
            spec = {
                "indices": "0-3", "template": job_body("swept", 1, seconds=0.2)["spec"],
                "ttlSecondsAfterFinished": 0,
            }  # fmt: skip
            swept = {"metadata": {"name": "swept"}, "spec": spec}
            await client.create(JOB_ARRAYS, swept, namespace="default")

            async def run(name: str, count: int) -> bool:
                job = await client.get(JOBS, name, namespace="default")
                return job.status.members.running == count

            await until(lambda: run("wounded", 3))
            nodes.fail_pod(("default", "wounded-1-worker-1"))
            labels = {"metadata": {"labels": {"seen": "by-the-watch"}}}
            await client.patch(NODES, "v00000", labels)
            await client.create(PRIORITY_CLASSES, {"metadata": {"name": "seen"}, "value": 1})
            await client.delete(PRIORITY_CLASSES, "seen")
            team = {"metadata": {"name": "seen"}, "spec": {"shares": [{"nodes": 1}]}}
            await client.create(TEAMS, team)
            await client.create(NODE_POOLS, {"metadata": {"name": "seen"}, "spec": POOL})
            images = {"images": ["registry.example/seen:1"]}
            await client.create(IMAGE_SETS, {"metadata": {"name": "seen"}, "spec": images})

            async def are_reported() -> bool:
                seen = await client.get(TEAMS, "seen"), await client.get(NODE_POOLS, "seen")
                lacking = (await client.get(IMAGE_SETS, "seen")).status.lacking
                return bool(lacking) and all(each.status.conditions for each in seen)

            await until(are_reported)
            lease = {"metadata": {"name": "v00000"}, "spec": {"leaseDurationSeconds": 40}}
            await client.create(LEASES, lease, namespace=names.NODE_LEASES_NAMESPACE)
            await client.delete(IMAGE_SETS, "seen")

            async def is_examined() -> bool:
                reports = (await client.list(CLUSTER_REPORTS)).items
                return any(each.status.observed_at for each in reports)

            await until(is_examined)
            unmet = [{"nodes": 1}, {"nodes": 1, "nodeSelector": {"no": "such"}}]
            await client.patch(TEAMS, "seen", {"spec": {"shares": unmet}})
            await run_stored(client)
            await run_with_devices(client)
            quota = {"metadata": {"name": "seen"}, "spec": {"hard": {"services": "1k"}}}
            await client.create(RESOURCE_QUOTAS, quota, namespace="default")
            await client.delete(RESOURCE_QUOTAS, "seen", namespace="default")
            assert (await ended(client, "gang")).status.state == "Succeeded"
            for name in taken:
                job = await ended(client, name)
                assert job.status.state == "Failed", name
            await running(client, "wounded", 3, attempt=2)
            await succeed(client, nodes, "wounded")
            assert (await ended(client, "wounded")).status.attempt == 2
            await until(lambda: run("held", 2))
            await client.patch(JOBS, "held", {"spec": {"suspend": True}}, namespace="default")

            async def is_held() -> bool:
                job = await client.get(JOBS, "held", namespace="default")
                return job.status.state == "Held"

            await until(is_held)
        async with operator(account, "second") as second:
            await serve(client, second)
            await client.patch(JOBS, "held", {"spec": {"suspend": False}}, namespace="default")
            await until(lambda: run("held", 2))
            await client.patch(JOBS, "held", {"spec": {"cancel": True}}, namespace="default")
            await ended(client, "held")
            await client.patch(TEAMS, "seen", {"spec": {"shares": [{"nodes": 1}]}})

            async def is_counted() -> bool:
                """True once the second process has gone on counting an event of the first."""
                events = (await client.list(EVENTS, namespace="default")).items
                return any(event.reason == "SharesMet" and event.count > 1 for event in events)

            await until(is_counted)

            async def is_swept() -> bool:
                """An element that was refused at the start is tried again after a back-off."""
                return (await client.list(JOB_ARRAYS)).items == ()

            await until(is_swept)
            left = {job.metadata.name for job in (await client.list(JOBS)).items}
            assert "gone" not in left
            assert "late" in left
        await client.list(NODES)


async def test_the_controllers_need_every_right_that_they_are_given_and_no_other(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("history: {kind: postgres}\n")
    install(cluster, "--values", str(values))
    async with accountant(cluster, client) as account:
        try:
            await run_life(client, account)
        finally:
            await sweep(client)
        said = install(cluster, "--check", "--values", str(values))[1]
        configurations = [what for label, what in said.items() if "WebhookConf" in label]
        assert configurations == ["ok", "ok"], "what a replica has written differs in nothing"
        # asked of the server in the name of another request; the next test shows that it is
        finalizers = {
            ("fairlead.dev", f"{kind}/finalizers", "update") for kind in ("jobs", "jobarrays")
        }
        assert (account.used - PUBLIC) | finalizers | FOR_MACHINES | FOR_INTRUDERS == granted()
    install(cluster)


async def test_the_right_on_finalizers_is_what_lets_pods_name_their_job(
    cluster: ControlPlane, client: HttpClient
) -> None:
    install(cluster)
    owner = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Job", "name": "x", "uid": "u",
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    pod = {
        "metadata": {"name": "probe", "ownerReferences": [owner]},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
    }
    async with accountant(cluster, client) as account:
        await account.client.create(PODS, pod, namespace="default", dry_run=True)
        role = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{NAME}"
        less = [
            rule
            for rule in rules_of("ClusterRole")
            if "jobs/finalizers" not in rule.get("resources", ())
        ]
        patch = msgspec.json.encode({"rules": less})
        await client.request("PATCH", role, body=patch, content_type="application/merge-patch+json")

        async def is_refused() -> bool:
            try:
                await account.client.create(PODS, pod, namespace="default", dry_run=True)
            except Forbidden as error:
                return "blockOwnerDeletion" in error.message
            return False

        await until(is_refused)  # rights are cached for a moment
    install(cluster)


async def test_the_account_may_not_do_what_no_controller_does(
    cluster: ControlPlane, client: HttpClient
) -> None:
    install(cluster)
    async with accountant(cluster, client) as account:
        for path in ("/api/v1/secrets", "/api/v1/serviceaccounts", "/apis/apps/v1/replicasets"):
            with pytest.raises(Forbidden):
                await account.client.request("GET", path)
        admission = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        for path in (
            "/apis/coordination.k8s.io/v1/namespaces/fairlead-system/leases/other",
            "/api/v1/namespaces/fairlead-system/secrets/other",
            "/api/v1/namespaces/default/secrets/fairlead-webhook",
            f"{admission}/other",
        ):
            with pytest.raises(Forbidden):
                await account.client.request("GET", path)
        with pytest.raises(Forbidden):
            await account.client.request("DELETE", f"{admission}/fairlead")
