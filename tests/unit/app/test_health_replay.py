"""Recorded faults, decided about again: what another policy would have done, by node and in sum."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.unit.decide.health_world import ACTING, Action, HealthWorld, Severity, fault

from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.cluster.node_report import AgentAnswer, RequestAnswer
from fairlead.api.values.times import parse_time
from fairlead.app.queries.health_replay import FactsError, PolicyComparison, compared, facts_of
from fairlead.app.queries.messages import FleetLine
from fairlead.cli.app import run
from fairlead.decide.health.policy import HealthPolicy
from fairlead.model.health.node_record import NodeState

SHADOW = HealthPolicy(enabled=True)


def recorded(world: HealthWorld) -> bytes:
    """Return what `fairlead fleet history -o json` prints of a world: the latest record first."""
    decided: list[PoolDecision] = world.decided
    lines = [
        FleetLine(round(parse_time(each.at) * 1000), "", each.action, each.reason, each.message,
                  each.facts)
        for each in decided
    ]  # fmt: skip
    return msgspec.json.encode({"kind": "List", "items": lines[::-1]})


def tried(world: HealthWorld, policy: HealthPolicy) -> PolicyComparison:
    return compared(facts_of(recorded(world)), policy)


def actions(found: PolicyComparison, name: str) -> list[str]:
    return [each.action for each in found.nodes[name][1]]


def test_a_fault_of_a_rule_in_shadow_would_have_been_repaired() -> None:
    world = HealthWorld(policy=SHADOW)
    world.tell("n03", fault(at=world.now))
    world.run(7200, 60)
    assert world.out() == []
    found = tried(world, ACTING)
    assert actions(found, "n03") == ["Cordon", "Resetting", "Validating", "Ready"]
    assert found.nodes["n03"][0] == []
    before, after = found.tallies
    assert (before.cordons, after.cordons, after.resets, after.in_vain) == (0, 1, 1, 0)
    assert 0.05 < after.node_hours < 0.2


def test_the_policy_that_was_in_force_does_what_was_done() -> None:
    """What was done by the controller, and what the replay does, is the same: states and order."""
    world = HealthWorld()
    broken = fault(at=world.now, action=Action.REBOOT)
    world.tell("n07", broken)
    world.run(30)
    request = world.until("n07", NodeState.REBOOTING).request
    assert request is not None
    world.run(300)
    world.tell("n07", boot="boot-2", answered=RequestAnswer(request.id, AgentAnswer.DONE))
    world.until("n07", NodeState.READY)
    world.run(120)
    found = tried(world, ACTING)
    assert [each.action for each in found.before] == [each.action for each in found.after]
    assert found.nodes == {}
    assert found.tallies[0].reboots == found.tallies[1].reboots == 1


def test_a_node_that_comes_back_without_a_repair_was_taken_out_in_vain() -> None:
    world = HealthWorld(policy=SHADOW)
    world.used.add("n05")
    world.tell("n05", fault("ib-port", severity=Severity.WARNING, action=Action.REBOOT,
                            at=world.now))  # fmt: skip
    world.run(3600, 60)
    world.tell("n05")
    world.run(3600, 60)
    found = tried(world, ACTING)
    assert actions(found, "n05") == ["Cordon", "Validating", "Ready"]
    after = found.tallies[1]
    assert (after.cordons, after.in_use, after.in_vain) == (1, 1, 1)
    sooner = tried(world, replace(ACTING, degraded_drain_seconds=1800))
    assert actions(sooner, "n05") == ["Cordon", "Draining", "Rebooting", "Validating", "Ready"]
    assert sooner.tallies[1].in_vain == 0


def test_what_a_reboot_does_not_end_is_replaced_where_a_pool_can() -> None:
    world = HealthWorld(policy=SHADOW, replaceable=True)
    world.tell("n02", fault("gpu-ecc", action=Action.REPLACE, at=world.now))
    world.run(7200, 60)
    found = tried(world, ACTING)
    assert actions(found, "n02") == ["Cordon", "Replacing", "Replaced"]
    assert found.tallies[1].replacements == 1


def test_a_storm_takes_nothing_in_a_replay_either() -> None:
    world = HealthWorld(policy=SHADOW)
    for name in world.nodes:
        world.tell(name, fault(at=world.now))
    world.run(1800, 60)
    found = tried(world, ACTING)
    assert found.nodes == {}
    assert (found.tallies[1].cordons, found.tallies[1].holds) == (0, 1)


def test_a_node_that_changes_its_faults_all_the_time_has_one_record_a_minute() -> None:
    world = HealthWorld(policy=SHADOW)
    for number in range(120):
        world.tell("n01", fault(codes=(str(number),), at=world.now))
        world.step(5)
    assert 9 <= len(world.said("Faults")) <= 11


def test_a_new_process_records_again_what_is_so(tmp_path: Path) -> None:
    world = HealthWorld(policy=SHADOW)
    world.tell("n01", fault(at=world.now))
    world.run(60)
    world.restart()
    world.run(60)
    assert len(world.said("Faults")) == 2
    found = tried(world, ACTING)
    assert actions(found, "n01")[0] == "Cordon"


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        (b"{", "", "no list of records: Input data was truncated"),
        (b"[]", "", "no list of records: Expected `object`, got `array`"),
        (b'{"items":[]}', "items", "none of its 0 records is of the faults of a node"),
        (b'{"items":[{"atMs":1,"pool":"","action":"Faults","reason":"x","facts":{"uid":"u"}}]}',
         "items[0]", "Object missing required field `node`"),
        (b'{"items":[{"atMs":1,"pool":"","action":"Faults","reason":"x","facts":'
         b'{"node":"n","uid":"u","faults":"[{}]"}}]}',
         "items[0]", "Object missing required field `check`"),
    ],
)  # fmt: skip
def test_a_file_without_facts_is_refused(text: bytes, where: str, why: str) -> None:
    with pytest.raises(FactsError) as caught:
        facts_of(text)
    assert caught.value.where == where
    assert caught.value.why.startswith(why)


def test_the_command_shows_nodes_and_sums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = HealthWorld(policy=SHADOW)
    world.tell("n03", fault(at=world.now))
    world.run(7200, 60)
    facts, policy = tmp_path / "facts.json", tmp_path / "new.yaml"
    facts.write_bytes(recorded(world))
    policy.write_text("health: {enabled: true, actOn: [gpu-xid]}\n")
    command = ["health", "replay", str(facts), "--policy", str(policy)]
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert "n03   stays in service  Cordon 2026-01-01T01:01:07Z, Resetting, Ready\n" in shown
    assert "nodes taken out" in shown
    assert run([*command, "-o", "json", "--than", str(policy)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["nodes"] == []
    assert said["before"] == said["after"]
    assert said["after"]["cordons"] == 1
    facts.write_text("{}")
    assert run(command) == 2
    error = capsys.readouterr().err
    assert "E804" in error
    assert "fairlead fleet history --since 30d" in error
    policy.write_text("health: {actOn: [GPU]}\n")
    assert run(command) == 2
