"""Arrays, decided: the order of writes, the window, and what an array may be stopped at."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.causes import invalid
from fairlead.api.jobs.job import Job, JobSpec, VerdictStatus
from fairlead.api.jobs.job_array import JobArray, JobArraySpec, JobArrayStatus
from fairlead.api.jobs.run_facts import RunSource
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.validation.validate_array import validate_array, validate_array_update
from fairlead.api.values.indices import Indices, parse_indices
from fairlead.api.values.times import format_time
from fairlead.decide.arrays import (
    Action,
    ArraysPolicy,
    ArrayView,
    CancelElement,
    CreateElement,
    DeleteArray,
    DeleteElement,
    ElementJobs,
    ElementRefusal,
    WriteArrayStatus,
    decide_array,
    element_annotations,
    element_environment,
    lifecycle,
)
from fairlead.decide.verdict import Decision
from fairlead.model.element_sets import decode_set, encode_set, set_of
from fairlead.testing.builders import EPOCH, make_job, make_placement

POLICY = ArraysPolicy(window_max=4, ended_max=6, write_seconds=1.0)


def array(indices: str = "0-9", *, status: JobArrayStatus | None = None, **spec: Any) -> JobArray:
    return JobArray(
        ObjectMeta("sweep", namespace="default", uid="u", generation=1),
        JobArraySpec(indices, JobSpec(roles=()), **spec),
        replace(status or JobArrayStatus(), number=7),
    )


def element(index: int, state: str = "Waiting") -> Job:
    job = make_job(f"sweep-{index}", attempt=1)
    if state == "Running":
        return replace(job, status=replace(job.status, placement=make_placement(["n0"])))
    if state in ("Succeeded", "Failed"):
        ended = (Condition(state, "True"),)
        return replace(job, status=replace(job.status, state=state, conditions=ended))
    return job


def view(found: JobArray, elements: dict[int, Job] | None = None, **more: Any) -> ArrayView:
    indices = parse_indices(found.spec.indices)
    jobs = ElementJobs(elements or {})
    return ArrayView(
        found, indices, decode_set(found.status.finished, indices),
        decode_set(found.status.failed, indices), jobs, POLICY, EPOCH, **more,
    )  # fmt: skip


def kinds(decision: Decision[Action]) -> list[str]:
    return [type(action).__name__ for action in decision.actions]


def created(decision: Decision[Action]) -> list[int]:
    return [a.index for a in decision.actions if isinstance(a, CreateElement)]


def written(decision: Decision[Action]) -> JobArrayStatus:
    [status] = [a.status for a in decision.actions if isinstance(a, WriteArrayStatus)]
    return status


def test_ends_are_written_together_and_first_and_nothing_is_deleted_before_they_were_seen() -> None:
    jobs = {0: element(0, "Succeeded"), 1: element(1, "Failed"), 2: element(2, "Running")}
    first = decide_array(view(array(parallelism=3), jobs))
    assert kinds(first) == ["WriteArrayStatus", "CreateElement", "CreateElement"]
    status = written(first)
    assert (status.finished, status.failed) == ("0-1", "1")
    assert created(first) == [3, 4], "ended elements make room"
    seen = array(parallelism=3, status=status)
    then = decide_array(view(seen, {**jobs, 3: element(3), 4: element(4)}))
    assert kinds(then) == ["DeleteElement", "DeleteElement"]


def test_status_writes_keep_their_distance_but_the_last_one_does_not_wait() -> None:
    going = array("0-1", status=JobArrayStatus(state="Running"))
    jobs = {0: element(0, "Succeeded"), 1: element(1, "Running")}
    soon = decide_array(view(going, jobs, written_at=EPOCH - 0.25))
    assert (kinds(soon), soon.wake_at) == ([], EPOCH + 0.75)
    over = decide_array(view(going, {0: jobs[0], 1: element(1, "Succeeded")}, written_at=EPOCH))
    assert written(over).state == "Succeeded"


def test_the_texts_of_sets_are_made_only_where_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They grow with the array, and a decision is made far more often than a write."""
    made = list[int]()

    def encode(elements: int, indices: Indices) -> str:
        made.append(elements)
        return encode_set(elements, indices)

    monkeypatch.setattr(lifecycle, "encode_set", encode)
    going = array(status=JobArrayStatus(state="Running", finished="0-2", failed="1"))
    jobs = {3: element(3, "Succeeded"), 4: element(4, "Running")}
    soon = decide_array(view(going, jobs, written_at=EPOCH - 0.25))
    assert (soon.wake_at, made) == (EPOCH + 0.75, [])
    status = written(decide_array(view(going, jobs, written_at=EPOCH - 1.0)))
    assert (status.finished, status.failed, made) == ("0-3", "1", [0b1111])


@pytest.mark.parametrize(
    ("failed", "stopped", "bytes_max"),
    [
        (0.0, 0.0, 2_000), (0.000_02, 0.0, 2_000), (0.000_1, 0.0, 2_000), (0.01, 0.0, 200_000),
        (0.5, 0.0, 200_000), (0.9, 0.0, 200_000), (1.0, 0.0, 2_000), (1 / 3, 1 / 3, 340_000),
    ],
)  # fmt: skip
def test_the_status_of_a_million_elements_stays_small_however_they_end(
    failed: float, stopped: float, bytes_max: int
) -> None:
    """Three ends in no order are 1.58 bits each, which no text has in 200 kB."""
    rng, last = random.Random(f"{failed} {stopped}"), 999_999
    drawn = [rng.random() for _ in range(last)]
    indices = parse_indices("0-999999")
    sets = {
        "finished": (1 << last) - 1,
        "failed": set_of([p for p, each in enumerate(drawn) if each < failed]),
        "stopped": set_of([p for p, each in enumerate(drawn) if failed <= each < failed + stopped]),
    }
    texts = {name: encode_set(elements, indices) for name, elements in sets.items()}
    going = array("0-999999", status=JobArrayStatus(state="Running", **texts))
    waits = view(going, {last: element(last)}, stopped=sets["stopped"])
    assert len(msgspec.json.encode(going.status)) <= bytes_max
    status = written(decide_array(waits))
    assert status.elements.total - status.elements.waiting == last
    assert len(msgspec.json.encode(status)) <= bytes_max


def test_no_more_wait_than_the_window_and_no_more_ended_than_are_recorded_soon() -> None:
    assert created(decide_array(view(array("0-99")))) == [0, 1, 2, 3]
    running = {p: element(p, "Running") for p in range(10)}
    assert created(decide_array(view(array("0-99"), running))) == [10, 11, 12, 13]
    ended = {p: element(p, "Succeeded") for p in range(5)}
    assert created(decide_array(view(array("0-99"), ended))) == [5]


def test_what_the_server_refuses_is_asked_again_with_one_element_after_a_while() -> None:
    refusal = ElementRefusal("exceeded quota", EPOCH + 5)
    waiting = decide_array(view(array(), refusal=refusal))
    assert created(waiting) == []
    assert waiting.wake_at == EPOCH + 5
    verdict = written(waiting).verdict
    assert verdict is not None
    assert (verdict.reason, verdict.facts) == ("ElementRefused", {"message": "exceeded quota"})
    assert created(decide_array(view(array(), refusal=replace_at(refusal)))) == [0]
    taken = decide_array(view(array(), refused={1: refusal}))
    assert created(taken) == [0, 2, 3, 4]
    assert taken.wake_at == EPOCH + 5


def replace_at(refusal: ElementRefusal) -> ElementRefusal:
    return ElementRefusal(refusal.message, EPOCH)


def test_the_first_element_that_waits_speaks_for_all() -> None:
    told = VerdictStatus("Waiting", "InsufficientCapacity", {"short": 3})
    first = element(3)
    first = replace(first, status=replace(first.status, verdict=told))
    status = written(decide_array(view(array(), {3: first, 4: element(4)})))
    assert status.verdict == told


def test_a_stop_is_written_before_anything_is_cancelled_and_is_final() -> None:
    jobs = {0: element(0, "Failed"), 1: element(1, "Running"), 2: element(2)}
    first = decide_array(view(array(max_failed=0), jobs))
    assert kinds(first) == ["WriteArrayStatus"]
    seen = array(max_failed=5, status=written(first))
    then = decide_array(view(seen, jobs))
    cancelled = [a.job.metadata.name for a in then.actions if isinstance(a, CancelElement)]
    assert cancelled == ["sweep-1", "sweep-2"]
    last = {p: element(p, "Failed") for p in range(3)}
    ended = written(decide_array(view(seen, last)))
    assert (ended.state, ended.elements.failed, ended.elements.waiting) == ("Failed", 3, 7)


def test_an_array_that_breaks_a_rule_starts_nothing_and_says_which() -> None:
    decision = decide_array(view(array(), faults=(invalid("spec.template.team", "x", "no"),)))
    assert kinds(decision) == ["WriteArrayStatus"]
    verdict = written(decision).verdict
    assert verdict is not None
    assert verdict.facts == {"field": 'spec.template.team: Invalid value: "x": no'}


def test_an_ended_array_deletes_what_is_left_and_goes_in_its_time() -> None:
    over = JobArrayStatus(
        state="Succeeded", conditions=(Condition("Succeeded", "True"),), finished="0-1",
        finished_at=format_time(EPOCH),
    )  # fmt: skip
    ended = array("0-1", status=over, ttl_seconds_after_finished=10)
    decision = decide_array(view(ended, {1: element(1)}))
    assert (kinds(decision), decision.wake_at) == (["DeleteElement"], EPOCH + 10)
    due = decide_array(replace(view(ended), now=EPOCH + 10))
    assert due.actions == (DeleteArray(ended),)


def test_whatever_stops_it_at_any_action_no_element_is_lost_and_none_runs_twice() -> None:
    """A model of the world: each decision is cut off after some actions, and begun again."""
    for seed in range(60):
        rng = random.Random(f"cut {seed}")
        count = rng.randint(1, 40)
        now, world, found = EPOCH, dict[int, str](), array(f"0-{count - 1}")
        found = replace(found, spec=replace(found.spec, parallelism=rng.choice([None, 1, 3])))
        ran = list[int]()
        for _ in range(2_000):
            jobs = {position: element(position, state) for position, state in world.items()}
            decision = decide_array(replace(view(found, jobs), now=now))
            for action in decision.actions[: rng.randint(0, len(decision.actions))]:
                match action:
                    case WriteArrayStatus(status=status):
                        found = replace(found, status=status)
                    case CreateElement(index=index):
                        assert index not in world
                        assert not set_of([index]) & decode_set(
                            found.status.finished, parse_indices(found.spec.indices)
                        )
                        world[index] = "Waiting"
                    case DeleteElement(job=job):
                        assert world.pop(int(job.metadata.name.removeprefix("sweep-"))) in (
                            "Succeeded", "Failed",
                        )  # fmt: skip
                    case _:
                        raise AssertionError(action)
            for position, state in sorted(world.items()):
                if state == "Waiting" and rng.random() < 0.5:
                    world[position] = "Running"
                elif state == "Running" and rng.random() < 0.5:
                    world[position] = rng.choice(["Succeeded", "Succeeded", "Failed"])
                    ran.append(position)
            states = list(world.values())
            assert states.count("Waiting") <= POLICY.window_max
            unfinished = states.count("Waiting") + states.count("Running")
            assert unfinished <= (found.spec.parallelism or count)
            now += 0.3
            if found.is_finished and not world:
                break
        assert found.is_finished, f"seed {seed}: {found.status}"
        assert sorted(ran) == list(range(count)), f"seed {seed}"


def test_each_element_has_its_own_values_of_the_parameters_by_its_index() -> None:
    swept = array("1,3", parameters={"lr": ("0", "0.1", "0.2", "$(0.3)"), "n": ("a",)})
    [first, second] = [dict(element_environment(swept, parse_indices("1,3"), at)) for at in (1, 3)]
    assert (first["FAIRLEAD_PARAM_lr"], second["FAIRLEAD_PARAM_lr"]) == ("0.1", "$$(0.3)")
    assert "FAIRLEAD_PARAM_n" not in first, "admission refuses a list that is too short"


def test_elements_carry_what_is_said_of_the_run_but_not_the_changed_code() -> None:
    source = msgspec.json.encode(RunSource("c0ffee", "main", ("a.py",), "+x")).decode()
    kept = {names.SUBMITTED_BY: "ana", names.RUN_TAGS: "x", names.RUN_NOTE: "by hand"}
    annotations = {**kept, names.RUN_SOURCE: source, "mine": "stays"}
    found = element_annotations(ObjectMeta("sweep", annotations=annotations))
    assert found == {**kept, names.RUN_SOURCE: '{"commit":"c0ffee","branch":"main"}'}
    assert element_annotations(ObjectMeta("sweep")) == {}


@pytest.mark.parametrize(
    ("parameters", "field", "message"),
    [
        ({"lr": ("1",)}, "spec.parameters.lr", "must have a value for each index up to 9"),
        ({"a-b": ("1",) * 10}, "spec.parameters.a-b", "must be letters, digits and underscores"),
        ({"a": ("x" * 1_001,) * 10}, "spec.parameters.a[0]", "at most 1000 characters"),
        ({f"p{i}": ("1",) * 10 for i in range(65)}, "spec.parameters", "at most 64 parameters"),
        (
            {f"p{i}": ("x" * 999,) * 10 for i in range(40)},
            "spec.parameters",
            "than 262144 bytes",
        ),
    ],
)
def test_parameters_that_no_element_could_have_are_refused(
    parameters: dict[str, tuple[str, ...]], field: str, message: str
) -> None:
    found = [each for each in validate_array(array(parameters=parameters))
             if each.field.startswith("spec.parameters")]  # fmt: skip
    assert [each.field for each in found] == [field]
    assert message in found[0].message


def test_parameters_of_an_array_cannot_be_changed() -> None:
    before = {"spec": {"indices": "0-1", "template": {}, "parameters": {"a": ["1", "2"]}}}
    after = {"spec": {**before["spec"], "parameters": {"a": ["1", "3"]}}}
    assert validate_array_update(before, before) == []
    assert [each.field for each in validate_array_update(before, after)] == ["spec.parameters"]
