"""Maintenance that a provider announces becomes the window of the node (`model/windows.py`).

From `announce_seconds` before its start on, no job that could run into it begins there; earlier, a
job without a time limit would stay away for weeks. A window that a person has written, or has
changed, is left alone; ours goes once it is over or the provider says nothing of it any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.decide.fleet.actions import Announce
from fairlead.decide.fleet.census import Census
from fairlead.decide.fleet.view import FleetPolicy, PoolView
from fairlead.model.windows import read_window


def announcements(census: Census, policy: FleetPolicy, now: float) -> Iterator[Announce]:
    """Yield the nodes of a pool whose windows are not those that the latest list announces."""
    listed = {each.id: each for each in census.view.instances}
    for id_, node in ((node.instance, node) for node in census.nodes.values()):
        machine = listed.get(id_)
        if machine is None:
            continue  # nothing is known of it now
        wanted = machine.maintenance if _is_due(machine.maintenance, policy, now) else ""
        is_free = not node.maintenance or node.maintenance == node.announced
        if is_free and wanted != node.maintenance:
            yield Announce(node.node, wanted)


def announcement_turns(pool: PoolView, policy: FleetPolicy, now: float) -> Iterator[float]:
    """Yield in how many seconds `announcements` may change by time alone."""
    for each in pool.instances:
        if each.maintenance:
            window = read_window(each.maintenance)
            turns = (window.start - policy.announce_seconds - now, window.end - now)
            yield from (seconds for seconds in turns if seconds > 0)


def _is_due(text: str, policy: FleetPolicy, now: float) -> bool:
    if not text:
        return False
    window = read_window(text)
    return not window.error and window.start - policy.announce_seconds <= now < window.end
