"""Whatever happens to a job's pods and nodes, and wherever the controller dies, the job ends well.

The world of `jobs_world` asserts at every action: no pod before its placement and its attempt's
beginning, no pods of two attempts alive at once, no deletion before the end is written, no end
without a record or with live pods. Each decision is made from the objects alone, and only some of
its actions are performed: that is what a controller that dies and starts again does.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.decide.jobs_world import World, new_job

from fairlead.api.jobs.job import Job, Restart, RestartPolicy
from fairlead.api.names import ATTEMPT, EXIT_STOPPED
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.testing.builders import make_pod_spec

LIMIT, INFRASTRUCTURE_LIMIT = 2, 3
ROUNDS_MAX = 40

Step = tuple[str, int]


def _pod(world: World, number: int) -> str | None:
    names = sorted(world.pods)
    return names[number % len(names)] if names else None


def _end(world: World, number: int, **how: int) -> None:
    name = _pod(world, number)
    if name is not None and world.pods[name].status.phase == "Running":
        world.end_pod(name, **how)


def _vanish(world: World, number: int) -> None:
    name = _pod(world, number)
    if name is not None:
        del world.pods[name]


def _evict(world: World, number: int) -> None:
    name = _pod(world, number)
    if name is not None and world.pods[name].metadata.deletion_timestamp is None:
        meta = replace(world.pods[name].metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        world.pods[name] = replace(world.pods[name], metadata=meta)


def _node(world: World, number: int) -> str:
    return world.nodes[number % len(world.nodes)]


def _heal(world: World, number: int) -> None:
    world.troubles.pop(_node(world, number), None)


def _wait(world: World, number: int) -> None:
    world.now += (0.5, 3.0, 45.0, 400.0)[number % 4]


def _wish(world: World, **wish: bool) -> None:
    if world.job is not None:
        world.change_spec(**wish)


def _change_template(world: World, number: int) -> None:
    if world.job is not None:
        [role] = world.job.spec.roles
        spec = make_pod_spec(image=f"train:{number}")
        world.change_spec(roles=(replace(role, template=replace(role.template, spec=spec)),))


def _delete(world: World) -> None:
    if world.job is not None and world.job.metadata.deletion_timestamp is None:
        world.delete()


def _report(world: World, number: int) -> None:
    name = _pod(world, number)
    if name is not None:
        world.report(name, f'{{"step": {number}, "checkpointStep": {number // 2}}}')


def _schedule(world: World) -> None:
    if len(world.troubles) < len(world.nodes):
        world.schedule()


def _go(world: World) -> None:
    """Bring the job as far as nodes and wishes allow, short of its end."""
    for _ in range(3):
        world.settle()
        _schedule(world)
        world.settle()
        world.run_pods()
    world.settle()


STEPS: dict[str, Callable[[World, int], object]] = {
    "act": lambda w, n: w.act(n % 4),
    "act all": lambda w, n: w.act(),
    "go": lambda w, n: _go(w),
    "settle": lambda w, n: w.settle(),
    "schedule": lambda w, n: _schedule(w),
    "run": lambda w, n: w.run_pods(),
    "reap": lambda w, n: w.reap_pods(),
    "exit 0": lambda w, n: _end(w, n),
    "exit 1": lambda w, n: _end(w, n, exit_code=1),
    "exit 75": lambda w, n: _end(w, n, exit_code=EXIT_STOPPED),
    "kill": lambda w, n: _end(w, n, signal=9),
    "vanish": _vanish,
    "evict": _evict,
    "report": _report,
    "silence": lambda w, n: w.lose_node(_node(w, n)),
    "remove node": lambda w, n: w.lose_node(_node(w, n), is_gone=True),
    "heal": _heal,
    "wait": _wait,
    "change template": _change_template,
    "suspend": lambda w, n: _wish(w, suspend=True),
    "resume": lambda w, n: _wish(w, suspend=False),
    "cancel": lambda w, n: _wish(w, cancel=True),
    "delete": lambda w, n: _delete(w),
}
#: What mostly happens, so that jobs get somewhere before trouble comes.
USUAL = ("go", "go", "act", "reap", "wait", "settle")
FAULTS = ("exit 1", "exit 75", "kill", "vanish", "evict", "silence", "remove node", "heal")
#: One wish in a while: most jobs that are cancelled tell nothing more.
NAMES = (*USUAL * 2, *FAULTS, *sorted(STEPS))

steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 40)), max_size=50)


def _finish(world: World) -> None:
    """Let all faults stop: every job then ends or is held, and nothing is left to do."""
    world.troubles.clear()
    for _ in range(ROUNDS_MAX):
        if world.job is None or world.job.is_finished:
            break
        if world.job.spec.suspend and world.status.state == "Held":
            break
        world.settle()
        world.schedule()
        world.settle()
        world.run_pods()
        world.settle()
        for name in sorted(world.pods):
            if world.pods[name].status.phase == "Running":
                world.end_pod(name)
        world.settle()
        world.reap_pods()
        world.now += 400
    else:
        raise AssertionError(f"never ends: {world.status}")
    world.settle()
    world.reap_pods()
    assert world.settle().actions == ()


def _check(world: World) -> None:
    job = world.job
    if job is None:
        assert not world.pods
        return
    failures = job.status.user_failures + job.status.infrastructure_failures
    assert failures <= world.fault_count, "a failure was counted twice"
    assert job.status.user_failures <= LIMIT + 1
    assert job.status.infrastructure_failures <= INFRASTRUCTURE_LIMIT + 1
    if job.is_finished:
        assert [p for p in world.pods.values() if not p.is_terminal] == []
        assert world.records[job.metadata.uid].status.conditions == job.status.conditions
        ends = [c for c in job.status.conditions if c.type in ("Succeeded", "Failed")]
        assert len(ends) == 1
    by_attempt: dict[str, set[str]] = {}
    for pod in world.pods.values():
        images = by_attempt.setdefault(pod.metadata.labels[ATTEMPT], set())
        images.add(pod.spec.containers[0].image)
    assert all(len(images) == 1 for images in by_attempt.values()), "a gang of two templates"
    numbers = [a.number for a in job.status.attempts]
    assert numbers == sorted(set(numbers))
    assert all(a.finished_at for a in job.status.attempts[:-1])
    if job.is_finished and job.status.attempts:
        assert job.status.attempts[-1].finished_at


def _job(policy: RestartPolicy, least: int) -> Job:
    job = new_job(count=3, min_count=least)
    restart = Restart(policy=policy, limit=LIMIT, infrastructure_limit=INFRASTRUCTURE_LIMIT)
    return replace(job, spec=replace(job.spec, restart=restart, time_limit_seconds=600))


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    script=steps,
    policy=st.sampled_from(RestartPolicy),
    naming=st.sampled_from(PeerNaming),
    least=st.sampled_from([3, 3, 1]),
)
def test_a_job_keeps_every_promise_whatever_happens(
    script: list[Step], policy: RestartPolicy, naming: PeerNaming, least: int
) -> None:
    world = World(_job(policy, least), JobsPolicy(peer_naming=naming, start_seconds_max=1e9))
    for name, number in script:
        STEPS[name](world, number)
        world.fault_count += name in FAULTS
        _check(world)
    _finish(world)
    _check(world)
