"""Of which kinds the devices of a cluster are, and what of it follows for nodes and pods.

    pools -> masks of devices by node -> rows -> what a node offers of each row
    claims with devices ------------------^   -> what a pod has of each row

Marks are of a set of kinds that does not change. For another set new ones are made beside them, a
part at a time (`work.py`), which take over what is known of the kinds that stay. `bring_up_to_date`
does all of it, and later what changes of pools, claims and pods ask for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from itertools import chain
from operator import or_
from typing import TypeAlias, TypeVar

from fairlead.model.asks.requests import Request, request_of
from fairlead.model.claimed.device_asks import DeviceKind
from fairlead.model.claimed.device_pools import DevicePools, Pool, PoolKey
from fairlead.model.claimed.device_rows import DeviceGroup, DeviceRows
from fairlead.model.claimed.device_selectors import (
    DeviceExpression,
    ExpressionError,
    MatchedKind,
    alike,
    broken_by,
    bundles_of,
    is_chosen,
    may_choose,
    will_do,
)
from fairlead.model.claimed.shared_counters import GROUP_MAX, CounterShape, Layout, NodeProfile
from fairlead.model.claimed.work import WORK_PER_CHARACTER, WORK_PER_STEP, Work
from fairlead.model.gang.gangs import JobKey

K = TypeVar("K")
T = TypeVar("T")
#: Pools, and the masks of their devices; devices that claims of no pod have.
_Compared: TypeAlias = dict[PoolKey, tuple[Pool, dict[str, int]]]
_Taken: TypeAlias = Mapping[PoolKey, Mapping[str, int]]

#: Ways in which devices share counters that rows are made for.
LAYOUTS_MAX = 32
#: Devices that are compared with a kind, and masks that are counted, in a unit of work.
_COMPARED_PER_WORK, _COUNTED_PER_WORK = 2, 8


class DeviceMarks:
    """The devices of some kinds."""

    def __init__(
        self,
        pools: DevicePools,
        kinds: Mapping[DeviceKind, MatchedKind],
        known: DeviceMarks | None = None,
    ) -> None:
        """`known` are those of other kinds, some of which may be the same; see `settle`."""
        self.kinds = dict(kinds)
        self._told_apart = {kind: each for kind, each in kinds.items() if not kind.is_made_up}
        self.rows = DeviceRows()
        #: By node, and by pod: what they offer, what is lost, what they have; see `DeviceRows`.
        self.offered: dict[str, dict[str, int]] = {}
        self.stranded: dict[str, Request] = {}
        self.had: dict[JobKey, Request] = {}
        self._pools, self._known = pools, known
        self._kept: dict[DeviceKind, None] = {}
        self._stale = pools.watch()
        self.close: Callable[[], None] = lambda: pools.unwatch(self._stale)
        # Read these only.
        #: By kind: its expressions, or why it has none; then by pool, how one failed.
        self.selectors: dict[DeviceKind, tuple[DeviceExpression, ...] | str] = {}
        self.faults: dict[DeviceKind, dict[PoolKey, str]] = {}
        #: By kind whose devices are to be alike, then by pool: in what they are.
        self.values: dict[DeviceKind, dict[PoolKey, frozenset[Hashable]]] = {}
        #: By pool: kinds (bits) of which there are devices that do not count; and of which there
        #: are some that nobody can have.
        self.unsure: dict[PoolKey, int] = {}
        self.spoilt: dict[PoolKey, int] = {}
        #: By pool: what was compared, and the mask of each device.
        self.masks: _Compared = {}
        #: How many devices of a node have each mask, used or free; and those of its devices
        #: that share counters, by how they do.
        self._counts: dict[str, Counter[int]] = {}
        self._layouts: dict[str, frozenset[Layout]] = {}
        #: By node, where there are kinds that are made up of others.
        self._profiles: dict[str, NodeProfile] = {}
        self._seen: Hashable = None
        #: Nodes of which what they offer is to be found.
        self._unoffered: dict[str, None] = {}
        #: What has changed since `differences` was asked, as it was before.
        self._old_offered: dict[str, dict[str, int]] = {}
        self._old_stranded: dict[str, Request] = {}
        self._old_had: dict[JobKey, Request] = {}

    @property
    def is_stale(self) -> bool:
        """True where `bring_up_to_date` has something to do."""
        return bool(self._stale or self._pools.is_unread)

    def fault(self, kind: DeviceKind) -> str:
        """Return why no node offers any of a kind: what is wrong with its expressions, or those of
        its options; "" where nothing is.
        """
        for part in kind.parts:
            if isinstance(found := self.selectors.get(part, ()), str):
                return found
        if not self.rows.is_nowhere(kind):
            return ""
        texts = chain.from_iterable(self.faults.get(part, {}).values() for part in kind.parts)
        return next(filter(None, texts), "")

    def settle(self, before: DeviceMarks) -> None:
        """Let these count in place of the ones that they came from."""
        self._old_offered = _all(before.offered, self.offered, {})
        self._old_stranded = _all(before.stranded, self.stranded, ())
        self._old_had = _all(before.had, self.had, ())
        self._known, self._kept = None, {}
        before.close()

    def differences(
        self,
    ) -> tuple[dict[str, dict[str, int]], dict[str, Request], dict[JobKey, Request]]:
        """Return what nodes offer, what of it is stranded and what pods have, where that is not as
        it was when this was asked before.
        """
        found = (
            _differences(self._old_offered, self.offered, {}),
            _differences(self._old_stranded, self.stranded, ()),
            _differences(self._old_had, self.had, ()),
        )
        self._old_offered, self._old_stranded, self._old_had = {}, {}, {}
        return found

    def bring_up_to_date(self) -> Work[None]:
        """Find what follows of all that has changed."""
        yield from self._compile()
        stale = self._stale
        while self.is_stale or self._unoffered or self._seen is None:
            yield from self._pools.read()
            while stale.pools:
                yield from self._mark(_pop(stale.pools))
            while stale.nodes:
                node = _pop(stale.nodes)
                yield 2 + self._gather(node) // _COUNTED_PER_WORK
                self._unoffered[node] = None
            yield from self._make_rows()
            while self._unoffered:
                yield from self._offer(_pop(self._unoffered))
            while stale.pods:
                self._book(_pop(stale.pods))
                yield 1

    def _compile(self) -> Work[None]:
        """Compile the expressions of new kinds, and take over those of others."""
        if len(self.selectors) == len(self._told_apart):
            return
        known = self._known
        compiled: dict[str, DeviceExpression] = {}
        for kind, matched in self._told_apart.items():
            if known is not None and known.kinds.get(kind) == matched:
                self._kept[kind] = None
                self.selectors[kind] = known.selectors[kind]
                continue
            try:
                texts = matched.texts(kind)
                for text in texts:
                    if text not in compiled:
                        yield 1 + len(text) * WORK_PER_CHARACTER
                        compiled[text] = DeviceExpression(text)
                self.selectors[kind] = tuple(map(compiled.__getitem__, texts))
            except ExpressionError as error:
                self.selectors[kind] = str(error)

    def _mark(self, key: PoolKey) -> Work[None]:
        """Find which devices of a pool are of which kinds."""
        for found in (*self.faults.values(), *self.values.values(), self.unsure, self.spoilt):
            found.pop(key, None)
        before, pool = self.masks.pop(key, None), self._pools.pools.get(key)
        if before is not None:
            self._mark_nodes(before[0])
        for claim in self._pools.claims_of_pool.get(key, ()):
            if (pod := self._pools.pod_of.get(claim)) is not None:
                self._stale.pods[pod] = None
        if pool is None:
            yield 1
            return
        masks = self._taken_over(key, pool)
        is_new = masks is None
        if masks is None:
            masks = {device.name: 0 for device in pool.devices}
        yield 1 + len(masks) // _COUNTED_PER_WORK
        for kind, matched in self._told_apart.items():
            if is_new or kind not in self._kept:
                chosen = yield from self._choose(kind, key, pool)
                for name in chosen:
                    masks[name] |= matched.bit
        if self._pools.pools.get(key) is pool:  # else it is looked at again
            self.masks[key] = pool, masks
            self._mark_nodes(pool)

    def _mark_nodes(self, pool: Pool) -> None:
        """Look again at the node of a pool; at all, where it matters to all."""
        self._stale.nodes[pool.node] = None
        if not pool.node and self._has_made_up:
            self._stale.nodes.update(dict.fromkeys(self._pools.of_node))

    @property
    def _has_made_up(self) -> bool:
        return len(self._told_apart) < len(self.kinds)

    def _taken_over(self, key: PoolKey, pool: Pool) -> dict[str, int] | None:
        """Return the masks of a pool as far as they are known, None where it has changed."""
        known = self._known
        if known is None or not self._kept:
            return None
        before = known.masks.get(key)
        if before is None or before[0] is not pool:
            return None
        for kind in self._kept:
            if (fault := known.faults.get(kind, {}).get(key)) is not None:
                self.faults.setdefault(kind, {})[key] = fault
            if (values := known.values.get(kind, {}).get(key)) is not None:
                self.values.setdefault(kind, {})[key] = values
        bits = sum(self.kinds[kind].bit for kind in self._kept)
        for there, then in ((self.unsure, known.unsure), (self.spoilt, known.spoilt)):
            if found := then.get(key, 0) & bits:
                there[key] = found
        return {name: mask & bits for name, mask in before[1].items()}

    def _choose(self, kind: DeviceKind, key: PoolKey, pool: Pool) -> Work[list[str]]:
        """Return the devices of a pool that are of a kind.

        None, on the whole node, where an expression fails; nor where one could be had that is to be
        given up after some seconds, since which one kube-scheduler takes is not known.
        """
        selectors, driver = self.selectors[kind], key[0]
        if isinstance(selectors, str):
            self.faults.setdefault(kind, {})[key] = selectors
            yield 1
            return []
        steps = sum(each.steps_taken for each in selectors)
        chosen: list[str] = []
        values: set[Hashable] = set()
        try:
            for device in pool.devices:
                if will_do(kind, selectors, driver, device):
                    chosen.append(device.name)
                    if kind.alike:
                        values.add(alike(kind, driver, device))
                    if device.taints and not kind.tolerates_for_good(device.taints):
                        self.faults.setdefault(kind, {})[key] = ""
                elif (device.taints or kind.alike) and is_chosen(selectors, driver, device):
                    self.spoilt[key] = self.spoilt.get(key, 0) | self.kinds[kind].bit
                now = sum(each.steps_taken for each in selectors)
                if now != steps:
                    yield (now - steps) * WORK_PER_STEP
                    steps = now
        except ExpressionError as error:
            self.faults.setdefault(kind, {})[key] = str(error)
        if pool.uncounted and may_choose(selectors, driver, pool.uncounted):
            self.unsure[key] = self.unsure.get(key, 0) | self.kinds[kind].bit
        now = sum(each.steps_taken for each in selectors)
        yield 1 + len(pool.devices) // _COMPARED_PER_WORK + (now - steps) * WORK_PER_STEP
        if key in self.faults.get(kind, ()):
            return []
        if kind.alike:
            self.values.setdefault(kind, {})[key] = frozenset(values)
        return chosen

    def _make_rows(self) -> Work[None]:
        """Make the rows again where devices are of other kinds than before."""
        if self._seen is not None and not self._unoffered:
            return
        yield 1 + len(self._counts) // _COUNTED_PER_WORK
        seen = (
            frozenset(mask for masks in self._counts.values() for mask in masks),
            frozenset(chain.from_iterable(self._layouts.values())),
            frozenset(self._profiles.values()),
        )
        if seen == self._seen:
            return
        layouts = sorted(seen[1], key=repr)[:LAYOUTS_MAX]
        kinds = [(kind, matched.bit) for kind, matched in self.kinds.items()]
        rows = yield from DeviceRows.of(kinds, seen[0], layouts, seen[2])
        if rows.rows != self.rows.rows:
            self._unoffered.update(dict.fromkeys((*self._pools.of_node, *self.offered)))
            self._stale.pods.update(dict.fromkeys(self._pools.claims_of_pod))
        self._seen, self.rows = seen, rows

    def _gather(self, node: str) -> int:
        """Count the devices of a node by mask; return how many there are."""
        for known in (self._counts, self._layouts, self._profiles):
            known.pop(node, None)
        if counts := self._masks_of(node):
            self._counts[node] = counts
        groups = self._groups(node)
        if layouts := frozenset(each.layout for each in groups if any(each.layout.masks)):
            self._layouts[node] = layouts
        if self._has_made_up and node:
            self._profiles[node] = self._profile(node, counts)
        return counts.total() + sum(len(each.layout.masks) for each in groups)

    def _offer(self, node: str) -> Work[None]:
        groups, profile = self._groups(node), self._profiles.get(node)
        yield 1 + len(self.kinds) - len(self._told_apart)
        lost = yield from self.rows.stranded(groups, profile)
        amounts = yield from self._offered(node, groups, {})
        if not self._pools.taken.keys().isdisjoint(self._pools.of_node.get(node, ())):
            free = yield from self._offered(node, groups, self._pools.taken)
            had = {row: amounts[row] - free.get(row, 0) for row in amounts}
            lost = request_of((Counter(had) + Counter(dict(lost))).items())
        self._old_offered.setdefault(node, self.offered.pop(node, {}))
        self._old_stranded.setdefault(node, self.stranded.pop(node, ()))
        if amounts:
            self.offered[node] = amounts
        if lost:
            self.stranded[node] = lost

    def _profile(self, node: str, counts: Counter[int]) -> NodeProfile:
        """Return what a node has, whoever has its devices; what of it is not certain is unsure."""
        here = self._pools_of(node)
        reaching = {**here, **self._pools_of("")}
        unsure, spoilt = self._failed(here), 0
        layouts: list[Layout] = []
        names = Counter(name for (_, name), found in here.items() if found[0].groups)
        for key, (pool, masks) in reaching.items():
            unsure |= self.unsure.get(key, 0)
            spoilt |= self.spoilt.get(key, 0)
            for group in pool.groups:
                layout = self._group(group, masks, {}).layout
                if names[key[1]] == 1 and len(layout.masks) <= GROUP_MAX:
                    layouts.append(layout)
                else:
                    unsure = reduce(or_, layout.masks, unsure)
        is_whole = all(pool.is_whole for pool, _ in reaching.values())
        shared = tuple(sorted(layouts, key=repr))
        return NodeProfile(tuple(sorted(counts.items())), shared, unsure, spoilt, is_whole)

    def _bundles_of(self, pools: _Compared, taken: _Taken) -> dict[int, int]:
        """Return how many bundles of devices that are alike a node has, by the bit of their kind;
        those apart that are taken.
        """
        left = {key: masks.keys() - taken.get(key, {}) for key, (_, masks) in pools.items()}
        kinds = ((kind, each.bit) for kind, each in self.kinds.items() if kind.together)
        return {bit: bundles_of(kind, self._alike(kind, pools, left)) for kind, bit in kinds}

    def _broken_by(self, pod: JobKey) -> dict[int, int]:
        """Return how many bundles the devices of a pod break at most, by the bit of their kind."""
        had: dict[str, dict[PoolKey, set[str]]] = {}
        for claim in self._pools.claims_of_pod.get(pod, ()):
            for key, device in self._pools.devices_of.get(claim, ()):
                if key in self.masks:
                    of_node = had.setdefault(self.masks[key][0].node, {})
                    of_node.setdefault(key, set()).add(device)
        kinds = ((kind, each.bit) for kind, each in self.kinds.items() if kind.together)
        return {
            bit: sum(
                broken_by(kind, self._alike(kind, self._pools_of(node), devices))
                for node, devices in had.items()
            )
            for kind, bit in kinds
        }

    def _alike(
        self, kind: DeviceKind, pools: _Compared, chosen: Mapping[PoolKey, AbstractSet[str]]
    ) -> dict[Hashable, list[int]]:
        """Return by what they are alike in how many of the chosen devices of a node there are of
        each kind that is in a bundle. None where a device is of two of these, or shares counters.
        """
        bits = [self.kinds[each.kind].bit for each in kind.together]
        failed = self._failed(pools)
        found: dict[Hashable, list[int]] = {}
        for key, (pool, masks) in pools.items():
            for device in pool.devices:
                of = [i for i, bit in enumerate(bits) if masks[device.name] & ~failed & bit]
                if len(of) > 1 or (of and device.name in pool.shared):
                    return {}
                if of and device.name in chosen.get(key, ()):
                    value = alike(kind, key[0], device)
                    if None not in value:
                        found.setdefault(value, [0] * len(bits))[of[0]] += 1
        return found

    def _book(self, pod: JobKey) -> None:
        self._old_had.setdefault(pod, self.had.pop(pod, ()))
        if pod in self._pools.pods and (request := self._request_of(pod)):
            self.had[pod] = request

    def _masks_of(self, node: str) -> Counter[int]:
        """Return how many devices of a node have each mask.

        Where an expression fails for one device, kube-scheduler places nothing of that kind on the
        node (`selectorsMatch`).
        """
        pools = self._pools_of(node)
        failed = self._failed(pools)
        found = Counter[int]()
        for pool, masks in pools.values():
            names = masks.keys() - pool.shared if pool.groups else masks
            found.update(masks[name] & ~failed for name in names)
        return found

    def _pools_of(self, node: str) -> _Compared:
        """Return the pools of a node, as far as they were compared, and the masks of each."""
        keys = self._pools.of_node.get(node, ())
        return {key: found for key in keys if (found := self.masks.get(key)) is not None}

    def _groups(self, node: str) -> list[DeviceGroup]:
        """Return the devices of a node that share counters, and who has them.

        None of a pool that has given more than it has, nor of two pools of one name, of which
        kube-scheduler counts together what they share (`checkAvailableCounters`).
        """
        every = self._pools_of(node)
        sharing = {key: found for key, found in every.items() if found[0].groups}
        if not sharing:
            return []
        failed = self._failed(every)
        names = Counter(name for _, name in sharing)
        found: list[DeviceGroup] = []
        for key, (pool, masks) in sharing.items():
            claims = self._pools.claims_of_pool.get(key, {})
            had = {d: c for c in claims for k, d in self._pools.devices_of[c] if k == key}
            known = {name: mask & ~failed for name, mask in masks.items()}
            groups = [self._group(group, known, had) for group in pool.groups]
            is_over = any(each.layout.shape.left(each.taken) is None for each in groups)
            if names[key[1]] == 1 and not is_over:
                found += [each for each in groups if len(each.layout.masks) <= GROUP_MAX]
        return found

    def _group(
        self,
        group: tuple[tuple[str, ...], CounterShape],
        masks: Mapping[str, int],
        had: Mapping[str, JobKey],
    ) -> DeviceGroup:
        devices, shape = group
        layout = Layout(shape, tuple(masks.get(name, 0) for name in devices))
        taken = of_pods = 0
        for i, name in enumerate(devices):
            if name in had:
                taken |= 1 << i
                of_pods |= (had[name] not in self._pools.takers) << i
        return DeviceGroup(layout, taken, of_pods)

    def _failed(self, pools: Mapping[PoolKey, object]) -> int:
        """Return the kinds (bits) of which a node with these pools offers nothing: an expression
        fails, or devices are not alike.
        """
        failed = 0
        for kind, at in self.faults.items():
            if any(key in at for key in pools):
                failed |= self.kinds[kind].bit
        for kind, values in self.values.items():
            if len(frozenset[Hashable]().union(*(values.get(key, ()) for key in pools))) > 1:
                failed |= self.kinds[kind].bit
        return failed

    def _offered(
        self, node: str, groups: Sequence[DeviceGroup], taken: _Taken
    ) -> Work[dict[str, int]]:
        """Return what there is of each row beside the devices that claims of no pod have taken."""
        counts = Counter(self._counts.get(node, {}))
        pools = self._pools_of(node)
        failed = self._failed(pools)
        for key, (pool, masks) in pools.items():
            for device in taken.get(key, ()):
                if device in masks and device not in pool.shared:
                    counts[masks[device] & ~failed] -= 1
        bundles, profile = self._bundles_of(pools, taken), self._profiles.get(node)
        return self.rows.offered(counts, groups, profile, bundles=bundles)

    def _request_of(self, pod: JobKey) -> Request:
        """Return what the devices of a pod are of each row."""
        found = Counter[int]()
        for claim in self._pools.claims_of_pod.get(pod, ()):
            for key, device in self._pools.devices_of.get(claim, ()):
                pool, masks = self.masks.get(key, (None, {}))
                if pool is not None and device in masks:
                    failed = self._failed(self._pools_of(pool.node))
                    found[masks[device] & ~failed] += 1
        return self.rows.had(found, self._broken_by(pod) if self._has_made_up else {})


def _all(before: Mapping[K, T], after: Mapping[K, T], none: T) -> dict[K, T]:
    return {key: before.get(key, none) for key in (*before, *after)}


def _differences(before: Mapping[K, T], after: Mapping[K, T], none: T) -> dict[K, T]:
    return {k: found for k, old in before.items() if (found := after.get(k, none)) != old}


def _pop(keys: dict[T, None]) -> T:
    key = next(iter(keys))
    del keys[key]
    return key
