"""Removals that are granted: first the machine ends, then its node goes."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api.cluster.fleet import FleetStatus, Grant
from fairlead.decide.fleet.actions import Action, DeleteNode, Terminate
from fairlead.decide.fleet.cycle import decide_fleet
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy

from .test_fleet_quiet import Fleets


def asked(fleets: Fleets, memory: FleetMemory, *, fails: bool) -> list[Action]:
    """Decide as time goes on, and do all but what is asked for where that fails; return that."""
    for _ in range(20):
        fleets.instant += 10.0
        decided, _ = decide_fleet(fleets.view(), FleetPolicy(), memory)
        found: list[Action] = [
            each for each in decided.actions if isinstance(each, DeleteNode | Terminate)
        ]
        fleets.perform(tuple(each for each in decided.actions if not (fails and each in found)))
        if found:
            return found
    return []


def test_a_granted_removal_is_seen_through_however_often_its_calls_fail() -> None:
    fleets, memory = Fleets(1), FleetMemory()
    node = next(iter(fleets.tracked.by_pool["b"].values()))
    grant = Grant("b", node.instance, node.name)
    fleets.fleet = replace(fleets.fleet, status=FleetStatus(grants=(grant,)))
    for fails in (True, True, False):
        (action,) = asked(fleets, memory, fails=fails)
        assert isinstance(action, Terminate)
        assert action.instances == (node.instance,)
    for fails in (True, True, False):
        (action,) = asked(fleets, memory, fails=fails)
        assert isinstance(action, DeleteNode)
        assert action.node.metadata.name == node.name
    assert fleets.fleet.status.grants == (grant,)
    asked(fleets, memory, fails=True)
    assert grant not in fleets.fleet.status.grants
