"""Jobs that represent pods of another tool: only what their pods state has an effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.unit.decide.adoption.test_forged_jobs import UNSTATED

from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.jobs.placement import EmptySeats
from fairlead.api.names import SUBMITTED_BY
from fairlead.model.adopted import as_stated
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import make_job, make_node, make_placement, make_priority_class

ADOPTS = Adopts("StatefulSet", "web", "apps/v1", "uid-web")
NODES = ("n0", "n1", "n2")


def classes() -> PriorityTable:
    patient = replace(make_priority_class("patient", 5), preemption_policy="Never")
    return PriorityTable([make_priority_class("high", 1000), patient])


def state_of(*jobs: Job) -> ClusterState:
    return ClusterState.of([make_node(name) for name in NODES], jobs, (), classes())


def job_of_pods(**more: Any) -> Job:
    spec = {"adopts": ADOPTS, **more.pop("spec", {})}
    return make_job("web", count=3, placement=make_placement(NODES), spec=spec, **more)


@pytest.mark.parametrize("field", UNSTATED)
def test_what_only_the_job_says_changes_nothing_that_a_decision_sees(field: str) -> None:
    plain = job_of_pods()
    forged = replace(plain, spec=replace(plain.spec, **{field: UNSTATED[field]}))
    seen, wanted = (state_of(job).jobs["default", "web"] for job in (forged, plain))
    assert seen == wanted
    own = replace(forged, spec=replace(forged.spec, adopts=None))
    if field in ("priority_class_name", "time_limit_seconds", "topology", "reservation"):
        assert state_of(own).jobs["default", "web"].job.spec == own.spec, "elsewhere it counts"
    assert as_stated(own) is own


def test_the_priority_of_pods_of_others_is_that_of_their_class() -> None:
    role = job_of_pods().spec.roles[0]
    for name, value, preempts in (("high", 1000, True), ("patient", 5, False), ("", 0, True)):
        template = replace(
            role.template, spec=replace(role.template.spec, priority_class_name=name)
        )
        job = job_of_pods(spec={"priority_class_name": "high"})
        job = replace(job, spec=replace(job.spec, roles=(replace(role, template=template),)))
        entry = state_of(job).jobs["default", "web"]
        assert (entry.priority, entry.may_preempt) == (value, preempts)


def test_pods_of_others_count_as_those_of_their_namespace_whatever_the_job_says() -> None:
    job = job_of_pods()
    meta = replace(job.metadata, annotations={SUBMITTED_BY: "ann", "other": "kept"})
    entry = state_of(replace(job, metadata=meta)).jobs["default", "web"]
    assert entry.user == "system:serviceaccounts:default"
    assert entry.job.metadata.annotations == {"other": "kept"}


def test_a_seat_that_is_given_back_leaves_its_node_to_others() -> None:
    def free(*vacant: int) -> list[int]:
        job = job_of_pods()
        status = replace(job.status, seats=(EmptySeats("worker", vacant=vacant),))
        state = state_of(replace(job, status=status))
        table = state.table
        slots = np.array([table.occupy(name) for name in NODES])
        return table.free(slots)[table.row("nvidia.com/gpu")].tolist()

    assert free() == [0, 0, 0]
    assert free(1) == [0, 8, 0]
    assert free(0, 2) == [8, 0, 8]


def test_a_placement_whose_write_is_uncertain_is_booked_beside_seats_that_are_given_back() -> None:
    job = job_of_pods()
    seats = (EmptySeats("worker", vacant=(0,)),)
    state = state_of(replace(job, status=replace(job.status, seats=seats)))
    key, table = job.metadata.key, state.table
    before = table.used.copy()
    sent = make_placement(("n0", "n2", "n2"), attempt=2)
    assert state.book_uncertain(state.jobs[key].job, sent)
    assert state.ledger.uncertain_nodes(key) == {"n0", "n2"}
    state.unbook_uncertain(key)
    assert (table.used == before).all()
