"""Finding the job that a person named, and saying which one was meant when there is none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOB_ARRAYS, JOBS, NAMESPACES
from fairlead.api.status import Forbidden, NotFound
from fairlead.api.values.indices import parse_indices
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.job_names import clean_reference
from fairlead.input.errors import CliError, Code, Problem, fail
from fairlead.input.suggest import nearest

RECENT_MAX = 5
STATES = tuple(state.value for state in JobState)


def find_job(api: Api, namespace: str, name: str) -> Job:
    """Return the job of this name, or the one that represents another tool's object of this name.

    CliError E300, with the nearest name and recent ones, if there is none.
    """
    try:
        return api.get(JOBS, clean_reference(name), namespace=namespace)
    except NotFound as error:
        adopted = _adopted_job(api.list(JOBS, namespace=namespace), name)
        if adopted is not None:
            return adopted
        problem = missing_job(api, namespace, name)
        raise CliError(problem) from error


def find_array(api: Api, namespace: str, name: str) -> JobArray | None:
    """Return the array of this name, or None; so too where the cluster lacks the kind."""
    try:
        return api.get(JOB_ARRAYS, name, namespace=namespace)
    except NotFound:
        return None


def is_array(api: Api, namespace: str, name: str) -> bool:
    """True where there is no job of this name, and an array."""
    try:
        api.get(JOBS.only_metadata, name, namespace=namespace)
    except NotFound:
        return find_array(api, namespace, name) is not None
    return False


def require_array(api: Api, namespace: str, name: str) -> JobArray:
    """Return the array of this name; CliError with what does exist."""
    array = find_array(api, namespace, name)
    if array is None:
        raise CliError(missing_job(api, namespace, name))
    return array


def _is_array(array: JobArray, code: Code) -> Problem:
    """Return that an array was named where one job is wanted."""
    from fairlead.cli.views.arrays import array_state, array_words

    name = array.metadata.name
    first = parse_indices(array.spec.indices).first
    return Problem(
        code, f"'{name}' is an array of jobs, and this is for one job",
        detail=(f"it is {array_state(array)}: {array_words(array)}",),
        help=(f"name an element, such as '{name}[{first}]'; fairlead ps {name} shows those that "
              "are jobs now",),
    )  # fmt: skip


def _adopted_job(jobs: Iterable[Job], reference: str) -> Job | None:
    """Return the latest job that represents `train`, `job/train` or `job.batch/train`."""
    kind, _, name = reference.rpartition("/")
    kind = kind.partition(".")[0].lower()
    found = [
        job
        for job in jobs
        if (adopts := job.spec.adopts) is not None
        and adopts.name == name
        and kind in ("", adopts.kind.lower(), f"{adopts.kind.lower()}s")
    ]
    return max(found, key=lambda job: job.metadata.creation_timestamp or "", default=None)


def list_arrays(api: Api, namespace: str) -> list[dict[str, Any]]:
    """Return the arrays of a namespace as plain JSON; none where the cluster lacks the kind."""
    try:
        return list(api.list(JOB_ARRAYS.raw, namespace=namespace))
    except NotFound:
        return []


def require_namespace(api: Api, name: str) -> None:
    """Do nothing when a namespace exists, or nobody says that it does not; CliError."""
    try:
        api.get(NAMESPACES, name)
    except Forbidden:
        return
    except NotFound as error:
        try:
            known = [each.metadata.name for each in api.list(NAMESPACES)]
        except Forbidden:
            known = []
        near = nearest(name, known)
        raise fail(
            Code.NO_SUCH_NAMESPACE, f"namespace '{name}' does not exist",
            help=(f"-n {near}" if near else f"kubectl create namespace {name}",),
        ) from error  # fmt: skip


def missing_job(api: Api, namespace: str, name: str, *, code: Code = Code.NO_SUCH_JOB) -> Problem:
    """Return the problem of a job that does not exist, with what does."""
    array = find_array(api, namespace, name)
    if array is not None:
        return _is_array(array, code)
    jobs = api.list(JOBS, namespace=namespace)
    recent = sorted(jobs, key=lambda j: j.metadata.creation_timestamp or "", reverse=True)
    known = [job.metadata.name for job in recent]
    near = nearest(name, known)
    detail = f"recent jobs: {', '.join(known[:RECENT_MAX])}" if known else "there are no jobs in it"
    if near:
        help_ = f"did you mean {near}?"
    else:
        help_ = "fairlead ps -a shows all, fairlead history those whose objects are gone"
    message = f"job '{name}' does not exist in namespace '{namespace}'"
    return Problem(code, message, detail=(detail,), help=(help_,))


def read_state(text: str) -> str:
    """Return the state that was written, in any case; CliError when there is none of that name."""
    state = text.capitalize()
    if state not in STATES:
        from fairlead.cli.script import slurm

        here = slurm.STATES.get(text.upper())
        raise fail(
            Code.BAD_VALUE, f"--state: '{text}' must be one of {', '.join(STATES)}",
            help=(f"{text.upper()} of Slurm is {here}: --state {here}",) if here else (),
        )  # fmt: skip
    return state
