"""Budgets of traffic, of teams and of destinations, divided over the nodes that send (pure).

`divide` has the arithmetic, `cycle` a round, and `traffic` adds up what nodes have counted.
docs/design/shaping.md and network.md have the reasons.
"""

from fairlead.decide.network.cycle import (
    Budget,
    DestinationBudget,
    DestinationLimit,
    EgressMemory,
    EgressPolicy,
    SetShares,
    TeamBudget,
    decide_shares,
    is_starting,
)
from fairlead.decide.network.divide import DividePolicy, divide, safe_share
from fairlead.decide.network.traffic import (
    HELD_BACK_SECONDS_MIN,
    CountingState,
    HeldBackPods,
    TrafficBook,
    counting_state,
    team_of,
)

__all__ = [
    "HELD_BACK_SECONDS_MIN",
    "Budget",
    "CountingState",
    "DestinationBudget",
    "DestinationLimit",
    "DividePolicy",
    "EgressMemory",
    "EgressPolicy",
    "HeldBackPods",
    "SetShares",
    "TeamBudget",
    "TrafficBook",
    "counting_state",
    "decide_shares",
    "divide",
    "is_starting",
    "safe_share",
    "team_of",
]
