"""What a gang's members are made of: pods, the ConfigMap of the gang, the headless service.

Everything follows from the job and its placement, so making it again gives the same. What members
of a role share is built once per role and shared between their pods; one member then costs a
name, two labels and five variables. docs/design/architecture.md "A member" is the contract.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import (
    ConfigMap,
    Container,
    EnvVar,
    EnvVarSource,
    FieldSelector,
    Pod,
    PodSpec,
    Service,
    ServicePort,
    ServiceSpec,
    Volume,
    VolumeMount,
)
from fairlead.api.kubernetes.pod_parts import (
    ConfigMapVolumeSource,
    DownwardFile,
    DownwardVolumeSource,
    EnvFromSource,
    EnvironmentReference,
    PodSchedulingGroup,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.pods.served_resources import ResourceNames, served_asks
from fairlead.decide.attempts.seats import Seat, member_name, seats
from fairlead.decide.jobs.following.pods import AttemptPods
from fairlead.decide.jobs.following.progress import TERMINATION_LOG, progress_file
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.rendering.checkpoints import CheckpointPlace, checkpoint_volume
from fairlead.decide.jobs.rendering.mpi import key_volume, needs_key
from fairlead.decide.jobs.rendering.owned import (
    own_volumes,
    owned_labels,
    owned_metadata,
    owner_reference,
)
from fairlead.decide.jobs.rendering.preflight import gate_container
from fairlead.decide.jobs.rendering.slurm_variables import (
    launchers_unset,
    node_list_names,
    node_lists,
    slurm_variables,
)
from fairlead.decide.pinning import Binding, native_affinity, pinned_affinity
from fairlead.model.asks.teams import with_team
from fairlead.model.claimed.job_claims import claims_of_pod
from fairlead.model.inventory.spares import with_spares

PEERS_VOLUME = "fairlead-peers"
HOSTFILE = "hostfile"

#: The JSON list of peers is left out when it is longer.
PEERS_BYTES_MAX = 512 * 1024

#: Variables that a template may set for itself; all others of ours win over the template's.
USER_MAY_SET = frozenset(
    (
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_PORT",
        "PET_MASTER_PORT",
        "PET_NPROC_PER_NODE",
        *names.ENV_NUMBER,
    )
)


def gang_map_name(job: Job, attempt: int) -> str:
    """Return the derived name of the ConfigMap of an attempt's gang."""
    return f"{job.metadata.name}-{attempt}-gang"


def needs_gang_map(job: Job) -> bool:
    """True for a gang; a lone member has its variables and its host file in its pod."""
    return job.member_count > 1


def service_name(job: Job) -> str:
    """Return the derived name of the job's headless service (DNS naming only)."""
    return f"{job.metadata.name}-peers"


def needs_service(job: Job, policy: JobsPolicy) -> bool:
    """True when members find each other by DNS; one alone is its own peer, at localhost."""
    return policy.peer_naming is PeerNaming.DNS and job.member_count > 1


class PodFactory:
    """Makes the pods of one attempt; what the members of a role share is built once."""

    def __init__(
        self,
        job: Job,
        policy: JobsPolicy,
        *,
        resume_step: int | None,
        group: str = "",
        served: ResourceNames = (),
    ) -> None:
        """`group` is the PodGroup of a native gang, `served` the resources of containers that
        devices serve.
        """
        self._job = job
        self._policy = policy
        self._group, self._served = group, served
        self._attempt = job.status.attempt
        self._resume_step = resume_step
        self._owners = (owner_reference(job),)
        self._shared: dict[str, _Shared] = {}

    def make(self, seat: Seat, binding: Binding = Binding.DIRECT) -> Pod:
        """Return the member's pod; `binding` is of its node, and not asked of a native gang."""
        shared = self._shared.get(seat.role.name)
        if shared is None:
            shared = self._shared[seat.role.name] = self._share(seat.role)
        rank, index = str(seat.rank), str(seat.index)
        env = _member_env(rank, index, launchers_unset(self._job))
        containers = tuple([_with_env(c, e, env) for c, e in shared.containers])
        inits = tuple([_with_env(c, e, env) for c, e in shared.init_containers])
        hostname = f"{seat.role.name}-{index}" if shared.subdomain else shared.spec.hostname
        given = shared.spec
        if own := own_volumes(self._job, seat.role, seat.index):
            given = replace(given, volumes=(*given.volumes, *own))
        spec = replace(
            given if self._group else _bound(shared, given, seat.node, binding),
            containers=containers,
            init_containers=inits,
            hostname=hostname,
        )
        metadata = ObjectMeta(
            name=f"{shared.name_prefix}{index}",
            namespace=self._job.metadata.namespace,
            labels={**shared.labels, names.INDEX: index, names.RANK: rank},
            annotations=shared.annotations,
            owner_references=self._owners,
        )
        return Pod(metadata=metadata, spec=spec)

    def _share(self, role: Role) -> _Shared:
        job, template = self._job, role.template
        labels = {**template.metadata.labels, **owned_labels(job, self._attempt)}
        labels[names.ROLE] = role.name
        placement = job.status.placement
        team = placement.team if placement is not None else ""
        if team or job.spec.team:
            labels[names.TEAM] = team or job.spec.team
        may_borrow = placement is not None and placement.may_borrow
        volumes, mounts = _volumes(job, checkpoint_volume(job, self._policy))
        shared = _shared_env(job, role, self._policy, self._resume_step)
        annotations = template.metadata.annotations
        if not needs_gang_map(job):
            annotations = {**annotations, names.HOSTFILE: _LONE_HOSTFILE}
        own = {v.name for v in volumes}
        subdomain = service_name(job) if needs_service(job, self._policy) else ""
        spec = replace(
            template.spec,
            volumes=(*(v for v in template.spec.volumes if v.name not in own), *volumes),
            restart_policy="Never",
            priority_class_name=template.spec.priority_class_name or job.spec.priority_class_name,
            subdomain=subdomain or template.spec.subdomain,
            tolerations=with_team(template.spec.tolerations, team, may_borrow=may_borrow),
        )
        if self._group:
            assert self._policy.binding is not None
            affinity = native_affinity(spec.affinity, self._policy.binding)
            group = PodSchedulingGroup(self._group)
            spec = replace(spec, affinity=affinity, scheduling_group=group)
        return _Shared(
            spec=spec,
            labels=labels,
            annotations=annotations,
            containers=_prepare(template.spec.containers, shared, mounts),
            init_containers=(
                *_gate(job, role, self._policy, shared=shared, mounts=mounts),
                *_prepare(template.spec.init_containers, shared, mounts),
            ),
            name_prefix=member_name(job, self._attempt, role.name, 0)[:-1],
            subdomain=subdomain,
            has_binder=self._has_binder(role, spec),
        )

    def _has_binder(self, role: Role, spec: PodSpec) -> bool:
        """True when members are pinned on all nodes: where there is another scheduler, those with
        claims. It has volumes made for them and waits until they are bound, and it allocates
        devices, also for resources of containers that these serve.
        """
        if self._policy.binding is None:
            return False
        claims = spec.resource_claims or claims_of_pod(spec) or role.volume_claim_templates
        return bool(claims or served_asks(spec, self._served))


def _bound(shared: _Shared, spec: PodSpec, node: str, binding: Binding) -> PodSpec:
    """Return the spec of a member on a node."""
    if binding is Binding.DIRECT and not shared.has_binder:
        return replace(spec, node_name=node)
    return _pinned(spec, node)


def _pinned(spec: PodSpec, node: str) -> PodSpec:
    affinity = pinned_affinity(spec.affinity, node)
    tolerations = with_spares(spec.tolerations)
    return replace(spec, node_name="", affinity=affinity, tolerations=tolerations)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the pods of a role share; containers come with the variables that they share."""

    spec: PodSpec
    labels: dict[str, str]
    annotations: dict[str, str]
    containers: tuple[tuple[Container, tuple[EnvVar, ...]], ...]
    init_containers: tuple[tuple[Container, tuple[EnvVar, ...]], ...]
    name_prefix: str
    subdomain: str
    has_binder: bool


#: Names of the variables that differ between members.
_MEMBER_ENV = (names.ENV_INDEX, "RANK", "GROUP_RANK", "NODE_RANK", "PET_NODE_RANK")


def _member_env(rank: str, index: str, unset: frozenset[str]) -> tuple[EnvVar, ...]:
    values = (index, rank, rank, rank, rank)
    named = zip(_MEMBER_ENV, values, strict=True)
    return tuple([EnvVar(name, value) for name, value in named if name not in unset])


#: Members append progress, and what they record of their run, to one file.
_REPORTS = (names.ENV_PROGRESS_FILE, names.ENV_RUN_FILE)


def _with_env(
    container: Container, user_env: tuple[EnvVar, ...], member_env: tuple[EnvVar, ...]
) -> Container:
    """Ours come first, so that the user's may refer to them as `$(RANK)`."""
    return replace(container, env=container.env + member_env + user_env)


@dataclass(frozen=True, slots=True)
class _SharedEnv:
    """The variables that the members of a role share, and the source of those of the gang."""

    env: dict[str, EnvVar]
    env_from: tuple[EnvFromSource, ...]
    #: Names that a template may not set; ours have them, in `env`, `env_from` or the member's own.
    reserved: frozenset[str]


def _prepare(
    containers: tuple[Container, ...], shared: _SharedEnv, mounts: tuple[VolumeMount, ...]
) -> tuple[tuple[Container, tuple[EnvVar, ...]], ...]:
    """Return each container with our shared variables and mounts, and its own variables apart.

    Of two sources of variables the later one wins, and what `env` names wins over both.
    """
    paths = {m.mount_path for m in mounts}
    out: list[tuple[Container, tuple[EnvVar, ...]]] = []
    for container in containers:
        user_env = tuple(v for v in container.env if v.name not in shared.reserved)
        ours, file = shared.env, progress_file(container)
        if file != TERMINATION_LOG:
            ours = {**ours, **{name: EnvVar(name, file) for name in _REPORTS}}
        user_names = {v.name for v in user_env}
        own_mounts = (m for m in container.volume_mounts if m.mount_path not in paths)
        prepared = replace(
            container,
            env=tuple([v for v in ours.values() if v.name not in user_names]),
            env_from=(*container.env_from, *shared.env_from),
            volume_mounts=(*own_mounts, *mounts),
        )
        out.append((prepared, user_env))
    return tuple(out)


def _gate(
    job: Job,
    role: Role,
    policy: JobsPolicy,
    *,
    shared: _SharedEnv,
    mounts: tuple[VolumeMount, ...],
) -> tuple[tuple[Container, tuple[EnvVar, ...]], ...]:
    """Return the container that tests the node, with what members need to find each other."""
    container = gate_container(job, role, policy)
    if container is None:
        return ()
    needed = (names.PEERS_MOUNT, names.MPI_KEY_MOUNT)
    return _prepare((container,), shared, tuple(m for m in mounts if m.mount_path in needed))


def _gang_variables(job: Job, policy: JobsPolicy) -> dict[str, str]:
    """Return what all members see alike, but for the address of the first one."""
    size, port = str(job.member_count), str(names.MASTER_PORT)
    variables = {
        names.ENV_JOB: job.metadata.name,
        names.ENV_JOB_UID: job.metadata.uid,
        names.ENV_ATTEMPT: str(job.status.attempt),
        names.ENV_HOSTFILE: f"{names.PEERS_MOUNT}/{HOSTFILE}",
        **dict.fromkeys(_REPORTS, TERMINATION_LOG),
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_PORT": port,
        "PET_NNODES": size,
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_PORT": port,
    }
    if job.status.number:
        variables.update(dict.fromkeys(names.ENV_NUMBER, str(job.status.number)))
    if needs_key(job):
        variables[names.ENV_MPI_KEY_FILE] = f"{names.MPI_KEY_MOUNT}/{names.MPI_KEY}"
    checkpoint = checkpoint_volume(job, policy)
    if checkpoint is not None:
        variables[names.ENV_CHECKPOINT_DIR] = checkpoint.directory
    unset = launchers_unset(job)
    return {k: v for k, v in (variables | slurm_variables(job)).items() if k not in unset}


#: The variables with the address of rank 0.
_MASTER_ENV = ("MASTER_ADDR", "PET_MASTER_ADDR")
_LONE_HOSTFILE = "localhost slots=1\n"


def _shared_env(job: Job, role: Role, policy: JobsPolicy, resume_step: int | None) -> _SharedEnv:
    """Return the variables of a role's members: a gang's come from its ConfigMap.

    The step to resume from is with the pod: a member that is replaced begins at a later one.
    """
    gang = _gang_variables(job, policy)
    addresses = (*_MASTER_ENV, *node_list_names(job))
    env: dict[str, EnvVar] = {}
    env_from: tuple[EnvFromSource, ...] = ()
    if needs_gang_map(job):
        source = EnvironmentReference(gang_map_name(job, job.status.attempt))
        env_from = (EnvFromSource(config_map_ref=source),)
    else:
        env = {name: EnvVar(name, value) for name, value in gang.items()}
        env.update((name, _lone_address(name, policy)) for name in addresses)
    env[names.ENV_ROLE] = EnvVar(names.ENV_ROLE, role.name)
    if resume_step is not None:
        env[names.ENV_RESUME_STEP] = EnvVar(names.ENV_RESUME_STEP, str(resume_step))
    reserved = {*gang, *addresses, *env} - USER_MAY_SET | {*_MEMBER_ENV}
    return _SharedEnv(env, env_from, frozenset(reserved))


def _lone_address(name: str, policy: JobsPolicy) -> EnvVar:
    """Return the variable with the address of a member that is alone.

    Where pods share a machine's loopback network, its own address keeps the ports of two apart.
    """
    if policy.peer_naming is PeerNaming.DNS:
        return EnvVar(name, "localhost")
    return EnvVar(name, value_from=EnvVarSource(field_ref=FieldSelector("status.podIP")))


def _volumes(
    job: Job, checkpoint: CheckpointPlace | None
) -> tuple[tuple[Volume, ...], tuple[VolumeMount, ...]]:
    if needs_gang_map(job):
        source = ConfigMapVolumeSource(name=gang_map_name(job, job.status.attempt))
        volumes = [Volume(PEERS_VOLUME, config_map=source)]
    else:
        field = FieldSelector(f"metadata.annotations['{names.HOSTFILE}']")
        files = DownwardVolumeSource((DownwardFile(HOSTFILE, field),))
        volumes = [Volume(PEERS_VOLUME, downward_api=files)]
    mounts = [VolumeMount(PEERS_VOLUME, names.PEERS_MOUNT, read_only=True)]
    if needs_key(job):
        volume, mount = key_volume(job)
        volumes.append(volume)
        mounts.append(mount)
    if checkpoint is not None:
        volumes.append(checkpoint.volume)
        mounts.append(checkpoint.mount)
    return tuple(volumes), tuple(mounts)


def missing_pods(
    job: Job,
    policy: JobsPolicy,
    pods: AttemptPods,
    *,
    resume_step: int | None,
    absent: Collection[tuple[str, int]] = (),
    bindings: Mapping[str, Binding] | None = None,
    group: str = "",
    served: ResourceNames = (),
) -> Iterator[Pod]:
    """Yield the pods that the placement asks for and that are not there, in rank order.

    `absent` are the (role, index) of members that shall stay away for now, `bindings` the nodes
    that say how members are bound there. `group` and `served` are as in `PodFactory`.
    """
    placement = job.status.placement
    if placement is None:
        return
    factory = PodFactory(job, policy, resume_step=resume_step, group=group, served=served)
    attempt = job.status.attempt
    for seat in seats(job, placement):
        if (seat.role.name, seat.index) in absent:
            continue
        if member_name(job, attempt, seat.role.name, seat.index) not in pods.members:
            yield factory.make(seat, policy.binding_on(seat.node, bindings or {}))


def probe_pods(job: Job, policy: JobsPolicy) -> tuple[Pod, ...]:
    """Return the first pod of each role as the next attempt would have it, without a node."""
    status = replace(job.status, attempt=job.status.attempt + 1)
    factory = PodFactory(replace(job, status=status), policy, resume_step=None)
    return tuple(factory.make(Seat(role, 0, 0, "")) for role in job.spec.roles)


class _Peer(msgspec.Struct, frozen=True):
    rank: int
    role: str
    index: int
    name: str
    address: str
    node: str


def gang_map(job: Job, policy: JobsPolicy, pods: AttemptPods) -> ConfigMap:
    """Return the ConfigMap of the current attempt's gang: what its members see alike.

    With ADDRESS naming every member's pod must be there and have its address. `data` holds the
    variables. The files are in `binaryData`, of which no variables are made, in rank order:
    `hostfile` (Open MPI: "address slots=1"), `machinefile` (MPICH's Hydra: "address:1"), `peers`
    (JSON). A ConfigMap holds 1 MiB, so `peers` is left out of a gang of several thousand members.
    """
    assert job.status.placement is not None
    attempt = job.status.attempt
    found: list[_Peer] = []
    for seat in seats(job, job.status.placement):
        name = member_name(job, attempt, seat.role.name, seat.index)
        if needs_service(job, policy):
            host = f"{seat.role.name}-{seat.index}"
            address = f"{host}.{service_name(job)}.{job.metadata.namespace}.svc"
        else:
            address = pods.members[name].pod.status.pod_ip
        node = (known.node if (known := pods.members.get(name)) else "") or seat.node
        found.append(_Peer(seat.rank, seat.role.name, seat.index, name, address, node))
    files = {
        HOSTFILE: "".join([f"{p.address} slots=1\n" for p in found]).encode(),
        "machinefile": "".join([f"{p.address}:1\n" for p in found]).encode(),
    }
    variables = _gang_variables(job, policy) | dict.fromkeys(_MASTER_ENV, found[0].address)
    variables |= node_lists(job, [peer.address for peer in found])
    listed = msgspec.json.encode(found)
    if len(listed) <= PEERS_BYTES_MAX:
        files["peers"] = listed
    return ConfigMap(
        metadata=owned_metadata(job, gang_map_name(job, attempt), attempt),
        data=variables,
        binary_data={name: b64encode(content).decode() for name, content in files.items()},
    )


def headless_service(job: Job) -> Service:
    """Return the service that gives members names, from before they are ready."""
    spec = ServiceSpec(
        cluster_ip="None",
        selector={names.JOB_UID: job.metadata.uid},
        ports=(ServicePort(port=names.MASTER_PORT, name="master"),),
        publish_not_ready_addresses=True,
    )
    return Service(metadata=owned_metadata(job, service_name(job), 0), spec=spec)
