"""Every transition of a job that has a place: start, end, failure, restart, hold, clean-up."""

from __future__ import annotations

import itertools
import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Cause, Restart, RestartPolicy
from fairlead.api.meta import OwnerReference, find_condition
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.attempts.status import back_off_verdict
from fairlead.decide.job_actions import DeleteJob
from fairlead.decide.jobs.actions import CreatePod
from fairlead.decide.jobs.lifecycle import decide_job
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.members import probe_pods
from fairlead.decide.jobs.view import PodRefusal, Refusal
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.gang.phase import Phase, is_failing, phase_of
from fairlead.testing.builders import EPOCH, make_nodes

from .jobs_world import World, new_job


def _running(count: int = 4, *, policy: JobsPolicy | None = None, **spec: object) -> World:
    job = new_job(count=count)
    world = World(replace(job, spec=replace(job.spec, **spec)), policy or JobsPolicy())
    world.start()
    world.done.clear()
    return world


# Start


def test_the_beginning_is_written_before_the_first_pod() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.act()
    assert world.done[-1] == "WriteJobStatus"
    assert not world.pods
    assert world.status.attempts[0].begun_at == "2026-01-01T00:00:00.000000Z"
    world.act()
    assert sorted(world.pods) == [f"train-1-worker-{i}" for i in range(4)]


def test_an_attempt_that_does_not_say_when_it_began_is_given_no_time_to_start() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.settle()
    (attempt,) = world.status.attempts
    assert world.decide().wake_at == world.now + world.policy.start_seconds_max
    world._update(status=replace(world.status, attempts=(replace(attempt, begun_at=None),)))
    assert world.decide().wake_at is None
    world.run_to(world.now + 10 * world.policy.start_seconds_max)
    assert world.status.attempt == 1


def test_a_placement_for_another_attempt_or_for_fewer_members_makes_no_pods() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    placement = world.status.placement
    assert placement is not None
    [role] = placement.roles
    short = replace(placement, roles=(replace(role, nodes=role.nodes[:3]),))
    for wrong in (replace(placement, attempt=2), short):
        assert world.job is not None
        world.job = replace(world.job, status=replace(world.status, placement=wrong))
        world.settle()
        assert not world.pods
        assert not world.status.attempts


def test_peers_are_written_once_every_pod_has_its_address() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.settle()
    assert not world.config_maps
    world.run_pods()
    world.settle()
    shared = world.config_maps["train-1-gang"]
    files = {name: b64decode(text).decode() for name, text in shared.binary_data.items()}
    addresses = [world.pods[f"train-1-worker-{i}"].status.pod_ip for i in range(4)]
    assert files["hostfile"] == "".join(f"{a} slots=1\n" for a in addresses)
    assert files["machinefile"] == "".join(f"{a}:1\n" for a in addresses)
    assert shared.data["MASTER_ADDR"] == shared.data["PET_MASTER_ADDR"] == addresses[0]


def test_a_job_runs_when_all_members_run() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.settle()
    assert (world.status.state, world.condition("Running")) == ("Starting", ("False", "Starting"))
    world.run_pods()
    world.settle()
    world.run_pods()
    world.settle()
    assert (world.status.state, world.condition("Running")[0]) == ("Running", "True")
    assert (world.status.members.total, world.status.members.running) == (4, 4)
    assert world.status.started_at
    assert world.events[-1] == ("Started", "Started: all 4 members run (attempt 1)")


# Success


def test_a_gang_has_not_started_while_a_member_that_failed_is_judged() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.settle()
    world.run_pods()
    world.settle()
    world.run_pods()
    world.end_pod("train-1-worker-2", exit_code=1)
    world.run_to(EPOCH + 1)
    assert world.status.attempts[0].reason == "", "it may be the consequence of another failure"
    world.run_to(EPOCH + 2)
    assert world.status.attempts[0].reason == "ExitCode"
    assert world.status.attempts[0].started_at is None
    assert "Started" not in [reason for reason, _ in world.events]


def test_a_job_succeeds_when_all_members_did() -> None:
    world = _running(2)
    world.now += 90
    world.end_pod("train-1-worker-0")
    world.settle()
    assert world.status.state == "Running"
    world.end_pod("train-1-worker-1")
    world.settle()
    assert world.condition("Succeeded")[0] == "True"
    assert world.condition("Running") == ("False", "Succeeded")
    assert world.status.state == "Succeeded"
    assert world.status.attempts[0].reason == "Succeeded"
    assert world.events[-1] == ("Succeeded", "Succeeded: all 2 members ended well after 1m30s")
    order = [d for d in world.done if d in ("RecordHistory", "WriteJobStatus")]
    assert order[-2:] == ["RecordHistory", "WriteJobStatus"]


def test_finished_pods_stay_for_a_while_then_go_and_peers_go_at_once() -> None:
    world = _running(2, policy=JobsPolicy(keep_finished_pods_seconds=100))
    for name in sorted(world.pods):
        world.end_pod(name)
    world.run_to(EPOCH + 99)
    assert len(world.pods) == 2
    assert not world.config_maps
    world.run_to(EPOCH + 100)
    assert not world.pods


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    world = _running(1, ttl_seconds_after_finished=60)
    world.end_pod("train-1-worker-0")
    world.run_to(EPOCH + 59)
    assert world.job is not None
    world.run_to(EPOCH + 60)
    assert world.job is None
    assert not world.pods


# Failure and restart


def test_a_gang_restarts_as_a_whole_from_its_checkpoint() -> None:
    world = _running()
    world.now += 60
    world.report("train-1-worker-0", '{"step": 120, "checkpointStep": 100}')
    world.end_pod("train-1-worker-2", signal=9)
    world.settle()
    assert all(p.metadata.deletion_timestamp for p in world.pods.values())
    assert world.status.state == "Restarting"
    assert world.status.attempt == 1
    world.run_to(world.now + 30)
    assert world.status.attempt == 1, "not before the pods are gone"
    world.reap_pods()
    world.settle()
    assert world.status.attempt == 2
    world.start()
    first, second = world.status.attempts
    assert (first.cause, first.reason) == (Cause.INFRASTRUCTURE, "Killed")
    assert second.resumed_from_step == 100
    assert world.status.progress is not None
    assert world.status.progress.step == 100
    env = {e.name: e.value for e in world.pods["train-2-worker-0"].spec.containers[0].env}
    assert env["FAIRLEAD_RESUME_STEP"] == "100"
    assert list(world.config_maps) == ["train-2-gang"]
    assert [reason for reason, _ in world.events] == [
        "Started", "MemberLost", "Restarting", "Started",
    ]  # fmt: skip


def test_the_checkpoint_of_an_attempt_is_not_taken_for_one_of_the_next() -> None:
    world = _running()
    for attempt, step in ((1, 120), (2, 130)):
        world.now += 60
        report = {"step": step, "checkpointStep": 100, "reportedAt": format_time(world.now)}
        world.report(f"train-{attempt}-worker-0", json.dumps(report))
        world.end_pod(f"train-{attempt}-worker-2", signal=9)
        world.restart()
    first, second, _ = world.status.attempts
    assert first.saved_at is not None
    assert second.resumed_from_step == 100
    assert second.saved_at is None, "all of it is lost"


def test_the_end_of_an_attempt_is_written_before_its_pods_are_deleted() -> None:
    world = _running()
    world.end_pod("train-1-worker-2", signal=9)
    world.act(limit=1)
    assert world.status.attempts[0].finished_at
    assert not any(p.metadata.deletion_timestamp for p in world.pods.values())
    world.act()
    assert any(p.metadata.deletion_timestamp for p in world.pods.values())


def test_the_back_off_doubles_for_the_users_failures_up_to_its_cap() -> None:
    restart = Restart(limit=9, backoff_seconds=10, backoff_seconds_max=35)
    world = _running(1, restart=restart)
    for attempt, wait in ((1, 10), (2, 20), (3, 35), (4, 35)):
        world.end_pod(f"train-{attempt}-worker-0", exit_code=1)
        world.settle()
        world.reap_pods()
        ended_at = world.now
        world.run_to(ended_at + wait - 1)
        assert world.status.attempt == attempt
        world.run_to(ended_at + wait)
        assert world.status.attempt == attempt + 1
        world.start()


def test_in_a_long_back_off_the_nodes_are_given_back_and_the_next_attempt_queues_again() -> None:
    restart = Restart(limit=9, backoff_seconds=3_600, backoff_seconds_max=3_600)
    world = _running(1, restart=restart)
    world.end_pod("train-1-worker-0", exit_code=1)
    world.settle()
    world.reap_pods()
    ended_at = world.now
    assert world.condition("Admitted") == ("False", "BackingOff")
    assert world.status.state == "Restarting"
    assert phase_of(world.job) is Phase.UNADMITTED, "the scheduler takes the place back"
    verdict = back_off_verdict(world.status)
    assert verdict is not None
    assert verdict.facts == {"attempt": 2, "backoff_seconds": 3_600}
    world.run_to(ended_at + 3_599)
    assert world.status.attempt == 1
    world.schedule()
    assert world.status.placement is None
    world.run_to(ended_at + 3_600)
    assert (world.status.attempt, world.condition("Admitted")[0]) == (2, "True")
    assert "Queues again, for attempt 2" in world.events[-1][1]
    assert back_off_verdict(world.status) is None


def test_infrastructure_failures_wait_the_first_step_only_and_have_their_own_limit() -> None:
    world = _running(1, restart=Restart(limit=0, infrastructure_limit=3, backoff_seconds=10))
    for attempt in (1, 2, 3):
        world.end_pod(f"train-{attempt}-worker-0", signal=9)
        world.settle()
        world.reap_pods()
        world.run_to(world.now + 10)
        assert world.status.attempt == attempt + 1
        world.start()
    world.end_pod("train-4-worker-0", signal=9)
    world.settle()
    assert world.condition("Failed") == ("True", "RestartLimit")
    assert (world.status.user_failures, world.status.infrastructure_failures) == (0, 4)


def test_the_admins_ceiling_ends_a_job_whose_own_limit_is_higher() -> None:
    restart = Restart(infrastructure_limit=100, backoff_seconds=10)
    world = _running(1, restart=restart, policy=JobsPolicy(infrastructure_limit_max=1))
    for attempt in (1, 2):
        world.end_pod(f"train-{attempt}-worker-0", signal=9)
        world.settle()
        world.reap_pods()
        if attempt == 1:
            world.run_to(world.now + 10)
            world.start()
    assert world.condition("Failed") == ("True", "RestartLimit")


def test_the_users_failures_end_the_job_beyond_the_limit() -> None:
    world = _running(2, restart=Restart(limit=1))
    world.end_pod("train-1-worker-0", exit_code=3)
    world.run_to(world.now + 3)
    world.restart()
    world.end_pod("train-2-worker-0", exit_code=3)
    world.run_to(world.now + 3)
    assert world.status.state == "Stopping"
    world.reap_pods()
    world.settle()
    assert world.condition("Failed") == ("True", "RestartLimit")
    assert world.status.state == "Failed"
    assert (
        "exited with code 3; this is failure 2 of its own program, and 1 restart is"
        in world.events[-1][1]
    )
    assert list(world.pods) == ["train-2-worker-0"], "the pod that failed stays readable"


def test_a_failure_of_the_program_ends_the_job_unless_restarts_are_asked_for() -> None:
    world = _running(2)
    world.end_pod("train-1-worker-0", exit_code=7)
    world.run_to(world.now + 3)
    world.reap_pods()
    world.settle()
    assert world.condition("Failed") == ("True", "MemberFailed")
    assert world.status.attempt == 1
    assert world.events[-1][1].endswith("exited with code 7")


def test_policy_never_fails_at_the_first_failure() -> None:
    world = _running(1, restart=Restart(policy=RestartPolicy.NEVER))
    world.end_pod("train-1-worker-0", exit_code=1)
    world.settle()
    assert world.condition("Failed") == ("True", "MemberFailed")
    assert world.status.attempt == 1


def test_a_lost_node_ends_the_attempt_after_the_grace_and_its_pod_is_forced_out() -> None:
    world = _running()
    world.lose_node("n1")
    world.run_to(EPOCH + 39)
    assert world.status.state == "Running"
    world.run_to(EPOCH + 40)
    assert world.status.attempts[0].reason == "NodeLost"
    assert world.status.attempts[0].nodes_lost == ("n1",)
    assert "train-1-worker-1" not in world.pods, "nobody there could confirm its end"
    assert len(world.pods) == 3
    world.restart()
    assert {p.spec.node_name for p in world.pods.values()} == {"n0", "n2", "n3"}


def test_a_node_that_no_longer_exists_is_lost_after_a_shorter_grace() -> None:
    world = _running()
    world.lose_node("n1", is_gone=True)
    world.run_to(EPOCH + 5)
    assert world.status.attempts[0].reason == "NodeLost"
    assert "no longer exists" in world.status.attempts[0].message


def test_a_pod_on_a_node_that_falls_silent_while_it_stops_is_forced_out_later() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", signal=9)
    world.settle()
    world.lose_node("n1")
    world.reap_pods()
    world.run_to(EPOCH + 39)
    assert list(world.pods) == ["train-1-worker-1"]
    world.run_to(EPOCH + 40)
    assert not world.pods
    assert world.status.attempt == 2


def test_each_pod_is_forced_out_when_its_own_node_counts_as_lost() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", signal=9)
    world.settle()
    world.lose_node("n1")
    world.lose_node("n2", since=EPOCH + 20)
    world.reap_pods()
    assert world.settle().wake_at == EPOCH + 40
    world.run_to(EPOCH + 40)
    assert list(world.pods) == ["train-1-worker-2"]
    assert world.decide().wake_at == EPOCH + 60
    world.run_to(EPOCH + 60)
    assert not world.pods


def test_a_late_pod_of_an_earlier_attempt_on_a_lost_node_does_not_hold_up_the_next_one() -> None:
    world = _running()
    late = world.pods["train-1-worker-1"]
    world.end_pod("train-1-worker-0", signal=9)
    world.settle()
    world.reap_pods()
    world.run_to(EPOCH + 15)
    assert (world.status.attempt, world.pods) == (2, {})
    world.pods["train-1-worker-1"] = late
    world.lose_node("n1")
    world.schedule("n0", "n2", "n3")
    world.run_to(EPOCH + 54)
    assert list(world.pods) == ["train-1-worker-1"], "never two at once"
    assert world.decide().wake_at == EPOCH + 55
    world.run_to(EPOCH + 55)
    assert sorted(world.pods) == [f"train-2-worker-{i}" for i in range(4)]


def test_a_pod_that_vanished_after_the_start_ends_the_attempt() -> None:
    world = _running()
    del world.pods["train-1-worker-3"]
    world.settle()
    assert world.status.attempts[0].reason == "PodVanished"
    assert world.status.attempts[0].cause is Cause.INFRASTRUCTURE
    assert world.status.attempts[0].message.endswith("(rank 3, node n3) has vanished")


def test_the_message_counts_the_other_pods_that_vanished() -> None:
    world = _running()
    for i in (1, 3):
        del world.pods[f"train-1-worker-{i}"]
    world.settle()
    assert world.status.attempts[0].message.endswith("has vanished, and 1 other")


def test_a_pod_that_was_not_made_yet_is_made() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.act()
    world.act(limit=2)  # dies after two pods
    assert len(world.pods) == 2
    world.settle()
    assert len(world.pods) == 4


def test_a_place_that_is_taken_away_under_a_running_gang_ends_the_attempt() -> None:
    world = _running()
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, placement=None))
    world.settle()
    assert world.status.attempts[0].reason == "PlacementLost"
    world.restart()
    assert world.status.attempt == 2


def test_members_that_do_not_start_in_time_end_the_attempt() -> None:
    world = World(new_job(), JobsPolicy(start_seconds_max=600))
    world.settle()
    world.schedule()
    world.run_to(EPOCH + 600)
    assert world.status.attempts[0].reason == "StartTimeout"
    assert world.status.attempts[0].message == "4 members had not started after 10m"


def test_an_image_that_cannot_be_pulled_is_the_users_failure_after_a_while() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.settle()
    world.wait_pod("train-1-worker-0", "ImagePullBackOff", "no such image")
    world.run_to(EPOCH + 59)
    assert world.status.state == "Starting"
    world.run_to(EPOCH + 60)
    [attempt] = world.status.attempts
    assert (attempt.cause, attempt.reason) == (Cause.USER, "StartFailed")
    assert "container main: ImagePullBackOff (no such image)" in attempt.message


def test_a_job_whose_pods_the_api_refuses_fails_at_once_with_its_words() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.act()
    world.refusal = PodRefusal(1, Refusal.POD_REJECTED, "spec.containers[0].image: required")
    world.run_to(EPOCH)
    [attempt] = world.status.attempts
    assert (attempt.cause, attempt.reason) == (Cause.USER, "PodRejected")
    assert attempt.message == "spec.containers[0].image: required"
    failed = find_condition(world.status.conditions, names.FAILED)
    assert failed is not None
    assert (failed.status, failed.reason) == ("True", "PodRejected")
    assert "spec.containers[0].image: required" in failed.message
    assert not world.pods


def _held_back(world: World, retry_at: float, message: str = "looking up service account") -> None:
    world.refusal = PodRefusal(1, Refusal.POD_HELD_BACK, message, EPOCH, retry_at)


def test_pods_that_are_held_back_are_tried_one_by_one_until_patience_ends() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.act()
    _held_back(world, EPOCH + 5)
    world.run_to(EPOCH)
    running = find_condition(world.status.conditions, names.RUNNING)
    assert running is not None
    assert (running.reason, running.message) == ("PodHeldBack", "looking up service account")
    assert (world.decide().actions, world.decide().wake_at) == ((), EPOCH + 5)
    world.now = EPOCH + 5
    [action] = world.decide().actions
    assert isinstance(action, CreatePod)
    _held_back(world, EPOCH + 40)
    world.run_to(EPOCH + 29)
    assert not world.pods
    assert not world.status.attempts[-1].reason
    world.run_to(EPOCH + 30)
    [attempt] = world.status.attempts
    assert (attempt.cause, attempt.reason) == (None, "PodHeldBack")
    assert attempt.message == "looking up service account (refused for 30s)"
    assert find_condition(world.status.conditions, names.FAILED) is None


def test_once_the_api_takes_pods_again_the_attempt_goes_on_and_nothing_is_left_of_it() -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.act()
    _held_back(world, EPOCH + 5)
    world.run_to(EPOCH + 4)
    world.refusal = None
    world.settle()
    assert world.job is not None
    assert len(world.pods) == world.job.member_count
    running = find_condition(world.status.conditions, names.RUNNING)
    assert running is not None
    assert (running.reason, running.message) == ("Starting", "")
    assert not world.status.attempts[-1].reason


@pytest.mark.parametrize("refusal", [Refusal.QUOTA_EXCEEDED, Refusal.POLICY_REFUSED])
def test_a_gang_whose_pods_are_refused_gives_its_place_back_at_once(refusal: Refusal) -> None:
    world = World(new_job())
    world.settle()
    world.schedule()
    world.act()
    world.act(limit=2)  # two pods are taken, the third is not
    assert len(world.pods) == 2
    world.refusal = PodRefusal(1, refusal, "exceeded quota: team", EPOCH, EPOCH + 1)
    world.probe_refusal = refusal
    world.run_to(EPOCH)
    admitted = find_condition(world.status.conditions, names.ADMITTED)
    assert admitted is not None
    assert admitted.status == "True", "its pods are still there, and so is its place"
    world.reap_pods()
    world.run_to(EPOCH)
    assert not world.pods
    [attempt] = world.status.attempts
    assert (attempt.cause, attempt.reason) == (None, refusal.value.value)
    admitted = find_condition(world.status.conditions, names.ADMITTED)
    assert admitted is not None
    assert (admitted.status, admitted.reason) == ("False", refusal.value.value)
    assert admitted.message == "exceeded quota: team"
    assert world.status.state == "Waiting"
    assert (world.status.infrastructure_failures, world.status.user_failures) == (0, 0)
    assert world.job is not None
    state = PlacementState.of(make_nodes(0), [world.job])
    assert list(state.sets.releasable) == [world.job.metadata.key]


def refused_world() -> World:
    """Return a world in which a quota refuses the pods of the first attempt."""
    world = World(new_job())
    world.settle()
    world.schedule()
    world.act()
    world.refusal = PodRefusal(1, Refusal.QUOTA_EXCEEDED, "full", EPOCH, EPOCH + 1)
    world.probe_refusal = Refusal.QUOTA_EXCEEDED
    world.run_to(EPOCH)
    world.schedule()
    return world


def test_a_refused_job_asks_ever_more_rarely_and_begins_once_its_pods_would_be_taken() -> None:
    world = refused_world()
    asked: list[float] = []
    for second in range(3600):
        before = world.probe
        world.run_to(EPOCH + second)
        if world.probe is not before:
            asked.append(second)
    delays = [after - before for before, after in itertools.pairwise(asked)]
    assert delays[:6] == sorted(delays[:6])
    assert max(delays) <= 300
    assert len(asked) < 25
    assert world.status.attempt == 1
    assert not world.pods
    world.refusal = world.probe_refusal = None
    world.run_to(EPOCH + 4000)
    admitted = find_condition(world.status.conditions, names.ADMITTED)
    assert admitted is not None
    assert (world.status.attempt, admitted.status) == (2, "True")


def test_a_job_that_is_refused_again_waits_as_long_as_the_refusals_have_lasted() -> None:
    world = refused_world()
    world.run_to(EPOCH + 40)
    world.probe_refusal = None  # the refusal of attempt 1 is still known
    world.run_to(EPOCH + 100)
    world.schedule()
    world.settle()
    assert sorted(world.pods) == [f"train-2-worker-{i}" for i in range(4)], "taken this time"
    world.refusal = PodRefusal(2, Refusal.QUOTA_EXCEEDED, "full", world.now, world.now + 1)
    world.settle()
    world.reap_pods()
    world.settle()
    assert world.status.restart_at is not None
    assert parse_time(world.status.restart_at) - world.now == 100


def test_the_pods_that_the_api_is_asked_about_are_those_of_the_next_attempt() -> None:
    [pod] = probe_pods(new_job(count=2), JobsPolicy())
    assert pod.metadata.labels[names.ATTEMPT] == "1"
    assert pod.metadata.name == "train-1-worker-0"


def test_an_attempt_does_not_end_while_a_pod_may_come_late() -> None:
    """Its place would go to others, and the pod would find it taken."""
    world = World(new_job())
    world.settle()
    world.schedule()
    world.settle()
    world.late_until = EPOCH + 30
    world.change_spec(suspend=True)
    assert world.settle().wake_at == EPOCH + 30
    assert not world.status.attempts[-1].reason
    world.run_to(EPOCH + 29)
    assert len(world.pods) == 4
    world.run_to(EPOCH + 30)
    assert world.status.attempts[-1].reason == "Suspended"


def test_only_the_latest_attempts_are_kept() -> None:
    world = _running(1)
    for attempt in range(1, 23):
        world.end_pod(f"train-{attempt}-worker-0", signal=9)
        world.restart()
    assert [a.number for a in world.status.attempts] == list(range(4, 24))


def test_a_cause_is_revised_when_a_members_node_turns_out_to_be_lost() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", exit_code=1)  # its peer went silent
    world.run_to(EPOCH + 2)
    assert world.status.attempts[0].cause is Cause.USER
    assert world.status.user_failures == 1
    world.lose_node("n1")
    world.reap_pods()
    world.run_to(EPOCH + 42)
    assert world.status.attempts[0].cause is Cause.NODE
    assert (world.status.user_failures, world.status.infrastructure_failures) == (0, 1)
    assert "CauseRevised" in [reason for reason, _ in world.events]
    assert world.status.attempt == 2


def test_a_revised_cause_adds_to_the_nodes_that_the_attempt_gave_up() -> None:
    world = _running()
    world.now += 10
    world.end_pod("train-1-worker-0", exit_code=1, at=EPOCH)
    world.evict_pod("train-1-worker-2")  # too late to be the cause
    world.settle()
    assert world.status.attempts[0].cause is Cause.USER
    assert world.status.attempts[0].nodes_lost == ("n2",)
    world.lose_node("n1")
    world.reap_pods()
    world.run_to(EPOCH + 52)
    assert world.status.attempts[0].cause is Cause.NODE
    assert world.status.attempts[0].nodes_lost == ("n1", "n2")


# Policy Member


def test_policy_member_replaces_only_the_member_that_failed() -> None:
    world = _running(3, restart=Restart(policy=RestartPolicy.MEMBER, limit=1, backoff_seconds=10))
    before = {n: p.metadata.uid for n, p in world.pods.items()}
    world.end_pod("train-1-worker-1", exit_code=1)
    world.settle()
    [entry] = world.status.member_restarts
    assert (entry.role, entry.index, entry.cause) == ("worker", 1, Cause.USER)
    assert world.status.user_failures == 1
    assert "train-1-worker-1" not in world.pods, "a name is free once its pod is gone"
    world.run_to(EPOCH + 9)
    assert "train-1-worker-1" not in world.pods
    world.run_to(EPOCH + 10)
    after = {n: p.metadata.uid for n, p in world.pods.items()}
    assert after["train-1-worker-1"] != before["train-1-worker-1"]
    assert all(after[f"train-1-worker-{i}"] == before[f"train-1-worker-{i}"] for i in (0, 2))
    assert world.status.member_restarts == ()
    assert (world.status.attempt, world.status.user_failures) == (1, 1)
    for name in sorted(world.pods):
        world.end_pod(name)
    world.settle()
    assert world.status.state == "Succeeded"


def test_policy_member_resumes_a_member_from_the_latest_checkpoint() -> None:
    world = _running(2, restart=Restart(policy=RestartPolicy.MEMBER, limit=1))
    first = world.pods["train-1-worker-1"]
    assert "FAIRLEAD_RESUME_STEP" not in {e.name for e in first.spec.containers[0].env}
    world.report("train-1-worker-0", '{"step": 50, "checkpointStep": 40}')
    world.run_to(EPOCH + 60)
    world.end_pod("train-1-worker-1", exit_code=1)
    world.run_to(EPOCH + 120)
    again = world.pods["train-1-worker-1"]
    assert again.metadata.uid != first.metadata.uid
    env = {e.name: e.value for e in again.spec.containers[0].env}
    assert env["FAIRLEAD_RESUME_STEP"] == "40"


def test_policy_member_counts_a_failure_once_however_often_the_controller_dies() -> None:
    world = _running(2, restart=Restart(policy=RestartPolicy.MEMBER))
    world.end_pod("train-1-worker-1", exit_code=1)
    for _ in range(3):
        world.act(limit=1)
        world.act(limit=0)
    assert world.status.user_failures == 1


def test_policy_member_ends_the_attempt_beyond_the_limit() -> None:
    world = _running(2, restart=Restart(policy=RestartPolicy.MEMBER, limit=0))
    world.end_pod("train-1-worker-1", exit_code=1)
    world.settle()
    world.reap_pods()
    world.settle()
    assert world.condition("Failed") == ("True", "MemberFailed")


def test_policy_member_restarts_the_gang_when_a_node_is_lost() -> None:
    world = _running(2, restart=Restart(RestartPolicy.MEMBER, limit=1, backoff_seconds=90))
    world.end_pod("train-1-worker-0", exit_code=1)
    world.settle()
    assert len(world.status.member_restarts) == 1
    world.lose_node("n1")
    world.run_to(EPOCH + 40)
    assert world.status.attempts[0].reason == "NodeLost"
    assert world.status.member_restarts == (), "the next attempt has new members"


def test_policy_member_restarts_the_gang_for_a_node_that_is_lost_long_after_a_failure() -> None:
    world = _running(2, restart=Restart(policy=RestartPolicy.MEMBER))
    world.end_pod("train-1-worker-1", exit_code=137)
    world.now += 20
    world.lose_node("n0")
    world.now += 60
    world.settle()
    assert world.status.attempts[0].reason == "NodeLost"


# Cancel, hold, time limit


def test_a_cancelled_gang_gets_its_grace_and_ends_as_cancelled() -> None:
    world = _running(2)
    world.report("train-1-worker-0", '{"step": 7}')
    world.change_spec(cancel=True)
    world.settle()
    assert world.status.state == "Stopping"
    assert all(p.metadata.deletion_timestamp for p in world.pods.values())
    world.reap_pods()
    world.settle()
    assert world.condition("Failed") == ("True", "Cancelled")
    assert world.status.state == "Cancelled"
    assert world.status.attempts[0].cause is None
    assert world.events[-1][1] == "Cancelled: cancelled by its user at step 7 (no checkpoint yet)"


def test_a_cancelled_gang_ends_though_its_user_takes_that_back_while_it_stops() -> None:
    world = _running(2)
    world.change_spec(cancel=True)
    world.settle()
    world.change_spec(cancel=False)
    world.settle()
    world.reap_pods()
    world.settle()
    assert world.condition("Failed") == ("True", "Cancelled")


def test_a_deleted_running_job_is_cancelled_recorded_and_released_last() -> None:
    world = _running(2)
    world.delete()
    world.settle()
    assert world.job is not None
    world.reap_pods()
    world.settle()
    assert world.job is None
    [record] = world.records.values()
    assert record.status.state == "Cancelled"


def test_a_deleted_job_stays_until_the_pods_that_ended_before_are_gone_too() -> None:
    world = _running(2)
    for name in sorted(world.pods):
        world.end_pod(name)
    world.settle()
    assert len(world.pods) == 2, "kept for a while"
    world.lose_node("n1")
    world.delete()
    world.run_to(EPOCH + 39)
    assert list(world.pods) == ["train-1-worker-1"]
    assert world.job is not None
    world.run_to(EPOCH + 40)
    assert (world.job, world.pods) == (None, {})


def test_the_pods_of_a_deleted_job_keep_their_names_while_one_may_come_late() -> None:
    """It would be made again, on nodes that the job has given back."""
    world = _running(2)
    for name in sorted(world.pods):
        world.end_pod(name)
    world.settle()
    world.late_until = EPOCH + 30
    world.delete()
    assert world.settle().wake_at == EPOCH + 30
    world.run_to(EPOCH + 29)
    assert len(world.pods) == 2
    world.run_to(EPOCH + 30)
    world.reap_pods()
    world.settle()
    assert (world.job, world.pods) == (None, {})


def test_a_job_that_is_cancelled_in_its_back_off_ends() -> None:
    world = _running(1, restart=Restart(limit=1, backoff_seconds=100))
    world.end_pod("train-1-worker-0", exit_code=1)
    world.settle()
    world.change_spec(cancel=True)
    world.settle()
    assert world.status.state == "Cancelled"


def test_a_suspended_gang_stops_uncounted_and_resumes_as_the_next_attempt() -> None:
    world = _running(2)
    world.report("train-1-worker-0", '{"step": 50, "checkpointStep": 40}')
    world.settle()
    world.change_spec(suspend=True)
    world.schedule()
    assert world.status.placement is not None, "released only after the end is written"
    world.settle()
    assert world.status.state == "Stopping"
    world.reap_pods()
    world.settle()
    assert (world.status.state, world.condition("Admitted")) == ("Held", ("False", "Held"))
    assert (world.status.attempts[0].reason, world.status.attempts[0].cause) == ("Suspended", None)
    assert (world.status.user_failures, world.status.infrastructure_failures) == (0, 0)
    assert world.events[-1][1] == (
        "Held: attempt 1 has stopped at step 50 (last checkpoint at step 40)"
    )
    held = world.job
    world.change_spec(suspend=False)
    world.settle()
    assert world.status.attempt == 1, "others may count on the place until it is taken back"
    world.job = held
    world.schedule()
    assert world.status.placement is None
    world.change_spec(suspend=False)
    world.start()
    assert world.status.attempt == 2
    assert world.status.attempts[1].resumed_from_step == 40


def test_an_attempt_that_reaches_its_time_limit_fails_after_its_grace() -> None:
    world = _running(2, time_limit_seconds=100)
    world.run_to(EPOCH + 99)
    assert world.status.state == "Running"
    world.run_to(EPOCH + 100)
    assert world.status.state == "Stopping"
    world.reap_pods()
    world.settle()
    assert world.condition("Failed") == ("True", "TimeLimit")
    assert world.status.attempts[0].cause is None


def test_the_time_limit_counts_from_when_all_members_run() -> None:
    job = new_job(count=2)
    world = World(replace(job, spec=replace(job.spec, time_limit_seconds=100)))
    world.settle()
    world.schedule()
    world.settle()
    assert world.status.attempts[0].begun_at
    world.run_to(EPOCH + 60)  # a large image
    world.start()
    world.run_to(EPOCH + 159)
    assert world.status.state == "Running"
    world.run_to(EPOCH + 160)
    assert world.status.state == "Stopping"
    assert world.status.attempts[0].reason == "TimeLimit"


# Counts and progress


def test_progress_never_goes_back_within_an_attempt() -> None:
    world = _running(2)
    world.report("train-1-worker-0", '{"step": 30, "checkpointStep": 20}')
    world.report("train-1-worker-1", '{"step": 28, "checkpointStep": 25}')
    world.now += 5
    world.settle()
    world.report("train-1-worker-0", "not json")
    world.report("train-1-worker-1", '{"step": 29}')
    world.settle()
    progress = world.status.progress
    assert progress is not None
    assert (progress.step, progress.checkpoint_step) == (30, 25)


def test_counts_of_a_big_gang_are_written_at_most_every_so_often() -> None:
    policy = JobsPolicy(small_gang_members_max=3, progress_write_seconds=10)
    world = _running(4, policy=policy)
    world.end_pod("train-1-worker-0")
    view = msgspec.structs.replace(world.view(), counts_written_at=EPOCH + 5)
    decision = decide_job(msgspec.structs.replace(view, now=EPOCH + 6))
    assert (decision.actions, decision.wake_at) == ((), EPOCH + 15)
    assert len(decide_job(msgspec.structs.replace(view, now=EPOCH + 15)).actions) == 1


def test_a_job_that_has_ended_counts_no_member_as_running_or_about_to() -> None:
    world = _running(3)
    world.change_spec(cancel=True)
    world.settle()
    world.reap_pods()
    world.settle()
    assert world.status.state == "Cancelled"
    members = world.status.members
    assert (members.total, members.running, members.pending) == (3, 0, 0)


def test_a_job_that_fails_for_good_holds_nothing_while_its_last_pod_cannot_go() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", exit_code=1)
    world.run_to(EPOCH + 2)
    assert is_failing(world.job)
    assert not world.job.is_finished
    assert world.status.placement is not None, "for the record"
    world.change_spec(restart=Restart(limit=5))
    world.run_to(EPOCH + 4)
    assert is_failing(world.job), "the place may be another job's by now"
    world.reap_pods()
    world.settle()
    assert world.job.is_finished
    assert world.condition(names.FAILED) == ("True", "MemberFailed")
    assert world.records[world.job.metadata.uid].status.placement is not None


def test_a_place_that_a_failing_job_gave_up_is_not_taken_back_with_a_revised_cause() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", exit_code=1)
    world.run_to(EPOCH + 2)
    assert is_failing(world.job)
    world.lose_node("n1")
    world.reap_pods()
    world.run_to(EPOCH + 42)
    assert world.status.attempts[0].cause is Cause.NODE
    assert not is_failing(world.job)
    assert (world.status.attempt, world.status.placement) == (2, None)


def test_a_job_gives_nothing_up_while_a_node_in_doubt_may_turn_out_to_be_the_cause() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", exit_code=1)
    world.lose_node("n1")
    world.settle()
    assert world.status.attempts[0].finished_at
    assert not is_failing(world.job)


DAY = 86_400.0


@pytest.mark.parametrize(
    ("spec", "view", "goes_after"),
    [
        ({}, {}, DAY),
        ({}, {"is_surplus": True}, 0.0),
        ({"ttl_seconds_after_finished": 60}, {}, 60.0),
        ({"ttl_seconds_after_finished": int(2 * DAY)}, {"is_surplus": True}, 2 * DAY),
        ({}, {"is_waited_for": True, "is_surplus": True}, None),
    ],
)
def test_an_ended_job_goes_by_its_own_time_else_after_a_day_or_beyond_a_count(
    spec: dict[str, Any], view: dict[str, Any], goes_after: float | None
) -> None:
    world = _running(1, policy=JobsPolicy(keep_finished_seconds=DAY), **spec)
    world.end_pod("train-1-worker-0")
    world.settle()
    assert world.job is not None
    assert world.job.status.finished_at is not None
    ended_at = parse_time(world.job.status.finished_at)

    def goes(at: float) -> bool:
        seen = replace(world.view(), now=at, **view)
        return DeleteJob(seen.job) in decide_job(seen).actions

    assert goes(ended_at + 10 * DAY) is (goes_after is not None)
    if goes_after is not None:
        assert goes(ended_at + goes_after)
        assert not goes_after or not goes(ended_at + goes_after - 1)


def test_an_ended_job_that_something_owns_is_left_to_its_owner() -> None:
    owner = OwnerReference("example.com/v1", "Sweep", "s", "u")
    world = _running(1, policy=JobsPolicy(keep_finished_seconds=DAY))
    world.end_pod("train-1-worker-0")
    world.settle()
    seen = world.view()
    owned = replace(seen.job, metadata=replace(seen.job.metadata, owner_references=(owner,)))
    for job, goes in ((seen.job, True), (owned, False)):
        late = replace(seen, job=job, now=seen.now + 10 * DAY)
        assert (DeleteJob(job) in decide_job(late).actions) is goes
