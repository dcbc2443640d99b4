"""What `submit` notes of a script: where it runs, and which variables it does not get."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from fairlead.api import names
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.values.indices import parse_indices
from fairlead.cli.job_request.batch import OF_TASKS
from fairlead.cli.job_request.environment import passed_variables
from fairlead.cli.job_request.jobspec import Script, files_note, runs_once, where_it_runs
from fairlead.cli.job_request.request import JobRequest, Target
from fairlead.cli.script.script_variables import not_passed_note
from fairlead.cli.script.slurm import module_note, variable_notes
from fairlead.decide.jobs.rendering.slurm_variables import HET_SIZE, OF_LAUNCHERS, het_name


def script_notes(
    request: JobRequest,
    script: Script,
    file: str,
    given: Collection[str],
    *,
    environment: Mapping[str, str],
) -> Iterator[str]:
    """Yield the notes on where a script runs, and on variables that it reads and does not get.

    `given` are those of --env, `environment` has those where it is submitted. Some may be "".
    """
    batch, known = request.batch, {*names.ENV_NUMBER, *given}
    if request.array is not None:
        from fairlead.decide.arrays import element_environment

        known.update(dict(element_environment(JobArray(), parse_indices(request.array.indices), 0)))
    if batch is not None:
        known |= batch.names | _of_components(request)
        known.update(OF_TASKS if runs_once(request, script) else ())
    yield where_it_runs(request, script)
    yield files_note(request)
    unset = OF_LAUNCHERS if batch is not None else ()
    yield from variable_notes(script.text, file=file, given=known, unset=unset)
    if request.target is not Target.LOCAL:
        yield module_note(script.text, file=file)
    if request.target in (Target.LOCAL, Target.ANY):
        exports_all = batch is not None and batch.exports_all
        known.update(dict(passed_variables(environment, exports_all=exports_all)))
    yield not_passed_note(script.text, file=file, environment=environment, given=known)


def _of_components(request: JobRequest) -> frozenset[str]:
    """Return the variables of Slurm that the script of a heterogeneous job sees beside others."""
    if not request.further:
        return frozenset()
    suffixed = (
        het_name(name, place)
        for place, each in enumerate(request.components)
        if each.batch is not None
        for name in (*names.ENV_NUMBER, *each.batch.names)
    )
    return frozenset((HET_SIZE, *suffixed))
