"""Short ways to make API objects for tests: nodes, pods, jobs with sensible defaults.

Everything is explicit and deterministic: names, uids and instants follow from the arguments, so two
calls with equal arguments give equal objects. A test names only what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.cluster.team import Share, Team, TeamSpec
from fairlead.api.jobs.job import Job, JobSpec, JobStatus, Role, VerdictStatus
from fairlead.api.jobs.placement import Placement, RolePlacement
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import (
    Affinity,
    Container,
    ContainerImage,
    Node,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    PodTemplate,
    PriorityClass,
    ResourceRequirements,
    Taint,
    Toleration,
    Volume,
)
from fairlead.api.kubernetes.pod_parts import (
    ClaimVolumeSource,
    ContainerPort,
    PodAffinityTerm,
    PodAntiAffinity,
    TopologySpreadConstraint,
)
from fairlead.api.meta import Condition, LabelSelector, ObjectMeta, OwnerReference
from fairlead.api.values.quantity import CPU, GPU, MEMORY, PODS
from fairlead.api.values.times import format_time
from fairlead.decide.placement.actions import Action
from fairlead.decide.placement.outcome import status_after

#: 2026-01-01T00:00:00Z, the instant at which test worlds begin.
EPOCH = 1_767_225_600.0

Quantity = str | int | float


def make_node(
    name: str,
    *,
    gpus: int = 8,
    cpu: Quantity = 128,
    memory: Quantity = "1Ti",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    ready: bool = True,
    unschedulable: bool = False,
    uid: str = "",
    resource_version: int = 1,
    extra: Mapping[str, Quantity] | None = None,
    images: Sequence[str] | Mapping[str, int] = (),
) -> Node:
    """Return a node; `extra` adds further resources. It carries its hostname label.

    Each of `images` is the one name of an image that it reports, with its size where that is given.
    """
    sizes = images if isinstance(images, Mapping) else dict.fromkeys(images, 0)
    amounts: dict[str, Quantity] = {CPU: cpu, MEMORY: memory, PODS: pods, **(extra or {})}
    if gpus:
        amounts[GPU] = gpus
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=uid or f"node-{name}",
            resource_version=str(resource_version),
            creation_timestamp=format_time(EPOCH),
            labels={names.HOSTNAME: name, **(labels or {})},
            annotations=dict(annotations or {}),
        ),
        spec=NodeSpec(unschedulable=unschedulable, taints=tuple(taints)),
        status=NodeStatus(
            capacity=amounts,
            allocatable=amounts,
            conditions=(NodeCondition(type=names.READY, status="True" if ready else "False"),),
            images=tuple(ContainerImage((name,), size) for name, size in sizes.items()),
        ),
    )


def make_nodes(count: int, *, prefix: str = "node", **kwargs: Any) -> list[Node]:
    """Return `count` equal nodes named `<prefix>-0000` and so on."""
    return [make_node(f"{prefix}-{i:04d}", **kwargs) for i in range(count)]


def make_pod_spec(
    *,
    gpus: int = 0,
    cpu: Quantity = 0,
    memory: Quantity = 0,
    extra: Mapping[str, Quantity] | None = None,
    command: Sequence[str] = ("train",),
    image: str = "train:1",
    node_name: str = "",
    node_selector: Mapping[str, str] | None = None,
    affinity: Affinity | None = None,
    tolerations: Sequence[Toleration] = (),
    ports: Sequence[ContainerPort] = (),
    spreads: Sequence[TopologySpreadConstraint] = (),
    claims: Sequence[str] = (),
) -> PodSpec:
    """Return a pod spec with one container, named `main`, that requests these amounts.

    Each of `claims` is the name of a claim, and of the volume that it is.
    """
    requests: dict[str, Quantity] = dict(extra or {})
    requests.update({k: v for k, v in ((CPU, cpu), (MEMORY, memory), (GPU, gpus)) if v})
    limits = {k: v for k, v in requests.items() if "/" in k}  # devices take both, and equal
    return PodSpec(
        containers=(
            Container(
                name="main",
                image=image,
                command=tuple(command),
                resources=ResourceRequirements(requests=requests, limits=limits),
                ports=tuple(ports),
            ),
        ),
        node_name=node_name,
        node_selector=dict(node_selector or {}),
        affinity=affinity,
        tolerations=tuple(tolerations),
        restart_policy="Never",
        topology_spread_constraints=tuple(spreads),
        volumes=tuple(
            Volume(name, persistent_volume_claim=ClaimVolumeSource(name)) for name in claims
        ),
    )


def make_role(
    name: str = "worker",
    *,
    count: int = 1,
    min_count: int | None = None,
    pod_labels: Mapping[str, str] | None = None,
    **pod: Any,
) -> Role:
    """Return a role; further arguments are those of `make_pod_spec`."""
    template = PodTemplate(spec=make_pod_spec(**pod))
    if pod_labels:
        metadata = ObjectMeta(labels=dict(pod_labels))
        template = msgspec.structs.replace(template, metadata=metadata)
    return Role(name=name, count=count, min_count=min_count, template=template)


def make_anti_affinity(
    topology_key: str = names.HOSTNAME, namespaces: Sequence[str] = (), **labels: str
) -> Affinity:
    """Return an affinity that keeps a pod out of domains with pods that have these labels."""
    selector = LabelSelector(match_labels=labels)
    term = PodAffinityTerm(topology_key, selector, tuple(namespaces))
    return Affinity(pod_anti_affinity=PodAntiAffinity((term,)))


def make_spread(
    topology_key: str, max_skew: int = 1, when_unsatisfiable: str = "DoNotSchedule", **labels: str
) -> TopologySpreadConstraint:
    """Return a rule that spreads the pods with these labels."""
    selector = LabelSelector(match_labels=labels)
    return TopologySpreadConstraint(topology_key, max_skew, when_unsatisfiable, selector)


def make_priority_class(name: str, value: int, *, is_default: bool = False) -> PriorityClass:
    """Return a PriorityClass."""
    return PriorityClass(ObjectMeta(name=name, resource_version="1"), value, is_default)


def make_job(
    name: str,
    *,
    namespace: str = names.DEFAULT_NAMESPACE,
    count: int = 1,
    gpus: int = 8,
    cpu: Quantity = 0,
    memory: Quantity = 0,
    roles: Sequence[Role] | None = None,
    priority: int | None = None,
    attempt: int = 1,
    created: float = EPOCH,
    placement: Placement | None = None,
    verdict: VerdictStatus | None = None,
    conditions: Sequence[Condition] = (),
    topology: Topology | None = None,
    time_limit_seconds: int | None = None,
    suspend: bool = False,
    cancel: bool = False,
    uid: str = "",
    resource_version: int = 1,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **pod: Any,
) -> Job:
    """Return a job of one role `worker` (unless `roles` are given), admitted as attempt 1.

    `attempt=0` gives a job that the jobs controller has not admitted yet. `spec` and `status` set
    further fields by their Python names. Further arguments are those of `make_role`.
    """
    if roles is None:
        roles = (make_role(count=count, gpus=gpus, cpu=cpu, memory=memory, **pod),)
    return Job(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"job-{namespace}-{name}",
            resource_version=str(resource_version),
            generation=1,
            creation_timestamp=format_time(created),
            labels=dict(labels or {}),
        ),
        spec=JobSpec(
            roles=tuple(roles),
            priority=priority,
            topology=topology,
            time_limit_seconds=time_limit_seconds,
            suspend=suspend,
            cancel=cancel,
            **(spec or {}),
        ),
        status=JobStatus(
            attempt=attempt,
            placement=placement,
            verdict=verdict,
            conditions=tuple(conditions),
            **(status or {}),
        ),
    )


def make_team(
    name: str,
    *,
    nodes: int | None = None,
    gpus: int | None = None,
    pool: str = "",
    namespaces: Sequence[str] | None = None,
    shares: Sequence[Share] | None = None,
    resource_version: int = 1,
    **spec: Any,
) -> Team:
    """Return a team of the namespace of its name; `nodes`, `gpus` and `pool` make one share.

    `spec` sets further fields by their Python names.
    """
    if shares is None:
        has_share = nodes is not None or gpus is not None
        shares = (Share(pool=pool, nodes=nodes, gpus=gpus),) if has_share else ()
    spaces = (name,) if namespaces is None else tuple(namespaces)
    return Team(
        ObjectMeta(
            name=name, uid=f"team-{name}", resource_version=str(resource_version), generation=1,
            creation_timestamp=format_time(EPOCH),
        ),
        TeamSpec(namespaces=spaces, shares=tuple(shares), **spec),
    )  # fmt: skip


def make_placement(
    nodes: Mapping[str, Sequence[str]] | Sequence[str],
    *,
    attempt: int = 1,
    priority: int | None = None,
) -> Placement:
    """Return a placement: nodes per role, or the nodes of the role `worker`."""
    if not isinstance(nodes, Mapping):
        nodes = {"worker": nodes}
    roles = tuple(RolePlacement(role=role, nodes=tuple(nodes[role])) for role in nodes)
    at = format_time(EPOCH)
    return Placement(attempt=attempt, roles=roles, placed_at=at, priority=priority)


def make_pod(
    name: str,
    *,
    namespace: str = names.DEFAULT_NAMESPACE,
    node: str = "",
    phase: str = "Running",
    gpus: int = 0,
    cpu: Quantity = 0,
    memory: Quantity = 0,
    labels: Mapping[str, str] | None = None,
    owner: Job | None = None,
    uid: str = "",
    resource_version: int = 1,
    deleted: bool = False,
    **pod: Any,
) -> Pod:
    """Return a pod of `owner`, or without one; further arguments are those of `make_pod_spec`."""
    owners = ()
    if owner is not None:
        meta = owner.metadata
        owners = (
            OwnerReference(
                api_version=names.API_VERSION,
                kind="Job",
                name=meta.name,
                uid=meta.uid,
                controller=True,
            ),
        )
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"pod-{namespace}-{name}",
            resource_version=str(resource_version),
            creation_timestamp=format_time(EPOCH),
            deletion_timestamp=format_time(EPOCH) if deleted else None,
            labels=dict(labels or {}),
            owner_references=owners,
        ),
        spec=make_pod_spec(node_name=node, gpus=gpus, cpu=cpu, memory=memory, **pod),
        status=PodStatus(phase=phase),
    )


def make_member_pod(
    job: Job,
    index: int = 0,
    *,
    role: str = "worker",
    node: str = "",
    phase: str = "Running",
    **kwargs: Any,
) -> Pod:
    """Return the pod that the jobs controller makes for one member of the job's current attempt.

    `node` is taken from the placement when it is not given.
    """
    spec = next(r for r in job.spec.roles if r.name == role)
    rank = index
    for earlier in job.spec.roles:
        if earlier.name == role:
            break
        rank += job.sizes[earlier.name]
    if not node and job.status.placement is not None:
        node = next(r.nodes for r in job.status.placement.roles if r.role == role)[index]
    attempt = job.status.attempt
    labels = {
        **spec.template.metadata.labels,
        names.JOB_NAME: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
        names.ROLE: role,
        names.INDEX: str(index),
        names.RANK: str(rank),
        names.ATTEMPT: str(attempt),
    }
    pod = make_pod(
        f"{job.metadata.name}-{attempt}-{role}-{index}",
        namespace=job.metadata.namespace,
        phase=phase,
        labels=labels,
        owner=job,
        **kwargs,
    )
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(spec.template.spec, node_name=node)
    )


def as_written(action: Action) -> Job:
    """Return the job as the API shows it once the scheduler's action has been carried out."""
    job = action.job
    version = str(job.metadata.version + 1)
    metadata = msgspec.structs.replace(job.metadata, resource_version=version)
    return msgspec.structs.replace(job, metadata=metadata, status=status_after(action))
