"""A world of one job in plain values: applies the decisions, plays scheduler and nodes, and checks.

`World.act` performs what `decide_job` wants, at most `limit` actions of it (then the controller
dies). Nothing is remembered between decisions: the view is built from the objects each time. The
promises are asserted at every action.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.jobs.placement import Placement, RolePlacement
from fairlead.api.kubernetes.core import (
    GRACE_SECONDS_DEFAULT,
    ConfigMap,
    ContainerState,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
    Service,
)
from fairlead.api.meta import find_condition, is_true
from fairlead.api.values.times import format_micro_time, format_time
from fairlead.decide.job_actions import (
    DeleteJob,
    EmitEvent,
    RecordHistory,
    RemoveFinalizer,
    WriteJobStatus,
)
from fairlead.decide.jobs.actions import (
    Action,
    AddFinalizer,
    CreatePod,
    CreatePodGroup,
    CreateShared,
    DeletePod,
    DeleteShared,
    ProbePods,
    SharedPart,
)
from fairlead.decide.jobs.following.pods import JobPods
from fairlead.decide.jobs.lifecycle import decide_job
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.native import group_name
from fairlead.decide.jobs.view import (
    DependencyState,
    JobView,
    NodeOutage,
    OwnedObject,
    PodRefusal,
    Probe,
    Refusal,
)
from fairlead.decide.pinning import node_of
from fairlead.decide.verdict import Decision
from fairlead.model.gang.phase import is_failing
from fairlead.model.health.windows import Window
from fairlead.testing.builders import EPOCH, make_job

ROUNDS_MAX = 50


def new_job(name: str = "train", *, count: int = 4, **kwargs: object) -> Job:
    return make_job(name, count=count, gpus=0, attempt=0, **kwargs)  # type: ignore[arg-type] # passed on


@dataclass
class World:
    job: Job | None
    policy: JobsPolicy = field(default_factory=JobsPolicy)
    now: float = EPOCH
    pods: dict[str, Pod] = field(default_factory=dict)
    config_maps: dict[str, ConfigMap] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    pod_groups: dict[str, OwnedObject] = field(default_factory=dict)
    troubles: dict[str, NodeOutage] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set[str])
    #: Nodes with a test that leaves for work.
    yielding: set[str] = field(default_factory=set[str])
    #: Nodes whose provider has announced maintenance, and when it is.
    closing: dict[str, Window] = field(default_factory=dict[str, Window])
    dependencies: dict[str, DependencyState] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    refusal: PodRefusal | None = None
    late_until: float = 0.0
    events: list[tuple[str, str]] = field(default_factory=list)
    records: dict[str, Job] = field(default_factory=dict)
    #: Performed actions but events, as type names; cleared by tests.
    done: list[str] = field(default_factory=list)
    uids: int = 0
    #: What a dry run of pods is answered, and the latest answer.
    probe_refusal: Refusal | None = None
    probe: Probe | None = None
    #: How many faults a test has caused; its own to keep.
    fault_count: int = 0
    nodes: tuple[str, ...] = ("n0", "n1", "n2", "n3")

    # Deciding and acting

    def view(self) -> JobView:
        assert self.job is not None
        used = {p.spec.node_name for p in self.pods.values()}
        placement = self.job.status.placement
        if placement is not None:
            used |= {n for r in placement.roles for n in r.nodes}
        return JobView(
            job=self.job,
            policy=self.policy,
            now=self.now,
            pods=JobPods.of(self.pods[n] for n in sorted(self.pods)),
            config_maps={n: _owned(c) for n, c in sorted(self.config_maps.items())},
            services={n: _owned(s) for n, s in sorted(self.services.items())},
            pod_groups=dict(sorted(self.pod_groups.items())),
            dependencies=self.dependencies,
            begun=self.begun,
            node_troubles={n: t for n, t in sorted(self.troubles.items()) if n in used},
            pod_refusal=self.refusal,
            probe=self.probe,
            cordoned=self.cordoned,
            yielding=self.yielding,
            closing=self.closing,
            late_until=self.late_until,
        )

    def decide(self) -> Decision[Action]:
        return Decision() if self.job is None else decide_job(self.view())

    def act(self, limit: int | None = None) -> Decision[Action]:
        """Decide once and perform the first `limit` actions."""
        decision = self.decide()
        for action in decision.actions[:limit]:
            self.perform(action)
        return decision

    def settle(self) -> Decision[Action]:
        """Act until nothing is left to do; return the last, empty decision."""
        for _ in range(ROUNDS_MAX):
            decision = self.act()
            if not decision.actions:
                assert self.decide() == decision, "a second decision differs from the first"
                return decision
        raise AssertionError(f"never settles: {decision.actions}")

    def run_to(self, at: float) -> None:
        """Settle, and follow `wake_at` up to an instant; nothing is due that it does not say."""
        wake_at = self.settle().wake_at
        while wake_at is not None and wake_at <= at:
            self.now = max(self.now, wake_at)
            wake_at = self.settle().wake_at
        self.now = max(self.now, at)
        assert self.decide().actions == (), f"due before {at}, and nothing wakes the controller"

    def _shared(self, part: SharedPart) -> dict[str, Any]:
        return {
            SharedPart.CONFIG_MAP: self.config_maps, SharedPart.SERVICE: self.services,
            SharedPart.POD_GROUP: self.pod_groups,
        }[part]  # fmt: skip

    def perform(self, action: Action) -> None:
        if isinstance(action, EmitEvent | ProbePods):
            self._say_or_ask(action)
            return
        self.done.append(type(action).__name__)
        match action:
            case WriteJobStatus(job, status):
                self._write(job, status)
            case RecordHistory(job):
                assert job.is_finished
                self.records[job.metadata.uid] = job
            case CreatePod(_, pod):
                self._create_pod(pod)
            case CreateShared(_, ConfigMap() as config_map):
                made = replace(config_map, metadata=replace(config_map.metadata, uid=self._uid()))
                self.config_maps.setdefault(config_map.metadata.name, made)
            case CreateShared(_, service):
                made = replace(service, metadata=replace(service.metadata, uid=self._uid()))
                self.services.setdefault(service.metadata.name, made)
            case CreatePodGroup(job):
                name = group_name(job, job.status.attempt)
                assert name not in self.pod_groups, "a group twice"
                self.pod_groups[name] = OwnedObject(name, self._uid(), job.status.attempt)
            case DeleteShared(part, _, name):
                self._shared(part).pop(name, None)
            case DeletePod(_, name, uid, grace):
                self._delete_pod(name, uid, grace)
            case AddFinalizer(job, finalizer):
                self._update(metadata=replace(job.metadata, finalizers=(finalizer,)))
            case RemoveFinalizer():
                assert not self.pods, "released before its pods were gone"
                assert self.job is not None
                assert self.job.metadata.uid in self.records, "released without a record"
                self.job = None
            case DeleteJob():
                self.delete()
            case _:
                raise AssertionError(f"not the jobs controller's: {action}")

    def _say_or_ask(self, action: EmitEvent | ProbePods) -> None:
        if isinstance(action, EmitEvent):
            assert action.message[:1].isupper(), f"{action.reason} says nothing: {action.message}"
            self.events.append((action.reason, action.message))
        else:
            refusal = self.probe_refusal
            waits_for = refusal.value.refused if refusal is not None else None
            self.probe = Probe(self.now, waits_for, "full")

    def _uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"

    def _update(self, **changes: object) -> None:
        assert self.job is not None
        job = replace(self.job, **changes)
        version = str(int(self.job.metadata.resource_version) + 1)
        self.job = replace(job, metadata=replace(job.metadata, resource_version=version))

    def _write(self, decided_on: Job, status: JobStatus) -> None:
        assert self.job is not None
        if decided_on.metadata.resource_version != self.job.metadata.resource_version:
            return  # conflict
        before = self.job
        old = before.status
        self._update(status=status)
        ends = self.job.is_finished and not before.is_finished
        was_failing, fails = is_failing(before), is_failing(self.job)
        if was_failing and not fails:
            assert status.placement is None, "its place may be another job's by now"
        elif not ends and not fails:
            assert _of_scheduler(status) == _of_scheduler(old), "wrote what the scheduler owns"
        elif not ends:
            assert status.placement == old.placement, "the record wants it"
        else:
            assert (status.placement, status.nomination, status.verdict) == (None, None, None)
            assert not is_true(status.conditions, names.PLACED), "ended, and kept its place"
            assert self.job.metadata.uid in self.records, "ended without a record"
            live = [p.metadata.name for p in self.pods.values() if not p.is_terminal]
            assert not live, f"ended with live pods {live}"

    def _create_pod(self, pod: Pod) -> None:
        job = self.job
        assert job is not None
        assert not job.is_finished
        name, status = pod.metadata.name, job.status
        if name in self.pods:
            return
        attempt = status.current_attempt
        assert attempt is not None, "a pod before its attempt has begun"
        assert attempt.finished_at is None, "a pod after the end of its attempt"
        assert pod.metadata.labels[names.ATTEMPT] == str(status.attempt)
        placement = status.placement
        assert placement is not None, "a pod before its placement"
        assert placement.attempt == status.attempt, "a pod before its placement"
        assert node_of(pod.spec) not in self.cordoned, "a pod made on a cordoned node"
        assert pod.spec.node_name not in self.yielding, "a pod made beside a test"
        index = int(pod.metadata.labels[names.INDEX])
        places = {r.role: r.nodes for r in placement.roles}
        if (group := pod.spec.scheduling_group) is not None:
            assert group.pod_group_name in self.pod_groups, "a pod before its group"
            assert node_of(pod.spec) == "", "a native pod names a node"
        else:
            assert places[pod.metadata.labels[names.ROLE]][index] == node_of(pod.spec)
        for other in self.pods.values():
            same = other.metadata.labels[names.ATTEMPT] == str(status.attempt)
            assert same or other.is_terminal, "pods of two attempts are alive at once"
        meta = replace(pod.metadata, uid=self._uid(), creation_timestamp=format_time(self.now))
        self.pods[name] = replace(pod, metadata=meta)

    def _delete_pod(self, name: str, uid: str, grace: int | None) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.metadata.uid != uid:
            return
        job = self.job
        assert job is not None
        attempt = job.status.current_attempt
        if attempt is not None and attempt.finished_at is None and not job.is_finished:
            replaced = {r.pod_uid for r in job.status.member_restarts}
            mine = pod.metadata.labels[names.ATTEMPT] == str(attempt.number)
            assert not mine or uid in replaced, "deleted before the end was written"
        if grace == 0 or (pod.is_terminal and pod.spec.node_name not in self.troubles):
            del self.pods[name]
            return
        own, given = (
            pod.spec.termination_grace_period_seconds, pod.metadata.deletion_grace_period_seconds
        )  # fmt: skip
        if grace is None:
            grace = GRACE_SECONDS_DEFAULT if own is None else own
        if given is not None and given <= grace:
            return  # only ever sooner
        deleting = replace(
            pod.metadata, deletion_timestamp=format_time(self.now + grace),
            deletion_grace_period_seconds=grace,
        )  # fmt: skip
        self.pods[name] = replace(pod, metadata=deleting)

    # The user

    def change_spec(self, **changes: object) -> None:
        assert self.job is not None
        generation = self.job.metadata.generation + 1
        self._update(
            spec=replace(self.job.spec, **changes),
            metadata=replace(self.job.metadata, generation=generation),
        )

    def delete(self) -> None:
        assert self.job is not None
        if not self.job.metadata.finalizers:
            self.job = None
            self.pods.clear()
            return
        self._update(metadata=replace(self.job.metadata, deletion_timestamp=format_time(self.now)))

    # The scheduler

    def schedule(self, *nodes: str) -> None:
        """Place, confirm or release, as the hand-over says."""
        job = self.job
        if job is None:
            return
        status, attempt = job.status, job.status.current_attempt
        is_open = attempt is not None and attempt.finished_at is None
        told = find_condition(status.conditions, names.ADMITTED)
        is_refused = told is not None and told.status == "False"
        if job.is_finished or ((job.spec.suspend or is_refused) and not is_open):
            if status.placement is not None:
                self._update(status=replace(status, placement=None))
            return
        admitted = is_true(status.conditions, names.ADMITTED)
        placed = status.placement is not None and status.placement.attempt == status.attempt
        if not admitted or placed:
            return
        out = self.cordoned.union(self.troubles)
        healthy = nodes or tuple(n for n in self.nodes if n not in out)
        if not healthy:
            return
        sizes = {r.name: min(r.count, max(r.least, len(healthy))) for r in job.spec.roles}
        if not job.is_elastic:
            sizes = {r.name: r.count for r in job.spec.roles}
        roles = tuple(
            RolePlacement(r.name, tuple(healthy[i % len(healthy)] for i in range(sizes[r.name])))
            for r in job.spec.roles
        )
        placement = Placement(status.attempt, roles, format_micro_time(self.now))
        self._update(status=replace(status, placement=placement))

    # The nodes

    def run_pods(self) -> None:
        """Give every pending pod an address; start those that have their gang's ConfigMap."""
        for name, pod in self.pods.items():
            if pod.spec.node_name in self.troubles or pod.metadata.deletion_timestamp:
                continue
            if pod.status.phase == "Pending":
                ip = f"10.0.{pod.metadata.labels[names.RANK]}.{len(name)}"
                wanted = [v.config_map.name for v in pod.spec.volumes if v.config_map is not None]
                is_ready = all(each in self.config_maps for each in wanted)
                phase = "Running" if is_ready else "Pending"
                self.set_pod(name, PodStatus(phase=phase, pod_ip=ip))

    def drain_node(self, name: str, how: str = "EvictionByEvictionAPI") -> None:
        """Cordon a node and evict its pods, as `kubectl drain` does."""
        self.cordoned.add(name)
        for key, pod in self.pods.items():
            if pod.spec.node_name == name:
                self.evict_pod(key, how)

    def evict_pod(self, name: str, how: str = "EvictionByEvictionAPI") -> None:
        """Evict one pod; `how` is the reason of its condition DisruptionTarget, "" for none."""
        pod = self.pods[name]
        gone = replace(pod.metadata, deletion_timestamp=format_time(self.now))
        condition = PodCondition("DisruptionTarget", "True", how)
        conditions = (*pod.status.conditions, condition) if how else pod.status.conditions
        status = replace(pod.status, conditions=conditions)
        self.pods[name] = replace(pod, metadata=gone, status=status)

    def set_pod(self, name: str, status: PodStatus) -> None:
        self.pods[name] = replace(self.pods[name], status=status)

    def end_pod(
        self,
        name: str,
        exit_code: int = 0,
        *,
        signal: int = 0,
        reason: str = "",
        pod_reason: str = "",
        at: float | None = None,
    ) -> None:
        """End a pod's container. A pod that is being deleted then vanishes."""
        pod = self.pods[name]
        if pod.metadata.deletion_timestamp is not None:
            del self.pods[name]
            return
        code = 128 + signal if signal else exit_code
        ended = ContainerStateTerminated(
            exit_code=code,
            signal=signal,
            reason=reason,
            finished_at=format_micro_time(self.now if at is None else at),
        )
        status = ContainerStatus(name="main", state=ContainerState(terminated=ended))
        self.set_pod(
            name,
            replace(
                pod.status,
                phase="Failed" if code else "Succeeded",
                reason=pod_reason,
                container_statuses=(status,) if not pod_reason else (),
            ),
        )

    def wait_pod(self, name: str, reason: str, message: str = "") -> None:
        """Let a pod's container wait with an error."""
        waiting = ContainerStateWaiting(reason=reason, message=message)
        status = ContainerStatus(name="main", state=ContainerState(waiting=waiting))
        self.set_pod(name, PodStatus(phase="Pending", container_statuses=(status,)))

    def reap_pods(self) -> None:
        """End the pods that are being deleted, on nodes that answer."""
        for name in sorted(self.pods):
            pod = self.pods[name]
            if pod.metadata.deletion_timestamp and pod.spec.node_name not in self.troubles:
                del self.pods[name]

    def report(self, name: str, text: str) -> None:
        """Let the node copy a member's progress to its pod."""
        meta = self.pods[name].metadata
        annotations = {**meta.annotations, names.PROGRESS: text}
        self.pods[name] = replace(self.pods[name], metadata=replace(meta, annotations=annotations))

    def lose_node(self, name: str, *, since: float | None = None, is_gone: bool = False) -> None:
        self.troubles[name] = NodeOutage(name, self.now if since is None else since, is_gone)

    # Shorthands

    def start(self) -> None:
        """Bring a new job to where all its members run."""
        self.settle()
        self.schedule()
        self.settle()
        self.run_pods()
        self.settle()
        self.run_pods()
        self.settle()
        assert self.job is not None
        assert self.job.status.state == "Running", self.job.status.state

    def restart(self) -> None:
        """Let pods go, wait out the back-off, place and start the next attempt."""
        self.settle()
        self.reap_pods()
        self.run_to(self.now + 400)
        self.start()

    @property
    def status(self) -> JobStatus:
        assert self.job is not None
        return self.job.status

    def condition(self, type_: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        found = next((c for c in self.status.conditions if c.type == type_), None)
        return ("", "") if found is None else (found.status, found.reason)


def _of_scheduler(status: JobStatus) -> tuple[object, ...]:
    placed = find_condition(status.conditions, names.PLACED)
    return (status.placement, status.nomination, status.preemption, status.verdict, placed)


def _owned(obj: ConfigMap | Service) -> OwnedObject:
    return OwnedObject(obj.metadata.name, obj.metadata.uid, int(obj.metadata.labels[names.ATTEMPT]))
