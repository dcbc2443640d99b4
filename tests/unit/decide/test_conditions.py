"""Conditions that others state of a Node: which are faults, whose clock they have, what acts."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace
from tests.unit.decide.health_world import ACTING, HealthWorld

from fairlead.api.cluster.node_report import Action, Severity
from fairlead.api.kubernetes.core import Node, NodeCondition
from fairlead.api.names import REPAIRED
from fairlead.api.values.times import format_time
from fairlead.decide.health.conditions import (
    CONDITION_RULES,
    CONDITIONS_MAX,
    ConditionRule,
    ConditionRules,
)
from fairlead.decide.health.need import open_faults
from fairlead.decide.health.settings import (
    ConditionSettings,
    ConditionStatus,
)
from fairlead.model.health.node_record import NodeState
from fairlead.testing.builders import EPOCH, make_node

#: In the words of their writers: NVSentinel's platform connector, node-problem-detector, EKS.
NVSENTINEL = NodeCondition(
    "GpuXidError", "True", "GpuXidErrorIsNotHealthy",
    "ErrorCode:79 gpu:0 XID error occured Recommended Action=NODE_REBOOT;",
)  # fmt: skip
DEADLOCK = NodeCondition("KernelDeadlock", "True", "DockerHung", "task docker:20744 blocked")
#: Without rules of the cluster.
SHIPPED = ConditionRules()
GPU_OF_EKS = NodeCondition("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "XID-79")


def stating(*conditions: NodeCondition, ready_at: float = EPOCH) -> Node:
    """Return a node with its kubelet's conditions and these, which began an hour ago."""
    node, at = make_node("n"), format_time(EPOCH - 3600)
    beat = format_time(ready_at)
    own = (
        NodeCondition("Ready", "True", "KubeletReady", "", beat, at),
        NodeCondition("DiskPressure", "True", "KubeletHasDiskPressure", "", beat, at),
    )
    given = tuple(replace(each, last_transition_time=at) for each in conditions)
    return replace(node, status=replace(node.status, conditions=(*own, *given)))


def _stated(rule: ConditionRule, status: str) -> NodeCondition:
    kind, reason = rule.type.replace("*", "GpuMemWatch"), rule.reason.replace("*", "Some")
    return NodeCondition(kind, status, reason, "words")


@pytest.mark.parametrize("rule", CONDITION_RULES, ids=lambda rule: rule.type)
def test_each_rule_that_is_shipped_has_its_fault_and_none_where_the_condition_is_good(
    rule: ConditionRule,
) -> None:
    (fault,) = SHIPPED.faults_of(stating(_stated(rule, rule.status)))
    assert (fault.check, fault.severity, fault.action) == (rule.check, rule.severity, rule.action)
    assert fault.check.startswith("condition-")
    assert fault.first_seen == fault.last_seen == format_time(EPOCH - 3600)
    good = {"True": "False", "False": "True"}[rule.status]
    for status in (good, "Unknown"):
        assert SHIPPED.faults_of(stating(_stated(rule, status))) == ()


def test_neither_kubelets_own_conditions_nor_those_of_unknown_types_are_faults() -> None:
    unknown = NodeCondition("GatewayReady", "True", "Some", "")
    assert SHIPPED.faults_of(stating(unknown)) == ()
    assert len(SHIPPED.faults_of(stating(unknown, DEADLOCK))) == 1


@pytest.mark.parametrize(
    ("said", "severity", "action"),
    [
        ("Recommended Action=NONE;", Severity.WARNING, Action.WATCH),
        ("Recommended Action=COMPONENT_RESET;", Severity.CRITICAL, Action.REBOOT),
        ("Recommended Action=RESTART_BM;", Severity.CRITICAL, Action.REBOOT),
        ("Recommended Action=REPLACE_VM;", Severity.CRITICAL, Action.REPLACE),
        ("Recommended Action=CONTACT_SUPPORT;", Severity.CRITICAL, Action.ASK_PERSON),
        ("no action", Severity.CRITICAL, Action.ASK_PERSON),
    ],
)
def test_nvsentinel_says_itself_what_should_be_done(
    said: str, severity: Severity, action: Action
) -> None:
    (fault,) = SHIPPED.faults_of(stating(replace(NVSENTINEL, message=said)))
    assert (fault.severity, fault.action) == (severity, action)


def test_the_condition_of_a_monitor_that_was_removed_counts_no_more() -> None:
    for seconds, count in ((1800, 1), (1801, 0)):
        beat = format_time(EPOCH - seconds)
        node = stating(replace(DEADLOCK, last_heartbeat_time=beat), ready_at=EPOCH)
        assert len(SHIPPED.faults_of(node)) == count
    node = stating(replace(NVSENTINEL, last_heartbeat_time=format_time(0)))
    assert len(SHIPPED.faults_of(node)) == 1, "NVSentinel confirms nothing"


def test_texts_and_numbers_of_conditions_are_bounded() -> None:
    many = [replace(NVSENTINEL, type=f"T{i}" * 99, message="x" * 9999) for i in range(99)]
    found = SHIPPED.faults_of(stating(*many))
    assert len(found) == CONDITIONS_MAX
    assert (len(found[0].component), len(found[0].evidence)) == (160, 240)


def test_rules_of_the_cluster_go_before_those_that_are_shipped() -> None:
    own = (
        ConditionSettings("KernelDeadlock", reason="Docker*", severity=Severity.INFO,
                          action=Action.NONE),
        ConditionSettings("RackCool", ConditionStatus.FALSE, check="condition-rack",
                          action=Action.ASK_PERSON),
    )  # fmt: skip
    rules = ConditionRules(each.rule() for each in own)
    rack = NodeCondition("RackCool", "False", "", "")
    (fault,) = rules.faults_of(stating(DEADLOCK, rack))
    assert (fault.words, fault.action) == ("condition-rack RackCool", Action.ASK_PERSON)
    other = replace(DEADLOCK, reason="KernelOops")
    assert [f.check for f in rules.faults_of(stating(other))] == ["condition-kernel"]


def test_a_person_who_mended_a_node_is_believed_until_the_condition_comes_again() -> None:
    node = stating(DEADLOCK)
    for seconds, count in ((-7200, 1), (0, 0)):
        notes = {REPAIRED: format_time(EPOCH + seconds)}
        said = replace(node, metadata=replace(node.metadata, annotations=notes))
        found = SHIPPED.faults_of(said)
        assert len(open_faults(said, None, (), found)) == count


def _world(*act_on: str) -> HealthWorld:
    world = HealthWorld(policy=replaced(ACTING, act_on=act_on))
    world.run(30)
    return world


def _state(world: HealthWorld, name: str, *conditions: NodeCondition) -> None:
    at, node = format_time(world.now), world.nodes[name]
    given = tuple(replace(each, last_transition_time=at) for each in conditions)
    world.nodes[name] = replace(node, status=replace(node.status, conditions=given))


def test_a_condition_is_in_shadow_until_its_check_is_named_also_where_all_checks_act() -> None:
    world = _world("*")
    _state(world, "n03", DEADLOCK)
    world.run(60)
    assert world.out() == []
    assert [each.facts["rule"] for each in world.said("WouldCordon")] == ["condition-kernel"]


@pytest.mark.parametrize(
    ("stated", "check"),
    [(DEADLOCK, "condition-kernel"), (GPU_OF_EKS, "condition-gpu"), (NVSENTINEL, "condition-gpu")],
    ids=lambda value: value if isinstance(value, str) else value.type,
)
def test_a_node_goes_for_a_condition_and_comes_back_when_it_is_over(
    stated: NodeCondition, check: str
) -> None:
    world = _world(check)
    _state(world, "n03", stated)
    world.run(10, step=2)
    assert world.out() == ["n03"]
    record = world.record("n03")
    assert record is not None
    assert record.reason.startswith(f"Critical {check} {stated.type} {stated.reason}")
    _state(world, "n03")
    world.until("n03", NodeState.READY)
    assert world.out() == []


def test_a_condition_that_many_nodes_have_at_once_takes_none() -> None:
    world = _world("condition-kernel")
    for name in world.nodes:
        _state(world, name, DEADLOCK)
    world.run(60)
    assert world.out() == []
