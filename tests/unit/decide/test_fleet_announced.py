"""Maintenance that a provider announces becomes the window of the node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolDecision,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.meta import ObjectMeta
from fairlead.decide.fleet.actions import Action, Announce, WriteFleet, WritePool
from fairlead.decide.fleet.census import take_census
from fairlead.decide.fleet.cycle import decide_fleet
from fairlead.decide.fleet.leaving.announced import begun_early
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView
from fairlead.model.cluster import ClusterState
from fairlead.model.health.machines import Instance, InstanceState, Inventory
from fairlead.model.health.windows import window_text
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement

DAY = 86_400.0
RESOURCES = {"cpu": "96", "memory": "1Ti"}
WINDOW = window_text(EPOCH + DAY, EPOCH + DAY + 3600)


class OneNode:
    """A pool of one machine and its node, and the decisions about it."""

    def __init__(self, *, mode: PoolMode = PoolMode.ACTIVE) -> None:
        self.pool = NodePool(
            ObjectMeta(
                name="a", uid="uid-a", resource_version="1", finalizers=(names.POOL_FINALIZER,)
            ),
            NodePoolSpec(
                Provider(ProviderType.SIMULATED), NodeTemplate(dict(RESOURCES)), min=1, max=5,
                mode=mode,
            ),
        )  # fmt: skip
        self.fleet = Fleet(ObjectMeta(name="fleet", resource_version="1"))
        node = make_node("n1", labels={names.POOL: "a"})
        self.node = replace(node, spec=replace(node.spec, provider_id="m1"))
        self.nodes, self.memory, self.now = PoolNodes(), FleetMemory(), EPOCH
        self.inventory, self.decided = Inventory(()), list[PoolDecision]()
        self.announce("")

    def announce(self, window: str) -> None:
        machine = Instance("m1", "a", InstanceState.RUNNING, maintenance=window)
        self.inventory = Inventory((machine,))

    def annotate(self, **notes: str) -> None:
        """Write annotations by the last part of their names."""
        kept = {f"fairlead.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
        self.node = replace(self.node, metadata=replace(self.node.metadata, annotations=kept))

    def decide(self, *, carries_out: bool = True) -> list[str]:
        """Return the windows that are written."""
        self.nodes.put(self.node, self.now)
        view = FleetView(
            fleet=self.fleet,
            pools=[PoolView(self.pool, inventory=self.inventory, age_seconds=0.0)],
            nodes=self.nodes, state=ClusterState.of([self.node]), waiting=(), now=self.now,
            instant=self.now - EPOCH,
        )  # fmt: skip
        decision, _ = decide_fleet(view, FleetPolicy(), self.memory)
        written = [action for action in decision.actions if isinstance(action, Announce)]
        for action in decision.actions if carries_out else ():
            self.carry_out(action)
        return [action.window for action in written]

    def carry_out(self, action: Action) -> None:
        match action:
            case Announce(_, window):
                both = {"maintenance": window, "maintenance_announced": window} if window else {}
                self.annotate(**both)
            case WritePool(_, status, decided):
                self.pool = replace(self.pool, status=status)
                self.decided += decided
            case WriteFleet(_, status):
                self.fleet = replace(self.fleet, status=status)
            case _:
                raise AssertionError(action)


def test_it_is_written_once_a_day_before_its_start_and_taken_off_after_its_end() -> None:
    one = OneNode()
    one.announce(window_text(EPOCH + 3 * DAY, EPOCH + 3 * DAY + 3600))
    assert one.decide() == []
    one.now += 2 * DAY - 10
    assert one.decide() == []
    one.now += 10
    window = one.inventory.instances[0].maintenance
    assert one.decide() == [window]
    assert one.decide() == []
    one.now += DAY + 3599
    assert one.decide() == []
    one.now += 1
    assert one.decide() == [""]
    assert one.decide() == []


def test_it_follows_what_the_provider_says() -> None:
    one = OneNode()
    one.announce(WINDOW)
    assert one.decide() == [WINDOW]
    moved = window_text(EPOCH + DAY, EPOCH + DAY + 60)
    one.announce(moved)
    assert one.decide() == [moved]
    one.announce("")
    assert one.decide() == [""]


@pytest.mark.parametrize(
    ("notes", "written"),
    [
        ({"maintenance": "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"}, []),  # a person's
        ({"maintenance": "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z",
          "maintenance_announced": WINDOW}, []),  # ours, which a person has changed
        ({"maintenance_announced": WINDOW}, [WINDOW]),  # a person took it off: it is announced
    ],
)  # fmt: skip
def test_what_a_person_wrote_stays(notes: dict[str, str], written: list[str]) -> None:
    one = OneNode()
    one.annotate(**notes)
    one.announce(WINDOW)
    assert one.decide(carries_out=False) == written
    one.announce("")
    assert one.decide(carries_out=False) == []


def test_nothing_is_written_where_nothing_is_known_or_nothing_is_to_be_done() -> None:
    one = OneNode()
    one.announce(WINDOW)
    one.decide()
    one.inventory = Inventory((), is_complete=False)  # the machine is missing in the list
    assert one.decide() == []
    dry = OneNode(mode=PoolMode.DRY_RUN)
    dry.announce(WINDOW)
    assert dry.decide() == []
    torn = OneNode()
    torn.announce("tomorrow")
    assert torn.decide() == []


def test_a_quiet_fleet_wakes_for_what_was_announced_before() -> None:
    one = OneNode()
    one.announce(window_text(EPOCH + 30 * 60 + DAY, EPOCH + 31 * 60 + DAY))
    for _ in range(5):
        one.now += 60
        assert one.decide() == []
    assert one.memory.quiet is not None
    one.now = EPOCH + 30 * 60
    assert one.decide() == [one.inventory.instances[0].maintenance]


def test_the_records_say_which_node_and_when() -> None:
    one = OneNode()
    one.announce(WINDOW)
    one.decide()
    one.announce("")
    one.decide()
    assert [(each.action, each.message) for each in one.decided] == [
        ("Announce", "n1: maintenance from 2026-01-02T00:00:00Z to 2026-01-02T01:00:00Z"),
        ("Withdraw", "n1: its provider announces no maintenance any more"),
    ]


@pytest.mark.parametrize(
    ("ready", "begins_in", "is_early"),
    [(True, DAY, True), (False, DAY, False), (True, 0.0, False), (True, -60.0, False)],
)
def test_maintenance_begins_early_before_its_start_and_while_all_other_nodes_work(
    *, ready: bool, begins_in: float, is_early: bool
) -> None:
    now = EPOCH + 9e4
    window = window_text(now + begins_in, now + DAY + 3600)
    notes = dict.fromkeys((names.MAINTENANCE, names.MAINTENANCE_ANNOUNCED), window)
    nodes = PoolNodes()
    for name, more in (("n1", {"ready": ready}), ("n2", {"annotations": notes})):
        node = make_node(name, labels={names.POOL: "a"}, **more)
        nodes.put(replace(node, spec=replace(node.spec, provider_id=f"id-{name}")), 0.0)
    nodes.job_changed(("x", "j"), make_job("j", placement=make_placement(["n1"])), 0.0)
    machines = (
        Instance("id-n1", "a", InstanceState.RUNNING),
        Instance("id-n2", "a", InstanceState.RUNNING, maintenance=window, may_begin=True),
    )
    pool = PoolView(OneNode().pool, inventory=Inventory(machines), age_seconds=0.0)
    view = FleetView(Fleet(), [pool], nodes, ClusterState.of([]), (), now, 9e4)
    found = begun_early(view, take_census(view, pool, FleetMemory()), FleetPolicy(), ())
    assert (found is not None) is is_early
    if isinstance(found, Announce):
        assert (found.node.metadata.name, found.window) == (
            "n2",
            window_text(now, now + DAY + 3600),
        )
