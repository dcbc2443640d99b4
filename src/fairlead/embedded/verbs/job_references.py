"""What a Job names and what must exist when it is written: its PriorityClasses.

A pod of a class that is not there is refused, so every attempt of such a job would be wasted. Only
the server that holds the classes can judge; controllers must bear such jobs on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairlead.api import core, names
from fairlead.embedded import builtins
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Problem, ProblemType

TABLE = f"jobs.{names.GROUP}"
Obj = Mapping[str, Any]


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    priority_class_name: str = ""
    priority: int | None = None


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Role(msgspec.Struct, frozen=True):
    template: _Template = _Template()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    priority_class_name: str = ""
    priority: int | None = None
    roles: tuple[_Role, ...] = ()


def admit(context: Context, obj: dict[str, Any], old: Obj | None = None) -> list[Problem]:
    """Give a job the priority of its class, and return each PriorityClass that it names and that
    is not there, and each priority that its pods would be refused for.

    With `old`, only what changed is looked at. A job that does not decode has other troubles,
    which others tell.
    """
    try:
        spec = msgspec.convert(obj.get("spec") or {}, _Spec)
        before = None if old is None else msgspec.convert(old.get("spec") or {}, _Spec)
    except msgspec.ValidationError:
        return []
    if spec.priority_class_name and spec.priority is None:
        value = _value(context, spec.priority_class_name)
        if value is not None:
            obj["spec"] = {**obj["spec"], "priority": value}
    if before is not None and (spec.roles, spec.priority_class_name) == (
        before.roles, before.priority_class_name
    ):  # fmt: skip
        return []
    return list(_problems(context, spec))


def _problems(context: Context, spec: _Spec) -> Iterator[Problem]:
    if spec.priority_class_name and _value(context, spec.priority_class_name) is None:
        yield _unknown("spec.priorityClassName", spec.priority_class_name)
    for i, role in enumerate(spec.roles):
        pod, path = role.template.spec, f"spec.roles[{i}].template.spec"
        name = pod.priority_class_name
        if name and _value(context, name) is None:
            yield _unknown(f"{path}.priorityClassName", name)
            continue
        value = _value(context, name or spec.priority_class_name)
        if pod.priority is not None and value is not None and pod.priority != value:
            why = f"it follows from the PriorityClass and is {value}; leave it out"
            yield Problem(f"{path}.priority", ProblemType.INVALID, why, pod.priority)


def _unknown(path: str, name: str) -> Problem:
    why = "there is no such PriorityClass; kubectl get priorityclasses lists those there are"
    return Problem(path, ProblemType.INVALID, why, name)


def _value(context: Context, name: str) -> int | None:
    """Return the value of a class, of the default one for ""; None when there is none by a name."""
    table = builtins.PRIORITY_CLASSES.name
    if name:
        record = context.store.latest(table, ("", name))
        return None if record is None else record.typed(core.PriorityClass).value
    classes = (record.typed(core.PriorityClass) for record in context.store.records(table))
    return min((each.value for each in classes if each.global_default), default=0)
