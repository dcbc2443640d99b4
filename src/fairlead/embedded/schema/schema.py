"""Structural schemas: default, prune and validate JSON values against an `openAPIV3Schema`.

`compile_schema` checks that a CRD's schema is structural and turns it into closures
(`schema_check`, `schema_fill`); `builtin_schema` does the same for the schemas generated from the
wire structs. A write takes three steps, in this order:

    schema.require_decodable(value, ...)   400 when a type is wrong where the real server decodes
    value = schema.default(value)          copy on write
    value, dropped = schema.prune(value)   `strict_errors(dropped)` words them for fieldValidation
    causes = schema.validate(value)        422 when there are any

`schema.admit` is the last three in one, with a fast path for values that need no change.

For built-in kinds the schema is partial: unknown fields are kept and types decide over 400. For
custom resources only `metadata` is decoded; everything else is a matter of validation.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from fairlead.api.causes import CAUSES_MAX
from fairlead.api.schema import builtin_schemas
from fairlead.api.schema.builtin_schemas import COMPLETE, schema_of
from fairlead.api.status import BadRequest, StatusCause
from fairlead.embedded.schema.check import compile_check
from fairlead.embedded.schema.fast import FastPath, Test, fast_path, names_test
from fairlead.embedded.schema.faults import Check, FaultKind, SchemaFault, format_path
from fairlead.embedded.schema.fill import (
    EMBEDDED,
    PRESERVE,
    Fill,
    Prune,
    compile_fill,
    compile_prune,
)
from fairlead.embedded.schema.rules import structural_faults

__all__ = ["Schema", "SchemaError", "builtin_schema", "compile_schema", "strict_errors"]

#: Schemas of custom resources whose compiled form is kept.
_COMPILED_MAX = 64

Json: TypeAlias = Mapping[str, Any]


class SchemaError(ValueError):
    """A CRD's schema is not structural; `causes` names every place."""

    def __init__(self, causes: Iterable[StatusCause]) -> None:
        self.causes = tuple(causes)
        super().__init__("; ".join(f"{cause.field}: {cause.message}" for cause in self.causes))


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A compiled schema. Its methods never change what they are given, and may hand it back."""

    openapi: Json
    _decoded: Json = field(repr=False)  # the part that require_decodable goes by
    _check: Check | None = field(repr=False)
    _decode: Check | None = field(repr=False)
    _fill: Fill | None = field(repr=False)
    _prune: Prune | None = field(repr=False)
    _find_unknown: Prune | None = field(repr=False)
    #: True for values of which `_find_unknown` has nothing to say.
    _has_known_names: Test | None = field(default=None, repr=False)
    _fast: FastPath | None = field(default=None, repr=False)

    def admit(self, value: Any) -> tuple[Any, list[str], list[StatusCause]]:
        """Return what `default`, `prune` and `validate` make of a value, one after the other."""
        found = None if self._fast is None else _bounded(self._fast.admit, value)
        if found is not None:
            return found[0], [], _causes(found[1])
        value, dropped = self.prune(self.default(value))
        return value, dropped, self.validate(value)

    def default(self, value: Any) -> Any:
        """Return `value` with defaults filled in, and without nulls where null is no value."""
        return value if self._fill is None else _bounded(self._fill, value)

    def prune(self, value: Any) -> tuple[Any, list[str]]:
        """Return `value` without the fields that the schema does not keep, and their paths."""
        found = None if self._prune is None else _bounded(self._prune, value)
        return (value, []) if found is None else (found[0], [format_path(p) for p in found[1]])

    def validate(self, value: Any) -> list[StatusCause]:
        """Return every rule that `value` breaks, at most CAUSES_MAX; [] when it is valid."""
        return [] if self._check is None else _causes(_bounded(self._check, value) or ())

    def unknown_fields(self, value: Any) -> list[str]:
        """Return the paths of unknown fields, for fieldValidation Strict and Warn.

        For built-in kinds these are kept nevertheless, unlike on the real server, which drops them.
        """
        if self._find_unknown is None or (
            self._has_known_names is not None and _bounded(self._has_known_names, value)
        ):
            return []
        found = _bounded(self._find_unknown, value)
        return [] if found is None else [format_path(path) for path in found[1]]

    def require_decodable(self, value: Any, *, kind: str, version: str) -> None:
        """Raise the 400 of the real server when a field has a type that can't be decoded.

        `version` is the whole apiVersion. Nulls pass: they mean a missing field.
        """
        faults = None if self._decode is None else _bounded(self._decode, value)
        for fault in faults or ():
            if fault.kind in (FaultKind.TYPE, FaultKind.FORMAT) and fault.value != "null":
                problem = _decode_problem(fault, self._decoded, kind)
                raise BadRequest(f'{kind} in version "{version}" cannot be handled as a {problem}')


def _causes(faults: Sequence[SchemaFault]) -> list[StatusCause]:
    causes = [fault.cause() for fault in faults[:CAUSES_MAX]]
    if len(faults) > CAUSES_MAX:
        more = f"and {len(faults) - CAUSES_MAX} more"
        causes.append(StatusCause(reason="FieldValueInvalid", message=more))
    return causes


def _bounded(function: Any, value: Any) -> Any:
    try:
        return function(value)
    except RecursionError:
        raise BadRequest("the object is nested too deeply") from None


def strict_errors(paths: Iterable[str]) -> str:
    """Return the text of the 400 that fieldValidation=Strict answers unknown fields with."""
    return "strict decoding error: " + ", ".join(f'unknown field "{path}"' for path in paths)


# --- compiling --------------------------------------------------------------------------------


def compile_schema(openapi: Any, path: str = "openAPIV3Schema") -> Schema:
    """Compile the schema of a custom resource; SchemaError when it is not structural.

    `path` is where the schema stands in the CRD, for the causes: say
    `spec.versions[0].schema.openAPIV3Schema`. The root is an object of the API: kind, apiVersion
    and metadata belong to it whatever the schema says, and metadata follows ObjectMeta. Equal
    schemas are compiled once: a definition is compiled when it is checked and when it is served.
    """
    try:
        return _compiled(msgspec.json.encode(openapi, order="sorted"))
    except SchemaError as error:
        causes = [replace(cause, field=f"{path}{cause.field}") for cause in error.causes]
        raise SchemaError(causes) from None


@functools.lru_cache(maxsize=_COMPILED_MAX)
def _compiled(encoded: bytes) -> Schema:
    """Return the schema that a JSON text says; the fields of a SchemaError begin at its root."""
    openapi = msgspec.json.decode(encoded)
    causes = structural_faults(openapi, "")
    if causes:
        raise SchemaError(causes)
    causes = list(_default_faults(openapi, ""))
    if causes:
        raise SchemaError(causes)
    metadata = _object_meta(closed=True)
    properties = {**(openapi.get("properties") or {}), "metadata": metadata}
    root = {**openapi, EMBEDDED: True, "properties": properties}
    prune = compile_prune(root)
    decoded = {"type": "object", "properties": {"metadata": metadata}}
    return Schema(
        openapi=openapi,
        _decoded=decoded,
        _check=compile_check(openapi),
        _decode=compile_check(decoded),
        _fill=compile_fill(root),
        _prune=prune,
        _find_unknown=prune,
        _fast=fast_path(root),
    )


def _default_faults(schema: Json, path: str) -> Iterable[StatusCause]:
    """Defaults must themselves be valid and survive pruning."""
    if schema.get("default") is not None:
        value = schema["default"]
        fill, check, prune = compile_fill(schema), compile_check(schema), compile_prune(schema)
        for fault in (check(value if fill is None else fill(value)) or ()) if check else ():
            cause = fault.cause()
            at = "" if cause.field == "<nil>" else f".{cause.field}"
            yield StatusCause(
                reason=cause.reason, message=cause.message, field=f"{path}.default{at}"
            )
        if prune is not None and prune(value) is not None:
            yield StatusCause(
                reason="FieldValueInvalid",
                message="Invalid value: must not have unknown fields",
                field=f"{path}.default",
            )
    for name, below in (schema.get("properties") or {}).items():
        yield from _default_faults(below, f"{path}.properties[{name}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from _default_faults(schema[key], f"{path}.{key}")


@functools.cache
def _object_meta(*, closed: bool) -> Json:
    schema = schema_of("ObjectMeta")
    if closed:
        del schema[PRESERVE]
    return schema


@functools.cache
def builtin_schema(kind: str) -> Schema:
    """Return the schema of a built-in kind; one that only knows metadata for others."""
    metadata = {"metadata": _object_meta(closed=False)}
    unknown: dict[str, Any] = {"type": "object", PRESERVE: True, "properties": metadata}
    openapi = schema_of(kind) if kind in builtin_schemas.names() else unknown
    check = compile_check(openapi)
    root = {**openapi, EMBEDDED: True}
    return Schema(
        openapi=openapi,
        _decoded=openapi,
        _check=check,
        _decode=check,
        _fill=compile_fill(openapi),
        _prune=None,
        _find_unknown=compile_prune(root, closed_by=COMPLETE),
        _has_known_names=names_test(root, closed_by=COMPLETE),
    )


def pod_template_unknown_fields(template: Any) -> list[str]:
    """Return the paths of misspelt fields in a pod template: the Job's schema keeps them all."""
    return _pod_template().unknown_fields(template)


@functools.cache
def _pod_template() -> Schema:
    openapi = schema_of("PodTemplate")
    prune = compile_prune(openapi, closed_by=COMPLETE)
    return Schema(openapi, openapi, None, None, None, None, prune)


# --- the words of a 400 -----------------------------------------------------------------------

_GO_TYPES = {"string": "string", "boolean": "bool", "integer": "int64", "number": "float64"}
_GO_VALUES = {"boolean": "bool", "integer": "number"}


def _decode_problem(fault: SchemaFault, openapi: Json, kind: str) -> str:
    """Word a type fault as Go's JSON decoder does: a path without indexes, after its struct."""
    schema, struct, names = openapi, kind, list[str]()
    for part in fault.path:
        if isinstance(part, int):
            schema = schema.get("items") or {}
            continue
        struct = schema.get("title") or struct
        names.append(part)
        properties = schema.get("properties") or {}
        schema = properties.get(part) or schema.get("additionalProperties") or {}
        schema = schema if isinstance(schema, Mapping) else {}
    wanted_format = schema.get("format")
    if fault.kind is FaultKind.FORMAT and wanted_format == "quantity":
        return (
            f"{kind}: quantities must match the regular expression "
            f"'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$' (at {'.'.join(names)})"
        )
    if fault.kind is FaultKind.FORMAT and wanted_format == "date-time":
        text = str(fault.value)[:80]
        return f'{kind}: parsing time "{text}" as RFC 3339 (at {".".join(names)})'
    got = fault.value if fault.kind is FaultKind.TYPE else f"number {fault.value}"
    return (
        f"{kind}: json: cannot unmarshal {_GO_VALUES.get(got, got)} into Go struct field "
        f"{struct}.{'.'.join(names)} of type {_go_type(schema)}"
    )


def _go_type(schema: Json) -> str:
    if schema.get("title"):
        return f"v1.{schema['title']}"
    wanted = schema.get("type")
    if wanted == "array":
        return f"[]{_go_type(schema.get('items') or {})}"
    if wanted == "object":
        extra = schema.get("additionalProperties")
        return f"map[string]{_go_type(extra) if isinstance(extra, Mapping) else 'interface {}'}"
    if schema.get("format") == "quantity":
        return "resource.Quantity"
    return _GO_TYPES.get(str(wanted), "intstr.IntOrString")
