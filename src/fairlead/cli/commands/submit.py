"""`submit` and `run`: from a script, a command or a manifest to a queued job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.jobs.simulated import is_simulated
from fairlead.api.meta import to_wire
from fairlead.api.resources import CONFIG_MAPS, JOB_ARRAYS, JOBS, SECRETS, Resource
from fairlead.cli.cluster.dependencies import after_jobs_of, resolved_after
from fairlead.cli.cluster.embedded import is_embedded
from fairlead.cli.cluster.lookup import missing_job
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.connection.identity import local_user
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.flags import FLAGS, Flag, FlagValue, FlagValues, merge
from fairlead.cli.job_request.jobspec import (
    SCRIPT_BYTES_MAX,
    Origin,
    Program,
    Script,
    base_name,
    build_array,
    build_job,
    build_script_map,
    shares_machine,
    to_manifest,
)
from fairlead.cli.job_request.request import JobRequest, Target, parse_request
from fairlead.cli.script.header import Beside, parse_header
from fairlead.cli.script.sbatch_lines import Given
from fairlead.cli.script.script_notes import script_notes
from fairlead.cli.sessions.foreground import IDLE_HELP, require_one_program
from fairlead.cli.submitting.fit import check_fit
from fairlead.cli.submitting.git_source import git_source
from fairlead.cli.submitting.standard_input import STANDARD_INPUT, read_input
from fairlead.cli.submitting.startable import (
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
from fairlead.cli.views.plan import array_line, line, plan_lines, submitted_line
from fairlead.input.errors import CliError, Code, Exit, Problem, fail

if TYPE_CHECKING:
    from fairlead.cli.sessions.terminal_job import TerminalJob
    from fairlead.cli.submitting.manifest import Document


#: The kinds that submit is for.
WORK: tuple[Resource[Any], ...] = (JOBS, JOB_ARRAYS)


def job_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that describe a job."""
    for flag, info in reversed(FLAGS.items()):
        name, attribute = f"--{flag.value}", flag.value.replace("-", "_")
        if not info.metavar:
            option = click.option(name, attribute, is_flag=True, help=info.help)
        else:
            option = click.option(name, attribute, metavar=info.metavar, help=info.help,
                                  multiple=info.is_repeatable)  # fmt: skip
        function = option(function)
    return function


def flag_values(options: dict[str, Any]) -> FlagValues:
    """Take the job's flags out of `options` as they were given."""
    out: dict[Flag, tuple[FlagValue, ...]] = {}
    for flag in Flag:
        value = options.pop(flag.value.replace("-", "_"))
        values = value if isinstance(value, tuple) else (value,)
        texts = ["true" if v is True else str(v) for v in values if v not in (None, False)]
        if texts:
            out[flag] = tuple(FlagValue(text, f"--{flag.value}") for text in texts)
    return out


def _variables(givens: FlagValues) -> frozenset[str]:
    """Return the names of the variables that are given by --env."""
    return frozenset(given.value.partition("=")[0] for given in givens.get(Flag.ENV, ()))


@click.command(
    epilog="""Examples:

    \b
      fairlead submit train.sh --nodes 4 --gpus 8 --time 12h
      fairlead submit sweep.sh --array 0-99%10
      fairlead submit train.sh --after ok:prepare-1 -- --learning-rate 0.1
      fairlead submit --gpus 1 - < train.sh
      fairlead submit -f job.yaml
      fairlead submit train.sh --dry-run -o yaml > job.yaml

    The script may carry flags itself, in lines before its first command:

    \b
      #FAIRLEAD --nodes 4 --gpus 8 --time 12h
    """
)
@click.argument("script", required=False, type=click.Path())
@click.argument("arguments", metavar="[-- ARGS]", nargs=-1, type=click.UNPROCESSED)
@click.option("-f", "--file", "file", metavar="FILE", help="Manifest to submit; - reads stdin.")
@job_flags
@click.option("--dry-run", is_flag=True, help="Check everything, say where it fits, store nothing.")
@click.option("--ignore-unknown", is_flag=True,
              help="Ignore header lines that cannot be honoured instead of refusing.")  # fmt: skip
@common()
def submit(
    common_: Common, *, script: str | None, arguments: tuple[str, ...], file: str | None,
    dry_run: bool, ignore_unknown: bool, **options: Any,
) -> int:  # fmt: skip
    """Queue a script or a manifest as a job.

    The script, read from standard input where it is -, runs in every member of the job; one with
    #SBATCH lines runs once, on the first node. The members start together. It is copied at
    submission, so later edits do not change a queued job. The job's id, its name, is printed on
    stdout. --name gives an exact id; a name in the script's header is numbered from the second job
    on.
    """
    givens = flag_values(options)
    if file is not None:
        if script is not None or givens:
            wrong = "a script" if script is not None else f"--{next(iter(givens)).value}"
            raise fail(Code.BAD_COMBINATION, f"-f and {wrong} do not go together",
                       help=("write it into the manifest, or leave -f out",))  # fmt: skip
        return _submit_manifest(common_, file, dry_run=dry_run)
    if script is None:
        raise fail(Code.MISSING_ARGUMENT, "fairlead submit needs SCRIPT or -f FILE",
                   help=("fairlead run -- COMMAND queues a command",
                         "fairlead submit - reads the script from standard input"))  # fmt: skip
    program = Program(arguments, read_script(script))
    stored = submit_script(
        common_, program, script, givens, dry_run=dry_run, ignore_unknown=ignore_unknown,
        warn=lambda note: common_.note(f"note: {note}"),
    )  # fmt: skip
    if not dry_run:
        _show_stored(common_, [stored], [str(stored["metadata"]["name"])])
    return Exit.OK


def submit_script(
    common_: Common, program: Program, file: str, givens: FlagValues, *, dry_run: bool,
    ignore_unknown: bool, warn: Callable[[str], None], options: tuple[Given, ...] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:  # fmt: skip
    """Check and store the job or the array of a script (or only check it) and return it; CliError.

    `file` is what the script is called in messages; `givens` win over the flags of its header.
    `warn` is given what is noted about the script. `options` are those of sbatch's command line,
    `environment` has its variables.
    """
    assert program.script is not None
    text, variables = program.script.text, _variables(givens)
    nodes = givens.get(Flag.NODES)
    beside = Beside(
        ignore_unknown, "SLURM_ARRAY_TASK_ID" in variables, nodes[0].value if nodes else None,
        environment, options,
    )  # fmt: skip
    header = parse_header(text, file=file, beside=beside)
    request, wrong = parse_request(
        merge(givens, header.givens), os.environ, header.batch, now=now()
    )
    problems = [*script_problems(program.script, file), *header.problems, *wrong]
    if problems:
        raise CliError(problems)
    api, request = _connected(common_, request)
    given = {*variables, *_variables(header.givens)}
    for note in filter(None, (*header.notes, *script_notes(request, program.script, file, given))):
        warn(note)
    return _submit_program(common_, api, request, program, dry_run=dry_run)


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""Examples:

    \b
      fairlead run -- python train.py --epochs 3
      fairlead run --nodes 2 --gpus 1 -- nvidia-smi
      fairlead run --pty --gpus 1 --time 2h -- bash
      fairlead run --simulate 30s -- anything
    """,
)
@click.argument("command", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--pty", is_flag=True,
              help="Give the command this terminal; the job ends with the command.")  # fmt: skip
@click.option("--idle", metavar="DURATION", default="", help=IDLE_HELP)
@job_flags
@common(output=False)
def run(
    common_: Common, *, command: tuple[str, ...], pty: bool, idle: str, **options: Any
) -> int:  # fmt: skip
    """Queue a command as a job and follow it.

    Its logs go to stdout. Ctrl-C, or a closed stdout, stops the display only; the job goes on. The
    exit code is that of the command, or 1 where something else ended the job.

    Standard input that comes from a file or a pipe, at most 512 KiB of text, is given to every
    member; that of a terminal is not.

    With --pty the command has this terminal, and the job is there for it alone: Ctrl-C while it
    waits cancels it, and it ends when the command does. Ctrl-] d, or the loss of the terminal,
    leaves the command running, for fairlead attach to go on with.
    """
    from fairlead.cli.records.follow import follow_job

    request, problems = parse_request(flag_values(options), os.environ, now=now())
    if problems:
        raise CliError(problems)
    if request.array is not None:
        help_ = ("fairlead submit SCRIPT --array INDICES; fairlead wait NAME",)
        raise fail(Code.BAD_COMBINATION, "run follows one job, --array makes many", help=help_)
    if pty:
        from fairlead.cli.sessions.terminal_job import TerminalJob

        return _run_in_terminal(common_, request, TerminalJob(command, idle))
    if idle:
        raise fail(Code.BAD_COMBINATION, "--idle is about the terminal of --pty")
    program = Program(command, stdin=read_input(STANDARD_INPUT, common_.note))
    api, job = submit_request(common_, request, program)
    return follow_job(common_, api, job.metadata.key)


def _run_in_terminal(common_: Common, request: JobRequest, held: TerminalJob) -> int:
    """Queue a job that holds what the command needs, and run the command in it; CliError."""
    from fairlead.cli.commands.interactive import require_terminal

    require_terminal("--pty")
    require_one_program(request, "--pty")
    api, job = submit_request(common_, replace(request, restarts=False), held.program)
    return held.run(common_, api, job.metadata.key)


def submit_request(common_: Common, request: JobRequest, program: Program) -> tuple[Api, Job]:
    """Check and store the job of a command, not an array, and return it with its cluster."""
    api, request = _connected(common_, request)
    stored = _submit_program(common_, api, request, program, dry_run=False)
    return api, msgspec.convert(stored, Job)


def submit_array(
    common_: Common, request: JobRequest, program: Program, *, dry_run: bool
) -> None:  # fmt: skip
    """Check and store the array of a command, or only check it, and show it; CliError."""
    api, request = _connected(common_, request)
    stored = _submit_program(common_, api, request, program, dry_run=dry_run)
    if not dry_run:
        _show_stored(common_, [stored], [str(stored["metadata"]["name"])])


def read_script(path: str) -> Script:
    """Return the script of a file, standard input for -; CliError."""
    try:
        with click.open_file(path, "rb") as file:
            data = file.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        help_ = ("fairlead run -- COMMAND queues a command that is no file",)
        message = f"script '{path}' cannot be read: {error.strerror}"
        is_absent = isinstance(error, FileNotFoundError)
        raise fail(Code.SCRIPT_UNREADABLE, message, help=help_ if is_absent else ()) from error
    if len(data) > SCRIPT_BYTES_MAX:
        raise fail(Code.SCRIPT_TOO_LARGE,
                   f"script '{path}' is larger than {SCRIPT_BYTES_MAX >> 10} KiB",
                   help=("keep it small and let it start the program beside it",))  # fmt: skip
    try:
        return Script("stdin" if path == "-" else Path(path).name, data.decode())
    except UnicodeDecodeError as error:
        raise fail(Code.SCRIPT_UNREADABLE, f"script '{path}' is not UTF-8 text",
                   help=(f"a program is run by: fairlead run -- {path}",)) from error  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Prepared:
    submission: Submission
    name: str


def _connected(common_: Common, request: JobRequest) -> tuple[Api, JobRequest]:
    """Return the cluster, and the request with what its kinds of nodes are there."""
    api = common_.connect()
    if request.target is None:
        request = replace(request, target=Target.LOCAL if is_embedded(api) else None)
    if shares_machine(request) and (request.one_per_node or request.is_exclusive):
        common_.note(f"note: this is one machine: the {request.members} members share it")
    batch = request.batch
    if not request.kinds and not (batch and (batch.qos or batch.mail)):
        return api, request
    from fairlead.cli.cluster.known_nodes import with_mail, with_node_kinds, with_priority  # YAML

    request = with_mail(common_, api, with_priority(common_, api, request))
    return api, with_node_kinds(common_, api, request)


def _submit_program(
    common_: Common, api: Api, request: JobRequest, program: Program, *, dry_run: bool
) -> dict[str, Any]:
    """Check and store a job (or only check it) and return what was, or would be, stored."""
    is_up = is_embedded(api)
    prepared = _prepare(common_, api, request, program)
    checked = check(api, prepared.submission, prepared.name)
    _note_plan(common_, api, _job_of(checked), is_up=is_up)
    if request.array is not None:
        common_.note(array_line(msgspec.convert(checked, JobArray)))
    if dry_run:
        _show_dry_run(common_, prepared, program)
        return checked
    stored = store(api, prepared.submission, prepared.name)
    name = str(stored["metadata"]["name"])
    resource = prepared.submission.resource
    where = common_.where()
    common_.note(submitted_line(name, is_held=request.is_held, where=where, resource=resource))
    return stored


def _job_of(stored: dict[str, Any]) -> Job:
    """Return a stored job; of an array the job that each of its elements is."""
    if stored.get("kind") != JOB_ARRAYS.kind:
        return msgspec.convert(stored, Job)
    array = msgspec.convert(stored, JobArray)
    return Job(array.metadata, array.spec.template)


def _note_plan(common_: Common, api: Api, job: Job, *, is_up: bool) -> None:
    """Say what is asked for, whether it fits, and whether it is real; CliError without an image.

    `is_up` says that the cluster is one of `fairlead up`.
    """
    if not is_up and (problem := image_problem(job)) is not None:
        raise CliError(problem)
    for text in plan_lines(job):
        common_.note(text)
    common_.note(check_fit(api, job, now()))
    if is_up and is_simulated(job):
        common_.note(line("", "simulated: only virtual nodes may run it, and they run no programs"))


def _prepare(common_: Common, api: Api, request: JobRequest, program: Program) -> _Prepared:
    space = common_.space(api.connection.namespace)
    taken = taken_names(api, space)
    base = request.stem or base_name(program)
    if request.is_singleton:
        request = replace(request, after=(*request.after, *after_jobs_of(api, space, base)))
    missing = [after.job for after in request.after if after.job not in taken]
    if missing:
        code = Code.NO_SUCH_DEPENDENCY
        raise CliError([missing_job(api, space, name, code=code) for name in missing])
    indices = request.array.indices if request.array is not None else ""
    after = resolved_after(api, space, request.after, indices=indices)
    request = replace(request, after=after)
    here = str(Path.cwd())
    source = git_source(here, request.run.git, common_.note)
    origin = Origin(here, local_user(), os.environ, os.uname().nodename, source)
    if request.chdir is not None:
        request = replace(request, chdir=str(Path(request.chdir).expanduser().absolute()))
    problems = list(local_problems(request, program, origin))
    if problems:
        raise CliError(problems)
    for note in mount_notes(request):
        common_.note(f"note: {note}")
    naming = Naming(request.name, base, first_is_bare=request.stem is not None)

    def build(name: str) -> dict[str, Any]:
        job = build_job(name, request, program, origin)
        return to_manifest(job if request.array is None else build_array(job, request.array))

    resource = JOBS if request.array is None else JOB_ARRAYS
    submission = Submission(space, naming, build, program.file, common_.note, resource)
    return _Prepared(submission, pick_name(naming, taken))


def _show_dry_run(common_: Common, prepared: _Prepared, program: Program) -> None:
    objects: list[dict[str, Any]] = []
    if program.file is not None:
        config_map = build_script_map(prepared.name, program.file)
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", **to_wire(config_map)})
    objects.append(prepared.submission.build(prepared.name))
    common_.note("Dry run: nothing was stored.")
    if common_.is_structured:
        common_.structured(objects, is_list=len(objects) > 1)
    else:
        common_.emit(f"{prepared.name}\n")


def _show_stored(common_: Common, stored: list[dict[str, Any]], shown: list[str]) -> None:
    if common_.is_structured:
        common_.structured(stored, is_list=len(stored) > 1)
    else:
        common_.lines(shown)


# Manifests


def _submit_manifest(common_: Common, file: str, *, dry_run: bool) -> int:
    from fairlead.cli.submitting.manifest import parse_manifest, read_bytes

    shown = "stdin" if file == "-" else file
    documents, problems = parse_manifest(read_bytes(file), shown)
    problems = (*problems, *_other_kinds(documents, shown))
    if problems:
        raise CliError(problems)
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    if common_.namespace:
        _check_namespaces(documents, common_.namespace)
    is_up = is_embedded(api)
    if is_up:  # elsewhere the webhook says whose a job is
        documents = tuple(map(_with_user, documents))
    checked = check_documents(api, documents, space)
    for document, body in zip(documents, checked, strict=True):
        if document.resource in WORK:
            job = _job_of({**body, "kind": document.resource.kind})
            _note_plan(common_, api, job, is_up=is_up)
        if document.resource == JOB_ARRAYS:
            common_.note(array_line(msgspec.convert(body, JobArray)))
    if dry_run:
        common_.note("Dry run: nothing was stored.")
        _show_stored(common_, [dict(d.body) for d in documents],
                     _job_names(documents, [d.name for d in documents]))  # fmt: skip
        return Exit.OK
    stored = store_documents(api, documents, space)
    names_ = [str(item["metadata"]["name"]) for item in stored]
    for document, name in zip(documents, names_, strict=True):
        if document.resource in WORK:
            held = msgspec.convert(document.body, document.resource.type).spec.suspend
            where, resource = common_.where(document.namespace), document.resource
            common_.note(submitted_line(name, is_held=held, where=where, resource=resource))
    _show_stored(common_, stored, _job_names(documents, names_))
    return Exit.OK


def _with_user(document: Document) -> Document:
    """Return the document; a job that does not say whose it is, as the user's of this machine."""
    metadata = {**document.body.get("metadata", {})}
    annotations = {**(metadata.get("annotations") or {})}
    user = local_user()
    if document.resource not in WORK or names.SUBMITTED_BY in annotations or not user:
        return document
    metadata["annotations"] = {**annotations, names.SUBMITTED_BY: user}
    return replace(document, body={**document.body, "metadata": metadata})


def _job_names(documents: tuple[Document, ...], names_: list[str]) -> list[str]:
    return [n for document, n in zip(documents, names_, strict=True) if document.resource in WORK]


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
