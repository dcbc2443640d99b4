"""The adoption controller on an API: what it writes, how often, and on which version."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.controllers.test_containment import PolicedClient

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import ObjectMeta, is_true, to_wire
from fairlead.api.resources import JOBS, NODES, PODS, Resource
from fairlead.api.status import Conflict, Invalid, Unavailable
from fairlead.api.validation.validate import validate_job
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.adoption import AdoptionController, resource_of
from fairlead.decide.adoption.actions import EvictMember, ReleaseMember
from fairlead.decide.adoption.view import AdoptionPolicy
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.loop import ControllerLoop
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_node

SIZE = 4


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def record(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        kind: EventKind,
        *,
        reason: str,
        message: str,
    ) -> None:
        self.seen.append((metadata.name, reason, message))


class World:
    def __init__(self, client: PolicedClient | None = None) -> None:
        self.client = client or PolicedClient()
        self.events = Events()
        clock = LoopClock(EPOCH)
        self.world = ClusterWorld.make(self.client, clock=clock, rng=random.Random(1))
        self.controller = AdoptionController(
            self.client, self.world, history=MemoryHistory(), events=self.events, clock=clock,
            reader=MirrorReader(SetAside("adoption")),
        )  # fmt: skip
        self.loop = ControllerLoop(self.controller, clock=clock, rng=random.Random(2))

    async def until(self, condition: Callable[[], bool], seconds_max: float = 60) -> None:
        async with asyncio.timeout(seconds_max):
            while not condition():  # noqa: ASYNC110 -- virtual time
                await asyncio.sleep(0.1)

    def job(self) -> Job:
        (job,) = self.client.stored(JOBS)
        return job

    async def place(self) -> None:
        """Do as the scheduler."""
        job = self.job()
        nodes = [f"n{i}" for i in range(job.member_count)]
        place = {"attempt": job.status.attempt, "roles": [{"role": "worker", "nodes": nodes}]}
        await self.client.patch(
            JOBS, job.metadata.name, {"status": {"placement": place}}, namespace="default",
            subresource="status",
        )  # fmt: skip


@asynccontextmanager
async def running(client: PolicedClient | None = None) -> AsyncIterator[World]:
    world = World(client)
    for i in range(SIZE):
        wire = to_wire(make_node(f"n{i}"))
        wire["metadata"].pop("resourceVersion")
        await world.client.create(NODES, wire)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.loop.run())
        yield world
        task.cancel()


def body(index: int, **spec: Any) -> dict[str, Any]:
    gates = [{"name": names.GANG_GATE}]
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    return {
        "metadata": {
            "name": f"p-{index}", "namespace": "default",
            "labels": {names.GANG_NAME: "g"}, "annotations": {names.GROUP_SIZE: str(SIZE)},
        },
        "spec": {
            "containers": [container], "schedulingGates": gates, "restartPolicy": "Always", **spec,
        },
    }  # fmt: skip


async def fill(world: World, **spec: Any) -> None:
    for i in range(SIZE):
        await world.client.create(PODS, body(i, **spec), namespace="default")


def is_admitted(world: World) -> bool:
    return any(job.status.attempt == 1 for job in world.client.stored(JOBS))


def is_placed(world: World) -> bool:
    """True until the group has given its place up: the scheduler takes it away then."""
    return is_true(world.job().status.conditions, names.ADMITTED)


def released(world: World) -> int:
    pods = world.client.stored(PODS)
    return sum(all(g.name != names.GANG_GATE for g in p.spec.scheduling_gates) for p in pods)


async def fill_and_release(world: World) -> None:
    """Create the pods, place the group, and wait until all of them are released."""
    await fill(world)
    await world.until(lambda: is_admitted(world))
    await world.place()
    await world.until(lambda: released(world) == SIZE)


def test_a_gang_costs_one_write_per_pod_and_a_handful_for_the_group() -> None:
    async def main() -> None:
        async with running() as world:
            await fill_and_release(world)
            await asyncio.sleep(30)
            assert world.client.count("patch", "pods") == SIZE
            assert world.client.count("create", "jobs") == 1
            # not complete, admitted, begun; the scheduler's own write is counted as well
            assert world.client.count("patch", "jobs") <= 4
            assert world.client.count("list") == 3
            assert world.client.count("get") == world.client.count("get", "configmaps") == 1

    run(main())


def of_training_job(name: str, kind: str, **labels: str) -> dict[str, Any]:
    """A gated pod that says it is of PyTorchJob bert, controlled by a bert of this kind."""
    group = {"PyTorchJob": "kubeflow.org/v1", "ReplicaSet": "apps/v1"}[kind]
    owner = {"apiVersion": group, "kind": kind, "name": "bert", "uid": kind, "controller": True}
    told = {
        "training.kubeflow.org/job-name": "bert",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
    }
    pod = body(0)
    pod["metadata"] |= {"name": name, "labels": {**told, **labels}, "ownerReferences": [owner]}
    return pod


def test_pods_of_a_stranger_do_not_complete_move_or_end_a_group() -> None:
    async def main() -> None:
        async with running() as world:

            async def add(pod: dict[str, Any]) -> None:
                await world.client.create(PODS, pod, namespace="default")

            def victim() -> Job:
                jobs = world.client.stored(JOBS)
                (job,) = [j for j in jobs if j.spec.adopts and j.spec.adopts.kind == "PyTorchJob"]
                return job

            for i in range(SIZE - 1):
                await add(of_training_job(f"bert-{i}", "PyTorchJob"))
            await add(of_training_job("one-more", "ReplicaSet"))
            await asyncio.sleep(5)
            assert victim().member_count == SIZE
            assert victim().status.attempt == 0
            await add(of_training_job(f"bert-{SIZE - 1}", "PyTorchJob"))
            await world.until(lambda: victim().status.attempt == 1)
            place = {"attempt": 1, "roles": [{"role": "worker", "nodes": ["n0", "n1", "n2", "n3"]}]}
            await world.client.patch(
                JOBS, victim().metadata.name, {"status": {"placement": place}},
                namespace="default", subresource="status",
            )  # fmt: skip
            await world.until(lambda: released(world) == SIZE)

            for i in range(SIZE):
                labels = {
                    names.JOB_NAME: victim().metadata.name, names.JOB_UID: victim().metadata.uid,
                    names.ROLE: "worker", names.INDEX: str(i), names.ATTEMPT: "1",
                }  # fmt: skip
                ended = of_training_job(f"forged-{i}", "ReplicaSet", **labels)
                ended["spec"]["schedulingGates"] = []
                ended["status"] = {"phase": "Succeeded"}
                await add(ended)
                await add(of_training_job(f"forged-gated-{i}", "ReplicaSet"))
            before = victim()
            await asyncio.sleep(120)
            assert victim() == before
            assert not victim().is_finished
            assert world.client.count("delete") == 0
            own = [p for p in world.client.stored(PODS) if p.metadata.name.startswith("bert-")]
            assert [p.metadata.labels[names.JOB_UID] for p in own] == [before.metadata.uid] * SIZE

    run(main())


def test_what_others_wrote_on_a_pod_stays_when_it_is_released() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"nodeSelectorTerms": [term]}
    preferred = [{"weight": 1, "preference": term}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
    }

    async def main() -> None:
        raw: Resource[dict[str, Any]] = Resource("", "v1", "pods", "Pod", dict)
        async with running() as world:
            await fill(world, affinity=affinity)
            await world.until(lambda: is_admitted(world))
            await world.place()
            await world.until(lambda: released(world) == SIZE)
            pod = await world.client.get(raw, "p-2", namespace="default")
        pod = json.loads(json.dumps(pod))
        assert not pod["spec"].get("schedulingGates")
        nodes = pod["spec"]["affinity"]["nodeAffinity"]
        assert nodes["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
        assert "podAntiAffinity" in pod["spec"]["affinity"]
        (narrowed,) = nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert narrowed["matchExpressions"] == term["matchExpressions"]
        assert [f["values"] for f in narrowed["matchFields"]] == [["n2"]]

    run(main())


def test_the_job_that_stands_for_a_group_is_one_that_admission_lets_in() -> None:
    async def main() -> None:
        async with running() as world:
            await fill(world)
            await world.until(lambda: bool(world.client.stored(JOBS)))
            job = world.job()
        assert validate_job(job) == []
        assert job.metadata.labels == {names.MANAGED_BY: "fairlead-adoption"}

    run(main())


def test_a_pod_that_changed_is_released_and_evicted_on_its_new_version_only() -> None:
    async def main() -> None:
        async with running() as world:
            await fill(world)
            await world.until(lambda: is_admitted(world))
            world.client.fail_next("patch", None, Conflict("somebody else wrote"))
            await world.place()
            await world.until(lambda: released(world) == SIZE)
            pod = next(iter(world.client.stored(PODS)))
            job = world.job()
            late = ReleaseMember(job, pod, role="worker", index=0, rank=0, node="n0")
            await world.client.patch(
                PODS, pod.metadata.name, {"metadata": {"labels": {"x": "y"}}}, namespace="default"
            )
            for action in (late, EvictMember(job, pod)):
                with pytest.raises(Conflict):
                    await world.controller.perform(action)

    run(main())


def test_a_release_that_the_api_refuses_is_told_to_the_pods_owner() -> None:
    async def main() -> None:
        async with running() as world:
            await fill(world)
            await world.until(lambda: is_admitted(world))
            await world.place()
            world.client.fail_next("patch", None, Invalid("spec: forbidden"))
            await world.until(lambda: released(world) == SIZE)
            assert any(reason == "ReleaseRefused" for _, reason, _ in world.events.seen)

    run(main())


def test_pods_that_do_not_take_part_cost_nothing() -> None:
    async def main() -> None:
        async with running() as world:
            for i in range(3):
                other = body(i)
                other["spec"]["schedulingGates"] = []
                await world.client.create(PODS, other, namespace="default")
            await asyncio.sleep(60)
            assert world.client.stored(JOBS) == ()
            assert world.client.count("patch") == 0

    run(main())


async def end(world: World, *numbers: int) -> None:
    failed = {"status": {"phase": "Failed"}}
    for i in numbers:
        await world.client.patch(PODS, f"p-{i}", failed, namespace="default", subresource="status")


def test_a_group_without_live_members_gives_its_place_back_after_a_while() -> None:
    """Half of its pods have failed and the others are gone: its tool may be about to act."""

    async def main() -> None:
        async with running() as world:
            await fill_and_release(world)
            await end(world, 0, 1)
            for i in (2, 3):
                await world.client.delete(PODS, f"p-{i}", namespace="default")
            idle_seconds = AdoptionPolicy().idle_seconds_max
            await asyncio.sleep(idle_seconds - 5)
            assert is_placed(world)
            await asyncio.sleep(10)
            assert not is_placed(world)

    run(main())


def test_a_group_whose_status_is_refused_gives_its_nodes_back_once_all_its_members_have_ended() -> (
    None
):
    async def main() -> None:
        async with running() as world:

            def has_nodes() -> bool:
                return not world.world.state.is_forfeited(world.job().metadata.key)

            await fill_and_release(world)
            world.client.policed = world.job().metadata.name
            world.client.denies = bool
            await end(world, 0)
            await asyncio.sleep(60)
            assert world.client.denied > 3
            assert has_nodes()
            await end(world, 1, 2, 3)
            await asyncio.sleep(60)
            assert not has_nodes()
            for i in range(SIZE):
                await world.client.delete(PODS, f"p-{i}", namespace="default")
            await fill(world)
            await asyncio.sleep(60)
            assert world.job().status.placement is not None
            assert released(world) == 0
            world.client.denies = lambda _status: False
            await world.until(lambda: world.job().status.attempts[-1].reason == "PlacementLost")

    run(main())


def test_a_job_that_the_api_refuses_is_told_to_a_pod_of_the_group() -> None:
    async def main() -> None:
        async with running() as world:
            world.client.fail_next("create", *[None] * SIZE, Invalid("quota of jobs"))
            await fill(world)
            await world.until(lambda: is_admitted(world))
            assert [s for s in world.events.seen if s[1] == "JobRefused"] == [
                ("p-0", "JobRefused", "No job could be made for its group: quota of jobs")
            ]

    run(main())


def test_another_object_of_the_name_says_nothing_of_a_group() -> None:
    """The PyTorchJob was made again; the pods are of the one before, of which nothing is left."""

    async def main() -> None:
        async with running() as world:
            kind = resource_of("kubeflow.org/v1", "PyTorchJob")
            template = {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}
            spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
            successor = {"metadata": {"name": "bert"}, "spec": spec}
            await world.client.create(kind, successor, namespace="default")
            pod = of_training_job("bert-0", "PyTorchJob")
            del pod["metadata"]["annotations"]
            await world.client.create(PODS, pod, namespace="default")
            await asyncio.sleep(30)
            assert world.client.count("get", "pytorchjobs") > 0
            assert not is_admitted(world)
            await asyncio.sleep(3600)
            assert world.client.count("get", "pytorchjobs") < 100, (
                "it is asked for ever more rarely"
            )

    run(main())


def test_an_outage_while_a_groups_object_is_read_is_no_problem_of_the_group() -> None:
    async def main() -> None:
        async with running() as world:
            template = {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}
            spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
            source = {"metadata": {"name": "bert"}, "spec": spec}
            kind = resource_of("kubeflow.org/v1", "PyTorchJob")
            made = await world.client.create(kind, source, namespace="default")
            world.client.fail_next("get", Unavailable("down"))
            pod = of_training_job("bert-0", "PyTorchJob")
            pod["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
            del pod["metadata"]["annotations"]
            await world.client.create(PODS, pod, namespace="default")
            await world.until(lambda: is_admitted(world))
            assert world.client.count("get", "pytorchjobs") == 2
            assert "bert-0" not in [name for name, _, _ in world.events.seen]

    run(main())


class SilentSources(PolicedClient):
    """Answers no reading of objects of one kind, ever."""

    silent = "statefulsets"
    begun: list[float]

    def __init__(self) -> None:
        super().__init__()
        self.begun = []

    async def get(self, resource: Any, name: str, **how: Any) -> Any:
        if resource.plural == self.silent:
            self.begun.append(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
        return await super().get(resource, name, **how)


def of_silent_set(name: str) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "controller": True}
    pod = body(0)
    pod["metadata"] |= {"name": f"{name}-0", "ownerReferences": [{**owner, "uid": f"uid-{name}"}]}
    pod["metadata"] |= {"labels": {}, "annotations": {}}
    return pod


def test_an_object_that_never_answers_holds_up_no_other_group() -> None:
    async def main() -> None:
        async with running(SilentSources()) as world:
            client = world.client
            assert isinstance(client, SilentSources)
            for i in range(20):
                await client.create(PODS, of_silent_set(f"silent-{i}"), namespace="default")
            await world.until(lambda: bool(client.begun))
            for _ in range(5):
                at = asyncio.get_running_loop().time()
                await fill(world)
                await world.until(lambda: is_admitted(world), 1)
                await world.place()
                await world.until(lambda: released(world) == SIZE, 1)
                assert asyncio.get_running_loop().time() - at < 1
                for i in range(SIZE):
                    await client.delete(PODS, f"p-{i}", namespace="default")
                await client.delete(JOBS, world.job().metadata.name, namespace="default")
                await world.until(lambda: not client.stored(JOBS))
            begun = len(client.begun)
            assert begun <= 16, "a bounded number at a time"
            await asyncio.sleep(600)
            assert 20 < len(client.begun) < begun + 20 * 40, "each ever more rarely"

    run(main())


def test_what_is_read_at_last_counts_and_a_group_that_is_gone_meanwhile_is_no_fault() -> None:
    async def main() -> None:
        async with running(SilentSources()) as world:
            client = world.client
            assert isinstance(client, SilentSources)
            for name in ("slow", "gone"):
                await client.create(PODS, of_silent_set(name), namespace="default")
            await world.until(lambda: len(client.begun) == 2)
            await client.delete(PODS, "gone-0", namespace="default")
            await asyncio.sleep(20)
            spec = {"replicas": 1, "podManagementPolicy": "Parallel"}
            kind = resource_of("apps/v1", "StatefulSet")
            assert kind is not None
            source = {"metadata": {"name": "slow", "uid": "uid-slow"}, "spec": spec}
            made = await client.create(kind, source, namespace="default")
            owner = of_silent_set("slow")["metadata"]["ownerReferences"]
            owner[0]["uid"] = made["metadata"]["uid"]
            patch = {"metadata": {"ownerReferences": owner}}
            await client.patch(PODS, "slow-0", patch, namespace="default")
            client.silent = ""
            await world.until(lambda: is_admitted(world))
            assert [reason for _, reason, _ in world.events.seen] == ["Admitted"]

    run(main())
