"""A placement says whose nodes its members tolerate, and their pods do."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.kubernetes.core import Taint, Toleration
from fairlead.api.names import TEAM
from fairlead.decide.attempts.seats import seats
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.members import PodFactory
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, as_written, make_job, make_node, make_team

OWN = Toleration(TEAM, "Equal", "vision", "NoSchedule")
ANY = Toleration(TEAM, "Exists", "", "NoSchedule")


def _placed(priority: int) -> PlaceJob:
    state = PlacementState.of([make_node("n0", taints=[Taint(TEAM, "NoSchedule", "vision")])])
    state.cluster.team_changed("vision", make_team("vision"))
    claimed = Toleration(TEAM, "Exists")
    other = Toleration("disk", "Exists")
    job = make_job("job", namespace="vision", priority=priority, tolerations=[claimed, other])
    state.cluster.job_changed(job)
    [action] = decide(state, PlacementPolicy(), EPOCH).actions
    assert isinstance(action, PlaceJob)
    return action


def _tolerations(action: PlaceJob) -> tuple[Toleration, ...]:
    job = as_written(action)
    placement = job.status.placement
    assert placement is not None
    pod = PodFactory(job, JobsPolicy(), resume_step=None).make(next(iter(seats(job, placement))))
    assert pod.metadata.labels[TEAM] == "vision"
    return pod.spec.tolerations


def test_members_tolerate_their_teams_nodes() -> None:
    assert _tolerations(_placed(1)) == (Toleration("disk", "Exists"), OWN)


def test_members_of_a_job_that_may_borrow_tolerate_all_teams_nodes() -> None:
    assert _tolerations(_placed(0)) == (Toleration("disk", "Exists"), OWN, ANY)


def test_without_a_team_no_toleration_is_given() -> None:
    action = _placed(0)
    placement = replace(action.placement, team="", may_borrow=False)
    job = as_written(replace_placement(action, placement))
    pod = PodFactory(job, JobsPolicy(), resume_step=None).make(next(iter(seats(job, placement))))
    assert pod.spec.tolerations == (Toleration("disk", "Exists"),)


def replace_placement(action: PlaceJob, placement) -> PlaceJob:  # type: ignore[no-untyped-def]
    return PlaceJob(action.job, placement, action.placed, action.verdict, action.begun)
