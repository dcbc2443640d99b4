"""Checks of an object's structure: types of built-in kinds, schemas of custom ones, our own rules.

Every object is decoded into its read model when it is encoded for the store, which is proof enough
of its types. Only one that fails goes through the compiled schema, which words the error as the API
server does and knows which nulls mean a missing field.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.schema.conversion import renamed_path
from fairlead.api.status import BadRequest, StatusCause
from fairlead.decide.admission.arrays import WORK_KINDS
from fairlead.decide.admission.cluster_kinds import RULES, judge_cluster_object
from fairlead.decide.admission.jobs import AdmissionContext
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.schema import Schema, builtin_schema, strict_errors
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Finding
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.model.asks.teams import TeamTable
from fairlead.model.holdings.submitted import SubmittedTable
from fairlead.model.holdings.team_use import Account

Obj = dict[str, Any]
_JOBS = f"jobs.{names.GROUP}"


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


def refuse_malformed(info: ResourceInfo, obj: Obj) -> None:
    """BadRequest that says what is wrong with the structure of an object that could not be
    defaulted; returns where nothing is: then the fault is ours.
    """
    path = _null_item(repair(info, obj))
    if path:
        what = f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}'
        raise BadRequest(f"{what}: {path} is null")


def _null_item(value: object, path: str = "") -> str:
    """Return the path of the first null in a list; "" where there is none."""
    if isinstance(value, list):
        items = [(f"{path}[{i}]", item) for i, item in enumerate(list[object](value))]
        found = next((at for at, item in items if item is None), "")
    else:
        items = [(f"{path}.{key}".strip("."), item) for key, item in as_map(value).items()]
        found = ""
    return found or next((at for p, item in items if (at := _null_item(item, p))), "")


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
    obj, more = _admit_own(context, info, obj, old=old, known=findings)
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


def _admit_own(
    context: Context, info: ResourceInfo, obj: Obj, *, old: Obj | None, known: Sequence[Finding]
) -> tuple[Obj, list[StatusCause]]:
    """Return a defaulted object of our own kinds, and what is wrong with it beyond `known`.

    Asks `decide.admission`, which the webhook asks as well: after the schema, on every create and
    every write that changes more than metadata and status; in the version that is stored, whose
    names the causes have.
    """
    obj, old = info.stored(obj), None if old is None else info.stored(old)
    made, causes = _admit_stored(context, info, obj, old=old, seen=_stored_paths(info, known))
    return info.served(made), causes


def _stored_paths(info: ResourceInfo, known: Sequence[Finding]) -> list[str]:
    """Return where the findings are, in the names that are stored."""
    paths = [finding.field for finding in known]
    if info.version_names is None:
        return paths
    return [renamed_path(path, info.kind, to_beta=False) for path in paths]


def _admit_stored(
    context: Context, info: ResourceInfo, obj: Obj, *, old: Obj | None, seen: Sequence[str]
) -> tuple[Obj, list[StatusCause]]:
    if info.name in RULES:
        causes = judge_cluster_object(info.name, obj, old)
        return obj, [cause for cause in causes if cause.field not in seen]
    if info.name not in WORK_KINDS:
        return obj, []
    fill, judge = WORK_KINDS[info.name]
    teams = context.teams.of(context.store)
    given = AdmissionContext(
        context.priorities.of(context.store)[0], teams, known=seen,
        namespace=str(obj["metadata"].get("namespace") or ""),
        count=partial(_count, context, teams), terms=context.terms,
    )  # fmt: skip
    filled = fill(obj, old, given)
    if filled.fields:
        obj = {**obj, "spec": {**obj["spec"], **filled.fields}}
    if filled.note is not None:
        metadata = obj["metadata"]
        annotations = {**(metadata.get("annotations") or {}), names.DEFAULTS: filled.note}
        obj = {**obj, "metadata": {**metadata, "annotations": annotations}}
    return obj, [*filled.causes, *judge(obj, old, given)]


def _count(context: Context, teams: TeamTable, account: Account) -> int:
    """Return the unfinished jobs of an account; asked only where a limit depends on it."""
    team, table = teams.get(account.team), SubmittedTable()
    for namespace in team.spec.namespaces if team is not None else ():
        for record in context.store.records(_JOBS, namespace):
            table.put(record.typed(Job))
    return table.count(teams, account)
