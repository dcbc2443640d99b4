"""`fairlead uninstall` on a real server: nothing left that waits for us, nothing lost unsaid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import http_client, is_served, job_body, until
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.test_install import accountant, install, operator, run_cli, serve
from tests.kubernetes.webhook_route import FLAG

from fairlead.api import names
from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.resources import CONFIG_MAPS, JOBS, NAMESPACES, NODE_POOLS, PODS
from fairlead.api.status import NotFound
from fairlead.install.manifests import NAME, Install, manifests, path_of
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
NAMESPACE_PATH = f"/api/v1/namespaces/{OWN_NAMESPACE}"
CONTAINERS = {"containers": [{"name": "c", "image": "i"}]}


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, flags=(FLAG,))


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    yield client
    await client.close()


@pytest.fixture
def asks_nobody(tmp_path: Path) -> tuple[str, ...]:
    """Arguments of an installation without the webhook, for whom nobody would answer here."""
    values = tmp_path / "values.yaml"
    values.write_text("webhook: {enabled: false}\n")
    return ("--values", str(values))


async def is_gone(client: HttpClient, path: str) -> bool:
    try:
        await client.request("GET", path)
    except NotFound:
        return True
    return False


async def all_gone(client: HttpClient) -> bool:
    gone = [await is_gone(client, path_of(each)) for each in manifests(Install())]
    return all(gone)


async def add_job(client: HttpClient, name: str, *finalizers: str) -> None:
    body = job_body(name, 1)
    body["metadata"]["finalizers"] = list(finalizers)
    await client.create(JOBS, body, namespace="default")


async def finalizers_of(client: HttpClient, name: str) -> tuple[str, ...]:
    return (await client.get(JOBS, name, namespace="default")).metadata.finalizers


async def test_jobs_are_neither_deleted_nor_left_waiting_unless_that_was_said(
    cluster: ControlPlane, client: HttpClient, asks_nobody: tuple[str, ...]
) -> None:
    install(cluster, *asks_nobody)
    await add_job(client, "one", names.JOB_FINALIZER, "example.com/other")
    gated = {**CONTAINERS, "schedulingGates": [{"name": names.GANG_GATE}, {"name": "a.com/b"}]}
    pod = {"metadata": {"name": "gated"}, "spec": gated}  # by hand, hence without our label
    await client.create(PODS, pod, namespace="default")
    install(cluster)

    done = run_cli(cluster, "uninstall", "--yes")
    assert done.returncode == 4
    assert "default/one" in done.stderr
    assert "--delete-jobs" in done.stderr
    done = run_cli(cluster, "uninstall", "--delete-jobs")
    assert done.returncode == 2, "it did not ask, and nobody could have answered"
    said = run_cli(cluster, "uninstall", "--keep-crds", "--dry-run").stdout
    assert "Job default/one: would lose its finalizer and stay" in said
    assert "Pod default/gated: would lose its gate" in said
    assert f"Namespace {OWN_NAMESPACE}: would be deleted" in said
    assert len(await finalizers_of(client, "one")) == 2, "a dry run wrote"

    done = run_cli(cluster, "uninstall", "--keep-crds", "--yes")
    assert done.returncode == 0, done.stderr
    assert await finalizers_of(client, "one") == ("example.com/other",)
    held = await client.get(PODS, "gated", namespace="default")
    assert [gate.name for gate in held.spec.scheduling_gates] == ["a.com/b"]
    await until(lambda: is_gone(client, NAMESPACE_PATH))
    assert await is_served(client, JOBS)


async def test_running_jobs_are_ended_by_the_controllers_before_these_go(
    cluster: ControlPlane, client: HttpClient
) -> None:
    install(cluster)
    async with accountant(cluster, client) as account, operator(account, "only") as replica:
        await serve(client, replica)
        await add_job(client, "running")

        async def is_taken() -> bool:
            return names.JOB_FINALIZER in await finalizers_of(client, "running")

        await until(is_taken)
        # nobody runs deployments here: say that the replicas are there, as they are
        status = {"status": {"replicas": 2, "availableReplicas": 2, "readyReplicas": 2}}
        await client.request(
            "PATCH", f"/apis/apps/v1/namespaces/{OWN_NAMESPACE}/deployments/{NAME}/status",
            body=msgspec.json.encode(status), content_type="application/merge-patch+json",
        )  # fmt: skip
        done = await asyncio.to_thread(run_cli, cluster, "uninstall", "--delete-jobs", "--yes")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[:2] == [
            "ValidatingWebhookConfiguration fairlead: deleted",
            "MutatingWebhookConfiguration fairlead: deleted",
        ]
        job = lines.index("Job default/running: deleted")
        assert all(line.startswith("ValidatingAdmissionPolicy") for line in lines[2:job])
        assert job > 2
        assert "Job default/running: finalizer removed" not in lines, "the controllers did that"
        assert lines[job + 1] == f"Deployment {OWN_NAMESPACE}/{NAME}: deleted"
        assert f"Secret {OWN_NAMESPACE}/fairlead-webhook: deleted" in lines
    await until(lambda: all_gone(client))


async def test_pods_are_let_in_at_every_moment_of_an_uninstallation(
    cluster: ControlPlane, client: HttpClient
) -> None:
    install(cluster)
    labels = {names.GANG_SCHEDULING: "enabled"}
    await client.create(NAMESPACES, {"metadata": {"name": "team", "labels": labels}})
    gated: list[bool] = []

    async def create_pods(is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            body = {"metadata": {"name": f"p{len(gated)}"}, "spec": CONTAINERS}
            made = await client.create(PODS, body, namespace="team")
            gated.append(bool(made.spec.scheduling_gates))

    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        async with accountant(cluster, client) as account:
            async with operator(account, "only") as replica:
                await serve(client, replica)
                creating = group.create_task(create_pods(is_over))
                await until(lambda: holds(len(gated) > 5))
                removing = group.create_task(
                    asyncio.to_thread(run_cli, cluster, "uninstall", "--yes")
                )
                deployment = f"/apis/apps/v1/namespaces/{OWN_NAMESPACE}/deployments/{NAME}"
                await until(lambda: is_gone(client, deployment))
            # the replica ends, as its kubelet would have it; the uninstallation goes on
            done = await removing
        count = len(gated)
        await until(lambda: holds(len(gated) > count + 5))
        is_over.set()
        await creating
    assert done.returncode == 0, done.stderr
    assert gated[0]
    assert not gated[-1]
    left = (await client.list(PODS, namespace="team")).items
    assert [pod.metadata.name for pod in left if pod.spec.scheduling_gates] == []


async def holds(is_so: bool) -> bool:
    return is_so


async def test_without_controllers_it_frees_the_jobs_itself_and_may_be_repeated(
    cluster: ControlPlane, client: HttpClient, asks_nobody: tuple[str, ...]
) -> None:
    install(cluster, *asks_nobody)
    for name in ("a", "b"):
        await add_job(client, name, names.JOB_FINALIZER)
    install(cluster)
    # half gone already: somebody began by hand
    for each in manifests(Install()):
        if each["kind"] in ("ClusterRole", "Deployment"):
            await client.request("DELETE", path_of(each))
    await client.delete(JOBS, "a", namespace="default")
    done = run_cli(cluster, "uninstall", "--delete-jobs", "--yes")
    assert done.returncode == 0, done.stderr
    await until(lambda: all_gone(client))
    done = run_cli(cluster, "uninstall", "--yes")
    assert (done.returncode, done.stdout) == (0, "")
    assert "Nothing of Fairlead was there." in done.stderr
    code, said = install(cluster)
    assert (code, set(said.values())) == (0, {"created"})


async def test_node_pools_are_held_by_the_controllers_and_freed_where_none_runs(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    install(cluster)
    inventory = tmp_path / "machines.json"
    inventory.write_text('{"machines": []}')
    spec = {
        "provider": {"type": "Static", "reference": str(inventory)}, "max": 4,
        "template": {"resources": {"cpu": "8"}},
    }  # fmt: skip

    async def is_held(name: str) -> bool:
        return names.POOL_FINALIZER in (await client.get(NODE_POOLS, name)).metadata.finalizers

    async with accountant(cluster, client) as account, operator(account, "only") as replica:
        await serve(client, replica)
        for name in ("gone", "left"):
            await client.create(NODE_POOLS, {"metadata": {"name": name}, "spec": spec})
            await until(lambda name=name: is_held(name))
        await client.delete(NODE_POOLS, "gone")
        await until(lambda: is_gone(client, NODE_POOLS.path("", "gone")))
    await client.delete(NODE_POOLS, "left")
    assert await is_held("left"), "no controller runs that could say what becomes of its machines"
    said = run_cli(cluster, "uninstall", "--dry-run").stdout
    assert "NodePool left: would lose its finalizer; 0 nodes of it stay, unmanaged" in said
    done = run_cli(cluster, "uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert "NodePool left: finalizer removed; 0 nodes of it stay, unmanaged" in done.stdout
    await until(lambda: all_gone(client))


async def test_what_others_made_stays(cluster: ControlPlane, client: HttpClient) -> None:
    body = {"metadata": {"name": "fairlead-view"}, "rules": []}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    await client.request("POST", path, body=msgspec.json.encode(body))
    install(cluster)
    labels = {"metadata": {"labels": {"app.kubernetes.io/part-of": None}}}
    await client.request("PATCH", f"{path}/fairlead-view", body=msgspec.json.encode(labels),
                         content_type="application/merge-patch+json")  # fmt: skip
    await client.create(CONFIG_MAPS, {"metadata": {"name": "theirs"}}, namespace=OWN_NAMESPACE)
    done = run_cli(cluster, "uninstall", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"Namespace {OWN_NAMESPACE}: kept: configmaps/theirs" in done.stdout
    assert not await is_gone(client, f"{path}/fairlead-view")
    assert not await is_gone(client, f"{NAMESPACE_PATH}/configmaps/theirs")
