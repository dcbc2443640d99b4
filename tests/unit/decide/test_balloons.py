"""Which balloons there are: how many, on which nodes, and what they never do."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet, FleetSpec, Freeze
from fairlead.api.cluster.node_pool import (
    VALID,
    BalloonCounts,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.kubernetes.core import Pod, Taint
from fairlead.api.meta import Condition, ObjectMeta, OwnerReference
from fairlead.api.values import quantity
from fairlead.api.values.times import format_time
from fairlead.decide.fleet.actions import WritePool
from fairlead.decide.fleet.balloons import (
    Action,
    BalloonEnding,
    BalloonPolicy,
    CreateBalloon,
    EndBalloon,
    balloon,
    bounded,
    orphans,
    plan_pool,
)
from fairlead.decide.fleet.cycle import decide_fleet
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView
from fairlead.decide.pinning import Binding
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_pod

SPACE = "fairlead-system"
POLICY = BalloonPolicy(namespace=SPACE, binding=Binding.PINNED)
RESOURCES: dict[str, str | int | float] = {"cpu": 128, "memory": "1Ti", "nvidia.com/gpu": 8}


class Scene:
    """A pool, its nodes and its balloons; what is decided is done."""

    def __init__(self, nodes: int = 0, **spec: Any) -> None:
        template = NodeTemplate(RESOURCES)
        fields: dict[str, Any] = {"max": 50, "mode": PoolMode.ACTIVE, **spec}
        self.pool = NodePool(
            ObjectMeta(name="gpu", uid="uid-gpu", generation=1),
            NodePoolSpec(Provider(ProviderType.EXTERNAL), template, **fields),
        )
        self.fleet = Fleet(ObjectMeta(name="fleet", resource_version="1"))
        self.nodes, self.state = PoolNodes(SPACE), ClusterState(balloon_namespace=SPACE)
        self.memory, self.now, self.policy = FleetMemory(), 0.0, POLICY
        self.pods: dict[str, Pod] = {}
        self.waiting: list[Any] = []
        self.version = 0
        for i in range(nodes):
            self.add_node(f"n{i}")

    def add_node(self, name: str, **node: Any) -> None:
        made = make_node(name, labels={names.POOL: "gpu", **node.pop("labels", {})}, **node)
        made = replace(made, spec=replace(made.spec, provider_id=f"other://{name}"))
        self.nodes.put(made, self.now)
        self.state.node_changed(made)

    def put(self, pod: Pod) -> None:
        self.version += 1
        self.nodes.pod_changed(pod.metadata.key, pod, self.now)
        self.state.pod_changed(pod)
        self.pods[pod.metadata.name] = pod

    def remove(self, pod: Pod) -> None:
        self.nodes.pod_changed(pod.metadata.key, None, self.now)
        self.state.pod_deleted(pod.metadata.key)
        del self.pods[pod.metadata.name]

    def want(self, count: int) -> None:
        condition = Condition(VALID, "True", "Valid")
        status = NodePoolStatus(
            observed_generation=1, conditions=(condition,), balloons=BalloonCounts(count)
        )
        self.pool = replace(self.pool, status=status)

    def place(self, name: str, nodes: list[str]) -> None:
        job = make_job(name, placement=make_placement(nodes), gpus=8)
        self.nodes.job_changed(job.metadata.key, job, self.now)
        self.state.job_changed(job)

    def wait(self, name: str, count: int, **job: Any) -> None:
        made = make_job(name, count=count, gpus=8, **job)
        self.state.job_changed(made)
        gang = self.state.gang_of(made)
        assert isinstance(gang, GangRequest)
        self.waiting.append((made.metadata.key, gang))

    def plan(self) -> list[Action]:
        return plan_pool(
            self.pool, self.nodes, self.policy, balloons=list(self.nodes.balloons.values()),
            is_taken=self.pods.__contains__,
        )  # fmt: skip

    def act(self) -> list[str]:
        """Decide once and carry it out; return what was done."""
        done: list[str] = []
        for action in self.plan():
            match action:
                case CreateBalloon(_, body):
                    done.append(f"create {body['metadata']['name']}")
                    self.put(self.made(body))
                case EndBalloon(pod, why):
                    done.append(f"end {pod.metadata.name} {why.value}")
                    self.remove(pod)
        return done

    def made(self, body: dict[str, Any], *, node: str = "", namespace: str = SPACE) -> Pod:
        self.version += 1
        meta = body["metadata"]
        owner = meta["ownerReferences"][0]
        made = make_pod(
            meta["name"], namespace=namespace, labels=meta["labels"], uid=f"uid-{self.version}",
            node=node, gpus=8, cpu="96",
        )  # fmt: skip
        reference = OwnerReference(
            owner["apiVersion"], owner["kind"], owner["name"], owner["uid"], controller=True
        )
        return replace(made, metadata=replace(made.metadata, owner_references=(reference,)))

    def bind(self, name: str, node: str) -> None:
        pod = self.pods[name]
        self.put(replace(pod, spec=replace(pod.spec, node_name=node)))

    def fill(self, count: int) -> None:
        """Have this many balloons, on the first nodes."""
        self.want(count)
        self.act()
        for i in range(count):
            self.bind(f"balloon-gpu-{i}", f"n{i}")

    def wanted(self, *, binding: Binding | None = Binding.PINNED) -> int:
        """Return how many balloons the fleet's decision asks for, and write its status."""
        options = FleetPolicy(binding=binding)
        for _ in range(3):  # a process begins blind
            self.now += 60.0
            view = FleetView(
                fleet=self.fleet, pools=[PoolView(self.pool)], nodes=self.nodes, state=self.state,
                waiting=self.waiting, now=EPOCH + self.now, instant=self.now,
            )  # fmt: skip
            decision, _ = decide_fleet(view, options, self.memory)
            for action in decision.actions:
                if isinstance(action, WritePool):
                    self.pool = replace(self.pool, status=action.status)
        assert self.pool.status.balloons is not None
        return self.pool.status.balloons.wanted


# How many


def test_headroom_is_balloons_and_used_nodes_need_none() -> None:
    scene = Scene(nodes=6, headroom_nodes=2)
    assert scene.wanted() == 2
    scene.place("train", ["n0", "n1", "n2", "n3", "n4"])
    assert scene.wanted() == 2, "one holds an idle node, one asks for a node"
    assert scene.pool.status.wanted == 7


def test_a_hold_and_a_minimum_count_the_nodes_that_are_used() -> None:
    scene = Scene(nodes=3, hold=5)
    scene.place("train", ["n0"])
    assert scene.wanted() == 4
    scene = Scene(nodes=3, min=2)
    scene.place("train", ["n0"])
    assert scene.wanted() == 1


def test_nodes_that_a_gang_lacks_are_asked_for_by_balloons_that_wait() -> None:
    scene = Scene(nodes=2)
    scene.wait("train", 5)
    assert scene.wanted() == 5, "two hold what is there until the rest has come"
    assert scene.pool.status.balloons == BalloonCounts(5, requested=3, jobs=("default/train",))
    scene = Scene(nodes=2)
    scene.wait("near", 5, node_selector={"rack": "new"})
    scene.pool = replace(scene.pool, spec=replace(scene.pool.spec, template=NodeTemplate(
        RESOURCES, {"rack": "new"})))  # fmt: skip
    assert scene.wanted() == 7, "idle nodes that do not help have balloons, too"
    scene = Scene(nodes=2, max=4)
    scene.wait("train", 5)
    assert scene.wanted() == 0, "the pool can never hold it"


def test_nodes_that_are_not_ready_yet_are_awaited_and_cordoned_ones_are_replaced() -> None:
    scene = Scene(nodes=1, headroom_nodes=3, max=3)
    scene.add_node("booting", ready=False)
    scene.add_node("cordoned", unschedulable=True)
    assert scene.wanted() == 3


def test_a_frozen_fleet_asks_for_no_node_and_gives_none_up() -> None:
    scene = Scene(nodes=3, headroom_nodes=3)
    assert scene.wanted() == 3
    scene.fleet = replace(scene.fleet, spec=FleetSpec(freeze=Freeze(reason="move")))
    scene.pool = replace(scene.pool, spec=replace(scene.pool.spec, headroom_nodes=0))
    assert scene.wanted() == 3
    scene.pool = replace(scene.pool, spec=replace(scene.pool.spec, headroom_nodes=9))
    assert scene.wanted() == 3


def test_without_another_scheduler_or_for_nodes_bound_directly_there_are_none() -> None:
    for binding, count in ((None, 0), (Binding.DIRECT, 0), (Binding.PINNED, 3)):
        scene = Scene(nodes=3, headroom_nodes=3)
        assert scene.wanted(binding=binding) == count
        assert ("keeps no balloons" in scene.pool.status.message) is (count == 0)


def test_a_dry_run_says_how_many_it_would_keep_and_keeps_none() -> None:
    scene = Scene(nodes=3, headroom_nodes=3, mode=PoolMode.DRY_RUN)
    assert scene.wanted() == 3
    assert scene.pool.status.message == "dry run: would keep 3 balloons"
    assert scene.plan() == []
    scene.wait("train", 5)
    assert scene.wanted() == 8
    assert scene.pool.status.balloons == BalloonCounts(8), "no node is requested"


# Which pods


def test_missing_balloons_are_made_and_a_second_decision_makes_no_more() -> None:
    scene = Scene(nodes=2)
    scene.want(2)
    assert scene.act() == ["create balloon-gpu-0", "create balloon-gpu-1"]
    assert scene.act() == []
    scene.remove(scene.pods["balloon-gpu-0"])
    assert scene.act() == ["create balloon-gpu-0"]


def test_those_that_wait_go_first_then_those_that_were_made_last() -> None:
    scene = Scene(nodes=4)
    scene.fill(2)
    scene.want(4)
    scene.act()
    scene.bind("balloon-gpu-3", "n3")
    scene.want(1)
    gone = [f"end balloon-gpu-{i} Surplus" for i in (2, 3, 1)]
    assert scene.act() == gone


def test_a_balloon_leaves_the_node_that_a_gang_gets_and_another_one_takes_its_part() -> None:
    scene = Scene(nodes=3)
    scene.fill(3)
    scene.place("train", ["n1"])
    assert scene.act() == ["end balloon-gpu-1 NodeInUse", "create balloon-gpu-3"]
    assert scene.act() == []


def test_one_that_a_scheduler_puts_beside_real_work_is_not_ended_again_and_again() -> None:
    scene = Scene(nodes=2)
    scene.fill(2)
    scene.place("small", ["n1"])
    assert scene.act() == ["end balloon-gpu-1 NodeInUse", "create balloon-gpu-2"]
    scene.bind("balloon-gpu-2", "n1")
    assert scene.act() == ["create balloon-gpu-1"], "it holds nothing, and another one waits"
    assert scene.act() == []
    scene.add_node("n2")
    scene.bind("balloon-gpu-1", "n2")
    assert scene.act() == ["end balloon-gpu-2 Surplus"]
    assert scene.act() == []


def test_one_beside_real_work_leaves_for_the_next_job() -> None:
    scene = Scene(nodes=2)
    scene.fill(2)
    scene.place("small", ["n1"])
    scene.act()
    scene.bind("balloon-gpu-2", "n1")
    scene.place("second", ["n1"])
    assert scene.act()[0] == "end balloon-gpu-2 NodeInUse"


def test_nodes_that_are_closed_or_sick_have_none_and_those_of_teams_may() -> None:
    scene = Scene(nodes=3)
    scene.fill(3)
    scene.add_node("n0", unschedulable=True)
    scene.add_node("n1", taints=[Taint("example.com/sick", "NoSchedule")])
    scene.add_node("n2", taints=[Taint(names.TEAM, "NoSchedule", "red"),
                                 Taint(names.TAINT_NOT_READY, "NoExecute")])  # fmt: skip
    ended = [line for line in scene.act() if line.startswith("end")]
    assert ended == ["end balloon-gpu-0 NodeClosed", "end balloon-gpu-1 NodeClosed"]


def test_one_that_has_ended_or_was_made_from_another_template_is_made_again() -> None:
    scene = Scene(nodes=2)
    scene.fill(2)
    pod = scene.pods["balloon-gpu-0"]
    scene.put(replace(pod, status=replace(pod.status, phase="Failed")))
    assert scene.act() == ["end balloon-gpu-0 Over", "create balloon-gpu-2"]
    template = NodeTemplate({"cpu": 64})
    scene.pool = replace(scene.pool, spec=replace(scene.pool.spec, template=template))
    scene.want(2)
    assert [line.split()[-1] for line in scene.act()] == ["Outdated"] * 2 + [
        "balloon-gpu-0", "balloon-gpu-3",
    ]  # fmt: skip


def test_while_a_spec_is_not_judged_or_wrong_balloons_only_leave_for_real_work() -> None:
    scene = Scene(nodes=3)
    scene.fill(2)
    meta = replace(scene.pool.metadata, generation=2)
    scene.pool = replace(scene.pool, metadata=meta)
    scene.place("train", ["n0"])
    assert scene.act() == ["end balloon-gpu-0 NodeInUse"]
    assert scene.act() == []


def test_a_pool_that_is_deleted_or_changes_hands_keeps_none() -> None:
    scene = Scene(nodes=1)
    scene.fill(1)
    provider = Provider(ProviderType.STATIC, "/machines")
    other = replace(scene.pool, spec=replace(scene.pool.spec, provider=provider))
    going = replace(scene.pool.metadata, deletion_timestamp=format_time(EPOCH))
    for pool in (other, replace(scene.pool, metadata=going)):
        pods = list(scene.nodes.balloons.values())
        plan = plan_pool(pool, scene.nodes, POLICY, balloons=pods, is_taken=scene.pods.__contains__)
        assert [type(action) for action in plan] == [EndBalloon]
    (end,) = orphans(list(scene.nodes.balloons.values()))
    assert isinstance(end, EndBalloon)
    assert end.why is BalloonEnding.POOL_GONE


def test_little_changes_at_once_and_real_work_has_its_own_bound() -> None:
    scene = Scene(nodes=30)
    scene.fill(30)
    scene.place("train", [f"n{i}" for i in range(20)])
    policy = BalloonPolicy(namespace=SPACE, changes_max=5, evictions_max=7)
    actions = bounded(scene.plan(), policy)
    kinds = [type(action) for action in actions]
    assert kinds == [EndBalloon] * 7 + [CreateBalloon] * 5


# What one is


def test_two_balloons_never_share_a_node_and_each_fits_beside_daemon_sets() -> None:
    body = balloon(Scene().pool, 0, POLICY)
    (container,) = body["spec"]["containers"]
    asked = quantity.resources_to_base(container["resources"]["requests"])
    has = quantity.resources_to_base(RESOURCES)
    assert asked.keys() == has.keys()
    for resource, amount in asked.items():
        assert 2 * amount > has[resource]
    assert 10 * asked["cpu"] < 8 * has["cpu"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}


def test_its_pod_passes_pod_security_restricted_and_is_the_first_to_leave() -> None:
    spec = balloon(Scene().pool, 0, POLICY)["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not spec["automountServiceAccountToken"]
    assert spec["terminationGracePeriodSeconds"] == 0
    assert spec["priorityClassName"] == "fairlead-balloon"
    assert "@sha256:" in container["image"]


# The planner


@pytest.mark.parametrize(
    ("namespace", "kind", "is_placed"),
    [(SPACE, "NodePool", True), ("default", "NodePool", False), (SPACE, "ReplicaSet", False)],
)
def test_gangs_are_placed_on_nodes_full_of_balloons_but_not_of_pods_that_look_like_them(
    namespace: str, kind: str, *, is_placed: bool
) -> None:
    scene = Scene(nodes=4)
    for i in range(4):
        body = balloon(scene.pool, i, POLICY)
        body["metadata"]["ownerReferences"][0]["kind"] = kind
        scene.put(scene.made(body, node=f"n{i}", namespace=namespace))
    state = PlacementState(scene.state)
    scene.state.job_changed(make_job("train", count=4, gpus=8))
    decision = decide(state, PlacementPolicy(), EPOCH)
    placed = [a for a in decision.actions if isinstance(a, PlaceJob)]
    assert bool(placed) is is_placed
    assert any(scene.nodes.is_used(f"n{i}") for i in range(4)) is not is_placed
