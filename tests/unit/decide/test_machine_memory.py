"""What was tried on a machine counts under whatever name it comes back."""

from __future__ import annotations

from msgspec.structs import replace
from tests.unit.decide.health_world import Action, HealthWorld, fault

from fairlead.api.cluster.fleet import TRIED_MAX, MachineTry
from fairlead.api.values.times import format_time
from fairlead.decide.health.remembered.machine_memory import identities_of, remembered, with_tries
from fairlead.model.health.node_record import NodeRecord, NodeState, Try
from fairlead.testing.builders import EPOCH, make_node

WEEK = 7 * 86_400.0


class Machines(HealthWorld):
    """Nodes whose agents say which hardware they have."""

    def say(self, name: str, board: str, *faults: object, gpus: str = "", boot: str = "b1") -> None:
        self.tell(name, *faults, boot=boot)  # type: ignore[arg-type] # faults
        report = self.reports[name]
        status = replace(
            report.status, machine_id=board, hardware={"gpus": gpus} if gpus else {}
        )  # fmt: skip
        self.reports[name] = replace(report, status=status)

    def rename(self, old: str, new: str) -> None:
        """Let the machine of a node come back under another name."""
        del self.nodes[old], self.reports[old]
        self.nodes[new] = make_node(new)


def sick(world: Machines) -> object:
    return fault(at=world.now, action=Action.REBOOT)


def rebooting(board: str = "B7", gpus: str = "") -> Machines:
    """Return a world in which n03 was asked to reboot and then went away."""
    world = Machines(60, replaceable=True)
    world.run(15)
    world.say("n03", board, sick(world), gpus=gpus)
    world.until("n03", NodeState.REBOOTING)
    world.run(10)
    assert world.fleet is not None
    (row,) = world.fleet.status.tried
    assert (row.node, row.action) == ("n03", Action.REBOOT)
    return world


def test_a_bad_machine_that_comes_back_under_a_new_name_is_known() -> None:
    world = rebooting()
    world.rename("n03", "n77")
    world.say("n77", "B7", sick(world))
    record = world.until("n77", NodeState.REBOOTING)
    assert [each.action for each in record.tries] == [Action.REBOOT, Action.REBOOT]
    assert "the machine was repaired before, as node n03" in world.said("Cordon")[-1].message
    world.say("n77", "B7", sick(world), boot="b2")
    assert world.until("n77", NodeState.REPLACING, seconds=60), "two reboots did not cure it"


def test_the_gpus_of_the_host_tell_it_where_the_board_is_a_new_one() -> None:
    world = rebooting(gpus="8 cafe")
    world.rename("n03", "n77")
    world.say("n77", "another board", sick(world), gpus="8 cafe")
    assert len(world.until("n77", NodeState.REBOOTING).tries) == 2


def test_another_machine_of_another_name_begins_with_nothing() -> None:
    world = rebooting()
    world.rename("n03", "n77")
    world.say("n77", "B8", sick(world))
    assert len(world.until("n77", NodeState.REBOOTING).tries) == 1


def test_a_node_that_is_there_does_not_speak_for_the_machine_of_another() -> None:
    world = rebooting()  # n03 says that its board is B7, and so does n05
    world.say("n05", "B7", sick(world))
    record = world.until("n05", NodeState.REBOOTING)
    assert len(record.tries) == 1
    assert "repaired before" not in world.said("Cordon")[-1].message


def test_five_tries_under_any_names_lead_to_a_person() -> None:
    world = rebooting()
    assert world.fleet is not None
    status = world.fleet.status
    row = status.tried[0]
    more = tuple(
        replace(row, at=format_time(world.now - 3600.0 * number), node=f"old{number}", uid="u")
        for number in range(4)
    )  # fmt: skip
    world.fleet = replace(world.fleet, status=replace(status, tried=(row, *more)))
    world.rename("n03", "n77")
    world.say("n77", "B7", sick(world))
    assert "5 tries in 7 days" in world.until("n77", NodeState.ASKING).reason


def test_a_week_later_or_after_a_person_mended_it_nothing_is_remembered() -> None:
    node = make_node("n77")
    world = Machines(1)
    world.nodes["n77"] = node
    world.say("n77", "B7")
    row = MachineTry(("board B7",), "n03", "u3", Action.REBOOT, format_time(EPOCH))
    known = [
        remembered((row,), node, world.reports["n77"], present=(), now=EPOCH + after).nodes
        for after in (60.0, WEEK + 1)
    ]  # fmt: skip
    assert known == [("n03",), ()]
    world = rebooting()
    world.rename("n03", "n77")
    world.annotate("n77", REPAIRED=format_time(world.now))
    world.run(10)
    world.say("n77", "B7", sick(world))
    assert len(world.until("n77", NodeState.REBOOTING).tries) == 1


def test_what_is_kept_is_bounded_and_written_once() -> None:
    node, world = make_node("n00"), Machines(1)
    world.say("n00", "B0")
    report = world.reports["n00"]
    assert identities_of(node, report) == ("board B0",)
    rows: tuple[MachineTry, ...] = ()
    for number in range(TRIED_MAX + 5):
        tries = (Try(Action.REBOOT, format_time(EPOCH + number)),)
        record = NodeRecord(NodeState.REBOOTING, format_time(EPOCH), tries=tries)
        rows = with_tries(rows, ((node, record, report),), now=EPOCH + number)
        assert with_tries(rows, ((node, record, report),), now=EPOCH + number) is rows
    assert len(rows) == TRIED_MAX
    assert rows[-1].at == format_time(EPOCH + TRIED_MAX + 4)
    nobody = replace(report, status=replace(report.status, node_uid="another"))
    assert with_tries((), ((node, record, nobody),), now=EPOCH) == ()
