"""Members that are slower than the others of their role: who counts as one, and what follows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.attempt import STRAGGLERS_MAX, Straggler
from fairlead.api.jobs.job import Attempt
from fairlead.api.kubernetes.core import Pod
from fairlead.decide.jobs.following.own_work import (
    KEPT_MAX,
    OwnWork,
    WorkTimes,
    compare,
    encode_work,
)
from fairlead.decide.jobs.following.progress import decode_line, read_progress, read_work
from fairlead.decide.jobs.following.stragglers import slow_members
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.model.holdings.suspects import TESTED_MAX, SuspectTable
from fairlead.testing.builders import EPOCH, make_job, make_pod

from .jobs_world import World, new_job

POLICY = JobsPolicy(stragglers_suspect=True)


def _slow(seconds: Sequence[float], *, steps: int = 200, span: float = 400.0) -> list[int]:
    """Return the members that are slow among those with such own work, by index."""
    works = {i: OwnWork(each, steps, span) for i, each in enumerate(seconds)}
    return [i for role in compare({"worker": works}) for i, _ in slow_members(role, POLICY)]


def test_one_member_beyond_both_margins_is_slow() -> None:
    assert _slow([1.0, 1.01, 0.99, 1.0, 1.0, 1.0, 1.0, 1.3]) == [7]
    assert _slow([1.0, 1.01, 0.99, 1.0, 1.0, 1.0, 1.0, 1.19]) == [], "19 percent"
    assert _slow([1.0] * 7 + [1.21]) == [7], "the others are equal: no spread"


def test_where_all_differ_a_margin_in_percent_is_not_enough() -> None:
    spread = [0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5]
    assert _slow(spread) == []
    assert _slow([*spread[:-1], 4.0]) == [8]


def test_of_three_members_it_is_not_clear_which_one_is_slow() -> None:
    assert _slow([1.0, 1.0, 9.0]) == []
    assert _slow([1.0, 1.0, 1.0, 9.0]) == [3]


def test_of_many_slow_members_the_program_is_the_cause() -> None:
    assert _slow([1.0] * 30 + [2.0] * 3) == [30, 31, 32]
    assert _slow([1.0] * 26 + [2.0] * 3) == [], "more than a tenth"
    assert _slow([1.0] * 500 + [2.0] * 4) == [500, 501, 502, 503]
    assert _slow([1.0] * 500 + [2.0] * 5) == [], "more than are written of an attempt"


def test_it_is_slow_over_steps_and_time() -> None:
    times = [1.0] * 7 + [2.0]
    assert _slow(times, steps=49) == []
    assert _slow(times, span=299.0) == []
    assert _slow(times, steps=50, span=300.0) == [7]


def test_roles_are_not_compared_with_each_other() -> None:
    works = {
        "learner": {i: OwnWork(5.0, 100, 400.0) for i in range(4)},
        "actor": {i: OwnWork(0.1, 100, 400.0) for i in range(40)},
    }
    assert [(r.role, r.median) for r in compare(works)] == [("actor", 0.1), ("learner", 5.0)]
    assert not any(slow_members(role, POLICY) for role in compare(works))


def test_a_large_gang_is_compared_once_in_some_reports_and_at_the_end_as_it_is() -> None:
    times = WorkTimes()
    for index in range(80):
        times.take("worker", index, OwnWork(1.0, 100, 400.0))
    before = times.roles
    for index in range(10):
        assert times.roles is before, f"{index} reports"
        times.take("worker", index, OwnWork(9.0, 200, 500.0))
    [now] = times.roles
    assert now.slowest[0] == (0, OwnWork(9.0, 200, 500.0))
    times.take("worker", 79, OwnWork(10.0, 200, 500.0))
    assert times.compared()[0].slowest[0][0] == 79


def test_members_that_nobody_counts_are_not_kept_without_a_bound() -> None:
    times = WorkTimes()
    for index in range(KEPT_MAX + 100):
        times.take("worker", index, OwnWork(1.0, 100, 400.0))
    [role] = times.compared()
    assert role.count == KEPT_MAX


def _noted(annotations: dict[str, str]) -> Pod:
    pod = make_pod("p")
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


def test_what_is_no_own_work_is_none_and_progress_counts_all_the_same() -> None:
    for work in ('"yes"', "[]", '{"seconds":-1,"steps":1,"spanSeconds":1}', '{"seconds":1}',
                 '{"seconds":1e300,"steps":9,"spanSeconds":1}'):  # fmt: skip
        pod = _noted({names.WORK: work, names.PROGRESS: '{"step":7}'})
        assert read_work(pod) is None, work
        line = decode_line(f'{{"step":7,"work":{work}}}'.encode())
        assert line is not None, work
        found = read_progress(pod)
        assert found is not None
        assert found.step == 7
    assert read_work(_noted({names.WORK: "[" * 150})) is None


# In the life of a job


def _world(policy: JobsPolicy = POLICY, count: int = 4) -> World:
    world = World(new_job(count=count), policy=policy)
    world.nodes = tuple(f"n{i}" for i in range(count))
    world.start()
    return world


def _report(world: World, seconds: Sequence[float]) -> None:
    for pod in list(world.pods.values()):
        index = int(pod.metadata.labels[names.INDEX])
        text = encode_work(OwnWork(seconds[index], 200, 400.0))
        notes = {**pod.metadata.annotations, names.WORK: text}
        metadata = replace(pod.metadata, annotations=notes)
        world.pods[pod.metadata.name] = replace(pod, metadata=metadata)


def _latest(world: World) -> Attempt:
    assert world.job is not None
    return world.job.status.attempts[-1]


def test_a_straggler_is_written_once_with_an_event_and_the_gang_runs_on() -> None:
    world = _world()
    _report(world, [1.0, 1.0, 1.5, 1.0])
    world.settle()
    [found] = _latest(world).stragglers
    assert (found.member, found.percent, found.is_suspected) == ("worker-2", 50, True)
    assert world.job is not None
    assert world.job.status.placement is not None
    assert found.node == world.job.status.placement.roles[0].nodes[2]
    assert [text for reason, text in world.events if reason == "MemberSlow"] == [
        f"Slow: worker-2 on {found.node} needs 1.5 s for its own part of a step, the median of 4 "
        "is 1 s: it slows the gang by up to 50%; its node is suspected until it is tested"
    ]
    _report(world, [1.0, 1.0, 1.9, 1.0])
    world.settle()
    assert _latest(world).stragglers == (found,), "what was found stays, whatever is said later"
    assert len(world.pods) == 4
    assert world.job.status.state == "Running"


def test_what_a_kubelet_carries_at_the_end_is_written_after_the_attempt() -> None:
    world = _world()
    job, attempt = world.job, _latest(world)
    assert job is not None
    for index, seconds in enumerate((1.0, 1.0, 2.0, 1.0)):
        name = f"train-1-worker-{index}"
        world.end_pod(name, 1 if index == 0 else 0)
        pod = world.pods[name]
        [status] = pod.status.container_statuses
        assert status.state.terminated is not None
        work = encode_work(OwnWork(seconds, 200, 400.0))
        message = f'{{"step":9,"work":{work}}}'
        state = replace(status.state, terminated=replace(status.state.terminated, message=message))
        status = replace(status, state=state)
        world.pods[name] = replace(pod, status=replace(pod.status, container_statuses=(status,)))
    world.now += 60
    world.settle()
    ended = _latest(world)
    assert (ended.number, ended.reason != "") == (attempt.number, True)
    assert [(each.member, each.node) for each in ended.stragglers] == [("worker-2", "n2")]


def test_a_tenant_who_reports_at_will_writes_a_few_records_an_attempt() -> None:
    world = _world(count=40)
    for slow in range(40):
        _report(world, [9.0 if i == slow else 1.0 for i in range(40)])
        world.settle()
    assert len(_latest(world).stragglers) == STRAGGLERS_MAX
    assert len([1 for reason, _ in world.events if reason == "MemberSlow"]) == STRAGGLERS_MAX


def test_a_member_that_is_not_where_the_placement_has_it_accuses_no_node() -> None:
    world = _world()
    _report(world, [1.0, 1.0, 1.5, 1.0])
    name = next(n for n in world.pods if n.endswith("-2"))
    pod = world.pods[name]
    world.pods[name] = replace(pod, spec=replace(pod.spec, node_name="victim"))
    world.act()
    [found] = _latest(world).stragglers
    assert (found.node, found.is_suspected) == ("", False)


def _accusing(name: str, nodes: Sequence[str], *, suspected: bool = True) -> SuspectTable:
    table = SuspectTable()
    _accuse(table, name, nodes, suspected=suspected)
    return table


def _accuse(table: SuspectTable, name: str, nodes: Sequence[str], *, suspected: bool) -> None:
    job = make_job(name)
    stragglers = tuple(
        Straggler("worker-0", node, 2, 1, 4, "2026-01-01T00:00:00Z", suspected) for node in nodes
    )
    attempt = Attempt(1, finished_at="2026-01-01T09:00:00Z", stragglers=stragglers)
    job = replace(job, status=replace(job.status, attempts=(attempt,)))
    table.put_job(job.metadata.key, job)


def test_a_node_is_suspected_from_the_end_of_the_slow_attempt_on() -> None:
    assert _accusing("a", ["n1"]).since(EPOCH - 1e9) == ["n1"]
    [at] = _accusing("a", ["n1"]).signs_since(0.0).values()
    [early] = _accusing("a", ["n1"]).signs_since(at - 1).values()
    assert early == at, "when the node can be tested, not when it was found"
    assert _accusing("a", ["n1"], suspected=False).since(0.0) == []


def test_a_team_that_calls_every_node_slow_makes_few_suspects() -> None:
    table = SuspectTable()
    for number in range(30):
        _accuse(table, f"job-{number}", [f"n{number * 4 + i}" for i in range(4)], suspected=True)
    assert len(table.since(0.0)) == TESTED_MAX
