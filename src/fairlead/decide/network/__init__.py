"""A team's budget of internet traffic, divided over the nodes that send (pure).

docs/design/shaping.md has the reasons.
"""

from fairlead.decide.network.divide import DividePolicy, divide, safe_share

__all__ = ["DividePolicy", "divide", "safe_share"]
