"""Who uses what: the claims of jobs, and the pods that no claim covers.

The accounting rule (docs/design/placement.md): a node's use is the claims of all unfinished jobs'
placements, plus every non-terminal pod that is bound there, as far as no claim covers it. A claim
is one place for one member, so it counts from the moment it is written until the job ends or gives
it back, whether or not the pod exists at the time.

A claim covers one pod per place, and of that pod no more than the place's request. The pod must be
of the job by what the API server vouches for: same namespace, and the job its controller by uid. A
pod of another tool has a controller of its own; there the label with the job's uid, in the job's
namespace, says which place the pod counts against. Labels choose the place and make nothing free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias, TypeVar

import numpy as np

from fairlead.api import names
from fairlead.api.jobs.placement import RolePlacement
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import label_number
from fairlead.api.values.times import parse_time
from fairlead.model.asks.neighbours import NO_RULES, Term, TermTable, rules_of_pod
from fairlead.model.asks.requests import CARRIED, Request, RequestError, RequestReader
from fairlead.model.gang.gangs import JobKey
from fairlead.model.holdings.claims import Claim, Member, PodUse, booked_amount
from fairlead.model.holdings.held_places import HeldPlaces
from fairlead.model.holdings.pod_owner import Owner, owner_of_pod
from fairlead.model.inventory.nodes import Ints, NodeTable, Use, counted
from fairlead.model.pools.grouping import controller_of

K = TypeVar("K")
#: Called with namespace, team that it names and node of a pod that no claim covers; 1 or -1.
OnUncovered: TypeAlias = Callable[[str, str, str, int], None]
#: Node and request of a member that has no place.
_NO_PLACE: tuple[str, Request] = ("", ())
_NO_SLOTS = np.zeros(0, dtype=np.int64)


class Ledger:
    """Claims and uncovered pods, booked on the node table."""

    def __init__(
        self, table: NodeTable, reader: RequestReader, terms: TermTable, on_uncovered: OnUncovered
    ) -> None:
        self._table = table
        self._on_uncovered = on_uncovered
        self._reader = reader
        self._terms = terms
        self._claims: dict[JobKey, Claim] = {}
        self._claims_by_owner: dict[Owner, Claim] = {}
        self._slots_of_claim: dict[JobKey, Ints] = {}
        #: The distinct slots of each role of a claim, members per slot, and what one requests.
        self._places_of_claim: dict[JobKey, tuple[Use, ...]] = {}
        #: (-devices, -milli-CPU, job), the largest holder first.
        self._by_size: list[tuple[int, int, JobKey]] = []
        #: (priority, job), the lowest priority first: of all claims, and of those that use a slot.
        self._by_priority: list[tuple[int, JobKey]] = []
        self._by_slot: dict[int, list[tuple[int, JobKey]]] = {}
        self._uncertain: dict[JobKey, Claim] = {}  # by key of the job
        self.nominated: dict[JobKey, Claim] = {}  # what places are kept for
        self._pods: dict[JobKey, PodUse] = {}
        self._devices: dict[JobKey, Request] = {}  # of pods, by claims
        self._leaving: dict[JobKey, None] = {}  # keys of the pods that are being deleted
        #: Keys of the pods of each job, and of each member, in order of arrival.
        self._pods_by_owner: dict[Owner, dict[JobKey, None]] = {}
        self._pods_by_member: dict[tuple[Owner, Member], dict[JobKey, None]] = {}
        self._misplaced: Counter[Owner] = Counter()  # bound pods of a job that have no place
        self._unbound: Counter[Owner] = Counter()  # pods of a job that may still be bound
        self._beyond: Counter[Owner] = Counter()  # bound pods of a job that use more than its claim
        self.held_places = HeldPlaces()  # beyond pods, which is what quotas do not count

    def claim(self, key: JobKey) -> Claim | None:
        """Return the claim of a job."""
        return self._claims.get(key)

    def claims_by_size(self) -> Iterator[Claim]:
        """Yield claims, the one that holds most devices, then CPU, first."""
        for _, _, key in self._by_size:
            yield self._claims[key]

    def claims_by_priority(self) -> Iterator[Claim]:
        """Yield claims, the lowest priority first, then by key."""
        for _, key in self._by_priority:
            yield self._claims[key]

    def claims_on(self, slot: int) -> list[Claim]:
        """Return the claims that use a slot, the lowest priority first, then by key."""
        return [self._claims[key] for _, key in self._by_slot.get(slot, ())]

    def uses_of(self, key: JobKey) -> Iterator[Use]:
        """Yield what the claim of a job and its pods use.

        That is the claim itself, an uncertain placement, and what the job's pods
        use beyond the claim. Nothing for a job without a claim.
        """
        claim = self._claims.get(key)
        if claim is None:
            return
        yield from self._places_of_claim[key]
        if key in self._uncertain:
            yield from self._places(self._uncertain[key])
        owner = claim.owner
        for pod_key in self._pods_by_owner[owner] if owner in self._beyond else ():
            use = self._pods[pod_key]
            if use.node and use.booked:
                slot = self._table.occupy(use.node)
                yield Use(np.array([slot]), np.ones(1, dtype=np.int64), use.booked)

    @property
    def has_uses_beyond(self) -> bool:
        """True while a job with a claim may use more than that: see `uses_of`."""
        beyond = any(owner in self._claims_by_owner for owner in self._beyond)
        return beyond or bool(self._uncertain)

    def places_of(self, key: JobKey) -> tuple[Use, ...]:
        """Return what the claim of a job uses; another object once the claim is another one."""
        return self._places_of_claim[key]

    def awaits_binding(self, key: JobKey) -> bool:
        """True while pods of a job that has a claim may still be bound, by another scheduler."""
        claim = self._claims.get(key)
        return claim is not None and claim.owner in self._unbound

    def set_claim(self, key: JobKey, claim: Claim | None) -> bool:
        """Replace the claim of a job and see which pods it covers; False where it is the same."""
        before = self._claims.get(key)
        if before == claim:
            return False
        if before is not None:
            self._unindex(before)
        if claim is not None:
            self._places_of_claim[key] = tuple(self._places(claim))
            self._index(claim, self._book_claim(claim, 1))
        for owner in dict.fromkeys(c.owner for c in (before, claim) if c is not None):
            for pod_key in list(self._pods_by_owner.get(owner, ())):
                self._settle(self._pods[pod_key])
        if before is not None:  # last: where only a ghost is left, its pods now keep it
            self._book_claim(before, -1)
        if claim is None:
            self._places_of_claim.pop(key, None)
        return True

    def book_uncertain(self, claim: Claim) -> None:
        """Book a placement whose write has an unknown outcome, beside what the job has.

        It covers no pods, and it is no claim that the job could release.
        """
        self.unbook_uncertain(claim.key)
        had = self._claims[claim.key].places if claim.key in self._claims else {}
        new: dict[str, list[str]] = {}
        for (role, index), (node, _) in claim.places.items():
            if had.get((role, index), _NO_PLACE)[0] != node:
                new.setdefault(role, []).append(node)
        roles = tuple((role, asked, tuple(new.get(role, ()))) for role, asked, _ in claim.roles)
        self._uncertain[claim.key] = Claim(claim.key, claim.uid, roles)
        self._book_claim(self._uncertain[claim.key], 1)

    def unbook_uncertain(self, key: JobKey) -> None:
        """Take back what `book_uncertain` booked for a job, if anything."""
        if (held := self._uncertain.pop(key, None)) is not None:
            self._book_claim(held, -1)

    def uncertain_nodes(self, key: JobKey) -> frozenset[str]:
        """Return the nodes that `book_uncertain` booked for a job."""
        held = self._uncertain.get(key)
        if held is None:
            return frozenset()
        return frozenset(node for _, _, nodes in held.roles for node in nodes)

    def nomination(self, key: JobKey) -> Claim | None:
        """Return the places that are kept for a job."""
        return self.nominated.get(key)

    def nominated_nodes(self) -> set[str]:
        """Return the nodes on which places are kept for jobs."""
        return {n for c in self.nominated.values() for _, _, nodes in c.roles for n in nodes}

    def set_nomination(self, key: JobKey, claim: Claim | None) -> None:
        """Keep places for a job, whoever still uses them: they count as used. None: keep none."""
        before = self.nominated.get(key)
        if before == claim:
            return
        if claim is None:
            del self.nominated[key]
        else:
            self.nominated[key] = claim
            self._book_claim(claim, 1)
        if before is not None:
            self._book_claim(before, -1)

    def leaving_uses(self, is_late: Callable[[PodUse], bool]) -> Iterator[Use]:
        """Yield what pods use beyond claims that are to be gone, but for those that are late.

        Those are pods that are being deleted, and pods of jobs that have given their places back.
        """
        keys = dict(self._leaving)
        for owner, pods in self._pods_by_owner.items():
            if owner not in self._claims_by_owner:
                keys.update(pods)
        for key in keys:
            use = self._pods[key]
            if use.node and use.booked and not is_late(use):
                slot = self._table.occupy(use.node)
                yield Use(np.array([slot]), np.ones(1, dtype=np.int64), use.booked)

    def overdue(self, now: float) -> Iterator[tuple[JobKey, str, float, Owner | None]]:
        """Yield pods that were to be gone and are not, in order of arrival: key, node, since when
        and whose each is.
        """
        for key in self._leaving:
            use = self._pods[key]
            if use.node and use.leaves_at is not None and use.leaves_at <= now:
                yield key, use.node, use.leaves_at, use.owner

    def uncovered(self) -> Iterator[tuple[str, str, str]]:
        """Yield namespace, team that it names and node of each bound pod that no claim covers."""
        for use in self._pods.values():
            if use.node and use.team is not None and not use.is_seated:
                yield use.key[0], use.team, use.node

    def set_pod(self, pod: Pod) -> bool:
        """Book a pod, or take its booking back when it is terminal; False: nothing else follows."""
        use = self._read(pod)
        if use is None:
            return self.remove_pod(pod.metadata.key)
        before = self._pods.get(use.key)
        if before == use:
            return False
        was_apart = before is None or self._is_covered(before)
        self._put_pod(use)
        return not (was_apart and self._is_covered(use))

    def mark_pods(self, term: Term, *, is_known: bool) -> None:
        """Mark the pods that a new term is about; or unmark them, since nothing has the term."""
        entry = (f"{CARRIED}{term.mark.name}", 1)
        for use in [each for each in self._pods.values() if each.key[0]]:
            if term.selects(use.key[0], use.labels) and (entry in use.request) != is_known:
                request = tuple(sorted({*use.request} ^ {entry}))
                self._put_pod(replace(use, request=request))

    def set_claimed(self, key: JobKey, devices: Request, kind: str) -> None:
        """Count what claims of a pod have of rows, whose names begin with `kind`, as it asks it."""
        before, use = self._devices.pop(key, ()), self._pods.get(key)
        devices = tuple(sorted((*(e for e in before if not e[0].startswith(kind)), *devices)))
        if devices:
            self._devices[key] = devices
        if use is not None:
            request = tuple(sorted({*use.request} - {*before} | {*devices}))
            self._put_pod(replace(use, request=request))

    def set_stranded(self, node: str, lost: Request, what: str) -> None:
        """Count what of a node no pod can have; see `PodUse.stranded`."""
        use = PodUse.stranded(node, lost, what)
        self._put_pod(use) if lost else self.remove_pod(use.key)

    def _put_pod(self, use: PodUse) -> None:
        key = use.key
        self.remove_pod(key)
        use.booked, use.is_seated, use.is_counted = use.request, False, False
        self._pods[key] = use
        if use.leaves_at is not None:
            self._leaving[key] = None
        if use.owner is not None:
            self.held_places.count_pod(use.owner, use.request, 1)
            self._pods_by_owner.setdefault(use.owner, {})[key] = None
            if not use.node:
                _add(self._unbound, use.owner, 1)
            if use.member is not None:
                self._pods_by_member.setdefault((use.owner, use.member), {})[key] = None
                self._settle(use)
                return
        self._book_pod(use, 1)

    def remove_pod(self, key: JobKey) -> bool:
        """Forget a pod; False when nothing follows but for the pod."""
        use = self._pods.get(key)
        self._leaving.pop(key, None)
        if use is None:
            return False
        is_seen = not self._is_covered(use)
        del self._pods[key]
        self._book_pod(use, -1)
        if use.owner is None:
            return is_seen
        self.held_places.count_pod(use.owner, use.request, -1)
        _discard(self._pods_by_owner, use.owner, key)
        if not use.node:
            _add(self._unbound, use.owner, -1)
        if use.member is not None:
            others = _discard(self._pods_by_member, (use.owner, use.member), key)
            if others:
                self._settle(self._pods[next(iter(others))])
        return is_seen

    def is_seated(self, pod: JobKey) -> bool:
        """True for a pod, by its key, in the place that its job was given."""
        use = self._pods.get(pod)
        return use is not None and use.is_seated

    def _is_covered(self, use: PodUse) -> bool:
        """True for a pod that makes no difference: alone in its member's place, which holds all."""
        if use.owner is None or use.member is None or not use.is_seated or use.booked:
            return False
        return len(self._pods_by_member[use.owner, use.member]) == 1

    @property
    def has_misplaced(self) -> bool:
        """True when `moved` may yield a job."""
        return bool(self._misplaced)

    def moved(self) -> Iterator[tuple[JobKey, str, tuple[RolePlacement, ...]]]:
        """Yield the jobs whose members are all on nodes, some on others than claimed.

        With the attempt that their pods say they are of, and the nodes that they are on. Pods of
        other tools do not lead: they are held to their places. Nor do pods that ask for less than
        the place that would follow them: it would take what was not checked.
        """
        for owner in self._misplaced:
            claim = self._claims_by_owner.get(owner)
            if claim is None or claim.is_adopted:
                continue
            uses = [use for key in self._pods_by_owner[owner] if (use := self._pods[key]).node]
            found = {use.member: use.node for use in uses if use.fills(claim)}
            attempts = {use.attempt for use in uses}
            if len(attempts) != 1 or len(uses) != len(found):
                continue
            if found.keys() == claim.places.keys():
                roles = tuple(
                    RolePlacement(role, tuple(found[role, i] for i in range(len(nodes))))
                    for role, _, nodes in claim.roles
                )
                yield claim.key, attempts.pop(), roles

    def book_resource(self, resource: str) -> None:
        """Book what claims and pods use of a resource that has just got its row."""
        table, used = self._table, dict[str, int]()
        for claim in (*self._claims.values(), *self._uncertain.values(), *self.nominated.values()):
            for _, request, nodes in claim.roles:
                amount = booked_amount(request, resource)
                for node in nodes if amount else ():
                    used[node] = used.get(node, 0) + amount
        for use in self._pods.values():
            amount = booked_amount(use.booked, resource) if use.node else 0
            if amount:
                used[use.node] = used.get(use.node, 0) + amount
        if used:
            slots = np.array([table.occupy(node) for node in used], dtype=np.int64)
            unit = np.zeros(len(table.resources), dtype=np.int64)
            unit[table.row(resource)] = 1
            table.add(slots, np.array(list(used.values()), dtype=np.int64), unit)

    def slots(self, key: JobKey) -> Ints:
        """Return the distinct slots that a job's claim uses."""
        return self._slots_of_claim[key]

    def _index(self, claim: Claim, slots: Ints) -> None:
        self._claims[claim.key] = self._claims_by_owner[claim.owner] = claim
        self.held_places.set_claim(claim, is_there=True)
        self._slots_of_claim[claim.key] = slots
        entry = (claim.priority, claim.key)
        insort(self._by_size, claim.size_order)
        insort(self._by_priority, entry)
        for slot in slots.tolist():
            insort(self._by_slot.setdefault(slot, []), entry)

    def _unindex(self, claim: Claim) -> None:
        del self._claims[claim.key]
        self.held_places.set_claim(claim, is_there=False)
        self._claims_by_owner.pop(claim.owner, None)
        entry = (claim.priority, claim.key)
        self._by_size.pop(bisect_left(self._by_size, claim.size_order))
        self._by_priority.pop(bisect_left(self._by_priority, entry))
        for slot in self._slots_of_claim.pop(claim.key).tolist():
            entries = self._by_slot[slot]
            entries.pop(bisect_left(entries, entry))
            if not entries:
                del self._by_slot[slot]

    def _places(self, claim: Claim) -> Iterator[Use]:
        """Yield the distinct slots of each role, members per slot, and what one requests."""
        for _, request, nodes in claim.roles:
            places = np.array([self._table.occupy(n) for n in nodes], dtype=np.int64)
            yield Use(*counted(places), request)

    def _book_claim(self, claim: Claim, sign: int) -> Ints:
        """Book the claim, or with -1 take it back; return its distinct slots."""
        table, used = self._table, [_NO_SLOTS]
        for slots, counts, request in self._places(claim):
            used.append(slots)
            table.book(slots, counts * sign, request)
            if sign < 0:
                for slot in slots[~table.exists[slots]]:
                    table.vacate(int(slot))
        return used[-1] if len(used) <= 2 else np.unique(np.concatenate(used))

    def _book_pod(self, use: PodUse, sign: int) -> None:
        use.is_counted = True
        if not use.node:
            return
        if use.team is not None and not use.is_seated:
            self._on_uncovered(use.key[0], use.team, use.node, sign)
        if use.owner is not None and not use.is_seated:
            _add(self._misplaced, use.owner, sign)
        if not use.booked:
            return
        if use.owner is not None:
            _add(self._beyond, use.owner, sign)
        table = self._table
        slot = table.occupy(use.node)
        table.book(np.array([slot]), np.array([sign]), use.booked)
        if sign < 0:
            table.vacate(slot)

    def _settle(self, use: PodUse) -> None:
        """See again who of a member's pods has its place: of those on its node the first by name.

        Normally there is one. All others count with all that they ask for.
        """
        if use.owner is None or use.member is None:
            return
        claim = self._claims_by_owner.get(use.owner)
        node, request = claim.places.get(use.member, _NO_PLACE) if claim else _NO_PLACE
        keys = self._pods_by_member[use.owner, use.member]
        seated = min([key for key in keys if node and self._pods[key].node == node], default=None)
        for key in keys:
            pod, is_seated = self._pods[key], key == seated
            booked = pod.beyond(request) if is_seated else pod.request
            if pod.is_counted and (pod.booked, pod.is_seated) == (booked, is_seated):
                continue
            before = replace(pod) if pod.is_counted else None
            pod.booked, pod.is_seated = booked, is_seated
            self._book_pod(pod, 1)  # first: a ghost stays while it has a pod
            if before is not None:
                self._book_pod(before, -1)

    def _read(self, pod: Pod) -> PodUse | None:
        """Return what counts of a pod; None for one that uses nothing and never will."""
        meta, spec = pod.metadata, pod.spec
        if pod.is_terminal:
            return None
        owner = owner_of_pod(pod)
        # A pod that is being deleted, or is gated, is bound by no scheduler.
        may_be_bound = meta.deletion_timestamp is None and not spec.scheduling_gates
        if not spec.node_name and (owner is None or not may_be_bound):
            return None
        labels, request = meta.labels, self._request(pod)
        number = label_number(labels.get(names.INDEX, ""))
        is_daemon = owner is None and controller_of(pod, "apps/v1", "DaemonSet") is not None
        return PodUse(
            key=meta.key,
            node=spec.node_name,
            request=request,
            owner=owner,
            team=None if is_daemon else labels.get(names.TEAM, ""),
            member=None if number is None else (labels.get(names.ROLE, ""), number),
            attempt=labels.get(names.ATTEMPT, ""),
            leaves_at=parse_time(meta.deletion_timestamp) if meta.deletion_timestamp else None,
            grace_seconds=meta.deletion_grace_period_seconds or 0,
            labels=labels,
        )

    def _request(self, pod: Pod) -> Request:
        try:
            request = self._marks(pod) + self._reader.pod_request(pod)
            if not self._devices or pod.metadata.key not in self._devices:
                return request
            return tuple(sorted(request + self._devices[pod.metadata.key]))
        except RequestError:
            # No request that is to be placed; but the pod is on its node, so it counts there.
            return self._reader.bound_request(pod.spec, self._table.resources)

    def _marks(self, pod: Pod) -> Request:
        namespace, labels = pod.metadata.namespace, pod.metadata.labels
        rules = rules_of_pod(pod)
        if rules is NO_RULES and not self._terms:
            return ()
        found = self._terms.neighbours(rules, namespace, labels)
        return () if found is None else found.booking


def _discard(index: dict[K, dict[JobKey, None]], key: K, pod: JobKey) -> dict[JobKey, None]:
    """Take a pod out of an index; return what is left there."""
    keys = index[key]
    del keys[pod]
    if not keys:
        del index[key]
    return keys


def _add(counts: Counter[Owner], owner: Owner, amount: int) -> None:
    counts[owner] += amount
    if not counts[owner]:
        del counts[owner]
