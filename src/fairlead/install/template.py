"""Renders the templates of the Helm chart for `fairlead install` (pure).

The chart is the one source of the manifests. Its templates use a small part of Helm's language, and
this module evaluates that part: actions on lines of their own (`if`, `else`, `end`, `with`,
`define`), and expressions of `eq`, `ne`, `printf`, `include`, `toJson`, `toYaml`, `nindent` and
`sha256sum`. Everything else is an error, never text that passes through. A test renders the same
values with the real helm and compares the objects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.input.yamlwrite import to_yaml

_ACTION = re.compile(r"\s*\{\{- (if|with|else|end|define)(?: (.*?))? -?\}\}")
_EXPRESSION = re.compile(r"\{\{-?\s*(.*?)\s*\}\}")
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"|]+|\|')


class TemplateError(Exception):
    """A template uses something that this module does not evaluate."""


def render(text: str, values: Mapping[str, Any], definitions: str = "") -> str:
    """Return what Helm makes of a template.

    `values` has what the template calls `.Values`, `.Release` and `.Chart`; `definitions` is the
    text of the named templates that it includes. TemplateError for what is not supported, KeyError
    for a value that does not exist.
    """
    named: dict[str, list[str]] = {}
    lines = iter(definitions.splitlines())
    for line in lines:
        if (action := _ACTION.fullmatch(line)) and action[1] == "define":
            named[json.loads(action[2])] = list(_until_end(lines))
    return "".join(f"{line}\n" for line in _Renderer(named).lines(text.splitlines(), values))


def _until_end(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines up to the `end` of the action that was opened before them."""
    depth = 1
    for line in lines:
        if action := _ACTION.fullmatch(line):
            depth += {"end": -1, "else": 0}.get(action[1], 1)
            if not depth:
                return
        yield line
    raise TemplateError("an action has no end")


class _Renderer:
    def __init__(self, named: Mapping[str, list[str]]) -> None:
        self._named = named

    def lines(self, lines: list[str], dot: Any) -> Iterator[str]:
        rest = iter(lines)
        for line in rest:
            action = _ACTION.fullmatch(line)
            if action is None:
                yield from self._line(line, dot)
                continue
            word, argument = action.groups()
            if word not in ("if", "with"):
                raise TemplateError(f"unexpected {line.strip()}")
            body, otherwise = _branches(list(_until_end(rest)))
            if value := self._value(argument, dot):
                yield from self.lines(body, value if word == "with" else dot)
            else:
                yield from self.lines(otherwise, dot)

    def _line(self, line: str, dot: Any) -> Iterator[str]:
        whole = _EXPRESSION.fullmatch(line.strip())
        if whole and line.strip().startswith("{{-"):
            yield from str(self._value(whole[1], dot)).splitlines()
        else:
            yield _EXPRESSION.sub(lambda found: str(self._value(found[1], dot)), line)

    def _value(self, expression: str, dot: Any) -> Any:
        """Return the value of a pipeline; each stage gets the one before as its last argument."""
        stages: list[list[str]] = [[]]
        for word in _WORD.findall(expression):
            if word == "|":
                stages.append([])
            else:
                stages[-1].append(word)
        first = stages.pop(0)
        value = _term(first[0], dot) if len(first) == 1 else self._call(first, dot)
        for stage in stages:
            value = self._call(stage, dot, value)
        return value

    def _call(self, stage: list[str], dot: Any, *last: Any) -> Any:
        arguments = [*(_term(each, dot) for each in stage[1:]), *last]
        match stage[0], arguments:
            case "include", [str(name), value]:
                return "\n".join(self.lines(self._named[name], value))
            case "eq", [left, right]:
                return left == right
            case "ne", [left, right]:
                return left != right
            case "printf", [str(pattern), *values]:
                return re.sub("%v", "%s", pattern) % tuple(values)
            case "toJson", [value]:
                return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
            case "toYaml", [value]:
                return to_yaml(value).removesuffix("\n")
            case "nindent", [int(width), str(text)]:
                return "\n".join(" " * width + line for line in text.splitlines())
            case "sha256sum", [str(text)]:
                return hashlib.sha256(text.encode()).hexdigest()
            case _:
                raise TemplateError(f"'{' '.join(stage)}' is not supported")


def _branches(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines before and after the `else` of an action."""
    depth = 0
    for index, line in enumerate(lines):
        if action := _ACTION.fullmatch(line):
            if action[1] == "else" and not depth:
                return lines[:index], lines[index + 1 :]
            depth += {"end": -1, "else": 0}.get(action[1], 1)
    return lines, []


def _term(word: str, dot: Any) -> Any:
    """Return a literal, or the value at a path below the current one (`.`)."""
    if not word.startswith("."):
        try:
            return json.loads(word)
        except ValueError:
            raise TemplateError(f"'{word}' is not supported") from None
    for part in filter(None, word.split(".")):
        dot = dot[part]
    return dot
