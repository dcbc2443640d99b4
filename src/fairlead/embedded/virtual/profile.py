"""Profiles: the shape of virtual nodes and the life of their pods, as data in YAML.

A profile is a node shape plus stages. A stage says: from this state, for pods that match, after
this delay, go to that state. When several stages match, one is drawn by weight. The vocabulary is
that of KWOK's `Stage` (selector, delay, jitter, weight, next; kustomize/stage in
kubernetes-sigs/kwok), but the states are a closed set and the statuses are built by code:
templates that produce YAML text cannot be checked before a pod uses them.

Validation collects every mistake, each with line, column and path.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import yaml

from fairlead.api import names, quantity, selectors

PROFILE_BYTES_MAX = 256 * 1024
STAGES_MAX = 200

SIMULATE_SECONDS = f"{names.GROUP}/simulate-seconds"
SIMULATE_EXIT_CODE = f"{names.GROUP}/simulate-exit-code"


class Data(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of the profile's types: camelCase in the file, unknown fields are mistakes."""


class PodState(Enum):
    """States that stages start from and lead to."""

    BOUND = "Bound"  # on a node, containers being created
    RUNNING = "Running"
    BACK_OFF = "BackOff"  # ended, waits to be restarted in place (no stage: the back-off says when)
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"  # deletion asked for, processes still there
    GONE = "Gone"  # deletion confirmed


#: Where each state may lead.
NEXT_STATES: dict[PodState, tuple[PodState, ...]] = {
    PodState.BOUND: (PodState.RUNNING, PodState.FAILED),
    PodState.RUNNING: (PodState.SUCCEEDED, PodState.FAILED),
    PodState.TERMINATING: (PodState.GONE,),
}


class Distribution(Enum):
    """How a delay varies."""

    UNIFORM = "Uniform"  # seconds + a uniform share of jitterSeconds
    LOG_NORMAL = "LogNormal"  # median `seconds`, shape `sigma`; long tail, as start-up times have


class Delay(Data, frozen=True):
    """How long a stage takes. `annotation` names one whose number of seconds, if set, is taken
    instead.

    A value from the annotation is exact: no jitter, so that a person gets what was asked for.
    """

    seconds: float = 0.0
    jitter_seconds: float = 0.0
    distribution: Distribution = Distribution.UNIFORM
    sigma: float = 0.0
    seconds_max: float | None = None
    annotation: str = ""


class Match(Data, frozen=True):
    """Which pods a stage is for: the state, a label selector, and annotations that must
    be equal.
    """

    state: PodState
    labels: str = ""
    annotations: dict[str, str] = {}


class Next(Data, frozen=True):
    """What a stage leads to. `exit_code_annotation` names one that replaces `exit_code` when set.

    With `signal`, the exit code is 128 + signal, as a shell and a kubelet count.
    """

    state: PodState
    exit_code: int = 0
    signal: int = 0
    exit_code_annotation: str = ""
    reason: str = ""
    message: str = ""


class Stage(Data, frozen=True):
    """One step of a pod's life."""

    name: str
    match: Match
    next: Next
    delay: Delay = Delay()
    weight: int = 1


class ProgressSpec(Data, frozen=True):
    """Simulated step reports: one step each `step_seconds`, a checkpoint every so many steps.

    A report is written at each checkpoint, but not oftener than `report_seconds_min` per pod, and
    only by rank 0 (and by pods without a rank) unless `all_members`.
    """

    step_seconds: float = 1.0
    checkpoint_every_steps: int = 100
    report_seconds_min: float = 10.0
    all_members: bool = False


def _resources() -> dict[str, str]:
    """Return what a virtual node has unless the profile says otherwise."""
    return {
        quantity.CPU: "96",
        quantity.MEMORY: "1Ti",
        quantity.EPHEMERAL_STORAGE: "4Ti",
        quantity.GPU: "8",
        quantity.PODS: "110",
    }


class NodeShape(Data, frozen=True):
    """What each virtual node has, and how nodes are grouped."""

    resources: dict[str, str] = msgspec.field(default_factory=_resources)
    instance_type: str = "virtual-8gpu"
    labels: dict[str, str] = {}
    nodes_per_rack: int = 8
    racks_per_block: int = 4
    blocks_per_zone: int = 32


class Profile(Data, frozen=True):
    """A whole profile."""

    name: str
    stages: tuple[Stage, ...]
    description: str = ""
    node: NodeShape = NodeShape()
    progress: ProgressSpec | None = None
    restart_back_off_seconds: float = 10.0
    restart_back_off_seconds_max: float = 300.0


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong with a profile. `line` and `column` count from 1; 0 is unknown."""

    path: str
    message: str
    line: int = 0
    column: int = 0


class ProfileError(ValueError):
    """The profile is wrong; `mistakes` has all of them, the message too, one per line."""

    def __init__(self, source: str, mistakes: Sequence[Mistake]) -> None:
        self.source = source
        self.mistakes = tuple(mistakes)
        count = len(self.mistakes)
        head = f"{source}: {count} mistake{'s' if count > 1 else ''} in this profile"
        super().__init__("\n".join([head, *(self._line(m) for m in self.mistakes)]))

    def _line(self, mistake: Mistake) -> str:
        place = f"{self.source}:{mistake.line}:{mistake.column}: " if mistake.line else ""
        path = f"{mistake.path}: " if mistake.path else ""
        return f"  {place}{path}{mistake.message}"


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with the package, sorted."""
    folder = resources.files("fairlead.embedded.virtual") / "profiles"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".yaml")))


def load_profile(name_or_path: str) -> Profile:
    """Return a shipped profile by name, or one from a file; ProfileError with all mistakes."""
    if name_or_path in shipped_profiles():
        folder = resources.files("fairlead.embedded.virtual") / "profiles"
        return parse_profile((folder / f"{name_or_path}.yaml").read_text(), source=name_or_path)
    path = Path(name_or_path)
    try:
        with path.open("rb") as file:
            raw = file.read(PROFILE_BYTES_MAX + 1)
    except OSError as error:
        shipped = ", ".join(shipped_profiles())
        reason = error.strerror or str(error)
        message = f"cannot be read ({reason}); give a file, or one of the shipped ones: {shipped}"
        raise ProfileError(name_or_path, [Mistake("", message)]) from error
    if len(raw) > PROFILE_BYTES_MAX:
        message = f"is larger than {PROFILE_BYTES_MAX} bytes, which no profile needs"
        raise ProfileError(name_or_path, [Mistake("", message)])
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text: byte {error.start} cannot be decoded"
        raise ProfileError(name_or_path, [Mistake("", message)]) from error
    return parse_profile(text, source=name_or_path)


def parse_profile(text: str, *, source: str = "profile") -> Profile:
    """Parse YAML text; ProfileError with all mistakes, in the order of the file."""
    try:
        document = yaml.safe_load(text)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        mistake = Mistake("", f"is not YAML: {error.problem or error.context}", line, column)
        raise ProfileError(source, [mistake]) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ProfileError(source, [Mistake("", f"is not YAML: {error}")]) from error
    found: list[tuple[str, str]] = []
    _collect(Profile, document, "", found)
    if not found:
        profile = msgspec.convert(document, Profile)
        _check(profile, found)
        if not found:
            return profile
    marks: dict[str, tuple[int, int]] = {}
    _mark(tree, "", marks)
    mistakes = [Mistake(path, message, *_place(path, marks)) for path, message in found]
    raise ProfileError(source, sorted(mistakes, key=lambda m: (m.line, m.column)))


def _place(path: str, marks: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the place of the path, or of the nearest parent that the file has."""
    while path and path not in marks:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return marks.get(path, (0, 0))


def _mark(node: yaml.Node | None, path: str, marks: dict[str, tuple[int, int]]) -> None:
    if node is None:
        return
    marks.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            marks[inner] = (key.start_mark.line + 1, key.start_mark.column + 1)
            _mark(value, inner, marks)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            _mark(value, f"{path}[{i}]", marks)


def _collect(type_: Any, value: Any, path: str, found: list[tuple[str, str]]) -> None:
    """Append (path, message) of everything in `value` that does not convert to `type_`."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        _collect_struct(type_, value, path, found)
        return
    if get_origin(type_) is tuple and isinstance(value, list):
        for i, item in enumerate(value):
            _collect(get_args(type_)[0], item, f"{path}[{i}]", found)
        return
    inner = [a for a in get_args(type_) if isinstance(a, type) and issubclass(a, msgspec.Struct)]
    if inner and value is not None:
        _collect(inner[0], value, path, found)
        return
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        message = str(error)
        if isinstance(type_, type) and issubclass(type_, Enum):
            accepted = ", ".join(str(member.value) for member in type_)
            message = f"got {value!r}, accepted: {accepted}"
        found.append((path, message))


def _collect_struct(
    type_: type[msgspec.Struct], value: Any, path: str, found: list[tuple[str, str]]
) -> None:
    if not isinstance(value, dict):
        kind = "nothing" if value is None else type(value).__name__
        found.append((path, f"want a mapping with the fields of {type_.__name__}, got {kind}"))
        return
    hints = get_type_hints(type_)
    fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
    for key in value:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(fields)}"
            found.append((f"{path}.{key}" if path else str(key), f"unknown field; {hint}"))
    for name, field in fields.items():
        inner = f"{path}.{name}" if path else name
        if name in value:
            _collect(hints[field.name], value[name], inner, found)
        elif field.required:
            found.append((path, f"the field {name} is missing"))


def _check(profile: Profile, found: list[tuple[str, str]]) -> None:
    """Append what types cannot say."""
    _check_node(profile.node, found)
    if len(profile.stages) > STAGES_MAX:
        found.append(("stages", f"{len(profile.stages)} stages, accepted: at most {STAGES_MAX}"))
    seen: dict[str, int] = {}
    for i, stage in enumerate(profile.stages):
        if stage.name in seen:
            found.append((f"stages[{i}].name", f"{stage.name!r} is stages[{seen[stage.name]}] too"))
        seen.setdefault(stage.name, i)
        _check_stage(stage, f"stages[{i}]", found)
    if not any(s.match.state is PodState.BOUND for s in profile.stages):
        found.append(("stages", "no stage starts from state Bound: no pod would ever start"))
    progress = profile.progress
    if progress is not None:
        _positive(progress.step_seconds, "progress.stepSeconds", found)
        _positive(progress.checkpoint_every_steps, "progress.checkpointEverySteps", found)
        _positive(progress.report_seconds_min, "progress.reportSecondsMin", found)
    _positive(profile.restart_back_off_seconds, "restartBackOffSeconds", found)
    _positive(profile.restart_back_off_seconds_max, "restartBackOffSecondsMax", found)


def _check_node(node: NodeShape, found: list[tuple[str, str]]) -> None:
    for name, amount in node.resources.items():
        path = f"node.resources.{name}"
        try:
            if quantity.to_base(name, amount) < 0:
                found.append((path, f"{amount!r} is negative"))
        except quantity.QuantityError as error:
            found.append((path, str(error)))
    found.extend(
        ("node.resources", f"the resource {name} is missing")
        for name in (quantity.CPU, quantity.MEMORY, quantity.PODS)
        if name not in node.resources
    )
    for key, value in node.labels.items():
        if not selectors.is_qualified_name(key):
            found.append((f"node.labels.{key}", f"{key!r} is not a label key"))
        if not selectors.is_label_value(value):
            found.append((f"node.labels.{key}", f"{value!r} is not a label value"))
    if not selectors.is_label_value(node.instance_type):
        found.append(("node.instanceType", f"{node.instance_type!r} is not a label value"))
    _positive(node.nodes_per_rack, "node.nodesPerRack", found)
    _positive(node.racks_per_block, "node.racksPerBlock", found)
    _positive(node.blocks_per_zone, "node.blocksPerZone", found)


def _check_stage(stage: Stage, path: str, found: list[tuple[str, str]]) -> None:
    allowed = NEXT_STATES.get(stage.match.state)
    if allowed is None:
        starts = ", ".join(state.value for state in NEXT_STATES)
        message = f"nothing follows on {stage.match.state.value}; accepted: {starts}"
        found.append((f"{path}.match.state", message))
    elif stage.next.state not in allowed:
        accepted = ", ".join(state.value for state in allowed)
        message = (
            f"{stage.match.state.value} cannot lead to {stage.next.state.value}; "
            f"accepted: {accepted}"
        )
        found.append((f"{path}.next.state", message))
    try:
        selectors.parse_labels(stage.match.labels)
    except selectors.SelectorError as error:
        found.append((f"{path}.match.labels", str(error)))
    if stage.weight < 0:
        found.append((f"{path}.weight", f"got {stage.weight}, accepted: 0 or more"))
    _check_ending(stage.next, f"{path}.next", found)
    delay = stage.delay
    for name, number in (
        ("seconds", delay.seconds),
        ("jitterSeconds", delay.jitter_seconds),
        ("sigma", delay.sigma),
        ("secondsMax", delay.seconds_max or 0.0),
    ):
        if not (math.isfinite(number) and number >= 0):
            found.append((f"{path}.delay.{name}", f"got {number}, accepted: 0 or more, finite"))


def _check_ending(next_: Next, path: str, found: list[tuple[str, str]]) -> None:
    if not 0 <= next_.exit_code <= 255:
        found.append((f"{path}.exitCode", f"got {next_.exit_code}, accepted: 0 to 255"))
    if not 0 <= next_.signal <= 64:
        found.append((f"{path}.signal", f"got {next_.signal}, accepted: 0 (none) to 64"))
    fails = next_.exit_code != 0 or next_.signal != 0
    if next_.state is PodState.FAILED and not (fails or next_.reason):
        found.append((path, "a stage that fails needs exitCode, signal or reason"))
    if next_.state is not PodState.FAILED and fails:
        found.append((path, f"{next_.state.value} takes no exitCode and no signal"))


def _positive(number: float, path: str, found: list[tuple[str, str]]) -> None:
    if not (math.isfinite(number) and number > 0):
        found.append((path, f"got {number}, accepted: more than 0"))
