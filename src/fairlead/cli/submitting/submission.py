"""Storing what was checked: all of it or nothing.

Everything is sent as a dry run first, so that the API's own rules speak before anything is
stored. A script's ConfigMap is created before its job, since a job without its script would wait
for ever, and is handed to the job afterwards; a submission that dies in between leaves a
ConfigMap behind, which the next submission under that name replaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fairlead.api import names
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.resources import (
    CONFIG_MAPS,
    JOBS,
    PRIORITY_CLASSES,
    Resource,
)
from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    InternalError,
    Invalid,
    NotFound,
    Unavailable,
)
from fairlead.api.values.times import parse_time
from fairlead.cli.cluster.lookup import list_arrays
from fairlead.cli.connection.common import now
from fairlead.cli.connection.refusals import from_api
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.jobspec import Script, build_script_map, config_map_name, next_name
from fairlead.input.errors import CliError, Code, Problem, fail

if TYPE_CHECKING:
    from fairlead.cli.submitting.manifest import Document

NAME_TRIES_MAX = 20
#: A script without a job is of a submission that is under way, or was left behind by one that was
#: killed between its two writes: so long it counts as the former.
SCRIPT_ALONE_SECONDS = 60


def _say_nothing(_text: str) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Naming:
    """The exact name that was asked for, or what to number when none was.

    With `first_is_bare` the first job is called `base` itself, and the second one `base-2`.
    """

    asked: str | None
    base: str
    first_is_bare: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    """A job or an array to be stored: how to build its manifest under a name, and its script."""

    namespace: str
    naming: Naming
    build: Callable[[str], dict[str, Any]]
    script: Script | None = None
    warn: Callable[[str], None] = _say_nothing
    resource: Resource[Any] = JOBS


def taken_names(api: Api, namespace: str) -> frozenset[str]:
    """Return the names of the jobs and of the arrays of a namespace."""
    jobs = api.list(JOBS.only_metadata, namespace=namespace)
    arrays = list_arrays(api, namespace)
    return frozenset(
        (*(job.metadata.name for job in jobs), *(str(each["metadata"]["name"]) for each in arrays))
    )


def pick_name(naming: Naming, taken: frozenset[str]) -> str:
    """Return the name to use; CliError when the one that was asked for is in use."""
    if naming.asked is None:
        if not naming.first_is_bare:
            return next_name(naming.base, taken)
        is_first = naming.base not in taken
        return naming.base if is_first else next_name(naming.base, {*taken, f"{naming.base}-1"})
    if naming.asked in taken:
        free = next_name(re.sub(r"-\d+$", "", naming.asked), taken)
        raise fail(
            Code.NAME_IN_USE, f"a job named '{naming.asked}' exists already",
            help=(f"--name {free}, or leave --name out",),
        )  # fmt: skip
    return naming.asked


def check(api: Api, submission: Submission, name: str) -> dict[str, Any]:
    """Send what was built as a dry run and return what would be stored; CliError when refused.

    A numbered name that has been taken meanwhile is replaced by the next one, as in `store`.
    """
    for _ in range(NAME_TRIES_MAX):
        try:
            return api.create(
                submission.resource.raw, submission.build(name), namespace=submission.namespace,
                dry_run=True,
            )  # fmt: skip
        except ApiError as error:
            if not isinstance(error, AlreadyExists) or submission.naming.asked is not None:
                raise in_words_of_flags(api, error, submission.namespace) from error
            name = pick_name(submission.naming, taken_names(api, submission.namespace))
    raise _no_free_name(submission)


def _no_free_name(submission: Submission) -> CliError:
    return fail(Code.CONFLICT, f"no free name '{submission.naming.base}-N' was found",
                help=("--name NAME",))  # fmt: skip


def in_words_of_flags(api: Api, error: ApiError, namespace: str) -> CliError:
    """Return a refusal by the API in the words of the flags that wrote what it refuses."""
    return CliError([_of_flag(api, each) for each in _refused(error, namespace).problems])


#: The flags that write fields of a job.
_FLAGS = {
    "metadata.name": "--name", "spec.priorityClassName": "--priority",
    "spec.priority": "--priority", "spec.reservation": "--reservation",
    "spec.timeLimitSeconds": "--time", "spec.topology": "--topology", "spec.after": "--after",
    "spec.notBefore": "--begin", "spec.deadline": "--deadline",
    "spec.indices": "--array", "spec.parallelism": "--array",
    "spec.checkpoint.claimName": "--checkpoint", "spec.checkpoint.path": "--checkpoint",
}  # fmt: skip
_GOT = re.compile(r"(?:Invalid|Unsupported) value: (\".*?\"|\S+): ")


def _of_flag(api: Api, problem: Problem) -> Problem:
    """Return the problem of a field in the words of the flag that wrote it."""
    field = problem.field.partition("[")[0].replace("spec.template.", "spec.")
    flag = _FLAGS.get(field)
    if flag is None:
        return problem
    got = _GOT.match(problem.message)
    message = f"{got[1]}: {problem.message[got.end() :]}" if got else problem.message
    help_ = problem.help
    if field == "spec.priorityClassName":
        with suppress(ApiError):  # they may not be listed
            classes = (each.metadata.name for each in api.list(PRIORITY_CLASSES))
            known = sorted(each for each in classes if not each.startswith("system-"))
            help_ = (f"there are: {', '.join(known)}" if known else "there are no PriorityClasses",)
    return replace(problem, message=f"{flag}: {message}", field="", help=help_)


def store(api: Api, submission: Submission, name: str) -> dict[str, Any]:
    """Store the job (and its script) under the name that was picked and return it as stored.

    A numbered name that somebody else has taken meanwhile, if only for a script as yet, is replaced
    by the next one.
    """
    tried: set[str] = set()
    for _ in range(NAME_TRIES_MAX):
        try:
            return _store_as(api, submission, name)
        except AlreadyExists as error:
            if submission.naming.asked is not None:
                raise from_api(error) from error
            tried.add(name)
            taken = taken_names(api, submission.namespace)
            name = pick_name(submission.naming, taken | tried)
        except ApiError as error:
            raise _refused(error, submission.namespace) from error
    raise _no_free_name(submission)


def _store_as(api: Api, submission: Submission, name: str) -> dict[str, Any]:
    space, script, resource = submission.namespace, submission.script, submission.resource
    if script is None:
        return api.create(resource.raw, submission.build(name), namespace=space)
    _store_script(api, space, name, script)
    try:
        job = api.create(resource.raw, submission.build(name), namespace=space)
    except ApiError:
        api.delete(CONFIG_MAPS, config_map_name(name), namespace=space)
        raise
    owner = {"apiVersion": names.API_VERSION, "kind": resource.kind, "name": name,
             "uid": job["metadata"]["uid"]}  # fmt: skip
    patch = {"metadata": {"ownerReferences": [owner]}}
    try:
        api.patch(CONFIG_MAPS, config_map_name(name), patch, namespace=space)
    except (ApiError, CliError) as error:
        # The job is queued, which is what counts; only its clean-up will leave the script behind.
        submission.warn(f"the script of {name} will outlive it: {error}")
    return job


def _store_script(api: Api, namespace: str, name: str, script: Script) -> None:
    config_map = build_script_map(name, script)
    body = {"apiVersion": "v1", "kind": "ConfigMap", **to_wire(config_map)}
    try:
        api.create(CONFIG_MAPS.raw, body, namespace=namespace)
    except AlreadyExists as error:
        try:
            before = api.get(CONFIG_MAPS, config_map_name(name), namespace=namespace)
        except NotFound:  # of a submission that has just been refused
            raise error from None
        is_ours = before.metadata.labels.get(names.JOB_NAME) == name
        if not is_ours or before.metadata.owner_references or _is_young(before.metadata):
            raise
        api.delete(CONFIG_MAPS, config_map_name(name), namespace=namespace)
        api.create(CONFIG_MAPS.raw, body, namespace=namespace)


def _is_young(meta: ObjectMeta) -> bool:
    created = meta.creation_timestamp
    return created is not None and now() - parse_time(created) < SCRIPT_ALONE_SECONDS


def _refused(error: ApiError, namespace: str) -> CliError:
    details = error.status.details
    if isinstance(error, NotFound) and details is not None and details.kind == "namespaces":
        remedy = f"kubectl create namespace {namespace}"
        if namespace.isdigit():
            remedy = f"-n is the namespace; --nodes {namespace} asks for so many members"
        return fail(
            Code.NO_SUCH_NAMESPACE, f"namespace '{namespace}' does not exist", help=(remedy,)
        )
    return from_api(error)


def check_documents(
    api: Api, documents: Sequence[Document], namespace: str
) -> list[dict[str, Any]]:
    """Send every document as a dry run and return what would be stored, defaults filled in;
    CliError with all refusals, each with its place.
    """
    checked: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for document in documents:
        try:
            checked.append(api.create(document.resource.raw, document.body, dry_run=True,
                                      namespace=_space(document, namespace)))  # fmt: skip
        except ApiError as error:
            problems += _document_problems(document, error, _space(document, namespace))
    if problems:
        raise CliError(problems)
    return checked


def store_documents(
    api: Api, documents: Sequence[Document], namespace: str
) -> list[dict[str, Any]]:
    """Store every document and return them; when one is refused, those before it are removed."""
    stored: list[dict[str, Any]] = []
    for document in documents:
        try:
            stored.append(api.create(document.resource.raw, document.body,
                                     namespace=_space(document, namespace)))  # fmt: skip
        except ApiError as error:
            for before, created in zip(documents, stored, strict=False):
                api.delete(before.resource, str(created["metadata"]["name"]),
                           namespace=_space(before, namespace))  # fmt: skip
            problems = _document_problems(document, error, _space(document, namespace))
            raise CliError(problems) from error
    return stored


def _space(document: Document, namespace: str) -> str:
    return (document.namespace or namespace) if document.resource.namespaced else ""


def _document_problems(document: Document, error: ApiError, namespace: str) -> list[Problem]:
    details = error.status.details
    if isinstance(error, Invalid) and details is not None and details.causes:
        return [document.problem(cause) for cause in details.causes]
    found = _refused(error, namespace)
    if isinstance(error, AlreadyExists):
        resource = document.resource
        at = f" -n {namespace}" if namespace else ""
        help_ = ("give it another metadata.name, or remove what exists: kubectl delete "
                 f"{resource.name} {document.name}{at}")  # fmt: skip
        found = CliError([replace(each, help=(help_,)) for each in found.problems])
    if isinstance(error, (InternalError, Unavailable)):
        return list(found.problems)  # no line of the manifest is at fault
    at = document.marks.keys.get("metadata", document.marks.mark)
    where = f"{document.file}:{at.line}:{at.column}"
    return [replace(problem, where=problem.where or where) for problem in found.problems]
