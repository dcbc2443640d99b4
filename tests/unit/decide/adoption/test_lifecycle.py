"""What a group needs next, situation by situation: the actions of one decision."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Adopts, Attempt, Job
from fairlead.api.jobs.placement import Preemption
from fairlead.api.kubernetes.core import Pod, PodCondition, PodStatus, SchedulingGate
from fairlead.api.meta import Condition, ObjectMeta, OwnerReference
from fairlead.api.values.times import format_time
from fairlead.decide.adoption.actions import (
    CreateJob,
    EmitPodWarning,
    EvictMember,
    ReadSource,
    ReleaseMember,
)
from fairlead.decide.adoption.lifecycle import decide_group
from fairlead.decide.adoption.members import read_member
from fairlead.decide.adoption.sources import Ended, SourceFacts
from fairlead.decide.adoption.view import AdoptionPolicy, GroupView, SourceReading
from fairlead.decide.job_actions import DeleteJob, RecordHistory, RemoveFinalizer, WriteJobStatus
from fairlead.decide.pinning import pinned_affinity
from fairlead.model.pools.grouping import membership_of
from fairlead.testing.builders import EPOCH, make_job, make_placement, make_pod

T = TypeVar("T")
NOW = EPOCH + 100.0
POLICY = AdoptionPolicy()
SET = OwnerReference("apps/v1", "StatefulSet", "web", "uid-web", True)
THREE = SourceFacts(uid="uid-web", roles={"worker": 3})
NODES = ("n0", "n1", "n2")


def gated(index: int, *, gpus: int = 8, gates: tuple[str, ...] = (), **labels: str) -> Pod:
    pod = make_pod(f"web-{index}", phase="Pending", gpus=gpus, labels=labels)
    all_gates = tuple(SchedulingGate(name) for name in (names.GANG_GATE, *gates))
    return replace(
        pod,
        metadata=replace(pod.metadata, owner_references=(SET,)),
        spec=replace(pod.spec, scheduling_gates=all_gates),
    )


def released(job: Job, index: int, node: str, *, phase: str = "Running", **kwargs: Any) -> Pod:
    labels = {
        names.JOB_NAME: job.metadata.name, names.JOB_UID: job.metadata.uid,
        names.ROLE: "worker", names.INDEX: str(index), names.ATTEMPT: "1",
    }  # fmt: skip
    pod = make_pod(f"web-{index}", phase=phase, gpus=8, labels=labels, node=node, **kwargs)
    spec = replace(pod.spec, affinity=pinned_affinity(None, node))
    return replace(pod, metadata=replace(pod.metadata, owner_references=(SET,)), spec=spec)


def refused(pod: Pod, *, seconds: float) -> Pod:
    """The pod, refused since so long; the condition has the instant of the gate, long ago."""
    condition = PodCondition(
        "PodScheduled", "False", "Unschedulable", "no room",
        last_transition_time=format_time(EPOCH),
    )  # fmt: skip
    annotations = {"test/refused-at": str(NOW - seconds)}
    return replace(
        pod,
        metadata=replace(pod.metadata, annotations=annotations),
        spec=replace(pod.spec, node_name=""),
        status=PodStatus(phase="Pending", conditions=(condition,)),
    )


def refused_at(pod: Pod) -> float:
    return float(pod.metadata.annotations.get("test/refused-at", NOW))


def stand_in(
    *, attempt: int = 0, is_open: bool = False, admitted: bool = False, count: int = 3, **more: Any
) -> Job:
    """The job of the set, as the controller makes it."""
    conditions = (Condition("Admitted", "True", "Admitted"),) if admitted or is_open else ()
    status = {"attempts": (Attempt(attempt, begun_at="x"),)} if is_open else {}
    job = make_job(
        "web", count=count, attempt=attempt, conditions=conditions,
        placement=make_placement(NODES[:count], attempt=attempt) if is_open else None,
        status={**status, **more.pop("status", {})},
        spec={"adopts": Adopts("StatefulSet", "web", "apps/v1", "uid-web")},
        labels={names.MANAGED_BY: "fairlead-adoption"}, **more,
    )  # fmt: skip
    meta = replace(job.metadata, finalizers=(names.JOB_FINALIZER,), owner_references=(SET,))
    return replace(job, metadata=meta)


def view(
    *pods: Pod, job: Job | None = None, facts: SourceFacts | None = THREE, **more: Any
) -> GroupView:
    members = {p.metadata.name: read_member(p, membership_of(p), refused_at(p)) for p in pods}
    group = membership_of(pods[0] if pods else gated(0)).group
    return GroupView(
        key=group.key, group=group, members=members, job=job,
        reading=SourceReading(facts, NOW) if facts is not None else None,
        usable=more.pop("usable", dict.fromkeys(NODES, True)), **more,
    )  # fmt: skip


def acts(type_: type[T], seen: GroupView, now: float = NOW) -> list[T]:
    """The actions of one type that a decision asks for."""
    return [a for a in decide_group(seen, POLICY, now).actions if isinstance(a, type_)]


def written(seen: GroupView, now: float = NOW) -> Any:
    (write,) = acts(WriteJobStatus, seen, now)
    return write.status


def admitted_of(status: Any) -> Condition:
    return next(c for c in status.conditions if c.type == "Admitted")


# Before there is a job


def test_the_owner_is_read_before_a_job_is_made_and_the_job_is_collected_with_it() -> None:
    (read,) = acts(ReadSource, view(gated(0), facts=None))
    assert (read.kind, read.name) == ("StatefulSet", "web")
    (made,) = acts(CreateJob, view(gated(0)))
    assert [(r.name, r.count) for r in made.job.spec.roles] == [("worker", 3)]
    assert made.job.metadata.owner_references[0].uid == "uid-web"
    assert made.job.spec.adopts == Adopts("StatefulSet", "web", "apps/v1", "uid-web")
    assert made.job.metadata.finalizers == (names.JOB_FINALIZER,)


def test_who_starts_its_pods_one_by_one_is_told_how_to_be_a_gang() -> None:
    (told,) = acts(
        EmitPodWarning, view(gated(0), facts=replace_facts(problem="starts in order: do X"))
    )
    assert told.reason == "NotAGang"
    assert told.message == "StatefulSet web is no gang: starts in order: do X"


def test_a_size_that_nobody_says_is_asked_for() -> None:
    (told,) = acts(EmitPodWarning, view(gated(0), facts=SourceFacts(exists=False)))
    assert names.GROUP_SIZE in told.message


def replace_facts(**more: Any) -> SourceFacts:
    return SourceFacts(uid="uid-web", roles={"worker": 3}, **more)


# Gathering


def test_an_incomplete_group_is_not_admitted_and_says_what_is_missing() -> None:
    condition = admitted_of(written(view(gated(0), gated(1), job=stand_in())))
    assert (condition.status, condition.reason) == ("False", "GroupIncomplete")
    assert condition.message == "2 of 3 members exist; StatefulSet web creates the others"


def test_what_an_owner_said_before_its_pods_were_gone_is_asked_again() -> None:
    seen = view(job=stand_in(attempt=1), facts=replace_facts(exists=False), idle_since=NOW + 1)
    assert len(acts(ReadSource, seen, NOW + 2)) == 1
    assert acts(WriteJobStatus, seen, NOW + 2) == []


def test_a_complete_group_is_admitted() -> None:
    status = written(view(*map(gated, range(3)), job=stand_in()))
    assert (status.attempt, admitted_of(status).status) == (1, "True")


def test_a_group_that_gives_its_place_back_is_admitted_again_once_that_is_taken() -> None:
    job = stand_in(attempt=1, status={"preemption": Preemption("default", "high", "uid")})
    assert decide_group(view(*map(gated, range(3)), job=job), POLICY, NOW).actions == ()
    taken = replace(job, status=replace(job.status, preemption=None))
    status = written(view(*map(gated, range(3)), job=taken))
    assert admitted_of(status).status == "True"


def test_where_pods_say_different_sizes_the_largest_is_waited_for() -> None:
    def sized(*sizes: int) -> list[Pod]:
        return [gated(i, **{names.GROUP_SIZE: str(size)}) for i, size in enumerate(sizes)]

    job = stand_in(count=4)
    for pods in (sized(2, 4), sized(4, 2)):
        assert admitted_of(written(view(*pods, job=job))).status == "False"
    assert admitted_of(written(view(*sized(2, 4, 2, 2), job=job))).status == "True"


def test_a_pod_that_was_let_in_without_a_gate_is_named_as_the_hindrance() -> None:
    loose = replace(gated(2), spec=make_pod("x").spec)
    labelled = replace(
        loose, metadata=replace(loose.metadata, labels={names.GANG_SCHEDULING: "enabled"})
    )
    status = written(view(gated(0), gated(1), labelled, job=stand_in()))
    assert admitted_of(status).reason == "GroupUngated"
    assert "1 of its pods were created without a gate" in admitted_of(status).message


def test_members_that_the_planner_can_tell_apart_become_roles_of_their_own() -> None:
    pods = (gated(0, gpus=1), gated(1), gated(2))
    (gone,) = acts(DeleteJob, view(*pods, job=stand_in()))
    assert gone.job.metadata.name == "web"
    (made,) = acts(CreateJob, view(*pods))
    counts = sorted(role.count for role in made.job.spec.roles)
    assert counts == [1, 2]


def test_a_group_that_is_larger_than_the_least_is_admitted_with_the_least() -> None:
    enough = SourceFacts(uid="uid-web", total=3)
    status = written(view(*map(gated, range(5)), job=stand_in(), facts=enough))
    assert status.attempt == 1


def test_pods_of_an_attempt_that_is_over_are_deleted_before_the_group_gathers_again() -> None:
    job = stand_in(attempt=1, status={"attempts": (Attempt(1, finished_at="x"),)})
    (gone,) = acts(EvictMember, view(gated(0), released(job, 1, "n1"), job=job))
    assert gone.pod.metadata.name == "web-1"


def test_the_next_attempt_of_a_group_that_waited_again_has_the_next_number() -> None:
    job = stand_in(attempt=1, status={"attempts": (Attempt(1, finished_at="x"),)})
    assert written(view(*map(gated, range(3)), job=job)).attempt == 2


def test_who_ended_well_before_is_not_waited_for() -> None:
    before = stand_in(attempt=1, uid="a-job-before")
    done = [released(before, i, f"n{i}", phase="Succeeded") for i in range(2)]
    status = written(view(*done, gated(2), job=stand_in(count=1)))
    assert (status.attempt, admitted_of(status).status) == (1, "True")
    failed = released(before, 1, "n1", phase="Failed")
    refused_ = written(view(done[0], failed, gated(2), job=stand_in(count=2)))
    assert admitted_of(refused_).message.startswith("1 of 2 members")


def test_what_follows_a_finished_job_has_no_seats_for_members_that_ended_well() -> None:
    before = stand_in(attempt=1, uid="a-job-before")
    done = [released(before, i, f"n{i}", phase="Succeeded") for i in range(2)]
    (made,) = acts(CreateJob, view(*done, gated(2)))
    assert [(r.name, r.count) for r in made.job.spec.roles] == [("worker", 1)]
    assert len(acts(DeleteJob, view(*done, gated(2), job=stand_in()))) == 1, "too large"
    job = stand_in(attempt=1, is_open=True, count=1)
    (seated,) = acts(ReleaseMember, view(*done, gated(2), job=job))
    assert (seated.index, seated.node) == (0, "n0")
    again = renamed(released(job, 0, "n0"), "web-2", 2)
    assert written(view(*done, again, job=job)).state == "Running"
    over = renamed(released(job, 0, "n0", phase="Succeeded"), "web-2", 2)
    assert written(view(*done, over, job=job)).state == "Succeeded"


def test_what_is_left_of_a_gang_starts_together() -> None:
    before = stand_in(attempt=1, uid="a-job-before")
    done = [released(before, i, f"n{i}", phase="Succeeded") for i in range(2)]
    four = SourceFacts(uid="uid-web", roles={"worker": 4})
    (made,) = acts(CreateJob, view(*done, gated(2), facts=four))
    assert made.job.member_count == 2
    job = stand_in(count=2)
    waiting = written(view(*done, gated(2), job=job, facts=four))
    assert admitted_of(waiting).message.startswith("1 of 2 members")
    assert written(view(*done, gated(2), gated(3), job=job, facts=four)).attempt == 1
    job = stand_in(attempt=1, admitted=True, count=2)
    job = replace(job, status=replace(job.status, placement=make_placement(NODES[:2])))
    assert admitted_of(written(view(*done, gated(2), job=job, facts=four))).status == "False"
    # A new leader has not read the owner yet: who ended for another job fills no seat of this one.
    unread = view(*done, gated(2), job=job, facts=None)
    assert admitted_of(written(unread)).status == "False"
    opened = written(view(*done, gated(2), gated(3), job=job, facts=four))
    assert opened.attempts[-1].number == 1


def test_a_new_round_is_as_large_as_the_one_before() -> None:
    before = stand_in(attempt=1, uid="a-job-before")
    done = [released(before, i, f"n{i}", phase="Succeeded") for i in range(2)]
    repeated = renamed(gated(0), "web-again", 0)
    rounds = replace_facts(has_more_rounds=True)
    for coming, facts in ((gated(3), THREE), (repeated, THREE), (gated(2), rounds)):
        (made,) = acts(CreateJob, view(*done, coming, facts=facts))
        assert made.job.member_count == 3


# Queued


def test_a_job_without_the_role_that_ended_well_is_not_created_again_and_again() -> None:
    before = stand_in(attempt=1, uid="a-job-before")
    leader = released(before, 0, "n0", phase="Succeeded")
    labels = {**leader.metadata.labels, names.ROLE: "leader"}
    leader = replace(leader, metadata=replace(leader.metadata, labels=labels))
    both = SourceFacts(uid="uid-web", roles={"leader": 1, "worker": 3})
    pods = (*map(gated, range(1, 4)), leader)
    (made,) = acts(CreateJob, view(*pods, facts=both))
    assert [(r.name, r.count) for r in made.job.spec.roles] == [("worker", 3)]
    seen = view(*pods, facts=both, job=stand_in())
    assert acts(DeleteJob, seen) == []
    assert written(seen).attempt == 1


def test_a_member_with_a_job_of_its_own_is_not_waited_for() -> None:
    pods = (gated(0), gated(1))
    (made,) = acts(CreateJob, view(*pods, elsewhere={"worker": 1}))
    assert made.job.member_count == 2
    smaller = replace(stand_in(), spec=made.job.spec)
    assert written(view(*pods, job=smaller, elsewhere={"worker": 1})).attempt == 1
    assert admitted_of(written(view(*pods, job=stand_in()))).reason == "GroupIncomplete"


def test_who_ended_well_while_others_are_moved_is_not_waited_for_once_the_place_is_gone() -> None:
    lost = {"attempts": (Attempt(1, begun_at="x", finished_at="y", nodes_lost=("n2",)),)}
    repaired = stand_in(attempt=2, admitted=True, status=lost)
    held = replace(repaired.status, placement=make_placement(NODES, attempt=1))
    job = replace(repaired, status=held)
    done = [released(job, index, f"n{index}", phase="Succeeded") for index in (0, 1)]
    known = written(view(*done, gated(2), job=job))
    assert known.done == {("worker", 0), ("worker", 1)}
    runs = released(job, 1, "n1")
    assert written(view(done[0], runs, gated(2), job=job)).done == {("worker", 0)}
    gone = replace(job, status=replace(known, placement=None))  # no room was found
    assert acts(WriteJobStatus, view(*done, gated(2), job=gone)) == [], "it is complete, and waits"


def test_a_place_is_taken_only_while_all_members_are_there() -> None:
    job = stand_in(attempt=1, admitted=True)
    job = replace(job, status=replace(job.status, placement=make_placement(NODES)))
    opened = written(view(*map(gated, range(3)), job=job))
    assert opened.attempts[-1].number == 1
    given_up = written(view(gated(0), gated(1), job=job))
    assert admitted_of(given_up).status == "False"
    assert given_up.attempts == ()


def test_members_that_another_controller_holds_have_no_place() -> None:
    behind = [gated(0), gated(1), gated(2, gates=("kueue.x-k8s.io/admission",))]
    assert admitted_of(written(view(*behind, job=stand_in()))).reason == "GroupHeld"
    free = written(view(*map(gated, range(3)), job=stand_in()))
    assert admitted_of(free).status == "True"
    job = stand_in(attempt=1, admitted=True)
    job = replace(job, status=replace(job.status, placement=make_placement(NODES)))
    assert admitted_of(written(view(*behind, job=job))).status == "False"
    is_open = stand_in(attempt=1, is_open=True)
    found = acts(ReleaseMember, view(*behind, job=is_open))
    assert [action.pod.metadata.name for action in found] == ["web-0", "web-1"]


def test_a_held_group_is_not_released_onto_its_place() -> None:
    job = stand_in(attempt=1, admitted=True, suspend=True)
    job = replace(job, status=replace(job.status, placement=make_placement(NODES)))
    assert written(view(*map(gated, range(3)), job=job)).state == "Held"


# Live


def test_members_are_released_onto_the_places_of_their_own_numbers() -> None:
    job = stand_in(attempt=1, is_open=True)
    found = acts(ReleaseMember, view(gated(2), gated(0), gated(1), job=job))
    assert {(a.pod.metadata.name, a.index, a.node) for a in found} == {
        ("web-0", 0, "n0"), ("web-1", 1, "n1"), ("web-2", 2, "n2"),
    }  # fmt: skip


def test_a_group_runs_once_all_of_its_members_run_or_have_ended_well() -> None:
    job = stand_in(attempt=1, is_open=True)
    first, second = released(job, 0, "n0"), released(job, 1, "n1", phase="Succeeded")
    pending = released(job, 2, "n2", phase="Pending")
    partly = written(view(first, second, pending, job=job))
    assert (partly.members.running, partly.members.pending) == (1, 1)
    assert (partly.state == "Running", partly.started_at) == (False, None)
    failed = renamed(released(job, 2, "n2", phase="Failed"), "web-before", 2)
    status = written(view(first, second, failed, released(job, 2, "n2"), job=job))
    assert (status.members.running, status.members.failed) == (2, 0), "it came back"
    assert status.state == "Running"
    assert status.started_at == status.attempts[-1].started_at is not None


def renamed(pod: Pod, name: str, index: int) -> Pod:
    """The pod under another name, its number in a label."""
    labels = {**pod.metadata.labels, "apps.kubernetes.io/pod-index": str(index)}
    return replace(pod, metadata=replace(pod.metadata, name=name, labels=labels))


def test_a_member_that_comes_back_waits_until_the_one_before_it_is_gone() -> None:
    job = stand_in(attempt=1, is_open=True)
    stopping = released(job, 1, "n1", deleted=True)
    again = renamed(gated(1), "web-again", 1)
    others = (released(job, 0, "n0"), released(job, 2, "n2"))
    seen = view(*others, stopping, again, job=job)
    assert acts(ReleaseMember, seen) == []
    assert acts(CreateJob, seen) == []
    with_room = view(others[1], stopping, again, job=job)
    assert acts(ReleaseMember, with_room) == [], "its own seat is the one to wait for"
    (back,) = acts(ReleaseMember, view(*others, again, job=job))
    assert (back.index, back.node) == (1, "n1")


def test_nobody_waits_for_the_end_of_a_pod_on_a_node_that_is_out() -> None:
    job = stand_in(attempt=1, is_open=True)
    stopping = released(job, 1, "n1", deleted=True)
    again = renamed(gated(1), "web-again", 1)
    usable = {"n0": True, "n1": False, "n2": True}
    others = (released(job, 0, "n0"), released(job, 2, "n2"))
    assert written(view(*others, stopping, again, job=job, usable=usable)).attempt == 2


def test_a_member_whose_node_is_out_starts_a_repair_and_moves_nobody_else() -> None:
    job = stand_in(attempt=1, is_open=True)
    others = (released(job, 0, "n0"), released(job, 2, "n2"))
    usable = {"n0": True, "n1": False, "n2": True}
    status = written(view(*others, gated(1), job=job, usable=usable))
    assert status.attempt == 2
    assert (status.attempts[-1].reason, status.attempts[-1].nodes_lost) == ("NodeLost", ("n1",))
    assert acts(EvictMember, view(*others, gated(1), job=job, usable=usable)) == []


def test_a_member_beyond_the_count_gets_a_job_of_its_own() -> None:
    job = stand_in(attempt=1, is_open=True)
    running = [released(job, i, f"n{i}") for i in range(3)]
    (made,) = acts(CreateJob, view(*running, gated(3), job=job))
    adopts = made.job.spec.adopts
    assert adopts is not None
    assert (adopts.kind, adopts.name, made.job.member_count) == ("Pod", "web-3", 1)


def test_a_refused_member_is_given_time_and_then_moved() -> None:
    job = stand_in(attempt=1, is_open=True)
    others = (released(job, 0, "n0"), released(job, 2, "n2"))
    early = view(*others, refused(released(job, 1, "n1"), seconds=3), job=job)
    assert all(w.status.attempt == 1 for w in acts(WriteJobStatus, early))
    assert decide_group(early, POLICY, NOW).wake_at == NOW - 3 + POLICY.bind_patience_seconds
    late = view(*others, refused(released(job, 1, "n1"), seconds=30), job=job)
    status = written(late)
    assert (status.attempt, status.attempts[-1].nodes_lost) == (2, ("n1",))
    assert "no room" in status.attempts[-1].message
    waiting = replace(job, status=status)
    (gone,) = acts(
        EvictMember, view(*others, refused(released(job, 1, "n1"), seconds=30), job=waiting)
    )
    assert gone.pod.metadata.name == "web-1"


def test_a_refused_member_that_nothing_creates_again_keeps_its_place_for_longer() -> None:
    job = stand_in(attempt=1, is_open=True)

    def bare(seconds: float) -> Pod:
        pod = refused(released(job, 1, "n1"), seconds=seconds)
        return replace(pod, metadata=replace(pod.metadata, owner_references=()))

    others = (released(job, 0, "n0"), released(job, 2, "n2"))
    early = view(*others, bare(290), job=job)
    assert all(w.status.attempt == 1 for w in acts(WriteJobStatus, early))
    assert decide_group(early, POLICY, NOW).wake_at == NOW - 290 + POLICY.bare_patience_seconds
    assert written(view(*others, bare(300), job=job)).attempt == 2


def test_a_group_whose_members_are_refused_again_and_again_waits_for_all_of_them() -> None:
    most = POLICY.refusals_max
    for earlier, ends in [
        (["NotBound"] * (most - 2), ""),
        (["NotBound"] * (most - 1), "WaitsAgain"),
        (["NotBound"] * (most - 1) + ["NodeLost"], ""),
    ]:
        job = stand_in(attempt=len(earlier) + 1, is_open=True)
        past = [Attempt(i, finished_at="x", reason=why) for i, why in enumerate(earlier, start=1)]
        attempts = (*past, *job.status.attempts)
        job = replace(job, status=replace(job.status, attempts=attempts))
        others = (released(job, 0, "n0"), released(job, 2, "n2"))
        status = written(view(*others, refused(released(job, 1, "n1"), seconds=30), job=job))
        assert status.attempts[-1].reason == (ends or "NotBound"), earlier
        assert (admitted_of(status).status == "False") is bool(ends)


def test_patience_counts_from_when_the_refusal_was_first_seen() -> None:
    job = stand_in(attempt=1, is_open=True)
    pod = refused(released(job, 1, "n1"), seconds=0)
    first = read_member(pod, membership_of(pod), NOW)
    again = read_member(pod, membership_of(pod), NOW + 5, first)
    assert (first.refused_at, again.refused_at) == (NOW, NOW)
    other = replace(pod, metadata=replace(pod.metadata, uid="another"))
    assert read_member(other, membership_of(other), NOW + 5, first).refused_at == NOW + 5


def test_a_member_whose_place_has_moved_is_deleted_and_the_event_says_why() -> None:
    job = stand_in(attempt=1, is_open=True)
    seen = view(released(job, 0, "n0"), released(job, 1, "n9"), job=job)
    (gone,) = acts(EvictMember, seen)
    assert gone.pod.metadata.name == "web-1"


# The end


def test_all_succeeded_is_success_and_the_place_is_free_at_once() -> None:
    job = stand_in(attempt=1, is_open=True)
    seen = view(*[released(job, i, f"n{i}", phase="Succeeded") for i in range(3)], job=job)
    status = written(seen)
    assert (status.state, status.members.succeeded) == ("Succeeded", 3)


def test_between_two_tries_the_place_is_kept_for_a_while_and_then_given_back() -> None:
    job = stand_in(attempt=1, is_open=True)
    pods = [released(job, i, f"n{i}", phase="Failed") for i in range(3)]
    early = view(*pods, job=job, idle_since=NOW - 1)
    assert acts(WriteJobStatus, early) == []
    status = written(view(*pods, job=job, idle_since=NOW - 100))
    assert admitted_of(status).status == "False"
    assert status.attempts[-1].reason == "MembersGone"


def test_a_suspended_owner_has_its_place_given_back_at_once() -> None:
    job = stand_in(attempt=1, is_open=True)
    seen = view(job=job, facts=replace_facts(is_suspended=True), idle_since=NOW - 1)
    status = written(seen)
    assert admitted_of(status).status == "False"
    assert status.attempts[-1].message == "StatefulSet web is suspended"
    assert acts(WriteJobStatus, view(job=job, idle_since=NOW - 1)) == []


def test_the_owners_word_ends_the_job() -> None:
    job = stand_in(attempt=1, is_open=True)
    ended = replace_facts(ended=Ended.FAILED)
    pods = [released(job, i, f"n{i}", phase="Failed") for i in range(2)]
    assert written(view(*pods, job=job, facts=ended, idle_since=NOW - 1)).state == "Failed"


def test_what_an_owner_said_before_its_pods_had_ended_is_no_word_on_their_end() -> None:
    job = stand_in(attempt=1, is_open=True)
    pods = [released(job, i, f"n{i}", phase="Failed") for i in range(2)]
    for facts in (replace_facts(ended=Ended.FAILED), replace_facts(is_suspended=True)):
        seen = view(*pods, job=job, facts=facts, idle_since=NOW + 1)
        assert acts(WriteJobStatus, seen, NOW + 2) == []
        assert len(acts(ReadSource, seen, NOW + 2)) == 1


def test_a_deleted_job_keeps_its_claim_until_its_last_member_is_gone() -> None:
    job = stand_in(attempt=1, is_open=True)
    deleted = replace(job, metadata=replace(job.metadata, deletion_timestamp=format_time(NOW)))
    assert acts(RemoveFinalizer, view(released(job, 0, "n0"), job=deleted)) == []
    assert acts(RemoveFinalizer, view(released(job, 0, "n0", deleted=True), job=deleted)) == []
    assert len(acts(RemoveFinalizer, view(gated(1), job=deleted))) == 1


def test_a_job_that_is_collected_right_after_its_success_is_recorded_as_succeeded() -> None:
    job = stand_in(attempt=1, is_open=True)
    deleted = replace(job, metadata=replace(job.metadata, deletion_timestamp=format_time(NOW)))
    pods = [released(job, i, f"n{i}", phase="Succeeded") for i in range(3)]
    (record,) = acts(RecordHistory, view(*pods, job=deleted))
    assert record.job.status.state == "Succeeded"
    (record,) = acts(RecordHistory, view(*pods[:2], job=deleted))
    assert record.job.status.state == "Failed"


def test_a_tool_that_goes_on_after_the_end_gets_a_new_job() -> None:
    done = stand_in(attempt=1, status={})
    done = replace(
        done, status=replace(done.status, conditions=(Condition("Succeeded", "True", "x"),))
    )
    assert acts(DeleteJob, view(job=done)) == []
    assert acts(DeleteJob, view(gated(0), job=done)) == [DeleteJob(done)]


def test_metadata_of_a_pod_without_owner_is_a_gang_of_one() -> None:
    pod = replace(gated(0), metadata=ObjectMeta(namespace="default", name="solo", uid="u"))
    (made,) = acts(CreateJob, view(pod, facts=None))
    assert made.job.metadata.owner_references[0].kind == "Pod"
    assert made.job.member_count == 1
