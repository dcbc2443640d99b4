"""`resubmit`: what has ended runs again, as a new job or array of the same template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.run_facts import source_of
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import CONFIG_MAPS, JOB_ARRAYS, JOBS, Resource
from fairlead.api.status import NotFound
from fairlead.api.values.indices import parse_indices
from fairlead.cli.cluster.lookup import is_array, list_arrays, missing_job, require_array
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.common import Common, common
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.connection.identity import local_user
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.arrays import ArrayReference, parse_reference, select
from fairlead.cli.job_request.flag_groups.run_flags import GitRecord, RunRequest
from fairlead.cli.job_request.jobspec import Script
from fairlead.cli.submitting.git_source import git_source
from fairlead.cli.submitting.resubmission import (
    again,
    ended_job,
    indices_of,
    retry_base,
    script_name,
    successor,
    waits_for,
)
from fairlead.cli.submitting.submission import (
    Naming,
    Submission,
    check,
    pick_name,
    store,
    taken_names,
)
from fairlead.cli.views.plan import submitted_line
from fairlead.input.errors import CliError, Code, Problem, fail


@dataclass(frozen=True, slots=True)
class _First:
    """What is submitted again, as it is stored."""

    resource: Resource[Any]
    stored: dict[str, Any]
    has_started: bool
    #: The elements of an array.
    indices: str = ""

    @property
    def template(self) -> dict[str, Any]:
        """The spec of its jobs."""
        spec: dict[str, Any] = self.stored["spec"]
        return spec["template"] if self.indices else spec

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.stored["metadata"]["name"])


@click.command(
    epilog="""Examples:

    \b
      fairlead resubmit train-1
      fairlead resubmit sweep --failed
      fairlead resubmit 'sweep[3-9,12]'
      fairlead resubmit $(fairlead ps --me --state Failed -o name)
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("--failed", "failed_only", is_flag=True,
              help="Only what did not succeed; of an array those elements.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Name of the new job. Default: JOB-retry-N.")
@common()
def resubmit(
    common_: Common, *, jobs: tuple[str, ...], failed_only: bool, name: str | None
) -> None:
    """Run jobs again that have ended, as new jobs of the same template and script.

    Of an array, or of its elements NAME[3-9], it makes a new array of these indices. The first one
    stays as it is, with its record and its logs. Jobs that wait for the first one do not wait for
    the new one.
    """
    if name is not None and len(jobs) > 1:
        raise fail(Code.BAD_COMBINATION, f"--name is for one job, got {len(jobs)}")
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    problems: list[Problem] = []
    stored: list[dict[str, Any]] = []
    for reference in dict.fromkeys(parse_reference(name_of(api, space, each)) for each in jobs):
        try:
            again_ = Resubmission(space, reference, local_user(), name, failed_only=failed_only)
            stored.append(resubmit_one(common_, api, again_))
        except CliError as error:
            problems += error.problems
    if common_.is_structured and stored:
        common_.structured(stored, is_list=len(jobs) > 1)
    elif stored:
        common_.lines(each["metadata"]["name"] for each in stored)
    if problems:
        raise CliError(problems)


@dataclass(frozen=True, slots=True)
class Resubmission:
    """What to run again, in whose name, and under which name; None: JOB-retry-N."""

    namespace: str
    reference: ArrayReference
    user: str
    name: str | None = None
    failed_only: bool = False


def resubmit_one(common_: Common, api: Api, wanted: Resubmission) -> dict[str, Any]:
    """Run one job, an array or elements of one again; return what is stored. CliError, ApiError."""
    first = _first(api, wanted.namespace, wanted.reference, failed_only=wanted.failed_only)
    return _submit(common_, api, first, wanted)


def _first(api: Api, space: str, reference: ArrayReference, *, failed_only: bool) -> _First:
    """Return what a reference names; CliError for what is not there, or has not ended."""
    if reference.indices is not None or is_array(api, space, reference.name):
        array = require_array(api, space, reference.name)
        chosen = again(select(array, reference), reference, failed_only=failed_only)
        indices = indices_of(chosen, parse_indices(array.spec.indices))
        stored = api.get(JOB_ARRAYS.raw, reference.name, namespace=space)
        return _First(JOB_ARRAYS, stored, array.status.started_at is not None, indices)
    try:
        stored = api.get(JOBS.raw, reference.name, namespace=space)
    except NotFound:
        raise CliError(missing_job(api, space, reference.name)) from None
    job = msgspec.convert(stored, Job)
    ended_job(job, failed_only=failed_only)
    return _First(JOBS, stored, job.status.attempt > 0)


def _submit(common_: Common, api: Api, first: _First, wanted: Resubmission) -> dict[str, Any]:
    """Check and store the successor of a job; return it as it is stored."""
    space = wanted.namespace
    taken = taken_names(api, space)
    gone = waits_for(first.template) - taken
    if gone and not first.has_started:
        code = Code.NO_SUCH_DEPENDENCY
        raise CliError([missing_job(api, space, each, code=code) for each in sorted(gone)])
    for each in sorted(gone):
        common_.note(f"note: {each}, which {first.name} waited for, is gone; it is left out")
    source = _source(common_, first)

    def build(new: str) -> dict[str, Any]:
        return successor(
            first.resource, first.stored, new, user=wanted.user, without=gone,
            indices=first.indices, source=source,
        )  # fmt: skip

    submission = Submission(
        space, Naming(wanted.name, retry_base(first.name)), build, _script(api, space, first),
        common_.note, first.resource,
    )  # fmt: skip
    new = pick_name(submission.naming, taken)
    check(api, submission, new)
    stored = store(api, submission, new)
    new = str(stored["metadata"]["name"])
    common_.note(submitted_line(new, is_held=False, where=common_.where(), resource=first.resource))
    waiting = sorted(_dependents(api, space, first.name))
    if waiting:
        common_.note(f"note: {', '.join(waiting)} waits for {first.name}, not for {new}")
    return stored


def _source(common_: Common, first: _First) -> str:
    """Return the code here, as its annotation has it, where that of the first one was recorded."""
    metadata = msgspec.convert(first.stored["metadata"], ObjectMeta)
    before = source_of(metadata)
    if before is None:
        return ""
    found = git_source(str(Path.cwd()), GitRecord.COMMIT, common_.note)
    if found is None or found.commit != before.commit:
        here = found.commit[:12] if found else "none"
        common_.note(f"note: {first.name} was submitted from commit {before.commit[:12]}; the one "
                     f"here is {here}")  # fmt: skip
    return RunRequest().annotations(found).get(names.RUN_SOURCE, "")


def _script(api: Api, space: str, first: _First) -> Script | None:
    """Return the script that `fairlead submit` stored beside a job; CliError where it is gone."""
    wanted = script_name(first.template, first.name)
    if wanted is None:
        return None
    try:
        ((name, text),) = api.get(CONFIG_MAPS, wanted, namespace=space).data.items()
    except (NotFound, ValueError) as error:
        message = f"the script of '{first.name}', ConfigMap '{wanted}', is gone or was changed"
        raise fail(Code.SCRIPT_UNREADABLE, message,
                   help=("fairlead submit SCRIPT submits a file",)) from error  # fmt: skip
    return Script(name, text)


def _dependents(api: Api, space: str, name: str) -> Iterable[str]:
    """Yield the names of jobs and arrays that wait for a job and have not ended."""
    arrays = [msgspec.convert(each, JobArray) for each in list_arrays(api, space)]
    for work, spec in (
        *((job, job.spec) for job in api.list(JOBS, namespace=space)),
        *((array, array.spec.template) for array in arrays),
    ):
        if not work.is_finished and any(after.job == name for after in spec.after):
            yield work.metadata.name
