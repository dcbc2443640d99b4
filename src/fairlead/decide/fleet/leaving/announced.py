"""Maintenance that a provider announces becomes the window of the node (`model/health/windows.py`).

From `announce_seconds` before its start on, no job that could run into it begins there; earlier, a
job without a time limit would stay away for weeks. A window that a person has written, or has
changed, is left alone; ours goes once it is over or the provider says nothing of it any more.

Where nothing uses the machine, and its provider would begin at once if it were asked, waiting for
the start only costs time. One machine of a pool at a time then gets a window that has begun, so
that no job starts there; a later decision that finds it idle still asks the provider. If something
uses it after all, it gets the announced window back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fairlead.decide.fleet.actions import Announce, BeginMaintenance
from fairlead.decide.fleet.census import PoolCensus, is_idle
from fairlead.decide.fleet.view import FleetPolicy, FleetView, PoolView
from fairlead.model.health.machines import Instance
from fairlead.model.health.windows import read_window, window_text
from fairlead.model.pools.pool_nodes import PoolNode


def announcements(view: FleetView, census: PoolCensus, policy: FleetPolicy) -> Iterator[Announce]:
    """Yield the nodes of a pool whose windows are not those that the latest list announces."""
    for node, machine in _listed(census):
        if _is_early(node, machine) and not view.nodes.is_used(node.name):
            continue
        wanted = machine.maintenance if _is_due(machine.maintenance, policy, view.now) else ""
        is_free = not node.maintenance or node.maintenance == node.announced
        if is_free and wanted != node.maintenance:
            yield Announce(node.node, wanted)


def begun_early(
    view: FleetView, census: PoolCensus, policy: FleetPolicy, needed: Collection[str]
) -> Announce | BeginMaintenance | None:
    """Return the next step to begin announced maintenance early; None where there is none.

    `needed` are nodes that waiting gangs will use.
    """
    listed = list(_listed(census))
    for node, machine in listed:
        if _is_early(node, machine):
            seconds = view.now - read_window(node.maintenance).start
            is_ready = machine.may_begin and not view.nodes.is_used(node.name)
            if is_ready and seconds >= policy.loop_seconds:
                return BeginMaintenance(census.view.pool, machine.id)
            return None
    if census.out or any(not node.is_ready for node in census.nodes.values()):
        return None  # one at a time
    ahead = [
        (read_window(machine.maintenance), node)
        for node, machine in listed
        if machine.may_begin
        and node.maintenance == node.announced == machine.maintenance
        and _is_long_idle(view, census, node)
        and node.name not in needed
    ]
    ahead = [each for each in ahead if each[0].start > view.now]
    if not ahead:
        return None
    window, node = min(ahead, key=lambda each: (each[0].start, each[1].name))
    return Announce(node.node, window_text(view.now, window.end))


def announcement_turns(pool: PoolView, policy: FleetPolicy, now: float) -> Iterator[float]:
    """Yield in how many seconds `announcements` may change by time alone."""
    for each in pool.instances:
        if each.maintenance:
            window = read_window(each.maintenance)
            turns = (window.start - policy.announce_seconds - now, window.end - now)
            yield from (seconds for seconds in turns if seconds > 0)


def _listed(census: PoolCensus) -> Iterator[tuple[PoolNode, Instance]]:
    """Yield nodes with their machines; of others nothing is known now."""
    listed = {each.id: each for each in census.view.instances}
    for node in census.nodes.values():
        if node.instance in listed:
            yield node, listed[node.instance]


def _is_early(node: PoolNode, machine: Instance) -> bool:
    """True for a node with a window of ours that begins before the announced one."""
    if not machine.maintenance or not node.maintenance or node.maintenance != node.announced:
        return False
    own, announced = read_window(node.maintenance), read_window(machine.maintenance)
    is_read = not (own.error or announced.error)
    return is_read and own.end == announced.end and own.start < announced.start


def _is_long_idle(view: FleetView, census: PoolCensus, node: PoolNode) -> bool:
    """True for a node that has been idle for long, could take work, and is no spare."""
    if node.is_spare or not is_idle(view, census, node):
        return False
    seconds = census.view.pool.spec.scale_down.idle_seconds
    return view.instant >= view.nodes.idle_since[node.name] + seconds


def _is_due(text: str, policy: FleetPolicy, now: float) -> bool:
    if not text:
        return False
    window = read_window(text)
    return not window.error and window.start - policy.announce_seconds <= now < window.end
