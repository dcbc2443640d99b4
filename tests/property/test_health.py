"""Histories of faults, outages, restarts and people: what holds for the health of nodes always.

The agents are played by the test, which knows which faults are there; the controllers are the pure
decision, carried out on values. Every window is counted again from the grants and true time.
"""

from __future__ import annotations

import random
from copy import copy
from dataclasses import replace
from functools import cache

import pytest
from tests.unit.decide.health_world import Action, HealthWorld, Severity, fault

from fairlead.api import names
from fairlead.api.cluster.node_report import AgentAnswer, ReportedFault, RequestAnswer
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.health.cycle import HealthMemory, decide_health
from fairlead.decide.health.remembered.fault_records import FaultRecords
from fairlead.decide.health.seen_nodes import SeenNodes
from fairlead.decide.removal.ledger import DAY, HOUR, MINUTES_5
from fairlead.model.health.node_record import NodeState
from fairlead.testing.builders import make_node

#: Shares of the careful budget of repairs, of the fleet: `decide/removal/ledger.py`.
SHARES = ((MINUTES_5, 0.02), (HOUR, 0.05), (DAY, 0.15))
STEPS = 150


class History:
    """One history; every draw comes from its number."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(f"health/{number}")
        self.world = HealthWorld(self.rng.choice((4, 20, 60)))
        self.world.replaceable = self.rng.random() < 0.5
        self.faults: dict[str, dict[str, ReportedFault]] = {name: {} for name in self.world.nodes}
        self.boots = dict.fromkeys(self.world.nodes, 1)
        self.cordoned: dict[str, None] = {}
        self.states = dict.fromkeys(self.world.nodes, NodeState.READY)
        #: Of another leader, which decides now and then.
        self.other = HealthMemory()
        self.is_storm = False

    def run(self) -> None:
        for _ in range(STEPS):
            self.disturb()
            self.report()
            if self.rng.random() < 0.1:
                self.world.memory, self.other = self.other, self.world.memory
            self.world.now += self.rng.choice((2.0, 5.0, 30.0, 600.0))
            self.step()
            self.check()
        self.calm()

    def step(self) -> None:
        """Decide as a process that looks at each node again would decide, and carry it out."""
        memory, world = self.world.memory, self.world
        seen = SeenNodes(suspects=dict(memory.seen.suspects))
        records = FaultRecords(dict(memory.records.known), dict(memory.records.waiting))
        forgetful = replace(memory, seen=seen, ledger=copy(memory.ledger), records=records)
        expected, report = decide_health(world.view(), world.policy, forgetful)
        actions = world.decide()
        assert actions == expected.actions
        assert world.report == report
        for action in actions:
            world.perform(action)

    def disturb(self) -> None:
        rng, world = self.rng, self.world
        name = rng.choice(list(world.nodes))
        drawn = rng.random()
        if drawn < 0.25:
            self.begin(name)
        elif drawn < 0.35:
            self.faults[name].clear()
        elif drawn < 0.40:
            world.api_error_share = rng.choice((0.0, 0.9))
        elif drawn < 0.45:
            world.restart()
        elif drawn < 0.465:
            self.storm()
        elif drawn < 0.60:
            (world.used.discard if name in world.used else world.used.add)(name)
        elif drawn < 0.65:
            is_on = name not in self.cordoned
            world.cordon(name, unschedulable=is_on)
            (self.cordoned.__setitem__(name, None) if is_on else self.cordoned.pop(name))
        elif drawn < 0.68:
            world.annotate(name, REPAIRED=format_time(world.now))
        elif drawn < 0.72:
            self.boots[name] += 1
        elif drawn < 0.74:
            world.nodes[name] = make_node(name, uid=f"{name}-{world.now}")
            world.reports.pop(name)
            self.faults[name].clear()
            self.cordoned.pop(name, None)
            self.states[name] = NodeState.READY

    def begin(self, name: str) -> None:
        check = self.rng.choice(("gpu-xid", "ib-port", "disk"))
        self.faults[name][check] = fault(
            check, severity=self.rng.choice(list(Severity)), action=self.rng.choice(list(Action)),
            at=self.world.now - self.rng.choice((0.0, 3600.0, -3600.0)),
            last=self.world.now + 7200,
        )  # fmt: skip

    def storm(self) -> None:
        self.is_storm = not self.is_storm
        for found in self.faults.values():
            found.pop("storm", None)
            if self.is_storm:
                found["storm"] = fault("storm", at=self.world.now, last=self.world.now + 7200)

    def report(self) -> None:
        for name in self.world.nodes:
            if name[-1] in "369" and self.rng.random() < 0.5:
                continue  # it is as it was
            record = self.world.record(name)
            answered = None
            if record is not None and record.request is not None and name[-1] in "02468":
                answered = RequestAnswer(record.request.id, AgentAnswer.ACCEPTED)
            found = self.faults[name].values()
            self.world.tell(name, *found, boot=f"boot-{self.boots[name]}", answered=answered)

    def check(self) -> None:
        world = self.world
        for name, node in world.nodes.items():
            assert node.spec.unschedulable == (name in self.cordoned), "a person's field"
            record, before = world.record(name), self.states[name]
            is_out = record is not None and record.is_out
            assert world.is_tainted(name) is is_out
            assert (names.HEALTH_DRAIN in node.metadata.annotations) is is_out
            after = self.states[name] = world.state(name)
            if after is not before:
                passed = NodeState.SUSPECT if before is NodeState.READY else before
                # One decision may go through the drain of an empty node.
                reached = {*passed.exits}
                for state in ("Cordoned", "Draining"):
                    if state in reached:
                        reached.update(NodeState(state).exits)
                assert after.value in reached, f"{name}: {before} -> {after}"
        self.count_windows()

    def count_windows(self) -> None:
        world, size = self.world, len(self.world.nodes)
        granted = [parse_time(each.at) for each in world.said("Grant")]
        for window, share in SHARES:
            within = sum(at > world.now - window for at in granted)
            assert within <= max(1, int(size * share)), f"{within} of {size} in {window} s"
        out = {node.metadata.uid for name, node in world.nodes.items() if world.is_tainted(name)}
        booked = world.fleet.status.repairs if world.fleet is not None else ()
        assert out <= {each.uid for each in booked}, "a node is out that is not booked"

    def calm(self) -> None:
        """Once faults stop, every node comes back by itself: each state has a way out."""
        world = self.world
        world.api_error_share = 0.0
        for found in self.faults.values():
            found.clear()
        world.used.clear()
        for _ in range(60):
            self.report()
            world.step(60)
            self.check()
        assert set(map(world.state, world.nodes)) == {NodeState.READY}
        assert world.fleet is None or world.fleet.status.repairs == ()


@cache
def lived(number: int) -> History:
    history = History(number)
    history.run()
    return history


@pytest.mark.parametrize("number", range(40))
def test_a_history_breaks_no_budget_no_cordon_and_no_state_is_for_ever(number: int) -> None:
    lived(number)


def test_the_histories_take_nodes_out_and_meet_storms() -> None:
    """The property above would hold if nothing ever happened."""
    out, holds, states = 0, set[str](), set[NodeState]()
    for number in range(20, 40):
        history = lived(number)
        out += len(history.world.went_out)
        holds |= {each.reason for each in history.world.said("Hold")}
        states |= {NodeState(e.action) for e in history.world.decided if e.action in _STATES}
    assert out > 20
    assert {"NodesSick", "ControlPlaneUnhealthy"} <= holds
    assert {NodeState.RESETTING, NodeState.ASKING, NodeState.VALIDATING} <= states


_STATES = {state.value for state in NodeState}


def test_a_budget_that_is_ignored_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: without the ledger, the count of the windows above fails."""
    from fairlead.decide.removal.ledger import RailsAccount

    monkeypatch.setattr(RailsAccount, "excess", lambda *_: None)

    def histories() -> None:
        for number in range(20):
            History(number).run()

    with pytest.raises(AssertionError, match=r"of \d+ in"):
        histories()
