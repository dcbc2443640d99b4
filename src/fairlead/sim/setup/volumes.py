"""Volumes in simulated worlds: the claims that jobs share, who binds them, and their checker.

`volume_share` of the workload gives jobs claims: shared ones, of volumes that are there or are made
in racks, and ones of their members' own; with `volume_limit` nodes attach so many of them. The
checker knows the objects alone: no member gets a place from which it cannot reach a volume that was
bound before the place could be decided on, or on a node that attaches no more.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import Node
from fairlead.api.kubernetes.volumes import CSINode, PersistentVolume, PersistentVolumeClaim
from fairlead.api.resources import CLAIMS, CSI_NODES, NODES, PODS, STORAGE_CLASSES, VOLUMES
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.own_controllers.volume_binder import VolumeBinder
from fairlead.embedded.storage.records import Record
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer

KINDS = (CLAIMS.name, VOLUMES.name, CSI_NODES.name)
RACKS, SHARED, DRIVER = "racks", 4, "disk.test"
_ACCESS = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}


def add_claims(body: dict[str, Any], rng: random.Random) -> None:
    """Give a job a shared claim, or its members claims of their own, or both."""
    role = body["spec"]["roles"][0]
    if rng.random() < 0.7:
        claim = {"claimName": f"shared-{rng.randrange(SHARED)}"}
        role["template"]["spec"]["volumes"] = [{"name": "shared", "persistentVolumeClaim": claim}]
    if rng.random() < 0.5:
        spec = {**_ACCESS, "storageClassName": RACKS}
        role["volumeClaimTemplates"] = [{"metadata": {"name": "own"}, "spec": spec}]


class VolumeWorld:
    """Makes what jobs share, and binds claims as the other controllers of a cluster do."""

    def __init__(self, client: Client, clock: Clock, rng: random.Random) -> None:
        self._client, self._clock, self._rng = client, clock, rng

    async def run(self, namespaces: Sequence[str], limit: int = 0) -> None:
        """Make the objects, without teams in the default namespace; then bind until cancelled.

        A node attaches `limit` volumes that are made; 0: as many as there are.
        """
        client, clock, rng = self._client, self._clock, self._rng
        nodes = (await client.list(NODES)).items
        racks = sorted({node.metadata.labels[names.RACK] for node in nodes})
        term = {"matchLabelExpressions": [{"key": names.RACK, "values": racks}]}
        await client.create(STORAGE_CLASSES, {
            "metadata": {"name": RACKS}, "provisioner": DRIVER,
            "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": [term],
        })  # fmt: skip
        for node in nodes if limit else ():
            driver = {"name": DRIVER, "nodeID": node.metadata.name, "allocatable": {"count": limit}}
            await client.create(CSI_NODES, {
                "metadata": {"name": node.metadata.name}, "spec": {"drivers": [driver]},
            })  # fmt: skip
        for namespace in namespaces or (names.DEFAULT_NAMESPACE,):
            for i in range(SHARED):
                name = f"shared-{i}"
                is_made = i % 2 == 0
                if not is_made:
                    await self._volume(f"{namespace}-{name}", (namespace, name), rng.choice(racks))
                spec = {**_ACCESS, "storageClassName": RACKS if is_made else ""}
                await client.create(
                    CLAIMS, {"metadata": {"name": name}, "spec": spec}, namespace=namespace
                )
        pods, there = (Mirror(client, PODS, clock=clock, rng=rng),
                       Mirror(client, NODES, clock=clock, rng=rng))  # fmt: skip
        binder = VolumeBinder(client, pods, there, clock=clock, rng=rng)
        async with asyncio.TaskGroup() as group:
            group.create_task(pods.run())
            group.create_task(there.run())
            group.create_task(binder.run())

    async def _volume(self, name: str, claim: ObjectKey, rack: str) -> None:
        rule = {"key": names.RACK, "operator": "In", "values": [rack]}
        owner = {"kind": CLAIMS.kind, "namespace": claim[0], "name": claim[1]}
        await self._client.create(VOLUMES, {"metadata": {"name": name}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "claimRef": owner,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}},
        }})  # fmt: skip


class VolumeChecker(Observer):
    """`checked` counts the members whose place was compared with a volume, `counted` the nodes
    whose volumes were.
    """

    def __init__(self, stale_seconds: float = STALE_SECONDS) -> None:
        """A place may be decided on so long before it is written."""
        self.checked = self.counted = 0
        self._stale_seconds = stale_seconds
        self._labels: dict[str, dict[str, str]] = {}
        #: By claim: its volume, and since when it has that.
        self._bound: dict[ObjectKey, tuple[str, float]] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._placements: dict[ObjectKey, Placement] = {}
        #: The jobs with claims that have no place.
        self._waiting: dict[ObjectKey, Job] = {}
        #: By node: how many volumes it attaches, and since when it says so.
        self._limits: dict[str, tuple[int, float]] = {}
        #: Claims that are not of the driver, and by node: the claims of it that jobs have there.
        self._by_hand: dict[ObjectKey, None] = {}
        self._attached: dict[str, dict[ObjectKey, set[ObjectKey]]] = {}

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note the labels of a node."""
        if new is not None:
            self._labels[name] = new.metadata.labels

    def stored(self, kind: str, record: Record | None, key: ObjectKey, now: float) -> None:
        """Take in a claim or a volume that was written, or removed."""
        if kind == CLAIMS.name:
            self.claim(None if record is None else record.typed(CLAIMS.type), key, now)
        elif kind == CSI_NODES.name:
            self.csi_node(None if record is None else record.typed(CSI_NODES.type), key[1], now)
        else:
            self.volume(None if record is None else record.typed(VOLUMES.type), key[1])

    def csi_node(self, new: CSINode | None, name: str, now: float) -> None:
        """Note how many volumes a node attaches."""
        self._limits.pop(name, None)
        if new is not None and DRIVER in new.limits:
            self._limits[name] = (new.limits[DRIVER], now)

    def claim(self, new: PersistentVolumeClaim | None, key: ObjectKey, now: float) -> None:
        """Note which volume a claim has."""
        if new is not None and new.storage_class != RACKS:
            self._by_hand[key] = None
        if new is None or not new.spec.volume_name:
            self._bound.pop(key, None)
        elif self._bound.get(key, ("", 0.0))[0] != new.spec.volume_name:
            self._bound[key] = (new.spec.volume_name, now)

    def volume(self, new: PersistentVolume | None, name: str) -> None:
        """Note from where a volume can be reached."""
        if new is not None:
            self._volumes[name] = new

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Compare a new place with the volumes of its members."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        self._waiting.pop(key, None)
        if new is not None and _has_claims(new) and not new.is_finished and (
            placement is None or placement.attempt != new.status.attempt
        ):  # fmt: skip
            self._waiting[key] = new
        if new is None or placement is None:
            self._placements.pop(key, None)
            self._attach(key, {}, now)
        elif self._placements.get(key) != placement:
            self._placements[key] = placement
            attached: dict[str, set[ObjectKey]] = {}
            for claim, node in _uses(new, placement):
                self._check((key[0], claim), node, key, now)
                if (key[0], claim) not in self._by_hand:
                    attached.setdefault(node, set()).add((key[0], claim))
            self._attach(key, attached, now)

    def waiting(self) -> Iterator[tuple[ObjectKey, Role, Counter[frozenset[str]]]]:
        """Yield the roles of jobs with claims and without a place: how many members reach their
        volumes, as far as these are bound, from which nodes.
        """
        for key, job in self._waiting.items():
            for role in job.spec.roles:
                members = (_claims_of_member(job, role, i) for i in range(role.count))
                yield key, role, Counter(self._near(key[0], claims) for claims in members)

    def _near(self, namespace: str, claims: Iterable[str]) -> frozenset[str]:
        """Return the nodes that reach the volumes of all these claims that are bound."""
        names = (self._bound.get((namespace, claim), ("", 0.0))[0] for claim in claims)
        volumes = [volume for name in names if (volume := self._volumes.get(name)) is not None]
        return frozenset(
            node for node, labels in self._labels.items()
            if all(_reaches(volume, labels) for volume in volumes)
        )  # fmt: skip

    def _attach(self, job: ObjectKey, attached: dict[str, set[ObjectKey]], now: float) -> None:
        """Note the volumes of a job by node; where it has others than before, they have room."""
        for node, claims in attached.items():
            jobs = self._attached.setdefault(node, {})
            is_new = not claims <= jobs.get(job, set())
            jobs[job] = claims
            limit, since = self._limits.get(node, (0, now))
            if not is_new or now - since < self._stale_seconds:
                continue
            self.counted += 1
            there = set[ObjectKey]().union(*jobs.values())
            if len(there) > limit:
                raise PromiseBroken(
                    f"1: job {job[1]} has node {node}, which attaches {limit} volumes, and "
                    f"{len(there)} are to be there"
                )
        for node, jobs in self._attached.items():
            if node not in attached:
                jobs.pop(job, None)

    def _check(self, claim: ObjectKey, node: str, job: ObjectKey, now: float) -> None:
        name, since = self._bound.get(claim, ("", now))
        volume, labels = self._volumes.get(name), self._labels.get(node)
        if volume is None or labels is None or now - since < self._stale_seconds:
            return
        self.checked += 1
        if not _reaches(volume, labels):
            raise PromiseBroken(
                f"1: job {job[1]} has node {node}, which does not reach volume {name} of claim "
                f"{claim[1]}, bound {now - since:.0f} s ago"
            )


def _reaches(volume: PersistentVolume, labels: Mapping[str, str]) -> bool:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    return any(
        all(labels.get(each.key) in each.values for each in term.match_expressions)
        for term in affinity.required.node_selector_terms
    )


def _has_claims(job: Job) -> bool:
    return any(role.template.spec.volumes or role.volume_claim_templates for role in job.spec.roles)


def _claims_of_member(job: Job, role: Role, index: int) -> Iterator[str]:
    """Yield the claims of a member: those of its template, then those of its own."""
    for volume in role.template.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
    for template in role.volume_claim_templates:
        yield f"{template.metadata.name}-{job.metadata.name}-{role.name}-{index}"


def _uses(job: Job, placement: Placement) -> Iterator[tuple[str, str]]:
    """Yield each claim of each member, and the member's node."""
    nodes = {place.role: place.nodes for place in placement.roles}
    for role in job.spec.roles:
        for i, node in enumerate(nodes.get(role.name, ())):
            for claim in _claims_of_member(job, role, i):
                yield claim, node
