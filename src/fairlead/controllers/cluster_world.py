"""The cluster as this process sees it: fed once, read by every controller.

    mirrors (one watch per kind) -> ClusterWorld -> ClusterState  -> scheduler
                                                 -> NodeHealth    -> jobs, adoption

A composition root makes one world and hands it to the controllers, which come and go: a controller
that is restarted attaches to the world as it is. A world whose handlers failed takes nothing in any
more; `wait_fault` raises in each controller that reads it, and the first one to be restarted
rebuilds it. docs/design/one-world.md has the reasons.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes.core import Node, Pod, PriorityClass
from fairlead.api.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.kubernetes.volumes import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from fairlead.api.resources import (
    CLAIMS,
    CSI_NODES,
    DEVICE_CLASSES,
    JOB_ARRAYS,
    JOBS,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    TEAMS,
    VOLUME_ATTACHMENTS,
    VOLUMES,
    Resource,
)
from fairlead.controllers.admissions import Admissions
from fairlead.decide.health.conditions import ConditionRules
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.topology import Level
from fairlead.model.claimed.work import Matched
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.phase import Phase, phase_of
from fairlead.model.health.node_health import NodeHealth
from fairlead.model.pools.yielding_tests import YieldingTests
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import Change, HasMetadata, Mirror, MirrorOptions
from fairlead.runtime.watching.reader import MirrorReader, follow
from fairlead.runtime.watching.set_aside import STRICT, SetAside

T = TypeVar("T", bound=HasMetadata)


class ClusterWorld:
    """Cluster state and node health, kept in step with the mirrors."""

    def __init__(
        self,
        mirrors: ClusterMirrors,
        *,
        clock: Clock,
        levels: tuple[Level, ...] = (),
        balloon_namespace: str = "",
        set_aside: SetAside = STRICT,
        matches_beside: bool = False,
        conditions: ConditionRules | None = None,
    ) -> None:
        """Register on the mirrors.

        `matches_beside`: a `DeviceMatcher` runs, which compares new kinds of devices with all that
        there are; else the next decision does, however long it takes.

        `set_aside` takes the objects that cannot be taken in. STRICT: each is a fault of the
        mirror's reader, which is for mirrors that no other process part shares. `levels` are those
        of the topology, widest first. `balloon_namespace`: where balloons are; "": nowhere.
        `conditions`: what those mean that other tools state of nodes; without them, nothing.
        """
        self.mirrors = mirrors
        self.set_aside = set_aside
        self.health = NodeHealth()
        #: Where tests are that members wait for.
        self.yielding = YieldingTests(balloon_namespace)
        self._levels = levels
        self._balloon_namespace = balloon_namespace
        self._matches_beside, self._conditions = matches_beside, conditions
        self.state = self._empty_state()
        #: Placements that were sent and whose outcome is unknown: no object shows them, so they
        #: outlive the scheduler that sent them (`uncertain_placements.py`).
        self.uncertain: dict[ObjectKey, PlaceJob] = {}
        #: Jobs that the state has as admitted before any mirror shows it.
        self.admissions = Admissions(lambda key: mirrors.jobs.get(*key), self._show_admitted)
        #: How many changes were taken in that a decision on the state could see.
        self.change_count = 0
        #: By job: the version that the scheduler wrote on, and the one that it made.
        self._decided_writes: dict[ObjectKey, tuple[int, int]] = {}
        self._clock = clock
        self._reader: MirrorReader | None = None
        self._unregister: list[Callable[[], None]] = []
        self._on_own_change: list[Callable[[], None]] = []
        self._is_faulted = False
        self._register()

    @classmethod
    def make(cls, client: Client, *, clock: Clock, rng: random.Random) -> ClusterWorld:
        """Make a world with mirrors of its own."""
        mirrors = ClusterMirrors.make(client, clock=clock, rng=rng)
        return cls(mirrors, clock=clock)

    def rebuild(self) -> None:
        """Take everything in again, into a new cluster state.

        After a fault of the world, or of the scheduler, which may have left the state half changed.
        The node health stays: to take a node in twice changes nothing.
        """
        self.close()
        self.state = self._empty_state()
        self.admissions.clear()
        self._register()

    def _empty_state(self) -> ClusterState:
        state = ClusterState(
            PriorityTable(), self._levels, balloon_namespace=self._balloon_namespace
        )
        state.devices.matches_at_once = not self._matches_beside
        return state

    def ensure_sound(self) -> None:
        """Rebuild after a fault; nothing happens when there was none."""
        if self._is_faulted:
            self.rebuild()

    async def wait_fault(self) -> None:
        """Wait for the first fault of the world's handlers and raise it."""
        if self._reader is not None:
            try:
                await self._reader.wait_fault()
            except Exception:
                self._is_faulted = True
                raise

    def forfeit(self, job: Job, *, is_final: bool) -> None:
        """Count the placement of a job as given back, though the API refuses to record that.

        See `ClusterState.forfeit`. This process alone knows it: after a restart the nodes are held
        until the API has refused the writes again.
        """
        if not self.state.is_forfeited(job.metadata.key):
            self.state.forfeit(job, is_final=is_final)
            self._wake_own()

    def note_decided(self, job: Job, version: int) -> None:
        """Note the version of a job that a decision has made of `job`: that decision knows it."""
        self._decided_writes[job.metadata.key] = (job.metadata.version, version)

    def match_devices(self, units: int) -> Matched:
        """Do what `DeviceTable.match` does, and have those decide who read the world."""
        matched = self.state.devices.match(units)
        if matched.has_news:
            self.change_count += 1
            self._wake_own()
        return matched

    def on_own_change(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` whenever there is more to decide on that no mirror shows: nodes that are
        free, devices that are matched; return what ends it.
        """
        self._on_own_change.append(wake)
        return lambda: self._on_own_change.remove(wake)

    def _wake_own(self) -> None:
        for wake in self._on_own_change:
            wake()

    def close(self) -> None:
        """Take the handlers off the mirrors."""
        for unregister in self._unregister:
            unregister()
        self._unregister.clear()

    def _register(self) -> None:
        mirrors = self.mirrors
        self._is_faulted = False
        self._reader = None if self.set_aside.is_strict else MirrorReader(self.set_aside)
        self._follow(mirrors.priority_classes, self._priority_class_changed)
        self._follow(mirrors.teams, self._team_changed)
        self._follow(mirrors.pools, self._pool_changed)
        # Apart, so that a node which the state cannot take in keeps its health.
        self._follow(mirrors.nodes, self._node_health_changed)
        self._follow(mirrors.nodes, self._node_changed)
        self._follow(mirrors.storage_classes, self._storage_class_changed)
        self._follow(mirrors.volumes, self._volume_changed)
        self._follow(mirrors.claims, self._claim_changed)
        self._follow(mirrors.csi_nodes, self._csi_node_changed)
        self._follow(mirrors.attachments, self._attachment_changed)
        devices = mirrors.devices
        self._follow(devices.slices, self._slice_changed)
        self._follow(devices.classes, self._device_class_changed)
        self._follow(devices.templates, self._device_template_changed)
        self._follow(devices.claims, self._device_claim_changed)
        self._follow(mirrors.jobs, self._job_changed)
        self._follow(mirrors.pods, self._pod_changed)
        self._follow(mirrors.quotas, self._quota_changed)
        if mirrors.node_reports is not None:
            self._follow(mirrors.node_reports, self._report_changed)

    def _follow(self, mirror: Mirror[T], handler: Callable[[Change[T]], None]) -> None:
        def counted(change: Change[T]) -> None:
            self.change_count += 1
            handler(change)

        self._unregister.append(follow(mirror, counted, self._reader))

    def _priority_class_changed(self, change: Change[PriorityClass]) -> None:
        self.state.priority_class_changed(change.key[1], change.new)

    def _team_changed(self, change: Change[Team]) -> None:
        self.state.team_changed(change.key[1], change.new)

    def _pool_changed(self, change: Change[NodePool]) -> None:
        name, pool = change.key[1], change.new
        self.state.pools.set_pool(name, pool)
        self.state.devices.pools.put_template(name, pool.spec.template.devices if pool else ())

    def _quota_changed(self, change: Change[ResourceQuota]) -> None:
        if change.new is None:
            self.state.quotas.remove(change.key)
        else:
            self.state.quotas.put(change.new)

    def _storage_class_changed(self, change: Change[StorageClass]) -> None:
        self.change_count -= not self.state.volumes.put_class(change.key[1], change.new)

    def _volume_changed(self, change: Change[PersistentVolume]) -> None:
        self.change_count -= not self.state.volumes.put_volume(change.key[1], change.new)

    def _claim_changed(self, change: Change[PersistentVolumeClaim]) -> None:
        self.change_count -= not self.state.volumes.put_claim(change.key, change.new)

    def _csi_node_changed(self, change: Change[CSINode]) -> None:
        volumes = self.state.volumes
        is_other = volumes.limits.put_node(change.key[1], change.new)
        self.change_count -= not (is_other and volumes.is_used)

    def _attachment_changed(self, change: Change[VolumeAttachment]) -> None:
        limits = self.state.volumes.limits
        self.change_count -= not limits.put_attachment(change.key[1], change.new)

    def _slice_changed(self, change: Change[ResourceSlice]) -> None:
        self.change_count -= not self.state.devices.put_slice(change.key[1], change.new)

    def _device_class_changed(self, change: Change[DeviceClass]) -> None:
        self.change_count -= not self.state.devices.put_class(change.key[1], change.new)

    def _device_template_changed(self, change: Change[ResourceClaimTemplate]) -> None:
        self.change_count -= not self.state.devices.put_template(change.key, change.new)

    def _device_claim_changed(self, change: Change[ResourceClaim]) -> None:
        self.change_count -= not self.state.devices.put_claim(change.key, change.new)

    def _report_changed(self, change: Change[NodeReport]) -> None:
        report = change.new
        is_sick = report is not None and bool(report.status.critical or report.status.warning)
        self.state.suspects.put_report(change.key[1], is_sick=is_sick)

    def _node_changed(self, change: Change[Node]) -> None:
        node, rules = change.new, self._conditions
        if node is None:
            self.state.node_deleted(change.key[1])
        else:
            self.state.node_changed(node)
        if rules is not None:
            stated = rules.faults_of(node) if node is not None else ()
            is_sick = any(each.severity.is_sick for each in stated)
            self.state.suspects.put_stated(change.key[1], is_sick=is_sick)

    def _node_health_changed(self, change: Change[Node]) -> None:
        if change.new is None:
            self.health.remove(change.key[1])
        else:
            self.health.put(change.new, self._clock.now())

    def _show_admitted(self, job: Job) -> None:
        self.change_count += 1
        self.state.job_changed(job)

    def _job_changed(self, change: Change[Job]) -> None:
        self.admissions.drop(change.key)
        self.change_count -= self._is_known(change) or _is_unseen(change.old, change.new)
        if change.new is None:
            self.state.job_deleted(change.key)
            return
        self.state.job_changed(change.new)
        if self.state.volumes.is_used:
            _wake(self.mirrors.of_volumes)
        if self.state.devices.is_used:
            _wake(self.mirrors.devices.all)
        for attempt in change.new.status.attempts:
            # Its room is free only where its pods are seen, and seen to have gone.
            if attempt.pods_version:
                self.mirrors.pods.expect(int(attempt.pods_version))

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.new is None:
            self.yielding.remove(change.key)
            is_seen = self.state.pod_deleted(change.key)
        else:
            self.yielding.put(change.new)
            is_seen = self.state.pod_changed(change.new)
        # A pod that comes to the place of its member, or leaves it, is no reason for a decision.
        self.change_count -= not is_seen

    def _is_known(self, change: Change[Job]) -> bool:
        """True for a change that is a decision's own, and nothing else."""
        written = self._decided_writes.pop(change.key, None)
        if written is None or change.old is None or change.new is None:
            return False
        return written == (change.old.metadata.version, change.new.metadata.version)


def _wake(mirrors: Iterable[Mirror[Any]]) -> None:
    for mirror in mirrors:
        mirror.wake()


def _is_unseen(old: Job | None, new: Job | None) -> bool:
    """True for a change that no decision reads: before a job is admitted, once it is over.

    And of metadata such as finalizers.
    """
    if (old is None or _is_apart(old)) and (new is None or _is_apart(new)):
        return True
    if old is None or new is None or old.status != new.status or old.spec != new.spec:
        return False
    before, after = old.metadata, new.metadata
    return (
        before.deletion_timestamp == after.deletion_timestamp
        and before.labels == after.labels
        and before.annotations == after.annotations
    )


def _is_apart(job: Job) -> bool:
    """True for a job that waits for nothing and holds nothing."""
    status = job.status
    is_bare = status.placement is None and status.nomination is None and status.preemption is None
    return is_bare and phase_of(job) in (Phase.UNADMITTED, Phase.FINISHED)


# The mirrors of the whole cluster


@dataclass(frozen=True, slots=True)
class DeviceMirrors:
    """What says which devices there are; all but the classes, which may serve resources of
    containers, are dormant until some job asks for some.
    """

    claims: Mirror[ResourceClaim]
    templates: Mirror[ResourceClaimTemplate]
    classes: Mirror[DeviceClass]
    slices: Mirror[ResourceSlice]

    @classmethod
    def make(
        cls, make: Callable[[Resource[Any]], Mirror[Any]], classes: Mirror[DeviceClass]
    ) -> DeviceMirrors:
        """Make the others with what makes a dormant mirror of a kind."""
        return cls(
            make(RESOURCE_CLAIMS),
            make(RESOURCE_CLAIM_TEMPLATES),
            classes,
            make(RESOURCE_SLICES),
        )

    @property
    def all(self) -> tuple[Mirror[Any], ...]:
        """All of them."""
        return (self.claims, self.templates, self.classes, self.slices)


@dataclass(frozen=True, slots=True)
class ClusterMirrors:
    """Private or shared mirrors; pods are unfiltered."""

    jobs: Mirror[Job]
    pods: Mirror[Pod]
    nodes: Mirror[Node]
    priority_classes: Mirror[PriorityClass]
    teams: Mirror[Team]
    pools: Mirror[NodePool]
    quotas: Mirror[ResourceQuota]
    arrays: Mirror[JobArray]
    #: Dormant until some job asks for a claim.
    claims: Mirror[PersistentVolumeClaim]
    volumes: Mirror[PersistentVolume]
    storage_classes: Mirror[StorageClass]
    csi_nodes: Mirror[CSINode]
    attachments: Mirror[VolumeAttachment]
    devices: DeviceMirrors
    #: None where the health of nodes is off.
    node_reports: Mirror[NodeReport] | None = None

    @property
    def of_volumes(self) -> tuple[Mirror[Any], ...]:
        """The mirrors that are dormant until some job asks for a claim."""
        stated = (self.csi_nodes, self.attachments)
        return (self.claims, self.volumes, self.storage_classes, *stated)

    @classmethod
    def make(cls, client: Client, *, clock: Clock, rng: random.Random) -> ClusterMirrors:
        """Make private mirrors."""
        dormant = MirrorOptions(is_dormant=True)
        return cls(
            jobs=Mirror(client, JOBS, clock=clock, rng=rng),
            pods=Mirror(client, PODS, clock=clock, rng=rng),
            nodes=Mirror(client, NODES, clock=clock, rng=rng),
            priority_classes=Mirror(client, PRIORITY_CLASSES, clock=clock, rng=rng),
            teams=Mirror(client, TEAMS, clock=clock, rng=rng),
            pools=Mirror(client, NODE_POOLS, clock=clock, rng=rng),
            quotas=Mirror(client, RESOURCE_QUOTAS, clock=clock, rng=rng),
            arrays=Mirror(client, JOB_ARRAYS, clock=clock, rng=rng),
            claims=Mirror(client, CLAIMS, clock=clock, rng=rng, options=dormant),
            volumes=Mirror(client, VOLUMES, clock=clock, rng=rng, options=dormant),
            storage_classes=Mirror(client, STORAGE_CLASSES, clock=clock, rng=rng, options=dormant),
            csi_nodes=Mirror(client, CSI_NODES, clock=clock, rng=rng, options=dormant),
            attachments=Mirror(client, VOLUME_ATTACHMENTS, clock=clock, rng=rng, options=dormant),
            devices=DeviceMirrors.make(
                lambda kind: Mirror(client, kind, clock=clock, rng=rng, options=dormant),
                Mirror(client, DEVICE_CLASSES, clock=clock, rng=rng),
            ),
        )
