"""New kinds of devices are matched beside the decisions: what is said of jobs, and who waits.

Work is counted in units, never in seconds (`model/claimed/work.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.decide.test_placement import POLICY, workers

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Nomination
from fairlead.api.kubernetes.devices import ResourceClaimTemplate
from fairlead.api.values.quantity import CLAIMED
from fairlead.api.values.times import format_time
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.snapshot import CarriedState, Snapshot, replay
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.model.claimed.device_asks import DeviceKind
from fairlead.model.claimed.device_marks import DeviceMarks, MatchedKind
from fairlead.model.claimed.device_pools import DevicePools
from fairlead.model.claimed.device_rows import ROWS_MAX, DeviceRows
from fairlead.model.claimed.device_selectors import EXPRESSION_MAX
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.model.objects import Objects
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement
from fairlead.testing.device_builders import (
    DRIVER,
    MIG,
    all_devices_request,
    device_request,
    first_of_request,
    make_device,
    make_device_class,
    make_device_template,
    make_mig_slices,
    make_slice,
    mig_template,
    with_device_claims,
)

UUID = f'device.attributes["{DRIVER}"].uuid'
#: What one part of the work takes at most, in units: an evaluation of the longest kind.
PART_MAX = 6_200
NODES = 40


def asks(name: str, namespace: str = "default", created: float = EPOCH, **given: Any) -> Job:
    job = make_job(name, namespace=namespace, gpus=0, cpu="1", created=created, **given)
    return with_device_claims(job, name)


def template(name: str, *expressions: str, namespace: str = "default") -> ResourceClaimTemplate:
    return make_device_template(name, device_request(DRIVER, 1, *expressions), namespace=namespace)


def cluster(*templates: ResourceClaimTemplate, jobs: tuple[Job, ...] = ()) -> ClusterState:
    names = [f"n{i}" for i in range(NODES)]
    slices = [
        make_slice(name, [make_device(f"d{j}", {"uuid": f"{name}-{j}"}) for j in range(8)])
        for name in names
    ]
    table = DeviceTable(slices, [make_device_class(DRIVER)], templates)
    table.matches_at_once = False
    return ClusterState.of([make_node(name, cpu="64") for name in names], jobs, devices=table)


def work(state: ClusterState) -> int:
    """Do all the work that there is, and return how much it was."""
    units = 0
    while state.devices.is_unmatched:
        state.devices.match(1)
        state.follow_claims()
        units += 1
    return units


def test_a_job_that_asks_for_a_new_kind_waits_until_devices_are_matched() -> None:
    state = cluster(template("new"), jobs=(asks("new"),))
    planner = PlacementState(state)
    said = decide(planner, POLICY, EPOCH).verdicts["default", "new"]
    assert said.reason is Reason.DEVICES_UNMATCHED
    assert "ResourceClaimTemplate new" in said.message
    while not state.devices.match(50).has_news:
        said = decide(planner, POLICY, EPOCH).verdicts["default", "new"]
        assert said.reason is Reason.DEVICES_UNMATCHED
    assert workers(decide(planner, POLICY, EPOCH), "new") != []


def test_a_kind_that_is_known_is_planned_at_once() -> None:
    state = cluster(template("known"), jobs=(asks("known"),))
    work(state)
    state.job_changed(asks("known", created=EPOCH + 1))
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "known") != []


def test_a_gang_that_repairs_keeps_its_nodes_while_its_devices_are_matched() -> None:
    """After a change of leaders nothing is matched yet."""
    job = asks("new", placement=make_placement(["n1"]), attempt=2)
    state = cluster(template("new"), jobs=(job,))
    planner = PlacementState(state)
    assert planner.sets.repairable, "it is to be placed for its next attempt"
    decision = decide(planner, POLICY, EPOCH)
    assert decision.verdicts["default", "new"].reason is Reason.DEVICES_UNMATCHED
    assert [type(each).__name__ for each in decision.actions] == ["WriteVerdict"]
    work(state)
    assert workers(decide(planner, POLICY, EPOCH), "new") == ["n1"]


def test_a_decision_made_while_devices_are_matched_can_be_replayed() -> None:
    templates = (template("known"), template("new", f'{UUID} == "x"'))
    state = cluster(*templates, jobs=(asks("known"),))
    work(state)
    state.job_changed(asks("new"))
    jobs = tuple(entry.job for entry in state.jobs.values())
    planner = PlacementState(state)
    made = decide(planner, POLICY, EPOCH)
    assert made.verdicts["default", "new"].reason is Reason.DEVICES_UNMATCHED
    slices = [make_slice(f"n{i}", [make_device(f"d{j}", {"uuid": f"n{i}-{j}"}) for j in range(8)])
              for i in range(NODES)]  # fmt: skip
    objects = Objects(
        tuple(make_node(f"n{i}", cpu="64") for i in range(NODES)), jobs,
        device_templates=templates, device_classes=(make_device_class(DRIVER),),
        slices=tuple(slices),
    )  # fmt: skip
    given = Snapshot(EPOCH, objects, POLICY, carried=CarriedState.of(planner))
    assert replay(given).actions == made.actions


def alone() -> int:
    """Return the work on one kind of an honest job, with nothing else to do."""
    state = cluster(template("honest"), jobs=(asks("honest", "team"),))
    state.devices.put_template(("team", "honest"), template("honest", namespace="team"))
    return work(state)


def test_a_namespace_that_asks_for_kind_after_kind_delays_itself() -> None:
    """Each of its kinds costs as much as a kind can; each that is gone is replaced by a new one."""
    costly = " || ".join(f'{UUID} == "{{0}}-{i}"' for i in range(10))
    count = 0

    def attack(state: ClusterState) -> None:
        nonlocal count
        while sum(key[0] == "mallory" for key in state.jobs) < 20:
            count += 1
            made = template(f"t{count}", costly.format(count), namespace="mallory")
            state.devices.put_template(made.metadata.key, made)
            state.job_changed(asks(f"t{count}", "mallory", created=EPOCH - 1))
        placed = [k for k, e in state.jobs.items() if k[0] == "mallory"
                  and isinstance(e.reaches, tuple)]  # fmt: skip
        for key in placed:
            state.job_deleted(key)

    state = cluster()
    attack(state)
    one = 0
    while not state.devices.kinds:  # the first of its kinds alone
        state.devices.match(1)
        state.follow_claims()
        one += 1
    attack(state)
    for _ in range(500):
        state.devices.match(1)
    honest = template("honest", namespace="team")
    state.devices.put_template(honest.metadata.key, honest)
    state.job_changed(asks("honest", "team", created=EPOCH))
    units = 0
    while not isinstance(state.jobs["team", "honest"].reaches, tuple):
        state.devices.match(1)
        state.follow_claims()
        attack(state)
        units += 1
    known = len(state.devices.kinds)
    assert known <= 4, "of the attacker one new kind at a time"
    assert units <= 2 * one + alone(), "what is begun, and one more beside its own"
    assert sum(key[0] == "mallory" for key in state.jobs) == 20, "the attack went on"


ENDLESS = "[" + ",".join(["1"] * 60) + "].all(x, [" + ",".join(["1"] * 60) + "].all(y, x == y))"


@pytest.mark.parametrize(
    "expressions",
    [
        (" || ".join(["1 == 2"] * (EXPRESSION_MAX // 11)),),
        (f'{UUID} == "x" || {ENDLESS}',),
        (f'{UUID} == "x"', f'{UUID} == "y"'),
        ("device.",),
    ],
    ids=["long to compile", "long to evaluate", "of each device", "no expression"],
)
def test_no_part_of_the_work_takes_long(expressions: tuple[str, ...]) -> None:
    state = cluster(template("new", *expressions), jobs=(asks("new"),))
    pools = DevicePools()
    for i in range(NODES):
        devices = [make_device(f"d{j}", {"uuid": f"{i}-{j}"}) for j in range(8)]
        pools.put_slice(f"n{i}", make_slice(f"n{i}", devices))
    spec = make_device_class(DRIVER).spec
    kind = next(iter(_kinds(state)))
    parts = list(DeviceMarks(pools, {kind: MatchedKind(1, spec)}).bring_up_to_date())
    assert max(parts) <= PART_MAX
    assert sum(parts) > NODES, "there was work"


def _kinds(state: ClusterState) -> tuple[DeviceKind, ...]:
    work(state)
    return state.devices.kinds


def test_parts_of_gpus_are_searched_a_part_at_a_time() -> None:
    pools = DevicePools()
    for each in make_mig_slices("n0"):
        pools.put_slice(each.metadata.name, each)
    state = ClusterState.of(
        jobs=[asks(each.replace(".", "-")) for each in MIG],
        devices=DeviceTable(
            make_mig_slices("n0"), [make_device_class(DRIVER)], map(mig_template, MIG)
        ),
    )
    kinds = {kind: MatchedKind(1 << i, make_device_class(DRIVER).spec)
             for i, kind in enumerate(state.devices.kinds)}  # fmt: skip
    assert len(kinds) == len(MIG)
    marks = DeviceMarks(pools, kinds)
    parts = list(marks.bring_up_to_date())
    assert max(parts) <= 4_096 * 4, "one search at a time, which has a bound"
    assert isinstance(marks.rows, DeviceRows)
    assert marks.offered["n0"]


def test_a_place_that_is_kept_stays_while_devices_are_matched() -> None:
    kept = Nomination(nominated_at=format_time(EPOCH), roles=make_placement(["n1"]).roles)
    job = asks("new")
    job = replace(job, status=replace(job.status, nomination=kept))
    state = cluster(template("new"), jobs=(job,))
    planner = PlacementState(state)
    decision = decide(planner, POLICY, EPOCH)
    assert [type(each).__name__ for each in decision.actions] == ["WriteVerdict"]
    assert state.ledger.nominated_nodes() == {"n1"}
    work(state)
    assert workers(decide(planner, POLICY, EPOCH), "new") == ["n1"]


def test_a_slice_that_has_changed_is_matched_as_it_is_for_kinds_that_stay() -> None:
    state = cluster(template("known"), template("new", f'{UUID} == "new"'), jobs=(asks("known"),))
    work(state)
    devices = [make_device(f"e{j}", {"uuid": "new"}) for j in range(2)]
    state.devices.put_slice(f"n0-{DRIVER}", make_slice("n0", devices))
    state.job_changed(asks("new"))
    assert state.devices.match(100_000).has_news, "before any decision has taken the slice in"
    state.follow_claims()
    slot = state.table.slot("n0")
    offered = [row[slot] for name, row in zip(
        state.table.resources, state.table.allocatable, strict=True) if DRIVER in name]  # fmt: skip
    assert offered == [2, 2], "of both kinds"


def test_alternatives_without_number_delay_their_namespace_and_leave_others_their_rows() -> None:
    """Each request has eight alternatives in another order, of which nodes serve each another."""
    names = [f"n{i}" for i in range(NODES)]
    slices = [
        make_slice(name, [make_device(f"d{j}", {"model": f"m{i % 8}"}) for j in range(1 + i % 5)])
        for i, name in enumerate(names)
    ]
    requests = [
        each
        for j in range(8)
        for expression in (f'device.attributes["{DRIVER}"].model == "m{j}"',)
        for each in (device_request(DRIVER, 2, expression), all_devices_request(DRIVER, expression))
    ]
    honest = template("honest", f'device.attributes["{DRIVER}"].model == "m0"')
    table = DeviceTable(slices, [make_device_class(DRIVER)], [honest])
    table.matches_at_once = False
    nodes = [make_node(name, cpu="64") for name in names]
    state = ClusterState.of(nodes, [asks("honest")], devices=table)
    for i in range(60):
        turned = [requests[(i + 3 * j) % len(requests)] for j in range(8)]
        made = make_device_template(f"t{i}", first_of_request(*turned), namespace="mallory")
        state.devices.put_template(made.metadata.key, made)
        state.job_changed(asks(f"t{i}", "mallory", created=EPOCH - 1))
    longest = 0
    while state.devices.is_unmatched:
        longest = max(longest, state.devices.match(1).units)
        state.follow_claims()
    assert longest < PART_MAX
    rows = [each for each in state.table.resources if each.startswith(CLAIMED)]
    assert any(", else " in each for each in rows), "some alternatives are counted"
    assert len(rows) <= ROWS_MAX
    assert workers(decide(PlacementState(state), POLICY, EPOCH), "honest") != []
