"""Jobs that represent pods, written or changed by somebody else: the pods win.

Whoever may write jobs and pods of a namespace may do so where admission is not asked.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.decide.adoption.test_lifecycle import (
    NODES,
    NOW,
    POLICY,
    acts,
    admitted_of,
    gated,
    released,
    renamed,
    stand_in,
    view,
    written,
)

from fairlead.api import names
from fairlead.api.jobs.after import After
from fairlead.api.jobs.job import Adopts, Checkpoint, Job, Restart, RestartPolicy
from fairlead.api.jobs.placement import EmptySeats
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time
from fairlead.decide.adoption.actions import CreateJob, EvictMember, ReadSource, ReleaseMember
from fairlead.decide.adoption.lifecycle import decide_group
from fairlead.decide.adoption.sources import SourceFacts
from fairlead.decide.job_actions import (
    DeleteJob,
    EmitEvent,
    RecordHistory,
    RemoveFinalizer,
    WriteJobStatus,
)
from fairlead.decide.verdict import NOTHING
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.testing.builders import make_job, make_placement, make_role

#: Fields that no pod can state, with a value that another job may have.
UNSTATED: dict[str, Any] = {
    "priority_class_name": "high",
    "time_limit_seconds": 60,
    "topology": Topology("rack"),
    "restart": Restart(RestartPolicy.NEVER, 5),
    "after": (After("other"),),
    "reservation": "exam",
    "checkpoint": Checkpoint(path="/data"),
    "ttl_seconds_after_finished": 0,
}


def with_spec(job: Job, *, generation: int = 1, **fields: Any) -> Job:
    """The job with another spec, and the generation that the API server gives it then."""
    meta = replace(job.metadata, generation=generation)
    return replace(job, metadata=meta, spec=replace(job.spec, **fields))


def whole() -> list[Pod]:
    return [gated(i) for i in range(3)]


def replaced_why(job: Job, *pods: Pod, **more: Any) -> str:
    """Why the job is deleted; it is neither admitted nor read first."""
    seen = view(*pods, job=job, **more)
    (gone,) = acts(DeleteJob, seen)
    assert gone.job is job
    assert acts(WriteJobStatus, seen) == []
    (told,) = acts(EmitEvent, seen)
    assert (told.type, told.reason) == ("Warning", "Replaced")
    return told.message


@pytest.mark.parametrize("field", UNSTATED)
def test_a_job_that_says_what_no_pod_can_state_is_deleted(field: str) -> None:
    job = with_spec(stand_in(), **{field: UNSTATED[field]})
    shown = "".join(p.title() if i else p for i, p in enumerate(field.split("_")))
    assert replaced_why(job, *whole()).endswith(f"no pod can state spec.{shown}")
    assert written(view(*whole(), job=stand_in())).attempt == 1


@pytest.mark.parametrize(
    "adopts",
    [
        Adopts("StatefulSet", "other", "apps/v1", "uid-web"),
        Adopts("StatefulSet", "web", "apps/v1", "uid-other"),
        Adopts("Job", "web", "batch/v1", "uid-web"),
        Adopts("Gang", "web", names.API_VERSION),
    ],
)
def test_a_job_of_another_object_than_its_pods_is_deleted(adopts: Adopts) -> None:
    assert "not of spec.adopts" in replaced_why(with_spec(stand_in(), adopts=adopts), *whole())


def test_a_job_that_fairlead_has_not_made_is_deleted() -> None:
    job = stand_in()
    mine = replace(job, metadata=replace(job.metadata, labels={}))
    assert "lacks the label" in replaced_why(mine, *whole())


def test_a_job_of_another_team_than_its_pods_name_is_deleted() -> None:
    pods = [gated(i, **{names.TEAM: "vision"}) for i in range(3)]
    assert "team vision" in replaced_why(with_spec(stand_in(), team="rich"), *pods)
    assert written(view(*pods, job=with_spec(stand_in(), team="vision"))).attempt == 1
    by_default = with_spec(stand_in(), team="of-the-namespace")
    assert written(view(*whole(), job=by_default)).attempt == 1, "admission sets the default"


def test_roles_that_say_more_than_the_pods_are_not_admitted() -> None:
    own = stand_in().spec.roles[0]
    labelled = replace(own, template=replace(own.template, metadata=gated(0).metadata))
    forged = replace(
        own, template=replace(
            own.template, metadata=replace(own.template.metadata, labels={"app": "another"})
        ),
    )  # fmt: skip
    assert "more than its pods" in replaced_why(with_spec(stand_in(), roles=(forged,)), *whole())
    assert "more than" in replaced_why(with_spec(stand_in(), roles=(own, own)), *whole())
    least = replace(own, min_count=1)
    assert "more than its pods" in replaced_why(with_spec(stand_in(), roles=(least,)), *whole())
    fine = with_spec(stand_in(), roles=(labelled,))
    assert written(view(*whole(), job=fine)).attempt == 1
    rich = replace(
        own, template=replace(
            own.template, spec=replace(own.template.spec, priority_class_name="high")
        ),
    )  # fmt: skip
    seen = view(*whole(), job=with_spec(stand_in(), roles=(rich,)))
    assert len(acts(DeleteJob, seen)) == 1
    assert acts(WriteJobStatus, seen) == []


def test_a_job_without_pods_that_never_had_a_place_is_deleted_unread() -> None:
    seen = view(job=stand_in(), facts=None)
    assert acts(ReadSource, seen) == []
    assert len(acts(DeleteJob, seen)) == 1


def test_who_changes_the_spec_of_an_admitted_job_waits_until_its_pods_were_looked_at_again() -> (
    None
):
    admitted = replace(
        stand_in(), status=written(view(*whole(), job=stand_in()))
    )  # as the controller writes it
    assert phase_of(admitted) is Phase.QUEUED
    forged = with_spec(admitted, generation=2, priority_class_name="high")
    assert phase_of(forged) is Phase.UNADMITTED, "the planner leaves it alone"
    assert "spec.priorityClassName" in replaced_why(forged, *whole())
    resumed = with_spec(admitted, generation=3)
    status = written(view(*whole(), job=resumed))
    assert (status.attempt, admitted_of(status).observed_generation) == (1, 3)
    assert phase_of(replace(resumed, status=status)) is Phase.QUEUED


# While it runs


def running(*, generation: int = 1, **spec: Any) -> Job:
    job = stand_in(attempt=1, is_open=True)
    condition = Condition("Admitted", "True", "Admitted", observed_generation=1)
    status = replace(job.status, conditions=(condition,))
    return with_spec(replace(job, status=status), generation=generation, **spec)


def members(job: Job, *, phase: str = "Running") -> list[Pod]:
    return [released(job, i, f"n{i}", phase=phase) for i in range(3)]


def test_what_has_no_effect_on_a_running_group_is_reported_and_moves_nobody() -> None:
    job = running(generation=2, priority_class_name="high")
    seen = view(*members(job), job=job)
    assert admitted_of(written(seen)).observed_generation == 2
    assert acts(EvictMember, seen) == []
    assert [e.message for e in acts(EmitEvent, seen) if e.reason == "SpecIgnored"] == [
        "Has no effect: no pod can state spec.priorityClassName"
    ]
    again = view(*members(job), job=running(generation=2, suspend=True))
    assert [e.reason for e in acts(EmitEvent, again)] == ["Started"]
    assert acts(EvictMember, again) == []


def test_a_running_group_whose_roles_are_changed_gives_its_place_back() -> None:
    own = stand_in().spec.roles[0]
    for roles in (
        make_job("x", count=3, gpus=4).spec.roles,
        (replace(own, template=replace(own.template, spec=replace(
            own.template.spec, priority_class_name="high"))),),
        (replace(own, name="other"),),
    ):  # fmt: skip
        job = running(generation=2, roles=roles)
        status = written(view(*members(job), job=job))
        assert admitted_of(status).status == "False"
        assert status.attempts[-1].reason == "PlacementLost"


# Seats whose members have ended


def big_and_small(*, attempt: int = 0, **more: Any) -> Job:
    job = stand_in(attempt=attempt, **more)
    small, big = make_role("worker", count=1, gpus=8), make_role("big", count=2, gpus=8)
    return with_spec(job, roles=(small, big))


def in_role(pod: Pod, role: str) -> Pod:
    labels = {**pod.metadata.labels, names.ROLE: role}
    return replace(pod, metadata=replace(pod.metadata, labels=labels))


def test_labels_on_ended_pods_fill_no_seat_of_a_job_that_somebody_else_has_made() -> None:
    """Labels of ended pods may be changed, and the size said last."""
    for job in (big_and_small(), big_and_small(attempt=1, admitted=True)):
        forged = [
            renamed(in_role(released(job, i, "n7", phase="Succeeded"), "big"), f"true-{i}", 7 + i)
            for i in range(2)
        ]
        for size in ("1", "3"):
            seen = view(gated(0, **{names.GROUP_SIZE: size}), *forged, job=job, facts=None)
            decided = decide_group(seen, POLICY, NOW)
            assert decided != NOTHING
            for write in acts(WriteJobStatus, seen):
                assert admitted_of(write.status).status == "False"
            after = acts(CreateJob, view(gated(0, **{names.GROUP_SIZE: size}), *forged, facts=None))
            assert sum(made.job.member_count for made in after) <= int(size)


@pytest.mark.parametrize(
    ("node", "gpus", "counts"),
    [("n1", 8, True), ("n7", 8, False), ("", 8, False), ("n1", 0, False)],
)
def test_a_member_has_ended_well_only_in_the_place_of_its_seat_with_what_its_role_asks(
    node: str, gpus: int, *, counts: bool
) -> None:
    job = running()
    ended = released(job, 1, node, phase="Succeeded")
    if gpus != 8:
        small = gated(1, gpus=gpus).spec
        spec = replace(ended.spec, containers=small.containers)
        ended = replace(ended, spec=spec)
    alive = [released(job, 0, "n0"), released(job, 2, "n2")]
    status = written(view(*alive, ended, job=job))
    assert status.done == ({("worker", 1)} if counts else frozenset())


def test_what_ended_well_is_remembered_and_fills_its_seat_when_the_group_gathers_again() -> None:
    before = replace(running(), status=replace(
        running().status, seats=(EmptySeats("worker", done=(1,)),)))  # fmt: skip
    lost = replace(before, status=replace(before.status, placement=None))
    status = written(view(released(lost, 0, "n0"), job=lost))
    assert admitted_of(status).status == "False"
    assert status.done == {("worker", 1)}
    waits = replace(lost, status=status)
    assert written(view(gated(0), gated(2), job=waits)).attempt == 2
    assert "1 of 3" not in admitted_of(written(view(gated(0), job=waits))).message
    assert admitted_of(written(view(gated(0), job=waits))).status == "False"
    # Its tool has made the one that was done again: the seat is that one's.
    again = written(view(*whole(), job=waits))
    assert (again.attempt, again.done) == (2, frozenset())


def test_what_is_done_counts_beside_members_that_a_group_was_scaled_up_by() -> None:
    seats = (EmptySeats("worker", done=(1,)),)
    job = replace(running(), status=replace(running().status, seats=seats, placement=None))
    waits = replace(job, status=written(view(released(job, 0, "n0"), job=job)))
    four = SourceFacts(uid="uid-web", roles={"worker": 4})
    (made,) = acts(DeleteJob, view(gated(0), gated(2), gated(3), job=waits, facts=four))
    assert made.job.metadata.name == waits.metadata.name


def test_what_is_done_when_the_others_start_again_needs_no_node() -> None:
    job = stand_in(attempt=2, admitted=True)
    seats = (EmptySeats("worker", done=(1,)),)
    place = make_placement(NODES, attempt=2)
    job = replace(job, status=replace(job.status, placement=place, seats=seats))
    opened = written(view(gated(0), gated(2), job=job))
    assert opened.vacant == {("worker", 1)}
    job = replace(job, status=opened)
    found = acts(ReleaseMember, view(gated(0), gated(2), job=job))
    assert [(a.index, a.node) for a in found] == [(0, "n0"), (2, "n2")]


def test_a_seat_without_a_member_gives_its_node_back_after_a_while() -> None:
    """Ended well, failed or gone: no quota counts a place without a pod."""
    job = running()
    alive = [released(job, 0, "n0"), released(job, 2, "n2")]
    ended = {
        "done": [released(job, 1, "n1", phase="Succeeded")],
        "failed": [released(job, 1, "n1", phase="Failed")],
        "gone": [],
    }
    for how, pods in ended.items():
        patience = POLICY.idle_seconds_max if how == "done" else POLICY.vacant_seconds_max
        seen = view(*alive, *pods, job=job, empty_since={("worker", 1): NOW})
        early = decide_group(seen, POLICY, NOW + patience - 1)
        writes = [a for a in early.actions if isinstance(a, WriteJobStatus)]
        assert all(not write.status.vacant for write in writes)
        assert early.wake_at == NOW + patience
        assert written(seen, NOW + patience).vacant == {("worker", 1)}
    more = SourceFacts(uid="uid-web", roles={"worker": 3}, has_more_rounds=True)
    seen = view(*alive, *ended["done"], job=job, facts=more, empty_since={("worker", 1): NOW})
    waits = acts(WriteJobStatus, seen, NOW + POLICY.vacant_seconds_max - 1)
    assert all(not write.status.vacant for write in waits), "the next one may come"


def given_back(*indices: int) -> Job:
    job = running()
    seats = (EmptySeats("worker", vacant=indices),)
    return replace(job, status=replace(job.status, seats=seats))


def test_who_comes_for_a_place_that_was_given_back_is_a_gang_of_its_own() -> None:
    job = given_back(1)
    alive = [released(job, 0, "n0"), released(job, 2, "n2")]
    seen = view(*alive, gated(1), job=job)
    assert acts(ReleaseMember, seen) == []
    (made,) = acts(CreateJob, seen)
    assert made.job.member_count == 1
    late = view(*alive, released(job, 1, "n1"), job=job)
    (gone,) = acts(EvictMember, late)
    assert gone.pod.metadata.name == "web-1"


def test_a_group_that_starts_again_and_has_given_places_back_starts_whole() -> None:
    job = given_back(1)
    status = written(view(*whole(), job=job))
    assert admitted_of(status).status == "False"
    assert status.vacant == {("worker", 1)}, "others may have it until the place is gone"
    waits = replace(job, status=status)
    assert decide_group(view(*whole(), job=waits), POLICY, NOW) == NOTHING
    taken = replace(waits, status=replace(status, placement=None))
    again = written(view(*whole(), job=taken))
    assert (again.attempt, again.vacant) == (2, frozenset())


def test_a_deleted_job_that_somebody_keeps_holds_no_nodes() -> None:
    for own in ((names.JOB_FINALIZER,), ()):
        job = running()
        meta = replace(
            job.metadata, deletion_timestamp=format_time(NOW), finalizers=(*own, "mallory/keep")
        )
        kept = replace(job, metadata=meta)
        assert decide_group(view(released(kept, 0, "n0"), job=kept), POLICY, NOW) == NOTHING
        seen = view(gated(0), job=kept)
        status = written(seen)
        assert status.placement is None
        assert len(acts(RecordHistory, seen)) == 1
        assert acts(RemoveFinalizer, seen) == []
        ended = view(gated(0), job=replace(kept, status=status))
        assert len(acts(RemoveFinalizer, ended)) == len(own)
        assert acts(RecordHistory, ended) == []
