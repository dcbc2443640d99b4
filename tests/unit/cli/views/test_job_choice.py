"""Which jobs `ps` shows: by state, by user, and the last few that ended."""

from __future__ import annotations

from dataclasses import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition
from fairlead.cli.views.jobs import FINISHED_SHOWN_MAX, JobChoice, choose_jobs
from fairlead.testing.builders import EPOCH, make_job


def job(name: str, state: str, user: str = "ana") -> Job:
    ended = state in ("Succeeded", "Failed")
    made = make_job(
        name, status={"state": state}, conditions=(Condition(state, "True"),) if ended else ()
    )
    made.metadata.annotations[names.SUBMITTED_BY] = user
    return made


def test_jobs_are_chosen_by_state_and_user() -> None:
    jobs = [job("a", "Waiting"), job("b", "Running"), job("c", "Waiting", "bob")]
    jobs += [job(f"f{n}", "Failed") for n in range(FINISHED_SHOWN_MAX + 2)]

    def chosen(choice: JobChoice) -> list[str]:
        return [each.metadata.name for each in choose_jobs(jobs, choice)]

    assert len(chosen(JobChoice())) == FINISHED_SHOWN_MAX + 3
    waiting = JobChoice(states=frozenset({"Waiting"}))
    assert chosen(waiting) == ["a", "c"]
    assert chosen(replace(waiting, user="bob")) == ["c"]
    assert chosen(JobChoice(user="bob")) == ["c"]
    assert len(chosen(JobChoice(states=frozenset({"Failed"})))) == FINISHED_SHOWN_MAX + 2


def test_jobs_of_one_instant_are_in_the_order_of_namespaces_and_of_numbers_in_names() -> None:
    late = make_job("a-1", created=EPOCH + 1)
    same = [("team-10", "b-2"), ("team-9", "b-10"), ("team-9", "b-9"), ("team-9", "a-70")]
    jobs = [late, *(make_job(name, namespace=space) for space, name in same)]
    assert [each.metadata.key for each in choose_jobs(jobs, JobChoice())] == [
        ("team-9", "a-70"), ("team-9", "b-9"), ("team-9", "b-10"), ("team-10", "b-2"),
        late.metadata.key,
    ]  # fmt: skip
