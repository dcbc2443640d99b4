"""The log of decisions: what it keeps, and that each can be made again from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.controllers.test_scheduler import World, check

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import (
    Container,
    ContainerStatus,
    EnvVar,
    PodTemplate,
    ResourceRequirements,
)
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.resources import JOBS, NODES, TEAMS
from fairlead.app.queries.decision_file import (
    DecisionFileError,
    RecordedDecision,
    digest_of,
    read_lines,
    write_lines,
)
from fairlead.controllers.placing.decision_log import CYCLES_MAX, ENTRIES_MAX, Cycle, DecisionLog
from fairlead.testing.builders import (
    make_job,
    make_node,
    make_nodes,
    make_pod,
    make_role,
    make_team,
)

SECRET = "hunter2"


def file_of(log: DecisionLog, number: int) -> list[bytes]:
    found = log.snapshot(number)
    assert found is not None
    return list(write_lines(*found))


def saved(log: DecisionLog, number: int) -> RecordedDecision:
    return read_lines(file_of(log, number))


def acted(log: DecisionLog, kind: str) -> Cycle:
    """Return the latest decision with an action of this kind."""
    return next(each for each in log.cycles if kind in each.action_counts)


def names_of(objects: Sequence[Any]) -> list[str]:
    return [each.metadata.name for each in objects]


def test_a_decision_has_the_objects_that_it_was_made_on_whatever_changes_later() -> None:
    async def main(world: World) -> None:
        log = world.scheduler.decisions
        await world.create(*make_nodes(2, gpus=8), make_job("a", count=2, gpus=8))
        await asyncio.sleep(5)
        number = acted(log, "PlaceJob").number
        then = saved(log, number)
        await world.client.delete(JOBS, "a", namespace="default")
        await world.client.patch(NODES, "node-0001", {"spec": {"unschedulable": True}})
        await world.client.patch(NODES, "node-0001", {"metadata": {"labels": {"x": "y"}}})
        await world.create(make_job("b", count=1, gpus=8))
        await asyncio.sleep(5)
        assert acted(log, "PlaceJob").number > number
        now = saved(log, number)
        objects = now.snapshot.objects
        assert (names_of(objects.nodes), names_of(objects.jobs)) == (
            ["node-0000", "node-0001"], ["a"],
        )  # fmt: skip
        assert not any(node.spec.unschedulable for node in objects.nodes)
        assert now.snapshot == then.snapshot
        assert now.replay() == now.actions == then.actions
        assert [write.action for write in now.actions] == ["PlaceJob"]

    check(main)


def test_decisions_that_did_nothing_give_way_but_for_the_last_and_use_up_no_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.controllers.placing.decision_log.ENTRIES_MAX", 8)

    async def main(world: World) -> None:
        log = world.scheduler.decisions
        await world.create(*make_nodes(1, gpus=8), make_job("large", count=2, gpus=8))
        await asyncio.sleep(1)
        number = acted(log, "WriteVerdict").number
        for step in range(10):  # a change that lets the job be looked at again, for nothing
            labels = {"metadata": {"labels": {"step": str(step)}}}
            await world.client.patch(NODES, "node-0000", labels)
            await asyncio.sleep(1)
        numbers = [each.number for each in log.cycles]
        assert numbers[0] >= number + 10
        assert [bool(each.actions) for each in log.cycles[1:]] == [True] * (len(numbers) - 1)
        node = saved(log, number).snapshot.objects.nodes[0]
        assert "step" not in node.metadata.labels
        assert saved(log, numbers[0]).snapshot.objects.nodes[0].metadata.labels["step"] == "9"

    check(main)


def test_a_verdict_that_is_not_due_again_is_an_input() -> None:
    """The room changed since; a state that was built anew would write other numbers."""

    async def main(world: World) -> None:
        log = world.scheduler.decisions
        await world.create(*make_nodes(3, gpus=8), make_job("large", count=9, gpus=8, priority=9))
        await asyncio.sleep(30)
        await world.create(make_job("small", gpus=8))
        await asyncio.sleep(0.5)
        cycle = acted(log, "PlaceJob")
        await world.create(make_job("other", gpus=8))
        await asyncio.sleep(0.5)
        later = log.cycles[0]
        assert ("default", "large") in [each.job for each in later.recall.verdicts]
        for each in (cycle, later):
            recorded = saved(log, each.number)
            assert recorded.replay() == recorded.actions

    check(main)


def test_the_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (CYCLES_MAX, ENTRIES_MAX) == (200, 10_000)
    monkeypatch.setattr("fairlead.controllers.placing.decision_log.CYCLES_MAX", 3)

    async def main(world: World) -> None:
        log = world.scheduler.decisions
        await world.create(*make_nodes(8, gpus=8))
        for name in "abcdef":
            await world.create(make_job(name, gpus=8))
            await asyncio.sleep(1)
        assert len(log.cycles) == 3
        first = log.cycles[-1].number
        assert log.snapshot(first - 1) is None
        monkeypatch.setattr("fairlead.controllers.placing.decision_log.ENTRIES_MAX", 2)
        for number in range(8):  # each node once
            labels = {"metadata": {"labels": {"x": "y"}}}
            await world.client.patch(NODES, f"node-{number:04}", labels)
        await asyncio.sleep(1)
        assert sum(each.size for each in log.cycles) <= 2

    check(main)


def test_the_log_is_bounded_by_the_size_of_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of a megabyte that changes with every decision is kept a few times only."""
    bytes_max = 200_000
    monkeypatch.setattr("fairlead.controllers.placing.decision_log.BYTES_MAX", bytes_max)

    async def main(world: World) -> None:
        log = world.scheduler.decisions
        large = make_job("large", count=2, gpus=8)
        meta = replace(large.metadata, annotations={"a": "x" * 30_000})
        await world.create(*make_nodes(1, gpus=8), replace(large, metadata=meta))
        for number in range(20):
            await world.create(make_job(f"job-{number}", gpus=0, cpu=1))
            await asyncio.sleep(1)
            labels = {"metadata": {"labels": {"x": str(number)}}}
            await world.client.patch(JOBS, "large", labels, namespace="default")
            await asyncio.sleep(1)
        kept = [each for cycle in log.cycles for _, each in cycle.before()]
        total = sum(len(msgspec.json.encode(each.obj)) for each in kept if each.obj is not None)
        assert bytes_max // 2 < total <= bytes_max
        assert sum(len(each.data) for each in kept) == total, "nothing is kept decoded"
        assert vars(log)["_byte_count"] == total
        packed = [p[1] for each in log.cycles if (p := each._packed) is not None]
        assert len(packed) >= len(log.cycles) - 2
        assert sum(map(len, packed)) < total // 20, "and only the latest is kept as it is"
        assert vars(log)["_size"] == sum(each.size for each in log.cycles)

    check(main)


def of_team(team: str, job: Job) -> Job:
    return replace(job, spec=replace(job.spec, team=team))


def test_what_teams_have_used_is_an_input() -> None:
    async def main(world: World) -> None:
        log = world.scheduler.decisions
        for name in ("red", "blue"):
            await world.client.create(TEAMS, to_wire(make_team(name, namespaces=["default"])))
        await world.create(*make_nodes(1, gpus=8), of_team("red", make_job("a", gpus=8)))
        await asyncio.sleep(5000)
        await world.client.delete(JOBS, "a", namespace="default")
        await world.create(
            of_team("red", make_job("b", gpus=8, created=1.0)),
            of_team("blue", make_job("c", gpus=8, created=2.0)),
        )
        await asyncio.sleep(5)
        recorded = saved(log, acted(log, "PlaceJob").number)
        assert recorded.snapshot.carried.shares.sums["red"][0] > 1000.0
        assert [w.name for w in recorded.replay() if w.action == "PlaceJob"] == ["c"]
        assert recorded.replay() == recorded.actions

    check(main)


def secret_job() -> Job:
    role = make_role(gpus=8)
    spec = role.template.spec
    container = Container(
        "main", image=SECRET, command=(SECRET,), args=(SECRET,), env=(EnvVar("K", SECRET),),
        working_dir=f"/{SECRET}", resources=spec.containers[0].resources,
    )  # fmt: skip
    notes = {SUBMITTED_BY: "ann", "example.com/note": SECRET}
    metadata = ObjectMeta(annotations={"example.com/note": SECRET})
    template = PodTemplate(metadata, replace(spec, containers=(container,)))
    job = make_job("a", roles=[replace(role, template=template)])
    return replace(job, metadata=replace(job.metadata, annotations=notes))


def test_what_is_private_and_decides_nothing_is_not_in_the_file() -> None:
    async def main(world: World) -> None:
        log = world.scheduler.decisions
        await world.create(*make_nodes(1, gpus=8), secret_job())
        await asyncio.sleep(5)
        lines = file_of(log, acted(log, "PlaceJob").number)
        assert SECRET not in b"".join(lines).decode()
        [job] = read_lines(lines).snapshot.objects.jobs
        assert job.metadata.annotations == {SUBMITTED_BY: "ann"}
        assert job.spec.roles[0].template.spec.containers[0].resources.limits

    check(main)


def test_a_decision_by_images_is_made_again_without_their_names() -> None:
    async def main(world: World) -> None:
        log = world.scheduler.decisions
        other = make_job("b", roles=[make_role(gpus=8, image=f"r.io/{SECRET}/a")])
        reported = (("r.io/other:1",), (f"r.io/{SECRET}/a:latest", "docker.io/library/train:1"))
        nodes = [make_node(n, images=each) for n, each in zip("mn", reported, strict=True)]
        await world.create(*nodes, other)
        await asyncio.sleep(5)
        number = acted(log, "PlaceJob").number
        lines = file_of(log, number)
        text = b"".join(lines).decode()
        assert SECRET not in text
        assert "r.io" not in text
        recorded = read_lines(lines)
        assert recorded.replay() == recorded.actions
        assert world.placed("b") == ["n"]
        swapped = [line.replace(b'"image":"image-', b'"image":"none-') for line in lines]
        assert swapped != lines
        assert read_lines(swapped).replay() != recorded.actions

    check(main)


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """The file of a decision that places a job on one of two nodes."""
    found: list[bytes] = []

    async def main(world: World) -> None:
        await world.create(*make_nodes(2, gpus=8), make_job("a", gpus=8))
        await asyncio.sleep(5)
        log = world.scheduler.decisions
        found.extend(file_of(log, acted(log, "PlaceJob").number))

    check(main)
    return found


def test_a_file_with_other_inputs_gives_another_decision(lines: list[bytes]) -> None:
    recorded = read_lines(lines)
    assert digest_of(recorded.replay()) == recorded.digest
    cordoned = [line.replace(b'"name":"node-0000"', b'"name":"node-0009"') for line in lines]
    assert cordoned != lines
    made = read_lines(cordoned).replay()
    assert made != recorded.actions
    assert digest_of(made) != recorded.digest


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "why"),
    [
        (b'"version":1', b'"version":2', 1, "version", "version 2 of the format is not known"),
        (b"fairlead.dev/decision", b"x", 1, "format", "the format is fairlead.dev/decision"),
        (b'"now":', b'"now":"x","y":', 1, "now", "Expected `float`, got `str`"),
        (b'"backfills":true', b'"backfills":7', 1, "policy", "Expected `bool`, got `int`"),
        (b'"kind":"Node"', b'"kind":"\\u001bX"', 2, "kind", "'\x1bX' is none of"),
        (b'"uid":"', b'"uid":1,"x":"', 2, "object.metadata.uid", "Expected `str`, got `int`"),
        (b'{"kind":"Node"', b'{"kind":', 2, "", "not JSON that can be read"),
    ],
)
def test_a_file_that_is_none_is_refused_at_its_place(
    lines: list[bytes], old: bytes, new: bytes, line: int, field: str, why: str
) -> None:
    changed = list(lines)
    assert old in changed[line - 1]
    changed[line - 1] = changed[line - 1].replace(old, new, 1)
    with pytest.raises(DecisionFileError) as caught:
        read_lines(changed)
    assert (caught.value.line, caught.value.field) == (line, field)
    assert why in caught.value.why


def test_lost_lines_are_found(lines: list[bytes]) -> None:
    with pytest.raises(DecisionFileError, match="lines are lost"):
        read_lines(lines[:-1])
    with pytest.raises(DecisionFileError, match="not JSON"):
        read_lines([])
    with pytest.raises(DecisionFileError, match=r"not JSON|Expected"):
        read_lines([b'{"format":' + b"[" * 100_000])


def test_a_recorded_decision_has_what_a_pod_that_is_resized_takes() -> None:
    async def main(world: World) -> None:
        log = world.scheduler.decisions
        grown = ResourceRequirements({"nvidia.com/gpu": 6}, {"nvidia.com/gpu": 6})
        state = ContainerStatus("main", image=SECRET, resources=grown)
        other = make_pod("other", node="node-0000", gpus=1)
        other = replace(other, status=replace(other.status, container_statuses=(state,)))
        await world.create(make_node("node-0000", gpus=8), other, make_job("fits", gpus=2))
        await world.create(make_job("waits", gpus=2))
        await asyncio.sleep(5)
        recorded = saved(log, acted(log, "WriteVerdict").number)
        (pod,) = recorded.snapshot.objects.pods
        assert pod.status.container_statuses[0].resources == grown
        assert recorded.replay() == recorded.actions
        assert SECRET.encode() not in b"".join(file_of(log, acted(log, "WriteVerdict").number))

    check(main)
