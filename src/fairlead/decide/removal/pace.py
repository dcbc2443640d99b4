"""How long it takes at least that nodes go out of service one after the other, by the budgets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from fairlead.decide.removal.ledger import (
    DAY,
    MINUTES_5,
    Budgets,
    Charge,
    Peaks,
    PoolBudget,
    RailsAccount,
    RemovalLedger,
)

#: No answer goes further ahead.
SECONDS_MAX = 90 * DAY


def least_seconds(
    charges: Sequence[Charge], sizes: Mapping[str, int], of_pools: Mapping[str, PoolBudget], *,
    out_seconds: float, budgets: Budgets | None = None,
) -> float | None:  # fmt: skip
    """Return when the last of these nodes is back, each of them out for so long; 0 for none.

    `sizes` are of pools and domains ("pool/domain"). Nothing else spends the budgets, and every
    node is empty at once: so it takes longer where work runs. None: more than 90 days.
    """
    waiting = Counter(charges)
    peaks = Peaks().within(0.0, sizes)
    ledger, clock, rails = RemovalLedger(), 0.0, budgets or Budgets()
    out = deque[tuple[float, Charge, int]]()
    last = 0.0
    while waiting:
        while out and out[0][0] <= clock - out_seconds:
            out.popleft()
        leaving = Counter[str]()
        for _, charge, count in out:
            leaving[charge.pool] += count
        account = RailsAccount(ledger, peaks, rails, of_pools=of_pools, leaving=leaving)
        for charge in sorted(waiting, key=lambda each: each.scopes):
            count = 0
            while count < waiting[charge] and account.excess(charge) is None:
                account.book(charge)
                count += 1
            if count:
                ledger = ledger.with_removed([charge] * count)
                out.append((clock, charge, count))
                last = clock
                waiting[charge] -= count
        waiting += Counter()  # without those of which none waits
        clock += MINUTES_5
        if clock > SECONDS_MAX:
            return None
        ledger = ledger.at(clock)
    return last + out_seconds if charges else 0.0
