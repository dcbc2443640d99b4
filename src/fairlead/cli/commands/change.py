"""`cancel`, `hold`, `release`, `requeue`, `priority`, `update`: patches of specs, no more."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import click
import msgspec

from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.jobs.job_array import JobArray, array_reference_of
from fairlead.api.resources import JOB_ARRAYS, JOBS, Resource
from fairlead.api.status import Invalid, NotFound
from fairlead.api.values.indices import parse_indices
from fairlead.cli.cluster.dependencies import named_after, resolved_after
from fairlead.cli.cluster.lookup import (
    STATES,
    is_array,
    list_arrays,
    missing_job,
    read_state,
    require_array,
)
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.common import Common, Format, common, now
from fairlead.cli.connection.completers import complete_jobs, words
from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import (
    ArrayReference,
    Elements,
    cancelled_with,
    parse_reference,
    select,
)
from fairlead.cli.job_request.change_verbs import (
    CANCEL,
    HOLD,
    RELEASE,
    REQUEUE,
    UPDATES,
    ChangeVerb,
    priority_change,
    read_update,
    update_change,
)
from fairlead.cli.job_request.flag_groups.flags import FLAGS, FlagValue
from fairlead.cli.submitting.submission import in_words_of_flags
from fairlead.cli.views.arrays import choose_arrays, is_element_of_listed
from fairlead.cli.views.jobs import JobChoice, choose_jobs
from fairlead.decide.adoption.group_job import NAMED_KIND
from fairlead.input.errors import CliError, Code, Problem, fail
from fairlead.model.gang.phase import OPEN, phase_of


def apply_change(common_: Common, change: ChangeVerb, jobs: tuple[str, ...]) -> None:
    """Apply a change to each job; those that cannot be changed are all reported at the end."""
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    problems: list[Problem] = []
    changed: list[dict[str, Any]] = []
    for reference in dict.fromkeys(parse_reference(name_of(api, space, job)) for job in jobs):
        resource, problem = change_reference(common_, api, change, space=space, reference=reference)
        if problem is not None:
            problems.append(problem)
        elif common_.is_structured:
            changed.append(api.get(resource.raw, reference.name, namespace=space))
    if changed:
        common_.structured(changed, is_list=len(jobs) > 1)
    if problems:
        raise CliError(problems)


def change_reference(
    common_: Common, api: Api, change: ChangeVerb, *, space: str, reference: ArrayReference
) -> tuple[Resource[Any], Problem | None]:
    """Change a job, an array or elements of one; return which kind it is, and why not."""
    if reference.indices is not None or is_array(api, space, reference.name):
        return JOB_ARRAYS, _change_array(common_, api, change, space=space, reference=reference)
    return JOBS, _change_one(common_, api, change, (space, reference.name))


def _change_one(
    common_: Common, api: Api, change: ChangeVerb, key: tuple[str, str]
) -> Problem | None:
    space, name = key
    try:
        job = api.get(JOBS, name, namespace=space)
        if job.is_finished:
            state = job.status.state or "over"
            if change is CANCEL:  # what is asked for holds, as for `cancel $(fairlead ps -o name)`
                common_.note(f"{name} has ended already ({state})")
                return None
            return Problem(
                Code.JOB_FINISHED, f"job '{name}' has ended ({state}); there is nothing to "
                f"{change.infinitive or change.verb}",
                help=(f"fairlead why {name} says how it ended",),
            )  # fmt: skip
        if is_of_another(job, change):
            return adopted_problem(job, change)
        if late := change.comes_too_late(job):
            return Problem(Code.BAD_VALUE, f"job '{name}': {late}")
        if change.is_done(job):
            common_.note(f"{name} {change.already}")
            return None
        array = array_reference_of(job.metadata)
        if change.is_of_template and array is not None:
            return _element_problem(change, name, array.name)
        api.patch(JOBS, name, change.patch_of(job), namespace=space)
    except NotFound:
        return missing_job(api, space, name)
    _say(common_, change, name)
    return None


def _change_array(
    common_: Common, api: Api, change: ChangeVerb, *, space: str, reference: ArrayReference
) -> Problem | None:
    """Change an array, or the elements that are named."""
    name = reference.name
    array = require_array(api, space, name)
    if array.is_finished:
        common_.note(f"{name} has ended already ({array.status.state})")
        return None
    patch = change.patch_of(array)
    if reference.indices is None and change.is_of_jobs_alone:
        first = parse_indices(array.spec.indices).first
        return Problem(
            Code.BAD_VALUE, f"'{name}' is an array, whose template stays as it is",
            help=(f"elements that wait or run may change: fairlead {change.verb} "
                  f"'{name}[{first}]' ...",),
        )  # fmt: skip
    if reference.indices is not None:
        if change.is_of_template:
            return _element_problem(change, str(reference), name)
        elements = select(array, reference)
        if change is not CANCEL:
            return _change_elements(common_, api, change, elements=elements, reference=reference)
        patch = {"spec": {"cancelIndices": cancelled_with(array, elements)}}
    elif change.is_done(array):
        common_.note(f"{name} {change.already}")
        return None
    api.patch(JOB_ARRAYS, name, patch, namespace=space)
    _say(common_, change, str(reference))
    return None


def _change_elements(
    common_: Common, api: Api, change: ChangeVerb, *, elements: Elements, reference: ArrayReference
) -> Problem | None:
    """Hold, release or update the elements that are jobs now."""
    space = elements.array.metadata.namespace
    found = [
        job for job in elements.jobs_among(api.list(JOBS, namespace=space)) if not job.is_finished
    ]
    if not found:
        return Problem(
            Code.NO_SUCH_JOB, f"no element of '{reference}' waits or runs now; there is nothing to "
            f"{change.verb}",
            help=() if change.is_of_jobs_alone
            else (f"fairlead {change.verb} {reference.name} is for all of them",),
        )  # fmt: skip
    if late := next(filter(None, map(change.comes_too_late, found)), ""):
        return Problem(Code.BAD_VALUE, f"'{reference}': {late}")
    for job in found:
        if not change.is_done(job):
            api.patch(JOBS, job.metadata.name, change.patch_of(job), namespace=space)
        _say(common_, change, job.metadata.name)
    return None


def _element_problem(change: ChangeVerb, element: str, array: str) -> Problem:
    return Problem(
        Code.BAD_VALUE, f"'{element}' is of array '{array}', whose elements have its {change.verb}",
        help=(f"fairlead {change.verb} {array} is for all of them",),
    )  # fmt: skip


def _say(common_: Common, change: ChangeVerb, name: str) -> None:
    if not common_.is_structured:
        common_.emit(f"{name}\n" if common_.format is Format.NAME else f"{name} {change.done}\n")


def is_of_another(job: Job, change: ChangeVerb) -> bool:
    """True when the job's pods are another tool's to stop: always, or once they are released."""
    if job.spec.adopts is None or change is RELEASE:
        return False
    is_of_spec = change.is_of_template or change.is_of_jobs_alone
    return change is CANCEL or is_of_spec or phase_of(job) in OPEN


def adopted_problem(job: Job, change: ChangeVerb) -> Problem:
    """Say whose job it is, and the command that does what was asked."""
    adopts = job.spec.adopts
    assert adopts is not None
    space, name = job.metadata.key
    help_ = f"kubectl delete {kubectl_name(adopts)} -n {space}"
    if adopts.kind == NAMED_KIND:
        help_ = f"kubectl delete pods -n {space} of the group {adopts.name}"
    return Problem(
        Code.JOB_ADOPTED, f"job '{name}' represents the pods of {adopts.kind} '{adopts.name}'; "
        f"only that can be {change.done}", help=(help_,),
    )  # fmt: skip


def kubectl_name(adopts: Adopts) -> str:
    """Return what kubectl calls an object, such as `job.batch/train`."""
    group, slash, _ = adopts.api_version.rpartition("/")
    kind = adopts.kind.lower()
    return f"{kind}.{group}/{adopts.name}" if slash else f"{kind}/{adopts.name}"


@click.command(
    epilog="""Examples:

    \b
      fairlead cancel train-1
      fairlead cancel train-1 train-2
      fairlead cancel sweep-1 'sweep-2[3-9]'
      fairlead cancel 'lr-*' --me
      fairlead cancel --user ada --state Waiting
    """
)
@click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=complete_jobs)
@click.option("-u", "--user", metavar="NAME", default="", help="That user's jobs.")
@click.option("--me", "is_mine", is_flag=True, help="Your own jobs.")
@click.option("--state", "states", metavar="STATE", multiple=True,
              shell_complete=words(*STATES), help="Jobs in this state; repeatable.")  # fmt: skip
@click.option("--name", metavar="PATTERN", default="",
              help="Jobs of such a name: * matches any text, ? any letter.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask, however many they are.")
@common()
def cancel(
    common_: Common, *, jobs: tuple[str, ...], user: str, is_mine: bool, states: tuple[str, ...],
    name: str, yes: bool,
) -> None:  # fmt: skip
    """Stop jobs for good; with the name of an array all of it, with NAME[3-9] some elements.

    Flags and patterns choose among the jobs that have not ended, and of those that are named only
    these; an array as a whole. Above 10 jobs it asks first.

    Their members get SIGTERM, and SIGKILL when their grace period is over. A cancelled job is shown
    as Cancelled (its condition is Failed, with reason Cancelled); its logs and its record stay.
    """
    chooses, chosen = bool(user or is_mine or states or name), frozenset(map(read_state, states))
    patterns = [job for job in jobs if _PATTERN.search(job)]
    if chooses or patterns:
        api = common_.connect()
        who = submitter_name(api) if is_mine else user
        choice = JobChoice(states=chosen, user=who, name=name)
        jobs = live_names(common_, api, choice, jobs)
        if not jobs:
            common_.note("no job matches")
            return
        confirm_many(jobs, yes=yes)
    elif not jobs:
        raise fail(Code.MISSING_ARGUMENT, "fairlead cancel needs JOB, or a flag that chooses",
                   help=("if $(fairlead ps ...) was given, it found no job",
                         "fairlead cancel --me --state Waiting"))  # fmt: skip
    apply_change(common_, CANCEL, jobs)


#: A name with * or ?, which no job has.
_PATTERN = re.compile(r"[*?]")
#: So many jobs that were chosen are cancelled without a question.
UNASKED_MAX = 10
_SHOWN_MAX = 5


def live_names(
    common_: Common, api: Api, choice: JobChoice, named: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the jobs and arrays that have not ended and are chosen: of all, or of `named`, names
    and patterns of names. Elements go with their array, unless they are named.
    """
    space = common_.space(api.connection.namespace)
    arrays = [msgspec.convert(each, JobArray) for each in list_arrays(api, space)]
    listed = frozenset(each.metadata.uid for each in arrays)
    names_ = {name_of(api, space, each) for each in named}
    live = [
        job for job in api.list(JOBS, namespace=space)
        if not is_element_of_listed(job.metadata, listed) or job.metadata.name in names_
    ]  # fmt: skip
    found = (*choose_jobs(live, choice), *choose_arrays(arrays, choice))
    chosen = [each.metadata.name for each in found if not each.is_finished]
    if not named:
        return tuple(chosen)
    kept = [name for name in chosen if any(fnmatchcase(name, each) for each in names_)]
    # elements of arrays have the user and the state of their jobs: they are only named
    return (*kept, *(each for each in named if "[" in each))


def confirm_many(jobs: tuple[str, ...], *, yes: bool) -> None:
    """Ask before many jobs are cancelled; CliError where there is no terminal to ask at."""
    if yes or len(jobs) <= UNASKED_MAX:
        return
    shown = ", ".join(jobs[:_SHOWN_MAX])
    what = f"{len(jobs)} jobs match: {shown} and {len(jobs) - _SHOWN_MAX} more"
    if not sys.stdin.isatty():
        raise fail(Code.BAD_VALUE, what, help=("--yes cancels all of them",))
    click.confirm(f"{what}\nCancel all of them?", abort=True, err=True)


@click.command(
    epilog="""Examples:

    \b
      fairlead requeue train-1
      fairlead requeue 'sweep-1[7]'
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@common()
def requeue(common_: Common, *, jobs: tuple[str, ...]) -> None:
    """End the present attempt of jobs and queue them again.

    A job keeps its name, its checkpoints and its age in the queue. It counts against no limit of
    restarts. Of an array, elements are named: NAME[7].
    """
    apply_change(common_, REQUEUE, jobs)


@click.command(
    epilog="""Examples:

    \b
      fairlead hold train-1
      fairlead release train-1
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@common()
def hold(common_: Common, *, jobs: tuple[str, ...]) -> None:
    """Give a job's nodes back and keep the job.

    A waiting job is not considered until it is released; a running one stops, and goes on from its
    checkpoint when it is released.
    """
    apply_change(common_, HOLD, jobs)


@click.command(
    epilog="""Examples:

    \b
      fairlead release train-1
      fairlead release $(fairlead ps --me --state Held -o name)
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@common()
def release(common_: Common, *, jobs: tuple[str, ...]) -> None:
    """Let held jobs go on."""
    apply_change(common_, RELEASE, jobs)


@click.command(
    epilog="""Examples:

    \b
      fairlead priority train-1 high
      fairlead priority train-1 sweep-1 low
      fairlead why train-1 --if priority=high     what it would come to
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.argument("class_name", metavar="CLASS")
@common()
def priority(common_: Common, *, jobs: tuple[str, ...], class_name: str) -> None:
    """Move jobs to another priority class.

    With the name of an array, all of its elements move. CLASS is a PriorityClass of the cluster. A
    lower priority counts at once; of a job that holds nodes, a higher one counts from the next
    attempt on.
    """
    apply_change(common_, priority_change(class_name), jobs)


def _update_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    for flag in reversed(tuple(UPDATES)):
        info = FLAGS[flag]
        option = click.option(f"--{flag.value}", flag.value, metavar=info.metavar, help=info.help,
                              multiple=info.is_repeatable)  # fmt: skip
        function = option(function)
    return function


@click.command(
    epilog="""Examples:

    \b
      fairlead why train-1 --if time=2h      what it would come to
      fairlead update train-1 --time 2h
      fairlead update train-1 --after ok:prepare-2 --begin 18:00
      fairlead update train-1 train-2 --deadline none
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@_update_flags
@common()
def update(common_: Common, *, jobs: tuple[str, ...], **options: Any) -> None:
    """Change when jobs may start, and for how long they may run.

    A job keeps its place in the queue. "none" as a value takes away what was given. --after counts
    until the job queues for nodes, --begin until it has begun. While a job holds nodes, its time
    limit can only become shorter, but for administrators and the admins of its team: others count
    on its end.

    What a job asks for stays as it was submitted, its members among it.
    """
    values = {flag: options[flag.value] for flag in UPDATES}
    givens = {
        flag: tuple(FlagValue(text, f"--{flag.value}") for text in given)
        for flag, value in values.items()
        if (given := value if isinstance(value, tuple) else (value,) if value else ())
    }
    if not givens:
        flags = ", ".join(f"--{flag.value}" for flag in UPDATES)
        raise fail(Code.MISSING_ARGUMENT, f"fairlead update needs one of {flags}",
                   help=("fairlead priority JOB CLASS changes the priority",))  # fmt: skip
    request = read_update(givens, now())
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    after = resolved_after(api, space, named_after(api, space, request.after))
    missing = [
        each.job for each in after if not each.elements and not _exists(api, space, each.job)
    ]
    if missing:
        raise CliError([missing_job(api, space, job, code=Code.NO_SUCH_DEPENDENCY)
                        for job in missing])  # fmt: skip
    try:
        apply_change(common_, update_change(givens, request, after), jobs)
    except Invalid as error:
        raise in_words_of_flags(api, error, space) from error


def _exists(api: Api, space: str, job: str) -> bool:
    try:
        api.get(JOBS, job, namespace=space)
    except NotFound:
        return False
    return True
