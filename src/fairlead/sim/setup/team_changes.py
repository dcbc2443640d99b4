"""Teams of a simulated world: which appear, change and vanish, and when.

Drawn shares may ask for more nodes than there are, or for those of one rack, in nodes or in GPUs.
In the end every team exists, may borrow without a limit and limits no jobs, so that each can run.
It may have a budget then: what was used counts half after a day, so its jobs run in time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead.api import names
from fairlead.api.names import RACK
from fairlead.sim.setup.workload import HIGH

Spec = dict[str, Any]

#: Names of teams, each with a namespace of that name.
TEAM_NAMES = ("blue", "green", "red", "white")
_VANISHING_SHARE = 0.25
_RACK: Spec = {"nodeSelector": {RACK: "rack-00000"}}
#: What the shares of a team select.
_SELECTORS: tuple[tuple[Spec, ...], ...] = ((), ({},), ({},), (_RACK,), (_RACK, {}))
_OPTIONAL = (
    "borrowLimitNodes", "lendLimitNodes", "limits", "userLimits", "budget", "queueingStrategy",
)  # fmt: skip
_JOB_LIMITS = ("running", "waiting", "submitted", "gpus")


@dataclass(frozen=True, slots=True)
class TeamChange:
    """From an instant on, in seconds after the start, a team has this spec; None: it is gone.

    One that exists is changed, or, where it is `replaced`, deleted and at once made again.
    """

    at_seconds: float
    name: str
    spec: Spec | None
    replaced: bool = False

    @property
    def patch(self) -> dict[str, Any]:
        """The spec as a merge patch, which takes away what it does not set."""
        return {"spec": {**dict.fromkeys(_OPTIONAL), **(self.spec or {})}}

    @property
    def body(self) -> dict[str, Any]:
        """The team as a new object."""
        return {
            "apiVersion": names.API_VERSION, "kind": "Team",
            "metadata": {"name": self.name}, "spec": self.spec,
        }  # fmt: skip


def draw_changes(rng: random.Random, nodes: int, seconds: float) -> tuple[TeamChange, ...]:
    """Return the changes of a random world in order of time: the first ones at its start."""
    teams = TEAM_NAMES[: rng.randint(1, len(TEAM_NAMES))]
    return tuple(_changes(rng, teams, nodes, seconds))


def _changes(
    rng: random.Random, teams: tuple[str, ...], nodes: int, seconds: float
) -> Iterator[TeamChange]:
    for team in teams:
        yield TeamChange(0.0, team, _spec(rng, team, nodes))
    count = rng.choice((0, 2, 6, 12))
    for at in sorted(rng.random() * seconds * 0.95 for _ in range(count)):
        team = rng.choice(teams)
        is_gone = rng.random() < _VANISHING_SHARE
        yield TeamChange(at, team, None if is_gone else _spec(rng, team, nodes))
    for team in teams:
        spec = _spec(rng, team, nodes)
        for limit in _OPTIONAL:
            spec.pop(limit, None)
        yield TeamChange(seconds, team, {**spec, "borrowPriorityMax": HIGH["value"]})


def _spec(rng: random.Random, team: str, nodes: int) -> Spec:
    spec: Spec = {
        # Groups of the other tool are in the default namespace.
        "namespaces": [team, names.DEFAULT_NAMESPACE] if team == TEAM_NAMES[0] else [team],
        "shares": [_share(rng, nodes, selector) for selector in rng.choice(_SELECTORS)],
        "weight": rng.choice((1, 1, 3)),
        "borrowPriorityMax": rng.choice((-1, 0, 0, HIGH["value"])),
    }
    for limit in ("borrowLimitNodes", "lendLimitNodes"):
        if rng.random() < 0.4:
            spec[limit] = rng.randint(0, nodes)
    for limits in ("limits", "userLimits"):
        if rng.random() < 0.3:
            names_drawn = rng.sample(_JOB_LIMITS, rng.randint(1, 2))
            spec[limits] = {name: _job_limit(rng, name) for name in names_drawn}
    return spec


def with_strict_order(
    rng: random.Random, changes: tuple[TeamChange, ...]
) -> tuple[TeamChange, ...]:
    """Return the changes with strict order for half of the specs."""
    return tuple(
        replace(change, spec={**change.spec, "queueingStrategy": "StrictFIFO"})
        if change.spec is not None and rng.random() < 0.5
        else change
        for change in changes
    )


def with_replacements(
    rng: random.Random, changes: tuple[TeamChange, ...]
) -> tuple[TeamChange, ...]:
    """Return the changes, a third of them by a new object of the same name."""
    return tuple(replace(change, replaced=rng.random() < 1 / 3) for change in changes)


def with_budgets(
    rng: random.Random, changes: tuple[TeamChange, ...], gpu_hours: Mapping[str, float]
) -> tuple[TeamChange, ...]:
    """Return the changes with budgets, most of them smaller than what the jobs of the team need.

    `gpu_hours` says what that is, by team.
    """
    last = {change.name: number for number, change in enumerate(changes)}
    drawn: list[TeamChange] = []
    for number, change in enumerate(changes):
        needed = gpu_hours.get(change.name, 0.0)
        is_last = number == last[change.name]
        if change.spec is None or rng.random() < (0.75 if is_last else 0.3):
            drawn.append(change)
            continue
        part = rng.choice((0.7, 1.5) if is_last else (0.0, 0.02, 0.02, 0.1, 0.1, 0.3))
        days = 1 if is_last else rng.choice((1, 1, 7))
        budget = {"gpuHours": math.ceil(needed * part), "halfLifeDays": days}
        if is_last and not budget["gpuHours"]:
            budget["gpuHours"] = 1
        drawn.append(replace(change, spec={**change.spec, "budget": budget}))
    return tuple(drawn)


def budget_seconds(
    changes: tuple[TeamChange, ...], gpu_hours: Mapping[str, float], attempts: int
) -> float:
    """Return how long the jobs of all teams wait at most for the budgets that teams have at last.

    Where each job runs `attempts` times, and alone: from the sum S = L + g, with the job's g above
    the budget L, to L it takes log2(S / L) half-lives, less than g / (L ln 2).
    """
    last = {change.name: change.spec or {} for change in changes}
    seconds = 0.0
    for name, spec in last.items():
        if "budget" in spec:
            ratio = attempts * gpu_hours.get(name, 0.0) / spec["budget"]["gpuHours"]
            half_lives = math.log2(max(1.0, ratio)) + ratio / math.log(2)
            seconds += half_lives * spec["budget"]["halfLifeDays"] * 86_400.0
    return seconds


def _job_limit(rng: random.Random, name: str) -> int:
    return 8 * rng.randint(1, 12) if name == "gpus" else rng.randint(0, 6)


def _share(rng: random.Random, nodes: int, selector: Spec) -> Spec:
    count = rng.randint(0, max(1, nodes // 2))
    amount = {"gpus": 8 * count - rng.randint(0, 7)} if count and rng.random() < 0.2 else {}
    return {**(amount or {"nodes": count}), **selector}
