"""The native way: kube-scheduler places the gang itself, as a PodGroup.

Our planner still says when: a gang is handed over only once it fits, and its placement keeps the
room in our books. But no member names a node. kube-scheduler binds all or none, and where the gang
ends up is written back as its placement (`RecordActualPlacement`).

For gangs that kube-scheduler can place as we mean it, and that it can place soon: without a
topology or a claim for devices that members share, and not big. Its work for a group grows with the
square of the members (measured, 1.36: 1 s for 250, 7 s for 1,000, 31 s for 2,000), so bigger ones
are pinned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement, nodes_of
from fairlead.api.meta import to_wire
from fairlead.api.podgroups import GroupApi
from fairlead.decide.jobs.following.pods import MemberPod
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.owned import owned_metadata
from fairlead.decide.pinning import Binding

TEMPLATE = "gang"


def is_native(
    job: Job,
    placement: Placement,
    policy: JobsPolicy,
    labelled: Mapping[str, Binding],
    *,
    spares: Collection[str] = (),
) -> bool:
    """True when kube-scheduler is to place this gang, asked before its first pod is made.

    Not one with a member on a spare: it would have to tolerate all of them, and might take others.
    From then on its PodGroup decides: labels of nodes may change, and no gang is of two kinds.
    """
    if policy.groups is None or job.spec.topology is not None or _shares_devices(job):
        return False
    if not 2 <= job.member_count <= policy.native_members_max:
        return False
    nodes = set(nodes_of(placement))
    return all(
        policy.binding_on(node, labelled) is Binding.NATIVE and node not in spares for node in nodes
    )


def _shares_devices(job: Job) -> bool:
    """True where the devices of the first member that is bound decide on the node of the others."""
    claims = (each for role in job.spec.roles for each in role.template.spec.resource_claims)
    return any(each.resource_claim_name for each in claims)


def group_name(job: Job, attempt: int) -> str:
    """Return the derived name of an attempt's PodGroup."""
    return f"{job.metadata.name}-{attempt}"


def workload_body(job: Job) -> dict[str, Any]:
    """Return the job's Workload; alike in all versions."""
    metadata = to_wire(owned_metadata(job, job.metadata.name, 0))
    owner = {"apiGroup": names.GROUP, "kind": "Job", "name": job.metadata.name}
    template = {"name": TEMPLATE, "schedulingPolicy": _policy(job)}
    spec = {"controllerRef": owner, "podGroupTemplates": [template]}
    return {"metadata": metadata, "spec": spec}


def pod_group_body(job: Job, api: GroupApi) -> dict[str, Any]:
    """Return the current attempt's PodGroup as this version has it.

    Fields: k8s.io/api, scheduling/v1beta1/types.go (1.37) and scheduling/v1alpha2/types.go (1.36).
    """
    name, attempt = job.metadata.name, job.status.attempt
    metadata = to_wire(owned_metadata(job, group_name(job, attempt), attempt))
    match api:
        case GroupApi.V1BETA1:
            made_from = {"workloadRef": {"workloadName": name, "templateName": TEMPLATE}}
        case GroupApi.V1ALPHA2:
            template = {"workloadName": name, "podGroupTemplateName": TEMPLATE}
            made_from = {"podGroupTemplateRef": {"workload": template}}
    return {"metadata": metadata, "spec": {**made_from, "schedulingPolicy": _policy(job)}}


def node_for(member: MemberPod, placement: Placement | None) -> str:
    """Return the node that a member is on or meant for; "" when it has no place."""
    for place in placement.roles if placement is not None and not member.node else ():
        if place.role == member.role and 0 <= member.index < len(place.nodes):
            return place.nodes[member.index]
    return member.node


def _policy(job: Job) -> dict[str, Any]:
    return {"gang": {"minCount": job.member_count}}
