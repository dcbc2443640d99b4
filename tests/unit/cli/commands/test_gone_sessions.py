"""The exit code of a session that went with its container before it gave one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import Condition
from fairlead.cli.job_request.jobspec import Origin, build_job
from fairlead.cli.job_request.request import JobRequest
from fairlead.cli.sessions.foreground import WITH_CONTAINER, HeldEnd
from fairlead.cli.sessions.terminal_job import Allocation, TerminalJob, code_of
from fairlead.testing.builders import make_job

GONE = HeldEnd(WITH_CONTAINER, is_gone=True)


def running(command: tuple[str, ...]) -> Job:
    job = make_job("one", count=1)
    role = job.spec.roles[0]
    container = replace(role.template.spec.containers[0], command=command)
    template = replace(role.template, spec=replace(role.template.spec, containers=(container,)))
    spec = replace(job.spec, roles=(replace(role, template=template),))
    return replace(job, spec=spec, status=replace(job.status, attempt=1, attempts=(Attempt(1),)))


def failed(job: Job, code: int) -> Job:
    condition = Condition(names.FAILED, "True", reason="Failed")
    attempts = (Attempt(1, exit_code=code),)
    status = replace(job.status, conditions=(condition,), attempts=attempts)
    return replace(job, status=status)


def submitted(held: TerminalJob) -> Job:
    """Return the job of a session, which runs."""
    job = build_job("one", JobRequest(), held.program, Origin("/", "ann", {}))
    return running(job.spec.roles[0].template.spec.containers[0].command)


HELD = submitted(TerminalJob(("sh",)))
ALLOCATION = submitted(Allocation(("sh",), "interactive"))


@pytest.mark.parametrize(
    ("job", "end", "code"),
    [
        (HELD, GONE, 5),
        (ALLOCATION, GONE, 5),
        (HELD, HeldEnd(7), 7),  # it gave its own
        (running(("sleep", "9")), GONE, WITH_CONTAINER),  # the job is not there for the session
    ],
    ids=["held", "allocation", "told", "of-another-job"],
)
def test_a_job_that_was_there_for_a_session_has_its_code(job: Job, end: HeldEnd, code: int) -> None:
    assert code_of(FakeApi(failed(job, 5)), job, end) == code


def test_of_a_later_attempt_nothing_is_taken() -> None:
    again = replace(HELD, status=replace(HELD.status, attempt=2))
    assert code_of(FakeApi(again), HELD, GONE) == WITH_CONTAINER
