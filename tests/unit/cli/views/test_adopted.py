"""Jobs that stand for pods of other tools, at the terminal: what they say and who may stop them."""

from __future__ import annotations

import pytest

from fairlead.api.jobs.job import Adopts, Attempt, Job, MemberCounts, VerdictStatus
from fairlead.api.meta import Condition
from fairlead.cli.commands.change import adopted_problem, is_of_another
from fairlead.cli.job_request.change_verbs import CANCEL, HOLD, RELEASE
from fairlead.cli.views.jobs import where_or_why
from fairlead.decide.answers.explain import explain
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.testing.builders import EPOCH, make_job, make_node

ADOPTS = Adopts("Job", "train", "batch/v1", "uid")


def adopted(*, attempts: tuple[Attempt, ...] = ()) -> Job:
    return make_job(
        "train-1a2b3c", count=4, attempt=len(attempts), spec={"adopts": ADOPTS},
        status={"attempts": attempts},
    )  # fmt: skip


def incomplete() -> Job:
    text = "3 of 4 members exist; Job train creates the others"
    stale = VerdictStatus("Waiting", "InsufficientCapacity", {"asked": 1})
    condition = Condition("Admitted", "False", "GroupIncomplete", text)
    return make_job(
        "train-1a2b3c", count=4, attempt=0, conditions=(condition,), spec={"adopts": ADOPTS},
        status={"members": MemberCounts(4, pending=3)}, verdict=stale,
    )  # fmt: skip


def test_an_incomplete_group_says_how_many_of_its_members_exist() -> None:
    job = incomplete()
    said = "3 of 4 members exist; Job train creates the others"
    assert where_or_why(job) == f"GroupIncomplete: {said}"
    state = PlacementState.of([make_node("n")], [job])
    explanation = explain(state, job.metadata.key, EPOCH)
    assert explanation is not None
    assert explanation.verdict.message == said


def test_an_adopted_job_is_cancelled_by_deleting_its_owner() -> None:
    job = adopted()
    assert is_of_another(job, CANCEL)
    problem = adopted_problem(job, CANCEL)
    assert problem.help == ("kubectl delete job.batch/train -n default",)
    assert "represents the pods of Job 'train'" in problem.message


def test_an_adopted_job_can_be_held_until_its_members_are_released() -> None:
    assert not is_of_another(adopted(), HOLD)
    assert is_of_another(adopted(attempts=(Attempt(1, begun_at="x"),)), HOLD)
    assert not is_of_another(adopted(attempts=(Attempt(1, finished_at="x"),)), HOLD)
    assert not is_of_another(adopted(attempts=(Attempt(1, begun_at="x"),)), RELEASE)


def test_jobs_of_fairlead_itself_are_its_users() -> None:
    assert not is_of_another(make_job("own"), CANCEL)


@pytest.mark.parametrize(
    ("adopts", "command"),
    [
        (Adopts("Pod", "p", "v1"), "kubectl delete pod/p -n default"),
        (Adopts("PyTorchJob", "b", "kubeflow.org/v1"), "kubectl delete pytorchjob.kubeflow.org/b"),
        (Adopts("Gang", "g", "fairlead.dev/v1alpha1"), "kubectl delete pods -n default"),
    ],
)
def test_the_next_command_fits_the_kind_of_the_owner(adopts: Adopts, command: str) -> None:
    job = make_job("x", spec={"adopts": adopts})
    assert adopted_problem(job, CANCEL).help[0].startswith(command)
