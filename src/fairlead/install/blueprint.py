"""Manifests with blanks, and two readers of them (pure).

A blueprint is a tree of plain values in which some leaves are blanks: a value (`Ref`), a text made
of values (`Text`), something that is there only sometimes (`When`). `resolve` fills the blanks in,
for `fairlead install`; `template` writes the same tree as a Helm template, which fills them in
later. So the chart and the command cannot differ: there is nothing to keep equal by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, assert_never

from fairlead.input.yamlmarks import plain_scalar

Plain = Any  # None, bool, int, str, list, dict
Blueprint = Any  # as Plain, with the nodes below among its leaves, items and entries


@dataclass(frozen=True, slots=True)
class Ref:
    """The value at a path such as `image.tag`."""

    path: str


class Release(Enum):
    """What is known of the release; the value is Helm's name for it."""

    NAME = "Name"
    NAMESPACE = "Namespace"
    SERVICE = "Service"


@dataclass(frozen=True, slots=True)
class Text:
    """Texts and references, one after the other."""

    parts: tuple[str | Ref | Release, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """True when the value is not empty; with `equals`, when it is that."""

    path: str
    equals: str = ""


@dataclass(frozen=True, slots=True)
class _Absent:
    """Nothing: the entry or item is left out."""


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class When:
    """`body` when the test holds, else `otherwise`."""

    test: Given
    body: Blueprint
    otherwise: Blueprint = ABSENT


@dataclass(frozen=True, slots=True)
class Spread:
    """In a list: all items of a value. As an entry's value: its entries beside the others."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Json:
    """The value at a path as a JSON document: one text."""

    path: str


@dataclass(frozen=True, slots=True)
class JsonChecksum:
    """SHA-256 of the text of `Json`, in hexadecimal."""

    path: str


@dataclass(frozen=True, slots=True)
class ChartOnly:
    """A template expression that only a chart can have."""

    expression: str


@dataclass(frozen=True, slots=True)
class Context:
    """What fills the blanks: the values in their plain form, and the release."""

    values: Mapping[str, Any]
    namespace: str
    release: str = "fairlead"
    service: str = "fairlead"


def look_up(values: Mapping[str, Any], path: str) -> Plain:
    """Return the value at a path; KeyError when the blueprint names one that does not exist."""
    found: Any = values
    for part in path.split("."):
        found = found[part]
    return found


# For the command


def holds(test: Given, context: Context) -> bool:
    """True when the test holds."""
    value = look_up(context.values, test.path)
    return value == test.equals if test.equals else bool(value)


def resolve(node: Blueprint, context: Context) -> Plain:
    """Return the tree with all blanks filled in; ABSENT for nothing."""
    if isinstance(node, dict):
        return _resolve_entries(node, context)
    if isinstance(node, list):
        return _resolve_items(node, context)
    match node:
        case Ref(path):
            return look_up(context.values, path)
        case Release():
            return _of_release(node, context)
        case Text(parts):
            return "".join(p if isinstance(p, str) else str(resolve(p, context)) for p in parts)
        case When(test, body, otherwise):
            return resolve(body if holds(test, context) else otherwise, context)
        case Json(path):
            return _json(look_up(context.values, path))
        case JsonChecksum(path):
            text = _json(look_up(context.values, path))
            return hashlib.sha256(text.encode()).hexdigest()
        case ChartOnly():
            return ABSENT
        case _:
            return node


def _json(value: Plain) -> str:
    """Return what Helm's `toJson` makes of a value of texts without <, > and &, and of integers."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _resolve_entries(node: dict[str, Blueprint], context: Context) -> dict[str, Plain]:
    entries: dict[str, Plain] = {}
    for key, value in node.items():
        if isinstance(value, Spread):
            entries |= look_up(context.values, value.ref.path)
        elif (resolved := resolve(value, context)) is not ABSENT:
            entries[key] = resolved
    return entries


def _resolve_items(node: list[Blueprint], context: Context) -> list[Plain]:
    items: list[Plain] = []
    for item in node:
        if isinstance(item, Spread):
            items += look_up(context.values, item.ref.path)
        elif (resolved := resolve(item, context)) is not ABSENT:
            items.append(resolved)
    return items


def _of_release(which: Release, context: Context) -> str:
    match which:
        case Release.NAME:
            return context.release
        case Release.NAMESPACE:
            return context.namespace
        case Release.SERVICE:
            return context.service
        case _:
            assert_never(which)


# For the chart

_SAFE = re.compile(r"^[A-Za-z/][A-Za-z0-9_./-]*$")
#: What YAML 1.1, which Helm reads, takes for a boolean.
_BOOLEANS = frozenset({"y", "n", "yes", "no", "on", "off"})


@dataclass(slots=True)
class _Writer:
    """Writes lines. `defaults` tell which values are collections."""

    defaults: Mapping[str, Any]
    lines: list[str] = field(default_factory=list[str])

    def put(self, indent: int, text: str) -> None:
        self.lines.append(" " * indent + text)

    def entries(self, node: dict[str, Blueprint], indent: int) -> None:
        for key, value in node.items():
            self.entry(key, value, indent)

    def entry(self, key: str, value: Blueprint, indent: int) -> None:
        name = _scalar(key)
        if isinstance(value, When):

            def write(body: Blueprint) -> None:
                self.entry(key, body, indent)

            self._either(value, indent, write)
        elif isinstance(value, Spread):
            self._spread(value, indent)
        elif isinstance(value, Ref) and self._is_collection(value):
            self.put(indent, f"{name}:")
            self.put(indent + 2, f"{{{{- toYaml .Values.{value.path} | nindent {indent + 2} }}}}")
        elif isinstance(value, dict) and value:
            self.put(indent, f"{name}:")
            self.entries(value, indent + 2)
        elif isinstance(value, list) and value:
            self.put(indent, f"{name}:")
            self.items(value, indent)
        else:
            self.put(indent, f"{name}: {self.inline(value)}")

    def items(self, node: list[Blueprint], indent: int) -> None:
        for item in node:
            self.item(item, indent)

    def item(self, item: Blueprint, indent: int) -> None:
        if isinstance(item, When):

            def write(body: Blueprint) -> None:
                self.item(body, indent)

            self._either(item, indent, write)
        elif isinstance(item, Spread):
            self._spread(item, indent)
        elif isinstance(item, dict) and item:
            start = len(self.lines)
            self.entries(item, indent + 2)
            first = self.lines[start]
            assert not first.lstrip().startswith("{{"), "an item begins with what is always there"
            self.lines[start] = f"{' ' * indent}- {first[indent + 2 :]}"
        else:
            self.put(indent, f"- {self.inline(item)}")

    def inline(self, value: Blueprint) -> str:
        match value:
            case Ref(path):
                return f"{{{{ .Values.{path} | toJson }}}}"
            case Release():
                return f"{{{{ .Release.{value.value} | toJson }}}}"
            case Json(path):
                return f"{{{{ .Values.{path} | toJson | toJson }}}}"
            case JsonChecksum(path):
                return f"{{{{ .Values.{path} | toJson | sha256sum }}}}"
            case ChartOnly(expression):
                return f"{{{{ {expression} | toJson }}}}"
            case Text(parts):
                return f"{{{{ {_printf(parts)} | toJson }}}}"
            case _:
                return _scalar(value)

    def _either(self, node: When, indent: int, write: Callable[[Blueprint], None]) -> None:
        self.put(indent, f"{{{{- if {condition(node.test)} }}}}")
        write(node.body)
        if node.otherwise is not ABSENT:
            self.put(indent, "{{- else }}")
            write(node.otherwise)
        self.put(indent, "{{- end }}")

    def _spread(self, node: Spread, indent: int) -> None:
        self.put(indent, f"{{{{- with .Values.{node.ref.path} }}}}")
        self.put(indent, f"{{{{- toYaml . | nindent {indent} }}}}")
        self.put(indent, "{{- end }}")

    def _is_collection(self, ref: Ref) -> bool:
        return isinstance(look_up(self.defaults, ref.path), (dict, list))


def condition(test: Given) -> str:
    """Return a test as a template's condition."""
    return f'eq .Values.{test.path} "{test.equals}"' if test.equals else f".Values.{test.path}"


def _printf(parts: tuple[str | Ref | Release, ...]) -> str:
    pattern, arguments = "", ""
    for part in parts:
        match part:
            case str():
                pattern += part.replace("%", "%%")
            case Ref(path):
                pattern += "%v"
                arguments += f" .Values.{path}"
            case Release():
                pattern += "%v"
                arguments += f" .Release.{part.value}"
            case _:
                assert_never(part)
    return f"printf {json.dumps(pattern)}{arguments}"


def _scalar(value: Plain) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = _SAFE.match(value) and isinstance(plain_scalar(value), str)
    if is_plain and value.lower() not in _BOOLEANS:
        return value
    return json.dumps(value, ensure_ascii=False).replace("{{", '{{ "{{" }}')


def template(node: dict[str, Blueprint], defaults: Mapping[str, Any]) -> str:
    """Return a tree as the text of a Helm template."""
    writer = _Writer(defaults)
    writer.entries(node, 0)
    return "\n".join(writer.lines) + "\n"
