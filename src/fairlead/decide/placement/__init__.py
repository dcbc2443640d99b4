"""Placing gangs: the one planner that decides, repairs, answers "would it fit?" and says why not.

`decide` is a whole decision; `would_fit`, `fits_empty` and `largest_shape` are questions to the
same algorithm that change nothing. How it packs and why: docs/design/placement.md.
"""

from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.placement.whatif import fits_empty, largest_shape, would_fit

__all__ = ["PlacementPolicy", "decide", "fits_empty", "largest_shape", "would_fit"]
