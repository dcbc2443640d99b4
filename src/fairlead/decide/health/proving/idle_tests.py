"""Which idle nodes are tested: suspects first, then the longest untested.

A test yields to work (`model/pools/yielding_tests.py`), so no budget of the rails is asked. What
bounds it is a share of the fleet that is under test at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.cluster.node_test import NodeTestCause
from fairlead.api.values.times import format_time
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.testing import CreateTest
from fairlead.decide.words import duration, plural
from fairlead.model.health.idle_nodes import DueNode

_NAMES_MAX = 5


def room(policy: HealthPolicy, nodes: int) -> int:
    """Return how many of so many nodes may be under test at a time: at least one, or one pair."""
    return max(2 if policy.pair_tests else 1, int(nodes * policy.idle_test_share))


def idle_tests(
    due: Iterable[DueNode], policy: HealthPolicy, *, open_count: int, nodes: int
) -> Iterator[CreateTest]:
    """Yield the tests that begin now, of a fleet of so many nodes; `open_count` go on already.

    `due` in the order of their turns.
    """
    for each in islice(due, max(0, room(policy, nodes) - open_count)):
        number = each.past.number + 1
        suite = policy.idle_suite(each.node.metadata.labels)
        yield CreateTest(each.node, suite, number, NodeTestCause.IDLE)


def said_overdue(late: Sequence[DueNode], instant: float, now: float) -> PoolDecision:
    """Return that idle nodes are not tested, or that all of them are again."""
    at = format_time(now)
    if not late:
        return PoolDecision(at, "Resume", "Tested", "every idle node is tested again", {})
    names = [each.node.metadata.name for each in late]
    first = duration(instant - late[0].late_at)
    more = f" and {len(names) - _NAMES_MAX:,} more" if len(names) > _NAMES_MAX else ""
    text = (
        f"{plural(len(names), 'idle node')} should have been tested up to {first} ago: "
        f"{', '.join(names[:_NAMES_MAX])}{more}"
    )
    return PoolDecision(at, "Untested", "IdleTests", text, {"nodes": len(names)})
