"""Limits of what pods send to the internet: their own, and their teams' shares of a budget.

`limits` says which apply, `table` and `classes` what the kernel is to have, `mechanism` by which of
both, `devices` and `probe` speak to the kernel, `shaping` keeps it in step, and `use` says what the
limits do. Design: docs/design/shaping.md.
"""

from fairlead.node.shaping.limits import RATES_VERSION, DestinationRate, EgressRates, TeamRate
from fairlead.node.shaping.mechanism import MechanismChoice
from fairlead.node.shaping.shaping import Shaping, ShapingFacts, ShapingOptions, remove_shaping
from fairlead.node.shaping.use import DestinationUse, ShapedPodLine, ShapingUsage, TeamEgress

__all__ = [
    "RATES_VERSION",
    "DestinationRate",
    "DestinationUse",
    "EgressRates",
    "MechanismChoice",
    "ShapedPodLine",
    "Shaping",
    "ShapingFacts",
    "ShapingOptions",
    "ShapingUsage",
    "TeamEgress",
    "TeamRate",
    "remove_shaping",
]
