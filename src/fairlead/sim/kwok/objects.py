"""KWOK's Stage objects, as far as they concern pods (its `pkg/apis/v1alpha1/stage_types.go`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from fairlead.api.values.sections import Section

API_VERSION = "kwok.x-k8s.io/v1alpha1"
_Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]


class KwokOperator(Enum):
    """How a value is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class KwokRequirement(Section, frozen=True):
    """One condition on a path in jq's language."""

    key: str
    operator: KwokOperator
    values: tuple[str, ...] = ()


class KwokSelector(Section, frozen=True):
    """Which pods; all conditions hold."""

    match_labels: dict[str, str] = {}
    match_annotations: dict[str, str] = {}
    match_expressions: tuple[KwokRequirement, ...] = ()


class KwokSource(Section, frozen=True):
    """A path in jq's language that a number comes from."""

    expression_from: str


class StageDelay(Section, frozen=True):
    """Evenly drawn between both durations."""

    duration_milliseconds: _Milliseconds = 0
    duration_from: KwokSource | None = None
    jitter_duration_milliseconds: _Milliseconds | None = None
    jitter_duration_from: KwokSource | None = None


class Finalizers(Section, frozen=True):
    """Changes of the finalizers."""

    add: tuple[dict[str, str], ...] = ()
    remove: tuple[dict[str, str], ...] = ()
    empty: bool = False


class KwokNext(Section, frozen=True):
    """What a stage does."""

    status_template: str = ""
    status_subresource: str = "status"
    status_patch_as: dict[str, str] = {}
    delete: bool = False
    finalizers: Finalizers = Finalizers()
    event: dict[str, str] = {}


class StageSpec(Section, frozen=True):
    """The stage proper."""

    resource_ref: dict[str, str]
    next: KwokNext
    selector: KwokSelector | None = None
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    weight_from: KwokSource | None = None
    delay: StageDelay = StageDelay()
    immediate_next_stage: bool = False


class KwokStage(Section, frozen=True):
    """One object of the file."""

    api_version: str
    kind: str
    metadata: dict[str, Any]
    spec: StageSpec
    status: dict[str, Any] = {}


# What the status template of a KWOK Stage says, read line by line and never run.
#
# A template is Go template text that becomes YAML. The lines that count are the same in both: the
# phase, the state of the containers, the conditions that become true. A value may be a variable
# whose default stands in the template, or an annotation with a default. All branches are read
# alike.


_KEY = re.compile(r"(?:- +)?([$\w/]+):(?:[ \t]+(.*))?")
_ANNOTATION = re.compile(r"or ?\( ?index \$?\.?[\w.]+ \"([^\"]+)\" ?\) ?(.*)")
_SECTIONS = ("conditions", "containerStatuses", "initContainerStatuses")
_STATES = ("running", "terminated", "waiting")
_STEPS_MAX = 20


@dataclass(frozen=True, slots=True)
class KwokEntry:
    """A value of a template. `offset` counts lines from the template's first, which is 0.

    `text` is None when it cannot be known; `annotation` names one that replaces it on a pod.
    """

    offset: int
    text: str | None
    annotation: str = ""


@dataclass(slots=True)
class StatusText:
    """What the lines of a template say."""

    phases: list[KwokEntry] = field(default_factory=list[KwokEntry])
    #: Top-level keys, and `SECTION.STATE` for each state of a container.
    keys: set[str] = field(default_factory=set[str])
    #: Types of the conditions that become true; "" for one that the template computes.
    true_conditions: set[str] = field(default_factory=set[str])
    #: Exit codes, reasons and messages of ended containers, and of the pod itself.
    exit_codes: list[KwokEntry] = field(default_factory=list[KwokEntry])
    reasons: list[KwokEntry] = field(default_factory=list[KwokEntry])
    messages: list[KwokEntry] = field(default_factory=list[KwokEntry])


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


def _entry(offset: int, value: str, variables: dict[str, str]) -> KwokEntry:
    text, annotation = _code(value), ""
    if text is None:
        is_literal = "{{" not in value
        return KwokEntry(offset, value.strip("\"'") if is_literal else None)
    for _ in range(_STEPS_MAX):
        text = text.removesuffix("| Quote").strip()
        if (match := _ANNOTATION.fullmatch(text)) is not None:
            annotation, text = match[1], match[2]
        elif text in variables:
            text = variables[text]
        else:
            is_literal = text.isdigit() or (text[:1] == text[-1:] == '"' and text.count('"') == 2)
            return KwokEntry(offset, text.strip('"') if is_literal else None, annotation)
    return KwokEntry(offset, None)


# How far a pod has come where a condition of a KWOK Stage holds, without running jq (pure)


Levels: TypeAlias = frozenset[int]

#: What a pod passes: 0 nothing written, 1 containers wait, 2 init containers run, 3 initialized,
#: 4 running but not ready, 5 ready, 6 ended.
PENDING, RUNNING, ENDED = frozenset(range(4)), frozenset({4, 5}), frozenset({6})
ALL = PENDING | RUNNING | ENDED
_WRITTEN = ALL - {0}
PHASES = {"Pending": PENDING, "Running": RUNNING, "Succeeded": ENDED, "Failed": ENDED}
_CONDITIONS = {
    "PodScheduled": ALL, "PodReadyToStartContainers": _WRITTEN, "Initialized": ALL - {0, 1, 2},
    "Ready": frozenset({5}), "ContainersReady": frozenset({5}),
}  # fmt: skip
_CONTAINERS = {
    "initContainerStatuses": _WRITTEN, "containerStatuses": _WRITTEN,
    "initContainerStatuses.waiting": frozenset({1}),
    "initContainerStatuses.running": frozenset({2}),
    "initContainerStatuses.terminated": ALL - {0, 1, 2},
    "containerStatuses.waiting": frozenset({1, 2, 3}), "containerStatuses.running": RUNNING,
    "containerStatuses.terminated": ENDED,
}  # fmt: skip
_CONDITION = re.compile(r'\.status\.conditions\[\]\|select\(\.type=="([^"]+)"\)\|\.status')
_STATUSES = re.compile(
    r"\.status\.((?:initC|c)ontainerStatuses)(?:\[\](?:\.state(?:\.(\w+)(?:\.\w+)?)?)?)?"
)


def levels_of(key: str, values: set[str]) -> tuple[Levels, Levels] | None:
    """Return the steps at which a condition on a path holds, and those at which its contrary
    does; None for a path that is not known.
    """
    if key == ".status.phase":
        holds = frozenset(step for phase in values or PHASES for step in PHASES.get(phase, ()))
        return holds, ALL - holds
    if key in (".status.podIP", ".status.podIPs", ".status.hostIP", ".status.startTime"):
        return _WRITTEN, ALL - _WRITTEN
    if key in (".spec.initContainers", ".spec.readinessGates"):
        return ALL, frozenset()
    if match := _CONDITION.fullmatch(key):
        if match[1] not in _CONDITIONS:  # a readiness gate, which becomes true at any time
            return (RUNNING, ALL - {5}) if "False" not in values else (ALL - {5}, RUNNING)
        holds = _CONDITIONS[match[1]]
        return (holds, ALL - holds) if "False" not in values else (ALL - holds, holds)
    if match := _STATUSES.fullmatch(key):
        known = _CONTAINERS.get(f"{match[1]}.{match[2]}" if match[2] else match[1])
        if known is None:
            return None
        is_optional = key.startswith(".status.initContainerStatuses") and not match[2]
        return known, (ALL if is_optional else ALL - known)
    return None
