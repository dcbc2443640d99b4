"""A gang whose place is refused again and again gives it up, waits, and says why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Cause, Restart
from fairlead.api.kubernetes.core import PodCondition, PodStatus
from fairlead.api.podgroups import GroupApi
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.attempts.status import back_off_verdict
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.pinning import Binding
from fairlead.decide.reasons import Reason
from fairlead.model.gang.phase import Phase, phase_of

from .jobs_world import World, new_job

WORDS = "0/4 nodes are available: 4 Insufficient cpu"
POLICY = JobsPolicy(binding=Binding.PINNED, peer_naming=PeerNaming.DNS)
NATIVE = JobsPolicy(
    binding=Binding.NATIVE,
    groups=GroupApi.V1BETA1,
    peer_naming=PeerNaming.DNS,
    native_patience_seconds=POLICY.bind_patience_seconds,
)


def refuse(world: World) -> None:
    """Let kube-scheduler refuse all members of the attempt, until it has ended."""
    said = PodCondition(
        "PodScheduled", "False", "Unschedulable", WORDS,
        last_transition_time=format_time(world.now),
    )  # fmt: skip
    for name in world.pods:
        world.set_pod(name, PodStatus(phase="Pending", conditions=(said,)))
    world.run_to(world.now + POLICY.bind_patience_seconds + POLICY.cause_window_seconds + 1)
    assert world.status.attempts[-1].reason == "NotBound"


def fail_on_nodes(world: World) -> None:
    """Let the kubelets refuse the members of the attempt."""
    for name in world.pods:
        status = PodStatus(phase="Failed", reason="OutOfcpu", message="not enough")
        world.set_pod(name, status)
    world.run_to(world.now + POLICY.cause_window_seconds + 1)
    assert world.status.attempts[-1].reason == "NodeRefused"


def begin(world: World) -> int:
    """Place the gang, have its pods made, and return the number of the attempt."""
    world.reap_pods()
    world.settle()
    world.schedule()
    world.settle()
    assert phase_of(world.job) is Phase.ACTIVE  # type: ignore[arg-type] # it is there
    assert len(world.pods) == 4
    return world.status.attempt


def waits(world: World) -> float:
    """Return how long the gang waits without a place, and let that pass."""
    world.reap_pods()
    world.settle()
    assert world.condition("Admitted") == ("False", "PlaceRefused")
    assert phase_of(world.job) is Phase.UNADMITTED, "the scheduler takes the place back"  # type: ignore[arg-type] # it is there
    world.schedule()
    assert world.status.placement is None
    until = parse_time(world.status.restart_at or "")
    seconds = until - parse_time(world.status.attempts[-1].finished_at or "")
    attempt = world.status.attempt
    world.run_to(until - 0.5)
    assert (world.status.attempt, world.status.state) == (attempt, "Waiting")
    world.run_to(until)
    assert (world.status.attempt, world.condition("Admitted")[0]) == (attempt + 1, "True")
    return seconds


@pytest.mark.parametrize("policy", [POLICY, NATIVE])
def test_a_gang_that_is_never_bound_backs_off_and_its_verdict_is_what_was_said(
    policy: JobsPolicy,
) -> None:
    world = World(new_job(), policy=policy)
    world.settle()
    for attempt in (1, 2):  # another pod may have been faster: tried again at once, in place
        assert begin(world) == attempt
        assert bool(world.pod_groups) is (policy is NATIVE)
        refuse(world)
        assert world.status.restart_at is None
        assert world.status.placement is not None
    assert begin(world) == 3
    refuse(world)
    world.reap_pods()
    world.settle()
    verdict = back_off_verdict(world.status)
    assert verdict is not None
    assert verdict.reason is Reason.PLACE_REFUSED
    assert (verdict.facts["times"], verdict.facts["attempt"]) == (3, 4)
    assert WORDS in verdict.message
    found = [waits(world)]
    assert "Queues again, for attempt 4" in world.events[-1][1]
    for _ in range(6):
        begin(world)
        refuse(world)
        found.append(waits(world))
    assert found == [10, 20, 40, 80, 160, 300, 300]
    assert world.status.infrastructure_failures == world.status.user_failures == 0
    assert world.status.attempts[-1].cause is None


def test_a_gang_that_kubelets_refuse_backs_off_and_gives_the_node_up() -> None:
    job = new_job(spec={"restart": Restart(backoff_seconds=4, infrastructure_limit=9)})
    world = World(job, policy=JobsPolicy())
    world.settle()
    for attempt in (1, 2):
        assert begin(world) == attempt
        fail_on_nodes(world)
        world.reap_pods()
        world.run_to(world.now + 4)
        assert world.status.placement is not None
    begin(world)
    fail_on_nodes(world)
    last = world.status.attempts[-1]
    assert (last.cause, last.nodes_lost) == (Cause.INFRASTRUCTURE, ("n0",))
    assert [waits(world)] == [10]
    assert world.status.infrastructure_failures == 3


def test_a_gang_that_has_run_meanwhile_begins_again_with_its_tries() -> None:
    world = World(new_job(spec={"restart": Restart(limit=9, backoff_seconds=1)}), policy=POLICY)
    world.settle()
    for _ in range(2):
        begin(world)
        refuse(world)
    attempt = begin(world)
    for name, pod in world.pods.items():
        world.pods[name] = replace(pod, spec=replace(pod.spec, node_name="n0"))
    world.settle()
    world.run_pods()
    world.settle()
    world.end_pod(f"train-{attempt}-worker-0", exit_code=1)
    world.settle()
    world.reap_pods()
    world.run_to(world.now + 5)
    begin(world)
    refuse(world)
    assert world.status.restart_at is None


@pytest.mark.parametrize("change", [{"cancel": True}, {"suspend": True}])
def test_a_gang_that_waits_so_can_be_cancelled_and_held(change: dict[str, bool]) -> None:
    world = World(new_job(), policy=POLICY)
    world.settle()
    for _ in range(3):
        begin(world)
        refuse(world)
    world.reap_pods()
    world.settle()
    world.change_spec(**change)
    world.settle()
    if "cancel" in change:
        assert world.status.state == "Cancelled"
    else:
        assert world.condition("Admitted") == ("False", "Held")
