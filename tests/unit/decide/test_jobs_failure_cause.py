"""Whose fault a failure was."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Cause, Restart
from fairlead.api.kubernetes.core import (
    Container,
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    PodCondition,
    PodStatus,
)
from fairlead.api.names import EXIT_STOPPED, EXIT_UNAVAILABLE
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.end_reason import EndReason, cause_of
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.pinning import Binding, pinned_node
from fairlead.member import mpirun
from fairlead.testing.builders import EPOCH

from .jobs_world import World, new_job

NAME = "train-1-worker-2"


def _running(**more: Any) -> World:
    world = World(new_job(), **more)
    world.start()
    world.now += 10
    return world


def _judged(world: World, *, at: float | None = None) -> Attempt:
    """Return the attempt once its end is written; the evidence window has passed by then."""
    world.run_to(world.now + 3 if at is None else at)
    [attempt] = world.status.attempts
    assert attempt.finished_at
    return attempt


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        (["Stopped", "Stopped"], Cause.USER),
        (["Stopped", "Stopped", "NodeLost"], Cause.INFRASTRUCTURE),
        (["Stopped", "NodeLost", "Stopped"], Cause.INFRASTRUCTURE),
    ],
)
def test_three_attempts_in_a_row_that_are_stopped_are_the_fault_of_the_program(
    before: list[str], cause: Cause
) -> None:
    attempts = [Attempt(number + 1, reason=reason) for number, reason in enumerate(before)]
    assert cause_of(EndReason.STOPPED, attempts) is cause


@pytest.mark.parametrize(
    ("ended", "cause", "reason", "text"),
    [
        (ContainerStateTerminated(exit_code=1), Cause.USER, "ExitCode", "exited with code 1"),
        (
            ContainerStateTerminated(exit_code=137, reason="OOMKilled"),
            Cause.USER,
            "OutOfMemory",
            "ran out of memory",
        ),
        (
            ContainerStateTerminated(exit_code=137, signal=9),
            Cause.INFRASTRUCTURE,
            "Killed",
            "killed by signal 9 (SIGKILL)",
        ),
        (
            ContainerStateTerminated(exit_code=137),
            Cause.INFRASTRUCTURE,
            "Killed",
            "killed by signal 9 (SIGKILL)",
        ),
        (
            ContainerStateTerminated(exit_code=143),
            Cause.INFRASTRUCTURE,
            "Killed",
            "killed by signal 15 (SIGTERM)",
        ),
        (
            ContainerStateTerminated(exit_code=139, signal=11),
            Cause.USER,
            "Crashed",
            "killed by signal 11 (SIGSEGV)",
        ),
        (ContainerStateTerminated(exit_code=255), Cause.USER, "ExitCode", "exited with code 255"),
        (
            ContainerStateTerminated(exit_code=128, reason="StartError", message="no such file"),
            Cause.USER,
            "StartFailed",
            "could not be started: no such file",
        ),
    ],
)
def test_the_end_of_a_container_tells_the_cause(
    ended: ContainerStateTerminated, cause: Cause, reason: str, text: str
) -> None:
    world = _running()
    status = ContainerStatus(name="main", state=ContainerState(terminated=ended))
    old = world.pods[NAME].status
    world.set_pod(NAME, replace(old, phase="Failed", container_statuses=(status,)))
    attempt = _judged(world)
    assert (attempt.cause, attempt.reason) == (cause, reason)
    assert attempt.message.startswith("member worker-2 (rank 2, node n2) ")
    assert attempt.member == "worker-2"
    assert text in attempt.message


@pytest.mark.parametrize(
    ("inits", "name", "words"),
    [
        (["fetch"], "fetch", "init container fetch exited with code 3"),
        (["fetch"], "main", "container main exited with code 3"),
        ([], "main", "(rank 2, node n2) exited with code 3"),
    ],
)
def test_the_container_that_failed_is_named_where_a_pod_has_several(
    inits: list[str], name: str, words: str
) -> None:
    world = _running()
    pod = world.pods[NAME]
    spec = replace(pod.spec, init_containers=tuple(Container(name=each) for each in inits))
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=3))
    status = ContainerStatus(name=name, state=ended)
    key = "init_container_statuses" if name in inits else "container_statuses"
    world.pods[NAME] = replace(pod, spec=spec)
    world.set_pod(NAME, replace(pod.status, phase="Failed", **{key: (status,)}))
    attempt = _judged(world)
    assert (attempt.cause, attempt.reason, attempt.exit_code) == (Cause.USER, "ExitCode", 3)
    assert words in attempt.message


@pytest.mark.parametrize(
    ("word", "cause", "reason"),
    [
        ("Evicted", Cause.NODE, "Evicted"),
        ("NodeLost", Cause.NODE, "NodeLost"),
        ("NodeShutdown", Cause.NODE, "NodeShutdown"),
        ("Terminated", Cause.NODE, "NodeShutdown"),
        ("Preempting", Cause.NODE, "PodPreempted"),
        ("OutOfcpu", Cause.INFRASTRUCTURE, "NodeRefused"),
        ("UnexpectedAdmissionError", Cause.INFRASTRUCTURE, "NodeRefused"),
        ("DeadlineExceeded", Cause.USER, "DeadlineExceeded"),
        ("SomethingNew", Cause.INFRASTRUCTURE, "Unknown"),
    ],
)
def test_the_reason_of_a_failed_pod_tells_the_cause(word: str, cause: Cause, reason: str) -> None:
    world = _running()
    world.end_pod(NAME, exit_code=1, pod_reason=word)
    attempt = _judged(world)
    assert (attempt.cause, attempt.reason) == (cause, reason)


def test_a_disruption_condition_beats_the_exit_code() -> None:
    world = _running()
    world.end_pod(NAME, exit_code=1)
    condition = PodCondition("DisruptionTarget", "True", "TerminationByKubelet")
    world.set_pod(NAME, replace(world.pods[NAME].status, conditions=(condition,)))
    assert _judged(world).cause is Cause.NODE


def test_a_pod_that_somebody_else_deletes_is_no_fault_of_the_user() -> None:
    world = _running()
    meta = world.pods[NAME].metadata
    deleting = replace(meta, deletion_timestamp="2026-01-01T00:00:40Z")
    world.pods[NAME] = replace(world.pods[NAME], metadata=deleting)
    attempt = _judged(world, at=world.now)
    assert (attempt.cause, attempt.reason) == (Cause.INFRASTRUCTURE, "PodDeleted")


def test_a_pod_was_deleted_when_its_grace_period_began() -> None:
    """So what follows from that is not taken for the cause, however late it is looked at."""
    world = _running()
    at = world.now
    meta = replace(
        world.pods[NAME].metadata,
        deletion_timestamp=format_time(at + 300),
        deletion_grace_period_seconds=300,
    )
    world.pods[NAME] = replace(world.pods[NAME], metadata=meta)
    world.end_pod("train-1-worker-0", exit_code=1, at=at + 1)
    world.now = at + 20
    assert _judged(world, at=world.now).reason == "PodDeleted"


def test_a_member_that_succeeded_is_not_lost_with_its_node() -> None:
    world = _running()
    world.end_pod(NAME)
    world.lose_node("n2")
    world.run_to(world.now + 100)
    assert world.status.state == "Running"


def test_a_gang_keeps_the_node_of_a_member_that_had_ended_when_the_node_fell_silent() -> None:
    world = _running()
    world.end_pod("train-1-worker-0")
    world.settle()
    world.lose_node("n0")
    world.lose_node("n1")
    attempt = _judged(world, at=world.now + 60)
    assert attempt.reason == "NodeLost"
    assert attempt.nodes_lost == ("n1",)


def test_a_signal_beats_the_exit_codes_that_follow_from_it() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", exit_code=1, at=EPOCH + 10.2)
    world.end_pod("train-1-worker-1", exit_code=15, at=EPOCH + 10.3)
    world.end_pod("train-1-worker-2", signal=9, at=EPOCH + 10.25)
    world.end_pod("train-1-worker-3", exit_code=1, at=EPOCH + 10.4)
    world.now = EPOCH + 10.5
    attempt = _judged(world)
    assert (attempt.reason, attempt.cause) == ("Killed", Cause.INFRASTRUCTURE)
    assert attempt.message.endswith("(SIGKILL); 3 other members failed as well")
    assert (world.status.user_failures, world.status.infrastructure_failures) == (0, 1)


def test_an_exit_code_is_judged_only_after_the_window_so_that_a_late_signal_counts() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", exit_code=1)
    assert world.settle().wake_at == world.now + 2
    assert world.status.attempts[0].finished_at is None
    world.now += 1
    world.end_pod("train-1-worker-2", signal=9)
    assert _judged(world, at=world.now).reason == "Killed"


def test_a_signal_long_after_the_first_failure_is_its_consequence() -> None:
    world = _running()
    world.end_pod("train-1-worker-0", exit_code=1, at=EPOCH + 1)
    world.end_pod("train-1-worker-2", signal=9, at=EPOCH + 9)
    assert _judged(world, at=world.now).reason == "ExitCode"


def test_of_equal_failures_the_earliest_counts_then_the_lowest_rank() -> None:
    world = _running()
    world.end_pod("train-1-worker-3", exit_code=4, at=EPOCH + 9.0)
    world.end_pod("train-1-worker-1", exit_code=2, at=EPOCH + 9.5)
    assert "worker-3" in _judged(world).message
    world = _running()
    for index in (3, 1):
        world.end_pod(f"train-1-worker-{index}", exit_code=index, at=EPOCH + 9.0)
    assert "worker-1" in _judged(world).message


def test_a_silent_node_of_another_member_explains_failures_before_it_counts_as_lost() -> None:
    world = _running()
    world.lose_node("n1")
    world.end_pod("train-1-worker-0", exit_code=1)
    attempt = _judged(world, at=world.now)
    assert (attempt.cause, attempt.reason) == (Cause.NODE, "NodeLost")
    assert attempt.nodes_lost == ("n1",)


@pytest.mark.parametrize(
    ("silent", "reason"),
    [(["n0"], "ExitCode"), (["n1"], "NodeLost"), (["n0", "n1"], "NodeLost")],
)
def test_a_node_that_falls_silent_after_it_has_told_of_a_failure_did_not_cause_it(
    silent: list[str], reason: str
) -> None:
    """Other members may be on the node, but what it reported did not follow from its loss."""
    world = _running(nodes=("n0", "n0", "n1", "n1"))
    world.end_pod("train-1-worker-0", exit_code=1)
    for node in silent:
        world.lose_node(node)
    attempt = _judged(world)
    assert attempt.reason == reason
    assert reason == "ExitCode" or "node n1" in attempt.message


def test_a_node_clock_that_is_ahead_does_not_delay_the_judgement_for_ever() -> None:
    world = _running()
    world.end_pod(NAME, exit_code=1, at=EPOCH + 9_999)
    assert _judged(world, at=world.now).reason == "ExitCode"


def test_a_node_clock_that_is_a_little_ahead_is_waited_for() -> None:
    world = _running()
    world.end_pod(NAME, exit_code=1, at=world.now + 0.5)
    assert world.settle().wake_at == world.now + 2.5
    assert _judged(world).reason == "ExitCode"


def test_every_end_has_a_cause_or_is_nobodys_fault() -> None:
    assert {type(reason.cause) for reason in EndReason} == {Cause, type(None)}


# Exit code 75: stopped because another one ended


def test_members_that_were_stopped_on_account_of_another_are_never_the_cause() -> None:
    for later, reason in ((0.5, "ExitCode"), (9.0, "ExitCode")):
        world = _running()
        for i in (0, 1):
            world.end_pod(f"train-1-worker-{i}", exit_code=EXIT_STOPPED)
        world.run_to(world.now + later)
        assert world.status.attempts[0].finished_at is None
        world.end_pod(NAME, exit_code=3)
        attempt = _judged(world)
        assert (attempt.cause, attempt.reason) == (Cause.USER, reason)
        assert attempt.message.startswith("member worker-2 (rank 2, node n2) exited with code 3")


def test_a_container_that_was_stopped_does_not_hide_the_one_that_failed() -> None:
    world = _running()
    ends = [
        ContainerStateTerminated(exit_code=code, finished_at=f"2026-01-01T00:00:0{i}Z")
        for i, code in enumerate((EXIT_STOPPED, 4))
    ]
    statuses = tuple(
        ContainerStatus(name=f"c{i}", state=ContainerState(terminated=end))
        for i, end in enumerate(ends)
    )
    old = world.pods[NAME].status
    world.set_pod(NAME, replace(old, phase="Failed", container_statuses=statuses))
    assert "exited with code 4" in _judged(world).message


def test_members_that_were_all_stopped_by_nobody_knows_what_are_not_the_users_fault() -> None:
    world = _running()
    for name in sorted(world.pods):
        world.end_pod(name, exit_code=EXIT_STOPPED)
    world.settle()
    assert world.status.attempts[0].finished_at is None
    attempt = _judged(world)
    assert (attempt.cause, attempt.reason) == (Cause.INFRASTRUCTURE, "Stopped")
    assert attempt.message == (
        "member worker-0 (rank 0, node n0) was stopped because another member ended, and no member "
        "shows why; 3 other members failed as well"
    )


def test_who_was_stopped_while_others_live_is_waited_for_longer_and_then_judged() -> None:
    world = _running()
    world.end_pod(NAME, exit_code=EXIT_STOPPED)
    assert world.settle().wake_at == world.now + 15
    assert _judged(world, at=world.now + 15).reason == "Stopped"


def test_a_node_that_is_lost_while_the_stopped_gang_stops_is_the_cause() -> None:
    world = _running()
    for i in (0, 1, 3):
        world.end_pod(f"train-1-worker-{i}", exit_code=EXIT_STOPPED)
    assert _judged(world, at=world.now + 15).reason == "Stopped"
    world.lose_node("n2")
    world.run_to(world.now + 41)
    [attempt, *_] = world.status.attempts
    assert (attempt.cause, attempt.reason) == (Cause.NODE, "NodeLost")
    assert (world.status.user_failures, world.status.infrastructure_failures) == (0, 1)


def test_the_number_means_nothing_in_a_gang_of_one() -> None:
    world = World(new_job(count=1))
    world.start()
    world.end_pod("train-1-worker-0", exit_code=EXIT_STOPPED)
    attempt = _judged(world)
    assert (attempt.cause, attempt.reason) == (Cause.USER, "ExitCode")


def test_members_and_controller_agree_on_the_numbers() -> None:
    assert mpirun.EXIT_STOPPED == EXIT_STOPPED
    assert mpirun.EXIT_UNAVAILABLE == EXIT_UNAVAILABLE


def test_a_gang_that_only_ever_says_that_it_was_stopped_comes_to_an_end() -> None:
    world = World(new_job(count=2, spec={"restart": Restart(limit=0)}))
    world.start()
    causes: list[Cause | None] = []
    for number in (1, 2, 3):
        for i in (0, 1):
            world.end_pod(f"train-{number}-worker-{i}", exit_code=EXIT_STOPPED)
        world.run_to(world.now + 3)
        causes.append(world.status.attempts[-1].cause)
        if number < 3:
            world.restart()
    assert causes == [Cause.INFRASTRUCTURE, Cause.INFRASTRUCTURE, Cause.USER]
    world.settle()
    world.reap_pods()
    world.run_to(world.now + 400)
    assert world.status.state == "Failed"


def test_members_that_do_not_reach_each_other_are_not_the_users_fault() -> None:
    world = _running()
    world.end_pod(NAME, exit_code=EXIT_UNAVAILABLE)
    attempt = _judged(world)
    assert (attempt.cause, attempt.reason) == (Cause.INFRASTRUCTURE, "PeersUnreachable")
    alone = World(new_job(count=1))
    alone.start()
    alone.end_pod("train-1-worker-0", exit_code=EXIT_UNAVAILABLE)
    assert _judged(alone).cause is Cause.USER


def test_a_pinned_gang_starts_when_all_are_bound_and_gives_a_refused_node_up() -> None:
    world = World(new_job(), policy=JobsPolicy(binding=Binding.PINNED, peer_naming=PeerNaming.DNS))
    world.settle()
    world.schedule("n0", "n1", "n2", "n3")
    world.settle()
    assert [pod.spec.node_name for pod in world.pods.values()] == [""] * 4
    assert [pinned_node(pod.spec) for pod in world.pods.values()] == ["n0", "n1", "n2", "n3"]
    for name in list(world.pods)[:2] + list(world.pods)[3:]:
        pod = world.pods[name]
        spec = replace(pod.spec, node_name=pinned_node(pod.spec))
        world.pods[name] = replace(pod, spec=spec)
    world.settle()
    assert world.config_maps == {}  # one is not bound, so no container may start
    said = PodCondition(
        "PodScheduled", "False", "Unschedulable", "0/4 nodes are available",
        last_transition_time=format_time(world.now),
    )  # fmt: skip
    world.set_pod(NAME, PodStatus(phase="Pending", conditions=(said,)))
    world.settle()
    assert not world.status.attempts[0].finished_at  # it may be bound yet
    attempt = _judged(world, at=world.now + JobsPolicy().bind_patience_seconds)
    assert (attempt.reason, attempt.cause, attempt.nodes_lost) == ("NotBound", None, ("n2",))
    assert "0/4 nodes are available" in attempt.message
    assert world.status.infrastructure_failures == world.status.user_failures == 0
