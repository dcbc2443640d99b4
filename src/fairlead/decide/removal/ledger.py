"""How many nodes may still be removed: budgets by cause, pool and failure domain over windows.

The ledger has a clock of its own, which advances only while a controller watches, by a monotonic
clock. So it never runs faster than real time: jumps of the wall clock, restarts and pauses can make
a window longer, never shorter. What is a share is a share of the largest size within the window, so
removing a tenth of what is left again and again ends where removing it once would.

What automation bought within a day (`bought.py`) may go again as idle: an hour and a day count only
idle machines that were there before, and their shares are of those. Five minutes count them all,
and are the pace: a tenth of the fleet, by its largest size in a day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.api.cluster.fleet import RemovalCause, Removed
from fairlead.api.values.node_limit import NodeLimit

MINUTES_5, HOUR, DAY = 300.0, 3600.0, 86_400.0
WINDOWS = (MINUTES_5, HOUR, DAY)
#: The window of a limit on what is removed at a time.
AT_ONCE = 0.0
_NONE = (0, 0, 0)
#: Of which windows a removal is not counted when its machine was bought within a day.
_BOUGHT_IS_LEFT_OUT = (False, True, True)
#: In the place of a cause: all of them; and all of them with what was bought within a day.
_COUNTED, _EVERYTHING = "", "*"
#: Older removals are kept by interval: by 5 minutes after 5 minutes, by hour after an hour.
_COARSE = ((HOUR, HOUR), (MINUTES_5, MINUTES_5))

#: What a budget is of: ("fleet", ""), ("pool", name) or ("domain", pool/name).
Scope: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the largest size that may be removed in each of the windows."""

    minutes_5: float
    hour: float
    day: float

    @property
    def by_window(self) -> tuple[float, float, float]:
        """The shares in the order of WINDOWS."""
        return (self.minutes_5, self.hour, self.day)


@dataclass(frozen=True, slots=True)
class CauseBudget:
    """The budgets of one cause; a domain's None: the domain has none."""

    fleet: Shares
    pool: Shares
    domain: Shares | None


def _budgets() -> Mapping[RemovalCause, CauseBudget]:
    careful = CauseBudget(
        fleet=Shares(0.02, 0.05, 0.15), pool=Shares(0.05, 0.1, 0.25), domain=Shares(0.1, 0.2, 0.5)
    )
    return {
        RemovalCause.FAILED_LAUNCH: CauseBudget(
            Shares(0.02, 0.05, 0.2), Shares(0.05, 0.1, 0.3), None
        ),
        RemovalCause.REPAIR: careful,
        RemovalCause.MAINTENANCE: careful,
        # Whole blocks go at once, so an idle block has no budget of its own.
        RemovalCause.IDLE: CauseBudget(Shares(0.1, 0.3, 0.5), Shares(0.2, 0.5, 0.5), None),
    }


@dataclass(frozen=True, slots=True)
class Budgets:
    """All budgets."""

    by_cause: Mapping[RemovalCause, CauseBudget] = field(default_factory=_budgets)
    #: Of all causes together, in a day: of the fleet, and of each pool.
    ceiling_share: float = 0.5
    #: What any fleet and pool may lose: as much as one of four. Fewer than are there may be seen.
    ceiling_least: int = 2


@dataclass(frozen=True, slots=True)
class PoolBudget:
    """What an operator allows for one pool, all causes together; None: no limit of its own."""

    at_once: NodeLimit | None = None
    hour: NodeLimit | None = None
    day: NodeLimit | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """What one removal is charged to."""

    pool: str
    domain: str
    cause: RemovalCause
    #: When automation bought the machine, by the ledger's clock; None: not within a day.
    bought: float | None = None

    @property
    def scopes(self) -> tuple[Scope, Scope, Scope]:
        """The fleet, the pool and the domain."""
        return (("fleet", ""), ("pool", self.pool), ("domain", f"{self.pool}/{self.domain}"))


@dataclass(slots=True)
class BudgetExcess:
    """A budget of a scope and window: how much of it is used, how much is allowed."""

    rule: str
    scope: Scope
    window: float
    used: int
    allowed: int

    @property
    def facts(self) -> Mapping[str, int | str]:
        """The budget, for records."""
        scope = "/".join(part for part in self.scope if part)
        return {
            "scope": scope, "window": int(self.window), "used": self.used, "allowed": self.allowed
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemovalLedger:
    """What was removed, by the ledger's clock."""

    clock: float = 0.0
    removed: tuple[Removed, ...] = ()

    def at(self, clock: float) -> RemovalLedger:
        """Return the ledger at a later reading of its clock.

        What no window reaches any more is dropped, what is old is kept by interval.
        """
        return RemovalLedger(clock, _merged(self.removed, clock))

    def with_removed(self, charges: Iterable[Charge]) -> RemovalLedger:
        """Return the ledger with removals booked at its clock."""
        counts = Counter(charges)
        new = (
            Removed(self.clock, charge.pool, charge.domain, charge.cause, count, charge.bought)
            for charge, count in sorted(counts.items(), key=_charge_order)
        )
        return RemovalLedger(self.clock, (*self.removed, *new))


@dataclass(frozen=True, slots=True)
class Peaks:
    """The largest sizes that this process has seen, by hours of a monotonic clock.

    They end with the process: a budget is then a share of what there is, which is less.
    """

    #: By the start of the hour and the scope: the largest size within it; the oldest first.
    seen: Mapping[tuple[float, Scope], int] = field(default_factory=dict[tuple[float, Scope], int])

    def at(
        self, instant: float, sizes: Mapping[str, int], bought: Mapping[str, int] | None = None
    ) -> Peaks:
        """Take in what pools and domains ("pool/domain") have at an instant, and how many nodes of
        each pool were bought within a day.
        """
        hour = instant // HOUR * HOUR
        new = {
            (hour, scope): nodes for scope, nodes in _scopes(sizes, bought or {}).items()
            if nodes > self.seen.get((hour, scope), -1)
        }  # fmt: skip
        oldest = next(iter(self.seen), (instant, ""))[0]
        if not new and oldest > instant - DAY:
            return self
        kept = {key: size for key, size in self.seen.items() if key[0] > instant - DAY}
        return Peaks(kept | new)

    def within(
        self, instant: float, sizes: Mapping[str, int], bought: Mapping[str, int] | None = None
    ) -> dict[tuple[Scope, float], int]:
        """Return the largest size of each scope in each window that ends at an instant."""
        now = _scopes(sizes, bought or {})
        out = {(scope, window): size for scope, size in now.items() for window in WINDOWS}
        for (at, scope), size in self.seen.items():
            for window in reversed(WINDOWS):
                if at <= instant - window:
                    break  # the shorter ones begin later
                out[scope, window] = max(out.get((scope, window), 0), size)
        return out


def _scopes(sizes: Mapping[str, int], bought: Mapping[str, int]) -> dict[Scope, int]:
    fleet = ("fleet", "")
    out: dict[Scope, int] = {fleet: 0, _lasting(fleet): 0}
    for name, nodes in sizes.items():
        if "/" in name:
            out["domain", name] = nodes
            continue
        lasting = max(0, nodes - bought.get(name, 0))
        out["pool", name], out[_lasting(("pool", name))] = nodes, lasting
        out[fleet] += nodes
        out[_lasting(fleet)] += lasting
    return out


def _lasting(scope: Scope) -> Scope:
    """Return the scope of what was there before the machines that were bought within a day."""
    return (f"lasting {scope[0]}", scope[1])


class RailsAccount:
    """The budgets at one instant: `excess` asks, `book` spends."""

    def __init__(
        self,
        ledger: RemovalLedger,
        peaks: Mapping[tuple[Scope, float], int],
        budgets: Budgets,
        *,
        of_pools: Mapping[str, PoolBudget] | None = None,
        leaving: Mapping[str, int] | None = None,
    ) -> None:
        """`peaks` is what `Peaks.within` returns, `leaving` what is being removed of each pool."""
        self._budgets = budgets
        self._of_pools = of_pools or {}
        self._at_once = Counter(leaving or {})
        self._peaks = peaks
        #: Removals by scope and cause ("": of all causes), for each of WINDOWS.
        self._used: dict[tuple[Scope, str], list[int]] = {}
        self._clock = ledger.clock
        for removed in ledger.removed:
            counts = [removed.count if removed.at > ledger.clock - w else 0 for w in WINDOWS]
            self._add(Charge(removed.pool, removed.domain, removed.cause, removed.bought), counts)

    def _add(self, charge: Charge, counts: Sequence[int]) -> None:
        left_out = self._left_out(charge)
        for scope in charge.scopes:
            for cause in (charge.cause.value, _COUNTED, _EVERYTHING):
                used = self._used.setdefault((scope, cause), [0, 0, 0])
                for i, count in enumerate(counts):
                    used[i] += 0 if left_out[i] and cause != _EVERYTHING else count

    def _left_out(self, charge: Charge) -> tuple[bool, ...]:
        """Return for each of WINDOWS whether it does not count the removal: it takes again what
        automation added within a day.
        """
        bought = charge.bought
        is_idle = charge.cause is RemovalCause.IDLE
        # A reading ahead of the clock is of another ledger, so it says nothing.
        is_new = is_idle and bought is not None and self._clock - DAY < bought <= self._clock
        return _BOUGHT_IS_LEFT_OUT if is_new else (False, False, False)

    def book(self, charge: Charge) -> None:
        """Spend one removal."""
        self._add(charge, (1, 1, 1))
        self._at_once[charge.pool] += 1

    def left(self, charge: Charge) -> int:
        """Return how many removals the tightest budget of the cause would still allow."""
        return min(excess.allowed - excess.used for excess in self._budgets_of(charge))

    def excess(self, charge: Charge) -> BudgetExcess | None:
        """Return the first budget that one more removal would exceed; None when all allow it."""
        for budget in self._budgets_of(charge):
            if budget.used >= budget.allowed:
                return budget
        return None

    def _budgets_of(self, charge: Charge) -> Iterable[BudgetExcess]:
        fleet, pool, domain = charge.scopes
        left_out = self._left_out(charge)
        for scope in () if left_out[-1] else (fleet, pool):
            peak = self._peaks.get((scope, DAY), 0)
            allowed = max(self._budgets.ceiling_least, int(peak * self._budgets.ceiling_share))
            used = self._used.get((scope, _COUNTED), _NONE)
            yield BudgetExcess("Ceiling", scope, DAY, used[-1], allowed)
        yield from self._budgets_of_pool(charge.pool, pool)
        budget, cause = self._budgets.by_cause[charge.cause], charge.cause.value
        for scope, shares in ((fleet, budget.fleet), (pool, budget.pool), (domain, budget.domain)):
            used = self._used.get((scope, cause), _NONE)
            for i, share in enumerate(shares.by_window if shares is not None else ()):
                if left_out[i]:
                    continue
                is_of_lasting = _BOUGHT_IS_LEFT_OUT[i] and charge.cause is RemovalCause.IDLE
                of = _lasting(scope) if is_of_lasting else scope
                # What was bought goes at one pace, not ever more slowly.
                peak = self._peaks.get((of, DAY if left_out[-1] else WINDOWS[i]), 0)
                # One at least, or nothing could ever be replaced in a small pool.
                allowed = max(1, int(peak * share))
                yield BudgetExcess("CauseBudget", scope, WINDOWS[i], used[i], allowed)

    def _budgets_of_pool(self, name: str, scope: Scope) -> Iterable[BudgetExcess]:
        budget = self._of_pools.get(name)
        if budget is None:
            return
        used = self._used.get((scope, _EVERYTHING), _NONE)
        for limit, window, count in (
            (budget.at_once, AT_ONCE, self._at_once[name]),
            (budget.hour, HOUR, used[1]),
            (budget.day, DAY, used[2]),
        ):
            if limit is not None:
                allowed = limit.of(self._peaks.get((scope, window or MINUTES_5), 0))
                yield BudgetExcess("PoolBudget", scope, window, count, allowed)


def _merged(removed: Iterable[Removed], clock: float) -> tuple[Removed, ...]:
    """Merge old removals of one interval under its last instant, which keeps them longer."""
    latest: dict[tuple[object, ...], Removed] = {}
    for each in removed:
        age = clock - each.at
        if age >= DAY:
            continue
        interval = next((width for limit, width in _COARSE if age >= limit), 0.0)
        # What was bought counts again when the first of it was bought a day ago.
        bought = each.bought
        since = None if bought is None else bought // interval if interval else bought
        key = (interval and (interval, each.at // interval), interval or each.at,
               each.pool, each.domain, each.cause, since)  # fmt: skip
        before = latest.get(key)
        at, count = each.at, each.count
        if before is not None:
            at, count = max(at, before.at), count + before.count
            bought = None if bought is None or before.bought is None else min(bought, before.bought)
        latest[key] = Removed(at, each.pool, each.domain, each.cause, count, bought)
    return tuple(sorted(latest.values(), key=_removed_order))


def _charge_order(item: tuple[Charge, int]) -> tuple[str, str, str, float]:
    charge = item[0]
    return (charge.pool, charge.domain, charge.cause.value, charge.bought or 0.0)


def _removed_order(each: Removed) -> tuple[float, str, str, str, float]:
    return (each.at, each.pool, each.domain, each.cause.value, each.bought or 0.0)
