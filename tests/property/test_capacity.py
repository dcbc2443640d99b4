"""A capacity that is asked "what if?" answers as the cluster would in which it is so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.property.placement_world import (
    FEWER,
    a_job,
    a_node,
    begun,
    packing,
    room,
    step,
    summary,
    used,
)

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import Condition
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.search import plan_gang
from fairlead.decide.placement.places.unplaceable import judge_empty, judge_present
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.holdings.completion import ends_at
from fairlead.testing.builders import EPOCH, make_node

PATIENT = PlacementPolicy()
NAME = "kubernetes.io/hostname"


def answers(cluster: ClusterState, capacity: PresentCapacity, gangs: list[GangRequest]):
    """What the planner says of each gang, slots by name."""
    out = []
    for gang in gangs:
        mark = capacity.mark()
        plan = plan_gang(capacity, cluster.table, gang)
        names = cluster.table.names
        places = plan and [[names[slot] for slot in slots.tolist()] for slots in plan.slots]
        capacity.rollback_to(mark)
        present = plan or judge_present(cluster, capacity, gang, reservations=())
        out.append((places, judge_empty(cluster, gang), plan is not None or present))
    return out


def of_cluster(state: PlacementState, gangs: list[GangRequest]):
    """The answers, fits and packing order of a real cluster."""
    with state.cluster.transaction() as transaction:
        found = answers(state.cluster, PresentCapacity(state.cluster, transaction), gangs)
    return found, fits(state, gangs), busy(state)


def of_what_if(state: PlacementState, gangs: list[GangRequest], ask):
    """The same of a cluster in which `ask` has made it so; checks that all is as before then."""
    cluster = state.cluster
    before = everything(state)
    with cluster.transaction() as transaction:
        capacity = PresentCapacity(cluster, transaction)
        ask(capacity)
        out = answers(cluster, capacity, gangs), fits(state, gangs), busy(state)
        version = capacity.version
        mark = capacity.mark()
        capacity.without(sorted(state.jobs))
        capacity.rollback_to(mark)
        assert capacity.version == version
        assert (answers(cluster, capacity, gangs), fits(state, gangs), busy(state)) == out
    assert everything(state) == before
    return out


def everything(state: PlacementState):
    """All that a question may change, to the byte."""
    table, masks = state.cluster.table, [
        state.cluster.fits.mask(role.member.constraints)
        for entry in state.jobs.values() if isinstance(entry.gang, GangRequest)
        for role in entry.gang.roles
    ]  # fmt: skip
    return (
        room(state), packing(state), used(state), table.resources, list(table.names),
        table.used.tobytes(), table.allocatable.tobytes(), table.nodes_version,
        [(m.changed_at, m.eligible.tobytes(), m.matches.tobytes()) for m in masks],
        sorted(table._free_slots),
    )  # fmt: skip


def fits(state: PlacementState, gangs: list[GangRequest]) -> list[dict[str, int]]:
    names = state.cluster.table.names
    rows = [state.cluster.fits.fits(r.member).tolist() for gang in gangs for r in gang.roles]
    return [{n: fit for n, fit in zip(names, row, strict=True) if fit} for row in rows]


def busy(state: PlacementState) -> dict[str, dict[str, int]]:
    """What is in use where anything is, by node."""
    offered = {r for r in state.cluster.table.resources if state.cluster.table.owned(r).any()}
    found = {
        name: {r: a for r, a in amounts.items() if r in offered}
        for name, amounts in used(state).items()
    }
    return {name: amounts for name, amounts in found.items() if amounts}


def gangs_of(state: PlacementState) -> list[GangRequest]:
    return [e.gang for _, e in sorted(state.jobs.items()) if isinstance(e.gang, GangRequest)]


@FEWER
@given(st.data(), st.integers(0, 70))
def test_added_nodes_count_as_the_same_nodes_would(data: st.DataObject, count: int) -> None:
    world = begun(data, PATIENT)
    template = replace_labels(data.draw(a_node("template")), data)
    names: list[str] = []
    gangs = gangs_of(world.state)
    found = of_what_if(world.state, gangs, lambda c: names.extend(c.with_nodes(template, count)))
    for name in names:
        world.nodes[name] = real(template, name)
    assert len(names) == count
    assert found == of_cluster(world.rebuilt(), gangs)


def replace_labels(node: Node, data: st.DataObject) -> Node:
    """The node, perhaps in a rack or with a device that no node had, and without a window: a
    node that is not there yet has no maintenance.
    """
    rack = data.draw(st.sampled_from(["r1", "r9"]))
    other = make_node("template", gpus=4, extra={"example.com/npu": 4}, labels={"rack": rack})
    node = replace(node, metadata=replace(node.metadata, annotations={}))
    return data.draw(st.sampled_from([node, other]))


def real(template: Node, name: str) -> Node:
    made = make_node(name, gpus=0)
    labels = {**template.metadata.labels, NAME: name}
    return replace(
        template,
        metadata=replace(template.metadata, name=name, labels=labels),
        spec=replace(template.spec, unschedulable=False),
        status=replace(template.status, conditions=made.status.conditions),
    )


@FEWER
@given(st.data())
def test_without_jobs_is_as_if_they_and_their_pods_had_never_been(data: st.DataObject) -> None:
    world = begun(data, PATIENT)
    for number in range(data.draw(st.integers(0, 10))):
        step(world, data, number)
        world.decide(PATIENT, EPOCH + number)
    claimed = [c.key for c in world.state.cluster.ledger.claims_by_priority()]
    absent = data.draw(st.sets(st.sampled_from(claimed))) if claimed else set()
    gangs = gangs_of(world.state)
    found = of_what_if(world.state, gangs, lambda c: c.without([*absent, *sorted(absent)]))
    for key in absent:
        leave(world, key)
    assert found == of_cluster(world.rebuilt(), gangs)


def leave(world, key: tuple[str, str]) -> None:
    """Take a job out of a world with the pods that are its own."""
    claim = world.state.cluster.ledger.claim(key)
    pods = world.state.cluster.ledger._pods_by_owner.get(claim.owner, ())
    for pod in list(pods):
        del world.pods[pod]
    del world.jobs[key]


@FEWER
@given(st.data(), st.integers(0, 400))
def test_by_then_is_as_if_the_jobs_had_ended(data: st.DataObject, seconds: int) -> None:
    world = begun(data, PATIENT)
    for number, limit in enumerate(data.draw(st.lists(st.sampled_from([60, 200, None])))):
        job = data.draw(a_job(name=f"l{number}"))
        spec = replace(job.spec, time_limit_seconds=limit, suspend=False)
        world.put_job(replace(job, spec=spec))
        world.decide(PATIENT, EPOCH + 20 * number)
    then, gangs = EPOCH + seconds, gangs_of(world.state)
    ended: list[tuple[str, str]] = []

    def ask(capacity: PresentCapacity) -> None:
        between = (capacity.next_end(EPOCH), then / 2 + EPOCH / 2)
        ended.extend(capacity.by(min(then, *(at for at in between if at is not None))))
        ended.extend(capacity.by(then))

    found = of_what_if(world.state, gangs, ask)
    for key, job in list(world.jobs.items()):
        end = ends_at(job) if job.status.placement else None
        assert (key in ended) == (end is not None and end <= then)
        if key in ended:
            leave(world, key)
            world.jobs[key] = finished(job)
    assert [ends_at(e.job) for e in map(world.state.jobs.__getitem__, ended)] == sorted(
        ends_at(world.state.jobs[key].job) or 0.0 for key in ended
    )
    assert found == of_cluster(world.rebuilt(), gangs)


def finished(job: Job) -> Job:
    done = (*job.status.conditions, Condition(type="Succeeded", status="True"))
    return replace(job, status=replace(job.status, conditions=done, placement=None))


@FEWER
@given(st.data())
def test_what_is_remembered_of_a_what_if_misleads_no_later_decision(data: st.DataObject) -> None:
    """A decision after questions is the one that a planner makes that was asked none."""
    world = begun(data, PATIENT)
    template = data.draw(a_node("template"))
    gangs = gangs_of(world.state)
    of_what_if(world.state, gangs, lambda c: c.with_nodes(template, 3))
    step(world, data, 0)
    decided = [summary(decide(s, PATIENT, EPOCH)) for s in (world.state, world.rebuilt())]
    found, expected = ([a for a in each if a[0] != "WriteVerdict"] for each in decided)
    assert found == expected


@FEWER
@given(st.data())
def test_claims_are_found_by_node_and_by_priority(data: st.DataObject) -> None:
    world = begun(data, PATIENT)
    for number in range(data.draw(st.integers(0, 15))):
        step(world, data, number)
        world.decide(PATIENT, EPOCH + number)
    cluster = world.state.cluster
    placed = {
        key: (job.spec.priority or 0, {n for r in job.status.placement.roles for n in r.nodes})
        for key, job in world.jobs.items()
        if job.status.placement is not None and not job.is_finished
    }
    order = sorted((priority, key) for key, (priority, _) in placed.items())
    assert [(c.priority, c.key) for c in cluster.ledger.claims_by_priority()] == order
    for slot, name in enumerate(cluster.table.names):
        on_slot = [(priority, key) for priority, key in order if name in placed[key][1]]
        assert [(c.priority, c.key) for c in cluster.ledger.claims_on(slot)] == on_slot
