"""How long one image takes to reach all nodes, from a registry alone and with peers.

`pull_load` says what is pulled and estimates it by a formula, `transfers` simulates the transfers
one by one, and so checks the formula. Design: docs/design/images.md.
"""

from fairlead.sim.registry.pull_load import PeerSharing, PullLoad, estimated_seconds
from fairlead.sim.registry.transfers import PullOutcome, simulated

__all__ = ["PeerSharing", "PullLoad", "PullOutcome", "estimated_seconds", "simulated"]
