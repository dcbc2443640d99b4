"""What admission does to pods of other tools, as functions of values (pure).

A pod that opts in gets a scheduling gate, which keeps kube-scheduler off until its gang has a
place, and the label by which the adoption controller finds it. Everything that must not wait for us
is excepted here, although the webhook configuration excepts it already: a configuration can be
edited, and what is judged twice by the same rules cannot end differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from fairlead.api import names
from fairlead.api.kubernetes.core import Toleration
from fairlead.api.meta import Wire

ENABLED = "enabled"
DISABLED = "disabled"
MIRROR = "kubernetes.io/config.mirror"
#: Profile that kube-scheduler has unless it was configured otherwise.
SCHEDULER = "default-scheduler"
#: Namespaces whose pods a cluster cannot start without.
SYSTEM_NAMESPACES = frozenset({"kube-system"})

Operation = Mapping[str, Any]  # one operation of a JSON patch (RFC 6902)


class PodOwner(Wire, frozen=True):
    """Who made the pod."""

    api_version: str = ""
    kind: str = ""
    name: str = ""


class PodMeta(Wire, frozen=True):
    """Metadata of a pod, as far as it matters; null is as good as nothing."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[PodOwner, ...] | None = None


class Gate(Wire, frozen=True):
    """A scheduling gate."""

    name: str = ""


class PodGates(Wire, frozen=True):
    """Spec of a pod, as far as it matters."""

    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: tuple[Gate, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    priority: int | None = None


class PodGateShape(Wire, frozen=True):
    """What of a pod decides on its gate and team; all else is not even decoded."""

    metadata: PodMeta = PodMeta()
    spec: PodGates = PodGates()

    @property
    def shown_name(self) -> str:
        """The name, or how it begins where the server is still to complete it."""
        metadata = self.metadata
        return metadata.name or (f"{metadata.generate_name}*" if metadata.generate_name else "")


class OptIn(Enum):
    """Who asked for gang scheduling."""

    NONE = "none"
    POD = "pod"
    NAMESPACE = "namespace"


class GateDecision(Enum):
    """What becomes of a pod's start, and why; only GATED changes it."""

    GATED = "gated"
    GATED_ALREADY = "gated-already"
    NOT_ASKED = "not-asked"
    DISABLED = "disabled"
    SYSTEM = "system-namespace"
    HAS_NODE = "has-node"
    MEMBER = "member-of-a-job"
    DAEMON = "daemon"
    MIRROR = "mirror"
    OTHER_SCHEDULER = "other-scheduler"


@dataclass(frozen=True, slots=True)
class GateRules:
    """What differs between installations."""

    #: Namespace of Fairlead's own pods: they cannot wait for themselves.
    own_namespace: str = names.OWN_NAMESPACE
    scheduler_names: frozenset[str] = frozenset({SCHEDULER})
    #: Namespaces of the cluster's own components: their pods may be on nodes of every team.
    system_namespaces: frozenset[str] = SYSTEM_NAMESPACES

    def is_system(self, namespace: str) -> bool:
        """True for a namespace of Fairlead or of the cluster's own components."""
        return namespace == self.own_namespace or namespace in self.system_namespaces


def system_with(namespaces: Iterable[str]) -> frozenset[str]:
    """Return the namespaces of the cluster's own components, given those beside kube-system."""
    return SYSTEM_NAMESPACES.union(namespaces)


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What happens to a new pod. `detail` is the value behind the ruling, such as a node's name."""

    ruling: GateDecision
    opt_in: OptIn
    detail: str = ""
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()


def opt_in_of(pod: PodGateShape, namespace_labels: Mapping[str, str]) -> OptIn:
    """Return who asked; the pod's own label goes first."""
    own = (pod.metadata.labels or {}).get(names.GANG_SCHEDULING)
    if own == ENABLED:
        return OptIn.POD
    if namespace_labels.get(names.GANG_SCHEDULING) == ENABLED:
        return OptIn.NAMESPACE
    return OptIn.NONE


def judge_pod(pod: PodGateShape, namespace: str, opt_in: OptIn, rules: GateRules) -> PodAnswer:
    """Return what happens to a pod that is about to be created in `namespace`."""
    exception = _exception(pod, namespace, opt_in, rules)
    if exception is not None:
        ruling, detail = exception
        return PodAnswer(ruling, opt_in, detail)
    gates = pod.spec.scheduling_gates or ()
    has_gate = any(gate.name == names.GANG_GATE for gate in gates)
    labels = pod.metadata.labels or {}
    label = labels.get(names.GANG_SCHEDULING)
    patch: list[Operation] = []
    if not has_gate:
        patch.append(_add_gate(gates))
    if label != ENABLED:
        patch += map_operations("/metadata/labels", labels, {names.GANG_SCHEDULING: ENABLED})
    warnings: tuple[str, ...] = ()
    if label not in (None, ENABLED):
        warnings = (
            f'label {names.GANG_SCHEDULING}: "{label[:63]}" was replaced by "{ENABLED}", which '
            f'the namespace says; accepted: "{ENABLED}", "{DISABLED}"',
        )
    ruling = GateDecision.GATED_ALREADY if has_gate else GateDecision.GATED
    return PodAnswer(ruling, opt_in, patch=tuple(patch), warnings=warnings)


def _exception(
    pod: PodGateShape, namespace: str, opt_in: OptIn, rules: GateRules
) -> tuple[GateDecision, str] | None:
    """Return why the pod is left alone; None when it is not."""
    metadata, spec = pod.metadata, pod.spec
    if (metadata.labels or {}).get(names.GANG_SCHEDULING) == DISABLED:
        return GateDecision.DISABLED, ""
    if opt_in is OptIn.NONE:
        return GateDecision.NOT_ASKED, ""
    if namespace in SYSTEM_NAMESPACES or namespace == rules.own_namespace:
        return GateDecision.SYSTEM, namespace
    if MIRROR in (metadata.annotations or {}):
        return GateDecision.MIRROR, ""
    for owner in metadata.owner_references or ():
        group = owner.api_version.partition("/")[0]
        if owner.kind == "Job" and group == names.GROUP:
            return GateDecision.MEMBER, owner.name
        if owner.kind == "DaemonSet":  # of any group: others make them, too
            return GateDecision.DAEMON, owner.name
    if spec.node_name:
        return GateDecision.HAS_NODE, spec.node_name
    scheduler = spec.scheduler_name or SCHEDULER
    if scheduler not in rules.scheduler_names:
        return GateDecision.OTHER_SCHEDULER, scheduler
    return None


def _add_gate(gates: Sequence[Gate]) -> Operation:
    gate = {"name": names.GANG_GATE}
    if gates:
        return {"op": "add", "path": "/spec/schedulingGates/-", "value": gate}
    # also where an empty list or a null stands: "add" replaces a member that is there
    return {"op": "add", "path": "/spec/schedulingGates", "value": [gate]}


def map_operations(
    path: str, there: Mapping[str, str] | None, values: Mapping[str, str]
) -> tuple[Operation, ...]:
    """Return what sets keys of a map of texts, such as labels, which may not be there yet."""
    if not values:
        return ()
    if not there:
        return ({"op": "add", "path": path, "value": dict(values)},)
    pointers = {key.replace("~", "~0").replace("/", "~1"): key for key in values}
    return tuple(
        {"op": "add", "path": f"{path}/{pointer}", "value": values[key]}
        for pointer, key in pointers.items()
    )


def reason_of(answer: PodAnswer) -> str:
    """Return the ruling in words that complete "the pod ..."."""
    label, detail = names.GANG_SCHEDULING, answer.detail
    match answer.ruling:
        case GateDecision.GATED:
            by = "its label" if answer.opt_in is OptIn.POD else "its namespace's label"
            return f"waits for its gang's place: {by} {label}={ENABLED} asks for it"
        case GateDecision.GATED_ALREADY:
            return f"waits for its gang's place: it has the gate {names.GANG_GATE} already"
        case GateDecision.NOT_ASKED:
            return f"is left alone: neither it nor its namespace has the label {label}={ENABLED}"
        case GateDecision.DISABLED:
            return f"is left alone: its label {label}={DISABLED} says so"
        case GateDecision.SYSTEM:
            return f"is left alone: pods of namespace {detail} never wait for Fairlead"
        case GateDecision.HAS_NODE:
            return f"is left alone: spec.nodeName is {detail}, so no scheduler looks at it"
        case GateDecision.MEMBER:
            return f"is left alone: it is a member of Fairlead's job {detail}"
        case GateDecision.DAEMON:
            return f"is left alone: DaemonSet {detail} wants it on each of its nodes"
        case GateDecision.MIRROR:
            return "is left alone: a kubelet runs it from a file, whatever the API says"
        case GateDecision.OTHER_SCHEDULER:
            return f"is left alone: spec.schedulerName {detail} is not kube-scheduler's"
        case _:
            assert_never(answer.ruling)
