"""A gang leaves a node before the maintenance that its provider has announced, or as it is drained.

The provider stops the machine at the start of its window, whatever runs there. So the attempt ends
`maintenance_drain_seconds` before, and the next one has its members on other nodes; an attempt that
is over by then stays. A gang that reports checkpoints may save one more first, in the time that a
preempted gang has for it: it moves as soon as it has.

A drain (`drain_of`) asks from its beginning on: a gang moves after its next checkpoint, the others
so long before the deadline. Windows that a person wrote are not meant here: who empties a node by
hand drains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fairlead.api.jobs.placement import nodes_of
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.jobs.following.progress import fold_progress
from fairlead.decide.jobs.view import JobView
from fairlead.model.holdings.completion import ends_at


@dataclass(frozen=True, slots=True)
class Closing:
    """A node that closes at `start`, and when the attempt ends for it."""

    node: str
    start: float
    ends_at: float
    is_drain: bool = False

    @property
    def words(self) -> str:
        """Return the node and its date, for people."""
        at = format_time(self.start)
        what = f"is to be empty by {at}" if self.is_drain else f"has maintenance from {at}"
        return f"node {self.node} {what}"


def closing(view: JobView) -> Closing | None:
    """Return the first node of the gang that closes while the attempt may run; None: none does."""
    nodes = closing_nodes(view)
    if not nodes:
        return None
    return min((_of(view, node) for node in nodes), key=lambda each: (each.ends_at, each.node))


def _of(view: JobView, node: str) -> Closing:
    window, wait = view.closing[node], view.policy.checkpoint_wait_seconds
    ends = window.start - view.policy.maintenance_drain_seconds
    if window.asked_at is None:
        asked_at = ends - wait
    else:  # a drain that is short leaves the time for one checkpoint
        asked_at = window.asked_at
        ends = max(ends, min(asked_at + wait, window.start))
    progress = fold_progress(view.job.status.progress, view.reported)
    saved_at = progress.checkpointed_at if progress is not None else None
    is_saved = saved_at is not None and parse_time(saved_at) >= asked_at
    is_drain = window.asked_at is not None
    return Closing(node, window.start, asked_at if is_saved else ends, is_drain=is_drain)


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
