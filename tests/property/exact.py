"""The exact answer to small cases, as an integer programme that HiGHS solves.

The model knows nodes, gangs and what their members ask for as plain numbers. It shares nothing with
the planner, so an answer of the planner that is better than the best one would show as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

#: Amounts of each resource, in the same order everywhere.
Amounts: TypeAlias = tuple[int, ...]
#: Coefficients by variable.
Terms: TypeAlias = dict[int, float]

_GAP = 1e-6


@dataclass(frozen=True)
class ExactGang:
    """Members of each role with what one asks for; `rack`: all of them in one."""

    roles: tuple[tuple[int, Amounts], ...]
    rack: bool = False


@dataclass
class Programme:
    """Variables and constraints, added one by one; then minimised level by level."""

    uppers: list[float] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)

    def variable(self, upper: float = 1.0) -> int:
        """Add an integer from 0 to `upper`."""
        self.uppers.append(upper)
        return len(self.uppers) - 1

    def bound(self, terms: Terms, low: float, high: float) -> None:
        """Keep a sum within limits."""
        self.rows.append((terms, low, high))

    def place(
        self, gang: ExactGang, racks: Sequence[str], *, if_: int | None = None
    ) -> list[list[int]]:
        """Give every member a node, or none does while the variable `if_` is 0.

        Return a variable for each role and node: how many members it takes.
        """
        taken = [[self.variable(count) for _ in racks] for count, _ in gang.roles]
        names = sorted(set(racks))
        chosen = {name: self.variable() for name in names} if gang.rack else {}
        if chosen:
            self.bound(dict.fromkeys(chosen.values(), 1.0), 0, 1)
        for (count, _), nodes in zip(gang.roles, taken, strict=True):
            terms = dict.fromkeys(nodes, 1.0)
            if if_ is None:
                self.bound(terms, count, count)
            else:
                self.bound({**terms, if_: -count}, 0, 0)
            for node, rack in zip(nodes, racks, strict=True) if chosen else ():
                self.bound({node: 1.0, chosen[rack]: -count}, -np.inf, 0)
        return taken

    def minimise(self, goals: Iterable[Terms]) -> list[float] | None:
        """Return the least value of each goal, given those before it; None: there is no answer."""
        found: list[float] = []
        rows = list(self.rows)
        for terms in goals:
            value = self._solve(terms, rows)
            if value is None:
                return None
            found.append(value)
            rows.append((terms, -np.inf, value + _GAP * max(1.0, abs(value))))
        return found

    @property
    def is_possible(self) -> bool:
        """True when there is any answer."""
        return self._solve({}, self.rows) is not None

    def _solve(self, terms: Terms, rows: list[tuple[Terms, float, float]]) -> float | None:
        # Each worker imports this module, and one of them solves.
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        count = len(self.uppers)
        cost = np.zeros(count)
        for variable, weight in terms.items():
            cost[variable] = weight
        entries = [(i, v, w) for i, (each, _, _) in enumerate(rows) for v, w in each.items()]
        lines, columns, weights = zip(*entries, strict=True) if entries else ((), (), ())
        matrix = coo_array((weights, (lines, columns)), shape=(len(rows), count))
        answer = milp(
            cost,
            integrality=np.ones(count),
            bounds=Bounds(0, np.array(self.uppers)),
            constraints=LinearConstraint(
                matrix.tocsr(), [low for _, low, _ in rows], [high for _, _, high in rows]
            ),
            options={"mip_rel_gap": 0.0},
        )
        assert answer.status in (0, 2), answer.message  # solved, or infeasible
        return None if answer.x is None else float(cost @ np.round(answer.x))


def demands(gang: ExactGang, taken: list[list[int]], node: int, kind: int) -> Terms:
    """Return what the members of a gang ask of one resource on one node."""
    return {
        nodes[node]: float(asked[kind])
        for (_, asked), nodes in zip(gang.roles, taken, strict=True)
        if asked[kind]
    }
