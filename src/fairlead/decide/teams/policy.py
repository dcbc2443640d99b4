"""Options of the teams controller, read once and passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TeamsPolicy:
    """How fast nodes change hands, and what is kept together."""

    #: Nodes whose taint is written per `interval_seconds`.
    changes_max: int = 50
    interval_seconds: float = 1.0
    #: A node of others that a job has kept for so long is exchanged for one of its team that the
    #: team does not use.
    exchange_seconds: float = 3600.0
    #: Node label that names the block in which the nodes of a team are kept together; "": none.
    block_key: str = "topology.kubernetes.io/zone"
    #: With fewer healthy nodes than this part of all nodes no node changes hands: that so many are
    #: out at once is more likely a fault of what reports their health.
    healthy_part_min: float = 0.5
    #: What a team uses, borrows and lends is written at most this often.
    use_seconds: float = 10.0
    #: The sums of the fair share and of the budget are written at most this often, and only once
    #: one has changed by this part: a new process follows them from there at the rate it sees.
    sums_seconds: float = 300.0
    sums_part: float = 0.01
