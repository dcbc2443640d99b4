"""`wait`: block until jobs reach a state, and say by the exit code how it went."""

from __future__ import annotations

import time
from enum import Enum

import click

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import is_true
from fairlead.api.resources import JOB_ARRAYS
from fairlead.api.status import NotFound
from fairlead.cli.cluster.lookup import is_array, missing_job, require_array
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.common import Common, Format, check_choice, common, seconds_of
from fairlead.cli.connection.completers import complete_jobs, words
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference, Elements, parse_reference, select
from fairlead.cli.records.watching import Gone, changes, job_changes
from fairlead.cli.views.arrays import array_state, array_words
from fairlead.cli.views.jobs import ending, exit_code, state_of, waiting
from fairlead.decide.words import duration
from fairlead.input.errors import CliError, Code, Exit, Problem, fail


class For(Enum):
    """What to wait for."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FINISHED = "finished"


def array_reached(elements: Elements, goal: For) -> bool | None:
    """Return the same of an array's elements: all of them, or those that were named."""
    array = elements.array
    if goal is For.STARTED:
        has_begun = array.status.started_at is not None
        return has_begun if has_begun or array.is_finished else None
    is_over = array.is_finished or elements.finished == elements.positions
    if not is_over:
        return None
    return goal is For.FINISHED or (elements.finished == elements.positions and not elements.failed)


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
      fairlead wait sweep-1 && fairlead wait 'sweep-2[0-9]'
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

    An array succeeds when all of its elements do; NAME[3-9] waits for some of them.

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
    for reference in dict.fromkeys(parse_reference(name_of(api, space, job)) for job in jobs):
        name = str(reference)
        try:
            if reference.indices is not None or is_array(api, space, reference.name):
                ended = _wait_array(api, space, reference, goal=known[goal], deadline=deadline)
                is_good = array_reached(ended, known[goal]) or False
                code = code or (Exit.OK if is_good else Exit.FAILED)
                _show_array(common_, api, ended, reference)
                continue
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


def _wait_array(
    api: Api, space: str, reference: ArrayReference, *, goal: For, deadline: float | None
) -> Elements:
    name, started = reference.name, time.monotonic()
    elements = select(require_array(api, space, name), reference)
    try:
        for array in changes(api, JOB_ARRAYS, (space, name), deadline=deadline):
            elements = Elements(array, elements.positions)
            if array_reached(elements, goal) is not None:
                return elements
    except (Gone, NotFound) as error:
        message = f"array '{name}' was deleted while it was waited for"
        help_ = ("fairlead history shows the jobs of its elements",)
        raise fail(Code.NO_SUCH_JOB, message, help=help_) from error
    except TimeoutError as error:
        past, after = _PAST[goal], duration(time.monotonic() - started)
        message = f"array '{reference}' has not {past} within {after}; it goes on"
        detail = (f"it is {array_state(elements.array)}: {array_words(elements.array)}",)
        problem = Problem(
            Code.WAIT_TIMED_OUT, message, detail=detail, help=(f"fairlead ps {name}",)
        )
        raise CliError(problem) from error
    raise AssertionError("an array's changes never end")


def _show_array(common_: Common, api: Api, elements: Elements, reference: ArrayReference) -> None:
    array = elements.array
    space, name = array.metadata.key
    if common_.is_structured:
        common_.structured([api.get(JOB_ARRAYS.raw, name, namespace=space)], is_list=False)
    elif common_.format is Format.NAME:
        common_.emit(f"{reference}\n")
    else:
        words = f"{array_state(array)}: {array_words(array)}"
        if reference.indices is not None:
            ended, failed = elements.finished.bit_count(), elements.failed.bit_count()
            words = f"Failed: {failed} of {ended}" if failed else f"Succeeded: {ended}"
        common_.emit(f"{reference} {words}\n")


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
