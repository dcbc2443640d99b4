"""Jobs and arrays from a script, a command or a manifest: what is checked as a whole, said of it,
and then stored or not. `fairlead submit`, `run`, Slurm's commands and the page submit by it.

What is said on the way goes to `Common.note`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.simulated import is_simulated
from fairlead.api.kubernetes.image_names import images_of
from fairlead.api.meta import to_wire
from fairlead.api.resources import CONFIG_MAPS, JOB_ARRAYS, JOBS, SECRETS, Resource
from fairlead.cli.cluster.dependencies import after_jobs_of, named_after, resolved_after
from fairlead.cli.cluster.embedded import is_embedded
from fairlead.cli.cluster.lookup import missing_job
from fairlead.cli.connection.common import Common, now
from fairlead.cli.connection.identity import local_user
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValues
from fairlead.cli.job_request.jobspec import (
    Origin,
    Program,
    base_name,
    build_array,
    build_job,
    build_script_map,
    shares_machine,
    to_manifest,
)
from fairlead.cli.job_request.request import JobRequest, Target
from fairlead.cli.script.header import SubmissionContext, parse_header, request_of
from fairlead.cli.script.script_notes import script_notes
from fairlead.cli.submitting.fit import NOTHING_TO_START, JobFit, check_fit
from fairlead.cli.submitting.git_source import git_source
from fairlead.cli.submitting.past_use import past_over_asks
from fairlead.cli.submitting.program_check import (
    image_problem,
    local_problems,
    mount_notes,
    script_problems,
)
from fairlead.cli.submitting.submission import (
    Naming,
    Submission,
    check,
    check_documents,
    pick_name,
    store,
    store_documents,
    taken_names,
)
from fairlead.cli.views.plan import array_line, line, past_lines, plan_lines, submitted_line
from fairlead.input.errors import CliError, Code, Problem

if TYPE_CHECKING:
    from fairlead.cli.script.sbatch_lines import GivenOption
    from fairlead.cli.submitting.manifest import Document

#: The kinds that submit is for.
WORK: tuple[Resource[Any], ...] = (JOBS, JOB_ARRAYS)


def here() -> Origin:
    """Return this process as the place from which something is submitted."""
    return Origin(str(Path.cwd()), local_user(), os.environ, os.uname().nodename, has_source=True)


@dataclass(frozen=True, slots=True)
class Looks:
    """What is looked at beside what decides: what nodes of the place have to pull, and what
    registries say of the images.
    """

    pulls: bool = False
    registries: bool = False


NO_LOOKS = Looks()


# Scripts and commands


@dataclass(frozen=True, slots=True)
class CheckedWork:
    """A job or an array that was checked and may be stored under `name`; `checked` is how it would
    be, and `fit` what a decision would do with it.
    """

    common: Common
    api: Api
    fit: JobFit
    submission: Submission
    name: str
    is_held: bool
    checked: dict[str, Any]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The manifests of all that would be stored."""
        built, script = self.submission.build(self.name), self.submission.script
        if script is None:
            return [built]
        config_map = to_wire(build_script_map(self.name, script))
        return [{"apiVersion": "v1", "kind": "ConfigMap", **config_map}, built]

    def store(self) -> dict[str, Any]:
        """Store it and return what was stored; CliError."""
        stored = store(self.api, self.submission, self.name)
        name, common = str(stored["metadata"]["name"]), self.common
        common.note(submitted_line(
            name, is_held=self.is_held, where=common.where(), resource=self.submission.resource
        ))  # fmt: skip
        return stored


def check_script(
    common: Common, program: Program, file: str, givens: FlagValues, *, origin: Origin,
    ignore_unknown: bool, warn: Callable[[str], None],
    options: tuple[tuple[GivenOption, ...], ...] | None = None, looks: Looks = NO_LOOKS,
) -> CheckedWork:  # fmt: skip
    """Check the job or the array of a script; CliError. `looks` says what else is looked at.

    `file` is what the script is called in messages; `givens` win over the flags of its header.
    `warn` is given what is noted about the script. `options` are those of sbatch's command line.
    """
    assert program.script is not None
    text, variables = program.script.text, _variables(givens)
    nodes = givens.get(Flag.NODES)
    beside = SubmissionContext(
        ignore_unknown, "SLURM_ARRAY_TASK_ID" in variables, nodes[0].value if nodes else None,
        origin.defaults, options,
    )  # fmt: skip
    header = parse_header(text, file=file, beside=beside)
    request, wrong = request_of(header, givens, origin.environment, now=now())
    problems = [*script_problems(program.script, file), *header.problems, *wrong]
    if problems:
        raise CliError(problems)
    api, request = _connected(common, request)
    given = {*variables, *_variables(header.givens)}
    notes = script_notes(request, program.script, file, given, environment=origin.environment)
    for note in filter(None, (*header.notes, *notes)):
        warn(note)
    return _check(common, api, request, program, origin=origin, looks=looks)


def check_command(
    common: Common, request: JobRequest, program: Program, *, looks: Looks = NO_LOOKS
) -> CheckedWork:
    """Check the job or the array of a command; CliError."""
    api, request = _connected(common, request)
    return _check(common, api, request, program, origin=here(), looks=looks)


def _variables(givens: FlagValues) -> frozenset[str]:
    """Return the names of the variables that are given by --env."""
    return frozenset(given.value.partition("=")[0] for given in givens.get(Flag.ENV, ()))


def _connected(common: Common, request: JobRequest) -> tuple[Api, JobRequest]:
    """Return the cluster, and the request with what its kinds of nodes are there."""
    api = common.connect()
    if request.target is None:
        request = request.of_each(target=Target.LOCAL if is_embedded(api) else None)
    parts = request.components
    if shares_machine(request) and any(each.one_per_node or each.is_exclusive for each in parts):
        common.note(f"note: this is one machine: the {request.member_count} members share it")
    batch = request.batch
    if not any(each.kinds for each in parts) and not (batch and (batch.qos or batch.mail)):
        return api, request
    from fairlead.cli.cluster.known_nodes import with_mail, with_node_kinds, with_priority  # YAML

    request = with_mail(common, api, with_priority(common, api, request))
    return api, with_node_kinds(common, api, request)


def _check(
    common: Common, api: Api, request: JobRequest, program: Program, *, origin: Origin,
    looks: Looks,
) -> CheckedWork:  # fmt: skip
    is_up, space = is_embedded(api), common.space(api.connection.namespace)
    taken, base = taken_names(api, space), request.stem or base_name(program)
    request = _waiting_for(api, request, (space, base), taken)
    if origin.has_source:
        source = git_source(origin.directory, request.run.git, common.note)
        origin = replace(origin, source=source)
    if request.chdir is not None:
        request = request.of_each(chdir=_absolute(request.chdir, origin))
    parts = request.components
    if is_up:
        problems = [each for part in parts for each in local_problems(part, program, origin)]
        if problems:
            raise CliError(list(dict.fromkeys(problems)))
    for note in dict.fromkeys(note for part in parts for note in mount_notes(part)):
        common.note(f"note: {note}")

    def build(name: str) -> dict[str, Any]:
        job = build_job(name, request, program, origin)
        return to_manifest(job if request.array is None else build_array(job, request.array))

    naming = Naming(request.name, base, first_is_bare=request.stem is not None)
    resource = JOBS if request.array is None else JOB_ARRAYS
    submission = Submission(space, naming, build, program.file, common.note, resource)
    name = pick_name(naming, taken)
    checked = check(api, submission, name)
    fit = _note_plan(common, api, job_of(checked), is_up=is_up, looks=looks)
    for text in past_lines(past_over_asks(api, job_of(checked), base, now())):
        common.note(text)
    if request.array is not None:
        common.note(array_line(msgspec.convert(checked, JobArray)))
    return CheckedWork(common, api, fit, submission, name, request.is_held, checked)


def _absolute(directory: str, origin: Origin) -> str:
    """Return a directory as it is called from everywhere; `~` is the home of who submits."""
    home, rest = origin.environment.get("HOME", ""), directory.removeprefix("~")
    if home and directory.startswith("~") and rest[:1] in ("", "/"):
        directory = home + rest
    return str(Path(origin.directory, directory))


def _waiting_for(
    api: Api, request: JobRequest, named: tuple[str, str], taken: frozenset[str]
) -> JobRequest:
    """Return the request with the jobs that it waits for, as they are called; CliError.

    `named` is its namespace, and what it is called up to a number.
    """
    space, base = named
    if request.is_singleton:
        request = replace(request, after=(*request.after, *after_jobs_of(api, space, base)))
    unknown = [after for after in request.after if after.job not in taken]
    if unknown:  # else nothing is asked of the server
        request = replace(request, after=named_after(api, space, request.after))
    missing = [after.job for after in request.after if after.job not in taken]
    if missing:
        code = Code.NO_SUCH_DEPENDENCY
        raise CliError([missing_job(api, space, name, code=code) for name in missing])
    indices = request.array.indices if request.array is not None else ""
    return replace(request, after=resolved_after(api, space, request.after, indices=indices))


def job_of(stored: dict[str, Any]) -> Job:
    """Return a stored job; of an array the job that each of its elements is."""
    if stored.get("kind") != JOB_ARRAYS.kind:
        return msgspec.convert(stored, Job)
    array = msgspec.convert(stored, JobArray)
    return Job(array.metadata, array.spec.template)


def _note_plan(common: Common, api: Api, job: Job, *, is_up: bool, looks: Looks) -> JobFit:
    """Say what is asked for, whether it fits, and whether it is real, and return that;
    CliError without an image.

    `is_up` says that the cluster is one of `fairlead up`.
    """
    if not is_up and (problem := image_problem(job)) is not None:
        raise CliError(problem)
    for text in plan_lines(job):
        common.note(text)
    if looks.registries:
        _note_images(common, job)
    fit = check_fit(api, job, now(), shows_pulls=looks.pulls)
    common.note(fit.text)
    if is_up and is_simulated(job):
        common.note(line("", "simulated: only virtual nodes may run it, and they run no programs"))
    return fit


def _note_images(common: Common, job: Job) -> None:
    """Say what registries have of a job's images; CliError."""
    from fairlead.cli.submitting.registry import login_of, look_up  # a client of HTTP

    images = (image for role in job.spec.roles for image in images_of(role.template.spec))
    for image in dict.fromkeys(images):
        found = look_up(image, login_of(image.partition("/")[0]))
        common.note(line("Image", found.words))


# Manifests


@dataclass(frozen=True, slots=True)
class CheckedManifest:
    """The objects of a manifest, which were checked and may be stored; `fit` is that of the job
    that starts last.
    """

    common: Common
    api: Api
    fit: JobFit
    space: str
    documents: Sequence[Document]

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The manifests of all that would be stored."""
        return [dict(each.body) for each in self.documents]

    @property
    def work(self) -> list[str]:
        """The names of the jobs and arrays, where they are given."""
        return self.work_of([each.name for each in self.documents])

    def work_of(self, names_: Sequence[str]) -> list[str]:
        """Return of the names of all objects those of jobs and arrays."""
        return [n for d, n in zip(self.documents, names_, strict=True) if d.resource in WORK]

    def store(self) -> list[dict[str, Any]]:
        """Store all of them, or none, and return what was stored; CliError."""
        stored = store_documents(self.api, self.documents, self.space)
        for document, item in zip(self.documents, stored, strict=True):
            if document.resource not in WORK:
                continue
            held = msgspec.convert(document.body, document.resource.type).spec.suspend
            where, resource = self.common.where(document.namespace), document.resource
            name = str(item["metadata"]["name"])
            self.common.note(submitted_line(name, is_held=held, where=where, resource=resource))
        return stored


def check_manifest(
    common: Common, data: bytes, file: str, user: str, *, looks: Looks = NO_LOOKS
) -> CheckedManifest:
    """Check the objects of a manifest, which is called `file` in messages; CliError.

    On a cluster of `fairlead up` they are `user`'s, where they do not say whose they are.
    """
    from fairlead.cli.submitting.manifest import parse_manifest

    documents, problems = parse_manifest(data, file)
    problems = (*problems, *_other_kinds(documents, file))
    if problems:
        raise CliError(problems)
    api = common.connect()
    space = common.space(api.connection.namespace)
    if common.namespace:
        _check_namespaces(documents, common.namespace)
    is_up = is_embedded(api)
    if is_up:  # elsewhere the webhook says whose a job is
        documents = tuple(_with_user(each, user) for each in documents)
    checked = check_documents(api, documents, space)
    fits = [NOTHING_TO_START]
    for document, body in zip(documents, checked, strict=True):
        if document.resource in WORK:
            job = job_of({**body, "kind": document.resource.kind})
            fits.append(_note_plan(common, api, job, is_up=is_up, looks=looks))
        if document.resource == JOB_ARRAYS:
            common.note(array_line(msgspec.convert(body, JobArray)))
    return CheckedManifest(common, api, max(fits, key=lambda fit: fit.start), space, documents)


def _with_user(document: Document, user: str) -> Document:
    """Return the document; a job that does not say whose it is, as the user's."""
    metadata = {**document.body.get("metadata", {})}
    annotations = {**(metadata.get("annotations") or {})}
    if document.resource not in WORK or names.SUBMITTED_BY in annotations or not user:
        return document
    metadata["annotations"] = {**annotations, names.SUBMITTED_BY: user}
    return replace(document, body={**document.body, "metadata": metadata})


def _other_kinds(documents: tuple[Document, ...], shown: str) -> list[Problem]:
    """Return the problems of objects that are neither jobs, arrays nor what a job's pods mount."""
    others = [d for d in documents if d.resource not in (*WORK, CONFIG_MAPS, SECRETS)]
    return [
        Problem(
            Code.WRONG_KIND, f"{d.resource.kind} '{d.name}' is not a job; submit takes a Job or "
            f"JobArray of {JOBS.api_version}, and the ConfigMaps and Secrets that it mounts",
            where=f"{d.file}:{d.marks.mark.line}:{d.marks.mark.column}",
            help=(f"kubectl apply -f {shown}",),
        )
        for d in others
    ]  # fmt: skip


def _check_namespaces(documents: tuple[Document, ...], namespace: str) -> None:
    problems = [
        Problem(
            Code.BAD_COMBINATION,
            f"the manifest says namespace '{document.namespace}', -n says '{namespace}'",
            where=document.file, help=("leave one of the two out",),
        )
        for document in documents
        if document.namespace and document.namespace != namespace
    ]  # fmt: skip
    if problems:
        raise CliError(problems)
