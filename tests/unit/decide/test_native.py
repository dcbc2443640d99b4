"""Gangs that kube-scheduler places: which, how their pods ask for it, and what follows."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace as changed

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodCondition,
    Taint,
)
from fairlead.api.kubernetes.core import NodeSelectorRequirement as Requirement
from fairlead.api.podgroups import GroupApi
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.jobs.following.pods import JobPods
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering import native
from fairlead.decide.jobs.rendering.members import gang_map
from fairlead.decide.pinning import Binding, native_affinity, pinned_node
from fairlead.decide.placement.actions import PlaceJob, RecordActualPlacement
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.inventory.labels import tolerates
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_placement,
    make_role,
)
from fairlead.testing.device_builders import with_device_claims

from .jobs_world import World, new_job

POLICY = JobsPolicy(binding=Binding.NATIVE, groups=GroupApi.V1BETA1, native_members_max=4)


def begun(job: Job | None = None, policy: JobsPolicy = POLICY) -> World:
    world = World(job or new_job(), policy)
    world.settle()
    world.schedule()
    world.settle()
    return world


# Which


def test_the_group_comes_before_the_pods_and_goes_with_the_attempt() -> None:
    world = begun()
    made = [each for each in world.done if each.startswith("Create")]
    assert made == ["CreatePodGroup"] + ["CreatePod"] * 4
    groups = {pod.spec.scheduling_group for pod in world.pods.values()}
    assert [group.pod_group_name for group in groups if group] == ["train-1"]
    world.change_spec(suspend=True)
    world.settle()
    world.reap_pods()
    world.settle()
    assert world.pod_groups == {}


@pytest.mark.parametrize(
    ("policy", "job"),
    [
        (changed(POLICY, groups=None), new_job()),
        (changed(POLICY, binding=Binding.PINNED), new_job()),
        (POLICY, new_job(count=5)),
        (POLICY, new_job(count=1)),
        (POLICY, new_job(topology=Topology(key="rack"))),
        (POLICY, with_device_claims(new_job(), claims=["shared"])),
    ],
    ids=["no API", "pinned", "big", "single", "topology", "shared devices"],
)
def test_other_gangs_are_pinned(policy: JobsPolicy, job: Job) -> None:
    world = begun(job, policy)
    assert world.pod_groups == {}
    assert all(pinned_node(pod.spec) for pod in world.pods.values())


def test_a_gang_with_a_member_on_a_direct_node_is_not_native() -> None:
    placement = make_placement(["a", "b"])
    job = make_job("train", count=2, placement=placement)
    assert native.is_native(job, placement, POLICY, {})
    assert not native.is_native(job, placement, POLICY, {"b": Binding.DIRECT})


def test_a_gang_with_a_member_on_a_spare_is_pinned_and_tolerates_the_taint() -> None:
    placement = make_placement(["a", "b"])
    job = make_job("train", count=2, placement=placement)
    assert not native.is_native(job, placement, POLICY, {}, spares=("b",))
    world = begun(policy=changed(POLICY, binding=Binding.PINNED))
    spare = Taint(names.TAINT_SPARE, "NoSchedule", "pool")
    for pod in world.pods.values():
        assert any(tolerates(toleration, spare) for toleration in pod.spec.tolerations)
    for pod in begun().pods.values():  # which kube-scheduler may place anywhere
        assert not any(tolerates(toleration, spare) for toleration in pod.spec.tolerations)


def test_a_gang_stays_as_it_began_when_labels_of_nodes_change() -> None:
    world = begun()
    del world.pods["train-1-worker-3"]
    world.policy = changed(POLICY, native_members_max=1)
    world.act()
    groups = [pod.spec.scheduling_group for pod in world.pods.values()]
    assert len(groups) == 4
    assert None not in groups


def test_a_cordoned_node_of_its_place_ends_no_gang_that_kube_scheduler_places() -> None:
    world = begun()
    del world.pods["train-1-worker-3"]
    world.cordoned = set(world.nodes)
    world.settle()
    assert len(world.pods) == 4
    assert world.status.attempts[-1].finished_at is None


# What is written


def test_groups_are_written_as_each_version_has_them() -> None:
    job = make_job("train", count=3, attempt=2)
    body = native.pod_group_body(job, GroupApi.V1BETA1)
    assert body["metadata"]["name"] == "train-2"
    assert body["metadata"]["labels"][names.JOB_UID] == job.metadata.uid
    assert body["spec"] == {
        "workloadRef": {"workloadName": "train", "templateName": "gang"},
        "schedulingPolicy": {"gang": {"minCount": 3}},
    }
    body = native.pod_group_body(job, GroupApi.V1ALPHA2)
    assert body["spec"]["podGroupTemplateRef"] == {
        "workload": {"workloadName": "train", "podGroupTemplateName": "gang"}
    }
    [template] = native.workload_body(job)["spec"]["podGroupTemplates"]
    assert template == {"name": "gang", "schedulingPolicy": {"gang": {"minCount": 3}}}


def test_every_alternative_of_a_template_keeps_off_direct_nodes() -> None:
    zones = [Requirement(key="zone", operator="In", values=(zone,)) for zone in "ab"]
    terms = tuple(NodeSelectorTerm(match_expressions=(zone,)) for zone in zones)
    old = Affinity(node_affinity=NodeAffinity(required=NodeSelector(terms)))
    wire = msgspec.to_builtins(native_affinity(old, Binding.NATIVE))
    required = wire["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    off = {"key": names.BINDING, "operator": "NotIn", "values": ("direct",)}
    expressions = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
    assert [each[-1] for each in expressions] == [off, off]
    assert [len(each) for each in expressions] == [2, 2]
    [term] = native_affinity(None, Binding.DIRECT).node_affinity.required.node_selector_terms  # type: ignore[union-attr] # made just now
    assert term.match_expressions == (
        Requirement(key=names.BINDING, operator="In", values=("native", "pinned")),
    )


# A group that kube-scheduler refuses


def test_a_refused_group_waits_for_long_and_then_gives_the_whole_place_up() -> None:
    world = begun()
    for name, pod in world.pods.items():
        text = "waiting for minCount pods" if name[-1] != "2" else "3 Insufficient cpu"
        refused = PodCondition(
            type="PodScheduled", status="False", reason="Unschedulable", message=text,
            last_transition_time=format_time(EPOCH),
        )  # fmt: skip
        world.set_pod(name, replace(pod.status, conditions=(refused,)))
    world.run_to(EPOCH + POLICY.native_patience_seconds - 1)
    assert not world.status.attempts[0].reason
    world.run_to(EPOCH + POLICY.native_patience_seconds + POLICY.cause_window_seconds + 1)
    first = world.status.attempts[0]
    assert (first.reason, first.cause) == (EndReason.NOT_BOUND.value, None)
    assert first.nodes_lost == ("n0", "n1", "n2", "n3")
    assert "Insufficient cpu" in first.message


def test_a_refused_member_gives_up_the_place_of_its_own_role() -> None:
    roles = (make_role("master", count=1), make_role("worker", count=2))
    world = begun(make_job("train", roles=roles, attempt=0))
    refused = PodCondition(
        type="PodScheduled", status="False", reason="Unschedulable", message="no room",
        last_transition_time=format_time(EPOCH),
    )  # fmt: skip
    name = "train-1-worker-0"
    world.set_pod(name, replace(world.pods[name].status, conditions=(refused,)))
    placement = make_placement({"master": ["n3"], "worker": ["n0", "n1"]})
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, placement=placement))
    world.run_to(EPOCH + POLICY.native_patience_seconds + POLICY.cause_window_seconds + 1)
    first = world.status.attempts[0]
    assert (first.reason, first.nodes_lost) == (EndReason.NOT_BOUND.value, ("n0",))


# Where it went


def test_the_placement_follows_once_all_members_are_on_nodes() -> None:
    job = make_job("gang", count=2, gpus=4, placement=make_placement(["a", "a"]))
    nodes = [make_node("a", gpus=8), make_node("b", gpus=8)]
    state = PlacementState.of(nodes, [job], [make_member_pod(job, 0, node="b")])
    assert decide(state, PlacementPolicy(), EPOCH).actions == ()
    state.cluster.pod_changed(make_member_pod(job, 1, node="a"))
    [action] = decide(state, PlacementPolicy(), EPOCH).actions
    assert isinstance(action, RecordActualPlacement)
    assert action.placement.roles[0].nodes == ("b", "a")
    assert action.placement.attempt == 1
    state.write_blocked[job.metadata.key] = None  # a write that was refused is not sent at once
    assert decide(state, PlacementPolicy(), EPOCH).actions == ()
    del state.write_blocked[job.metadata.key]
    state.cluster.job_changed(replace(job, status=replace(job.status, placement=action.placement)))
    assert decide(state, PlacementPolicy(), EPOCH).actions == ()


def test_peers_are_listed_with_the_nodes_that_kube_scheduler_chose() -> None:
    job = make_job("gang", count=2, gpus=4, placement=make_placement(["a", "a"]))
    pods = JobPods.of([make_member_pod(job, i, node="b") for i in range(2)])
    made = gang_map(job, POLICY, pods.attempt(1))
    assert [each["node"] for each in json.loads(b64decode(made.binary_data["peers"]))] == ["b", "b"]


def test_until_then_both_the_place_that_was_kept_and_the_new_one_are_taken() -> None:
    job = make_job("gang", count=2, gpus=8, placement=make_placement(["a", "b"]))
    other = make_job("other", count=1, gpus=8)
    nodes = [make_node(name, gpus=8) for name in "abc"]
    state = PlacementState.of(nodes, [job, other], [make_member_pod(job, 0, node="c")])
    actions = decide(state, PlacementPolicy(), EPOCH).actions
    assert not any(isinstance(action, PlaceJob) for action in actions)


def test_pods_of_another_attempt_do_not_move_a_placement() -> None:
    job = make_job("gang", count=1, gpus=8, placement=make_placement(["a"]))
    old = make_member_pod(job, 0, node="b")
    job = replace(
        job, status=replace(job.status, attempt=2, placement=make_placement(["a"], attempt=2))
    )
    state = PlacementState.of([make_node("a"), make_node("b")], [job], [old])
    assert decide(state, PlacementPolicy(), EPOCH).actions == ()
