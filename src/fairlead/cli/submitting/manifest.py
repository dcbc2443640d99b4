"""Manifest files: YAML documents checked as a whole before anything is stored.

Every mistake of every document is collected, each with line, column and field path. The rules are
those of the API itself: the schema of the CustomResourceDefinition, and `api/validation` for what a
schema cannot say; fields that the schema does not know are mistakes here, with the nearest name,
though the API itself would only drop them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from fairlead.api import names
from fairlead.api.resources import ALL, JOB_ARRAYS, JOBS, TEAMS, Resource
from fairlead.api.status import BadRequest, StatusCause
from fairlead.cli.job_request.request import clean_name
from fairlead.input.errors import Code, Problem, fail
from fairlead.input.suggest import nearest
from fairlead.input.yamlmarks import (
    BYTES_MAX,
    Mistake,
    YamlMark,
    YamlTooLarge,
    YamlValue,
    locate,
    plain_scalar,
    read_documents,
    to_plain,
)

if TYPE_CHECKING:
    from fairlead.embedded.schema.schema import Schema

STANDARD_INPUT = "-"
NAME_LENGTH_MAX = 253
_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9-])?$")  # a generateName may end with a dash


@dataclass(frozen=True, slots=True)
class Document:
    """One object to create: its kind, its plain value, and the marks of its fields."""

    file: str
    resource: Resource[Any]
    body: Mapping[str, Any]
    marks: YamlValue

    @property
    def name(self) -> str:
        """The object's name; a generateName with a star when it has none."""
        metadata = cast("dict[str, Any]", self.body.get("metadata") or {})
        return str(metadata.get("name") or f"{metadata.get('generateName')}*")

    @property
    def namespace(self) -> str:
        """The namespace written in it, or empty."""
        metadata = cast("dict[str, Any]", self.body.get("metadata") or {})
        return str(metadata.get("namespace") or "")

    def problem(self, cause: StatusCause) -> Problem:
        """Return what the API said of a field as a problem with its place."""
        mark, value = locate(self.marks, cause.field)
        got = None
        if value is not None and value.mapping is None and value.sequence is None:
            mark, got = value.mark, _shown(value.scalar)
        message, help_ = reword(cause.message or cause.reason, cause.field, got)
        if value is not None and "must be" in message and not help_:
            help_ = _quotes(message, value.scalar)
        return _problem(self.file, mark, cause.field, message, help_=help_)


def _shown(scalar: object) -> str:
    """Return a scalar as YAML writes it."""
    if scalar is None:
        return "null"
    return str(scalar).lower() if isinstance(scalar, bool) else str(scalar)


def _quotes(message: str, scalar: object) -> str:
    """Return what to do with the quotes when they make the difference, else ""."""
    if isinstance(scalar, str) and not isinstance(plain_scalar(scalar), str) and scalar:
        return "" if message.endswith("a text") else "leave the quotes out"
    if message.endswith("a text") and isinstance(scalar, (int, float)):
        return f'write "{_shown(scalar)}" in quotes'
    return ""


def read_bytes(path: str) -> bytes:
    """Return the content of a file ("-": of standard input); CliError."""
    try:
        if path == STANDARD_INPUT:
            data = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(BYTES_MAX + 1)
    except OSError as error:
        message = f"'{path}' cannot be read: {error.strerror}"
        raise fail(Code.MANIFEST_UNREADABLE, message) from error
    if len(data) > BYTES_MAX:
        message = f"'{path}' is larger than {BYTES_MAX >> 20} MiB"
        raise fail(Code.MANIFEST_TOO_LARGE, message)
    return data


def parse_manifest(data: bytes, file: str) -> tuple[tuple[Document, ...], tuple[Problem, ...]]:
    """Return the objects of a manifest and everything that is wrong with it.

    When there is a problem, the documents are only those without one; store none of them.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        return (), (Problem(Code.MANIFEST_UNREADABLE, message, where=f"{file}:{line}:{column}",
                            help=("save the file as UTF-8",)),)  # fmt: skip
    try:
        values, mistakes = read_documents(text)
    except YamlTooLarge as error:
        return (), (Problem(Code.MANIFEST_TOO_LARGE, str(error), where=file),)
    problems = [_mistake(file, mistake) for mistake in mistakes]
    if not values and not problems:
        problems.append(Problem(Code.MANIFEST_SYNTAX, "the manifest is empty", where=file))
    documents: list[Document] = []
    for value in _flatten(values):
        document, found = _document(file, value)
        problems += found
        if document is not None and not found:
            documents.append(document)
    problems.sort(key=_position)
    return () if mistakes else tuple(documents), tuple(problems)


def _position(problem: Problem) -> tuple[int, int]:
    parts = problem.where.rsplit(":", 2)[1:]
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and parts[0].isdigit() else (0, 0)


def _flatten(values: Sequence[YamlValue]) -> Iterator[YamlValue]:
    """Yield the documents, the items of a `kind: List` one by one."""
    for value in values:
        kind = (value.mapping or {}).get("kind")
        items = (value.mapping or {}).get("items")
        if kind is not None and kind.scalar == "List" and items is not None and items.sequence:
            yield from items.sequence
        else:
            yield value


def _mistake(file: str, mistake: Mistake) -> Problem:
    code = Code.DUPLICATE_KEY if mistake.key else Code.MANIFEST_SYNTAX
    where = f"{file}:{mistake.mark.line}:{mistake.mark.column}"
    return Problem(code, mistake.message, where=where, help=(mistake.help,) if mistake.help else ())


def _problem(file: str, mark: YamlMark, field: str, message: str, *, code: Code = Code.BAD_FIELD,
             help_: str = "") -> Problem:  # fmt: skip
    where = f"{file}:{mark.line}:{mark.column}"
    return Problem(code, message, where=where, field=field, help=(help_,) if help_ else ())


def _document(file: str, value: YamlValue) -> tuple[Document | None, list[Problem]]:
    if value.mapping is None:
        return None, [_problem(file, value.mark, "", "an object must be a mapping of fields",
                               help_="begin with apiVersion, kind, metadata and spec")]  # fmt: skip
    resource, problems = _resource(file, value)
    if resource is None:
        return None, problems
    body = cast("dict[str, Any]", to_plain(value))
    document = Document(file, resource, body, value)
    problems += _metadata(file, value)
    reported = {problem.field for problem in problems}
    problems += [problem for problem in _check(document) if problem.field not in reported]
    return document, problems


def _resource(file: str, value: YamlValue) -> tuple[Resource[Any] | None, list[Problem]]:
    assert value.mapping is not None
    given: dict[str, str] = {}
    problems: list[Problem] = []
    for field in ("apiVersion", "kind"):
        entry = value.mapping.get(field)
        if entry is None:
            problems.append(
                _problem(
                    file,
                    value.mark,
                    field,
                    f"'{field}' is missing",
                    help_=f"a job has apiVersion: {names.API_VERSION}, kind: Job",
                )
            )
        elif not isinstance(entry.scalar, str):
            problems.append(_problem(file, entry.mark, field, f"'{field}' must be a text"))
        else:
            given[field] = entry.scalar
    if problems:
        return None, problems
    version, kind = given["apiVersion"], given["kind"]
    for resource in ALL:
        if (resource.api_version, resource.kind) == (version, kind):
            return resource, []
    return None, [_unknown_kind(file, value, version, kind)]


def _unknown_kind(file: str, value: YamlValue, version: str, kind: str) -> Problem:
    versions = sorted({r.api_version for r in ALL if r.kind == kind})
    if versions:
        message = f"kind '{kind}' is of apiVersion {' or '.join(versions)}, not '{version}'"
        return _problem(file, value.keys["apiVersion"], "apiVersion", message,
                        code=Code.UNKNOWN_KIND)  # fmt: skip
    near = nearest(kind, (r.kind for r in ALL))
    message = f"kind '{kind}' of '{version}' is not known here"
    help_ = f"did you mean {near}?" if near else "kubectl apply -f sends any kind to the cluster"
    return _problem(file, value.keys["kind"], "kind", message,
                    code=Code.UNKNOWN_KIND, help_=help_)  # fmt: skip


def _metadata(file: str, value: YamlValue) -> list[Problem]:
    assert value.mapping is not None
    metadata = value.mapping.get("metadata")
    if metadata is None:
        return [_problem(file, value.mark, "metadata.name", "'metadata.name' is missing")]
    if metadata.mapping is None:
        return [_problem(file, metadata.mark, "metadata", "'metadata' must be a mapping")]
    for field in ("name", "generateName"):
        entry = metadata.mapping.get(field)
        if entry is None:
            continue
        if not isinstance(entry.scalar, str) or not entry.scalar:
            shown = entry.scalar if isinstance(entry.scalar, (int, float)) else ""
            help_ = f'write "{shown}" in quotes' if shown != "" else ""
            field = f"metadata.{field}"
            return [_problem(file, entry.mark, field, "must be a text", help_=help_)]
        if not _NAME.match(entry.scalar) or len(entry.scalar) > NAME_LENGTH_MAX:
            message = f"'{entry.scalar[:80]}' must consist of a-z, 0-9, '-' and '.'"
            return [_problem(file, entry.mark, f"metadata.{field}", message,
                             help_=f"for example {clean_name(entry.scalar)}")]  # fmt: skip
        return []
    return [_problem(file, value.keys["metadata"], "metadata.name", "'metadata.name' is missing")]


def _check(document: Document) -> list[Problem]:
    from fairlead.embedded.schema.schema import builtin_schema

    is_job = document.resource == JOBS
    is_ours = document.resource.api_version == names.API_VERSION
    kind = document.resource.kind
    schema = _compiled_schema(kind) if is_ours else builtin_schema(kind)
    body = dict(document.body)
    try:
        problems = [
            _unknown(document, schema.openapi, path)
            for path in [*schema.unknown_fields(body), *(_template_paths(body) if is_job else ())]
        ]
        causes = schema.validate(body)
        if not causes:
            causes = _typed_causes(document)
    except BadRequest as error:
        return [_problem(document.file, document.marks.mark, "", error.message)]
    reported = {problem.field for problem in problems}
    return problems + [document.problem(c) for c in causes if c.field not in reported]


def _typed_causes(document: Document) -> list[StatusCause]:
    """Return what breaks the rules that need the whole object, once its schema holds."""
    from fairlead.api.validation.validate import validate_job
    from fairlead.api.validation.validate_array import validate_array
    from fairlead.api.validation.validate_team import validate_team

    try:
        msgspec.convert(document.body, document.resource.type)
    except msgspec.ValidationError as error:
        return [_cause(error)]
    if document.resource == TEAMS:
        return validate_team(document.body)
    if document.resource == JOB_ARRAYS:
        return validate_array(document.body)
    return validate_job(document.body) if document.resource == JOBS else []


def _compiled_schema(kind: str) -> Schema:
    from fairlead.api.schema import crd
    from fairlead.embedded.schema.schema import compile_schema

    return compile_schema(crd_schema(crd.manifests(), kind))


def crd_schema(manifests: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    """Return the OpenAPI schema of one of our kinds out of the CRD manifests."""
    for manifest in manifests:
        spec = cast("dict[str, Any]", manifest["spec"])
        if spec["names"]["kind"] == kind:
            return cast("dict[str, Any]", spec["versions"][0]["schema"]["openAPIV3Schema"])
    raise AssertionError(f"the kind {kind} has a CRD")


def _cause(error: msgspec.ValidationError) -> StatusCause:
    """Return msgspec's "Expected `int`, got `str` - at `$.spec.roles[0].count`" as a cause."""
    message, _, path = str(error).partition(" - at `")
    field = path.rstrip("`").removeprefix("$").removeprefix(".")
    return StatusCause(reason="FieldValueInvalid", message=message, field=field)


# Unknown fields


def _template_paths(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of misspelt fields in the pod templates, which the schema leaves open."""
    from fairlead.embedded.schema.schema import pod_template_unknown_fields

    spec: Any = body.get("spec")
    roles: Any = spec.get("roles") if isinstance(spec, dict) else None
    for i, role in enumerate(cast("list[Any]", roles) if isinstance(roles, list) else ()):
        template: Any = (
            cast("dict[str, Any]", role).get("template") if isinstance(role, dict) else 0
        )
        if isinstance(template, dict):
            for path in pod_template_unknown_fields(template):
                yield f"spec.roles[{i}].template.{path}"


def _unknown(document: Document, openapi: Mapping[str, Any], path: str) -> Problem:
    parent, _, key = path.rpartition(".")
    known = _known_fields(openapi, parent)
    near = nearest(key, known)
    message = f"unknown field '{key}'" + (f"; nearest is '{near}'" if near else "")
    help_ = "" if near or not known else f"known here: {', '.join(sorted(known))}"
    mark, _ = locate(document.marks, path)
    return _problem(document.file, mark, path, message, code=Code.UNKNOWN_FIELD, help_=help_)


def _known_fields(openapi: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the properties of the object at a path, by the schema."""
    from fairlead.api.schema.builtin_schemas import schema_of

    schema: Mapping[str, Any] = openapi
    for part in re.findall(r"\[\d+\]|[^.\[\]]+", path):
        if part.startswith("["):
            schema = schema.get("items") or {}
        else:
            schema = (schema.get("properties") or {}).get(part) or {}
        if part == "template":
            schema = schema_of("PodTemplate")
        elif part == "metadata":
            schema = schema_of("ObjectMeta")
    return schema.get("properties") or {}


_TYPES = {
    "integer": "a whole number", "number": "a number", "string": "a text",
    "boolean": "true or false",
    "object": "a mapping of fields", "array": "a list",
}  # fmt: skip
_TYPE = re.compile(r"in body must be of type (\w+)")
_EXPECTED_INT = "Expected `int`, got "  # msgspec, of 1e3 and the like
_BOUND = re.compile(r"in body should (?:be|have) ((?:greater|less) than(?: or equal to)? \S+|"
                    r"at (?:least|most) .+)$")  # fmt: skip
_ITEMS = re.compile(r"should have (at (?:least|most) \d+ \w+)")
_SUPPORTED = re.compile(r"^Unsupported value: .*?: supported values: (.*)$")
_PREFIX = re.compile(r"^(?:Invalid value|Forbidden|Duplicate value|Too long|Too many)(?:: |$)")
QUANTITY = "numkKMGTP"


def reword(message: str, field: str, got: str | None) -> tuple[str, str]:
    """Return (message, help) for a finding on `field`; `got` is the value if a scalar.

    The API words its findings as Kubernetes does (`Invalid value: "string": spec.x in body must be
    of type integer: "string"`), for tools. At the terminal the value itself and what is accepted
    are said.
    """
    shown = f"'{got}' " if got is not None else ""
    name = re.sub(r"^.*\.", "", field)
    if message.startswith("Required value"):
        rest = message.removeprefix("Required value").removeprefix(": ")
        return (f"'{name}' is missing" + (f": {rest}" if rest else ""), "")
    if match := _SUPPORTED.match(message):
        accepted = re.findall(r'"([^"]*)"', match[1])
        near = nearest(got or "", accepted)
        return f"{shown}must be one of {', '.join(accepted)}", f"write {near}" if near else ""
    if message.startswith("Duplicate value"):
        return f"{message.partition(': ')[2] or name} is listed twice; each must be different", ""
    if match := _TYPE.search(message):
        return f"{shown}must be {_TYPES.get(match[1], match[1])}", ""
    if _EXPECTED_INT in message:
        return f"{shown}must be a whole number", ""
    if QUANTITY in message and "should match" in message:
        return f"{shown}is not a quantity such as 500m, 8 or 16Gi", ""
    if match := _ITEMS.search(message) or _BOUND.search(message):
        verb = "must have" if match.re is _ITEMS else "must be"
        bound = re.sub(r"\b1 items$", "1 item", match[1].rstrip("."))
        return f"{shown}{verb} {bound}", ""
    without = _PREFIX.sub("", message)
    without = re.sub(r'^"(?:[^"\\]|\\.)*": |^\S+: ', "", without) if without != message else without
    return (f"{shown}{without}" if got is not None and shown not in without else without), ""
