"""Drawing a pod's next step from a profile (pure, given the random source).

Selectors are parsed once per profile. Of the stages that match, one is drawn by weight; when all
weights are 0 they count alike. A drawn failure that would come after the end that the pod's
annotation asks for does not happen: a ten-second pod cannot crash after ten minutes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.selectors import Selector, parse_labels
from fairlead.embedded.virtual.profile import Delay, Distribution, PodState, Profile, Stage

#: Longest delay that an annotation may ask for: a hundred years.
SECONDS_MAX = 100 * 365 * 86_400.0
_DIGITS_MAX = 20


@dataclass(frozen=True, slots=True)
class Drawn:
    """The stage that was drawn and when it takes effect, in seconds from the state's start."""

    stage: Stage
    seconds: float


class StageSampler:
    """The stages of a profile, ready to be drawn from."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._stages: dict[PodState, tuple[tuple[Stage, Selector], ...]] = {
            state: tuple(
                (stage, parse_labels(stage.match.labels))
                for stage in profile.stages
                if stage.match.state is state
            )
            for state in PodState
        }

    def draw(self, pod: Pod, state: PodState, rng: random.Random) -> Drawn | None:
        """Return the next step from `state`; None when no stage matches (the pod stays
        as it is).
        """
        labels, annotations = pod.metadata.labels, pod.metadata.annotations
        stages = [
            stage
            for stage, selector in self._stages[state]
            if (not selector or selector.matches(labels))
            and stage.match.annotations.items() <= annotations.items()
        ]
        if not stages:
            return None
        stage = _weighted(stages, rng)
        seconds = _sample(stage.delay, pod.metadata.annotations, rng)
        if state is PodState.RUNNING and stage.next.state is PodState.FAILED:
            for other in stages:
                asked = _asked(other.delay, pod.metadata.annotations)
                if other.next.state is PodState.SUCCEEDED and asked is not None and asked < seconds:
                    return Drawn(other, asked)
        return Drawn(stage, seconds)

    def unreadable(self, pod: Pod) -> list[str]:
        """Return what is wrong with the annotations that this profile takes numbers from."""
        out: dict[str, None] = {}
        annotations = pod.metadata.annotations
        for stages in self._stages.values() if annotations else ():
            for stage, _ in stages:
                name, code_name = stage.delay.annotation, stage.next.exit_code_annotation
                if name in annotations and _asked(stage.delay, annotations) is None:
                    why = "is no number of seconds, such as 90 or 0.5"
                    out[f"annotation {name}: '{annotations[name][:80]}' {why}; ignored"] = None
                if code_name in annotations and _exit_code(annotations[code_name]) is None:
                    why = "is no exit code from 0 to 255"
                    text = annotations[code_name][:80]
                    out[f"annotation {code_name}: '{text}' {why}; ignored"] = None
        return list(out)


def exit_code(pod: Pod, stage: Stage) -> int:
    """Return the stage's exit code, or the one that the pod's annotation asks for (0 to 255)."""
    asked = _exit_code(pod.metadata.annotations.get(stage.next.exit_code_annotation, ""))
    return stage.next.exit_code if asked is None else asked


def _exit_code(text: str) -> int | None:
    text = text.strip()
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if is_number and int(text) <= 255 else None


def resume_step(pod: Pod) -> int:
    """Return the step that the pod resumes from; 0 when its environment names none."""
    for container in pod.spec.containers[:1]:
        for variable in container.env:
            text = variable.value.strip()
            if variable.name == names.ENV_RESUME_STEP and text.isascii() and text.isdigit():
                return int(text)
    return 0


def _weighted(stages: list[Stage], rng: random.Random) -> Stage:
    if len(stages) == 1:
        return stages[0]
    weights = [stage.weight for stage in stages]
    if not any(weights):
        weights = [1] * len(stages)
    return rng.choices(stages, weights)[0]


def _asked(delay: Delay, annotations: Mapping[str, str]) -> float | None:
    """Return the seconds that the annotation asks for, or None when it is absent or no number."""
    text = annotations.get(delay.annotation) if delay.annotation else None
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(max(seconds, 0.0), SECONDS_MAX) if math.isfinite(seconds) else None


def _sample(delay: Delay, annotations: Mapping[str, str], rng: random.Random) -> float:
    asked = _asked(delay, annotations)
    if asked is not None:
        return asked
    seconds = delay.seconds
    if delay.distribution is Distribution.LOG_NORMAL and delay.seconds > 0:
        seconds = rng.lognormvariate(math.log(delay.seconds), delay.sigma)
    if delay.jitter_seconds:
        seconds += rng.random() * delay.jitter_seconds
    return min(seconds, SECONDS_MAX if delay.seconds_max is None else delay.seconds_max)
