"""The jobs controller on the embedded API: whole templates, and deletion in all its ways."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.unit.history.contract import records_of

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import ObjectMeta, find_condition, to_wire
from fairlead.api.resources import CRDS, JOBS, NODES, PODS, Resource
from fairlead.api.schema import crd
from fairlead.api.status import Invalid, NotFound
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.job_index import JobsMirrors
from fairlead.controllers.gangs.jobs import JobsController
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Propagation
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind, Recorder
from fairlead.runtime.kept.history import HistoryQuery
from fairlead.runtime.loop import ControllerLoop
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_placement

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"mine": "1"}, "annotations": {"note": "x"}},
    "spec": {
        "securityContext": {"runAsUser": 1000, "fsGroup": 7},
        "dnsConfig": {"nameservers": ["10.1.1.1"]},
        "volumes": [{"name": "home", "nfs": {"server": "files", "path": "/home"}}],
        "containers": [
            {
                "name": "main",
                "image": "train:1",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "livenessProbe": {"exec": {"command": ["true"]}},
                "env": [
                    {
                        "name": "NODE_RANK",
                        "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
                    },
                    {
                        "name": "CPUS",
                        "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}},
                    },
                ],
                "volumeMounts": [
                    {"name": "home", "mountPath": "/home", "mountPropagation": "None"}
                ],
            }
        ],
    },
}


FAILED = {
    "phase": "Failed",
    "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 7}}}],
}


class PolicedClient(InProcessClient):
    """Refuses what `denies` says of the writes of jobs' status, as an admission policy does."""

    denies: Callable[[Any], bool] = staticmethod(lambda _status: False)
    denied = 0

    async def patch(self, resource: Any, name: str, patch: Any, **how: Any) -> Any:
        is_status = resource.name == JOBS.name and how.get("subresource") == "status"
        if is_status and self.denies(patch.get("status")):
            self.denied += 1
            text = f'jobs.fairlead.dev "{name}" is forbidden: ValidatingAdmissionPolicy "p" denied'
            raise Invalid(f"{text} request: no")
        return await super().patch(resource, name, patch, **how)


class Cluster:
    """Nodes n0 and n1 without kubelets; tests play those."""

    def __init__(self, refused: Sequence[str] = (), *, denies: bool = False) -> None:
        self.refused = refused
        self.contains_faults = bool(refused) or denies
        self.set_aside = SetAside("jobs", events=self)
        self.told: list[tuple[str, str]] = []
        self.clock = LoopClock(EPOCH)
        self.history = MemoryHistory()
        rng = random.Random(1)
        self.service = ApiService(
            Store.open(None),
            Registry.with_builtins(),
            self.clock,
            ids=lambda: f"{rng.getrandbits(64):016x}",
            rng=rng,
        )
        self.client = PolicedClient(self.service)

    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None:  # fmt: skip
        self.told.append((metadata.name, reason))

    async def run(self, play: Callable[[Cluster], Awaitable[None]]) -> None:
        await self.service.bootstrap()
        for manifest in crd.manifests():
            is_job = manifest["spec"]["names"]["kind"] == "Job"
            await self.client.create(CRDS, with_refused(manifest, self.refused if is_job else ()))
        for name in ("n0", "n1"):
            await self.client.create(NODES, {"metadata": {"name": name}})
            await self.set_ready(name, "True")
        rng, policy = random.Random(2), JobsPolicy()
        mirrors = JobsMirrors.make(self.client, policy, clock=self.clock, rng=rng)
        # Without containment a fault is a defect, and raises.
        reader = MirrorReader(self.set_aside) if self.contains_faults else None
        controller = JobsController(
            self.client,
            ClusterWorld.make(self.client, clock=self.clock, rng=rng),
            mirrors,
            history=self.history,
            events=Recorder(self.client, self.clock, "jobs", rng=rng),
            policy=policy,
            clock=self.clock,
            keys=rng,
            reader=reader,
        )
        async with asyncio.TaskGroup() as group:
            loop = ControllerLoop(controller, clock=self.clock, rng=rng)
            tasks = [group.create_task(self.service.run()), group.create_task(loop.run())]
            await asyncio.sleep(0.1)
            await play(self)
            for task in tasks:
                task.cancel()

    async def set_ready(self, node: str, status: str) -> None:
        patch = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        await self.client.patch(NODES, node, patch, subresource="status")

    async def job(self) -> Job | None:
        try:
            return await self.client.get(JOBS, "train", namespace="default")
        except NotFound:
            return None

    async def pods(self) -> dict[str, Pod]:
        found = await self.client.list(PODS, namespace="default")
        return {p.metadata.name: p for p in found.items}

    async def submit(self, **spec: Any) -> None:
        roles = [{"name": "worker", "count": 2, "template": TEMPLATE}]
        body = {"metadata": {"name": "train"}, "spec": {"roles": roles, **spec}}
        await self.client.create(JOBS, body, namespace="default")
        await asyncio.sleep(1)
        await self.place()

    async def place(self) -> None:
        job = await self.job()
        assert job is not None
        placement = to_wire(make_placement(("n0", "n1"), attempt=job.status.attempt))
        patch = {"status": {"placement": placement}}
        await self.client.patch(JOBS, "train", patch, namespace="default", subresource="status")
        await asyncio.sleep(1)

    async def start(self, **spec: Any) -> None:
        await self.submit(**spec)
        for phase in ("Pending", "Running"):
            for number, name in enumerate(await self.pods()):
                status = {"status": {"phase": phase, "podIP": f"10.0.0.{number}"}}
                await self.client.patch(
                    PODS, name, status, namespace="default", subresource="status"
                )
            await asyncio.sleep(1)
        job = await self.job()
        assert job is not None
        assert job.status.state == "Running"

    async def reap(self, *dead: str) -> None:
        """Play the kubelets: end pods that are being deleted, but on dead nodes."""
        for name, pod in (await self.pods()).items():
            if pod.metadata.deletion_timestamp and pod.spec.node_name not in dead:
                await self.client.delete(PODS, name, namespace="default", grace_period_seconds=0)
        await asyncio.sleep(1)


def with_refused(manifest: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the CRD of an API that takes no text in these fields of the status."""
    out = copy.deepcopy(manifest)
    status = out["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    for path in fields:
        field = status
        for name in path.split("."):
            field = field["items"] if name == "[]" else field["properties"][name]
        field["maxLength"] = 1
    return out


def _play(
    play: Callable[[Cluster], Awaitable[None]], refused: Sequence[str] = (), *, denies: bool = False
) -> Cluster:
    cluster = Cluster(refused, denies=denies)
    run(cluster.run(play))
    return cluster


RAW_PODS: Any = type(PODS)(PODS.group, PODS.version, PODS.plural, PODS.kind, dict)


def test_pods_carry_the_users_whole_template() -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.submit()
        for index, node in enumerate(("n0", "n1")):
            name = f"train-1-worker-{index}"
            pod = await cluster.client.get(RAW_PODS, name, namespace="default")
            spec, wanted = pod["spec"], TEMPLATE["spec"]
            assert spec["nodeName"] == node
            assert spec["restartPolicy"] == "Never"
            for field in ("securityContext", "dnsConfig"):
                assert spec[field] == wanted[field]
            assert spec["volumes"][0] == wanted["volumes"][0]
            assert pod["metadata"]["labels"]["mine"] == "1"
            assert pod["metadata"]["annotations"] == {"note": "x"}
            [container], [theirs] = spec["containers"], wanted["containers"]
            for field in ("ports", "image"):
                assert container[field] == theirs[field]
            assert container["livenessProbe"]["exec"] == theirs["livenessProbe"]["exec"]
            env = {v["name"]: v for v in container["env"]}
            assert env["NODE_RANK"] == {"name": "NODE_RANK", "value": str(index)}
            assert env["CPUS"] == theirs["env"][1]
            assert container["volumeMounts"][0] == theirs["volumeMounts"][0]

    _play(play)


@pytest.mark.parametrize("how", [Propagation.BACKGROUND, Propagation.FOREGROUND, None])
def test_a_deleted_job_stops_its_pods_is_recorded_and_goes(how: Propagation | None) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.client.delete(JOBS, "train", namespace="default", propagation=how)
        await asyncio.sleep(1)
        pods = await cluster.pods()
        assert [bool(p.metadata.deletion_timestamp) for p in pods.values()] == [True, True]
        assert await cluster.job() is not None
        await cluster.reap()
        assert await cluster.job() is None
        assert await cluster.pods() == {}
        [record] = await records_of(cluster.history, HistoryQuery())
        assert record.state == "Cancelled"

    _play(play)


def test_a_job_deleted_with_its_pods_orphaned_goes_and_leaves_what_is_not_its_own() -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.client.delete(
            JOBS, "train", namespace="default", propagation=Propagation.ORPHAN
        )
        await asyncio.sleep(60)
        await cluster.reap()
        assert await cluster.job() is None
        for pod in (await cluster.pods()).values():
            assert pod.metadata.owner_references == ()

    _play(play)


def test_a_job_deleted_while_its_pods_hang_on_a_dead_node_goes_once_that_node_is_lost() -> None:
    for how in (Propagation.BACKGROUND, Propagation.FOREGROUND):

        async def play(cluster: Cluster, how: Propagation = how) -> None:
            await cluster.start()
            await cluster.set_ready("n1", "Unknown")
            await cluster.client.delete(JOBS, "train", namespace="default", propagation=how)
            await asyncio.sleep(1)
            await cluster.reap("n1")
            assert list(await cluster.pods()) == ["train-1-worker-1"]
            await asyncio.sleep(30)
            assert await cluster.job() is not None
            await asyncio.sleep(15)
            assert await cluster.pods() == {}
            assert await cluster.job() is None
            assert len(await records_of(cluster.history, HistoryQuery())) == 1

        _play(play)


def test_a_job_deleted_while_a_lost_nodes_pods_already_terminate_goes() -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.client.patch(JOBS, "train", {"spec": {"suspend": True}}, namespace="default")
        await asyncio.sleep(1)
        await cluster.client.delete(NODES, "n1")
        await cluster.reap("n1")
        await cluster.client.delete(JOBS, "train", namespace="default")
        await asyncio.sleep(10)
        assert await cluster.job() is None
        assert await cluster.pods() == {}

    _play(play)


def test_one_type_of_reader_does_not_spoil_another() -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.submit()
        raw = await cluster.client.get(JOBS.raw, "train", namespace="default")
        assert raw["spec"]["roles"][0]["template"]["spec"]["dnsConfig"]
        assert isinstance(await cluster.job(), Job)

    _play(play)


# A status that the API does not take


@pytest.mark.parametrize("kept", ["restartAt", "attempts.[].message"])
def test_what_the_api_refuses_of_a_status_is_left_out_and_the_job_gives_its_nodes_back(
    kept: str,
) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(restart={"limit": 1, "backoffSeconds": 5})
        failed = {"status": {"phase": "Failed"}}
        await cluster.client.patch(
            PODS, "train-1-worker-0", failed, namespace="default", subresource="status"
        )
        await asyncio.sleep(30)
        await cluster.reap()
        job = await cluster.job()
        assert job is not None
        [attempt] = job.status.attempts
        assert attempt.finished_at
        assert attempt.reason
        assert not (job.status.restart_at if kept == "restartAt" else attempt.message)
        assert await cluster.pods() == {}
        assert ("train", "SetAside") in cluster.told

    _play(play, [kept])


def test_a_job_whose_attempt_cannot_be_closed_fails_and_lets_its_pods_go() -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start()
        failed = {"status": {"phase": "Failed"}}
        await cluster.client.patch(
            PODS, "train-1-worker-0", failed, namespace="default", subresource="status"
        )
        await asyncio.sleep(120)
        await cluster.reap()
        job = await cluster.job()
        assert job is not None
        assert ("train", "SetAside") in cluster.told
        condition = find_condition(job.status.conditions, "Failed")
        assert condition is not None
        assert condition.reason == "StatusRefused"
        assert list(await cluster.pods()) in ([], ["train-1-worker-0"])

    _play(play, ["attempts.[].finishedAt"])


@pytest.mark.parametrize("all_of_it", [False, True])
def test_a_job_whose_end_a_policy_refuses_is_set_aside_and_fails_with_the_least_that_is_taken(
    *, all_of_it: bool
) -> None:
    """A policy names no field; one that runs is left alone, however often it is refused."""

    async def play(cluster: Cluster) -> None:
        await cluster.start()
        cluster.client.denies = lambda status: all_of_it or "exited" in str(status)
        note = {"metadata": {"annotations": {"fairlead.dev/progress": '{"step": 1}'}}}
        await cluster.client.patch(PODS, "train-1-worker-1", note, namespace="default")
        await asyncio.sleep(60)
        job = await cluster.job()
        assert job is not None
        assert job.status.state == "Running"
        assert ((("train", "SetAside") in cluster.told), cluster.client.denied > 3) == (
            (True, True) if all_of_it else (False, False)
        )
        failed = {"status": FAILED}
        await cluster.client.patch(
            PODS, "train-1-worker-0", failed, namespace="default", subresource="status"
        )
        await asyncio.sleep(120)
        await cluster.reap()
        job = await cluster.job()
        assert job is not None
        assert ("train", "SetAside") in cluster.told
        condition = find_condition(job.status.conditions, "Failed")
        assert (condition.reason if condition else "") == ("" if all_of_it else "StatusRefused")

    _play(play, denies=True)


# Rules of jobs, on the way into the API


def test_a_bad_job_is_refused_with_all_its_faults_and_nothing_is_stored() -> None:
    async def play(cluster: Cluster) -> None:
        role = {"name": "Worker", "count": 0, "template": {"spec": {"nodeName": "n0"}}}
        body = {
            "metadata": {"name": "train"},
            "spec": {
                "roles": [role],
                "checkpoint": {"path": "ckpt"},
                "after": [{"job": "train"}],
                "timeLimitSeconds": 0,
            },
        }
        with pytest.raises(Invalid) as caught:
            await cluster.client.create(JOBS, body, namespace="default")
        details = caught.value.status.details
        assert details is not None
        assert sorted(c.field for c in details.causes) == [
            "spec.after[0].job",
            "spec.checkpoint.path",
            "spec.roles[0].count",
            "spec.roles[0].name",
            "spec.roles[0].template.spec.containers",
            "spec.roles[0].template.spec.nodeName",
            "spec.timeLimitSeconds",
        ]
        assert await cluster.job() is None

    _play(play)


def test_what_is_immutable_is_refused_on_every_kind_of_write_and_all_else_goes_through() -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start()
        other = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "dnsPolicy": "Default"}}
        patch = {
            "spec": {
                "roles": [{"name": "worker", "count": 2, "template": other}],
                "topology": {"key": "rack"},
            }
        }
        with pytest.raises(Invalid) as caught:
            await cluster.client.patch(JOBS, "train", patch, namespace="default")
        details = caught.value.status.details
        assert details is not None
        assert [c.field for c in details.causes] == ["spec.roles", "spec.topology"]
        wish = {
            "spec": {"ttlSecondsAfterFinished": 3, "suspend": True},
            "metadata": {"labels": {"a": "b"}},
        }
        job = await cluster.client.patch(JOBS, "train", wish, namespace="default")
        assert job.spec.suspend
        late = {"spec": {"after": [{"job": "train"}]}}
        with pytest.raises(Invalid):
            await cluster.client.patch(JOBS, "train", late, namespace="default")

    _play(play)
