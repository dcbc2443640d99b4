"""What others are promised of devices: whose they are, who runs with them, and how they count.

    nodes     no claim of the tenant has a device of a node of another team
    devices   no device is of two claims; pods of others run with what they ask for; the planner
              counts what the objects say: never more than there is, and exactly that once all of
              the tenant's is gone
    late      gangs of others that ask for devices run soon, where there is one, and take them from
              jobs of his where they may

The model is of the objects alone: claims, pods, and which gangs are placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.devices import ResourceClaim
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.own_controllers.node_devices import claims_of
from fairlead.model.claimed.device_asks import device_claims_of
from fairlead.model.cluster import ClusterState
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.tenants.calls import TENANT
from fairlead.sim.tenants.devices import DEVICES_OF, DRIVER, TEMPLATES
from fairlead.sim.tenants.promises.gangs import (
    PREEMPTORS,
    SHARED,
    SHARED_SECONDS_MAX,
    Promises,
)

#: Node, which is the pool, and device.
_DeviceKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim that has devices."""

    owner_uid: str
    devices: tuple[_DeviceKey, ...]


@dataclass(frozen=True, slots=True)
class _User:
    """A pod that is not over and names claims: each with the template that it is made from."""

    claims: tuple[tuple[ObjectKey, str], ...]
    gang_uid: str


@dataclass(slots=True)
class DevicePromises(Observer):
    """Feed it with every change of a claim and a pod; PromiseBroken at the write."""

    gangs: Promises
    _claims: dict[ObjectKey, _Claim] = field(default_factory=dict[ObjectKey, _Claim])
    _claim_of: dict[_DeviceKey, ObjectKey] = field(default_factory=dict[_DeviceKey, ObjectKey])
    _users: dict[ObjectKey, _User] = field(default_factory=dict[ObjectKey, _User])
    _bound: dict[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    #: Since when a gang has waited where it could have had a device.
    _room_since: dict[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])

    # Changes

    def claim(self, new: ResourceClaim | None, key: ObjectKey) -> None:
        """No device is of two claims, and none of another team's node is the tenant's."""
        before = self._claims.pop(key, None)
        for device in before.devices if before is not None else ():
            self._claim_of.pop(device, None)
        allocation = new.status.allocation if new is not None else None
        if new is None or allocation is None:
            return
        devices = tuple((each.pool, each.device) for each in allocation.devices.results)
        owner = next((o.uid for o in new.metadata.owner_references if o.controller), "")
        self._claims[key] = _Claim(owner, devices)
        for device in devices:
            self.gangs.judged["devices"] += 1
            other = self._claim_of.setdefault(device, key)
            if other != key:
                raise PromiseBroken(f"devices: {device} is of the claims {other} and {key}")
            if key[0] == TENANT:
                self.gangs.check_node(device[0], f"a device of claim {key[0]}/{key[1]}")

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """A pod of others is bound with the devices that it asks for."""
        self._users.pop(key, None)
        if new is None or new.is_terminal:
            self._bound.pop(key, None)
            return
        if not new.spec.resource_claims:
            return
        uid = new.metadata.labels.get(names.JOB_UID, "")
        user = self._users[key] = _User(tuple(claims_of(new)), uid)
        node = new.spec.node_name
        if key[0] != TENANT and node and self._bound.get(key) != node:
            self._bound[key] = node
            self.gangs.judged["devices of pods"] += 1
            for claim_key, template in user.claims:
                claim = self._claims.get(claim_key)
                if claim is None or not _is_due(claim, new.metadata.uid, node, template):
                    raise PromiseBroken(f"devices: pod {key} is on {node} without {claim_key[1]}")

    # By the clock

    def check_by_clock(self, now: float) -> None:
        """Judge the gangs on nodes of no team that wait for devices."""
        for key, gang in self.gangs.waiting():
            if not gang.has_claims or key[0] not in (SHARED, PREEMPTORS):
                continue
            self.gangs.judged[f"late devices of {key[0]}"] += 1
            if not self._has_room(takes=key[0] == PREEMPTORS):
                self._room_since.pop(key, None)
                continue
            since = self._room_since.setdefault(key, now)
            if now - since > SHARED_SECONDS_MAX:
                raise PromiseBroken(f"late: {key} has no device {now - since:.0f} s on")

    def _has_room(self, *, takes: bool) -> bool:
        """True where a node of no team has a device for one more member: one that no claim has, or
        with `takes` that jobs of the tenant would give up.

        Places of his hold devices that are not known here: a gang that may not take them cannot
        count on a node with such a place.
        """
        theirs = {
            node for gang in self.gangs.placed() if gang.has_claims and not gang.is_of_others
            for node in gang.nodes
        }  # fmt: skip
        giving = self._giving() if takes else frozenset[ObjectKey]()
        return any(
            (device := self._claim_of.get((node, name))) is None or device in giving
            for node in self.gangs.nodes_of("")
            if takes or node not in theirs
            for name in DEVICES_OF[DRIVER]
        )

    def _giving(self) -> frozenset[ObjectKey]:
        """Return the claims that were made for members of jobs of the tenant which give way."""
        giving = self.gangs.giving()
        found: dict[ObjectKey, bool] = {}
        for key, user in self._users.items():
            for claim, template in user.claims:
                gives = key[0] == TENANT and bool(template) and user.gang_uid in giving
                found[claim] = found.get(claim, True) and gives
        return frozenset(claim for claim, gives in found.items() if gives)

    # At rest

    def check_counts(self, state: ClusterState, jobs: Mapping[str, Job], *, exact: bool) -> None:
        """Judge how many more members each node has devices for, as the planner counts.

        `jobs` of others, by the class of the device for which each member of theirs asks.
        """
        for device_class, job in jobs.items():
            for node, shown in _rooms(state, job):
                there = sum((node, d) not in self._claim_of for d in DEVICES_OF[device_class])
                self.gangs.judged["devices counted"] += 1
                if shown > there or (exact and shown != there):
                    raise PromiseBroken(
                        f"devices: {shown} of {device_class} count as free on {node}, not {there}"
                    )


def _is_due(claim: _Claim, pod_uid: str, node: str, template: str) -> bool:
    """True for a claim of this pod that has one device of the node, of the class asked for."""
    if claim.owner_uid != pod_uid or len(claim.devices) != 1:
        return False
    [(where, device)] = claim.devices
    return where == node and device in DEVICES_OF[TEMPLATES[template]]


def _rooms(state: ClusterState, job: Job) -> Iterator[tuple[str, int]]:
    """Yield for how many more members like a job's each node has devices."""
    needs = state.devices.read(job, device_claims_of(job))
    if not isinstance(needs, tuple) or not any(need.request for need in needs):
        raise PromiseBroken(f"devices: {job.metadata.key} runs, and has {needs}")
    table = state.table
    free = [(table.unused(row), n) for need in needs for row, n in need.request]
    for slot, node in enumerate(table.names):
        if table.exists[slot]:
            yield node, min(int(unused[slot]) // amount for unused, amount in free)
