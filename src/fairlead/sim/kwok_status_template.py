"""What the status template of a KWOK Stage says, read line by line and never run.

A template is Go template text that becomes YAML. The lines that count are the same in both: the
phase, the state of the containers, the conditions that become true. A value may be a variable whose
default stands in the template, or an annotation with a default. All branches are read alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_KEY = re.compile(r"(?:- +)?([$\w/]+):(?:[ \t]+(.*))?")
_ANNOTATION = re.compile(r"or ?\( ?index \$?\.?[\w.]+ \"([^\"]+)\" ?\) ?(.*)")
_SECTIONS = ("conditions", "containerStatuses", "initContainerStatuses")
_STATES = ("running", "terminated", "waiting")
_STEPS_MAX = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of a template. `offset` counts lines from the template's first, which is 0.

    `text` is None when it cannot be known; `annotation` names one that replaces it on a pod.
    """

    offset: int
    text: str | None
    annotation: str = ""


@dataclass(slots=True)
class StatusText:
    """What the lines of a template say."""

    phases: list[Entry] = field(default_factory=list[Entry])
    #: Top-level keys, and `SECTION.STATE` for each state of a container.
    keys: set[str] = field(default_factory=set[str])
    #: Types of the conditions that become true; "" for one that the template computes.
    true_conditions: set[str] = field(default_factory=set[str])
    #: Exit codes, reasons and messages of ended containers, and of the pod itself.
    exit_codes: list[Entry] = field(default_factory=list[Entry])
    reasons: list[Entry] = field(default_factory=list[Entry])
    messages: list[Entry] = field(default_factory=list[Entry])


def read_template(text: str) -> StatusText:
    """Return what a template says; lines that say nothing of a pod's state are passed over."""
    lines = [(line.strip(), len(line) - len(line.lstrip())) for line in text.splitlines()]
    base = min((indent for line, indent in lines if line and line[:2] != "{{"), default=0)
    found = StatusText()
    variables: dict[str, str] = {}
    section = state = ""
    condition: dict[str, str | None] = {}
    for offset, (line, indent) in enumerate(lines):
        if (code := _code(line)) is not None:
            name, is_set, value = code.replace(":=", "=").partition("=")
            if is_set and name.strip().startswith("$"):
                variables.setdefault(name.strip(), value.strip())
            continue
        if line.startswith("-"):
            state, condition = "", {}
        if (match := _KEY.fullmatch(line)) is None:
            continue
        key, value = match[1], match[2] or ""
        entry = _entry(offset, value, variables)
        if indent == base and line[0] != "-":
            section, state = key, ""
            found.keys.add(key)
            lists = {"phase": found.phases, "reason": found.reasons, "message": found.messages}
            if key in lists:
                lists[key].append(entry)
        elif section == "conditions" and key in ("status", "type"):
            condition[key] = entry.text
            if condition.get("status") == "True" and "type" in condition:
                found.true_conditions.add(condition["type"] or "")
        elif section in _SECTIONS and key in _STATES:
            state = key
            found.keys.add(f"{section}.{state}")
        elif state == "terminated":
            lists = {"exitCode": found.exit_codes, "reason": found.reasons,
                     "message": found.messages}  # fmt: skip
            if key in lists and entry not in lists[key]:
                lists[key].append(entry)
    return found


def _code(text: str) -> str | None:
    """Return what stands in a line that is one action of the template; None for other lines."""
    is_action = text.startswith("{{") and text.find("}}") == len(text) - 2
    return text[2:-2].strip("- \t") if is_action else None


def _entry(offset: int, value: str, variables: dict[str, str]) -> Entry:
    text, annotation = _code(value), ""
    if text is None:
        is_literal = "{{" not in value
        return Entry(offset, value.strip("\"'") if is_literal else None)
    for _ in range(_STEPS_MAX):
        text = text.removesuffix("| Quote").strip()
        if (match := _ANNOTATION.fullmatch(text)) is not None:
            annotation, text = match[1], match[2]
        elif text in variables:
            text = variables[text]
        else:
            is_literal = text.isdigit() or (text[:1] == text[-1:] == '"' and text.count('"') == 2)
            return Entry(offset, text.strip('"') if is_literal else None, annotation)
    return Entry(offset, None)
