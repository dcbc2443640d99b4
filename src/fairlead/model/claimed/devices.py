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
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, TypeVar

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.names import HOSTNAME
from fairlead.api.pods.served_resources import ResourceClasses
from fairlead.model.asks.requests import Reach, Request, request_of
from fairlead.model.claimed.claim_uses import ClaimUse, first_of, kinds_of, shared_asks, uses_of
from fairlead.model.claimed.device_asks import (
    ClaimName,
    DeviceAsk,
    DeviceClaims,
    DeviceKind,
    DeviceNeed,
    DeviceNeeds,
    MissingDeviceClaim,
    MissingDeviceClass,
    UnallocatedClaim,
    UnmatchedDevices,
    UnsupportedClaim,
    UnusableDevices,
    asks_of,
    crowded,
    quota_of,
)
from fairlead.model.claimed.device_marks import DeviceMarks
from fairlead.model.claimed.device_pools import DevicePools
from fairlead.model.claimed.device_selectors import MatchedKind
from fairlead.model.claimed.volumes import Turn
from fairlead.model.claimed.work import Matched, Work, advance, complete
from fairlead.model.gang.gangs import JobKey
from fairlead.model.inventory.device_offers import ServedResources

#: Pods for which one claim may be reserved (`ResourceClaimReservedForMaxSize`).
CONSUMERS_MAX = 256
#: Kinds of devices that are told apart at a time: those of the oldest jobs.
KINDS_MAX = 64

#: Namespace and name of a claim or a template.
_Named: TypeAlias = tuple[str, ClaimName]
#: Claims of a job, and how it uses each.
_Uses: TypeAlias = tuple[DeviceClaims, Mapping[ClaimName, ClaimUse]]
#: What a member asks for by a claim, from where it reaches it, and in which domain.
_Part: TypeAlias = tuple[tuple[DeviceAsk, ...], Reach, tuple[tuple[str, str], ...]]
_UNUSED: _Uses = ((), {})
_Found: TypeAlias = DeviceNeeds | UnusableDevices
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """What nodes offer of the rows of devices and what of it is stranded, what pods have, and the
    jobs to look at again.
    """

    nodes: Mapping[str, Mapping[str, int]]
    stranded: Mapping[str, Request]
    pods: Mapping[JobKey, Request]
    jobs: tuple[JobKey, ...]
    #: See `DeviceRows.served`; None where it is as before.
    served: ServedResources | None = None


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
        #: Read it only, but for templates of node pools.
        self.pools = DevicePools()
        #: Keys of the pods that were noted as on their nodes. Read it only.
        self.pods = self.pools.pods
        self._classes: dict[str, DeviceClass] = {}
        #: Which of them serve resources of containers. Read it only.
        self.resources = ResourceClasses()
        self._templates: dict[JobKey, ResourceClaimTemplate] = {}
        self.claims: dict[JobKey, ResourceClaim] = {}  # read it only
        #: By job that has not ended: its claims; by claim: its jobs.
        self._used_by: dict[JobKey, _Uses] = {}
        self._users: dict[_Named, dict[JobKey, ClaimUse]] = {}
        #: What a claim asks for, and what `judge` has found, until something changes.
        self._asks: dict[_Named, tuple[DeviceAsk, ...] | UnusableDevices] = {}
        self._judged: dict[JobKey, _Found] = {}
        self._stale: dict[_Named, None] = {}
        #: The kinds that count (read these only), and those that come after: how far they are
        #: compared, and when they are, None.
        self.marks = DeviceMarks(self.pools, {})
        self._next: tuple[DeviceMarks, Work[None] | None] | None = None
        #: Kinds for which there are too many; whether jobs may ask for others than before.
        self._beyond: frozenset[DeviceKind] = frozenset()
        self._may_ask_for_others = False
        #: Set: these kinds count whatever jobs ask for; see `count_only`.
        self._given: tuple[DeviceKind, ...] | None = None
        #: False: `match` is called beside, and `follow` leaves new kinds to it.
        self.matches_at_once = True
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

    def use(self, job: Job, claims: DeviceClaims, turn: Turn = None) -> _Found:
        """Note which claims a job uses until it has ended, and return what `judge` does; `turn` is
        when it gets devices for a claim that other jobs name as well.
        """
        key, uses = job.metadata.key, _UNUSED
        if claims and not job.is_finished:
            uses = (claims, uses_of(job, claims, turn))
        if self._used_by.get(key, _UNUSED) != uses:
            self._set_uses(key, uses)
        return self.judge(job, () if job.is_finished else claims)

    def leave(self, key: JobKey) -> None:
        """Note that a job is gone."""
        self._set_uses(key, _UNUSED)

    def judge(self, job: Job, claims: DeviceClaims) -> _Found:
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
        self.pools.put_slice(name, found)
        return self.is_used

    def put_class(self, name: str, found: DeviceClass | None) -> bool:
        """Take in a class, or that it is gone; False when it matters to no job."""
        _put(self._classes, name, found)
        self._mark(self._users)
        return self.resources.put(name, found) or self.is_used

    def put_template(self, key: JobKey, found: ResourceClaimTemplate | None) -> bool:
        """Take in a template, or that it is gone; False when it matters to no job."""
        _put(self._templates, key, found)
        return self._mark(((key[0], ClaimName(key[1], is_template=True)),))

    def put_claim(self, key: JobKey, found: ResourceClaim | None) -> bool:
        """Take in a claim, or that it is gone; False when it matters to no job."""
        _put(self.claims, key, found)
        is_seen = self.pools.put_claim(key, found)
        is_named = self._mark(((key[0], ClaimName(key[1], is_template=False)),))
        return is_named or (is_seen and self.is_used)

    def put_pod(self, key: JobKey, *, is_there: bool) -> bool:
        """Take in that a pod is on its node, or that it is over or gone; False when it matters to
        no job.
        """
        return self.pools.put_pod(key, is_there=is_there) and self.is_used

    @property
    def kinds(self) -> tuple[DeviceKind, ...]:
        """The kinds that count: those of which it is known which devices there are."""
        return tuple(self.marks.kinds)

    def count_only(self, kinds: Sequence[DeviceKind]) -> None:
        """Let these kinds count from the next `follow` on, whatever jobs ask for."""
        self._given, self._may_ask_for_others = tuple(kinds), True

    @property
    def is_unmatched(self) -> bool:
        """True while there is something to `match`, now or after `follow`."""
        return (self._next is not None and self._next[1] is not None) or self._may_ask_for_others

    def match(self, units: int) -> Matched:
        """Compare kinds that are new with all devices, in so many units of work and what the last
        part has beyond.

        At most one new kind of each namespace is taken at a time: one that asks for kind after kind
        lets others wait for one of its kinds, and itself for all of them.
        """
        had_news = bool(self._stale)
        if self._next is None:
            self._begin(most=1)
        has_news = bool(self._stale) and not had_news
        marks, work = self._next or (self.marks, None)
        if work is None:
            return Matched(0, has_news=has_news)
        done, is_complete = advance(work, units)
        if is_complete:
            self._next = (marks, None)
        return Matched(done, has_news=has_news or is_complete)

    def follow(self) -> DeviceChanges:
        """Take in what has changed, once after many changes; what is returned is to be booked."""
        if not (self.is_used or self.marks.kinds or self._next):
            return _NO_CHANGES
        if self.matches_at_once and self._next is None:
            self._begin(most=None)
        before, marks = self.marks, self.marks
        if self._next is not None and (self.matches_at_once or self._next[1] is None):
            marks, self._next = self._next[0], None
        if marks is before and not (self._stale or marks.is_stale):
            return _NO_CHANGES
        rows = marks.rows
        if marks.kinds:
            complete(marks.bring_up_to_date())
        if marks is not before:
            marks.settle(before)
            self.marks = marks
            kinds = (*before.kinds, *marks.kinds)
            self._judge_again({k for k in kinds if _standing(before, k) != _standing(marks, k)})
        elif rows.rows != marks.rows.rows:
            self._judge_again(set(marks.kinds))
        jobs = dict.fromkeys(chain.from_iterable(self._users.get(n, ()) for n in self._stale))
        self._stale.clear()
        for key in jobs:
            self._judged.pop(key, None)
        return DeviceChanges(*marks.differences(), tuple(jobs), marks.rows.served)

    def _begin(self, most: int | None) -> None:
        """Begin with the kinds that jobs ask for now, if they are others than before: with so many
        new ones of each namespace; None: with all.
        """
        if not self._may_ask_for_others:
            return
        wanted = self._wanted()
        self._may_ask_for_others = False
        beyond = frozenset(list(wanted)[KINDS_MAX:])
        self._judge_again(beyond ^ self._beyond)
        self._beyond = beyond
        chosen = self._choose([kind for kind in wanted if kind not in beyond], wanted, most)
        known, rows = self.marks.kinds, self.marks.rows
        is_full = not all(map(rows.has, known))  # then it matters which come first
        if chosen != known or (is_full and list(chosen) != list(known)):
            marks = DeviceMarks(self.pools, chosen, self.marks)
            self._next = (marks, marks.bring_up_to_date())

    def _choose(
        self,
        wanted: Sequence[DeviceKind],
        namespaces: Mapping[DeviceKind, Mapping[str, None]],
        most: int | None,
    ) -> dict[DeviceKind, MatchedKind]:
        """Return the kinds that are to count next, and give each a bit, which it keeps."""
        if self._given is not None:
            wanted, most = self._given, None
        known = self.marks.kinds
        taken = {known[kind].bit for kind in wanted if kind in known}
        free = (1 << i for i in range(KINDS_MAX) if 1 << i not in taken)
        new = Counter[str]()
        chosen: dict[DeviceKind, MatchedKind] = {}
        for kind in wanted:
            found, before = self._classes.get(kind.device_class), known.get(kind)
            if not all(part in chosen for part in kind.parts[:-1]):
                continue  # one of its parts has its turn later
            spec = None if found is None else found.spec
            if before is not None and before.device_class == spec:
                chosen[kind] = before
                continue
            of = namespaces.get(kind, {})
            if most is not None and all(new[each] >= most for each in of):
                self._may_ask_for_others = True  # in its turn
                if before is not None:
                    chosen[kind] = before
                continue
            new.update(list(of))
            chosen[kind] = MatchedKind(next(free) if before is None else before.bit, spec)
        return chosen

    def _judge_again(self, kinds: AbstractSet[DeviceKind]) -> None:
        """Judge the jobs again that ask for some kinds."""
        for named in self._users if kinds else ():
            if named in self._asks and not kinds.isdisjoint(self._kinds_of(named)):
                self._stale[named] = None

    def read(self, job: Job, claims: DeviceClaims) -> _Found:
        """Return what members of each role need, or what is wrong with the first claim."""
        uses = uses_of(job, claims)
        needs: list[DeviceNeed] = []
        for i, names in enumerate(claims):
            if (too_many := crowded(names)) is not None:
                return too_many
            parts: list[_Part] = []
            for name in names:
                found = self._need(job, i, name, uses[name])
                if not isinstance(found, tuple):
                    return found
                parts.append(found)
            rows = self.marks.rows
            needs.append(DeviceNeed(
                rows.request(ask for asks, _, _ in parts for ask in asks if rows.has(ask.kind)),
                tuple(each for _, reach, _ in parts for each in reach),
                self._quota_of(job.metadata.namespace, names),
                tuple(each for _, _, domains in parts for each in domains),
            ))  # fmt: skip
        return tuple(needs)

    def _quota_of(self, namespace: str, names: Iterable[ClaimName]) -> Request:
        found = Counter[str]()
        for each in names:
            if each.is_template:
                spec = self._templates[namespace, each.name].spec.spec.devices
                found.update(dict(quota_of(spec, self.resources)))
        return request_of(found.items())

    @property
    def made_version(self) -> int:
        """A number that rises with each claim that is made for a pod, or goes."""
        return self.pools.made_version

    def has_claims(self, pod: JobKey) -> bool:
        """True for a pod for which claims have been made."""
        return pod in self.pools.claims_of_pod

    def _need(self, job: Job, role: int, name: ClaimName, use: ClaimUse) -> _Part | UnusableDevices:
        """Return what a member takes for one of its claims, and from where it reaches it."""
        named = (job.metadata.namespace, name)
        found = self._asks_of(named)
        if not isinstance(found, tuple):
            return found
        domains: tuple[tuple[str, str], ...] = ()
        if name.is_shared:
            if use.members > CONSUMERS_MAX:
                why = f"{use.members} members share a claim; accepted: {CONSUMERS_MAX} at most"
                return UnsupportedClaim(name.words, "status.reservedFor", why)
            allocation = self.claims[named[0], name.name].status.allocation
            if allocation is not None:
                near = allocation.node_selector
                return ((), () if near is None else (near,), ())
            asking, sharers = use.asked_by
            shared = shared_asks(found, sharers) if sharers else None
            first = first_of(self._users.get(named, {}).values())
            if shared is None or first not in (None, job.metadata.key):
                return UnallocatedClaim(name.words, "" if shared is None or not first else first[1])
            domains = ((name.name, HOSTNAME),) if use.members > 1 else ()
            found = shared
            if role != asking:
                return ((), (), domains)
        wrong = next(filter(None, (self._wrong(name, ask.kind) for ask in found)), None)
        return wrong or (found, (), domains)

    def _wrong(self, name: ClaimName, kind: DeviceKind) -> UnusableDevices | None:
        """Return why no device of a kind can be had, whatever there is of it."""
        parts = kind.parts[:-1] or (kind,)
        device_class = parts[0].device_class
        for part in parts:
            if part.device_class not in self._classes:
                return MissingDeviceClass(name.words, part.device_class)
        for each in kind.parts:
            matched = self.marks.kinds.get(each)
            is_matched = matched is not None and (
                each.is_made_up or matched.device_class is not None
            )
            if each not in self._beyond and not is_matched:
                return UnmatchedDevices(name.words, device_class)
        if kind.resource and self.marks.rows.has(kind):
            return None  # nodes that have the resource by themselves do without
        if (fault := self.marks.fault(kind)) and self._beyond.isdisjoint(kind.parts):
            where = f"the selectors of class {device_class}"
            return UnsupportedClaim(name.words, where, f"an expression {fault}")
        if not self.marks.rows.has(kind):
            why = "jobs ask for too many kinds of devices at a time; it waits until some have ended"
            return UnsupportedClaim(name.words, f"class {device_class}", why)
        return None

    def _asks_of(self, named: _Named) -> tuple[DeviceAsk, ...] | UnusableDevices:
        found = self._asks.get(named)
        if found is None or named not in self._users:
            found = self._asks[named] = self._read_asks(named)
        return found

    def _read_asks(self, named: _Named) -> tuple[DeviceAsk, ...] | UnusableDevices:
        namespace, name = named
        if name.count:
            return self._asks_of_resource(name)
        key = (namespace, name.name)
        template, claim = self._templates.get(key), self.claims.get(key)
        if name.is_template:
            if template is None or template.metadata.deletion_timestamp is not None:
                return MissingDeviceClaim(name.words)
            return asks_of(name, template.spec.spec.devices)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return MissingDeviceClaim(name.words)
        return asks_of(name, claim.spec.devices)

    def _asks_of_resource(self, name: ClaimName) -> tuple[DeviceAsk, ...]:
        """Return the devices that serve a resource of containers, on nodes that have none of it."""
        found = self.resources.get(name.name)
        if found is None:
            return ()
        serving = DeviceAsk(DeviceKind(found), 1)
        return (DeviceAsk(DeviceKind(options=(serving,), resource=name.name), name.count),)

    def _wanted(self) -> dict[DeviceKind, dict[str, None]]:
        """Return the kinds that jobs ask for, those of the oldest jobs first, and the namespaces of
        each; namespaces take turns, so that one with many kinds leaves room for the first ones of
        others.
        """
        first = {
            named: min((use.at, key) for key, use in jobs.items())
            for named, jobs in self._users.items()
        }
        of_namespace: dict[str, dict[DeviceKind, None]] = {}
        turns: dict[DeviceKind, tuple[int, int]] = {}
        namespaces: dict[DeviceKind, dict[str, None]] = {}
        for named in sorted(first, key=lambda each: (first[each], each[1].words)):
            own = of_namespace.setdefault(named[0], {})
            for kind in self._kinds_of(named):
                if kind not in own:
                    turn = (len(own), len(turns))
                    own[kind] = None
                    turns[kind] = min(turn, turns.get(kind, turn))
                    namespaces.setdefault(kind, {})[named[0]] = None
        return {kind: namespaces[kind] for kind in sorted(turns, key=turns.__getitem__)}

    def _kinds_of(self, named: _Named) -> dict[DeviceKind, None]:
        found = self._asks_of(named)
        asks = found if isinstance(found, tuple) else ()
        return kinds_of(asks, self._users.get(named, {}).values())

    def _set_uses(self, key: JobKey, uses: _Uses) -> None:
        _, before = self._used_by.pop(key, _UNUSED)
        if uses[0]:
            self._used_by[key] = uses
        self._judged.pop(key, None)
        for name in before:
            del self._users[key[0], name][key]
        for name, turn in uses[1].items():
            self._users.setdefault((key[0], name), {})[key] = turn
        for name in dict.fromkeys((*before, *uses[1])):
            users = self._users[named := (key[0], name)]
            if len(users) < 2 or name.is_shared:
                self._stale[named], self._may_ask_for_others = None, True
            if not users:
                del self._users[named]
                self._asks.pop(named, None)

    def _mark(self, names: Iterable[_Named]) -> bool:
        """Note that claims, or what they name, have changed; False when no job uses any."""
        used = [named for named in names if named in self._users]
        for named in used:
            self._asks.pop(named, None)
            self._stale[named], self._may_ask_for_others = None, True
            for job in self._users[named]:
                self._judged.pop(job, None)
        return bool(used)


def _put(known: dict[_Key, _Value], key: _Key, found: _Value | None) -> None:
    if found is None:
        known.pop(key, None)
    else:
        known[key] = found


def _standing(marks: DeviceMarks, kind: DeviceKind) -> object:
    """Return what decides on the jobs that ask for a kind."""
    return kind in marks.kinds, marks.rows.takes(kind), marks.fault(kind)
