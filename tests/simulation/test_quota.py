"""Two tenants on one cluster: the pods of one are refused, and the other does not notice.

Most tests have the client of the controllers refuse pods, which can do so in other words than a
ResourceQuota; the last ones have one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import find_condition
from fairlead.api.resources import CRDS, JOBS, NAMESPACES, PODS, RESOURCE_QUOTAS
from fairlead.api.schema import crd
from fairlead.api.status import ApiError, Forbidden, InternalError
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.job_index import JobsMirrors
from fairlead.controllers.gangs.jobs import JobsController
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import Recorder
from fairlead.runtime.loop import ControllerLoop
from fairlead.sim.loop import run
from fairlead.sim.setup.workload import job_body
from fairlead.testing.builders import EPOCH

GPUS = "requests.nvidia.com/gpu"
QUOTA = 'pods "a" is forbidden: exceeded quota: team, requested: pods=1, used: pods=0, limited: '
WEBHOOK = 'admission webhook "x.example" denied the request: an error of its own'
UNREACHABLE = 'failed calling webhook "x.example": context deadline exceeded'
SECURITY = 'pods "a" is forbidden: violates PodSecurity "restricted:latest": allowPrivilege'


class Quota(InProcessClient):
    """Refuses pods of namespace `refused` beyond `room`, dry runs included."""

    words = QUOTA
    error: type[ApiError] = Forbidden
    room = 0
    asked = 0

    def __init__(self, service: ApiService) -> None:
        super().__init__(service)
        #: Pods that were made and not deleted.
        self.taken: set[str] = set()
        self.in_flight = 0

    async def call(self, request: Request[Any]) -> Any:
        is_limited = request.resource.plural == "pods" and request.namespace == "refused"
        if is_limited and request.verb is RequestVerb.CREATE:
            return await self._create(request)
        answer = await super().call(request)
        if is_limited and request.verb is RequestVerb.DELETE:
            self.taken.discard(request.name)
        return answer

    async def _create(self, request: Request[Any]) -> Any:
        self.asked += request.dry_run
        if len(self.taken) + self.in_flight >= self.room:
            raise self.error(self.words)
        self.in_flight += 1
        try:
            made = await super().call(request)
        finally:
            self.in_flight -= 1
        if not request.dry_run:
            self.taken.add(made.metadata.name)
        return made


class Cluster:
    starvation_seconds = PlacementPolicy().starvation_seconds

    def __init__(self) -> None:
        self.clock = LoopClock(EPOCH)
        rng = random.Random(1)
        self.service = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
        )  # fmt: skip
        self.client = Quota(self.service)
        profile = load_profile("instant")
        self.nodes = VirtualNodes(
            self.client, NodeFleet(2, profile.node), profile, clock=self.clock, rng=rng
        )

    async def submit(self, name: str, namespace: str, *, members: int, seconds: float) -> None:
        body = job_body(name, members=members, gpus=8, run_seconds=seconds)
        body["metadata"]["namespace"] = namespace
        await self.client.create(JOBS, body, namespace=namespace)

    async def job(self, name: str, namespace: str = "refused") -> Job:
        return await self.client.get(JOBS, name, namespace=namespace)

    async def pods(self) -> tuple[Pod, ...]:
        return (await self.client.list(PODS, namespace="refused")).items

    async def run(self, main: Callable[[Cluster], Awaitable[None]]) -> None:
        await self.service.bootstrap()
        for manifest in crd.manifests():
            await self.client.create(CRDS, manifest)
        for name in ("refused", "other"):
            await self.client.create(NAMESPACES, {"metadata": {"name": name}})
        await self.nodes.start()
        rng, policy = random.Random(2), JobsPolicy()
        events = Recorder(self.client, self.clock, "fairlead", rng=rng)
        scheduler = SchedulerController(
            self.client, ClusterWorld.make(self.client, clock=self.clock, rng=rng), events=events,
            policy=PlacementPolicy(starvation_seconds=self.starvation_seconds),
        )  # fmt: skip
        jobs = JobsController(
            self.client, ClusterWorld.make(self.client, clock=self.clock, rng=rng),
            JobsMirrors.make(self.client, policy, clock=self.clock, rng=rng),
            history=MemoryHistory(), events=events, policy=policy, clock=self.clock,
            keys=rng,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            loops = [ControllerLoop(c, clock=self.clock, rng=rng).run() for c in (scheduler, jobs)]
            parts = (self.service.run(), self.nodes.run(), events.run(), *loops)
            tasks = [group.create_task(part) for part in parts]
            await asyncio.sleep(2)
            await main(self)
            for task in tasks:
                task.cancel()


def play(main: Callable[[Cluster], Awaitable[None]]) -> None:
    async def body() -> None:
        await Cluster().run(main)

    run(body())


@pytest.mark.parametrize(
    ("error", "words", "reason"),
    [
        (Forbidden, QUOTA, "QuotaExceeded"),
        (Forbidden, SECURITY, "PolicyRefused"),
        (InternalError, WEBHOOK, "PolicyRefused"),
        (InternalError, UNREACHABLE, "PodHeldBack"),
    ],
)
def test_a_tenant_without_quota_holds_nothing_and_holds_up_nobody(
    error: type[ApiError], words: str, reason: str
) -> None:
    async def main(cluster: Cluster) -> None:
        cluster.client.words, cluster.client.error = words, error
        await cluster.submit("greedy", "refused", members=2, seconds=60)
        await asyncio.sleep(90 if error is InternalError else 5)
        greedy = await cluster.job("greedy")
        assert greedy.status.attempts, "it was never tried"
        assert greedy.status.placement is None
        assert greedy.status.verdict is not None
        assert greedy.status.verdict.reason == reason
        assert words[-20:] in str(greedy.status.verdict.facts["message"])
        for hour in range(3):
            await cluster.submit(f"honest-{hour}", "other", members=2, seconds=600)
            await asyncio.sleep(10)
            honest = await cluster.job(f"honest-{hour}", "other")
            assert honest.status.state == "Running"
            await asyncio.sleep(3590)
        greedy = await cluster.job("greedy")
        assert not greedy.is_finished
        assert (greedy.status.infrastructure_failures, len(greedy.status.attempts)) == (0, 1)
        assert 10 < cluster.client.asked < 60, "dry runs, ever more rarely"
        assert await cluster.pods() == ()
        cluster.client.room = 2
        await asyncio.sleep(310)
        greedy = await cluster.job("greedy")
        assert greedy.status.attempt == 2
        assert greedy.status.state in ("Running", "Succeeded")

    play(main)


def test_a_gang_that_has_room_for_a_part_gives_all_of_it_back() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.client.room = 1
        await cluster.submit("half", "refused", members=2, seconds=60)
        held = 0
        for _ in range(3600):
            await asyncio.sleep(1)
            job = await cluster.job("half")
            held += job.status.placement is not None
            admitted = find_condition(job.status.conditions, names.ADMITTED)
            if job.status.placement is None and admitted and admitted.status == "False":
                assert await cluster.pods() == ()
        assert len((await cluster.job("half")).status.attempts) > 5, "it goes on trying"
        assert held < 360, f"it held the nodes for {held} of 3600 s"

    play(main)


def test_the_head_of_the_queue_waits_for_its_quota_and_keeps_no_nodes() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.client.room = 99  # only the quota refuses

        async def reason(name: str, namespace: str) -> str:
            verdict = (await cluster.job(name, namespace)).status.verdict
            return "" if verdict is None else verdict.reason

        quota = {"metadata": {"name": "one-node"}, "spec": {"hard": {GPUS: "8"}}}
        await cluster.client.create(RESOURCE_QUOTAS, quota, namespace="refused")
        await cluster.submit("running", "other", members=1, seconds=30)
        await asyncio.sleep(5)
        await cluster.submit("head", "refused", members=2, seconds=60)
        await asyncio.sleep(5)
        assert await reason("head", "refused") == "AwaitingQuota"
        await cluster.submit("small", "other", members=1, seconds=10)
        await asyncio.sleep(15)
        assert (await cluster.job("small", "other")).is_finished
        wider = {"spec": {"hard": {GPUS: "16"}}}
        await cluster.client.patch(RESOURCE_QUOTAS, "one-node", wider, namespace="refused")
        await asyncio.sleep(60)
        assert (await cluster.job("head")).status.state == "Running"
        (listed,) = (await cluster.client.list(RESOURCE_QUOTAS, namespace="refused")).items
        assert listed.status.used == {GPUS: "16"}
        await asyncio.sleep(60)
        assert (await cluster.job("head")).is_finished
        (listed,) = (await cluster.client.list(RESOURCE_QUOTAS, namespace="refused")).items
        assert listed.status.used == {GPUS: "0"}

    class Strict(Cluster):
        starvation_seconds = 0.0

    async def body() -> None:
        await Strict().run(main)

    run(body())


def test_a_gang_beyond_its_quota_is_refused_by_the_embedded_api_itself() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.client.room = 99
        quota = {"metadata": {"name": "one-pod"}, "spec": {"hard": {"pods": "1"}}}
        await cluster.client.create(RESOURCE_QUOTAS, quota, namespace="refused")
        await cluster.submit("greedy", "refused", members=2, seconds=60)
        await asyncio.sleep(5)
        greedy = await cluster.job("greedy")
        assert greedy.status.placement is None
        assert greedy.status.verdict is not None
        assert greedy.status.verdict.reason in ("QuotaExceeded", "AwaitingQuota")
        assert await cluster.pods() == ()

    play(main)
