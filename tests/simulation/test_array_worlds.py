"""Arrays in simulated worlds where everything fails: no element is lost, none succeeds twice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

import pytest
from msgspec.structs import replace as changed
from tests.simulation.array_sweep import ROUGH_WORLD, Sweep, SweepSize

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobSpec
from fairlead.api.jobs.job_array import JobArray, JobArraySpec, JobArrayStatus
from fairlead.api.meta import Condition, ObjectMeta, OwnerReference
from fairlead.controllers.elements.array_index import ArrayIndex
from fairlead.controllers.elements.element_states import ElementStates
from fairlead.decide.arrays import ArrayView, DeleteElement, lifecycle
from fairlead.decide.jobs.view import ElementState
from fairlead.sim.explored_worlds import options_of
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken, unwrap_broken
from fairlead.sim.outcome import SimulationOutcome
from fairlead.sim.promises.array_checker import ArrayChecker
from fairlead.sim.setup.faults import PERFECT
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, job_body
from fairlead.sim.setup.world_options import PoolShape, WorldOptions
from fairlead.sim.world import World, simulate
from fairlead.testing.builders import make_job, make_placement


def test_no_element_is_lost_or_succeeds_twice_however_much_is_killed() -> None:
    world = World(ROUGH_WORLD, seed=0)
    outcome = run(world.run())
    assert outcome.kills > 10
    assert world.arrays.over >= 5
    assert world.arrays.checked > 100


#: `FAIRLEAD_ARRAY_ELEMENTS=100000` for a long run, `FAIRLEAD_ARRAY_SECONDS=1` for short elements.
ELEMENTS = int(os.environ.get("FAIRLEAD_ARRAY_ELEMENTS", "400"))
RUN_SECONDS = float(os.environ.get("FAIRLEAD_ARRAY_SECONDS", "30"))
#: On the wire a set takes no more, with few failures; see `model/element_sets.py`.
SET_BYTES_MAX = 16 << 10


def test_a_long_array_is_whole_after_kills_faults_lost_nodes_and_cancelled_elements() -> None:
    world = Sweep(SweepSize(ELEMENTS, run_seconds=RUN_SECONDS), seed=1)
    outcome = run(world.run())
    assert outcome.kills > min(10, ELEMENTS / 40)
    assert outcome.faults > min(10, ELEMENTS / 40)
    assert (world.arrays.over, world.arrays.checked) == (1, ELEMENTS)
    assert len(world.cancelled) >= ELEMENTS / 400
    assert 0 < world.set_bytes_max <= SET_BYTES_MAX
    assert world.size.at_once < world.objects_max <= world.size.objects_max


def test_explored_worlds_have_arrays_and_none() -> None:
    shares = {options_of(number).workload.array_share for number in range(40)}
    assert shares == {0.0, 0.05, 0.3}


def one_node(limit: int, *, members: int = 2) -> World:
    """An array of twelve elements, by default of two whole nodes each, and a job of the one."""
    template = job_body("x", members=members, gpus=8, run_seconds=60.0)["spec"]
    spec = {"indices": "2-35:3", "parallelism": limit, "template": template}
    wide = {**job_body("wide", members=1, gpus=1, run_seconds=1), "kind": "JobArray", "spec": spec}
    fits = job_body("fits", members=1, gpus=8, run_seconds=60.0)
    arrivals = [Arrival(60.0, "wide", wide), Arrival(60.0, "fits", fits)]
    options = WorldOptions(
        nodes=1, workload=WorkloadOptions(0, 600.0), settle_seconds_max=7_200.0,
    )  # fmt: skip
    return World(options, 1, arrivals=arrivals)


@pytest.mark.parametrize("limit", [1, 12])
def test_an_array_whose_elements_no_empty_cluster_holds_waits_and_says_so(limit: int) -> None:
    world = one_node(limit)
    outcome = run(world.run())
    unfit = ["wide", *(f"wide-{index}" for index in range(2, 36, 3))]
    assert list(world.unfit) == [("default", name) for name in unfit]
    assert (outcome.unfit, outcome.succeeded, outcome.jobs) == (limit, 1, limit + 1)


@pytest.mark.parametrize("limit", [2, 5])
def test_nodes_are_bought_for_as_many_elements_as_may_run_and_for_no_more(limit: int) -> None:
    template = job_body("x", members=1, gpus=8, run_seconds=600.0)["spec"]
    spec = {"indices": "0-9", "parallelism": limit, "template": template}
    swept = job_body("sweep", members=1, gpus=1, run_seconds=1) | {"kind": "JobArray", "spec": spec}
    options = WorldOptions(
        nodes=0, workload=WorkloadOptions(0, 600.0), pools=(PoolShape("pool", 30),), faults=PERFECT,
        node_failures_per_day=0.0, drains_per_day=0.0,
    )  # fmt: skip

    async def play() -> SimulationOutcome:  # a world with pools is made where time runs
        return await World(options, 1, arrivals=[Arrival(60.0, "sweep", swept)]).run()

    outcome = run(play())
    assert (outcome.succeeded, outcome.machines.most) == (10, limit)


def test_an_array_that_can_never_run_and_does_not_say_so_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.decide.arrays.lifecycle._verdict", lambda *_: None)
    with pytest.raises(BaseExceptionGroup) as group:
        run(one_node(1).run())
    said = re.escape("3: ('default', 'wide') can never run and does not say so: a gang of 2")
    assert re.match(said, str(unwrap_broken(group.value)))


def test_an_array_that_stays_open_after_its_elements_have_ended_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What can never run excuses an array only while there is an element that waits."""
    monkeypatch.setattr("fairlead.sim.setup.fitting.never_fits", lambda *_: "planted")
    monkeypatch.setattr("fairlead.decide.arrays.lifecycle._is_over", lambda *_: False)
    with pytest.raises(BaseExceptionGroup) as group:
        run(one_node(12, members=1).run())
    broken = str(unwrap_broken(group.value))
    assert broken == "3: 1 jobs never end, the first is ('default', 'wide')"


# Canaries: each way in which the promise breaks, reported by the checker


def sweep(limit: int | None = None, indices: str = "0-3", **status: object) -> JobArray:
    return JobArray(
        ObjectMeta("sweep", namespace="default", uid="u"),
        JobArraySpec(indices, JobSpec(roles=()), parallelism=limit),
        JobArrayStatus(**status),  # type: ignore[arg-type] # fields by name
    )


def element(index: int, uid: str, ended: str = "", *, is_placed: bool = False) -> Job:
    job = make_job(f"sweep-{index}", attempt=1)
    owner = OwnerReference(names.API_VERSION, "JobArray", "sweep", "u", controller=True)
    job = changed(job, metadata=changed(job.metadata, uid=uid, owner_references=(owner,)))
    status = job.status
    if ended:
        status = changed(status, conditions=(Condition(ended, "True"),))
    if is_placed:
        status = changed(status, placement=make_placement(["n0"]))
    return changed(job, status=status)


class History:
    """The checker of an array."""

    def __init__(self, limit: int | None = None, indices: str = "0-3") -> None:
        self.checker, self.limit, self.indices = ArrayChecker(), limit, indices
        self.array()

    def array(self, **status: object) -> None:
        found = sweep(self.limit, self.indices, **status)
        self.checker.array(found, ("default", "sweep"), 0.0)

    def job(self, job: Job) -> None:
        self.checker.job(job, job.metadata.key, 0.0)


def test_a_sound_history_is_accepted() -> None:
    history = History(limit=2)
    for index, ended in enumerate(("Succeeded", "Failed", "Succeeded", "Succeeded")):
        history.job(element(index, f"u{index}", is_placed=True))
        history.job(element(index, f"u{index}", ended))
    history.array(finished="0-1", failed="1")
    failed = (Condition("Failed", "True"),)
    history.array(finished="0-3", failed="1", conditions=failed)
    assert (history.checker.checked, history.checker.over) == (4, 1)
    assert history.checker.unfinished() == []


def test_an_element_that_succeeds_twice_is_reported() -> None:
    history = History()
    history.job(element(1, "first", "Succeeded"))
    with pytest.raises(PromiseBroken, match=r"element 1 of array .* succeeded twice"):
        history.job(element(1, "second", "Succeeded"))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"finished": "0"}, "says that element 0 succeeded"),
        ({"finished": "1", "failed": "1"}, "says that element 1 failed"),
        ({"finished": "1", "conditions": (Condition("Failed", "True"),)}, "without element 0"),
    ],
)
def test_a_status_that_is_not_what_happened_is_reported(
    status: dict[str, object], said: str
) -> None:
    history = History()
    history.job(element(1, "first", "Succeeded"))
    with pytest.raises(PromiseBroken, match=said):
        history.array(**status)


def test_a_record_that_is_lost_is_reported() -> None:
    history = History()
    history.job(element(1, "first", "Succeeded"))
    history.array(finished="1")
    with pytest.raises(PromiseBroken, match="forgot the end of element 1"):
        history.array()


def test_all_that_run_may_end_in_the_same_instant_and_more_jobs_are_reported() -> None:
    history = History(limit=500, indices="0-1999")
    for index in range(500 + 400 + 100):
        history.job(element(index, f"u{index}", "Succeeded"))
    with pytest.raises(PromiseBroken, match="has 1001 jobs"):
        history.job(element(1000, "u1000"))


def test_more_elements_with_nodes_than_may_run_are_reported() -> None:
    history = History(limit=1)
    history.job(element(0, "a", is_placed=True))
    with pytest.raises(PromiseBroken, match=r"2 elements of array .* of at most 1"):
        history.job(element(1, "b", is_placed=True))


def test_a_controller_that_deletes_before_it_records_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole world as canary: the promise rests on the order of the writes."""

    def deletions(view: ArrayView, _recorded: Iterable[int]) -> Iterator[DeleteElement]:
        for job in map(view.elements.__getitem__, sorted(view.elements.ended)):
            if job.metadata.deletion_timestamp is None:
                yield DeleteElement(view.array, job)

    monkeypatch.setattr(lifecycle, "_deletions", deletions)
    monkeypatch.setattr(ElementStates, "state", lambda *_: ElementState.NONE)
    monkeypatch.setattr(ArrayIndex, "_gone", property(lambda _: {}, lambda *_: None), raising=False)
    with pytest.raises(PromiseBroken, match=r"^15: element .* succeeded twice"):
        simulate(ROUGH_WORLD, seed=1)
