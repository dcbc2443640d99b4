"""How `sim/explore.py` runs one world, and shrinks one that breaks a promise.

Begin with `one_world.py`.
"""

from fairlead.sim.exploration.one_world import WorldRun, run_world
from fairlead.sim.exploration.shrinking import kind_of, shrunk

__all__ = ["WorldRun", "kind_of", "run_world", "shrunk"]
