"""What the members of jobs ask for by claims for devices (DRA), and what is wrong with a claim.

    slices, classes, templates, claims -> DeviceTable -> DeviceNeed   what a member takes, and where
                                                      -> UnusableDevices   why it cannot have it
                                                      -> what nodes offer and pods have: rows

The rules are those of kube-scheduler 1.36 (plugin DynamicResources), which allocates: a device is
of one claim at a time. What it could allocate and is not counted here is room that is not used,
never room that is not there. docs/design/devices.md has the table of rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from msgspec import Struct

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.model.asks.requests import Reach, Request
from fairlead.model.claimed.device_asks import (
    ClaimName,
    DeviceAsk,
    DeviceClaims,
    DeviceKind,
    UnsupportedClaim,
    asks_of,
)
from fairlead.model.claimed.device_pools import DevicePools
from fairlead.model.claimed.device_selectors import (
    DeviceExpression,
    ExpressionError,
    device_expression,
)
from fairlead.model.gang.gangs import JobKey

#: Pods for which one claim may be reserved (`ResourceClaimReservedForMaxSize`).
CONSUMERS_MAX = 256
#: Kinds of devices that are told apart at a time: those of the oldest jobs.
KINDS_MAX = 64

#: Namespace and name of a claim or a template.
_Named: TypeAlias = tuple[str, ClaimName]


@dataclass(frozen=True, slots=True)
class MissingDeviceClaim:
    """There is no such claim or template, or it is being deleted."""

    claim: str


@dataclass(frozen=True, slots=True)
class MissingDeviceClass:
    """There is no such class of devices."""

    claim: str
    device_class: str


@dataclass(frozen=True, slots=True)
class UnallocatedClaim:
    """A claim that several pods share has no devices yet: where they will be is not known."""

    claim: str


UnusableDevices = MissingDeviceClaim | MissingDeviceClass | UnallocatedClaim | UnsupportedClaim


class DeviceNeed(Struct, frozen=True):
    """What a member takes of the rows of devices, and from where it reaches what it shares."""

    request: Request = ()
    reach: Reach = ()


#: By role.
DeviceNeeds: TypeAlias = tuple[DeviceNeed, ...]


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """What nodes offer of the rows of devices and what of it is stranded, what pods have, and the
    jobs to look at again.
    """

    nodes: Mapping[str, Mapping[str, int]]
    stranded: Mapping[str, Request]
    pods: Mapping[JobKey, Request]
    jobs: tuple[JobKey, ...]


_NO_CHANGES = DeviceChanges({}, {}, {}, ())


class DeviceTable:
    """Devices, their classes and claims, and which jobs use which."""

    def __init__(
        self,
        slices: Iterable[ResourceSlice] = (),
        classes: Iterable[DeviceClass] = (),
        templates: Iterable[ResourceClaimTemplate] = (),
        claims: Iterable[ResourceClaim] = (),
    ) -> None:
        self._pools = DevicePools()
        #: Keys of the pods that were noted as on their nodes. Read it only.
        self.pods = self._pools.pods
        self._classes: dict[str, DeviceClass] = {}
        self._templates: dict[JobKey, ResourceClaimTemplate] = {}
        self._claims: dict[JobKey, ResourceClaim] = {}
        #: By job that has not ended: its claims; by claim: its jobs, and when each was created.
        self._used_by: dict[JobKey, DeviceClaims] = {}
        self._users: dict[_Named, dict[JobKey, str]] = {}
        #: What a claim asks for, and what `judge` has found, until something changes.
        self._asks: dict[_Named, tuple[DeviceAsk, ...] | UnusableDevices] = {}
        self._judged: dict[JobKey, DeviceNeeds | UnusableDevices] = {}
        #: The kinds that are told apart, by bit; those for which there are too many.
        self._kinds: dict[DeviceKind, int] = {}
        self._beyond: dict[DeviceKind, None] = {}
        self._stale: dict[_Named, None] = {}
        self._is_stale = False
        for each in slices:
            self.put_slice(each.metadata.name, each)
        for found in classes:
            self.put_class(found.metadata.name, found)
        for template in templates:
            self.put_template(template.metadata.key, template)
        for claim in claims:
            self.put_claim(claim.metadata.key, claim)

    @property
    def is_used(self) -> bool:
        """True while some job that has not ended asks for devices by a claim."""
        return bool(self._used_by)

    def use(self, job: Job, claims: DeviceClaims) -> DeviceNeeds | UnusableDevices:
        """Note which claims a job uses until it has ended, and return what `judge` does."""
        key = job.metadata.key
        if job.is_finished:
            claims = ()
        if self._used_by.get(key, ()) != claims:
            self._set_uses(key, claims, job.metadata.creation_timestamp or "")
        return self.judge(job, claims)

    def leave(self, key: JobKey) -> None:
        """Note that a job is gone."""
        self._set_uses(key, (), "")

    def judge(self, job: Job, claims: DeviceClaims) -> DeviceNeeds | UnusableDevices:
        """Return what members of each role need, or the first claim that they cannot have.

        Kinds that are new are counted from the next `follow` on.
        """
        if not claims:
            return ()
        key = job.metadata.key
        known = self._judged.get(key)
        if known is None or key not in self._used_by:
            known = self._judged[key] = self.read(job, claims)
        return known

    def put_slice(self, name: str, found: ResourceSlice | None) -> bool:
        """Take in a slice, or that it is gone; False when it matters to no job."""
        self._pools.put_slice(name, found)
        self._is_stale = True
        return self.is_used

    def put_class(self, name: str, found: DeviceClass | None) -> bool:
        """Take in a class, or that it is gone; False when it matters to no job."""
        if found is None:
            self._classes.pop(name, None)
        else:
            self._classes[name] = found
        for kind in [kind for kind in self._kinds if kind.device_class == name]:
            del self._kinds[kind]
            self._pools.forget(kind)
        self._mark(self._users)
        return self.is_used

    def put_template(self, key: JobKey, found: ResourceClaimTemplate | None) -> bool:
        """Take in a template, or that it is gone; False when it matters to no job."""
        if found is None:
            self._templates.pop(key, None)
        else:
            self._templates[key] = found
        return self._mark(((key[0], ClaimName(key[1], is_template=True)),))

    def put_claim(self, key: JobKey, found: ResourceClaim | None) -> bool:
        """Take in a claim, or that it is gone; False when it matters to no job."""
        if found is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = found
        is_seen = self._pools.put_claim(key, found)
        self._is_stale = self._is_stale or is_seen
        is_named = self._mark(((key[0], ClaimName(key[1], is_template=False)),))
        return is_named or (is_seen and self.is_used)

    def put_pod(self, key: JobKey, *, is_there: bool) -> bool:
        """Take in that a pod is on its node, or that it is over or gone; False when it matters to
        no job.
        """
        is_seen = self._pools.put_pod(key, is_there=is_there)
        self._is_stale = self._is_stale or is_seen
        return is_seen and self.is_used

    def follow(self) -> DeviceChanges:
        """Take in what has changed, once after many changes; what is returned is to be booked."""
        if not (self._is_stale or self._stale) or not (self.is_used or self._kinds):
            return _NO_CHANGES
        self._is_stale = False
        jobs = dict.fromkeys(chain.from_iterable(self._users.get(n, ()) for n in self._stale))
        if self._stale:
            self._stale.clear()
            self._tell_apart()
        booked = self._pools.follow(self._kinds, self._selectors)
        if booked.has_new_rows:
            jobs = dict.fromkeys(self._used_by)
            self._beyond = dict.fromkeys(k for k in self._wanted() if not self._pools.rows.has(k))
        for key in jobs:
            self._judged.pop(key, None)
        return DeviceChanges(booked.nodes, booked.stranded, booked.pods, tuple(jobs))

    def read(self, job: Job, claims: DeviceClaims) -> DeviceNeeds | UnusableDevices:
        """Return what members of each role need, or what is wrong with the first claim."""
        members = Counter[ClaimName]()
        for role, names in zip(job.spec.roles, claims, strict=True):
            for name in dict.fromkeys(names):
                members[name] += role.count
        needs: list[DeviceNeed] = []
        for names in claims:
            asks: list[DeviceAsk] = []
            reach: list[Reach] = []
            for name in names:
                found = self._need(job, name, members[name])
                match found:
                    case (tuple() as asked, tuple() as near):
                        asks += asked
                        reach.append(near)
                    case _:
                        return found
            rows = self._pools.rows
            request = rows.request(ask for ask in asks if rows.has(ask.kind))
            needs.append(DeviceNeed(request, tuple(chain.from_iterable(reach))))
        return tuple(needs)

    def _need(
        self, job: Job, name: ClaimName, members: int
    ) -> tuple[tuple[DeviceAsk, ...], Reach] | UnusableDevices:
        """Return what a member takes for one of its claims, and from where it reaches it."""
        named = (job.metadata.namespace, name)
        found = self._asks_of(named)
        if not isinstance(found, tuple):
            return found
        claim = None if name.is_template else self._claims[named[0], name.name]
        if claim is not None:
            if members > CONSUMERS_MAX:
                why = f"{members} members share a claim; accepted: {CONSUMERS_MAX} at most"
                return UnsupportedClaim(name.words, "status.reservedFor", why)
            allocation = claim.status.allocation
            if allocation is not None:
                near = allocation.node_selector
                return ((), () if near is None else (near,))
            users = self._users.get(named, {})
            first = min(((at, key) for key, at in users.items()), default=None)
            if members > 1 or (first is not None and first[1] != job.metadata.key):
                return UnallocatedClaim(name.words)
        wrong = next(filter(None, (self._wrong(name, ask.kind) for ask in found)), None)
        return wrong or (found, ())

    def _wrong(self, name: ClaimName, kind: DeviceKind) -> UnusableDevices | None:
        """Return why no device of a kind can be had, whatever there is of it."""
        if kind.device_class not in self._classes:
            return MissingDeviceClass(name.words, kind.device_class)
        where = f"the selectors of class {kind.device_class}"
        try:
            self._selectors(kind)
        except ExpressionError as error:
            return UnsupportedClaim(name.words, where, f"an expression {error}")
        fault = self._pools.fault(kind)
        if fault and self._pools.rows.is_nowhere(kind):
            return UnsupportedClaim(name.words, where, f"an expression {fault}")
        if kind in self._beyond:
            why = "jobs ask for too many kinds of devices at a time; it waits until some have ended"
            return UnsupportedClaim(name.words, f"class {kind.device_class}", why)
        return None

    def _asks_of(self, named: _Named) -> tuple[DeviceAsk, ...] | UnusableDevices:
        found = self._asks.get(named)
        if found is None or named not in self._users:
            found = self._asks[named] = self._read_asks(named)
        return found

    def _read_asks(self, named: _Named) -> tuple[DeviceAsk, ...] | UnusableDevices:
        namespace, name = named
        key = (namespace, name.name)
        template, claim = self._templates.get(key), self._claims.get(key)
        if name.is_template:
            if template is None or template.metadata.deletion_timestamp is not None:
                return MissingDeviceClaim(name.words)
            return asks_of(name, template.spec.spec.devices)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return MissingDeviceClaim(name.words)
        return asks_of(name, claim.spec.devices)

    def _selectors(self, kind: DeviceKind) -> list[DeviceExpression]:
        found = self._classes.get(kind.device_class)
        if found is None:
            raise ExpressionError("there is no such class")
        of_class = [each.cel.expression for each in found.spec.selectors if each.cel is not None]
        if len(of_class) < len(found.spec.selectors):
            raise ExpressionError("of the class is not in CEL")
        return [device_expression(expression) for expression in (*of_class, *kind.selectors)]

    def _wanted(self) -> dict[DeviceKind, None]:
        """Return the kinds that jobs ask for, those of the oldest jobs first; namespaces take
        turns, so that one with many kinds leaves room for the first ones of others.
        """
        first = {
            named: min((at, key) for key, at in jobs.items()) for named, jobs in self._users.items()
        }
        of_namespace: dict[str, dict[DeviceKind, None]] = {}
        turns: dict[DeviceKind, tuple[int, int]] = {}
        for named in sorted(first, key=lambda each: (first[each], each[1].words)):
            found = self._asks_of(named)
            own = of_namespace.setdefault(named[0], {})
            for kind in (ask.kind for ask in found) if isinstance(found, tuple) else ():
                if kind not in own:
                    turn = (len(own), len(turns))
                    own[kind] = None
                    turns[kind] = min(turn, turns.get(kind, turn))
        return dict.fromkeys(sorted(turns, key=turns.__getitem__))

    def _tell_apart(self) -> None:
        """Give each kind that is asked for a bit, which it keeps."""
        wanted = list(self._wanted())[:KINDS_MAX]
        kept = {kind: self._kinds[kind] for kind in wanted if kind in self._kinds}
        taken = set(kept.values())
        free = (1 << i for i in range(KINDS_MAX) if 1 << i not in taken)
        self._kinds = {kind: kept[kind] if kind in kept else next(free) for kind in wanted}

    def _set_uses(self, key: JobKey, claims: DeviceClaims, created: str) -> None:
        before = self._used_by.pop(key, ())
        if claims:
            self._used_by[key] = claims
        self._judged.pop(key, None)
        for name in dict.fromkeys(chain.from_iterable(before)):
            named = (key[0], name)
            users = self._users[named]
            del users[key]
            if not (users and name.is_template):
                self._stale[named] = None
            if not users:
                del self._users[named]
                self._asks.pop(named, None)
        for name in dict.fromkeys(chain.from_iterable(claims)):
            named = (key[0], name)
            users = self._users.setdefault(named, {})
            if not (users and name.is_template):
                self._stale[named] = None
            users[key] = created

    def _mark(self, names: Iterable[_Named]) -> bool:
        """Note that claims, or what they name, have changed; False when no job uses any."""
        used = [named for named in names if named in self._users]
        for named in used:
            self._asks.pop(named, None)
            self._stale[named] = None
            for job in self._users[named]:
                self._judged.pop(job, None)
        return bool(used)
