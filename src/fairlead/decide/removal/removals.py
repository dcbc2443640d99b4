"""Rules on removals: which may be marked, which may be carried out, and what holds the others back.

The rails, in this order: sight (`trust.py`), ownership, two phases, budgets and ceiling
(`ledger.py`). Over budget, the most certain removals go first and the others wait: there is no "all
or nothing". A removal takes two phases: the node is marked, looked at again at least one loop
later, and only then removed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Self, TypeAlias

from fairlead.api.cluster.fleet import RemovalCause
from fairlead.decide.removal.ledger import Charge, RailsAccount
from fairlead.decide.removal.trust import Fact, SightFinding

#: Causes in the order of how certain they are: what never worked goes before what merely idles.
_CERTAINTY = {
    RemovalCause.REPAIR: 0,
    RemovalCause.MAINTENANCE: 1,
    RemovalCause.FAILED_LAUNCH: 2,
    RemovalCause.IDLE: 3,
}


@dataclass(frozen=True, slots=True)
class Removal:
    """A node, or an instance without one, that something wants to be removed."""

    charge: Charge
    #: The provider's id of the instance, and the pool that its tag names.
    instance: str
    tagged_pool: str
    #: Its node and the provider id that the node states; empty: no node ever registered.
    node: str = ""
    node_instance: str = ""
    #: When the node was marked, by the caller's loops: 0 when it is not, 1 in the loop after.
    marked_loops: int = 0
    #: Smaller goes first among removals of one cause.
    order: int = 0
    why: str = ""
    #: It was charged when the node was taken out of service, and is not charged again.
    is_paid: bool = False

    @property
    def name(self) -> str:
        """The node, else the instance."""
        return self.node or self.instance


class RemovalOutcome(Enum):
    """What is to happen with a removal."""

    MARK = "Mark"
    REMOVE = "Remove"
    WAIT = "Wait"


class RemovalRule(Enum):
    """What decided; `words` say it."""

    _value_: str
    words: str

    def __new__(cls, value: str, words: str) -> Self:
        """Make a member."""
        made = object.__new__(cls)
        made._value_, made.words = value, words
        return made

    BLIND = "Blind", "what is seen cannot be trusted"
    NOT_OWNED = "NotOwned", "the machine is not the pool's own"
    TWO_PHASES = "TwoPhases", "it is marked first and removed later"
    CEILING = "Ceiling", "a day's ceiling is reached"
    POOL_BUDGET = "PoolBudget", "the pool's own disruption budget is used up"
    CAUSE_BUDGET = "CauseBudget", "the budget for this cause is used up"
    IN_FLIGHT = "InFlight", "enough removals are under way"
    TAKEN_BACK = "TakenBack", "a node was not healthy with this change of the tuning profile"
    ALLOWED = "Allowed", "within all budgets"
    OVERRIDE = "Override", "an override allows it"


def rule_words(rule: RemovalRule) -> str:
    """Return a rule in words, with its name."""
    return f"{rule.words} ({rule.value})"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decision on one removal: a record with the rule, the budget before and after."""

    removal: Removal
    outcome: RemovalOutcome
    rule: RemovalRule
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Permit:
    """An override of a person that is in force: removals of these names exceed the budgets."""

    name: str
    names: frozenset[str]


def rule_on(
    removals: Sequence[Removal],
    account: RailsAccount,
    blind: Sequence[SightFinding],
    *,
    permits: Sequence[Permit] = (),
    room: int,
) -> tuple[Ruling, ...]:
    """Return one ruling for each removal, the most certain first. What is let through is booked.

    `room` is how many more removals may be on their way. Marks count against the budgets of this
    call, so no more nodes are marked than could be removed.
    """
    rules = _Rules(account, blind, permits, room)
    return tuple(rules.ruling_on(removal) for removal in sorted(removals, key=_certainty))


class WaitingRemovals:
    """Removals that are marked and wait, by charge: a ruling takes no longer the more there are.

    What holds back a removal holds back all that follow it with the same charge, unless an override
    names them. So no more of a charge are ruled on than its budgets would let through, and one
    more, which says what holds the others. All are owned, and none is paid.
    """

    def __init__(self) -> None:
        #: Order, name and instance of each, the most certain first.
        self._order: dict[Charge, list[_Place]] = {}
        self._places: dict[str, tuple[Charge, _Place]] = {}

    def put(self, name: str, instance: str, charge: Charge, order: int) -> None:
        """Add the removal of a name, in place of the one that there is."""
        self.remove(name)
        place = (order, name, instance)
        self._places[name] = (charge, place)
        insort(self._order.setdefault(charge, []), place)

    def remove(self, name: str) -> None:
        """Take out the removal of a name, if there is one."""
        found = self._places.pop(name, None)
        if found is None:
            return
        charge, place = found
        order = self._order[charge]
        del order[bisect_left(order, place)]
        if not order:
            del self._order[charge]

    def rule(
        self, account: RailsAccount, made: Callable[[str], Removal], *,
        granted: Mapping[str, str], permits: Sequence[Permit], room: int,
    ) -> tuple[tuple[Ruling, ...], Counter[RemovalRule]]:  # fmt: skip
        """Return the rulings on those that may be let through, and how many wait, by what holds
        them.

        `made` returns the removal of a name. Those are left out of which `granted` has the
        instance, by name.
        """
        left_out = {
            name for name, instance in granted.items()
            if name in self._places and self._places[name][1][2] == instance
        }  # fmt: skip
        named = {name for permit in permits for name in permit.names if name in self._places}
        others = Counter(self._places[name][0] for name in left_out | named)
        first, behind = sorted(named - left_out), dict[Charge, int]()
        for charge, order in self._order.items():
            most = max(0, min(room, account.left(charge))) + 1
            names = (name for _, name, _ in order if name not in left_out and name not in named)
            first += islice(names, most)
            behind[charge] = max(0, len(order) - others[charge] - most)
        rulings = rule_on([made(name) for name in first], account, (), permits=permits, room=room)
        held, latest = Counter[RemovalRule](), dict[Charge, RemovalRule]()
        for each in rulings:
            if each.outcome is RemovalOutcome.WAIT:
                held[each.rule] += 1
                latest[each.removal.charge] = each.rule
        for charge, count in behind.items():
            if count:
                held[latest[charge]] += count
        return rulings, held


_Place: TypeAlias = tuple[int, str, str]
_Hold: TypeAlias = tuple[RemovalRule, Mapping[str, Fact]]


@dataclass(slots=True)
class _Rules:
    account: RailsAccount
    blind: Sequence[SightFinding]
    permits: Sequence[Permit]
    room: int
    #: What holds back one more removal of each charge. Thousands that are held back share a few
    #: charges, and only what is let through changes the answer.
    holds: dict[Charge, _Hold | None] = field(default_factory=dict[Charge, _Hold | None])

    def ruling_on(self, removal: Removal) -> Ruling:
        """Rule on one removal, and book it when it is let through."""
        facts: Mapping[str, Fact]
        if self.blind:
            facts = {"why": self.blind[0].message}
            return Ruling(removal, RemovalOutcome.WAIT, RemovalRule.BLIND, facts)
        if not _is_owned(removal):
            facts = {
                "tagged_pool": removal.tagged_pool, "node_instance": removal.node_instance,
            }  # fmt: skip
            return Ruling(removal, RemovalOutcome.WAIT, RemovalRule.NOT_OWNED, facts)
        if self.room <= 0:
            return Ruling(removal, RemovalOutcome.WAIT, RemovalRule.IN_FLIGHT)
        hold, permit = None if removal.is_paid else self._hold_of(removal.charge), None
        if hold is not None:
            permit = next((each for each in self.permits if removal.name in each.names), None)
            if permit is None:
                return Ruling(removal, RemovalOutcome.WAIT, *hold)
        left = self.account.left(removal.charge)
        if not removal.is_paid:
            self.account.book(removal.charge)
            self.holds.clear()
        self.room -= 1
        facts = {"budget_before": left, "budget_after": left - (not removal.is_paid)}
        if permit is not None:
            facts = {"override": permit.name}
        if removal.marked_loops < 1:
            return Ruling(removal, RemovalOutcome.MARK, RemovalRule.TWO_PHASES, facts)
        rule = RemovalRule.ALLOWED if permit is None else RemovalRule.OVERRIDE
        return Ruling(removal, RemovalOutcome.REMOVE, rule, facts)

    def _hold_of(self, charge: Charge) -> _Hold | None:
        if charge not in self.holds:
            excess = self.account.excess(charge)
            self.holds[charge] = (
                None if excess is None else (RemovalRule(excess.rule), excess.facts)
            )
        return self.holds[charge]


def _is_owned(removal: Removal) -> bool:
    """True when the cloud's tag and the node's provider id both agree with our record."""
    if removal.tagged_pool != removal.charge.pool or not removal.instance:
        return False
    return not removal.node or removal.node_instance == removal.instance


def _certainty(removal: Removal) -> tuple[int, int, int, str, str]:
    """Order removals: what is marked goes first, so that marks do not pile up."""
    cause = _CERTAINTY[removal.charge.cause]
    is_new = 0 if removal.marked_loops else 1
    return (is_new, cause, removal.order, removal.charge.pool, removal.name)
