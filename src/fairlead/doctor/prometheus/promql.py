"""Which metrics a PromQL expression reads (pure).

A tokenizer, no parser: what is a name and followed by neither `(` nor a keyword's argument is a
metric. Where in doubt a name counts as used, as only unused metrics may be dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<number>\d[\w.]*)"""
    r"""|(?P<name>[a-zA-Z_:$][a-zA-Z0-9_:$]*)"""
    r"""|(?P<mark>=~|!~|!=|[{}()\[\],=])"""
)
#: Keywords whose list in parentheses has labels.
_LABEL_LISTS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_KEYWORDS = frozenset((
    "and", "or", "unless", "bool", "offset", "inf", "nan", "start", "end", "sum", "avg", "min",
    "max", "count", "group", "stddev", "stdvar", "topk", "bottomk", "count_values", "quantile",
    *_LABEL_LISTS,
))  # fmt: skip
_NAME = "__name__"
_VARIABLE = re.compile(r"\$\{?\w+(?::\w+)?\}?|\[\[\w+\]\]")


@dataclass(frozen=True, slots=True)
class Uses:
    """What expressions read: names, patterns of names, and expressions that may read anything."""

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()

    def uses(self, metric: str) -> bool:
        """True when an expression names the metric."""
        return metric in self.names or any(re.fullmatch(each, metric) for each in self.patterns)


def uses_of(expressions: Iterable[str]) -> Uses:
    """Return what the expressions read together."""
    names: set[str] = set()
    patterns: set[str] = set()
    unnamed: list[str] = []
    for expression in expressions:
        found, regexes, is_unnamed = _read(expression)
        names |= found
        patterns |= regexes
        if is_unnamed:
            unnamed.append(expression)
    return Uses(frozenset(names), tuple(sorted(patterns)), tuple(unnamed))


def _read(expression: str) -> tuple[set[str], set[str], bool]:
    names: set[str] = set()
    patterns: set[str] = set()
    is_unnamed = False
    text = _VARIABLE.sub("$", expression)
    parts = [(m.lastgroup or "", m[0], m.end()) for m in _TOKEN.finditer(text)
              if m.lastgroup != "comment"]  # fmt: skip
    at = 0
    while at < len(parts):
        kind, part, end = parts[at]
        following = parts[at + 1][1] if at + 1 < len(parts) else ""
        if part.lower() in _LABEL_LISTS and following == "(":
            at = _after(parts, at + 1, ")")
            continue
        if part == "{":
            close = _after(parts, at, "}")
            named, regexes = _matchers(parts[at + 1 : close - 1])
            has_name = at > 0 and parts[at - 1][0] == "name"
            is_unnamed |= not (named or regexes or has_name)
            names |= named
            patterns |= regexes
            at = close
            continue
        if part == "[":
            at = _after(parts, at, "]")
            continue
        rest = text[end:].lstrip()
        if kind == "name" and part.lower() not in _KEYWORDS and not rest.startswith("("):
            if "$" in part:
                patterns.add(re.escape(part).replace(r"\$", ".*"))
            else:
                names.add(part)
        at += 1
    return names, patterns, is_unnamed


def _after(parts: list[tuple[str, str, int]], at: int, close: str) -> int:
    while at < len(parts) and parts[at][1] != close:
        at += 1
    return at + 1


def _matchers(parts: list[tuple[str, str, int]]) -> tuple[set[str], set[str]]:
    """Return names and patterns of names in the matchers of a selector."""
    names: set[str] = set()
    patterns: set[str] = set()
    for number, (kind, part, _) in enumerate(parts):
        before = parts[number - 1][1] if number else ","
        if kind == "text" and before == ",":  # {"metric.name", ...}
            names.add(part[1:-1])
        if part != _NAME or number + 2 >= len(parts):
            continue
        operator, value = parts[number + 1][1], parts[number + 2][1][1:-1]
        if operator == "=" and "$" not in value:
            names.add(value)
        elif operator in ("=", "=~"):
            pattern = value.replace("$", ".*") if operator == "=~" else ".*"
            patterns.add(pattern if _compiles(pattern) else ".*")
        else:
            patterns.add(".*")
    return names, patterns


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
