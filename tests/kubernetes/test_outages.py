"""A part of the control plane dies by signal 9 in the middle of the work, and comes back."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    controllers,
    http_client,
    install_kinds,
    job_body,
    until,
    virtual_nodes,
)
from tests.kubernetes.outage_world import (
    all_jobs,
    client_of,
    counted,
    each_member_has_its_pod,
    equal_to_the_server,
    eventually,
    patient,
    patiently_witnessed,
    proxied,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import LEASE_SECONDS, leader, replicas
from tests.kubernetes.test_leader import submit

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS, PODS
from fairlead.api.status import Timeout
from fairlead.kube.client import HttpClient
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.watching.mirror import Change

pytestmark = pytest.mark.kubernetes
GANGS, MEMBERS = 10, 100


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


async def pod_count(client: HttpClient) -> int:
    return len((await client.list(PODS, label_selector=names.JOB_UID)).items)


@pytest.mark.parametrize("victim", ["etcd", "kube-apiserver"])
async def test_a_thousand_pods_are_made_once_though_the_server_is_killed_meanwhile(
    cluster: ControlPlane, victim: str
) -> None:
    client, acting, kubelets = http_client(cluster), client_of(cluster), client_of(cluster)
    await install_kinds(client)
    with ExitStack() as revived:
        async with (
            patiently_witnessed(client),
            virtual_nodes(patient(kubelets), GANGS * MEMBERS // 2),
            controllers(acting) as pair,
        ):
            for i in range(GANGS):
                body = job_body(f"gang-{i}", MEMBERS, gpus=4, seconds=3600)
                await client.create(JOBS, body, namespace="default")

            async def is_in_the_middle() -> bool:
                return await pod_count(client) > GANGS * MEMBERS // 5

            await eventually(is_in_the_middle)
            cluster.kill(victim)
            await asyncio.sleep(1.0)
            cluster.revive(revived, victim)

            async def all_run() -> bool:
                jobs = await all_jobs(client)
                return all(job.status.members.running == MEMBERS for job in jobs)

            await eventually(all_run)
            await each_member_has_its_pod(client, GANGS * MEMBERS)
            for controller in (pair.jobs, pair.scheduler):
                await equal_to_the_server({m.kind: m for m in controller.mirrors}, client)
    for each in (acting, kubelets, client):
        await each.close()


@pytest.mark.parametrize("victim", ["etcd", "kube-apiserver"])
async def test_gangs_end_well_though_the_server_freezes_and_does_late_what_it_was_asked(
    cluster: ControlPlane, victim: str
) -> None:
    """SIGSTOP: connections stand, requests are taken in, and carried out when it wakes up."""
    rng = random.Random(12)
    client, kubelets = http_client(cluster), patient(client_of(cluster))
    acting = client_of(cluster, options=HttpOptions(request_seconds=1.0, stream_idle_seconds=5.0))
    counts = counted(acting)

    def given_up() -> list[Any]:
        return [each for each in counts.failed(Timeout) if each.verb in ("create", "patch")]

    await install_kinds(client)
    async with (
        patiently_witnessed(client) as witness,
        virtual_nodes(kubelets, 30),
        controllers(acting) as pair,
    ):
        names_: list[str] = []
        freezes = itertools.count()
        while (freeze := next(freezes)) < 4 or not given_up():
            assert freeze < 20, "no freeze met a write"
            names_ += await submit(client, 6, rng, first=6 * freeze)
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            cluster.signal(victim, signal.SIGSTOP)
            await asyncio.sleep(rng.uniform(1.5, 3.0))
            cluster.signal(victim, signal.SIGCONT)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        for name in names_:
            job = await finished(client, name)
            assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
        for controller in (pair.jobs, pair.scheduler):
            await equal_to_the_server({m.kind: m for m in controller.mirrors}, client)
    print(f"{victim} frozen: {len(given_up())} writes given up")
    assert len(witness.judge().finished) == len(names_)
    for each in (acting, kubelets, client):
        await each.close()


async def test_replicas_lose_the_lease_with_the_server_and_one_of_them_goes_on_when_it_is_back(
    cluster: ControlPlane,
) -> None:
    """Away for longer than the lease, again and again, while gangs are placed, made and ended."""
    rng = random.Random(11)
    client, kubelets = http_client(cluster), patient(client_of(cluster))
    await install_kinds(client)
    with ExitStack() as revived:
        async with (
            patiently_witnessed(client) as witness,
            virtual_nodes(kubelets, 30),
            replicas(cluster) as world,
        ):
            for _ in range(2):
                await world.start()
            await leader(client, world)
            names_: list[str] = []
            for outage in range(3):
                names_ += await submit(client, 8, rng, first=8 * outage)
                await asyncio.sleep(rng.uniform(0.0, 1.0))
                cluster.kill("kube-apiserver")
                await asyncio.sleep(LEASE_SECONDS * rng.uniform(0.3, 1.5))
                cluster = cluster.revive(revived, "kube-apiserver")
                await all_jobs(client)
            for name in names_:
                job = await finished(client, name)
                assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
            for replica in world.running:
                assert replica.process.returncode is None
                assert not replica.said("Service crashed")
    assert len(witness.judge().finished) == len(names_)
    await kubelets.close()
    await client.close()


async def finished(client: HttpClient, name: str) -> Job:
    """Return the job once it has ended; a server that gives no answer is asked again."""
    found: list[Job] = []

    async def is_over() -> bool:
        found[:] = [await client.get(JOBS, name, namespace="default")]
        return found[0].is_finished

    await eventually(is_over)
    return found[0]


async def test_watchers_that_were_cut_off_during_a_compaction_list_again_and_miss_nothing(
    cluster: ControlPlane,
) -> None:
    client = http_client(cluster)
    await install_kinds(client)
    seen: dict[str, list[str]] = {"made": [], "gone": []}

    def note(change: Change[Any]) -> None:
        if change.old is None or change.new is None:
            seen["made" if change.old is None else "gone"].append(change.key[1])

    with ExitStack() as revived:
        async with proxied(cluster) as proxy:
            acting = client_of(cluster, proxy)
            async with controllers(acting) as pair:
                for number in range(40):
                    await client.create(PODS, bare_pod(f"early-{number:02d}"), namespace="default")
                awake = [m for m in pair.scheduler.mirrors if not m.options.is_dormant]
                mirrors = {m.kind: m for m in awake}
                await equal_to_the_server(mirrors, client)
                mirrors["Pod"].on_change(note)
                seen["made"].clear()
                counts = counted(acting)
                proxy.refuses = True
                proxy.cut()
                for number in range(20):
                    name = f"early-{number:02d}"
                    await client.delete(PODS, name, namespace="default", grace_period_seconds=0)
                    await client.create(PODS, bare_pod(f"late-{number:02d}"), namespace="default")
                # The server's own memory of events would do; so it must not have one.
                cluster.kill("kube-apiserver")
                cluster.compact()
                cluster.revive(revived, "kube-apiserver")
                await all_jobs(client)
                proxy.refuses = False
                await equal_to_the_server(mirrors, client)
                assert seen == {
                    "made": [f"late-{number:02d}" for number in range(20)],
                    "gone": [f"early-{number:02d}" for number in range(20)],
                }

                async def all_have_listed() -> bool:
                    return counts.of("list") >= len(mirrors)

                await until(all_have_listed)
                assert counts.of("list") <= len(pair.jobs.mirrors) + len(mirrors)
            await acting.close()
    await client.close()


def bare_pod(name: str) -> dict[str, Any]:
    """A pod of nobody's."""
    container = {"name": "main", "image": "registry.example/other:1"}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}
