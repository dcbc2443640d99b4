"""Every field of a pod's spec, and what becomes of it in the template of a job.

One table for admission, the reference page and the test that finds a field that a new version of
Kubernetes has and the table has not. Fields of PodSpec, v1, Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from fairlead.api.causes import cause
from fairlead.api.status import StatusCause


class Treatment(Enum):
    """What Fairlead does with a field."""

    #: The planner or the controllers act by it.
    HONOURED = "honoured"
    #: It is in the pods as it is in the template; what follows is for kubelets and kube-scheduler.
    PASSED_ON = "passed on"
    REFUSED = "refused"


class FieldRule(NamedTuple):
    """How a field is treated; `words` say what follows, or why it is refused and what to do."""

    treatment: Treatment
    words: str


_HONOURED, _PASSED_ON, _REFUSED = Treatment.HONOURED, Treatment.PASSED_ON, Treatment.REFUSED
_GROUP = (
    "a gang that kube-scheduler places as a whole gets a group from Fairlead; leave it out, and "
    "say what is to be together in spec.topology"
)
_GATES = (
    "a member is created once its gang has a place, and nothing would open the gate; hold the job "
    "with spec.suspend, or let it wait for another one with spec.after"
)

POD_FIELDS: Mapping[str, FieldRule] = {
    "activeDeadlineSeconds": FieldRule(
        _HONOURED, "Ends the member as DeadlineExceeded; quotas of its scope count the pod."
    ),
    "affinity": FieldRule(
        _HONOURED,
        "Node affinity and required anti-affinity between pods; other rules about pods are passed "
        "on, and kube-scheduler keeps them.",
    ),
    "automountServiceAccountToken": FieldRule(_PASSED_ON, ""),
    "containers": FieldRule(
        _HONOURED, "Requests, limits, host ports and images; the rest is passed on."
    ),
    "dnsConfig": FieldRule(_PASSED_ON, ""),
    "dnsPolicy": FieldRule(_PASSED_ON, ""),
    "enableServiceLinks": FieldRule(_PASSED_ON, ""),
    "ephemeralContainers": FieldRule(
        _REFUSED, "they are added to a pod that runs, by kubectl debug; leave them out"
    ),
    "evictionResponders": FieldRule(_PASSED_ON, ""),
    "hostAliases": FieldRule(_PASSED_ON, ""),
    "hostIPC": FieldRule(_PASSED_ON, ""),
    "hostNetwork": FieldRule(_HONOURED, "Each port of a container is one of its node."),
    "hostPID": FieldRule(_PASSED_ON, ""),
    "hostUsers": FieldRule(_PASSED_ON, ""),
    "hostname": FieldRule(
        _HONOURED, "Of a lone member. Members of a gang that find each other by DNS have their own."
    ),
    "hostnameOverride": FieldRule(_PASSED_ON, ""),
    "imagePullSecrets": FieldRule(_PASSED_ON, ""),
    "initContainers": FieldRule(_HONOURED, "As containers; sidecars count beside them."),
    "nodeName": FieldRule(
        _REFUSED,
        "the scheduler sets the node of every member; use nodeSelector to choose among nodes",
    ),
    "nodeSelector": FieldRule(_HONOURED, ""),
    "os": FieldRule(_PASSED_ON, "A kubelet of another system refuses the pod."),
    "overhead": FieldRule(
        _HONOURED,
        "Counts beside the containers. The API server demands that it is the overhead of the "
        "runtime class.",
    ),
    "preemptionPolicy": FieldRule(
        _PASSED_ON, "Whether a gang preempts others follows from its PriorityClass."
    ),
    "priority": FieldRule(_HONOURED, "Follows from the PriorityClass; another value is refused."),
    "priorityClassName": FieldRule(_HONOURED, ""),
    "readinessGates": FieldRule(_PASSED_ON, ""),
    "resourceClaims": FieldRule(
        _HONOURED,
        "A member goes where the devices that its claims ask for are free; where another scheduler "
        "is, that one binds it and allocates them.",
    ),
    "resources": FieldRule(
        _HONOURED, "What the pod asks for as a whole counts in place of its containers' sum."
    ),
    "restartPolicy": FieldRule(
        _HONOURED, "Never, and nothing else is accepted: members restart as a gang."
    ),
    "runtimeClassName": FieldRule(
        _PASSED_ON,
        "The planner does not read runtime classes: repeat overhead, node selector and tolerations "
        "of the class in the template.",
    ),
    "schedulerName": FieldRule(
        _PASSED_ON, "On nodes that are bound directly no scheduler is asked."
    ),
    "schedulingGates": FieldRule(_REFUSED, _GATES),
    "schedulingGroup": FieldRule(_REFUSED, _GROUP),
    "securityContext": FieldRule(_PASSED_ON, ""),
    "serviceAccount": FieldRule(_PASSED_ON, ""),
    "serviceAccountName": FieldRule(_PASSED_ON, ""),
    "setHostnameAsFQDN": FieldRule(_PASSED_ON, ""),
    "shareProcessNamespace": FieldRule(_PASSED_ON, ""),
    "subdomain": FieldRule(
        _HONOURED, "As hostname: members of a gang have that of the service of their job."
    ),
    "terminationGracePeriodSeconds": FieldRule(_HONOURED, ""),
    "tolerations": FieldRule(_HONOURED, "That of the job's team is added."),
    "topologySpreadConstraints": FieldRule(
        _HONOURED, "With DoNotSchedule; others are passed on as wishes."
    ),
    "volumes": FieldRule(
        _HONOURED,
        "A member goes where the volumes of its claims can be reached; where another scheduler is, "
        "that one binds it and has volumes made.",
    ),
    # Of 1.35 only, where it is an alpha feature.
    "workloadRef": FieldRule(_REFUSED, _GROUP),
}
REFUSED = tuple(name for name, rule in POD_FIELDS.items() if rule.treatment is _REFUSED)


def refused_causes(spec: Mapping[str, Any], path: str) -> Iterator[StatusCause]:
    """Yield the fields of a pod's spec, plain JSON at `path`, that no template may have."""
    for name in REFUSED:
        if spec.get(name):
            words = POD_FIELDS[name].words
            yield cause("Forbidden", f"{path}.{name}", f"Forbidden: {words}")
