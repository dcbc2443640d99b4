"""Profiles: the shape of virtual nodes and the life of their pods, as data in YAML.

A profile is a node shape plus stages. A stage says: from this state, for pods that match, after
this delay, go to that state. When several stages match, one is drawn by weight. The vocabulary is
that of KWOK's `Stage` (selector, delay, jitter, weight, next; kustomize/stage in
kubernetes-sigs/kwok), but the states are a closed set and the statuses are built by code:
templates that produce YAML text cannot be checked before a pod uses them.

Validation collects every mistake, each with line, column and path.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from fairlead.api.causes import is_object_name
from fairlead.api.kubernetes import selectors
from fairlead.api.kubernetes.device_shapes import DeviceShape, drivers_of, shape_mistakes
from fairlead.api.values import quantity
from fairlead.api.values.sections import Section
from fairlead.input.errors import CliError, Code, fail
from fairlead.input.sections import parse, read_text
from fairlead.input.suggest import nearest
from fairlead.model.claimed.device_selectors import ExpressionError, device_expression

STAGES_MAX = 200
PROFILE_DEFAULT = "default"

_KWOK = re.compile(r"""^[ {"-]*apiVersion"?: *["']?kwok\.x-k8s\.io/""", re.MULTILINE)
#: Of requests: a program may use more than it asked for.
_SHARE_MAX = 1_000.0
_Positive: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000_000)]
_Bytes: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 50)]


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


class Delay(Section, frozen=True):
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


class Match(Section, frozen=True):
    """Which pods a stage is for: the state, a label selector, and annotations that must
    be equal.
    """

    state: PodState
    labels: str = ""
    annotations: dict[str, str] = {}


class Next(Section, frozen=True):
    """What a stage leads to. `exit_code_annotation` names one that replaces `exit_code` when set.

    With `signal`, the exit code is 128 + signal, as a shell and a kubelet count.
    """

    state: PodState
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 0
    signal: Annotated[int, Meta(ge=0, le=64)] = 0
    exit_code_annotation: str = ""
    reason: str = ""
    message: str = ""


class Stage(Section, frozen=True):
    """One step of a pod's life."""

    name: str
    match: Match
    next: Next
    delay: Delay = Delay()
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] = 1


class ProgressSpec(Section, frozen=True):
    """Simulated step reports: one step each `step_seconds`, a checkpoint every so many steps.

    A report is written at each checkpoint, but not oftener than `report_seconds_min` per pod, and
    only by rank 0 (and by pods without a rank) unless `all_members`. Then members report their own
    work in a step, too: `own_work_seconds` on a good machine; 0: they do not.
    """

    step_seconds: float = 1.0
    checkpoint_every_steps: _Positive = 100
    report_seconds_min: float = 10.0
    all_members: bool = False
    own_work_seconds: float = 0.0

    def steps_to_report(self, step: int) -> int:
        """Return after how many steps the next report is due: at the next checkpoint that is not
        too soon.
        """
        every = self.checkpoint_every_steps
        steps = every - step % every
        while steps * self.step_seconds < self.report_seconds_min:
            steps += every
        return steps


class UseSpec(Section, frozen=True):
    """Which share of its requests a pod uses: of processors all the time, of memory at its peak and
    on average, and of the time of its GPUs; without `gpu_share` that is not known.
    """

    cpu_share: float = 1.0
    memory_share: float = 1.0
    memory_mean_share: float = 1.0
    gpu_share: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None


def _resources() -> dict[str, str]:
    """Return what a virtual node has unless the profile says otherwise."""
    return {
        quantity.CPU: "96",
        quantity.MEMORY: "1Ti",
        quantity.EPHEMERAL_STORAGE: "4Ti",
        quantity.GPU: "8",
        quantity.PODS: "110",
    }


_Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class HardwareSpec(Section, frozen=True):
    """What tests find of the machines: shares of those that are not as they should be.

    Which machine is of which kind follows from the seed and its name alone.
    """

    seed: int = 0
    slow: _Share = 0.0
    corrupt: _Share = 0.0
    hanging: _Share = 0.0
    flaky: _Share = 0.0
    dead: _Share = 0.0
    link: _Share = 0.0


class ImagesSpec(Section, frozen=True):
    """Images of virtual nodes: their layers, in bytes by digest or any other name, and how fast
    they are pulled. An image that is not among them cannot be pulled.
    """

    layers: dict[str, dict[str, _Bytes]]
    node_bytes_per_second: float = 1e9
    registry_bytes_per_second: float = 10e9


class NodeShape(Section, frozen=True):
    """What each virtual node has, and how nodes are grouped.

    Claims find `devices` by classes (DRA): those of `device_classes`, which are expressions by
    name, and for each other driver one with its name, of all its devices.
    """

    resources: dict[str, str] = msgspec.field(default_factory=_resources)
    devices: tuple[DeviceShape, ...] = ()
    device_classes: dict[str, str] = {}
    instance_type: str = "virtual-8gpu"
    labels: dict[str, str] = {}
    #: Nodes register with the taint of those that are to be tested before they take work.
    preflight: bool = False
    nodes_per_rack: _Positive = 8
    racks_per_block: _Positive = 4
    blocks_per_zone: _Positive = 32


class Profile(Section, frozen=True):
    """A whole profile."""

    name: str
    stages: tuple[Stage, ...]
    description: str = ""
    node: NodeShape = NodeShape()
    progress: ProgressSpec | None = None
    #: Without it nobody knows what pods use.
    use: UseSpec | None = None
    hardware: HardwareSpec = HardwareSpec()
    #: Without it nodes report no images, and pods start as if they had all.
    images: ImagesSpec | None = None
    restart_back_off_seconds: float = 10.0
    restart_back_off_seconds_max: float = 300.0


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with the package, sorted."""
    folder = resources.files("fairlead.embedded.virtual") / "profiles"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".yaml")))


def load_profile(name_or_path: str) -> Profile:
    """Return a shipped profile by name, or one from a file; "" gives the default.

    CliError E708 with all mistakes, in the order of the file.
    """
    wanted = name_or_path or PROFILE_DEFAULT
    if wanted in shipped_profiles():
        return _shipped(wanted)
    path = Path(wanted)
    if not path.is_file():
        near = nearest(wanted, shipped_profiles())
        shipped = ", ".join(shipped_profiles())
        raise fail(
            Code.PROFILE, f"profile '{wanted}' is no file, and none of the shipped ones: {shipped}",
            help=(f"--profile {near}",) if near else (),
        )  # fmt: skip
    try:
        text = read_text(path)
    except CliError as error:
        raise _of_profile(error) from error
    if is_kwok(text):
        raise fail(
            Code.PROFILE, f"'{path}' holds objects of KWOK, not a profile",
            help=(f"fairlead sim import {path} PROFILE.yaml",),
        )  # fmt: skip
    return parse_profile(text, source=str(path))


@cache
def _shipped(name: str) -> Profile:
    """Return a shipped profile; parsed once, as a start asks for it four times."""
    folder = resources.files("fairlead.embedded.virtual") / "profiles"
    return parse_profile((folder / f"{name}.yaml").read_text(), source=name)


def is_kwok(text: str) -> bool:
    """True when an object in the YAML text belongs to KWOK's API group."""
    return _KWOK.search(text) is not None


def parse_profile(text: str, *, source: str = "profile") -> Profile:
    """Parse YAML text; CliError E708 with all mistakes, in the order of the text."""
    try:
        return parse(text, Profile, _problems, source=source)
    except CliError as error:
        raise _of_profile(error) from error


def _of_profile(error: CliError) -> CliError:
    return CliError([replace(problem, code=Code.PROFILE) for problem in error.problems])


def _problems(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of what types cannot say."""
    yield from _node_problems(profile.node)
    if len(profile.stages) > STAGES_MAX:
        yield "stages", f"{len(profile.stages)} stages, accepted: at most {STAGES_MAX}"
    seen: dict[str, int] = {}
    for i, stage in enumerate(profile.stages):
        if stage.name in seen:
            yield f"stages[{i}].name", f"{stage.name!r} is stages[{seen[stage.name]}] too"
        seen.setdefault(stage.name, i)
        yield from _stage_problems(stage, f"stages[{i}]")
    if not any(s.match.state is PodState.BOUND for s in profile.stages):
        yield "stages", "no stage starts from state Bound: no pod would ever start"
    progress = profile.progress or ProgressSpec()
    use, images = profile.use or UseSpec(), profile.images or ImagesSpec(layers={})
    for path, number in (
        ("use.cpuShare", use.cpu_share),
        ("use.memoryShare", use.memory_share),
        ("use.memoryMeanShare", use.memory_mean_share),
    ):
        if not 0 <= number <= _SHARE_MAX:
            yield path, f"got {number}, accepted: 0 to {_SHARE_MAX:g}"
    longest = progress.step_seconds if progress.all_members else 0.0
    if not 0 <= progress.own_work_seconds <= longest:
        accepted = f"0 to progress.stepSeconds ({progress.step_seconds:g}), with allMembers"
        yield "progress.ownWorkSeconds", f"got {progress.own_work_seconds}, accepted: {accepted}"
    for path, number in (
        ("images.nodeBytesPerSecond", images.node_bytes_per_second),
        ("images.registryBytesPerSecond", images.registry_bytes_per_second),
        ("progress.stepSeconds", progress.step_seconds),
        ("progress.reportSecondsMin", progress.report_seconds_min),
        ("restartBackOffSeconds", profile.restart_back_off_seconds),
        ("restartBackOffSecondsMax", profile.restart_back_off_seconds_max),
    ):
        if not (math.isfinite(number) and number > 0):
            yield path, f"got {number}, accepted: more than 0"


def _node_problems(node: NodeShape) -> Iterator[tuple[str, str]]:
    for name, amount in node.resources.items():
        path = f"node.resources.{name}"
        try:
            if quantity.to_base(name, amount) < 0:
                yield path, f"{amount!r} is negative"
        except quantity.QuantityError as error:
            yield path, str(error)
    for name in (quantity.CPU, quantity.MEMORY, quantity.PODS):
        if name not in node.resources:
            yield "node.resources", f"the resource {name} is missing"
    for key, value in node.labels.items():
        if not selectors.is_qualified_name(key):
            yield f"node.labels.{key}", f"{key!r} is not a label key"
        if not selectors.is_label_value(value):
            yield f"node.labels.{key}", f"{value!r} is not a label value"
    if not selectors.is_label_value(node.instance_type):
        yield "node.instanceType", f"{node.instance_type!r} is not a label value"
    yield from device_problems(node.devices, node.device_classes, "node.")


def device_problems(
    shapes: Sequence[DeviceShape], classes: Mapping[str, str], at: str
) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of what is wrong with the devices of nodes and their classes."""
    for path, value, why in shape_mistakes(shapes):
        yield f"{at}devices{path}", f"{value!r} {why}" if value else why
    for name, expression in classes.items():
        path = f"{at}deviceClasses.{name}"
        if not is_object_name(name):
            yield path, f"{name!r} is not the name of a class, such as gpu.nvidia.com"
        try:
            device_expression(expression)
        except ExpressionError as error:
            yield path, f"{expression[:200]!r} {error}"


def device_class_bodies(shape: NodeShape) -> Iterator[dict[str, Any]]:
    """Yield the classes of the devices of virtual nodes, as they are created."""
    of_drivers = {name: f'device.driver == "{name}"' for name in drivers_of(shape.devices)}
    for name, expression in {**of_drivers, **shape.device_classes}.items():
        selectors_ = [{"cel": {"expression": expression}}]
        yield {"metadata": {"name": name}, "spec": {"selectors": selectors_}}


def _stage_problems(stage: Stage, path: str) -> Iterator[tuple[str, str]]:
    start, next_, delay = stage.match.state, stage.next, stage.delay
    allowed = NEXT_STATES.get(start)
    if allowed is None:
        starts = ", ".join(state.value for state in NEXT_STATES)
        yield f"{path}.match.state", f"nothing follows on {start.value}; accepted: {starts}"
    elif next_.state not in allowed:
        accepted = ", ".join(state.value for state in allowed)
        message = f"{start.value} cannot lead to {next_.state.value}; accepted: {accepted}"
        yield f"{path}.next.state", message
    try:
        selectors.parse_labels(stage.match.labels)
    except selectors.SelectorError as error:
        yield f"{path}.match.labels", str(error)
    fails = next_.exit_code != 0 or next_.signal != 0
    if next_.state is PodState.FAILED and not (fails or next_.reason):
        yield f"{path}.next", "a stage that fails needs exitCode, signal or reason"
    if next_.state is not PodState.FAILED and fails:
        yield f"{path}.next", f"{next_.state.value} takes no exitCode and no signal"
    for name, number in (
        ("seconds", delay.seconds),
        ("jitterSeconds", delay.jitter_seconds),
        ("sigma", delay.sigma),
        ("secondsMax", delay.seconds_max or 0.0),
    ):
        if not (math.isfinite(number) and number >= 0):
            yield f"{path}.delay.{name}", f"got {number}, accepted: 0 or more, finite"
