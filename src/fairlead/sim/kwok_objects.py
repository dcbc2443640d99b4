"""KWOK's Stage objects, as far as they concern pods (its `pkg/apis/v1alpha1/stage_types.go`)."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from fairlead.input.sections import Section

API_VERSION = "kwok.x-k8s.io/v1alpha1"
_Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000_000)]


class Operator(Enum):
    """How a value is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Section, frozen=True):
    """One condition on a path in jq's language."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class Selector(Section, frozen=True):
    """Which pods; all conditions hold."""

    match_labels: dict[str, str] = {}
    match_annotations: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class Source(Section, frozen=True):
    """A path in jq's language that a number comes from."""

    expression_from: str


class StageDelay(Section, frozen=True):
    """Evenly drawn between both durations."""

    duration_milliseconds: _Milliseconds = 0
    duration_from: Source | None = None
    jitter_duration_milliseconds: _Milliseconds | None = None
    jitter_duration_from: Source | None = None


class Finalizers(Section, frozen=True):
    """Changes of the finalizers."""

    add: tuple[dict[str, str], ...] = ()
    remove: tuple[dict[str, str], ...] = ()
    empty: bool = False


class Next(Section, frozen=True):
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
    next: Next
    selector: Selector | None = None
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    weight_from: Source | None = None
    delay: StageDelay = StageDelay()
    immediate_next_stage: bool = False


class KwokStage(Section, frozen=True):
    """One object of the file."""

    api_version: str
    kind: str
    metadata: dict[str, Any]
    spec: StageSpec
    status: dict[str, Any] = {}
