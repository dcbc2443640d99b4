"""Every part of Fairlead agrees on the phase of a job, for all statuses that there are.

The facts that a phase depends on are few, so all of their combinations are tried, not a sample.
"""

from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Adopts, Attempt, Job, VerdictStatus
from fairlead.api.kubernetes.core import SchedulingGate
from fairlead.api.meta import Condition, find_condition
from fairlead.api.names import ADMITTED, FAILED, GANG_GATE, JOB_FINALIZER
from fairlead.cli.views.jobs import where_or_why
from fairlead.decide.adoption.actions import ReleaseMember
from fairlead.decide.adoption.group_job import single_member_job
from fairlead.decide.adoption.lifecycle import decide_group
from fairlead.decide.adoption.members import read_member
from fairlead.decide.adoption.view import AdoptionPolicy, GroupView
from fairlead.decide.answers.explain import explain
from fairlead.decide.jobs.actions import CreatePod
from fairlead.decide.jobs.lifecycle import decide_job
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import JobView
from fairlead.decide.placement.actions import PlaceJob, ReleaseJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.gang.phase import OPEN, PLACEABLE, RELEASABLE, Phase, phase_of
from fairlead.model.pools.grouping import membership_of
from fairlead.runtime.leading.fencing import needs_fence
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_pod

T0 = "2026-01-01T00:00:00Z"
RECORDS = (None, Attempt(2, begun_at=T0), Attempt(2, begun_at=T0, finished_at=T0))
WISHES = ("run", "suspend", "cancel", "delete")
VERDICT = VerdictStatus("Waiting", "InsufficientCapacity", {})


def _jobs() -> Iterator[Job]:
    flags = (False, True)
    for adopted, finished, record, wish, admitted, placed, attempt in product(
        flags, flags, RECORDS, WISHES, (None, "True", "False"), (0, 1, 2), (0, 2)
    ):
        conditions = [Condition(FAILED, "True")] if finished else []
        conditions += [Condition(ADMITTED, admitted, "QuotaExceeded")] if admitted else []
        old = (Attempt(1, begun_at=T0, finished_at=T0),)
        job = make_job(
            "j",
            attempt=attempt,
            gpus=1,
            conditions=tuple(conditions),
            placement=make_placement(["n0"], attempt=placed) if placed else None,
            spec={"adopts": Adopts("Job", "web", "batch/v1")} if adopted else {},
            status={"attempts": (*old, record) if record else old},
            verdict=VERDICT,
            suspend=wish == "suspend",
            cancel=wish == "cancel",
        )
        deleted_at = T0 if wish == "delete" else None
        metadata = replace(job.metadata, finalizers=(JOB_FINALIZER,), deletion_timestamp=deleted_at)
        yield replace(job, metadata=metadata)


JOBS = tuple(_jobs())


@pytest.fixture(scope="module")
def states() -> list[tuple[Job, Phase, PlacementState]]:
    node = make_node("n0", gpus=8)
    return [(job, phase_of(job), PlacementState.of([node], [job])) for job in JOBS]


def test_all_phases_occur() -> None:
    assert {phase_of(job) for job in JOBS} == set(Phase)


def test_the_model_sorts_jobs_by_their_phase(states) -> None:
    for job, phase, state in states:
        key, has_place = job.metadata.key, job.status.placement is not None
        deleted = job.metadata.deletion_timestamp is not None
        assert (len(state.queue) == 1) == (phase is Phase.QUEUED), job
        assert (key in state.sets.repairable) == (phase is Phase.REPAIRING), job
        released = phase in RELEASABLE and not deleted and (has_place or phase is Phase.FINISHED)
        assert (key in state.sets.releasable) == released, job
        held = phase is Phase.HELD and not has_place and job.status.attempt > 0
        assert (key in state.sets.held) == held, job


def test_the_scheduler_places_and_releases_as_the_phase_allows(states) -> None:
    placed = released = 0
    for job, phase, state in states:
        for action in decide(state, PlacementPolicy(), EPOCH).actions:
            if isinstance(action, PlaceJob):
                assert phase in PLACEABLE, job
                placed += 1
            if isinstance(action, ReleaseJob) and job.status.placement is not None:
                assert phase in RELEASABLE, job
                assert phase not in OPEN, job
                released += 1
    assert placed > 0
    assert released > 0


def test_a_former_leader_is_fenced_off_exactly_the_jobs_that_may_be_placed() -> None:
    for job in JOBS:
        phase, status = phase_of(job), job.status
        is_judged = find_condition(status.conditions, ADMITTED) is not None
        is_ours = job.spec.adopts is None
        is_new = phase is Phase.UNADMITTED and status.attempt == 0 and is_ours and not is_judged
        assert needs_fence(job) == (phase in (Phase.QUEUED, Phase.REPAIRING) or is_new), job


def test_pods_are_created_in_an_active_phase_only() -> None:
    created = 0
    for job in JOBS:
        decision = decide_job(JobView(job, JobsPolicy(), EPOCH))
        if any(isinstance(action, CreatePod) for action in decision.actions):
            assert phase_of(job) is Phase.ACTIVE, job
            created += 1
    assert created > 0


def test_members_of_other_tools_are_released_in_a_phase_with_an_open_record_only() -> None:
    pod = make_pod("web", phase="Pending", gpus=1)
    pod = replace(pod, spec=replace(pod.spec, scheduling_gates=(SchedulingGate(GANG_GATE),)))
    member = read_member(pod, membership_of(pod), EPOCH)
    spec, released = single_member_job(member).job.spec, 0
    for job in JOBS:
        wanted = replace(spec, suspend=job.spec.suspend, cancel=job.spec.cancel)
        seen = GroupView(
            key=job.metadata.key,
            group=member.membership.group,
            members={"web": member},
            job=replace(job, spec=wanted),
            usable={"n0": True},
        )
        decision = decide_group(seen, AdoptionPolicy(), EPOCH)
        if any(isinstance(action, ReleaseMember) for action in decision.actions):
            assert phase_of(job) in OPEN, job
            released += 1
    assert released > 0


#: What `fairlead why` says in a phase whatever the numbers are.
REASONS = {
    Phase.CANCELLING: {Reason.STOPPING},
    Phase.STOPPING: {Reason.STOPPING, Reason.HELD},
    Phase.HELD: {Reason.HELD},
    Phase.PLACED: {Reason.PLACED},
    Phase.QUEUED: {Reason.PENDING_EVALUATION},
}


def test_the_explanation_follows_the_phase(states) -> None:
    for job, phase, state in states:
        found = explain(state, job.metadata.key, EPOCH)
        assert (found is None) == (phase is Phase.FINISHED), job
        if found is not None and phase in REASONS:
            assert found.verdict.reason in REASONS[phase], job


def test_the_command_line_and_the_explanation_give_the_same_reason(states) -> None:
    for job, phase, state in states:
        if phase in (Phase.CANCELLING, Phase.HELD) and not job.status.placement:
            found = explain(state, job.metadata.key, EPOCH)
            assert found is not None
            assert where_or_why(job).startswith(found.verdict.reason.value), job
