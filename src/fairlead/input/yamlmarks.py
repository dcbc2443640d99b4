"""YAML as plain values that remember where they stood: line and column of each (pure).

Built from the parser's events, not from composed nodes: nothing here recurses, so depth, size and
the growth by aliases are limited by counting, before any memory is spent. Scalars are read by the
core schema of YAML 1.2 (true, null, 12, 0x1f, 1.5): `no`, `on` and `12:30` are texts, as people
expect.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

BYTES_MAX = 4 << 20
DEPTH_MAX = 64
NODES_MAX = 200_000
DOCUMENTS_MAX = 1_000

_INT = re.compile(r"^[+-]?[0-9]{1,19}$")
_OCTAL = re.compile(r"^0o[0-7]{1,21}$")
_HEX = re.compile(r"^0x[0-9a-fA-F]{1,16}$")
_FLOAT = re.compile(r"^[+-]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][+-]?[0-9]{1,3})?$")
_CONSTANTS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_TAG = "tag:yaml.org,2002:"

Scalar: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True, order=True)
class YamlMark:
    """A place in a file, both counted from 1."""

    line: int
    column: int


@dataclass(slots=True)
class YamlValue:
    """A value and its mark; `keys` are the marks of a mapping's keys."""

    mark: YamlMark
    scalar: Scalar = None
    mapping: dict[str, YamlValue] | None = None
    sequence: list[YamlValue] | None = None
    keys: dict[str, YamlMark] = field(default_factory=dict[str, YamlMark])
    size: int = 1  # values in it, aliases counted as often as they are used
    height: int = 0  # levels below it

    @property
    def is_null(self) -> bool:
        """True for an empty value."""
        return self.scalar is None and self.mapping is None and self.sequence is None


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something wrong with the text itself. `key` is set when a key is given twice."""

    mark: YamlMark
    message: str
    help: str = ""
    key: str = ""


class YamlTooLarge(Exception):
    """A limit was passed; the message names it."""


@dataclass(slots=True)
class _Frame:
    """A collection being read; `key` is the key whose value comes next."""

    value: YamlValue
    anchor: str | None
    key: str | None = None
    key_mark: YamlMark | None = None
    has_key: bool = False


class _Builder:
    """Turns parser events into documents."""

    def __init__(self) -> None:
        self.documents: list[YamlValue] = []
        self.mistakes: list[Mistake] = []
        self._frames: list[_Frame] = []
        self._anchors: dict[str, YamlValue] = {}
        self._count = 0

    def feed(self, event: Any) -> None:
        """Take one event; TooLarge when a limit is passed."""
        mark = YamlMark(event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.DocumentStartEvent):
            self._anchors = {}
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), mark)
        elif isinstance(event, yaml.ScalarEvent):
            value = YamlValue(mark, scalar=self._scalar(event, mark))
            if event.anchor:
                self._anchors[event.anchor] = value
            self._add(value, 1, event.value)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            value = YamlValue(mark, mapping={}) if is_mapping else YamlValue(mark, sequence=[])
            self._check_depth(mark, 1)
            self._frames.append(_Frame(value, event.anchor))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            frame = self._frames.pop()
            if frame.anchor:
                self._anchors[frame.anchor] = frame.value
            self._add(frame.value, 1, "")

    def _alias(self, anchor: str, mark: YamlMark) -> None:
        target = self._anchors.get(anchor)
        if target is None:
            self.mistakes.append(Mistake(mark, f"alias '*{anchor}' refers to no anchor before it"))
            target = YamlValue(mark)
        self._check_depth(mark, target.height)
        self._add(target, target.size, str(target.scalar))

    def _check_depth(self, mark: YamlMark, levels: int) -> None:
        if len(self._frames) + levels > DEPTH_MAX:
            raise YamlTooLarge(f"line {mark.line}: nested more than {DEPTH_MAX} levels deep")

    def _add(self, value: YamlValue, new: int, text: str) -> None:
        """Put a finished value, which adds `new` to the count, where it belongs."""
        self._count += new
        if self._count > NODES_MAX:
            raise YamlTooLarge(f"more than {NODES_MAX:,} values, aliases counted as often as used")
        if not self._frames:
            if len(self.documents) >= DOCUMENTS_MAX:
                raise YamlTooLarge(f"more than {DOCUMENTS_MAX:,} documents")
            self.documents.append(value)
            return
        frame = self._frames[-1]
        if frame.value.sequence is not None:
            frame.value.sequence.append(value)
            _grow(frame.value, value)
        elif not frame.has_key:
            is_scalar = value.mapping is None and value.sequence is None
            self._key(frame, value, text if is_scalar else None)
        else:
            self._entry(frame, value)

    def _key(self, frame: _Frame, value: YamlValue, text: str | None) -> None:
        frame.has_key = True
        frame.key_mark = value.mark
        frame.key = text
        if frame.key is None:
            self.mistakes.append(Mistake(value.mark, "a key must be a text"))
        elif frame.key == "<<":
            frame.key = None
            self.mistakes.append(
                Mistake(value.mark, "merge keys ('<<') are not supported", "write the fields out")
            )

    def _entry(self, frame: _Frame, value: YamlValue) -> None:
        key, mark = frame.key, frame.key_mark
        frame.has_key = False
        assert frame.value.mapping is not None
        assert mark is not None
        if key is None:
            return
        if key in frame.value.mapping:
            first = frame.value.keys[key].line
            message = f"'{key}' is given twice; it is on line {first} already"
            self.mistakes.append(Mistake(mark, message, "keep one of the two", key=key))
            return
        frame.value.mapping[key] = value
        frame.value.keys[key] = mark
        _grow(frame.value, value)

    def _scalar(self, event: Any, mark: YamlMark) -> Scalar:
        text: str = event.value
        tag = str(event.tag or "")
        if tag and tag not in ("!", f"{_TAG}str", f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool",
                               f"{_TAG}null"):  # fmt: skip
            self.mistakes.append(Mistake(mark, f"tag '{tag}' is not supported", "leave it out"))
            return text
        if tag in ("!", f"{_TAG}str") or not event.implicit[0]:
            return text
        return plain_scalar(text)


def _grow(parent: YamlValue, child: YamlValue) -> None:
    parent.size += child.size
    parent.height = max(parent.height, child.height + 1)


def plain_scalar(text: str) -> Scalar:
    """Return what an unquoted scalar means by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.match(text):
        return int(text)
    if _OCTAL.match(text):
        return int(text, 8)
    if _HEX.match(text):
        return int(text, 16)
    if _FLOAT.match(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _events(text: str) -> Iterator[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return iter(yaml.parse(text, Loader=loader))


def read_documents(text: str) -> tuple[list[YamlValue], list[Mistake]]:
    """Return the documents of a text, empty ones left out, and what is wrong with the text.

    After a mistake of syntax the rest cannot be read; duplicate keys and the like are all
    collected. TooLarge when a limit is passed.
    """
    builder = _Builder()
    try:
        for event in _events(text):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        builder.mistakes.append(_syntax(error, text))
    except yaml.YAMLError as error:
        builder.mistakes.append(_unreadable(error, text))
    return [d for d in builder.documents if not d.is_null], builder.mistakes


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Mistake:
    at = error.problem_mark or error.context_mark
    mark = YamlMark(at.line + 1, at.column + 1) if at else YamlMark(1, 1)
    lines = text.splitlines()
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent:
        column = indent.index("\t") + 1
        return Mistake(YamlMark(mark.line, column), "a tab indents this line", "indent with spaces")
    if "nesting" in str(error.problem) or "depth" in str(error.problem):
        raise YamlTooLarge(f"line {mark.line}: nested more than {DEPTH_MAX} levels deep")
    context = f" {error.context}" if error.context else ""
    return Mistake(mark, f"not YAML: {error.problem}{context}".replace("\n", " "))


def _unreadable(error: yaml.YAMLError, text: str) -> Mistake:
    position = getattr(error, "position", None)
    if isinstance(position, int) and position <= len(text):
        before = text[:position]
        line = before.count("\n") + 1
        column = position - (before.rfind("\n") + 1) + 1
        return Mistake(YamlMark(line, column), "a control character, which YAML does not allow")
    return Mistake(YamlMark(1, 1), f"not YAML: {str(error).splitlines()[0]}")


def to_plain(value: YamlValue) -> Any:
    """Return the value as dict, list and scalars."""
    if value.mapping is not None:
        return {key: to_plain(item) for key, item in value.mapping.items()}
    if value.sequence is not None:
        return [to_plain(item) for item in value.sequence]
    return value.scalar


_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)|\.?\[\"?'?([^\]\"']+)'?\"?\]")


def locate(value: YamlValue, path: str) -> tuple[YamlMark, YamlValue | None]:
    """Return where a field path such as `spec.roles[0].count` stands, and the value there.

    For a mapping's entry the place is its key's, for a list's the item's. When there is no such
    field, the place is its nearest parent's and the value is None.
    """
    mark = value.mark
    for index, name, quoted in _STEP.findall(path):
        if index and value.sequence is not None and int(index) < len(value.sequence):
            value = value.sequence[int(index)]
            mark = value.mark
            continue
        key = name or quoted or index
        if value.mapping is None or key not in value.mapping:
            return mark, None
        mark = value.keys[key]
        value = value.mapping[key]
    return mark, value
