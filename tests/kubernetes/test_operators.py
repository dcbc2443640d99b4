"""Gangs of other tools, made by the tools themselves beside kube-scheduler and our controllers.

Their managers run as processes, with their kinds and webhooks. Pods are gated by our webhook, as
their namespace says, and run by virtual kubelets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from tests.e2e.cli_world import Shell
from tests.kubernetes.adopting import TOOLS, adopting
from tests.kubernetes.controlplane import ControlPlane, free_ports
from tests.kubernetes.gang_objects import (
    JOB_SET,
    KINDS,
    KUEUE_OBJECTS,
    LEADER_WORKER_SET,
    MPI_JOB,
    RAY_CLUSTER,
    RAY_JOBS,
    RUNTIME,
    RUNTIMES,
    TRAIN_JOB,
    Kind,
    pod_of_group,
    queued,
    ray_job,
)
from tests.kubernetes.operating import (
    http_client,
    install_kinds,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.operators import find_operators, start_operators
from tests.kubernetes.own_plane import WITHOUT, own_plane
from tests.kubernetes.test_own_webhook import ENABLED, OWN, configure, in_force, webhook

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import EVENTS, JOBS, NAMESPACES, PODS
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.kube.client import HttpClient
from fairlead.runtime.client import Propagation

pytestmark = [pytest.mark.kubernetes, pytest.mark.asyncio(loop_scope="module")]
NODES_COUNT = 8
SPACE = "opted-in"


@dataclass(slots=True)
class Dashboard:
    """In the place of the dashboard of every Ray cluster: its jobs are in the state that is set."""

    port: int
    state: str = "RUNNING"

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Serve as the proxy through which KubeRay reaches the heads of its clusters."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        yield
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        return web.json_response({"job_id": request.path.rpartition("/")[2], "status": self.state})


@pytest.fixture(scope="module")
def dashboard() -> Dashboard:
    (port,) = free_ports(1)
    return Dashboard(port)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, dashboard: Dashboard
) -> Iterator[ControlPlane]:
    proxy = f"http://127.0.0.1:{dashboard.port}"
    for plane in own_plane(tmp_path_factory, scheduler=True, controllers=TOOLS):
        with ExitStack() as stack:
            start_operators(stack, plane, *find_operators(plane), proxy=proxy)
            yield plane


@dataclass(frozen=True, slots=True)
class World:
    """What runs for all tests of this module."""

    client: HttpClient
    nodes: VirtualNodes
    shell: Shell
    dashboard: Dashboard
    operators: tuple[str, ...]

    def need(self, *operators: str) -> None:
        """Skip the test unless these managers run."""
        for name in operators:
            if name not in self.operators:
                pytest.skip(f"{WITHOUT}: {name} not built: tools/kubernetes/build.sh --operators")

    async def create(self, kind: Kind, name: str, workers: int) -> None:
        await self.client.create(kind.resource, kind.make(name, workers), namespace=SPACE)

    async def pods(self) -> list[Pod]:
        """All pods that are not about to go."""
        pods = (await self.client.list(PODS, namespace=SPACE)).items
        return [pod for pod in pods if pod.metadata.deletion_timestamp is None]

    async def running(self, count: int) -> dict[str, Pod]:
        """Return the pods by name once so many run, and no other is there."""

        async def do_run() -> bool:
            pods = await self.pods()
            return len(pods) == count and all(pod.status.phase == "Running" for pod in pods)

        await self.until(do_run)
        return {pod.metadata.name: pod for pod in await self.pods()}

    async def job(self, owner_kind: str, name: str) -> Job:
        """Return the job that represents the gang of an owner, once there is one."""
        found: list[Job] = []

        async def is_there() -> bool:
            jobs = (await self.client.list(JOBS, namespace=SPACE)).items
            adopts = [(job, job.spec.adopts) for job in jobs]
            found[:] = [j for j, a in adopts if a and (a.kind, a.name) == (owner_kind, name)]
            return bool(found)

        await self.until(is_there)
        assert len(found) == 1
        return found[0]

    async def done(self, kind: Kind, name: str) -> None:
        """Return once the tool itself says that its gang runs, or has ended well."""

        async def is_done() -> bool:
            thing = await self.client.get(kind.resource, name, namespace=SPACE)
            return kind.is_done(thing.status)

        await self.until(is_done)

    async def until(self, condition: Any) -> None:
        try:
            await until(condition)
        except TimeoutError:
            pods = [(p.metadata.name, p.status.phase, p.spec.node_name) for p in await self.pods()]
            jobs = [
                (j.metadata.name, j.status.state, j.status.verdict)
                for j in (await self.client.list(JOBS, namespace=SPACE)).items
            ]
            raise AssertionError(f"{pods}\n{jobs}") from None

    def end(self, *pods: str) -> None:
        """Let pods end well."""
        for name in pods:
            self.nodes.fail_pod((SPACE, name), exit_code=0)

    async def delete(self, kind: Kind, name: str) -> None:
        """Delete a tool's object; return once no pod is left, and no job of ours."""
        await self.remove(kind, name)
        await self.empty()

    async def remove(self, kind: Kind, name: str) -> None:
        """Delete a tool's object, with what it owns."""
        await self.client.delete(
            kind.resource, name, namespace=SPACE, propagation=Propagation.BACKGROUND
        )

    async def empty(self) -> None:
        """Return once no pod is left, and no job of ours."""

        async def is_gone() -> bool:
            pods = (await self.client.list(PODS, namespace=SPACE)).items
            return not pods and not (await self.client.list(JOBS, namespace=SPACE)).items

        await self.until(is_gone)

    async def why(self, name: str) -> str:
        result = await asyncio.to_thread(self.shell.run, "why", name, "-n", SPACE)
        return result.out


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    cluster: ControlPlane, dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Run everything in one task; our promises are judged when it ends."""
    made: asyncio.Future[World] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()
    shell = Shell(tmp_path_factory.mktemp("shell"))
    shell.environment["FAIRLEAD_KUBECONFIG"] = str(cluster.kubeconfig())

    async def run() -> None:
        client, operators = http_client(cluster), find_operators(cluster)
        await install_kinds(client)
        for name, labels in ((OWN, {}), (SPACE, ENABLED), ("plain", {})):
            await client.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        async with (
            witnessed(client), webhook(client) as running,
            virtual_nodes(client, NODES_COUNT) as nodes, adopting(client), dashboard.listening(),
        ):  # fmt: skip
            await configure(client, running.webhook.port)
            await in_force(client)
            if "trainer" in operators:
                await client.create(RUNTIMES, RUNTIME)
            for resource, body in KUEUE_OBJECTS if "kueue" in operators else ():
                await client.create(resource, body, namespace=SPACE if resource.namespaced else "")
            made.set_result(World(client, nodes, shell, dashboard, operators))
            await over.wait()
        await client.close()

    task = asyncio.create_task(run())
    await asyncio.wait((task, made), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    yield made.result()
    over.set()
    await task


def nodes_of(pods: dict[str, Pod]) -> list[str]:
    return sorted(pod.spec.node_name for pod in pods.values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
async def test_a_gang_runs_whole_and_its_tool_sees_it_through(world: World, kind: Kind) -> None:
    world.need(*kind.operators)
    await world.create(kind, "train", 6)
    pods = await world.running(7)
    assert len(dict.fromkeys(nodes_of(pods))) == 7
    job = await world.job(kind.owner_kind, "train")
    assert (job.member_count, job.status.attempt) == (7, 1)
    assert {pod.metadata.labels[names.JOB_UID] for pod in pods.values()} == {job.metadata.uid}
    if kind.ends:
        world.end(*(name for name in pods if kind is not MPI_JOB or "launcher" in name))
        await world.done(kind, "train")

        async def is_told() -> bool:
            return (await world.job(kind.owner_kind, "train")).is_finished

        await world.until(is_told)
        job = await world.job(kind.owner_kind, "train")
        assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
    else:
        await world.done(kind, "train")
    await world.delete(kind, "train")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
async def test_a_gang_that_does_not_fit_starts_no_member_and_why_says_so(
    world: World, kind: Kind
) -> None:
    world.need(*kind.operators)
    await world.create(kind, "huge", 8)

    async def has_verdict() -> bool:
        return (await world.job(kind.owner_kind, "huge")).status.verdict is not None

    await world.until(has_verdict)
    said = await world.why("huge")
    pods = await world.pods()
    assert len(pods) == 9
    assert not [pod.metadata.name for pod in pods if pod.spec.node_name]
    assert "9 members" in said, said
    await world.delete(kind, "huge")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
async def test_a_member_that_is_lost_is_replaced_by_its_tools_own_rule_and_placed_again(
    world: World, kind: Kind
) -> None:
    world.need(*kind.operators)
    await world.create(kind, "train", 6)
    before = await world.running(7)
    lost = next(name for name in sorted(before, reverse=True) if kind.worker in name)
    if kind in (JOB_SET, TRAIN_JOB, RAY_CLUSTER):
        world.nodes.fail_pod((SPACE, lost))
    else:
        await world.client.delete(PODS, lost, namespace=SPACE)

    restarts_all = kind in (JOB_SET, TRAIN_JOB, LEADER_WORKER_SET)
    old = {pod.metadata.uid for pod in before.values()}
    gone = old if restarts_all else {before[lost].metadata.uid}

    async def are_replaced() -> bool:
        return not gone & {pod.metadata.uid for pod in await world.pods()}

    await world.until(are_replaced)
    after = await world.running(7)
    kept = old & {pod.metadata.uid for pod in after.values()}
    assert kept == old - gone
    assert nodes_of(after) == nodes_of(before)
    assert (await world.job(kind.owner_kind, "train")).status.attempt == 1
    await world.delete(kind, "train")


async def test_a_ray_job_runs_on_a_cluster_of_its_own_and_leaves_nothing(world: World) -> None:
    world.need("kuberay")
    world.dashboard.state = "RUNNING"
    await world.client.create(RAY_JOBS, ray_job("train", 6), namespace=SPACE)
    pods = await world.running(8)
    (submitter,) = [
        name for name, pod in pods.items() if "ray.io/cluster" not in pod.metadata.labels
    ]
    jobs = (await world.client.list(JOBS, namespace=SPACE)).items
    assert sorted(job.member_count for job in jobs) == [1, 7]
    world.dashboard.state = "SUCCEEDED"
    world.end(submitter)

    async def has_ended() -> bool:
        thing = await world.client.get(RAY_JOBS, "train", namespace=SPACE)
        return thing.status.get("jobDeploymentStatus") == "Complete"

    await world.until(has_ended)

    async def is_free() -> bool:
        jobs = (await world.client.list(JOBS, namespace=SPACE)).items
        return [job.member_count for job in jobs] == [1] and jobs[0].is_finished

    await world.until(is_free)
    await world.client.delete(
        RAY_JOBS, "train", namespace=SPACE, propagation=Propagation.BACKGROUND
    )
    await world.empty()


async def test_a_suspended_set_gives_its_place_back_and_gets_one_again(world: World) -> None:
    world.need(*JOB_SET.operators)
    await world.create(JOB_SET, "train", 6)
    await world.running(7)
    kind = JOB_SET.resource
    await world.client.patch(kind, "train", {"spec": {"suspend": True}}, namespace=SPACE)

    async def has_no_place() -> bool:
        return (await world.job("JobSet", "train")).status.placement is None

    await world.until(has_no_place)
    await world.client.patch(kind, "train", {"spec": {"suspend": False}}, namespace=SPACE)
    await world.running(7)
    assert (await world.job("JobSet", "train")).status.attempt == 2
    await world.delete(JOB_SET, "train")


EXCLUSIVE = (
    (JOB_SET, "alpha.jobset.sigs.k8s.io/exclusive-topology"),
    (LEADER_WORKER_SET, "leaderworkerset.sigs.k8s.io/exclusive-topology"),
)


@pytest.mark.parametrize(
    ("kind", "note"), EXCLUSIVE, ids=lambda each: getattr(each, "owner_kind", "")
)
async def test_a_tool_that_waits_for_the_node_of_a_first_pod_is_told_that_it_is_no_gang(
    world: World, kind: Kind, note: str
) -> None:
    world.need(*kind.operators)
    body = kind.make("train", 6)
    body["metadata"]["annotations"] = {note: "kubernetes.io/hostname"}
    await world.client.create(kind.resource, body, namespace=SPACE)

    async def is_told() -> bool:
        events = (await world.client.list(EVENTS, namespace=SPACE)).items
        return any(e.reason == "NotAGang" and note in e.message for e in events)

    await world.until(is_told)
    assert (await world.client.list(JOBS, namespace=SPACE)).items == ()
    await world.delete(kind, "train")


async def test_kueue_says_when_and_fairlead_says_where(world: World) -> None:
    """There is quota for one gang: the other has no pod until the first has ended."""
    world.need("kueue", "jobset")
    for name in ("left", "right"):
        body = queued(JOB_SET.make(name, 6))
        await world.client.create(JOB_SET.resource, body, namespace=SPACE)
    seen: list[str] = []
    for _ in range(2):
        pods = await world.running(7)
        sets = dict.fromkeys(
            p.metadata.labels["jobset.sigs.k8s.io/jobset-name"] for p in pods.values()
        )
        (name,) = sets
        seen.append(name)
        world.end(*pods)
        await world.done(JOB_SET, name)
        assert (await world.job("JobSet", name)).status.attempt == 1
        await world.remove(JOB_SET, name)
    assert sorted(seen) == ["left", "right"]
    await world.empty()


async def test_pods_that_kueue_holds_take_no_place_until_it_lets_them_in(world: World) -> None:
    """Each has the gates of both."""
    world.need("kueue")
    for group in ("left", "right"):
        for i in range(4):
            body = pod_of_group(group, i, 4)
            await world.client.create(PODS, body, namespace=SPACE)

    def group_of(pod: Pod) -> str:
        return pod.metadata.labels["kueue.x-k8s.io/pod-group-name"]

    async def running() -> dict[str, int]:
        """How many pods of each group run, and are not over."""
        pods = [pod for pod in await world.pods() if pod.status.phase == "Running"]
        groups = list(map(group_of, pods))
        return {group: groups.count(group) for group in groups}

    async def one_runs() -> bool:
        return list((await running()).values()) == [4]

    await world.until(one_runs)
    (first,) = await running()
    second = "right" if first == "left" else "left"

    async def is_held() -> bool:
        conditions = (await world.job("Gang", second)).status.conditions
        return any(each.reason == "GroupHeld" for each in conditions)

    await world.until(is_held)
    assert "another controller" in await world.why(second)
    world.end(*(f"{first}-{i}" for i in range(4)))

    async def other_runs() -> bool:
        return await running() == {second: 4}

    await world.until(other_runs)
    assert (await world.job("Gang", second)).status.attempt == 1
    world.end(*(f"{second}-{i}" for i in range(4)))

    async def are_over() -> bool:
        jobs = (await world.client.list(JOBS, namespace=SPACE)).items
        return all(job.is_finished for job in jobs)

    await world.until(are_over)
    await world.client.delete_collection(PODS, namespace=SPACE, grace_period_seconds=0)
    await world.client.delete_collection(JOBS, namespace=SPACE)
    await world.empty()
