"""The test of a gang's nodes before its program: what its pods say moves the gang, and no more."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.machine_result import MachineFinding, SuiteResult, encode_result
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job, Restart
from fairlead.api.jobs.preflight import PreflightRecord, PreflightSuite
from fairlead.api.kubernetes.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.record import PREFLIGHT_FAILURES_MAX, checking_words
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.model.holdings.suspects import TESTED_MAX, SuspectTable
from fairlead.testing.builders import EPOCH, make_job

from .jobs_world import World, new_job

GATE = names.PREFLIGHT_CONTAINER
GOOD = SuiteResult("gang", (MachineFinding("cpu", MachineOutcome.PASSED),))
WRONG = SuiteResult("gang", (MachineFinding("cpu", MachineOutcome.FAILED, "wrong on 1 CPU"),))


def _world(
    count: int = 4, *, wish: PreflightSuite = PreflightSuite.QUICK,
    policy: JobsPolicy | None = None, **spec: object,
) -> World:  # fmt: skip
    job = new_job(count=count)
    given = replace(job.spec, preflight=wish, **spec)
    return World(replace(job, spec=given), policy or JobsPolicy())


def _in_gate(world: World) -> World:
    """Bring the present attempt to where its pods have addresses, and its members test."""
    world.settle()
    world.schedule()
    world.settle()
    world.run_pods()
    world.settle()
    return world


def _left(world: World, results: Mapping[int, tuple[int, str]]) -> None:
    """Let members leave the test, each with an exit code and a message."""
    for index, (code, message) in results.items():
        name = next(each for each in world.pods if each.endswith(f"-worker-{index}"))
        at = format_time(world.now)
        ended = ContainerStateTerminated(exit_code=code, message=message, finished_at=at)
        gate = ContainerStatus(name=GATE, state=ContainerState(terminated=ended))
        pod = world.pods[name]
        phase = "Failed" if code else "Running"
        status = replace(pod.status, phase=phase, init_container_statuses=(gate,))
        world.pods[name] = replace(pod, status=status)


def _text(result: SuiteResult) -> str:
    return encode_result(result).decode()


def _record(world: World, number: int = 1) -> PreflightRecord:
    record = world.status.attempts[number - 1].preflight
    assert record is not None
    return record


def _passes(world: World, count: int = 4) -> None:
    _left(world, {index: (0, _text(GOOD)) for index in range(count)})
    world.settle()


def _fails(world: World, bad: int, count: int = 4) -> None:
    stopped = {index: (75, _text(GOOD)) for index in range(count)}
    _left(world, {**stopped, bad: (1, _text(WRONG))})
    world.settle()


def test_every_member_tests_its_node_before_anything_of_the_user() -> None:
    world = _in_gate(_world())
    for pod in world.pods.values():
        [gate] = pod.spec.init_containers
        assert gate.name == GATE
        assert gate.command == (
            "fairlead", "agent", "preflight", "quick", "--result", "/dev/termination-log",
        )  # fmt: skip
        assert gate.resources == pod.spec.containers[0].resources
        assert {mount.mount_path for mount in gate.volume_mounts} == {
            "/etc/fairlead", "/etc/fairlead-mpi",
        }  # fmt: skip
    assert world.job is not None
    assert checking_words(world.job) == "checking 4 nodes before the start"


def test_a_job_that_asks_for_no_test_has_none() -> None:
    for wish in (PreflightSuite.NONE, None):
        job = new_job()
        world = _in_gate(World(replace(job, spec=replace(job.spec, preflight=wish))))
        assert all(not pod.spec.init_containers for pod in world.pods.values())
        assert world.status.attempts[0].preflight is None


def test_a_gang_that_passes_starts_and_the_record_says_so() -> None:
    world = _in_gate(_world())
    assert _record(world).outcome is None
    _passes(world)
    assert _record(world).outcome is MachineOutcome.PASSED
    assert ("Preflight", "Tested 4 nodes before the start: passed") in world.events
    assert world.status.state == "Running"
    assert world.status.attempts[0].started_at


def test_a_node_that_fails_is_left_and_the_others_stay_at_no_ones_expense() -> None:
    world = _in_gate(_world(restart=Restart(limit=0, infrastructure_limit=0)))
    _fails(world, 2)
    [ended] = world.status.attempts
    assert (ended.reason, ended.cause) == ("PreflightFailed", None)
    assert ended.nodes_lost == ("n2",)
    assert _record(world).nodes == ("n2",)
    assert _record(world).outcome is MachineOutcome.FAILED
    text = "1 node of 4 failed the test before the start: n2 (cpu: wrong on 1 CPU)"
    assert ended.message == text
    assert ("PreflightFailed", f"Stopping the gang: {text}") in world.events
    _end_all(world)
    assert (world.status.user_failures, world.status.infrastructure_failures) == (0, 0)
    assert world.status.attempt == 2
    assert not world.job or not world.job.is_finished


def _end_all(world: World) -> None:
    world.settle()
    world.pods.clear()
    world.run_to(world.now + 1)


def test_a_gang_is_judged_once_all_its_members_are_through() -> None:
    world = _in_gate(_world())
    _left(world, {0: (75, _text(GOOD)), 1: (1, _text(WRONG)), 2: (75, _text(GOOD))})
    world.settle()
    assert _record(world).outcome is None
    _left(world, {3: (1, _text(WRONG))})
    world.settle()
    assert _record(world).nodes == ("n1", "n3")


def test_a_member_that_never_says_anything_holds_the_judgement_up_for_some_seconds() -> None:
    world = _in_gate(_world())
    _left(world, {0: (75, _text(GOOD)), 1: (1, _text(WRONG)), 2: (75, _text(GOOD))})
    world.run_to(world.now + world.policy.preflight_patience_seconds - 1)
    assert _record(world).outcome is None
    world.run_to(world.now + 1)
    assert _record(world).nodes == ("n1",)


def test_so_many_attempts_in_a_row_end_by_the_test_and_then_the_program_starts() -> None:
    world = _world()
    for number in range(1, PREFLIGHT_FAILURES_MAX + 1):
        _in_gate(world)
        assert world.status.attempt == number
        _fails(world, 1)
        _end_all(world)
    _in_gate(world)
    assert world.status.attempts[-1].preflight is None
    assert all(not pod.spec.init_containers for pod in world.pods.values())
    world.run_pods()
    world.settle()
    assert world.status.state == "Running"


def test_a_test_that_does_not_work_is_not_made_again() -> None:
    world = _in_gate(_world())
    _left(world, {0: (137, "")})
    _left(world, {index: (0, _text(GOOD)) for index in range(1, 4)})
    world.settle()
    [ended] = world.status.attempts
    assert (ended.reason, ended.cause, ended.nodes_lost) == ("PreflightError", None, ())
    _end_all(world)
    _in_gate(world)
    assert world.status.attempts[-1].preflight is None


def test_an_error_of_the_harness_lets_the_gang_go_on() -> None:
    world = _in_gate(_world())
    late = SuiteResult("gang", (MachineFinding("gang", MachineOutcome.ERROR, "not in time"),))
    _left(world, {index: (0, _text(late)) for index in range(4)})
    world.settle()
    assert _record(world).outcome is MachineOutcome.ERROR
    assert world.status.state == "Running"


def test_what_a_pod_makes_up_is_an_error() -> None:
    world = _in_gate(_world())
    lies = ("", "{", "x" * 4096, '{"suite":"gang","measured":[]}')
    _left(world, {index: (0, text) for index, text in enumerate(lies)})
    world.settle()
    assert _record(world).outcome is MachineOutcome.ERROR
    assert world.status.attempts[0].finished_at is None


def test_a_failure_beside_a_program_that_runs_is_recorded_and_ends_nothing() -> None:
    """Pods say that all may go on, and a result says otherwise: only forgery does that."""
    world = _in_gate(_world())
    results = {index: (0, _text(GOOD)) for index in range(4)}
    _left(world, {**results, 1: (0, _text(WRONG))})
    world.settle()
    assert _record(world).nodes == ("n1",)
    assert world.status.state == "Running"
    assert world.status.attempts[0].finished_at is None


def test_a_gang_that_reports_most_of_its_nodes_loses_none() -> None:
    nodes = tuple(f"n{i}" for i in range(16))
    world = replace_nodes(_world(16), nodes)
    _in_gate(world)
    _left(world, {index: (1, _text(WRONG)) for index in range(16)})
    world.settle()
    [ended] = world.status.attempts
    assert (ended.reason, ended.nodes_lost) == ("PreflightError", ())


def replace_nodes(world: World, nodes: tuple[str, ...]) -> World:
    world.nodes = nodes
    return world


def test_an_image_of_the_test_that_cannot_be_pulled_is_not_the_users_fault() -> None:
    world = _in_gate(_world(restart=Restart(limit=0)))
    waiting = ContainerStateWaiting(reason="ImagePullBackOff", message="denied")
    status = ContainerStatus(name=GATE, state=ContainerState(waiting=waiting))
    for name, pod in world.pods.items():
        stuck = replace(pod.status, phase="Pending", init_container_statuses=(status,))
        world.pods[name] = replace(pod, status=stuck)
    world.run_to(world.now + world.policy.start_error_grace_seconds + 5)
    [ended] = world.status.attempts
    assert (ended.reason, ended.cause) == ("PreflightError", None)


def test_where_no_image_has_the_test_nothing_is_tested_and_the_record_says_why() -> None:
    world = _in_gate(_world(policy=JobsPolicy(preflight_image=None)))
    assert all(not pod.spec.init_containers for pod in world.pods.values())
    world.run_pods()
    world.settle()
    assert _record(world).outcome is MachineOutcome.SKIPPED
    assert "health.testImage" in _record(world).message
    assert world.status.state == "Running"


def test_the_controller_may_die_after_any_action_of_the_gate() -> None:
    for limit in range(4):
        world = _in_gate(_world())
        stopped = {index: (75, _text(GOOD)) for index in range(4)}
        _left(world, {**stopped, 2: (1, _text(WRONG))})
        world.act(limit)
        world.settle()
        assert [each.reason for each in world.status.attempts] == ["PreflightFailed"]
        assert _record(world).nodes == ("n2",)


def test_a_pod_that_is_deleted_in_the_gate_ends_the_attempt_as_elsewhere() -> None:
    world = _in_gate(_world())
    name = "train-1-worker-1"
    meta = replace(world.pods[name].metadata, deletion_timestamp=format_time(world.now))
    world.pods[name] = replace(world.pods[name], metadata=meta)
    world.run_to(world.now + 3)
    assert world.status.attempts[0].reason == "PodDeleted"
    assert _record(world).outcome is None


# What becomes of a node


def _claims(name: str, nodes: tuple[str, ...], *, team: str = "", at: float = EPOCH) -> Job:
    job = make_job(name)
    record = PreflightRecord(
        PreflightSuite.QUICK, MachineOutcome.FAILED, ended_at=format_time(at), nodes=nodes
    )
    attempt = Attempt(
        1, finished_at=format_time(at), reason="PreflightFailed", nodes_lost=nodes,
        preflight=record, team=team,
    )  # fmt: skip
    return replace(job, status=replace(job.status, attempts=(attempt,)))


def test_a_node_that_failed_is_a_suspect() -> None:
    table = SuspectTable()
    job = _claims("a", ("n1",))
    table.put_job(("default", "a"), job)
    assert table.signs_since(EPOCH - 1) == {"n1": EPOCH}
    table.put_job(("default", "a"), None)
    assert table.signs_since(EPOCH - 1) == {}


def test_a_team_that_reports_every_node_makes_few_suspects() -> None:
    table = SuspectTable()
    for number in range(50):
        job = _claims(f"j{number}", (f"n{number:02}",), team="evil", at=EPOCH + number)
        table.put_job((f"ns{number % 3}", f"j{number}"), job)
    honest = _claims("h", ("n99",), team="good", at=EPOCH)
    table.put_job(("default", "h"), honest)
    suspects = table.signs_since(EPOCH - 1)
    assert sorted(suspects) == [f"n{number}" for number in range(50 - TESTED_MAX, 50)] + ["n99"]
    assert table.since(EPOCH - 1) == sorted(suspects)
