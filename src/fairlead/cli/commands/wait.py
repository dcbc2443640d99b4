"""`wait`: block until jobs reach a state, and say by the exit code how it went."""

from __future__ import annotations

import time
from enum import Enum

import click

from fairlead.api import names
from fairlead.api.job import Job
from fairlead.api.meta import is_true
from fairlead.api.status import NotFound
from fairlead.cli.common import Common, Format, check_choice, common, seconds_of
from fairlead.cli.completers import complete_jobs, words
from fairlead.cli.lookup import clean_reference, missing_job
from fairlead.cli.transport import Api
from fairlead.cli.views.jobs import ending, exit_code, state_of, waiting
from fairlead.cli.watching import Gone, job_changes
from fairlead.decide.words import duration
from fairlead.input.errors import CliError, Code, Exit, Problem, fail


class For(Enum):
    """What to wait for."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FINISHED = "finished"


def reached(job: Job, goal: For) -> bool | None:
    """Return True when the goal is reached, False when it never will be, None while it may be."""
    succeeded = is_true(job.status.conditions, names.SUCCEEDED)
    if goal is For.FINISHED:
        return True if job.is_finished else None
    if goal is For.SUCCEEDED:
        return succeeded if job.is_finished else None
    if is_true(job.status.conditions, names.RUNNING) or succeeded:
        return True
    return job.status.started_at is not None if job.is_finished else None


@click.command(
    epilog="""Examples:

    \b
      fairlead wait train-1
      fairlead wait train-1 train-2 --timeout 2h
      fairlead wait train-1 --for started && fairlead logs train-1
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("--for", "goal", metavar="STATE", default="succeeded", show_default=True,
              shell_complete=words("started", "succeeded", "finished"),
              help="started, succeeded or finished.")  # fmt: skip
@click.option("--timeout", metavar="DURATION", help="Give up after this long, exit code 124.")
@common()
def wait(common_: Common, *, jobs: tuple[str, ...], goal: str, timeout: str | None) -> int:
    """Block until jobs reach a state.

    The exit code is 0 when all reach it, and 124 when the time is over. When a job ends without, it
    is that of the first such job's program, or 1 where no program's end was the cause.
    """
    known = {state.value: state for state in For}
    check_choice(goal, known, "--for")
    seconds = None if timeout is None else seconds_of(timeout, "--timeout")
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    deadline = None if seconds is None else time.monotonic() + seconds
    code: int = Exit.OK
    for name in dict.fromkeys(clean_reference(job) for job in jobs):
        try:
            job = _wait_one(api, (space, name), known[goal], deadline)
        except KeyboardInterrupt:
            common_.note(f"\nJob {name} goes on.    fairlead wait {name}{common_.where()}")
            return Exit.INTERRUPTED
        is_good = reached(job, known[goal])
        if not is_good and code == Exit.OK:
            code = exit_code(job) or Exit.FAILED
        tail = f": {ending(job)}" if job.is_finished and not is_good else ""
        text = f"{name}\n" if common_.format is Format.NAME else f"{name} {state_of(job)}{tail}\n"
        if not common_.is_structured:
            common_.emit(text)
        else:
            from fairlead.api.resources import JOBS

            common_.structured([api.get(JOBS.raw, name, namespace=space)], is_list=False)
    return code


def _wait_one(api: Api, key: tuple[str, str], goal: For, deadline: float | None) -> Job:
    space, name = key
    job: Job | None = None
    started = time.monotonic()
    try:
        for job in job_changes(api, key, deadline=deadline):  # the last one counts
            if reached(job, goal) is not None:
                return job
    except NotFound as error:
        raise CliError(missing_job(api, space, name)) from error
    except Gone as error:
        raise fail(Code.NO_SUCH_JOB, f"job '{name}' was deleted while it was waited for",
                   help=(f"fairlead history {name}",)) from error  # fmt: skip
    except TimeoutError as error:
        raise CliError(_too_late(name, job, goal, time.monotonic() - started)) from error
    raise AssertionError("a job's changes never end")


def _too_late(name: str, job: Job | None, goal: For, seconds: float) -> Problem:
    detail: tuple[str, ...] = ()
    if job is not None:
        state = state_of(job)
        detail = (f"it is {state}" + (f": {waiting(job)}" if state == "Waiting" else ""),)
    message = f"job '{name}' has not {_PAST[goal]} within {duration(seconds)}; it goes on"
    return Problem(Code.WAIT_TIMED_OUT, message, detail=detail, help=(f"fairlead why {name}",))


_PAST = {For.STARTED: "started", For.SUCCEEDED: "succeeded", For.FINISHED: "finished"}
