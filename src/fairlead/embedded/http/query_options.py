"""The options of requests, from the query and from DeleteOptions bodies.

A value that cannot be read at all is a 400. One that is read but not known is a 422 that names the
options object, as upstream (apimachinery `pkg/apis/meta/v1/validation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from aiohttp import web

from fairlead.api.status import BadRequest, Invalid
from fairlead.embedded.http.request import Query, as_object
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.errors import FieldProblem, ProblemType
from fairlead.embedded.verbs.options import DeleteOptions, ListOptions, WriteOptions
from fairlead.runtime.client import Propagation

MANAGER_LENGTH_MAX = 128
INTEGER_MAX = 2**63
E = TypeVar("E", bound=Enum)
_OPTIONS_OF = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}


class FieldValidation(Enum):
    """What to do about unknown and duplicate fields."""

    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


def _unsupported(kind: str, field: str, value: Any, choices: type[Enum]) -> Invalid:
    accepted = ", ".join(f'"{choice.value}"' for choice in choices)
    why = f"supported values: {accepted}"
    return errors.invalid_options(kind, FieldProblem(field, ProblemType.NOT_SUPPORTED, why, value))


def _choice(kind: str, query: Query, field: str, choices: type[E]) -> E | None:
    value = query.text(field)
    if not value:
        return None
    try:
        return choices(value)
    except ValueError:
        raise _unsupported(kind, field, value[:40], choices) from None


def _bad_dry_run(kind: str, value: Any) -> Invalid:
    why = 'supported values: "All"'
    return errors.invalid_options(
        kind, FieldProblem("dryRun", ProblemType.NOT_SUPPORTED, why, value)
    )


def _dry_run(kind: str, query: Query) -> bool:
    value = query.text("dryRun")
    if value not in ("", "All"):
        raise _bad_dry_run(kind, [value[:40]])
    return value == "All"


def _first_word(user_agent: str) -> str:
    """Return what names a client that does not name itself (apiserver `handlers/create.go`)."""
    word = "".join(filter(str.isprintable, user_agent.partition("/")[0]))
    return word.encode()[:MANAGER_LENGTH_MAX].decode(errors="ignore")


def write_options(request: web.BaseRequest, query: Query, warnings: list[str]) -> WriteOptions:
    """Return the options of a create, update or patch; what it warns of goes into `warnings`."""
    kind = _OPTIONS_OF[request.method]
    validation = _choice(kind, query, "fieldValidation", FieldValidation)
    manager = query.text("fieldManager")
    if len(manager) > MANAGER_LENGTH_MAX:
        why = f"may not be more than {MANAGER_LENGTH_MAX} bytes"
        raise errors.invalid_options(kind, FieldProblem("fieldManager", ProblemType.TOO_LONG, why))
    if not manager.isprintable():
        why = "should only contain printable characters"
        problem = FieldProblem("fieldManager", ProblemType.INVALID, why, manager)
        raise errors.invalid_options(kind, problem)
    return WriteOptions(
        dry_run=_dry_run(kind, query),
        field_validation=(validation or FieldValidation.WARN).value,
        field_manager=manager,
        user_agent=_first_word(request.headers.get("User-Agent", "")),
        warn=warnings.append,
    )


def list_options(query: Query) -> ListOptions:
    """Return the options of a list; a limit of 0 or less is none."""
    return ListOptions(
        label_selector=query.text("labelSelector"),
        field_selector=query.text("fieldSelector"),
        limit=max(0, query.integer("limit", least=-INTEGER_MAX) or 0),
        continue_=query.text("continue"),
        resource_version=query.text("resourceVersion"),
        resource_version_match=query.text("resourceVersionMatch"),
    )


def _body_seconds(body: Mapping[str, Any]) -> int | None:
    seconds = body.get("gracePeriodSeconds")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        raise BadRequest(f"gracePeriodSeconds: {str(seconds)[:40]!r} is not an integer")
    return seconds


def _body_propagation(body: Mapping[str, Any]) -> Propagation | None:
    orphan, policy = body.get("orphanDependents"), body.get("propagationPolicy")
    if orphan is not None and policy is not None:
        raise BadRequest("set only one of orphanDependents and propagationPolicy")
    if isinstance(orphan, bool):
        return Propagation.ORPHAN if orphan else Propagation.BACKGROUND
    if policy is None:
        return None
    try:
        return Propagation(policy)
    except ValueError:
        raise _unsupported("DeleteOptions", "propagationPolicy", policy, Propagation) from None


def delete_options(query: Query, body: Mapping[str, Any]) -> DeleteOptions:
    """Return the options of a delete: the body's, or else the query's, as upstream."""
    preconditions = as_object(body.get("preconditions") or {})
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    if not isinstance(uid, str | None) or not isinstance(version, str | None):
        raise BadRequest("preconditions: uid and resourceVersion are texts")
    dry_run = body.get("dryRun") or []
    if not isinstance(dry_run, list):
        raise BadRequest(f"dryRun: {str(dry_run)[:40]!r} is not a list")
    if dry_run not in ([], ["All"]):
        raise _bad_dry_run("DeleteOptions", dry_run)
    seconds = _body_seconds(body)
    propagation = _body_propagation(body)
    if propagation is None:
        propagation = _choice("DeleteOptions", query, "propagationPolicy", Propagation)
        if propagation is None and query.is_given("orphanDependents"):
            orphan = query.flag("orphanDependents")
            propagation = Propagation.ORPHAN if orphan else Propagation.BACKGROUND
    return DeleteOptions(
        grace_period_seconds=(query.integer("gracePeriodSeconds") if seconds is None else seconds),
        propagation=propagation,
        uid=uid,
        resource_version=version,
        dry_run=bool(dry_run) or _dry_run("DeleteOptions", query),
    )
