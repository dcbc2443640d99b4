"""Which machines automation itself added within a day: those may go again beyond the shares.

A machine is recorded when it has taken up work after a launch of ours, with the reading that the
ledger's clock had when it was last written: an earlier one, so it is forgotten sooner. Neither the
age of a node nor a creation timestamp counts: after a mass recreation all of them are young.

A replacement is no growth. Each machine that went without a removal of ours is recorded as lost,
and as many of those bought do not count. A provider that names machines in its answer which it did
not launch has the records exceed its list, so they are lost at once.

Each machine is named, so buying some never allows the removal of others: those that were there
before count in every window, however often others are bought and removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairlead.api.cluster.node_pool import Bought, Lost
from fairlead.decide.removal.ledger import DAY, HOUR, MINUTES_5

#: Machines that a pool records; the oldest are dropped beyond, and count as there before.
BOUGHT_MAX = 2_000


def with_bought(
    bought: Sequence[Bought], clock: float, new: Collection[str], *, present: Collection[str]
) -> tuple[Bought, ...]:
    """Return the record with new machines at a reading, without those that are not `present` or
    were bought a day before.
    """
    at = clock // MINUTES_5 * MINUTES_5
    known = {
        id_: each.at for each in bought if _is_recent(each.at, clock) for id_ in each.instances
    }
    for id_ in new:
        known.setdefault(id_, at)
    kept = sorted((at, id_) for id_, at in known.items() if id_ in present)[-BOUGHT_MAX:]
    readings = sorted({at for at, _ in kept})
    return tuple(
        Bought(reading, tuple(id_ for at, id_ in kept if at == reading)) for reading in readings
    )


def with_lost(lost: Sequence[Lost], clock: float, count: int) -> tuple[Lost, ...]:
    """Return the record with machines lost at a reading, by hour, without those of a day before."""
    kept = [each for each in lost if each.at > clock - DAY]
    if count:
        kept.append(Lost(clock, count))
    by_hour: dict[float, Lost] = {}
    for each in kept:
        before = by_hour.get(each.at // HOUR)
        merged = (
            each if before is None else Lost(max(each.at, before.at), each.count + before.count)
        )
        by_hour[each.at // HOUR] = merged
    return tuple(sorted(by_hour.values(), key=_at))


def bought_within_day(
    bought: Sequence[Bought], lost: Sequence[Lost], clock: float
) -> dict[str, float]:
    """Return the machines by which a pool grew within a day: by id, at which reading.

    As many as the pool has lost are left out, the oldest first.
    """
    found = sorted(
        (each.at, id_) for each in bought if _is_recent(each.at, clock) for id_ in each.instances
    )
    replaced = sum(each.count for each in lost if each.at > clock - DAY)
    return {id_: at for at, id_ in found[replaced:]}


def _is_recent(at: float, clock: float) -> bool:
    """True within a day. A reading ahead of the clock is of another ledger."""
    return clock - DAY < at <= clock


def _at(lost: Lost) -> float:
    return lost.at
