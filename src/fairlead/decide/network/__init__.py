"""A team's budget of internet traffic, divided over the nodes that send (pure).

`divide` has the arithmetic, `cycle` a round. docs/design/shaping.md has the reasons.
"""

from fairlead.decide.network.cycle import (
    EgressMemory,
    EgressPolicy,
    SetShares,
    TeamBudget,
    decide_shares,
)
from fairlead.decide.network.divide import DividePolicy, divide, safe_share

__all__ = [
    "DividePolicy",
    "EgressMemory",
    "EgressPolicy",
    "SetShares",
    "TeamBudget",
    "decide_shares",
    "divide",
    "safe_share",
]
