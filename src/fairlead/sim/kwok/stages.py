"""KWOK's Stage objects as a profile of virtual nodes, with all that was assumed or left out.

The state that a stage starts from follows from its selector, the one that it leads to from its
status template. Neither jq nor templates are run: conditions on known paths and known lines of a
template count, and what cannot be recognised is a mistake with its place.

A pod passes more levels (`kwok_objects`) than a profile has states: stages between two levels
before the start, and readiness gates after it, become a part of the delay of the start. How KWOK
draws delays and weights: kubernetes-sigs/kwok, pkg/utils/lifecycle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fairlead.api.kubernetes import selectors
from fairlead.api.kubernetes.core import GRACE_SECONDS_DEFAULT as GRACE_SECONDS
from fairlead.api.names import SIMULATE_EXIT_CODE, SIMULATE_SECONDS
from fairlead.embedded.virtual.profile import NEXT_STATES, STAGES_MAX, PodState, parse_profile
from fairlead.input.errors import CliError, Code
from fairlead.input.sections import SectionReader
from fairlead.input.yamlmarks import YamlMark, YamlValue, locate
from fairlead.input.yamlwrite import to_yaml
from fairlead.sim.kwok.objects import (
    ALL,
    API_VERSION,
    ENDED,
    PENDING,
    PHASES,
    RUNNING,
    KwokEntry,
    KwokNext,
    KwokOperator,
    KwokRequirement,
    KwokSelector,
    KwokStage,
    Levels,
    StageSpec,
    StatusText,
    levels_of,
    read_template,
)

_TEMPLATE = "spec.next.statusTemplate"
_SUM = "delay.durationFrom: pods cannot set the sum of delays"
_YEAR_SECONDS = 31_536_000
_META = re.compile(r"""\.metadata\.(labels|annotations)[.["]+([^"|(\]]+)["\]]*""")


@dataclass(frozen=True, slots=True)
class Conversion:
    """A profile as YAML, the number of its stages, and lines for people: what was assumed, and what
    was left out, each with its place in the source.
    """

    text: str
    stages: int
    assumed: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(slots=True)
class _Step:
    """A stage while it is read. Times in milliseconds."""

    name: str
    document: YamlValue
    weight: int
    levels: Levels = ALL
    is_terminating: bool | None = None
    labels: list[str] = field(default_factory=list[str])
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    finalizers: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    annotation: str = ""
    state: PodState = PodState.BOUND
    next: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def seconds(self) -> str:
        """The delay in words."""
        until = f" to {self.most / 1000:g}" if self.most > self.least else ""
        return f"{self.least / 1000:g}{until} s"


def convert(text: str, *, source: str, name: str) -> Conversion:
    """Return the profile `name` of a file's stages; CliError E708 with all mistakes."""
    file = _File(SectionReader(source), source, text.splitlines())
    for document in file.reader.documents(text):
        items = locate(document, "items")[1]
        is_list = items is not None and locate(document, "spec")[1] is None
        for each in (items and items.sequence) or () if is_list else (document,):
            file.take(each)
    stages = list(file.stages())
    if file.reader.problems:
        found = file.reader.error().problems
        raise CliError([replace(problem, code=Code.PROFILE) for problem in found])
    profile = {"name": name, "description": f"from the KWOK stages of {source}", "stages": stages}
    written = to_yaml(profile)
    parse_profile(written)
    return Conversion(written, len(stages), file.noted(file.assumed), file.noted(file.left_out))


class _File:
    """Collects the stages of a file by what they become."""

    def __init__(self, reader: SectionReader, source: str, lines: list[str]) -> None:
        self.reader = reader
        self.assumed: list[tuple[YamlMark, str]] = []
        self.left_out: list[tuple[YamlMark, str]] = []
        self._source, self._lines = source, lines
        self._steps: list[_Step] = []
        self._on_the_way: list[_Step] = []  # their delays become part of others
        self._names: dict[str, YamlMark] = {}
        self._added_finalizers: set[str] = set()

    def noted(self, notes: list[tuple[YamlMark, str]]) -> tuple[str, ...]:
        """Return what was assumed, or left out, in the order of the lines."""
        return tuple(f"{self._source}:{at.line}:{at.column}: {text}" for at, text in sorted(notes))

    def _assume(self, step: _Step, path: str, message: str) -> None:
        self.assumed.append((locate(step.document, path)[0], f"{step.name}: {message}"))

    def _leave_out(self, step: _Step, path: str, message: str) -> None:
        self.left_out.append((locate(step.document, path)[0], f"{step.name}: {message}"))

    def _wrong(
        self,
        step: _Step,
        path: str,
        message: str,
        help_: str = "",
        *,
        line: KwokEntry | None = None,
    ) -> None:
        mark, value = locate(step.document, path)
        if line is not None and value is not None:
            mark = value.mark
            if self._lines[mark.line - 1][mark.column - 1 : mark.column] in ("|", ">"):
                text = self._lines[mark.line + line.offset]
                mark = YamlMark(mark.line + 1 + line.offset, len(text) - len(text.lstrip()) + 1)
        self.reader.add(Code.PROFILE, mark, path, f"{step.name}: {message}", help_=help_)

    def take(self, document: YamlValue) -> None:
        """Read one object; others than stages of pods are left out."""
        fields = {key: value.scalar for key, value in (document.mapping or {}).items()}
        kind = fields.get("kind")
        if kind != "Stage" or fields.get("apiVersion") != API_VERSION:
            what = f"{fields.get('apiVersion')} {kind}"
            self.left_out.append((document.mark, f"'{what}' is not a {API_VERSION} Stage"))
            return
        mark, resource = locate(document, "spec.resourceRef.kind")
        if resource is not None and isinstance(resource.scalar, str) and resource.scalar != "Pod":
            self.left_out.append((mark, f"a stage of {resource.scalar}, not of pods"))
            return
        stage = self.reader.values(document, KwokStage)
        if stage is None:
            return
        name = str(stage.metadata.get("name") or "")
        step = _Step(name or "a stage without a name", document, stage.spec.weight)
        if not name:
            self._wrong(step, "metadata", "the field metadata.name is missing")
        if (first := self._names.setdefault(name, document.mark)) != document.mark:
            self._wrong(step, "metadata.name", f"the stage of line {first.line} has this name too")
        if len(self._names) == STAGES_MAX + 1:
            self._wrong(step, "metadata.name", f"more stages than {STAGES_MAX}")
        if stage.spec.selector is None:
            self._leave_out(step, "spec", "without a selector it matches no pod")
            return
        self._read_selector(step, stage.spec.selector)
        self._read_delay(step, stage.spec)
        self._place(step, stage.spec.next)

    # Where a stage starts from

    def _read_selector(self, step: _Step, selector: KwokSelector) -> None:
        step.annotations |= selector.match_annotations
        for key, value in selector.match_labels.items():
            self._add_label(step, "spec.selector.matchLabels", f"{key}={value}")
        for i, each in enumerate(selector.match_expressions):
            path = f"spec.selector.matchExpressions[{i}]"
            takes_values = each.operator in (KwokOperator.IN, KwokOperator.NOT_IN)
            if takes_values == bool(each.values):
                self._require(step, each, path)
            else:
                few = "values" if takes_values else "no values"
                self._wrong(step, path, f"{each.operator.value} takes {few}")
        if step.is_terminating is None:
            self._assume(step, "spec.selector", "not for pods that are being deleted")

    def _add_label(self, step: _Step, path: str, label: str) -> None:
        try:
            selectors.parse_labels(label)
            step.labels.append(label)
        except selectors.SelectorError as error:
            self._wrong(step, path, str(error))

    def _require(self, step: _Step, test: KwokRequirement, path: str) -> None:
        """Take one condition into account."""
        is_positive = test.operator in (KwokOperator.IN, KwokOperator.EXISTS)
        key, values = "".join(test.key.split()).replace(".[]", "[]"), set(test.values)
        match = _META.fullmatch(test.key.strip())
        if match and match[1] == "labels":
            joined = ",".join(test.values)
            forms = {
                KwokOperator.IN: f"{match[2]} in ({joined})", KwokOperator.EXISTS: match[2],
                KwokOperator.NOT_IN: f"{match[2]} notin ({joined})",
                KwokOperator.DOES_NOT_EXIST: f"!{match[2]}",
            }  # fmt: skip
            self._add_label(step, path, forms[test.operator])
        elif match and test.operator is KwokOperator.IN and len(test.values) == 1:
            step.annotations[match[2]] = test.values[0]
        elif match:
            message = f"annotation {match[2]}: a profile compares it with one value only"
            self._wrong(step, path, message, "use operator In with one value, or a label")
        elif key == ".metadata.deletionTimestamp":
            step.is_terminating = is_positive
        elif key in (".metadata.finalizers", ".metadata.finalizers[]"):
            step.finalizers = test.values if is_positive else ()
        elif key == ".metadata.ownerReferences[].kind":
            if is_positive == (not values or "Job" in values):
                self._assume(step, path, "all pods belong to a Job")
            else:
                step.levels = frozenset()
        elif key in (".spec.restartPolicy", ".spec.nodeName") and is_positive:
            self._assume(step, path, f"{key} is as asked for")
        elif (holds := levels_of(key, values)) is not None:
            step.levels &= holds[0] if is_positive else holds[1]
        else:
            message = f"'{test.key}' is no path that can be read without running jq"
            help_ = 'known are .status.phase, .status.podIP, .metadata.labels["KEY"] and others'
            self._wrong(step, path, message, help_)

    # How long it takes

    def _read_delay(self, step: _Step, spec: StageSpec) -> None:
        delay = spec.delay
        step.least = step.most = delay.duration_milliseconds
        if delay.jitter_duration_milliseconds is not None:
            step.most = delay.jitter_duration_milliseconds
            step.least = min(step.least, step.most)
        for name, source in (
            ("delay.durationFrom", delay.duration_from),
            ("delay.jitterDurationFrom", delay.jitter_duration_from),
            ("weightFrom", spec.weight_from),
        ):
            if source is None:
                continue
            path = f"spec.{name}"
            expression = source.expression_from
            match = _META.fullmatch(expression.strip())
            if expression.strip() == ".metadata.deletionTimestamp" and name != "weightFrom":
                step.most = max(step.least, GRACE_SECONDS * 1000)
                step.least = step.most if name == "delay.durationFrom" else step.least
                message = f"the grace period ends {GRACE_SECONDS} s after the deletion, or earlier"
                self._assume(step, path, message)
            elif match is None or match[1] != "annotations":
                help_ = 'accepted: .metadata.annotations["KEY"]'
                self._wrong(step, path, f"'{expression}' would need jq to be run", help_)
            elif name == "delay.durationFrom":
                step.annotation = match[2]
            else:
                self._leave_out(step, path, f"{name}: pods cannot set it")

    # What it leads to

    def _place(self, step: _Step, next_: KwokNext) -> None:
        """Put the stage where it belongs, or say why it has no place in a profile."""
        if next_.event:
            self._leave_out(step, "spec.next.event", "the event is not written")
        if next_.finalizers.add:
            self._added_finalizers |= {each.get("value", "") for each in next_.finalizers.add}
            self._leave_out(step, "spec.next.finalizers", "finalizers are not added")
        if step.is_terminating:
            self._place_deletion(step, next_)
            return
        levels = step.levels = step.levels - ENDED or step.levels
        if not levels or levels == ENDED:
            self._leave_out(
                step, "spec.selector", "it holds for no pod of a job that has not ended"
            )
            return
        if not (levels <= PENDING or levels <= RUNNING):
            message = "it is not clear if pods run when it starts"
            help_ = "add a condition: .status.phase In [Pending], or In [Running]"
            self._wrong(step, "spec.selector", message, help_)
            return
        here = "Pending" if levels <= PENDING else "Running"
        step.state = PodState.BOUND if here == "Pending" else PodState.RUNNING
        status = read_template(next_.status_template)
        phases = {entry.text: entry for entry in status.phases}
        phase, entry = next(iter(phases.items()), (here, None))
        to = "Gone" if next_.delete else phase
        if len(phases) > 1 or phase not in PHASES:
            message = f"'{phase}' is no phase" if phase else "the template computes the phase"
            message = "the phase depends on the template" if len(phases) > 1 else message
            help_ = f"write one of {', '.join(PHASES)}; a stage for each, drawn by weight"
            self._wrong(step, _TEMPLATE, message, help_, line=entry)
        elif to != here:
            self._place_change(step, status, str(to))
        elif not phases and here == "Pending" and "containerStatuses.running" in status.keys:
            message = "the template lets containers run, but has no line with the phase"
            self._wrong(step, _TEMPLATE, message, "add the line: phase: Running")
        else:
            self._place_on_the_way(step, status)

    def _place_change(self, step: _Step, status: StatusText, to: str) -> None:
        accepted = [state.value for state in NEXT_STATES[step.state]]
        if to not in accepted:
            message = f"{step.state.value} cannot lead to {to}; accepted: {', '.join(accepted)}"
            self._wrong(step, "spec.next", message, "split the stage into two")
            return
        step.next = {"state": to}
        if to == "Failed":
            self._read_failure(step, status)
        if to == "Succeeded":
            if step.annotation:
                message = f"{SIMULATE_SECONDS} stands in place of {step.annotation}"
                self._leave_out(step, "spec.delay.durationFrom", message)
            step.annotation = SIMULATE_SECONDS
            step.next["exitCodeAnnotation"] = SIMULATE_EXIT_CODE
            message = f"pods end as {SIMULATE_SECONDS} and {SIMULATE_EXIT_CODE} say, if set"
            self._assume(step, "spec", message)
        self._steps.append(step)

    def _read_failure(self, step: _Step, status: StatusText) -> None:
        codes = {(each.text, each.annotation): each for each in status.exit_codes
                 if each.text != "0" or each.annotation}  # fmt: skip
        for (text, _), entry in codes.items():
            is_code = text is not None and text.isascii() and text.isdigit() and len(text) <= 3
            if len(codes) > 1 or not is_code or int(text or 0) > 255:
                message = "the exit code is not one number of 0 to 255"
                self._wrong(step, _TEMPLATE, message, "write one as exitCode", line=entry)
                return
        if not codes:
            self._assume(step, _TEMPLATE, "containers end with exit code 1")
        text, annotation = next(iter(codes), ("1", ""))
        step.next["exitCode"] = int(text or 0) or 1
        if annotation:
            step.next["exitCodeAnnotation"] = annotation
        for name, entries in (("reason", status.reasons), ("message", status.messages)):
            known = [each.text for each in entries if each.text and each.text != "Completed"]
            if known:
                step.next[name] = known[0]
            if any(each.annotation for each in entries):
                self._leave_out(step, _TEMPLATE, f"the annotation for the {name}")

    def _place_deletion(self, step: _Step, next_: KwokNext) -> None:
        step.state = PodState.TERMINATING
        if step.levels != ALL:
            self._assume(step, "spec.selector", "for deleted pods in every phase")
        if next_.delete:
            step.next = {"state": "Gone"}
            self._steps.append(step)
        elif next_.finalizers.remove or next_.finalizers.empty:
            self._on_the_way.append(step)
        else:
            self._leave_out(step, "spec", "a deleted pod gets no last status")

    def _place_on_the_way(self, step: _Step, status: StatusText) -> None:
        """Keep a stage that leads from one step of a start to a later one."""
        written = {"podIP", "hostIP", "startTime", "containerStatuses", "initContainerStatuses"}
        reached = 1 if written & status.keys else 0
        reached = 2 if "initContainerStatuses.running" in status.keys else reached
        is_initialized = "initContainerStatuses.terminated" in status.keys
        reached = 3 if is_initialized or "Initialized" in status.true_conditions else reached
        before = min(step.levels)
        if step.state is PodState.RUNNING:
            reached, before = 5 if status.true_conditions else 4, max(step.levels)
        if reached <= before:
            message = "it leads no step further; what is tried again, or restarts, is not converted"
            self._leave_out(step, "spec", message)
        elif step.labels or step.annotations:
            self._wrong(step, "spec.selector", "a step of the start, for some pods only",
                        "leave the labels and annotations out, or the stage")  # fmt: skip
        else:
            self._on_the_way.append(step)

    # The profile

    def stages(self) -> Iterator[dict[str, Any]]:
        """Yield the stages as they stand in a profile."""
        seen: dict[int, _Step] = {}
        for step in self._on_the_way:
            if step.state is not PodState.BOUND:
                continue
            other = seen.setdefault(min(step.levels), step)
            if other is not step:
                message = f"a step of the start, as {other.name} at the same point"
                self._wrong(step, "spec.selector", message, "leave one of the two out")
        if len({min(step.levels) for step in self._steps if step.state is PodState.BOUND}) > 1:
            message = "what a start leads to is drawn once, when it begins, not again at each step"
            self.assumed.append((YamlMark(1, 1), message))
        added = {id(step): self._part_of(step) for step in self._on_the_way}
        for step in self._steps:
            parts = [part for part in self._on_the_way if step in added[id(part)]]
            yield self._stage(step, parts)
        yield from self._what_is_missing()

    def _part_of(self, part: _Step) -> list[_Step]:
        """Return the stages that the delay of this one is a part of; the file says so."""
        found = [
            step for step in self._steps
            if (part.state is PodState.RUNNING and step.next["state"] == "Running")
            or (part.state is step.state is PodState.BOUND and min(part.levels) < min(step.levels))
            or (part.state is step.state is PodState.TERMINATING)
        ]  # fmt: skip
        if part.finalizers and not self._added_finalizers & set(part.finalizers):
            found = []
        if found:
            names = ", ".join(step.name for step in found)
            message = (
                f"all pods pass it; delays add up, so its {part.seconds} are a part of {names}"
            )
            self._assume(part, "spec.delay", message)
        else:
            self._leave_out(part, "spec", "nothing that a profile has follows on it")
        if found and part.annotation:
            self._leave_out(part, "spec.delay.durationFrom", _SUM)
        return found

    def _stage(self, step: _Step, parts: list[_Step]) -> dict[str, Any]:
        least = step.least + sum(part.least for part in parts)
        most = step.most + sum(part.most for part in parts)
        match: dict[str, Any] = {"state": step.state.value}
        delay: dict[str, Any] = {"seconds": least / 1000}
        if step.labels:
            match["labels"] = ",".join(step.labels)
        if step.annotations:
            match["annotations"] = step.annotations
        if most > least:
            delay["jitterSeconds"] = (most - least) / 1000
        if step.annotation and parts:
            self._leave_out(step, "spec.delay.durationFrom", _SUM)
        elif step.annotation:
            delay["annotation"] = step.annotation
            message = f"{step.annotation} holds a number of seconds (90, not 90s), taken as it is"
            if step.annotation != SIMULATE_SECONDS:
                self._assume(step, "spec.delay.durationFrom", message)
        has_weights = any(one.weight for one in self._steps if one.state is step.state)
        weight = step.weight if has_weights else 1  # all 0: drawn evenly
        stage = {"name": step.name, "match": match, "delay": delay, "weight": weight}
        return {**stage, "next": step.next}

    def _what_is_missing(self) -> Iterator[dict[str, Any]]:
        """Yield an end for pods that no stage ends; say what happens without the others."""
        start, ends = YamlMark(1, 1), [s for s in self._steps if s.state is PodState.RUNNING]
        if not any(step.next["state"] == "Running" for step in self._steps):
            if not self.reader.problems:
                self.reader.add(Code.PROFILE, start, "", "no stage leads pods to the phase Running",
                                help_="KWOK's kustomize/stage/pod/fast has one")  # fmt: skip
            return
        if not any(step.state is PodState.TERMINATING for step in self._steps):
            self.assumed.append((start, "no stage deletes pods: deleted pods go at once"))
        if any(step.next["state"] == "Succeeded" for step in ends):
            return
        # One of weight 0 beside them is drawn only where none of them matches.
        is_apart = all(step.weight for step in ends) or not any(step.weight for step in ends)
        asked = f", or for {SIMULATE_SECONDS}" if is_apart else ""
        self.assumed.append((start, f"no stage lets pods succeed: they run until deleted{asked}"))
        if not is_apart:
            return
        name = "run-until-deleted"
        while name in self._names:
            name += "-"
        yield {
            "name": name, "match": {"state": "Running"}, "weight": 0 if ends else 1,
            "delay": {"seconds": _YEAR_SECONDS, "annotation": SIMULATE_SECONDS},
            "next": {"state": "Succeeded", "exitCodeAnnotation": SIMULATE_EXIT_CODE},
        }  # fmt: skip
