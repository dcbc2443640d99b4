"""What is special about pods: defaults, priority, tolerations, quality of service, grace.

Sources: kubernetes `pkg/apis/core/v1/defaults.go`, `pkg/registry/core/pod/strategy.go`,
`plugin/pkg/admission/priority`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.api.kubernetes import core
from fairlead.api.kubernetes.core import GRACE_SECONDS_DEFAULT, GRACE_SECONDS_MAX
from fairlead.api.meta import to_wire
from fairlead.api.names import API_VERSION, GANG_GATE
from fairlead.api.status import Forbidden, StatusDetails
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.decide.admission.pod_teams import TeamAnswer, judge_team
from fairlead.embedded.builtins import NODES, PODS, PRIORITY_CLASSES
from fairlead.embedded.quota import ANNOTATION, filled_spec
from fairlead.embedded.storage.records import Record
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Finding
from fairlead.embedded.verbs.options import DeleteOptions
from fairlead.embedded.verbs.strategies import pod_resize, pod_shapes, validation
from fairlead.embedded.verbs.strategies.pod_defaults import (
    add_tolerations,
    default_pod_spec,
    qos_class,
    spec_of,
)
from fairlead.embedded.verbs.strategies.pod_shapes import PodShape, shape_of
from fairlead.embedded.verbs.strategies.strategy import Obj, Strategy
from fairlead.model.asks.teams import owner_of

#: More is taken as this: 68 years, the bound that Kubernetes has on a pod's deadline. A longer one
#: would mark the pod with a year that is no RFC 3339 time.
_RULES = GateRules()


class PodStrategy(Strategy):
    """Pods."""

    shows_mark = True
    added = ("priority", "priorityClassName", "preemptionPolicy", "tolerations")

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        """Default a pod, by its shape if it has one; Forbidden when its priority can't be."""
        given = spec_of(obj)
        if obj["metadata"].get("namespace") in context.ranges:
            given = _with_ranges(context, obj["metadata"], given)
        shape = shape_of(given)
        if shape is not None:
            spec, qos = shape.filled(given), shape.qos
        else:
            spec = default_pod_spec(given)
            add_tolerations(spec)
            qos = qos_class(spec)
        _set_priority(context, obj["metadata"]["name"], spec)
        if _set_team(context, obj["metadata"], spec):
            shape = None  # it has other tolerations than the pods of its shape
        status: Obj = {"phase": "Pending", "qosClass": qos}
        if spec.get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": None, "lastTransitionTime": context.now_text(),
                }
            ]  # fmt: skip
        obj["spec"] = spec
        obj["status"] = status
        return shape

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        """Default a changed spec; most of it may not change, and other parts by a resize."""
        if sub == pod_resize.SUBRESOURCE:
            return _admit_resize(context, old, new)
        if sub or new.get("spec") == old.get("spec"):
            return []
        spec = new["spec"] = default_pod_spec(new.get("spec") or {})
        add_tolerations(spec)
        for field in ("priority", "preemptionPolicy"):
            if field not in spec and field in old["spec"]:
                spec[field] = old["spec"][field]
        _check_added(context, old, new)
        return [*validation.pod_update_problems(old["spec"], spec)]

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        """Judge the spec, by its shape if it has one."""
        shape = shape or shape_of(obj["spec"])
        return pod_shapes.pod_problems(record.typed(core.Pod), shape)

    def status_after(self, old: Obj, status: Any) -> Any:
        """The quality of service follows from the spec."""
        before = old.get("status") or {}
        return {**status, "qosClass": before["qosClass"]} if "qosClass" in before else status

    def grace_seconds(self, obj: Obj, options: DeleteOptions) -> int:
        """As asked, else the pod's own; none without a node or once it has ended."""
        spec = obj.get("spec") or {}
        phase = (obj.get("status") or {}).get("phase")
        if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0
        grace = options.grace_period_seconds
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds", GRACE_SECONDS_DEFAULT)
        return min(grace, GRACE_SECONDS_MAX) if grace >= 0 else 1


def _admit_resize(context: Context, old: Obj, new: Obj) -> list[Finding]:
    given = spec_of(new)
    if new["metadata"].get("namespace") in context.ranges:
        given = _with_ranges(context, dict(new["metadata"]), given)
    new["spec"] = pod_resize.resized(old["spec"], default_pod_spec(given))
    return [*pod_resize.resize_problems(old, new)]


def _with_ranges(context: Context, metadata: Obj, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec with the requests and limits that limit ranges fill in, and say which."""
    ranges = [each.plain() for each in context.ranges.of(context.store, metadata["namespace"])]
    spec, note = filled_spec(ranges, default_pod_spec(given))
    if not note:
        return given
    metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION: note}
    return spec


def _set_priority(context: Context, pod_name: str, spec: Obj) -> None:
    name = spec.get("priorityClassName")
    if name:
        record = context.store.latest(PRIORITY_CLASSES.name, ("", name))
        if record is None:
            why = f"no PriorityClass with name {name} was found"
            raise errors.forbidden(PODS, pod_name, why)
        found = record.typed(core.PriorityClass)
    else:
        found = context.priorities.of(context.store)[1]
    value, policy = (found.value, found.preemption_policy) if found else (0, "PreemptLowerPriority")
    asked = spec.get("priority")
    if asked is not None and asked != value:
        why = (
            f"the integer value of priority ({asked}) must not be provided in pod spec; priority "
            f"admission controller computed {value} from the given PriorityClass name"
        )
        raise Forbidden(
            f'pods "{pod_name}" is forbidden: {why}',
            details=StatusDetails(name=pod_name, kind="pods"),
        )
    if found:
        spec["priorityClassName"] = found.metadata.name
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", policy)


def _set_team(context: Context, metadata: Obj, spec: Obj) -> bool:
    """Give a pod that Fairlead does not place its team's tolerations; True when it got some.

    Forbidden where it claims those of other teams.
    """
    if not len(context.teams.of(context.store)):
        return False
    node = spec.get("nodeName")
    judged = _judge_team(context, metadata, spec, node_team=_team_of(context, node) if node else "")
    if not judged.added or node:
        return False
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *to_wire(judged.added)]
    return True


def _check_added(context: Context, old: Obj, new: Obj) -> None:
    """Forbidden where tolerations of other teams are added to a pod that waits for a node.

    A release onto the place of a gang is not asked about: it follows from the placement. All users
    are administrators here, so whose release it is makes no difference.
    """
    before, after = old["spec"], new["spec"]
    own, known = (spec.get("tolerations") or [] for spec in (after, before))
    if own == known or before.get("nodeName") or (_is_gated(before) and not _is_gated(after)):
        return
    _judge_team(context, new["metadata"], after, before=known)


def _judge_team(
    context: Context, metadata: Obj, spec: Obj, *, before: list[Any] | None = None,
    node_team: str = "",
) -> TeamAnswer:  # fmt: skip
    """Return the tolerations that a pod is to get; Forbidden."""
    teams, namespace = context.teams.of(context.store), metadata.get("namespace", "")
    if not len(teams) or _RULES.is_system(namespace) or _is_member(metadata):
        return TeamAnswer()
    judged = judge_team(
        msgspec.convert(spec.get("tolerations") or [], tuple[core.Toleration, ...]),
        metadata.get("labels") or {}, teams, priority=spec.get("priority") or 0,
        namespace=namespace,
        is_gated=_is_gated(spec), node_team=node_team,
        before=None if before is None else msgspec.convert(before, list[core.Toleration]),
    )  # fmt: skip
    if judged.refusal:
        raise errors.forbidden(PODS, metadata["name"], judged.refusal)
    return judged


def _team_of(context: Context, node: str) -> str:
    record = context.store.latest(NODES.name, ("", node))
    return owner_of(record.typed(core.Node).spec.taints) if record is not None else ""


def _is_gated(spec: Obj) -> bool:
    """True while our gate keeps a pod from being scheduled."""
    return any(gate.get("name") == GANG_GATE for gate in spec.get("schedulingGates") or ())


def _is_member(metadata: Obj) -> bool:
    """True for a member of one of our jobs, which says itself what it tolerates."""
    owners = metadata.get("ownerReferences") or ()
    return any(o.get("kind") == "Job" and o.get("apiVersion") == API_VERSION for o in owners)
