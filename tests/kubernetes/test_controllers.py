"""The controllers, unchanged, on a real API server, acting directly (spec.nodeName).

Virtual nodes play the kubelets. What every test ends with is the judgement of a witness that saw
every write: no node over-committed, no gang placed in part, no pod without a place.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane
from tests.kubernetes.operating import (
    controllers,
    ended,
    http_client,
    install_kinds,
    job_body,
    running,
    succeed,
    sweep,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Lease
from fairlead.api.kubernetes.pod_parts import EnvFromSource, EnvironmentReference
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import (
    CONFIG_MAPS,
    CRDS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    SERVICES,
)
from fairlead.api.schema import crd
from fairlead.api.status import Conflict, Invalid
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.embedded.virtual.stages.records import NodeFault
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import load_connection
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.leading.fencing import fence
from fairlead.runtime.leading.leader import LeaderTerm
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.observers.broken_promise import PromiseBroken

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of our own: others empty theirs between tests."""
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


async def test_the_server_accepts_our_kinds_and_finds_nothing_to_complain_about(
    client: HttpClient,
) -> None:
    for manifest in crd.manifests():
        stored = await client.get(CRDS, manifest["metadata"]["name"])
        conditions = {c["type"]: c for c in stored.status["conditions"]}
        assert conditions["Established"]["status"] == "True"
        assert conditions["NamesAccepted"]["status"] == "True"
        assert "NonStructuralSchema" not in conditions, conditions["NonStructuralSchema"]


async def test_the_server_itself_refuses_a_job_that_cannot_be(client: HttpClient) -> None:
    with pytest.raises(Invalid, match=r"spec\.roles"):
        await client.create(
            JOBS, {"metadata": {"name": "none"}, "spec": {"roles": []}}, namespace="default"
        )


async def test_the_server_stops_tracking_a_job_that_nobody_applies(client: HttpClient) -> None:
    applied = {**job_body("applied", 1), "apiVersion": names.API_VERSION, "kind": "Job"}
    await client.request(
        "PATCH",
        JOBS.path("default", "applied"),
        params={"fieldManager": "argo"},
        body=json.dumps(applied).encode(),
        content_type="application/apply-patch+yaml",
    )
    await client.create(JOBS, job_body("made", 1), namespace="default")
    async with virtual_nodes(client, 2), controllers(client):
        for name in ("applied", "made"):

            async def runs(name: str = name) -> bool:
                return (await client.get(JOBS, name, namespace="default")).status.attempt == 1

            await until(runs)
        managers = {
            name: json.loads(await client.request("GET", JOBS.path("default", name)))[
                "metadata"
            ].get("managedFields", [])
            for name in ("applied", "made")
        }
    assert managers["made"] == []
    assert "argo" in {each["manager"] for each in managers["applied"]}


async def test_a_gang_of_a_hundred_runs_to_its_end(client: HttpClient) -> None:
    async with (
        witnessed(client) as witness,
        virtual_nodes(client, 50) as nodes,
        controllers(client),
    ):
        body = job_body("gang", 100, gpus=4)
        await client.create(JOBS, body, namespace="default")
        job = await running(client, "gang", 100)
        pods = (await client.list(PODS)).items
        assert len(pods) == 100
        assert job.status.placement is not None
        places = job.status.placement.roles[0].nodes
        assert {p.spec.node_name for p in pods} == set(places)
        assert {int(p.metadata.labels[names.RANK]) for p in pods} == set(range(100))
        # what the read model does not know came through
        raw = await client.request("GET", PODS.path("default", pods[0].metadata.name))
        assert b'"runAsNonRoot":true' in raw
        # names exist before the pods: a headless service and what the members share
        of_gang = f"{names.JOB_NAME}=gang"
        service = (await client.list(SERVICES, label_selector=of_gang)).items
        [shared] = (await client.list(CONFIG_MAPS, label_selector=of_gang)).items
        assert len(service) == 1
        source = EnvFromSource(config_map_ref=EnvironmentReference(shared.metadata.name))
        assert {p.spec.containers[0].env_from for p in pods} == {(source,)}
        first = "worker-0.gang-peers.default.svc"
        assert (shared.data["WORLD_SIZE"], shared.data["MASTER_ADDR"]) == ("100", first)
        hosts = b64decode(shared.binary_data["hostfile"]).decode().splitlines()
        assert (hosts[0], len(hosts)) == (f"{first} slots=1", 100)
        await succeed(client, nodes, "gang")
        job = await ended(client, "gang")
        assert job.status.state == "Succeeded"
        assert job.status.attempt == 1
    assert witness.judge().checked > 300
    events = {
        e.reason for e in (await client.list(EVENTS)).items if e.involved_object.name == "gang"
    }
    assert "Placed" in events


async def test_a_lone_member_has_its_variables_and_its_host_file_in_its_pod(
    client: HttpClient,
) -> None:
    async with witnessed(client), virtual_nodes(client, 1), controllers(client):
        await client.create(JOBS, job_body("lone", 1, seconds=0.1), namespace="default")
        job = await ended(client, "lone")
        assert (job.status.state, job.status.placement) == ("Succeeded", None)
        [pod] = (await client.list(PODS)).items
        of_job = f"{names.JOB_NAME}=lone"
        assert (await client.list(CONFIG_MAPS, label_selector=of_job)).items == ()
    env = {each.name: each.value for each in pod.spec.containers[0].env}
    assert (env["MASTER_ADDR"], env["WORLD_SIZE"], env["RANK"]) == ("localhost", "1", "0")
    assert pod.spec.containers[0].env_from == ()
    [files] = [v.downward_api for v in pod.spec.volumes if v.downward_api is not None]
    assert [file.path for file in files.items] == ["hostfile"]
    assert pod.metadata.annotations[names.HOSTFILE] == "localhost slots=1\n"


async def test_two_gangs_that_each_want_every_node_run_one_after_the_other(
    client: HttpClient,
) -> None:
    async with witnessed(client), virtual_nodes(client, 50), controllers(client):
        async with asyncio.TaskGroup() as group:
            for name in ("first", "second"):
                body = job_body(name, 50, seconds=1)
                group.create_task(client.create(JOBS, body, namespace="default"))
        first = await ended(client, "first")
        second = await ended(client, "second")
        assert first.status.state == second.status.state == "Succeeded"
        assert first.status.attempt == second.status.attempt == 1
        spans = sorted((j.status.started_at, j.status.finished_at) for j in (first, second))
        assert spans[0][1] <= spans[1][0], "they ran at the same time"


async def test_a_gang_with_a_failing_member_restarts_whole(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 50) as nodes, controllers(client):
        body = job_body("wounded", 20, restart={"limit": 3, "backoffSeconds": 0})
        await client.create(JOBS, body, namespace="default")
        await running(client, "wounded", 20)
        nodes.fail_pod(("default", "wounded-1-worker-7"), exit_code=3)
        await running(client, "wounded", 20, attempt=2)
        await succeed(client, nodes, "wounded")
        job = await ended(client, "wounded")
        assert job.status.state == "Succeeded"
        assert job.status.attempt == 2
        assert job.status.user_failures == 1
        assert len(job.status.attempts) == 2


async def test_a_gang_survives_the_loss_of_its_node(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 20) as nodes, controllers(client):
        await client.create(JOBS, job_body("moved", 10), namespace="default")
        job = await running(client, "moved", 10)
        assert job.status.placement is not None
        lost = job.status.placement.roles[0].nodes[3]
        nodes.fail_node(lost)
        pod = "moved-1-worker-3"
        await client.delete(PODS, pod, namespace="default", grace_period_seconds=0)
        await running(client, "moved", 10, attempt=2)
        await succeed(client, nodes, "moved")
        job = await ended(client, "moved")
        assert job.status.state == "Succeeded"
        assert job.status.attempt == 2
        assert lost not in {n for a in job.status.attempts[-1:] for n in a.nodes_lost}


async def _create_late(client: HttpClient, job: Job) -> None:
    """Do what a leader does that was paused before its request and knows nothing since."""
    meta = job.metadata
    owner = {
        "apiVersion": names.API_VERSION, "kind": "Job", "name": meta.name, "uid": meta.uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    labels = {
        names.JOB_NAME: meta.name, names.JOB_UID: meta.uid, names.ROLE: "worker",
        names.INDEX: "4", names.RANK: "4", names.ATTEMPT: "1",
    }  # fmt: skip
    name = f"{meta.name}-1-worker-late"
    pod = {
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": "v00000", "containers": [{"name": "main", "image": "x"}]},
    }
    await client.create(PODS, pod, namespace="default")


async def test_a_pod_that_comes_too_late_for_its_job_is_deleted(client: HttpClient) -> None:
    """No witness here: for a moment the pod is one without a place, and it would say so."""
    async with virtual_nodes(client, 5), controllers(client):
        for name, spec in (("held", {"suspend": True}), ("cancelled", {"cancel": True})):
            await client.create(JOBS, job_body(name, 5), namespace="default")

            async def runs(name: str = name) -> bool:
                job = await client.get(JOBS, name, namespace="default")
                return job.status.members.running == 5

            await until(runs)
            await client.patch(JOBS, name, {"spec": spec}, namespace="default")

            async def is_quiet() -> bool:
                return all(pod.is_terminal for pod in (await client.list(PODS)).items)

            await until(is_quiet)
            await _create_late(client, await client.get(JOBS, name, namespace="default"))
            await until(is_quiet)


async def test_suspend_cancel_and_delete_leave_nothing_behind(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 20), controllers(client):
        for name in ("held", "cancelled", "deleted"):
            await client.create(JOBS, job_body(name, 5), namespace="default")

        async def all_run() -> bool:
            jobs = (await client.list(JOBS)).items
            return all(job.status.members.running == 5 for job in jobs)

        await until(all_run)
        await client.patch(JOBS, "held", {"spec": {"suspend": True}}, namespace="default")
        await client.patch(JOBS, "cancelled", {"spec": {"cancel": True}}, namespace="default")
        await client.delete(JOBS, "deleted", namespace="default")

        async def is_over() -> bool:
            jobs = {j.metadata.name: j for j in (await client.list(JOBS)).items}
            pods = {
                p.metadata.labels[names.JOB_NAME]
                for p in (await client.list(PODS)).items
                if not p.is_terminal
            }
            return "deleted" not in jobs and not pods

        await until(is_over)
        held = await client.get(JOBS, "held", namespace="default")
        assert (held.status.state, held.status.placement) == ("Held", None)
        cancelled = await client.get(JOBS, "cancelled", namespace="default")
        assert cancelled.status.state == "Cancelled"


async def test_a_member_that_cannot_go_keeps_its_own_node_and_no_other(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 4) as nodes, controllers(client):
        await client.create(JOBS, job_body("hangs", 4), namespace="default")
        await running(client, "hangs", 4)
        (_, stuck, *_) = (await client.list(PODS)).items
        nodes.fail_node(stuck.spec.node_name, NodeFault.UNREACHABLE, detect_seconds=86_400)
        await client.delete(JOBS, "hangs", namespace="default")
        await client.create(JOBS, job_body("next", 3), namespace="default")
        job = await running(client, "next", 3)
        assert stuck.spec.node_name not in nodes_of(job.status.placement)
        left = (await client.list(PODS, label_selector=f"{names.JOB_NAME}=hangs")).items
        assert [pod.metadata.uid for pod in left if not pod.is_terminal] == [stuck.metadata.uid]
        nodes.recover_node(stuck.spec.node_name)

        async def is_gone() -> bool:
            return [j.metadata.name for j in (await client.list(JOBS)).items] == ["next"]

        await until(is_gone)


async def test_a_credential_plugin_opens_the_door_and_is_run_again_after_a_401(
    cluster: ControlPlane, client: HttpClient, tmp_path: Path
) -> None:
    """The first token is one that the server refuses, as an old one would be."""
    answer = '{"apiVersion":"%s","kind":"ExecCredential","status":{"token":"%s"}}\n'
    version = "client.authentication.k8s.io/v1"
    program = tmp_path / "login"
    program.write_text(
        f"#!/bin/sh\necho run >>{tmp_path}/runs\n"
        f"if [ $(wc -l <{tmp_path}/runs) -gt 1 ]; then token={cluster.token}; fi\n"
        f"printf '{answer.strip()}' {version} \"${{token:-stale}}\"\n"
    )
    program.chmod(0o700)
    config = json.loads(cluster.kubeconfig().read_text())
    config["users"][0]["user"] = {
        "exec": {"apiVersion": version, "command": "./login", "interactiveMode": "Never"}
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    visitor = HttpClient(load_connection(path=path))
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(visitor.list(NODES))
    await visitor.close()
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "fairlead", "nodes", "--kubeconfig", str(path)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


async def test_a_placement_decided_before_the_fence_is_refused_after_it(
    client: HttpClient,
) -> None:
    async with virtual_nodes(client, 1):
        body = job_body("late", 1)
        await client.create(JOBS, body, namespace="default")
        job = await client.patch(
            JOBS, "late", {"status": {"attempt": 1}}, namespace="default", subresource="status"
        )
        lease = Lease(metadata=ObjectMeta(name="x", resource_version="1"))
        term = LeaderTerm(lease, asyncio.get_running_loop().time() + PATIENCE_SECONDS)
        mirror = Mirror(client, JOBS, clock=SystemClock(), rng=random.Random(2))
        assert await fence(client, mirror, term, rng=random.Random(1)) == 1
        assert names.FENCE in mirror.items()[0].metadata.annotations
        place = {"attempt": 1, "roles": [{"role": "worker", "nodes": ["v00000"]}]}
        late = {
            "metadata": {"resourceVersion": job.metadata.resource_version},
            "status": {"placement": place},
        }
        with pytest.raises(Conflict):
            await client.patch(JOBS, "late", late, namespace="default", subresource="status")


async def _overcommit(client: HttpClient) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "10"}}}
    async with witnessed(client), virtual_nodes(client, 1):
        for name in ("one", "two"):
            spec = {"nodeName": "v00000", "containers": [container]}
            await client.create(
                PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default"
            )


async def test_the_witness_would_see_an_overcommitted_node(client: HttpClient) -> None:
    """The canary: without it, a blind witness would pass every test."""
    with pytest.raises(PromiseBroken, match="node v00000 holds"):
        await _overcommit(client)


async def test_a_thousand_members_have_their_pods_each_on_its_node(client: HttpClient) -> None:
    async with witnessed(client), virtual_nodes(client, 1000), controllers(client) as pair:
        start = time.monotonic()
        await client.create(JOBS, job_body("thousand", 1000), namespace="default")

        async def made() -> bool:
            return len(pair.world.mirrors.pods) >= 1000

        await until(made)
        seconds = time.monotonic() - start
        pods = (await client.list(PODS)).items
        assert len({pod.spec.node_name for pod in pods}) == 1000
        print(f"1,000 members on 1,000 nodes, all in one process: {seconds:.2f} s")


async def test_a_gang_of_a_higher_class_takes_the_nodes_of_a_whole_gang_which_then_returns(
    client: HttpClient,
) -> None:
    classes = {"urgent": 1_000, "usual": 10}
    for name, value in classes.items():
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
    at_once = PlacementPolicy(preemption_min_run_seconds=0.0)

    async with (
        witnessed(client),
        virtual_nodes(client, 4) as nodes,
        controllers(client, placement=at_once),
    ):
        victims = ("victim-0", "victim-1")
        for name in victims:
            body = job_body(name, 2, priorityClassName="usual")
            await client.create(JOBS, body, namespace="default")

        async def both_run() -> bool:
            found = [await client.get(JOBS, name, namespace="default") for name in victims]
            return all(job.status.members.running == 2 for job in found)

        await until(both_run)
        urgent = job_body("urgent", 2, seconds=1, priorityClassName="urgent")
        await client.create(JOBS, urgent, namespace="default")
        done = await ended(client, "urgent")
        await until(both_run)
        for name in victims:
            await succeed(client, nodes, name)
        after = [await ended(client, name) for name in victims]
    for name in classes:
        await client.delete(PRIORITY_CLASSES, name)
    assert (done.status.state, len(done.status.attempts)) == ("Succeeded", 1)
    assert [victim.status.state for victim in after] == ["Succeeded", "Succeeded"]
    # One gang gave way, as a whole; the other one was not needed.
    ends = sorted([a.reason for a in victim.status.attempts] for victim in after)
    assert ends == [["Preempted", "Succeeded"], ["Succeeded"]]
