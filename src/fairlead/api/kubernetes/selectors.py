"""Label and field selectors: parse the text form, match against plain values.

Grammar: apimachinery `pkg/labels/selector.go` and `pkg/fields/selector.go`. `!=` and `notin` match
objects that lack the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fairlead.api.kubernetes.core import NodeSelector, NodeSelectorRequirement
from fairlead.api.meta import LabelSelector
from fairlead.api.values.bounds import label_integer

_SET = re.compile(r"^(?P<key>[^\s!=(),]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^\s!=(),]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^\s!=(),]*)$")
_EXISTS = re.compile(r"^(?P<not>!?)\s*(?P<key>[^\s!=(),]+)$")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class SelectorError(ValueError):
    """The text is no selector; the message says where."""


class Operator(Enum):
    """Operators of one requirement."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    NOT_EXISTS = "!"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term; all terms of a selector must hold. `values` is sorted."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True when the labels satisfy this term."""
        if self.operator is Operator.EXISTS:
            return self.key in labels
        if self.operator is Operator.NOT_EXISTS:
            return self.key not in labels
        if self.operator is Operator.IN:
            return labels.get(self.key) in self.values
        return labels.get(self.key) not in self.values


@dataclass(frozen=True, slots=True)
class Selector:
    """A conjunction; the empty one matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True when every term holds."""
        return all(r.matches(labels) for r in self.requirements)

    def __bool__(self) -> bool:
        return bool(self.requirements)


EVERYTHING = Selector()
#: The operators of label selectors in objects.
OPERATORS: Mapping[str, Operator] = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.NOT_EXISTS,
}


def selector_of(selector: LabelSelector | None) -> Selector:
    """Compile a label selector; none selects everything. KeyError for an unknown operator."""
    if selector is None:
        return EVERYTHING
    terms = [
        Requirement(key, Operator.IN, (value,))
        for key, value in sorted(selector.match_labels.items())
    ]
    for term in selector.match_expressions:
        values = tuple(sorted(term.values))
        terms.append(Requirement(term.key, OPERATORS[term.operator], values))
    return Selector(tuple(terms))


def selects_node(selector: NodeSelector, labels: Mapping[str, str], name: str) -> bool:
    """True when a node fulfils one of the terms: `nodeaffinity.NodeSelector.Match`."""
    return any(
        bool(term.match_expressions or term.match_fields)
        and all(_node_has(each, labels) for each in term.match_expressions)
        and all(_node_has(each, {"metadata.name": name}) for each in term.match_fields)
        for term in selector.node_selector_terms
    )


def _node_has(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    if requirement.operator in OPERATORS:
        known = Requirement(requirement.key, OPERATORS[requirement.operator], requirement.values)
        return known.matches(labels)
    value = label_integer(labels.get(requirement.key, ""))
    bound = label_integer(requirement.values[0]) if len(requirement.values) == 1 else None
    if value is None or bound is None:
        return False
    return value > bound if requirement.operator == "Gt" else value < bound


def is_qualified_name(text: str) -> bool:
    """True for a label key: an optional DNS prefix and "/", then at most 63 name characters."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix)):
        return False
    return bool(_NAME.fullmatch(name))


def is_label_value(text: str) -> bool:
    """True for a label value: empty, or at most 63 name characters."""
    return text == "" or bool(_NAME.fullmatch(text))


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part.strip() for part in parts]


def _requirement(part: str) -> Requirement:
    if match := _SET.match(part):
        values = tuple(sorted(v.strip() for v in match["values"].split(",")))
        return Requirement(match["key"], Operator(match["op"]), values)
    if match := _EQUAL.match(part):
        operator = Operator.NOT_IN if match["op"] == "!=" else Operator.IN
        return Requirement(match["key"], operator, (match["value"],))
    if match := _EXISTS.match(part):
        return Requirement(match["key"], Operator.NOT_EXISTS if match["not"] else Operator.EXISTS)
    raise SelectorError(
        f"unable to parse requirement '{part}': want key, !key, key=value, key!=value, "
        "key in (a,b) or key notin (a,b)"
    )


def parse_labels(text: str) -> Selector:
    """Parse a label selector; SelectorError names the term that is wrong."""
    if not text.strip():
        return EVERYTHING
    requirements = tuple(_requirement(part) for part in _split(text))
    for requirement in requirements:
        if not is_qualified_name(requirement.key):
            raise SelectorError(f"'{requirement.key}' is not a label key")
        for value in requirement.values:
            if not is_label_value(value):
                raise SelectorError(f"'{value}' is not a label value")
    return Selector(requirements)


def parse_fields(text: str) -> Selector:
    """Parse a field selector: only =, == and !=; SelectorError names the term that is wrong."""
    if not text.strip():
        return EVERYTHING
    out: list[Requirement] = []
    for part in _split(text):
        match = _EQUAL.match(part)
        if match is None:
            raise SelectorError(
                f"invalid field selector '{part}': want field=value or field!=value"
            )
        operator = Operator.NOT_IN if match["op"] == "!=" else Operator.IN
        out.append(Requirement(match["key"], operator, (match["value"],)))
    return Selector(tuple(out))
