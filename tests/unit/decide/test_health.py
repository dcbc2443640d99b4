"""From a report to a decision: states, deadlines, the ladder, and who is asked when."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from msgspec.structs import replace
from tests.unit.decide.health_world import ACTING, HealthWorld, fault

from fairlead.api.cluster.node_report import (
    TUNING_RESTART,
    Action,
    AgentAnswer,
    ReportedFault,
    ReportedSource,
    RequestAnswer,
    Severity,
    SourceState,
)
from fairlead.api.values.times import format_time, parse_time
from fairlead.decide.health.actions import SetRecord
from fairlead.decide.health.cycle import decide_health
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.removal.removals import RemovalRule
from fairlead.model.health.node_record import NodeState, provider_restart_of
from fairlead.model.health.windows import drain_of
from fairlead.testing.builders import EPOCH, make_node, make_pod


def seeing(**options: object) -> HealthWorld:
    """Return a world whose controller has seen clearly for a while."""
    world = HealthWorld(**options)  # type: ignore[arg-type]
    world.run(30)
    return world


def test_a_critical_fault_is_seen_twice_and_then_closes_its_node_alone() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    world.step(1)
    assert world.out() == [], "it may be gone in a moment"
    world.run(10, step=2)
    assert world.out() == ["n03"]
    record = world.record("n03")
    assert record is not None
    assert record.reason == "Critical gpu-xid 0000:3b:00 79; it is empty"
    assert not world.nodes["n03"].spec.unschedulable, "that field is a person's"


def test_each_fault_is_confirmed_in_its_own_time_whatever_begins_meanwhile() -> None:
    world = seeing()
    wait = world.policy.confirm_seconds
    waits: list[float] = []
    for name in ("n03", "n07"):
        world.tell(name, fault(at=world.now))
        decision, _ = decide_health(world.view(), world.policy, world.memory)
        assert decision.wake_at is not None
        waits.append(decision.wake_at - world.now)
        world.now += 0.8 * wait
    assert waits == [pytest.approx(wait, abs=0.1), pytest.approx(0.2 * wait, abs=0.1)]


def test_a_fault_that_is_gone_again_closes_nothing() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    world.step(1)
    world.tell("n03")
    world.run(60)
    assert world.went_out == []
    assert world.fleet is None or world.fleet.status.removed == ()


def test_without_a_rule_that_acts_it_is_only_said_what_would_be_done_and_once() -> None:
    world = seeing(policy=HealthPolicy(enabled=True, act_on=("ib-port",)))
    world.tell("n03", fault(at=world.now))
    world.run(60)
    assert world.out() == []
    assert [each.facts["node"] for each in world.said("WouldCordon")] == ["n03"]
    assert world.said("WouldCordon")[0].facts["rule"] == "gpu-xid"
    world.tell("n04", fault("ib-port", at=world.now))
    world.run(60)
    assert world.out() == ["n04"], "the rule that acts goes on acting"


def test_the_deadline_of_the_drain_follows_from_how_bad_the_fault_is() -> None:
    for severity, seconds in (
        (Severity.CRITICAL, 600), (Severity.WARNING, 86_400), (Severity.INFO, 604_800),
    ):  # fmt: skip
        world = seeing()
        first = world.now - 30
        world.used.add("n03")
        world.tell("n03", fault(severity=severity, at=first))
        world.run(20)
        drain = drain_of(world.nodes["n03"].metadata.annotations)
        assert drain is not None
        assert drain.start == first + seconds


def test_what_asks_for_nothing_and_is_not_critical_closes_nothing() -> None:
    world = seeing()
    world.tell("n03", fault(severity=Severity.WARNING, action=Action.WATCH, at=world.now))
    world.run(60)
    assert world.out() == []


def test_a_first_sight_of_the_future_or_from_before_the_node_cannot_move_the_deadline() -> None:
    for at in (EPOCH - 10 * 86_400, EPOCH + 10 * 86_400):
        world = seeing()
        world.used.add("n03")
        world.tell("n03", fault(at=at, severity=Severity.WARNING))
        world.run(20)
        drain = drain_of(world.nodes["n03"].metadata.annotations)
        assert drain is not None
        assert EPOCH + 86_400 <= drain.start <= world.now + 86_400
        before = drain.start
        world.run(600)
        drain = drain_of(world.nodes["n03"].metadata.annotations)
        assert drain is not None
        assert drain.start == before, "time that passes moves it no more"


def test_two_faults_that_alternate_both_come_to_their_deadline() -> None:
    world = seeing()
    world.used.add("n03")
    first = world.now
    one = fault("gpu-ecc", severity=Severity.WARNING, at=first)
    other = fault("ib-port", severity=Severity.WARNING, at=first + 600)
    for turn in range(2 * 144):
        world.tell("n03", one if turn % 2 else other)
        world.step(300)
        record = world.record("n03")
        if record is not None and record.state is NodeState.DRAINING:
            break
    assert world.state("n03") is NodeState.DRAINING
    assert world.now <= first + 600 + 86_400


def test_pods_of_others_are_evicted_before_the_deadline_and_deleted_after_it() -> None:
    world = seeing()
    world.used.add("n03")
    world.pods["n03"] = [make_pod("notebook", node="n03")]
    world.tell("n03", fault(severity=Severity.WARNING, at=world.now))
    world.run(60)
    assert (world.state("n03"), world.evicted) == (NodeState.CORDONED, [])
    world.run(86_400 - 600, step=60)
    assert world.state("n03") is NodeState.DRAINING
    assert set(world.evicted) == {"notebook"}
    assert world.deleted == []
    world.run(600, step=60)
    assert set(world.deleted) == {"notebook"}


def test_an_empty_node_is_asked_to_reset_and_comes_back_when_that_helped() -> None:
    world = seeing()
    world.used.add("n03")
    world.tell("n03", fault(at=world.now))
    world.run(30)
    assert world.state("n03") is NodeState.DRAINING, "a critical fault leaves no time"
    world.used.clear()
    record = world.until("n03", NodeState.RESETTING)
    assert record.request is not None
    assert (record.request.action, record.request.components) == (
        Action.RESET_GPU, ("0000:3b:00",),
    )  # fmt: skip
    world.tell("n03", answered=RequestAnswer(record.request.id, AgentAnswer.DONE))
    world.until("n03", NodeState.VALIDATING)
    assert world.is_tainted("n03")
    world.run(55)
    assert world.is_tainted("n03"), "it is looked at for a minute first"
    world.until("n03", NodeState.READY, seconds=20)
    assert world.out() == []
    assert world.fleet is not None
    world.run(10)
    assert world.fleet.status.repairs == ()
    assert len(world.fleet.status.removed) == 1, "a window of a day still counts it"


def test_what_a_reset_did_not_help_is_rebooted_twice_replaced_and_then_left_to_a_person() -> None:
    world = seeing(replaceable=True)
    first = world.now
    world.tell("n03", fault(at=first))
    states: list[NodeState] = []
    boot = 1
    while world.state("n03") is not NodeState.ASKING and world.now < first + 3 * 86_400:
        record = world.record("n03")
        answered = None
        if record is not None and record.request is not None:
            answered = RequestAnswer(record.request.id, AgentAnswer.ACCEPTED)
            if record.request.action is Action.REBOOT:
                boot += 1
        world.tell("n03", fault(at=first), boot=f"boot-{boot}", answered=answered)
        world.step(30)
        if not states or states[-1] is not world.state("n03"):
            states.append(world.state("n03"))
    tries = world.record("n03")
    assert tries is not None
    assert [each.action for each in tries.tries] == [
        Action.RESET_GPU, Action.REBOOT, Action.REBOOT, Action.REPLACE,
    ]  # fmt: skip
    assert states[-2:] == [NodeState.REPLACING, NodeState.ASKING], "nobody replaced it in time"


def test_where_no_agent_does_it_a_person_is_asked_and_no_machine_is_replaced() -> None:
    world = seeing(replaceable=True)
    world.tell("n03", fault(at=world.now))
    record = world.until("n03", NodeState.ASKING)
    assert record.reason.startswith("no agent carries out ResetGPU there")
    assert not any(each.action is Action.REPLACE for each in record.tries)


def test_a_request_that_the_agent_refuses_leads_to_the_next_rung() -> None:
    world = seeing()
    at = world.now
    world.tell("n03", fault(at=at))
    record = world.until("n03", NodeState.RESETTING)
    assert record.request is not None
    refused = RequestAnswer(
        record.request.id, AgentAnswer.REFUSED, "persistence mode holds the device"
    )
    world.tell("n03", fault(at=at), answered=refused)
    record = world.until("n03", NodeState.REBOOTING, seconds=10)
    assert "persistence mode holds the device" in record.reason


def test_a_reset_that_failed_leads_to_a_reboot_and_one_that_failed_to_another() -> None:
    world = seeing()
    at = world.now
    for state, then in (
        (NodeState.RESETTING, NodeState.REBOOTING), (NodeState.REBOOTING, NodeState.REBOOTING),
        (NodeState.REBOOTING, NodeState.ASKING),
    ):  # fmt: skip
        world.tell("n03", fault(at=at))
        record = world.until("n03", state)
        assert record.request is not None
        failed = RequestAnswer(record.request.id, AgentAnswer.FAILED, "it failed: exit code 3")
        world.tell("n03", fault(at=at), answered=failed)
        world.step()
        after = world.record("n03")
        assert after is not None
        assert (after.state, "exit code 3" in after.reason) == (then, True)
        assert after.request != record.request


def test_what_the_agent_may_not_do_is_left_to_a_person_and_no_machine_is_replaced() -> None:
    world = seeing()
    world.replaceable = True
    at = world.now
    world.tell("n03", fault(at=at, action=Action.REBOOT))
    record = world.until("n03", NodeState.REBOOTING)
    assert record.request is not None
    said = RequestAnswer(record.request.id, AgentAnswer.FORBIDDEN, "pods run here: ml/a")
    world.tell("n03", fault(at=at, action=Action.REBOOT), answered=said)
    record = world.until("n03", NodeState.ASKING, seconds=10)
    assert "the agent may not: pods run here: ml/a" in record.reason


def _boots(world: HealthWorld, name: str, boot_id: str) -> None:
    """Let the kubelet of a node say which boot it is."""
    node = world.nodes[name]
    info = replace(node.status.node_info, boot_id=boot_id)
    world.nodes[name] = replace(node, status=replace(node.status, node_info=info))


def test_where_the_agent_is_silent_the_provider_restarts_the_machine() -> None:
    world = seeing()
    world.restartable = world.replaceable = True
    _boots(world, "n03", "k1")
    world.used.add("n03")  # until its agent has been silent for long
    world.tell("n03", fault(at=world.now, severity=Severity.WARNING))
    world.until("n03", NodeState.CORDONED)
    silent = world.reports["n03"]
    for _ in range(400):
        world.step()
        world.confirm()
        world.reports["n03"] = silent
        if world.now > parse_time(silent.status.observed_at) + 1860:
            world.used.clear()
        if world.state("n03") is NodeState.REBOOTING:
            break
    record = world.record("n03")
    assert record is not None
    assert record.request is not None
    assert (record.request.action, record.request.is_by_provider) == (Action.REBOOT, True)
    asked = provider_restart_of(world.nodes["n03"].metadata.annotations)
    assert asked is not None
    assert (asked.id, asked.boot_id) == (record.request.id, "k1")
    _boots(world, "n03", "k2")
    world.reports["n03"] = silent
    world.step()
    again = world.record("n03")
    assert again is not None
    assert again.request is not None
    assert again.request.id != record.request.id, "another boot, and the fault is still there"


def test_an_agent_that_is_heard_is_asked_itself() -> None:
    world = seeing()
    world.restartable = True
    world.tell("n03", fault(at=world.now, action=Action.REBOOT))
    record = world.until("n03", NodeState.REBOOTING)
    assert record.request is not None
    assert not record.request.is_by_provider
    assert provider_restart_of(world.nodes["n03"].metadata.annotations) is None


def test_an_answer_to_an_earlier_request_is_none_to_this_one() -> None:
    world = seeing()
    at = world.now
    world.tell("n03", fault(at=at))
    world.until("n03", NodeState.RESETTING)
    world.tell("n03", fault(at=at), answered=RequestAnswer("of before", AgentAnswer.REFUSED))
    world.run(60)
    assert world.state("n03") is NodeState.RESETTING


def test_a_fault_that_comes_back_after_each_reboot_ends_with_a_person() -> None:
    world = seeing()
    boot, resets = 1, 0
    for _ in range(12):
        world.tell("n03", fault(at=world.now, action=Action.REBOOT), boot=f"boot-{boot}")
        world.run(30)
        if world.state("n03") is NodeState.ASKING:
            break
        boot += 1
        resets += 1
        world.tell("n03", boot=f"boot-{boot}")
        world.run(7200, step=30)
        assert world.state("n03") is NodeState.READY
    assert world.state("n03") is NodeState.ASKING
    assert resets == 2


def test_a_person_who_mended_the_node_ends_the_asking_and_the_count_of_tries() -> None:
    world = seeing()
    at = world.now
    world.tell("n03", fault(at=at, action=Action.ASK_PERSON))
    world.until("n03", NodeState.ASKING)
    world.run(300)
    world.annotate("n03", REPAIRED=format_time(world.now))
    world.until("n03", NodeState.READY)
    assert world.out() == []
    world.tell("n03", fault(at=at, last=world.now, action=Action.ASK_PERSON))
    world.run(7200, step=60)
    assert world.is_tainted("n03"), "it was seen again since"


def test_a_node_that_nobody_watches_does_not_come_back_by_itself() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    world.until("n03", NodeState.RESETTING)
    blind = ReportedSource("gpus", SourceState.HUNG, "a read hangs", ("gpu-xid",))
    world.tell("n03", sources=[blind])
    world.until("n03", NodeState.VALIDATING)
    record = world.until("n03", NodeState.ASKING, seconds=4000)
    assert record.reason == "no working agent says that it is healthy"
    world.tell("n03")
    world.until("n03", NodeState.READY)


def test_a_cordon_of_a_person_outlives_a_fault_that_comes_and_goes() -> None:
    world = seeing()
    world.cordon("n03")
    world.tell("n03", fault(at=world.now))
    world.until("n03", NodeState.RESETTING)
    world.tell("n03")
    world.until("n03", NodeState.READY)
    assert world.nodes["n03"].spec.unschedulable


def test_the_end_of_one_session_does_not_end_the_next_one() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    first = world.until("n03", NodeState.RESETTING)
    world.tell("n03")
    world.until("n03", NodeState.READY)
    world.run(3600, step=60)
    world.tell("n03", fault("ib-port", at=world.now, action=Action.REBOOT))
    second = world.until("n03", NodeState.REBOOTING)
    assert first.request is not None
    assert second.request is not None
    assert second.session == first.session + 1
    late = RequestAnswer(first.request.id, AgentAnswer.DONE)
    world.tell("n03", fault("ib-port", at=world.now, action=Action.REBOOT), answered=late)
    world.run(60)
    assert world.state("n03") is NodeState.REBOOTING


def test_another_process_does_not_ask_a_node_that_is_back_to_reboot() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now, action=Action.REBOOT))
    world.until("n03", NodeState.REBOOTING)
    world.tell("n03", boot="boot-2")
    world.until("n03", NodeState.READY)
    world.restart()
    world.run(3600, step=60)
    assert [name for _, name in world.went_out] == ["n03"]
    assert world.state("n03") is NodeState.READY


def test_a_node_that_is_made_again_inherits_neither_faults_nor_drains() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    world.run(30)
    assert world.out() == ["n03"]
    world.nodes["n03"] = make_node("n03", uid="another machine")
    world.run(120)
    assert world.out() == [], "the report is of the machine before"
    assert world.fleet is not None
    assert world.fleet.status.repairs == ()
    world = seeing()  # where the budgets would let one go
    world.tell("n05", fault(at=world.now), uid="the machine before")
    world.run(120)
    assert world.out() == []


def test_a_check_that_was_removed_leaves_no_node_out() -> None:
    world = seeing()
    world.tell("n03", fault("removed-check", at=world.now, action=Action.ASK_PERSON))
    world.until("n03", NodeState.ASKING)
    world.tell("n03")  # the agent ends the faults of checks that are gone
    world.until("n03", NodeState.READY)


def test_a_node_is_taken_out_only_after_it_was_booked() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    for _ in range(10):
        world.now += 5
        for action in world.decide():
            if isinstance(action, SetRecord):
                assert world.fleet is not None
                assert [each.node for each in world.fleet.status.repairs] == ["n03"]
            world.perform(action)
    assert world.out() == ["n03"]


def test_a_controller_that_dies_between_the_books_and_the_node_goes_on_there() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    while world.fleet is None or not world.fleet.status.repairs:
        world.step()
    assert world.out() == []
    world.restart()
    world.run(60)
    assert world.out() == ["n03"]
    assert sum(each.count for each in world.fleet.status.removed) == 1


def test_a_node_that_is_out_without_an_entry_in_the_books_gets_one_and_no_second_charge() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    world.run(30)
    assert world.fleet is not None
    lost = replace(world.fleet.status, repairs=())
    world.fleet = replace(world.fleet, status=lost)
    world.run(10)
    assert [each.node for each in world.fleet.status.repairs] == ["n03"]
    assert sum(each.count for each in world.fleet.status.removed) == 1


def test_only_so_many_go_at_a_time_and_the_rest_follows() -> None:
    world = seeing(count=100)
    for index in range(10):
        world.tell(f"n{index:02}", fault(at=world.now, action=Action.ASK_PERSON))
    world.run(120)
    # 2 % of the fleet in five minutes, and 5 % in an hour.
    assert len(world.out()) == 2
    world.run(3600, step=30)
    assert len(world.out()) == 5


def test_a_restart_of_the_controller_does_not_empty_the_windows() -> None:
    world = seeing(count=100)
    for index in range(10):
        world.tell(f"n{index:02}", fault(at=world.now, action=Action.ASK_PERSON))
    for _ in range(20):
        world.restart()
        world.run(50)
    assert len(world.out()) <= 5
    assert world.out()


def test_a_storm_in_which_all_nodes_look_sick_takes_nothing_and_thaws_by_itself() -> None:
    world = seeing(count=40)
    for name in world.nodes:
        world.tell(name, fault(at=world.now))
    world.run(3 * 86_400, step=300)
    assert world.went_out == []
    assert "NodesSick" in {each.reason for each in world.said("Hold")}
    for name in world.nodes:
        world.tell(name)
    world.run(60)
    assert world.said("Resume")
    assert world.went_out == [], "nothing is left of it"
    world.tell("n03", fault(at=world.now))
    world.run(30)
    assert world.out() == ["n03"]


def test_nothing_moves_while_the_api_server_fails_but_what_comes_back() -> None:
    world = seeing()
    world.used.update(("n03", "n05"))
    world.pods["n03"] = [make_pod("notebook", node="n03")]
    world.tell("n03", fault(at=world.now))
    world.run(30)
    world.evicted.clear()
    world.api_error_share = 0.5
    world.tell("n05", fault(at=world.now))
    world.run(7200, step=60)
    assert (world.out(), world.evicted, world.deleted) == (["n03"], [], [])
    assert world.state("n03") is NodeState.DRAINING
    world.tell("n03")
    world.until("n03", NodeState.READY)
    world.api_error_share = 0.0
    world.run(60)
    assert world.out() == ["n05"]


def test_an_override_lets_named_nodes_go_beyond_the_budgets() -> None:
    from fairlead.api.cluster.fleet import FleetSpec, Override

    world = seeing(count=20)
    for index in range(3):
        world.tell(f"n{index:02}", fault(at=world.now, action=Action.ASK_PERSON))
    world.run(60)
    assert len(world.out()) == 1
    assert world.fleet is not None
    late = format_time(world.now + 3600)
    permit = Override("now", ("n00", "n01", "n02"), late, "ann", "move of rack 7")
    world.fleet = replace(world.fleet, spec=FleetSpec(overrides=(permit,)))
    world.run(60)
    assert len(world.out()) == 3


def test_deadlines_in_settings_count() -> None:
    world = seeing(policy=replaced(ACTING, critical_drain_seconds=120, eviction_seconds=60))
    world.used.add("n03")
    at = world.now
    world.tell("n03", fault(at=at))
    world.run(20)
    record = world.record("n03")
    assert record is not None
    assert parse_time(record.drain.partition("/")[2]) == at + 120


def test_marks_without_a_record_that_can_be_read_do_not_stay_for_ever() -> None:
    world = seeing()
    world.tell("n03", fault(at=world.now))
    world.until("n03", NodeState.RESETTING)
    for text in (None, "half a rec", '{"state":"Asking","enteredAt":"soon"}'):
        world.annotate("n03", HEALTH=text)
        assert world.record("n03") is None
        world.step()
        world.run(20)
        assert world.is_tainted("n03"), "the fault is there yet"
        assert world.record("n03") is not None
    world.annotate("n03", HEALTH=None)
    world.tell("n03")
    world.until("n03", NodeState.VALIDATING, seconds=10)
    world.until("n03", NodeState.READY)
    assert world.out() == []


def tuning(world: HealthWorld) -> ReportedFault:
    """Return that settings of a profile wait for a start of the kernel."""
    return fault(TUNING_RESTART, severity=Severity.INFO, action=Action.REBOOT, at=world.now,
                 component="kernel", codes=())  # fmt: skip


def test_reboots_for_a_profile_are_no_repairs_and_never_lead_to_another_machine() -> None:
    world = seeing(replaceable=True)
    for change in range(1, 5):
        world.tell("n03", tuning(world), boot=f"boot-{change}")
        record = world.until("n03", NodeState.REBOOTING)
        assert record.request is not None
        assert not record.request.takes_back
        world.tell("n03", boot=f"boot-{change + 1}")
        world.until("n03", NodeState.READY)
    world.tell("n03", fault(at=world.now), boot="boot-5")
    assert world.until("n03", NodeState.RESETTING), "nor count they for the next fault"
    assert world.fleet is not None
    assert not any(each.action is Action.REBOOT for each in world.fleet.status.tried)


def test_a_reboot_after_which_a_profile_still_waits_is_left_to_a_person() -> None:
    world = seeing(replaceable=True)
    world.tell("n03", tuning(world))
    world.until("n03", NodeState.REBOOTING)
    world.tell("n03", tuning(world), boot="boot-2")
    world.until("n03", NodeState.ASKING)
    assert world.said("Replacing") == []


def test_a_change_with_which_a_node_is_sick_is_taken_back_and_the_roll_out_stops() -> None:
    world = seeing(replaceable=True, count=60)
    world.tell("n03", tuning(world))
    world.until("n03", NodeState.REBOOTING)
    world.tell("n03", boot="boot-2")
    world.until("n03", NodeState.VALIDATING)
    world.tell("n03", fault(at=world.now), boot="boot-2")
    record = world.until("n03", NodeState.REBOOTING)
    assert record.request is not None
    assert record.request.takes_back
    assert record.reason.startswith("the change of the tuning profile is taken back: Critical")
    world.tell("n03", boot="boot-3")
    world.until("n03", NodeState.READY)

    for name in ("n05", "n06"):
        world.tell(name, tuning(world))
    world.restart()  # another leader knows it from the records
    world.run(3600, step=60)
    assert world.out() == []
    assert world.report.held == {RemovalRule.TAKEN_BACK: 2}
    (said,) = {each.message for each in world.said("Stopped")}
    assert "taken back from n03: change it, then fairlead node repair n03" in said
    world.tell("n07", fault(at=world.now))
    world.run(60)
    assert world.out() == ["n07"], "repairs go on"
    world.annotate("n03", REPAIRED=format_time(world.now))
    world.run(7200, step=60)
    assert world.out() == ["n05", "n06", "n07"]


def test_what_is_cosmetic_on_every_node_holds_no_critical_fault_back() -> None:
    world = seeing(count=40)
    for name in world.nodes:
        world.tell(name, fault("tuning", severity=Severity.INFO, at=world.now))
    world.tell("n03", fault(at=world.now))
    world.run(60)
    assert world.out() == ["n03"], "and it goes first"
