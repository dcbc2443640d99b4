"""Upgrades under load: from an earlier version to this one and back, and half-way of both.

FAIRLEAD_UPGRADE_GANGS gangs run through all of it, while others are submitted, placed and ended all
the time. A witness sees every write, as in the other tests of replicas.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.earlier_version import earlier_source
from tests.kubernetes.controlplane import ROOT, ControlPlane, find_binaries
from tests.kubernetes.operating import (
    ended,
    http_client,
    is_served,
    job_body,
    succeed,
    until,
    virtual_nodes,
)
from tests.kubernetes.outage_world import all_jobs, patiently_witnessed
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import Replica
from tests.kubernetes.rollout import Rollout, rollout, run_command
from tests.kubernetes.test_helm import run as run_helm
from tests.kubernetes.webhook_route import FLAG

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.resources import JOB_ARRAYS, JOBS, PODS
from fairlead.api.status import ApiError, TooManyRequests
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
GANGS = int(os.environ.get("FAIRLEAD_UPGRADE_GANGS", "6"))
#: Each takes a minute of the processor: without a size by hand, one has to do.
WAYS = ("chart", "command") if "FAIRLEAD_UPGRADE_GANGS" in os.environ else ("chart",)
#: Of each that runs through; two members fill a node, so that gangs share some.
MEMBERS, GPUS = 3, 4
#: Short gangs that end between two steps of an upgrade, and that are on their way at most.
BETWEEN, WAITING_MAX = 2, 8
VALUES = "binding: direct\nleaderElection: {leaseSeconds: 3}\n"
Bring = Callable[[Path], Coroutine[Any, Any, object]]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, flags=(FLAG,))


@dataclass
class Load:
    """Gangs that run through everything, and short ones that come and go."""

    client: HttpClient
    rng: random.Random
    submitted: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    #: UID and node of each pod of those that run through.
    steady: dict[str, tuple[str, str]] = field(default_factory=dict)
    is_over: bool = False

    async def begin(self) -> None:
        """Submit those that run through, and return once all their members run."""
        for number in range(GANGS):
            body = job_body(f"steady-{number:03d}", MEMBERS, gpus=GPUS)
            await self.client.create(JOBS, body, namespace="default")
        held = job_body("held", 2, gpus=GPUS, seconds=0.2, suspend=True)
        await self.client.create(JOBS, held, namespace="default")

        async def all_run() -> bool:
            jobs = await all_jobs(self.client)
            return sum(job.status.members.running for job in jobs) == GANGS * MEMBERS

        await until(all_run)
        self.steady = await self._steady_pods()

    async def run(self) -> None:
        """Submit short gangs until it is over; there is always something to place and to end."""
        while not self.is_over:
            waiting = [job for job in await self.short() if not job.is_finished]
            if len(waiting) < WAITING_MAX:
                name = f"short-{len(self.submitted):04d}"
                seconds, members = self.rng.uniform(0.1, 1.0), self.rng.randint(1, 4)
                body = job_body(name, members, gpus=GPUS, seconds=seconds)
                try:
                    await self.client.create(JOBS, body, namespace="default")
                except TooManyRequests:  # the server begins to serve another definition
                    pass
                except ApiError as error:
                    self.refused.append(f"{name}: {error}")
                else:
                    self.submitted.append(name)
            await asyncio.sleep(0.25)

    async def short(self) -> list[Job]:
        """Return the short gangs."""
        jobs = await all_jobs(self.client)
        return [job for job in jobs if job.metadata.name.startswith("short-")]

    async def goes_on(self, step: str) -> None:
        """Return once gangs that come after this step have ended well, and nothing else changed."""
        first, began = len(self.submitted), time.monotonic()

        async def have_ended() -> bool:
            later = self.submitted[first : first + BETWEEN]
            done = {job.metadata.name for job in await self.short() if job.is_finished}
            return len(later) == BETWEEN and done.issuperset(later)

        try:
            await until(have_ended)
        except TimeoutError:
            raise AssertionError(f"{step}: {[j.status for j in await self.short()][-3:]}") from None
        assert await self._steady_pods() == self.steady, step
        assert self.refused == [], step
        print(f"{step}: {BETWEEN} gangs later in {time.monotonic() - began:.1f} s")

    async def _steady_pods(self) -> dict[str, tuple[str, str]]:
        pods = (await self.client.list(PODS, label_selector=names.JOB_UID)).items
        return {
            pod.metadata.name: (pod.metadata.uid, pod.spec.node_name)
            for pod in pods
            if pod.metadata.name.startswith("steady-") and pod.status.phase == "Running"
        }


@asynccontextmanager
async def under_load(client: HttpClient) -> AsyncIterator[Load]:
    """Submit short gangs for the length of the block, once those that stay run."""
    load = Load(client, random.Random(6))
    await load.begin()
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        yield load
        load.is_over = True


async def replace_replicas(
    world: Rollout, load: Load, old: tuple[Replica, Replica], tree: Path, to: str
) -> tuple[Replica, Replica]:
    """Replace both replicas by those of a tree's version, one at a time; return the new ones."""
    first = await world.start(tree)
    assert await world.leader() in old
    await world.serve(first)
    await load.goes_on(f"{to}: its webhook with the controllers of the other version")
    await world.serve(*old)
    await load.goes_on(f"{to}: the webhook of the other version")
    await world.serve(*old, first)
    await load.goes_on(f"{to}: replicas of both versions answer")
    await world.serve(old[1], first)
    await world.end(old[0])
    second = await world.start(tree)
    await world.serve(first, second)
    await world.end(old[1])
    assert await world.leader() in (first, second)
    await load.goes_on(f"{to}: all replicas are of this version")
    return first, second


async def upgrade_and_go_back(
    world: Rollout, earlier: Path, bring: Bring, nodes: Any
) -> list[Job]:  # fmt: skip
    """Upgrade and go back under load; return how all jobs ended."""
    client = world.client
    replicas_ = await world.start(earlier), await world.start(earlier)
    await world.serve(*replicas_)
    async with under_load(client) as load:
        await load.goes_on("before")
        for tree, to in ((ROOT, "forth"), (earlier, "back")):
            await bring(tree)
            await load.goes_on(f"{to}: its definitions with replicas of the other version")
            replicas_ = await replace_replicas(world, load, replicas_, tree, to)
    for number in range(GANGS):
        await succeed(client, nodes, f"steady-{number:03d}")
    await client.patch(JOBS, "held", {"spec": {"suspend": False}}, namespace="default")
    steady = [f"steady-{number:03d}" for number in range(GANGS)]
    jobs = [await ended(client, name) for name in (*steady, "held", *load.submitted)]
    assert len(await all_jobs(client)) == len(jobs)
    print(f"{GANGS} gangs ran through, {len(load.submitted)} came and went")
    return jobs


@pytest.mark.parametrize("way", WAYS)
async def test_gangs_run_through_an_upgrade_and_back_and_half_way_of_both(
    cluster: ControlPlane, tmp_path: Path, way: str
) -> None:
    earlier = earlier_source(tmp_path / "earlier")
    values, client = tmp_path / "values.yaml", http_client(cluster)
    values.write_text(VALUES)
    access = ("--kubeconfig", str(cluster.kubeconfig()), "-n", OWN_NAMESPACE)
    helm = str(find_binaries() / "helm")

    async def by_chart(tree: Path) -> None:
        chart = str(tree / "deploy" / "helm" / "fairlead")
        command = ("upgrade", "--install", "fairlead", chart, "--create-namespace")
        if tree == earlier and await is_served(client, JOBS):
            command = ("rollback", "fairlead", "1")
        more = () if command[0] == "rollback" else ("--values", str(values))
        await asyncio.to_thread(run_helm, helm, *command, *more, *access, home=tmp_path)

    async def by_command(tree: Path) -> None:
        await run_command(tree, "install", "--values", str(values), *access)

    bring = by_chart if way == "chart" else by_command
    await bring(earlier)

    async def are_served() -> bool:
        return await is_served(client, JOBS) and await is_served(client, JOB_ARRAYS)

    await until(are_served)
    count = -(-GANGS * MEMBERS // 2) + 8
    try:
        async with (
            patiently_witnessed(client) as witness,
            virtual_nodes(client, count) as nodes,
            rollout(cluster, client, tmp_path) as world,
        ):
            jobs = await upgrade_and_go_back(world, earlier, bring, nodes)
        bad = [j for j in jobs if (j.status.state, j.status.attempt) != ("Succeeded", 1)]
        assert bad == []
        assert len(witness.judge().finished) == len(jobs)
    finally:
        await client.close()
