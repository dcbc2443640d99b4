"""Checks of an object's structure: types of built-in kinds, and the schema of custom ones.

Every object is decoded into its read model when it is encoded for the store, which is proof enough
of its types. Only one that fails goes through the compiled schema, which words the error as the API
server does and knows which nulls mean a missing field.
"""

from __future__ import annotations

from typing import Any

from fairlead.api.status import BadRequest
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.schema import Schema, builtin_schema, strict_errors
from fairlead.embedded.verbs import own_rules
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Finding
from fairlead.embedded.verbs.options import WriteOptions

Obj = dict[str, Any]


def report_unknown_fields(info: ResourceInfo, obj: Obj, options: WriteOptions) -> None:
    """Warn of, or refuse if Strict, unknown fields of a built-in kind. They are kept."""
    if info.is_builtin and options.field_validation != "Ignore":
        _report(info, builtin_schema(info.kind).unknown_fields(obj), options)


def repair(info: ResourceInfo, obj: Obj) -> Obj:
    """Return the object without nulls that mean missing fields.

    BadRequest names the field whose type is wrong. Of custom resources only metadata is looked at.
    """
    schema = info.schema if not info.is_builtin else builtin_schema(info.kind)
    if schema is None:
        return obj
    schema.require_decodable(obj, kind=info.kind, version=info.api_version)
    return schema.default(obj)


def admit(
    context: Context,
    info: ResourceInfo,
    obj: Obj,
    *,
    options: WriteOptions,
    old: Obj | None = None,
) -> tuple[Obj, list[Finding]]:
    """Default and prune a custom resource; return it with what its schema, and the rules of our
    own kinds, find wrong.

    With `old`, what did not change is not looked at again: a status write costs its status.
    """
    schema = info.schema
    if schema is None:
        return obj, []
    if old is not None:
        changed = {k for k in (*obj, *old) if k != "metadata" and not _same(obj, old, k)}
        if not changed:
            return obj, []
        if changed == {"status"} and "status" in obj and info.status_schema is not None:
            part, findings = _admit(info, info.status_schema, {"status": obj["status"]}, options)
            return {**obj, **part}, findings
    obj, findings = _admit(info, schema, obj, options)
    obj, more = own_rules.admit(context, info, obj, old=old, known=findings)
    return obj, [*findings, *more]


def _same(obj: Obj, old: Obj, key: str) -> bool:
    return obj.get(key) is old.get(key) or obj.get(key) == old.get(key)


def _admit(
    info: ResourceInfo, schema: Schema, obj: Obj, options: WriteOptions
) -> tuple[Obj, list[Finding]]:
    obj, dropped, causes = schema.admit(obj)
    if dropped and options.field_validation != "Ignore":
        _report(info, dropped, options)
    return obj, [*causes]


def _report(info: ResourceInfo, unknown: list[str], options: WriteOptions) -> None:
    if not unknown:
        return
    if options.field_validation == "Strict":
        raise BadRequest(
            f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: '
            f"{strict_errors(unknown)}"
        )
    for path in unknown:
        options.warn(f'unknown field "{path}"')
