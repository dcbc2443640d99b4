"""Which jobs `ps` shows: by state, by user, and the last few that ended."""

from __future__ import annotations

from dataclasses import replace

from fairlead.api import names
from fairlead.api.job import Job
from fairlead.api.meta import Condition
from fairlead.cli.views.jobs import FINISHED_SHOWN_MAX, JobChoice, choose_jobs
from fairlead.testing.builders import make_job


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
