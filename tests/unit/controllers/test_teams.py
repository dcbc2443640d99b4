"""The teams controller on the in-process API: taints and statuses follow teams and nodes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.cluster.team import IntruderPolicy
from fairlead.api.kubernetes.core import Taint
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.names import GANG_GATE, TEAM
from fairlead.api.resources import CRDS, FLEETS, JOBS, NAMESPACES, NODES, PODS, TEAMS, Resource
from fairlead.api.schema import crd
from fairlead.api.status import Forbidden
from fairlead.api.values.times import format_time
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.placing.teams import TeamsController
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.embedded.builtins import BUDGETS
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.model.asks.teams import owner_of
from fairlead.model.health.node_health import is_ready
from fairlead.runtime.client import ClientWrapper, Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.loop import ControllerLoop
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_node, make_pod, make_team

A = TypeVar("A")
THEIRS = Taint("nvidia.com/gpu", "NoSchedule", "present")


class AdjustableClock(LoopClock):
    """A wall clock that can be set; timers do not follow it."""

    offset_seconds = 0.0

    def now(self) -> float:
        return super().now() + self.offset_seconds


class Policed(ClientWrapper):
    """Refuses to patch the objects of these names."""

    refused: frozenset[str] = frozenset()

    async def call(self, request: Request[A]) -> A:
        if request.verb is RequestVerb.PATCH and request.name in self.refused:
            raise Forbidden("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
        return await super().call(request)


class Cluster:
    def __init__(self) -> None:
        self.clock, self.rng = AdjustableClock(EPOCH), random.Random(1)
        self.writes: list[str] = []
        self.loops: list[ControllerLoop[Any]] = []
        service = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{self.rng.getrandbits(128):032x}", rng=self.rng,
        )  # fmt: skip
        self.service, self.client = service, Policed(InProcessClient(service))

    async def play(
        self, main: Callable[[], Awaitable[None]], policy: TeamsPolicy | None = None,
        events: EventSink | None = None,
    ) -> None:  # fmt: skip
        await self.service.bootstrap()
        for manifest in crd.manifests():
            await self.client.create(CRDS, manifest)
        world = ClusterWorld.make(self.client, clock=self.clock, rng=self.rng)
        controller = TeamsController(self.client, world, policy=policy, events=events)
        loop = ControllerLoop(controller, clock=self.clock, rng=self.rng)
        self.loops.append(loop)
        others = (world.mirrors.priority_classes,)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run()) for each in (*others, loop)]
            await main()
            for task in tasks:
                task.cancel()

    async def add_nodes(self, count: int, **node: Any) -> None:
        for i in range(count):
            made = make_node(f"n{i}", **node)
            await self.client.create(NODES, {"metadata": {"name": f"n{i}"}})
            taints = [to_wire(t) for t in made.spec.taints]
            await self.client.patch(NODES, f"n{i}", {"spec": {"taints": taints}})
            status = to_wire(made.status)
            await self.client.patch(NODES, f"n{i}", {"status": status}, subresource="status")

    async def add_team(self, name: str, nodes: int) -> None:
        team = make_team(name, nodes=nodes)
        body = {"metadata": {"name": name}, "spec": to_wire(team.spec)}
        await self.client.create(TEAMS, body)

    async def owners(self) -> Counter[str]:
        nodes = (await self.client.list(NODES)).items
        return Counter(owner_of(node.spec.taints) for node in nodes)


def test_nodes_get_their_taints_and_the_status_says_so() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(4, taints=[THEIRS])
        await cluster.add_team("vision", 3)
        await asyncio.sleep(20)
        assert await cluster.owners() == {"vision": 3, "": 1}
        nodes = (await cluster.client.list(NODES)).items
        assert all(THEIRS in node.spec.taints for node in nodes)
        status = (await cluster.client.get(TEAMS, "vision")).status
        assert (status.nodes, status.conditions[0].reason) == (3, "SharesMet")

    run(cluster.play(main))


def test_a_lost_node_is_replaced_within_seconds_and_the_shortage_is_said() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(4)
        await cluster.add_team("vision", 3)
        await asyncio.sleep(20)
        [spare] = [n for n in (await cluster.client.list(NODES)).items if not n.spec.taints]
        lost = "n0" if spare.metadata.name != "n0" else "n1"
        down = to_wire(make_node(lost, ready=False).status)
        await cluster.client.patch(NODES, lost, {"status": down}, subresource="status")
        await asyncio.sleep(5)
        found = await cluster.client.get(NODES, spare.metadata.name)
        assert [(t.key, t.value) for t in found.spec.taints] == [(TEAM, "vision")]
        assert found.spec.taints[0].time_added is not None
        other = next(n for n in ("n2", "n3") if n != spare.metadata.name)
        down = to_wire(make_node(other, ready=False).status)
        await cluster.client.patch(NODES, other, {"status": down}, subresource="status")
        await asyncio.sleep(5)
        team = await cluster.client.get(TEAMS, "vision")
        assert (team.status.nodes, team.status.nodes_missing) == (2, 1)
        assert team.status.conditions[0].reason == "SharesUnmet"

    run(cluster.play(main))


def test_a_share_that_loses_a_rack_of_32_nodes_has_as_many_others_within_ten_seconds() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(80)
        await cluster.add_team("vision", 40)
        await asyncio.sleep(20)
        owned = [n for n in (await cluster.client.list(NODES)).items if owner_of(n.spec.taints)]
        assert len(owned) == 40
        down = to_wire(make_node("any", ready=False).status)
        for node in owned[:32]:
            name = node.metadata.name
            await cluster.client.patch(NODES, name, {"status": down}, subresource="status")
        await asyncio.sleep(10)
        owned = [n for n in (await cluster.client.list(NODES)).items if owner_of(n.spec.taints)]
        assert sum(is_ready(node) for node in owned) == 40

    run(cluster.play(main))


def test_a_deleted_team_gives_its_nodes_back() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(3, taints=[THEIRS])
        await cluster.add_team("vision", 2)
        await asyncio.sleep(20)
        await cluster.client.delete(TEAMS, "vision")
        await asyncio.sleep(20)
        nodes = (await cluster.client.list(NODES)).items
        assert [node.spec.taints for node in nodes] == [(THEIRS,)] * 3

    run(cluster.play(main))


def test_nodes_change_hands_at_a_bounded_rate() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(10)
        await asyncio.sleep(20)
        await cluster.add_team("vision", 9)
        await asyncio.sleep(3.5)
        assert (await cluster.owners())["vision"] in (6, 8)
        await asyncio.sleep(5)
        assert (await cluster.owners())["vision"] == 9

    run(cluster.play(main, TeamsPolicy(changes_max=2)))


def test_a_node_that_may_not_be_patched_changes_hands_once_it_may() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(2)
        await asyncio.sleep(20)
        cluster.client.refused = frozenset(("n0",))
        await cluster.add_team("vision", 2)
        await asyncio.sleep(20)
        assert await cluster.owners() == {"vision": 1, "": 1}
        cluster.client.refused = frozenset()
        await asyncio.sleep(60)
        assert await cluster.owners() == {"vision": 2}

    run(cluster.play(main))


def test_nodes_change_hands_at_once_after_the_wall_clock_was_set_back() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(3)
        await asyncio.sleep(20)
        await cluster.add_team("vision", 2)
        await asyncio.sleep(5)
        assert await cluster.owners() == {"vision": 2, "": 1}
        cluster.clock.offset_seconds = -3600.0
        await cluster.client.delete(TEAMS, "vision")
        await asyncio.sleep(5)
        assert await cluster.owners() == {"": 3}

    run(cluster.play(main))


def test_what_is_used_is_in_the_status_within_seconds_and_quiet_hours_take_few_decisions() -> None:
    cluster = Cluster()
    day = 24 * 3600

    async def main() -> None:
        await cluster.add_nodes(2)
        await cluster.add_team("vision", 1)
        await cluster.client.create(NAMESPACES, {"metadata": {"name": "vision"}})
        await asyncio.sleep(60)
        before = cluster.loops[0].cycle_count
        await asyncio.sleep(day)
        assert cluster.loops[0].cycle_count - before <= day / 300 + 1
        job = make_job("j", namespace="vision")
        body = {"metadata": {"name": "j"}, "spec": to_wire(job.spec)}
        await cluster.client.create(JOBS, body, namespace="vision")
        await asyncio.sleep(12)
        assert (await cluster.client.get(TEAMS, "vision")).status.use.jobs_submitted == 1
        [own] = [n for n in (await cluster.client.list(NODES)).items if n.spec.taints]
        pod = {"containers": [{"name": "main", "image": "x"}], "nodeName": own.metadata.name}
        body = {"metadata": {"name": "p"}, "spec": pod}
        await cluster.client.create(PODS, body, namespace="vision")
        await asyncio.sleep(12)
        assert (await cluster.client.get(TEAMS, "vision")).status.use.nodes_used == 1

    run(cluster.play(main))


def test_a_node_that_a_pod_of_another_tool_uses_is_in_the_status_within_seconds() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(1)
        await cluster.add_team("vision", 1)
        await cluster.client.create(NAMESPACES, {"metadata": {"name": "vision"}})
        await asyncio.sleep(60)
        pod = make_pod("tool", namespace="vision", node="n0")
        body = {"metadata": {"name": "tool"}, "spec": to_wire(pod.spec)}
        await cluster.client.create(PODS, body, namespace="vision")
        await asyncio.sleep(12)
        assert (await cluster.client.get(TEAMS, "vision")).status.use.nodes_used == 1
        await cluster.client.delete(PODS, "tool", namespace="vision", grace_period_seconds=0)
        await asyncio.sleep(12)
        assert (await cluster.client.get(TEAMS, "vision")).status.use.nodes_used == 0

    run(cluster.play(main))


def test_a_taint_that_a_person_writes_is_put_right_and_others_stay() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add_nodes(2)
        await cluster.add_team("vision", 2)
        await asyncio.sleep(20)
        stray = [to_wire(THEIRS), {"key": TEAM, "effect": "NoSchedule", "value": "speech"}]
        await cluster.client.patch(NODES, "n0", {"spec": {"taints": stray}})
        await asyncio.sleep(20)
        found = (await cluster.client.get(NODES, "n0")).spec.taints
        assert found[0] == THEIRS
        assert owner_of(found) == "vision"

    run(cluster.play(main))


def test_a_pod_that_may_not_be_on_a_teams_node_is_reported_and_evicted_within_its_budget() -> None:
    """It came while nothing judged it: before there was any team."""
    cluster, events = Cluster(), Recorded()

    async def main() -> None:
        client = cluster.client
        await cluster.add_nodes(1)
        for name in ("vision", "nobody"):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        team = make_team("vision", nodes=1, intruders=IntruderPolicy.EVICT)
        await client.create(TEAMS, {"metadata": {"name": "vision"}, "spec": to_wire(team.spec)})
        await asyncio.sleep(100)
        scheduled = {
            "containers": [{"name": "main", "image": "x"}],
            "terminationGracePeriodSeconds": 86_400,
        }
        for name, labels in (("free", {}), ("kept", {"app": "kept"})):
            body = {"metadata": {"name": name, "labels": labels}, "spec": scheduled}
            await client.create(PODS, body, namespace="nobody")
            # as a scheduler that looks at no taint
            target = {"target": {"name": "n0"}}
            await cluster.service.bind(("nobody", name), target, WriteOptions())
            ready = {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(
                    cluster.clock.now())},
                {"type": "Ready", "status": "True"}]}  # fmt: skip
            await client.patch(
                PODS, name, {"status": ready}, namespace="nobody", subresource="status"
            )
        budget = {"metadata": {"name": "b"}, "spec": {
            "minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}}  # fmt: skip
        await cluster.service.create(BUDGETS, "nobody", budget, WriteOptions())
        await asyncio.sleep(90)
        assert (await client.get(TEAMS, "vision")).status.use.intruders == 2
        assert {(kind, reason) for kind, reason, _ in events.said} >= {
            ("Pod", "ForeignNode"), ("Team", "Intruder"),
        }  # fmt: skip
        pods = {pod.metadata.name: pod for pod in (await client.list(PODS)).items}
        assert not any(pod.metadata.deletion_timestamp for pod in pods.values()), "too early"
        await asyncio.sleep(400)
        pods = {pod.metadata.name: pod for pod in (await client.list(PODS)).items}
        assert pods["free"].metadata.deletion_grace_period_seconds == 300, "not a day"
        assert pods["kept"].metadata.deletion_timestamp is None
        refused = [text for _, reason, text in events.said if reason == "EvictionRefused"]
        assert any("disruption budget" in text for text in refused)
        assert (await client.get(TEAMS, "vision")).status.use.intruders == 1

    run(cluster.play(main, events=events))


class Recorded:
    """The events, as (kind, reason, message)."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []

    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None:  # fmt: skip
        self.said.append((resource.kind, reason, message))


def test_the_teams_of_each_namespace_are_published_and_put_right() -> None:
    cluster = Cluster()

    async def main() -> None:
        client = cluster.client
        await cluster.add_team("vision", 1)
        body = {"metadata": {"name": "speech"}, "spec": {
            "namespaces": ["vision", "speech"], "borrowLimitNodes": 0}}  # fmt: skip
        await client.create(TEAMS, body)
        await asyncio.sleep(10)
        status = (await client.get(FLEETS, FLEET_NAME)).status
        assert (status.teams_count, status.teams) == (
            2, {"vision": "speech=,vision=0", "speech": "speech="},
        )  # fmt: skip
        taken = {"status": {"teamsCount": None, "teams": {"vision": None}}}
        await client.patch(FLEETS, FLEET_NAME, taken, subresource="status")
        await client.delete(TEAMS, "speech")
        await asyncio.sleep(10)
        status = (await client.get(FLEETS, FLEET_NAME)).status
        assert (status.teams_count, status.teams) == (1, {"vision": "vision=0"})
        await client.patch(FLEETS, FLEET_NAME, taken, subresource="status")
        await asyncio.sleep(310)
        status = (await client.get(FLEETS, FLEET_NAME)).status
        assert (status.teams_count, status.teams) == (1, {"vision": "vision=0"})
        await client.delete(TEAMS, "vision")
        await asyncio.sleep(310)
        status = (await client.get(FLEETS, FLEET_NAME)).status
        assert (status.teams_count, status.teams) == (0, {})

    run(cluster.play(main, TeamsPolicy(publishes=True)))


def test_each_waiting_pod_gets_the_tolerations_that_admission_did_not_give() -> None:
    """The team comes after the pods, as after an outage of the webhook."""
    cluster = Cluster()

    async def main() -> None:
        await cluster.client.create(NAMESPACES, {"metadata": {"name": "vision"}})
        containers = [{"name": "main", "image": "x"}]
        gate = {"schedulingGates": [{"name": GANG_GATE}]}
        waiting = [f"waits-{i}" for i in range(3)]
        others = (("bound", {"nodeName": "n0"}), ("gated", gate))
        for name, more in (*((name, {}) for name in waiting), *others):
            body = {"metadata": {"name": name}, "spec": {"containers": containers, **more}}
            await cluster.client.create(PODS, body, namespace="vision")
        await asyncio.sleep(2.0)
        note = {"metadata": {"annotations": {"note": "changed since it came"}}}
        await cluster.client.patch(PODS, "waits-0", note, namespace="vision")
        await cluster.add_team("vision", 0)
        await asyncio.sleep(2.0)
        for name, count in (*((name, 2) for name in waiting), ("bound", 0), ("gated", 0)):
            pod = await cluster.client.get(PODS, name, namespace="vision")
            assert len([t for t in pod.spec.tolerations if t.key == TEAM]) == count, name

    run(cluster.play(main, TeamsPolicy(changes_max=1)))
