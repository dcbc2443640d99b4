"""Where the claims of a job's members can be had: on which nodes, or why on none.

    claims, volumes, classes -> VolumeTable -> Reach      the nodes that reach all volumes of a role
                                            -> Request    what a member takes of drivers with limits
                                            -> what is wrong with a claim, whatever the node

The rules are those of kube-scheduler (plugins VolumeBinding, VolumeZone, VolumeRestrictions
and NodeVolumeLimits, 1.36), so that what is placed here is not refused there. A reach is a
conjunction of node selectors, which the planner evaluates as it does the affinity of a pod; it
names no claim, so jobs whose volumes are in one zone stay alike. docs/design/volumes.md has the
table of rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
)
from fairlead.api.kubernetes.volumes import (
    SELECTED_NODE,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from fairlead.model.asks.priorities import Unresolved
from fairlead.model.asks.requests import Reach, Request
from fairlead.model.claimed.job_claims import (
    NO_CLAIMS,
    Claims,
    OwnClaims,
    claims_of_pod,
    job_uid_of,
    made_claims_of,
)
from fairlead.model.claimed.volume_reach import candidates, domains_of, joined, node_term, reach_of
from fairlead.model.gang.gangs import JobKey
from fairlead.model.gang.phase import Phase
from fairlead.model.gang.role_reach import RoleReach, role_reach
from fairlead.model.inventory.volume_limits import (
    NO_LIMITS,
    Handle,
    StatedLimits,
    VolumeChanges,
    VolumeLimits,
    default_class,
    drop,
    most_of,
    volume_of_class,
)

#: (namespace, name) of a claim.
ClaimKey: TypeAlias = tuple[str, str]
#: From where the claims of each role can be reached, in the order of the roles.
Reaches: TypeAlias = tuple[RoleReach, ...]


@dataclass(frozen=True, slots=True)
class MissingClaim:
    """There is no such claim."""

    claim: str


@dataclass(frozen=True, slots=True)
class DeletedClaim:
    """The claim is being deleted."""

    claim: str


@dataclass(frozen=True, slots=True)
class LostClaim:
    """The volume of the claim is gone, with its data."""

    claim: str
    volume: str


@dataclass(frozen=True, slots=True)
class UnboundClaim:
    """The claim waits for its volume, and no pod that uses it is waited for."""

    claim: str
    storage_class: str


@dataclass(frozen=True, slots=True)
class VolumelessClaim:
    """No volume that is there will do for the claim, and its class makes none."""

    claim: str
    storage_class: str


@dataclass(frozen=True, slots=True)
class CrowdedClaim:
    """More than one member asks for a claim that one pod may use at a time."""

    claim: str
    members: int


@dataclass(frozen=True, slots=True)
class ClaimInUse:
    """Another pod uses a claim that is for one, or another job comes before this one."""

    claim: str
    user: str


UnusableClaim = (
    MissingClaim | DeletedClaim | LostClaim | UnboundClaim | VolumelessClaim
    | CrowdedClaim | ClaimInUse
)  # fmt: skip

#: When jobs get a claim that is for one pod: those that hold nodes come first, then by priority and
#: age. None: the job does not ask for it now.
Turn: TypeAlias = tuple[bool, int, str, JobKey] | None


def turn_of(job: Job, phase: Phase, priority: int | Unresolved) -> Turn:
    """Return when a job gets a claim that is for one pod, before and after others."""
    holds = job.status.placement is not None
    if not holds and phase is not Phase.QUEUED:
        return None
    level = priority if isinstance(priority, int) else 0
    return (not holds, -level, job.metadata.creation_timestamp or "", job.metadata.key)


class VolumeTable:
    """The claims, volumes and storage classes of a cluster, and which jobs use which claims."""

    def __init__(
        self,
        claims: Iterable[PersistentVolumeClaim] = (),
        volumes: Iterable[PersistentVolume] = (),
        classes: Iterable[StorageClass] = (),
        limits: StatedLimits = NO_LIMITS,
    ) -> None:
        self._claims: dict[ClaimKey, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        #: By claim: the jobs that use it and have not ended.
        self._users: dict[ClaimKey, dict[JobKey, None]] = {}
        self._used_by: dict[JobKey, tuple[Claims, tuple[ClaimKey, ...]]] = {}
        self._turns: dict[JobKey, Turn] = {}
        #: What `judge` has found, until something changes for the job.
        self._judged: dict[JobKey, Reaches | UnusableClaim] = {}
        #: By claim: the pods that have a node, and the uid of what controls each; and by pod.
        self._pods: dict[ClaimKey, dict[JobKey, str]] = {}
        self._used_by_pod: dict[JobKey, tuple[ClaimKey, ...]] = {}
        #: The claims that name a volume, by its name, and the others by their class.
        self._by_volume: dict[str, dict[ClaimKey, None]] = {}
        self._by_class: dict[str, dict[ClaimKey, None]] = {}
        self._volumes_by_class: dict[str, dict[str, None]] = {}
        #: The jobs whose members have claims of a class of their own, made or not.
        self._owners_by_class: dict[str, dict[JobKey, None]] = {}
        #: Jobs for which a claim, a volume or a class has changed.
        self._stale: dict[JobKey, None] = {}
        #: What nodes can attach.
        self.limits = VolumeLimits(self._volume_of, self._handle_of)
        for claim in claims:
            self.put_claim(claim.metadata.key, claim)
        for volume in volumes:
            self.put_volume(volume.metadata.name, volume)
        for each in classes:
            self.put_class(each.metadata.name, each)
        for node in limits.nodes:
            self.limits.put_node(node.metadata.name, node)
        for attachment in limits.attachments:
            self.limits.put_attachment(attachment.metadata.name, attachment)

    @property
    def is_used(self) -> bool:
        """True while some job that has not ended asks for a claim."""
        return bool(self._users)

    def use(self, job: Job, claims: Claims, turn: Turn) -> Reaches | UnusableClaim:
        """Note which claims a job uses until it has ended, and return what `judge` does."""
        key = job.metadata.key
        before = self._used_by.get(key)
        if job.is_finished:
            claims = NO_CLAIMS
        if (NO_CLAIMS if before is None else before[0]) is not claims:
            self._set_uses(key, claims)
        if turn != self._turns.get(key) and claims is not NO_CLAIMS:
            self._turns[key] = turn
            self._mark(claim for claim in self._used_by[key][1] if self._is_for_one_pod(claim))
        return self.judge(job, claims)

    def leave(self, key: JobKey) -> None:
        """Note that a job is gone."""
        if key in self._used_by:
            self._set_uses(key, NO_CLAIMS)

    def put_pod(self, key: JobKey, pod: Pod | None) -> bool:
        """Take in a pod, or that it is gone; False when it matters to no job."""
        after: tuple[ClaimKey, ...] = ()
        if pod is not None and pod.spec.volumes and pod.spec.node_name and not pod.is_terminal:
            after = tuple([(key[0], name) for name in claims_of_pod(pod.spec)])
            made = tuple([(key[0], name) for name in made_claims_of(pod)])
            if not after and not made and not self.limits.has_pod(key):
                return False  # as nearly all, at each of their events
            self.limits.put_pod(key, pod.spec.node_name, (*after, *made))
        else:
            self.limits.put_pod(key, "", ())
        before = self._used_by_pod.get(key, ())
        if before == after:
            return False
        for claim in before:
            drop(self._pods, claim, key)
        uid = "" if pod is None else job_uid_of(pod)
        for claim in after:
            self._pods.setdefault(claim, {})[key] = uid
        if after:
            self._used_by_pod[key] = after
        else:
            del self._used_by_pod[key]
        return self._mark(claim for claim in (*before, *after) if self._is_for_one_pod(claim))

    def judge(self, job: Job, claims: Claims) -> Reaches | UnusableClaim:
        """Return from where the claims of each role can be reached, or the first that the job
        cannot have.
        """
        if claims is NO_CLAIMS:
            return ()
        key = job.metadata.key
        known = self._judged.get(key)
        if known is None or key not in self._used_by:
            found = self.read(job.metadata.namespace, claims)
            known = self._taken(job, claims) or found if isinstance(found, tuple) else found
            self._judged[key] = known
        return known

    def follow(self) -> VolumeChanges:
        """Take in what has changed of what nodes can attach; what is returned is to be booked."""
        before = self.limits.counted
        changes = self.limits.follow(is_used=self.is_used)
        if before != self.limits.counted:
            self._judged.clear()
            self._stale.update(dict.fromkeys(self._used_by))
        return changes

    def _is_for_one_pod(self, key: ClaimKey) -> bool:
        claim = self._claims.get(key)
        return claim is not None and claim.is_for_one_pod

    def _taken(self, job: Job, claims: Claims) -> CrowdedClaim | ClaimInUse | None:
        """Return why a job cannot have a claim that is for one pod; None when it can.

        The plugin VolumeRestrictions: no pod with a node may use it, wherever that is.
        """
        members = Counter[str]()
        for role, names in zip(job.spec.roles, claims.shared, strict=True):
            members.update(dict.fromkeys(names, role.count))
        for name, count in sorted(members.items()):
            key = (job.metadata.namespace, name)
            if not self._is_for_one_pod(key):
                continue
            if count > 1:
                return CrowdedClaim(name, count)
            for pod, owner in sorted(self._pods.get(key, {}).items()):
                if owner != job.metadata.uid:
                    return ClaimInUse(name, f"pod {pod[1]}")
            own = self._turns.get(job.metadata.key)
            turns = (self._turns.get(other) for other in self._users.get(key, ()))
            first = min((turn for turn in turns if turn is not None), default=None)
            if own is not None and own[0] and first is not None and first < own:
                return ClaimInUse(name, f"job {first[3][1]}")
        return None

    def _set_uses(self, key: JobKey, claims: Claims) -> None:
        had, before = self._used_by.pop(key, (NO_CLAIMS, ()))
        after = tuple((key[0], name) for name in dict.fromkeys(claims.names))
        for claim in before:
            drop(self._users, claim, key)
        for claim in after:
            self._users.setdefault(claim, {})[key] = None
        for name in had.classes:
            drop(self._owners_by_class, name, key)
        for name in claims.classes:
            self._owners_by_class.setdefault(name, {})[key] = None
        self._mark(claim for claim in (*before, *after) if self._is_for_one_pod(claim))
        self._judged.pop(key, None)
        if after:
            self._used_by[key] = (claims, after)
        else:
            self._turns.pop(key, None)
            self._stale.pop(key, None)

    def pop_stale(self) -> list[JobKey]:
        """Return the jobs for whose claims something has changed since the last call."""
        found = sorted(self._stale)
        self._stale.clear()
        return found

    def put_claim(self, key: ClaimKey, claim: PersistentVolumeClaim | None) -> bool:
        """Take in a claim, or that it is gone; False when no job asks for it."""
        before = self._claims.pop(key, None)
        if before is not None:
            self._index(before, key, is_there=False)
        if claim is not None:
            self._claims[key] = claim
            self._index(claim, key, is_there=True)
        self.limits.claims_changed((key,))
        return self._mark((key,))

    def put_volume(self, name: str, volume: PersistentVolume | None) -> bool:
        """Take in a volume, or that it is gone; False when it matters to no job."""
        before = self._volumes.pop(name, None)
        if before is not None:
            drop(self._volumes_by_class, before.storage_class, name)
        if volume is not None:
            self._volumes[name] = volume
            self._volumes_by_class.setdefault(volume.storage_class, {})[name] = None
        handles = [v.handle if v is not None else None for v in (before, volume)]
        self.limits.name_driver(*(each[0] if each is not None else "" for each in handles))
        self.limits.volume_changed(name)
        self.limits.claims_changed(self._by_volume.get(name, ()))
        names = dict.fromkeys(v.storage_class for v in (before, volume) if v is not None)
        unbound = chain.from_iterable(self._by_class.get(each, ()) for each in names)
        owners = chain.from_iterable(self._owners_by_class.get(each, ()) for each in names)
        return self._mark(chain(self._by_volume.get(name, ()), unbound), owners)

    def put_class(self, name: str, found: StorageClass | None) -> bool:
        """Take in a storage class, or that it is gone; False when it matters to no job."""
        before = self._classes.pop(name, None)
        if found is not None:
            self._classes[name] = found
        self.limits.name_driver(*(c.driver if c is not None else "" for c in (before, found)))
        self.limits.claims_changed(self._by_class.get(name, ()))
        owners = chain.from_iterable(self._owners_by_class.get(each, ()) for each in (name, ""))
        return self._mark(self._by_class.get(name, ()), owners)

    def read(self, namespace: str, claims: Claims) -> Reaches | UnusableClaim:
        """Return from where the claims of each role can be reached, or the first that cannot be."""
        found: list[RoleReach] = []
        for i, names in enumerate(claims.shared):
            shared: dict[NodeSelector, None] = {}
            for name in names:
                selectors = self._reach_of((namespace, name))
                if not isinstance(selectors, tuple):
                    return selectors
                shared.update(dict.fromkeys(selectors))
            templates = claims.own[i] if claims.own else ()
            own = self._own_reach(namespace, templates)
            if not isinstance(own, tuple):
                return own
            near = role_reach(shared, own)
            takes = self._takes(namespace, names, templates) if self.limits.counted else ()
            mine = (self._claims[namespace, name] for name in names)
            domains = tuple(domains_of(mine, self._classes))
            found.append(replace(near, devices=takes, domains=domains))
        return tuple(found)

    def reached(self, namespace: str, claims: Claims) -> Iterator[tuple[str, str, Reach]]:
        """Yield each claim, its volume, "" where it has none, and from where that is reached."""
        for name in dict.fromkeys(claims.names):
            claim, reach = self._claims.get((namespace, name)), self._reach_of((namespace, name))
            if claim is not None and isinstance(reach, tuple) and reach:
                yield name, claim.spec.volume_name, reach

    def _takes(self, namespace: str, shared: Iterable[str], own: tuple[OwnClaims, ...]) -> Request:
        """Return how many volumes of each driver a member has at most, of those with limits."""
        of_all = {self._volume_of((namespace, name)) for name in shared}
        default = default_class(self._classes.values())
        members: list[set[Handle | None]] = []
        for i in range(len(own[0].names) if own else 1):
            volumes = set(of_all)
            for each in own:
                key, claim = (namespace, each.names[i]), each.claim
                is_unnamed = claim.spec.storage_class_name is None and not claim.storage_class
                found = default if is_unnamed else self._classes.get(claim.storage_class)
                made = self._volume_of(key) if key in self._claims else volume_of_class(found, key)
                volumes.add(made)
            members.append(volumes)
        return most_of(members, self.limits.counted)

    def _volume_of(self, key: ClaimKey) -> Handle | None:
        """Return the volume of a claim; None where no CSI driver attaches it: `getCSIDriverInfo`.

        One that is not bound is a volume of its class that no other claim has.
        """
        claim = self._claims.get(key)
        if claim is None:
            return None
        volume = self._volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            return volume.handle
        return volume_of_class(self._classes.get(claim.storage_class), key)

    def _handle_of(self, name: str) -> str | None:
        volume = self._volumes.get(name)
        csi = volume.spec.csi if volume is not None else None
        return csi.volume_handle if csi is not None else None

    def _own_reach(
        self, namespace: str, own: tuple[OwnClaims, ...]
    ) -> tuple[Reach, ...] | UnusableClaim:
        """Return from where each member reaches the claims of its own; () where it has none."""
        reaches: list[dict[NodeSelector, None]] = []
        for each in own:
            reaches = reaches or [{} for _ in each.names]
            unmade: Reach | UnusableClaim | None = None
            for i, name in enumerate(each.names):
                key = (namespace, name)
                found = self._reach_of(key) if key in self._claims else unmade
                if found is None:  # the same for all that are not made
                    found = unmade = self._reach_of_unmade(key, each.claim)
                if not isinstance(found, tuple):
                    return found
                reaches[i].update(dict.fromkeys(found))
        return tuple(tuple(sorted(reach, key=repr)) for reach in reaches)

    def _reach_of_unmade(
        self, key: ClaimKey, claim: PersistentVolumeClaim
    ) -> Reach | UnusableClaim:
        """Return from where a claim can be reached that is made with the first pod of its member.

        One of a class that does not wait for the pod gets its volume anywhere.
        """
        found = self._classes.get(claim.storage_class)
        if found is None or not found.waits_for_consumer:
            return ()
        return self._reach_of_unbound(key, claim, found)

    def _index(self, claim: PersistentVolumeClaim, key: ClaimKey, *, is_there: bool) -> None:
        by_name = bool(claim.spec.volume_name)
        index = self._by_volume if by_name else self._by_class
        name = claim.spec.volume_name if by_name else claim.storage_class
        if is_there:
            index.setdefault(name, {})[key] = None
        else:
            drop(index, name, key)

    def _mark(self, claims: Iterable[ClaimKey], owners: Iterable[JobKey] = ()) -> bool:
        """Note that something has changed for the users of some claims, and for other jobs."""
        users = [*owners, *(key for claim in claims for key in self._users.get(claim, ()))]
        for key in users:
            self._judged.pop(key, None)
        self._stale.update(dict.fromkeys(users))
        return bool(users)

    def _reach_of(self, key: ClaimKey) -> Reach | UnusableClaim:
        """Return the selectors that a node must fulfil to reach the volume of a claim.

        In the order in which kube-scheduler looks: `podHasPVCs`, `GetPodVolumeClaims`.
        """
        name, claim = key[1], self._claims.get(key)
        if claim is None:
            return MissingClaim(name)
        if claim.status.phase == "Lost":
            return LostClaim(name, claim.spec.volume_name)
        if claim.metadata.deletion_timestamp is not None:
            return DeletedClaim(name)
        if claim.is_bound:
            volume = self._volumes.get(claim.spec.volume_name)
            return LostClaim(name, claim.spec.volume_name) if volume is None else reach_of(volume)
        found = self._classes.get(claim.storage_class)
        if found is None or not found.waits_for_consumer or claim.spec.volume_name:
            return UnboundClaim(name, claim.storage_class)
        return self._reach_of_unbound(key, claim, found)

    def _reach_of_unbound(
        self, key: ClaimKey, claim: PersistentVolumeClaim, found: StorageClass
    ) -> Reach | UnusableClaim:
        """Return from where a claim that waits for its first pod can get a volume: one that is
        there, or one that is made.
        """
        node = claim.metadata.annotations.get(SELECTED_NODE, "")
        pins: Reach = ()
        if node:
            pin = NodeSelectorRequirement("metadata.name", "In", (node,))
            pins = (NodeSelector((NodeSelectorTerm(match_fields=(pin,)),)),)
        terms: list[NodeSelectorTerm] = []
        there = map(self._volumes.__getitem__, self._volumes_by_class.get(claim.storage_class, ()))
        for volume in () if node else candidates(key, claim, there):
            affinity = volume.spec.node_affinity
            if affinity is None or affinity.required is None:
                return ()
            terms += affinity.required.node_selector_terms
        if found.makes_volumes:
            if not found.allowed_topologies:
                return pins
            terms += map(node_term, found.allowed_topologies)
        if not terms:
            return VolumelessClaim(key[1], claim.storage_class)
        return (*pins, NodeSelector(joined(terms)))
