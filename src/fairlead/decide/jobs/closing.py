"""A gang leaves a node before the maintenance that the node's provider has announced.

The provider stops the machine at the start of its window, whatever runs there. So the attempt ends
`maintenance_drain_seconds` before, and the next one has its members on other nodes; an attempt that
is over by then stays. A gang that reports checkpoints may save one more first, in the time that a
preempted gang has for it: it moves as soon as it has.

Windows that a person wrote are not meant here: who empties a node by hand drains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fairlead.api.placement import nodes_of
from fairlead.api.times import parse_time
from fairlead.decide.jobs.progress import fold_progress
from fairlead.decide.jobs.view import JobView
from fairlead.model.completion import ends_at


@dataclass(frozen=True, slots=True)
class Closing:
    """A node that closes at `start`, and when the attempt ends for it."""

    node: str
    start: float
    ends_at: float


def closing(view: JobView) -> Closing | None:
    """Return the first node of the gang that closes while the attempt may run; None: none does."""
    nodes = closing_nodes(view)
    if not nodes:
        return None
    start, node = min((view.closing[node].start, node) for node in nodes)
    ends = start - view.policy.maintenance_drain_seconds
    asked_at = ends - view.policy.checkpoint_wait_seconds
    progress = fold_progress(view.job.status.progress, view.reported)
    saved_at = progress.checkpointed_at if progress is not None else None
    is_saved = saved_at is not None and parse_time(saved_at) >= asked_at
    return Closing(node, start, asked_at if is_saved else ends)


def closing_nodes(view: JobView) -> tuple[str, ...]:
    """Return the nodes of the gang that close while the attempt may run, sorted."""
    placement = view.job.status.placement
    if not view.closing or placement is None:
        return ()
    limit = ends_at(view.job)
    over_at = inf if limit is None else limit
    windows = view.closing
    nodes = windows.keys() & set(nodes_of(placement))
    # Once a window is over, jobs may begin there; it is taken off the node a little later.
    return tuple(
        node
        for node in sorted(nodes)
        if windows[node].start < over_at and view.now < windows[node].end
    )
