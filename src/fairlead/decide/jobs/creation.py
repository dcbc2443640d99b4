"""What an open attempt lacks: pods, the service and the ConfigMap of the gang, the PodGroup."""

from __future__ import annotations

from fairlead.decide.jobs import members, native
from fairlead.decide.jobs.actions import (
    Action,
    CreateConfigMap,
    CreatePod,
    CreatePodGroup,
    CreateService,
)
from fairlead.decide.jobs.member_restarts import absent_members
from fairlead.decide.jobs.policy import PeerNaming
from fairlead.decide.jobs.view import JobView


def create_missing(view: JobView) -> tuple[Action, ...]:
    """Create what is missing; while the API holds it back, one object from time to time."""
    refused = view.refused
    if refused is None:
        return _all_missing(view)
    return _all_missing(view)[:1] if view.now >= refused.retry_at else ()


def _all_missing(view: JobView) -> tuple[Action, ...]:
    """Create what the placement asks for: pods, and after or before them what they share."""
    job, pods = view.job, view.current
    attempt = job.status.attempts[-1]
    actions: list[Action] = []
    uses_dns = view.policy.peer_naming is PeerNaming.DNS
    has_service = members.service_name(job) in view.services
    has_map = members.gang_map_name(job, attempt.number) in view.config_maps
    if members.needs_service(job, view.policy) and not has_service:
        actions.append(CreateService(job, members.headless_service(job)))
    complete = len(pods.members) >= job.member_count and pods.addressed_count >= job.member_count
    # Containers wait for the ConfigMap: pinned members start once all of them have a node.
    is_settled = view.policy.binding is None or pods.bound_count >= job.member_count
    is_due = complete or (uses_dns and is_settled)
    if members.needs_gang_map(job) and not has_map and is_due:
        actions.append(CreateConfigMap(job, members.gang_map(job, view.policy, pods)))
    group = native.group_name(job, attempt.number)
    if group not in view.pod_groups:
        assert job.status.placement is not None
        placement = job.status.placement
        if not pods.members and native.is_native(
            job, placement, view.policy, view.bindings, spares=view.spares
        ):
            return (*actions, CreatePodGroup(job))  # a gang's pods come after its group
        group = ""
    if len(pods.members) < job.member_count:
        resume_step = attempt.resumed_from_step
        if attempt.started_at and job.status.progress is not None:  # policy Member
            resume_step = job.status.progress.checkpoint_step
        missing = members.missing_pods(
            job, view.policy, pods,
            resume_step=resume_step, absent=absent_members(job.status, view.now),
            bindings=view.bindings, group=group,
        )  # fmt: skip
        actions.extend(CreatePod(job, pod) for pod in missing)
    return tuple(actions)
