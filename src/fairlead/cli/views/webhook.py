"""What the webhook would do with objects, for people: the webhook's own judgement, put into words.

Objects that make pods (a StatefulSet, say) are judged by their template, as their pods would be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.status import StatusCause
from fairlead.decide.admission.jobs import judge_job
from fairlead.decide.admission.pod_gates import (
    GateDecision,
    GateRules,
    PodAnswer,
    PodGateShape,
    PodOwner,
    judge_pod,
    opt_in_of,
    reason_of,
)
from fairlead.decide.adoption.sources import read_source
from fairlead.model.pools.grouping import Tool

#: Where a kind has the template of its pods, by apiVersion and kind.
TEMPLATES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("apps/v1", "DaemonSet"): ("spec", "template"),
    ("apps/v1", "Deployment"): ("spec", "template"),
    ("apps/v1", "ReplicaSet"): ("spec", "template"),
    ("apps/v1", "StatefulSet"): ("spec", "template"),
    ("batch/v1", "Job"): ("spec", "template"),
    ("batch/v1", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("v1", "ReplicationController"): ("spec", "template"),
}
_JOB = (names.API_VERSION, "Job")


@dataclass(frozen=True, slots=True)
class ObjectFinding:
    """What would become of an object: for people, as data, and whether it would not be stored."""

    lines: tuple[str, ...]
    facts: Mapping[str, Any]
    is_refused: bool = False


def pod_finding(label: str, namespace: str, answer: PodAnswer) -> ObjectFinding:
    """Return the finding of a pod, or of the pods of something that makes them.

    `label` names it. A pod is never refused.
    """
    lines = (
        f"{label}: {reason_of(answer)}",
        *(f"  {op['op']} {op['path']} {json.dumps(op['value'])}" for op in answer.patch),
        *(f"  warning: {text}" for text in answer.warnings),
    )
    facts = {
        "object": label, "namespace": namespace, "ruling": answer.ruling.value,
        "askedBy": answer.opt_in.value, "reason": reason_of(answer),
        "patch": [dict(each) for each in answer.patch], "warnings": list(answer.warnings),
    }  # fmt: skip
    return ObjectFinding(lines, facts)


def job_finding(label: str, namespace: str, causes: Sequence[StatusCause]) -> ObjectFinding:
    """Return the finding of a job of ours."""
    mistakes = (f"  {cause.field}: {cause.message}" for cause in causes)
    lines = (f"{label}: {'is refused' if causes else 'is let in'}", *mistakes)
    facts = {
        "object": label, "namespace": namespace, "ruling": "refused" if causes else "allowed",
        "causes": [{"field": c.field, "message": c.message} for c in causes],
    }  # fmt: skip
    return ObjectFinding(lines, facts, is_refused=bool(causes))


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds an object: the namespace it goes to unless it names one, and its labels."""

    namespace: str
    labels: Mapping[str, str]
    rules: GateRules


def judge_object(body: Mapping[str, Any], around: Around) -> ObjectFinding | None:
    """Return what would become of an object; None for a kind that the webhook has nothing to do
    with. msgspec.ValidationError when it is no such object at all.
    """
    kind = (str(body.get("apiVersion", "")), str(body.get("kind", "")))
    metadata = msgspec.convert(body.get("metadata") or {}, _Meta)
    namespace = metadata.namespace or around.namespace
    name = metadata.name or f"{metadata.generate_name}*"
    label = f"{kind[1]} {namespace}/{name}"
    if kind == _JOB:
        return job_finding(label, namespace, judge_job(body))
    if kind == ("v1", "Pod"):
        shape = msgspec.convert(body, PodGateShape)
        return pod_finding(label, namespace, judge_shape(shape, namespace, around))
    if kind not in TEMPLATES:
        return None
    template: Any = body
    for part in TEMPLATES[kind]:
        template = template.get(part) if isinstance(template, Mapping) else None
    shape = msgspec.convert(template or {}, PodGateShape)
    if not shape.metadata.owner_references:
        owner = PodOwner(kind[0], kind[1], name)
        owned = msgspec.structs.replace(shape.metadata, owner_references=(owner,))
        shape = msgspec.structs.replace(shape, metadata=owned)
    answer = judge_shape(shape, namespace, around)
    if kind[1] == "StatefulSet" and answer.ruling is GateDecision.GATED:
        problem = read_source(Tool.STATEFUL_SET, body).problem
        warnings = (*answer.warnings, problem) if problem else answer.warnings
        answer = replace(answer, warnings=warnings)
    return pod_finding(f"Pod of {label}", namespace, answer)


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""


def judge_shape(shape: PodGateShape, namespace: str, around: Around) -> PodAnswer:
    """Return what would become of a pod."""
    return judge_pod(shape, namespace, opt_in_of(shape, around.labels), around.rules)
