"""What was recorded about the health of nodes, as `fairlead fleet history` prints it, replayed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from fairlead.app.queries.messages import FleetLine
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.remembered.fault_records import FAULTS, RecordedFaults
from fairlead.decide.health.remembered.replay import (
    CORDON,
    HOLD,
    SIGHT,
    HealthStep,
    HealthTally,
    RecordedRow,
    differing,
    replay,
    tally_of,
)
from fairlead.model.health.node_record import NodeState

#: What a file of facts may have.
FILE_BYTES_MAX = 256 << 20
#: In the order in which one follows another within a second: the history knows no finer one.
_STATES = (
    NodeState.CORDONED, NodeState.DRAINING, NodeState.RESETTING, NodeState.REBOOTING,
    NodeState.REPLACING, NodeState.ASKING, NodeState.VALIDATING, NodeState.READY,
)  # fmt: skip
_ACTIONS = {action: rank for rank, action in enumerate((CORDON, *(each.value for each in _STATES)))}
#: What the last record leads to is followed for so long.
AFTERWARDS_SECONDS = 86_400.0


class FactsError(ValueError):
    """A file has no facts that can be replayed: `where` in it, and why."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(why)
        self.where, self.why = where, why


class _Listed(msgspec.Struct, frozen=True):
    """The list as `-o json` prints it."""

    items: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=10_000_000)]


@dataclass(frozen=True, slots=True)
class Facts:
    """What was recorded, in the order of time: the faults, and what was done about them."""

    rows: Sequence[RecordedRow]
    done: Sequence[HealthStep]

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last instant, in seconds since the epoch."""
        times = [*(each.at for each in self.rows), *(each.at for each in self.done)]
        return min(times, default=0.0), max(times, default=0.0)


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """What was done, or one policy does, beside what another one does."""

    before: Sequence[HealthStep]
    after: Sequence[HealthStep]
    end: float

    @property
    def tallies(self) -> tuple[HealthTally, HealthTally]:
        """The sums of both."""
        return tally_of(self.before, self.end), tally_of(self.after, self.end)

    @property
    def nodes(self) -> dict[str, tuple[Sequence[HealthStep], Sequence[HealthStep]]]:
        """The steps of nodes about which other things are done, by name."""
        return dict(differing(self.before, self.after))


def facts_of(data: bytes) -> Facts:
    """Return the facts in what `fairlead fleet history -o json` printed; FactsError."""
    try:
        items = msgspec.json.decode(data, type=_Listed).items
    except ValueError as error:  # msgspec's are of it, too
        raise FactsError("", f"no list of records: {error}") from error
    rows, done = list[RecordedRow](), list[HealthStep]()
    for index in reversed(range(len(items))):  # the latest comes first
        where = f"items[{index}]"
        try:
            line = msgspec.json.decode(items[index], type=FleetLine)
            at = line.at_ms / 1000
            if line.action == FAULTS:
                facts = msgspec.convert(line.facts, RecordedFaults)
                rows.append(RecordedRow(at, facts, facts.open_faults()))
        except ValueError as error:
            raise FactsError(where, str(error)) from error
        node = line.facts.get("node")
        if line.action in _ACTIONS and isinstance(node, str):
            done.append(HealthStep(at, node, line.action, line.facts.get("isUsed") is True))
        elif line.action == HOLD and line.reason == SIGHT:
            done.append(HealthStep(at, "", HOLD))
    if not rows:
        why = f"none of its {len(items)} records is of the faults of a node (action {FAULTS})"
        raise FactsError("items", why)
    rows.sort(key=lambda each: each.at)
    done.sort(key=lambda each: (each.at, _ACTIONS.get(each.action, 0)))
    return Facts(rows, done)


def compared(
    facts: Facts, policy: HealthPolicy, than: HealthPolicy | None = None
) -> PolicyComparison:
    """Return what a policy would have done beside what was done, or what another one would have."""
    end = facts.span[1] + AFTERWARDS_SECONDS
    before: Iterable[HealthStep] = facts.done if than is None else replay(facts.rows, than, end)
    return PolicyComparison(tuple(before), tuple(replay(facts.rows, policy, end)), end)
