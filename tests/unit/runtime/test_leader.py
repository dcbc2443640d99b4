"""Two candidates, one lease, under virtual time: who leads when, and what a late write can do."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Lease
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, LEASES, PODS
from fairlead.api.status import (
    Conflict,
    Forbidden,
    NotFound,
    StatusDetails,
    TooManyRequests,
    Unavailable,
)
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.leader_election import LeaseTimes, LeaveLease, TakeLease, campaign, see
from fairlead.decide.reasons import Reason
from fairlead.runtime.client import Client, ClientWrapper, Request
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.leading.fencing import LeaderClient, fence, needs_fence
from fairlead.runtime.leading.leader import LeaderElector, LeaderOptions, LeaderTerm
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_placement
from fairlead.testing.fake_client import FakeClient

OPTIONS = LeaderOptions(namespace="default")
TIMES = OPTIONS.times


def now() -> float:
    return asyncio.get_running_loop().time()


class Line(ClientWrapper):
    """A client whose calls hang while the line is down, before or after they are applied.

    Their answers may also be lost, or come late.
    """

    def __init__(self, inner: FakeClient) -> None:
        super().__init__(inner)
        self.up = asyncio.Event()
        self.up.set()
        self.loses_answers = False
        self.answers_late_seconds = 0.0

    async def call(self, request: Request[Any]) -> Any:
        await self.up.wait()
        answer = await super().call(request)
        if self.loses_answers:
            raise Unavailable("the answer was lost")
        await asyncio.sleep(self.answers_late_seconds)
        await self.up.wait()
        return answer


def mend(line: Line) -> None:
    line.up.set()
    line.loses_answers = False
    line.answers_late_seconds = 0.0


@dataclass
class Span:
    """One leadership as the candidate itself saw it."""

    who: str
    begun_at: float
    ended_at: float = float("inf")


@dataclass
class Stage:
    """One API, several candidates."""

    api: FakeClient = field(default_factory=FakeClient)
    spans: list[Span] = field(default_factory=list)
    lines: dict[str, Line] = field(default_factory=dict)
    electors: dict[str, LeaderElector] = field(default_factory=dict)

    def candidate(self, name: str, seed: int = 1) -> Awaitable[None]:
        line = self.lines[name] = Line(self.api)
        elector = self.electors[name] = LeaderElector(
            line, name, clock=LoopClock(1e9), rng=random.Random(f"{name}{seed}"), options=OPTIONS
        )

        async def lead(term: LeaderTerm) -> None:
            span = Span(name, now())
            self.spans.append(span)
            try:
                while not term.is_over:  # what is let out is what counts
                    await asyncio.sleep(0.05)
                    span.ended_at = now() if not term.is_over else span.ended_at
            finally:
                span.ended_at = min(now(), span.ended_at)

        return elector.run(lead)

    def leaders(self) -> list[str]:
        return [name for name, elector in self.electors.items() if elector.is_leading]

    def lease(self) -> Lease:
        return self.api.stored(LEASES)[0]


def elector_of(client: Client) -> LeaderElector:
    """Return the elector "a", which asks by this client."""
    return LeaderElector(client, "a", clock=LoopClock(0.0), rng=random.Random(1), options=OPTIONS)


@asynccontextmanager
async def two_candidates() -> AsyncIterator[Stage]:
    """Let "a" lead, and "b" wait for it."""
    stage = Stage()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stage.candidate("a"))]
        await asyncio.sleep(5)
        tasks.append(group.create_task(stage.candidate("b")))
        yield stage
        for task in tasks:
            task.cancel()


def test_one_leads_and_hands_over_at_once_when_it_stops() -> None:
    async def main() -> None:
        stage = Stage()
        async with asyncio.TaskGroup() as group:
            a = group.create_task(stage.candidate("a"))
            await asyncio.sleep(5)
            b = group.create_task(stage.candidate("b"))
            await asyncio.sleep(60)
            assert stage.leaders() == ["a"]
            assert stage.electors["b"].holder == "a"
            assert all(elector.is_in_touch for elector in stage.electors.values())
            stopped_at = now()
            a.cancel()
            await asyncio.sleep(TIMES.look_every_seconds + 0.01)
            assert stage.leaders() == ["b"]
            assert stage.spans[0].ended_at <= stage.spans[1].begun_at
            assert stage.spans[1].begun_at - stopped_at <= TIMES.look_every_seconds
            assert stage.lease().spec.lease_transitions == 1
            b.cancel()
        assert stage.lease().spec.holder_identity == ""

    run(main())


def test_a_leader_that_is_cut_off_falls_silent_before_the_other_begins() -> None:
    async def main() -> None:
        async with two_candidates() as stage:
            await asyncio.sleep(20)
            cut_at = now()
            stage.lines["a"].up.clear()
            await asyncio.sleep(TIMES.duration_seconds + TIMES.look_every_seconds + 0.1)
            assert stage.leaders() == ["b"]
            first, second = stage.spans
            assert first.ended_at <= cut_at + TIMES.renew_seconds_max
            margin = TIMES.duration_seconds - TIMES.renew_seconds_max - TIMES.renew_every_seconds
            assert second.begun_at - first.ended_at >= margin
            stage.lines["a"].up.set()
            await asyncio.sleep(60)
            assert stage.leaders() == ["b"], "who comes back takes nothing away"

    run(main())


def test_a_renewal_counts_from_its_start_however_late_its_answer_comes() -> None:
    """Others count from the write, which the API applied long before the leader learns of it."""

    async def main() -> None:
        async with two_candidates() as stage:
            await asyncio.sleep(20)
            before = stage.lease().spec.renew_time
            stage.lines["a"].answers_late_seconds = 7.5
            while stage.lease().spec.renew_time == before:
                assert now() < 30, "not renewed"
                await asyncio.sleep(0.01)
            applied_at = now()
            await asyncio.sleep(7.6)
            assert stage.leaders() == ["a"], "the answer came in time"
            stage.lines["a"].up.clear()
            while len(stage.spans) < 2:
                assert now() < 60, "not taken over"
                assert len(stage.leaders()) <= 1
                await asyncio.sleep(0.01)
            first, second = stage.spans
            assert first.ended_at <= applied_at + TIMES.renew_seconds_max
            assert (second.who, stage.leaders()) == ("b", ["b"])
            assert second.begun_at >= applied_at + TIMES.duration_seconds
            mend(stage.lines["a"])

    run(main())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_network_does_two_never_lead_at_the_same_time(seed: int) -> None:
    async def main() -> None:
        stage, rng = Stage(), random.Random(seed)
        async with asyncio.TaskGroup() as group:
            tasks = {n: group.create_task(stage.candidate(n, seed)) for n in "abc"}
            for _ in range(60):
                await asyncio.sleep(rng.expovariate(0.2))
                line = stage.lines[rng.choice("abc")]
                act = rng.randrange(6)
                if act == 0:
                    line.up.clear()
                elif act == 1:
                    line.loses_answers = not line.loses_answers
                elif act == 2 and stage.api.stored(LEASES):
                    name = rng.choice("abc")  # stopped in order, and started anew
                    tasks[name].cancel()
                    stage.lines[name].up.set()
                    await asyncio.sleep(0.01)
                    tasks[name] = group.create_task(stage.candidate(name, seed))
                elif act == 3:
                    line.answers_late_seconds = rng.uniform(0.0, TIMES.renew_seconds_max)
                else:
                    mend(line)
                assert len(stage.leaders()) <= 1
            for line in stage.lines.values():
                mend(line)
            await asyncio.sleep(2 * TIMES.duration_seconds)
            assert len(stage.leaders()) == 1, "nobody leads though all is well"
            for task in tasks.values():
                task.cancel()
        spans = sorted(stage.spans, key=lambda span: span.begun_at)
        assert len(spans) > 3
        for before, after in itertools.pairwise(spans):
            assert before.ended_at <= after.begun_at, (before, after)

    run(main())


def test_a_lost_answer_does_not_cost_the_lease() -> None:
    async def main() -> None:
        stage = Stage()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(stage.candidate("a"))
            await asyncio.sleep(5)
            stage.lines["a"].loses_answers = True
            await asyncio.sleep(TIMES.renew_every_seconds + 0.5)
            stage.lines["a"].loses_answers = False
            await asyncio.sleep(30)
            assert [span.ended_at for span in stage.spans] == [pytest.approx(now(), abs=0.1)]
            task.cancel()

    run(main())


def test_a_stop_amid_a_renewal_hands_over_at_once_all_the_same() -> None:
    """The server has applied the renewal whose answer the leader does not wait for any more."""

    async def main() -> None:
        stage = Stage()
        async with asyncio.TaskGroup() as group:
            a = group.create_task(stage.candidate("a"))
            await asyncio.sleep(5)
            before = stage.lease().spec.renew_time
            stage.lines["a"].answers_late_seconds = 1.0
            while stage.lease().spec.renew_time == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            stage.lines["a"].answers_late_seconds = 0.0
            a.cancel()
        assert stage.lease().spec.holder_identity == ""

    run(main())


def test_a_stop_leaves_a_lease_that_another_took() -> None:
    async def main() -> None:
        stage = Stage()
        async with asyncio.TaskGroup() as group:
            a = group.create_task(stage.candidate("a"))
            await asyncio.sleep(5)
            stolen = {"spec": {"holderIdentity": "b"}}
            await stage.api.patch(LEASES, OPTIONS.name, stolen, namespace="default")
            a.cancel()
        assert stage.lease().spec.holder_identity == "b"

    run(main())


def test_a_lease_that_somebody_else_took_or_deleted_ends_the_term_at_once() -> None:
    async def main() -> None:
        stage = Stage()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(stage.candidate("a"))
            await asyncio.sleep(5)
            thief = {"spec": {"holderIdentity": "thief"}}
            await stage.api.patch(LEASES, OPTIONS.name, thief, namespace="default")
            await asyncio.sleep(TIMES.renew_every_seconds + 0.1)
            assert stage.leaders() == []
            assert stage.electors["a"].holder == "thief"
            await asyncio.sleep(TIMES.duration_seconds + TIMES.look_every_seconds)
            assert stage.leaders() == ["a"], "the thief never renewed"
            await stage.api.delete(LEASES, OPTIONS.name, namespace="default")
            await asyncio.sleep(TIMES.renew_every_seconds + TIMES.look_every_seconds + 0.1)
            assert stage.leaders() == ["a"]
            assert len(stage.spans) == 3, "with a new term"
            task.cancel()

    run(main())


def test_a_fault_of_what_leads_gives_the_lease_away_and_is_raised() -> None:
    async def main() -> None:
        stage = Stage()
        await asyncio.wait_for(_crash(stage), 60)
        assert stage.lease().spec.holder_identity == ""

    run(main())


async def _crash(stage: Stage) -> None:
    elector = elector_of(stage.api)

    async def lead(_term: LeaderTerm) -> None:
        await asyncio.sleep(3)
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        await elector.run(lead)
    assert caught.group_contains(ZeroDivisionError)


def test_a_candidate_whose_look_is_never_answered_looks_again_in_time() -> None:
    async def main() -> None:
        stage = Stage()
        candidate = stage.candidate("a")
        stage.lines["a"].up.clear()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(candidate)
            await asyncio.sleep(0.1)
            stage.lines["a"].up = asyncio.Event()  # nothing ends the first look
            stage.lines["a"].up.set()
            await asyncio.sleep(TIMES.renew_seconds_max + 2 * TIMES.look_every_seconds)
            assert stage.leaders() == ["a"]
            task.cancel()

    run(main())


@pytest.mark.parametrize("late_seconds", [0.0, 2.5, 4.5])
def test_a_term_counts_from_before_the_lease_was_taken_however_late_the_answer_comes(
    late_seconds: float,
) -> None:
    """Others count from the write, of which the new leader learns later."""

    async def main() -> None:
        stage = Stage()
        candidate = stage.candidate("a")
        stage.lines["a"].answers_late_seconds = late_seconds  # the read and the write
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(candidate)]
            while not stage.api.stored(LEASES):
                assert now() < 10, "not taken"
                await asyncio.sleep(0.01)
            taken_at = now()
            tasks.append(group.create_task(stage.candidate("b")))
            await asyncio.sleep(late_seconds + 0.1)
            assert stage.leaders() == ["a"], "the answer came in time"
            stage.lines["a"].up.clear()
            while len(stage.spans) < 2:
                assert now() < 60, "not taken over"
                assert len(stage.leaders()) <= 1
                await asyncio.sleep(0.01)
            first, second = stage.spans
            assert first.ended_at <= taken_at + TIMES.renew_seconds_max
            assert second.begun_at >= taken_at + TIMES.duration_seconds
            mend(stage.lines["a"])
            for task in tasks:
                task.cancel()

    run(main())


class _HangingReads(ClientWrapper):
    """A client whose reads are never answered once they hang."""

    hang = False

    async def call(self, request: Request[Any]) -> Any:
        if self.hang and not request.is_write:
            await asyncio.Event().wait()
        return await super().call(request)


def test_a_read_that_hangs_after_a_conflict_does_not_outlast_the_term() -> None:
    """What runs for the term is cancelled at its deadline, whatever the leader waits for."""

    async def main() -> None:
        api = FakeClient()
        line = _HangingReads(api)
        elector = elector_of(line)
        cancelled_at: list[float] = []

        async def lead(_term: LeaderTerm) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                cancelled_at.append(now())

        task = asyncio.create_task(elector.run(lead))
        await asyncio.sleep(5)
        assert elector.term is not None
        deadline = elector.term.deadline
        line.hang = True
        api.fail_next("patch", Conflict("changed meanwhile"))
        await asyncio.sleep(deadline - now() + 0.1)
        assert cancelled_at == [pytest.approx(deadline)]
        task.cancel()

    run(main())


def test_a_candidate_that_reached_the_lease_again_backs_off_from_the_first_step() -> None:
    async def main() -> None:
        async with two_candidates() as stage:
            line = stage.lines["b"]
            line.loses_answers = True
            await asyncio.sleep(60)
            assert stage.api.count("get") < 30, "it did not back off"
            mend(line)
            await asyncio.sleep(10)
            line.loses_answers = True
            looks = stage.api.count("get")
            while stage.api.count("get") == looks:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            failed_at = now()
            mend(line)
            while stage.api.count("get") == looks + 1:
                assert now() <= failed_at + TIMES.look_every_seconds, "as after many failures"
                await asyncio.sleep(0.01)

    run(main())


def test_the_clocks_of_other_machines_do_not_matter() -> None:
    """What the holder wrote as renewTime may lie years off; only changes that we see count."""
    lease = _lease("other", version="5", renew_time="1999-01-01T00:00:00.000000Z")
    seen = see(None, lease, 100.0)
    step = campaign(seen, "me", TIMES, now=100.0, wall=1e9)
    assert isinstance(step, LeaveLease)
    again = see(seen, _lease("other", version="6", renew_time="1999-01-01T00:00:00.000000Z"), 114.0)
    assert isinstance(campaign(again, "me", TIMES, now=116.0, wall=1e9), LeaveLease)
    same = see(again, again.lease, 128.9)
    assert isinstance(campaign(same, "me", TIMES, now=128.9, wall=1e9), LeaveLease)
    assert isinstance(campaign(same, "me", TIMES, now=129.0, wall=1e9), TakeLease)


def test_times_that_leave_no_margin_are_refused() -> None:
    with pytest.raises(ValueError, match="each longer than the next"):
        LeaseTimes(duration_seconds=10, renew_seconds_max=10)


def _lease(holder: str, *, version: str, renew_time: str) -> Lease:
    return msgspec.convert(
        {
            "metadata": {"name": "x", "uid": "u", "resourceVersion": version},
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renew_time,
            },
        },
        Lease,
    )  # fmt: skip


# Fencing


def _term(*, seconds: float = 10.0) -> LeaderTerm:
    lease = _lease("a", version="77", renew_time="2026-01-01T00:00:00.000000Z")
    return LeaderTerm(lease, now() + seconds)


def test_no_write_goes_out_after_the_deadline_and_one_under_way_is_aborted() -> None:
    async def main() -> None:
        api = FakeClient()
        line = Line(api)
        elector = elector_of(line)
        clients: list[LeaderClient] = []
        aborted_at = 0.0

        async def lead(term: LeaderTerm) -> None:
            nonlocal aborted_at
            client = LeaderClient(line, term)
            clients.append(client)
            await client.create(PODS, {"metadata": {"name": "one"}}, namespace="default")
            line.up.clear()
            try:
                await client.create(PODS, {"metadata": {"name": "two"}}, namespace="default")
            finally:
                aborted_at = now()

        task = asyncio.create_task(elector.run(lead))
        await asyncio.sleep(TIMES.renew_seconds_max + 0.1)
        assert aborted_at == pytest.approx(TIMES.renew_seconds_max)
        task.cancel()
        line.up.set()
        with pytest.raises(Unavailable, match="no longer the leader"):
            await clients[0].create(PODS, {"metadata": {"name": "three"}}, namespace="default")
        labelled = {"metadata": {"labels": {"late": "true"}}}
        for late in (
            clients[0].patch(PODS, "one", labelled, namespace="default"),
            clients[0].delete(PODS, "one", namespace="default"),
            clients[0].delete_collection(PODS, namespace="default"),
        ):
            with pytest.raises(Unavailable, match="no longer the leader"):
                await late
        assert "late" not in api.stored(PODS)[0].metadata.labels
        assert [pod.metadata.name for pod in api.stored(PODS)] == ["one"]
        assert len((await clients[0].list(PODS)).items) == 1, "reading harms nobody"

    run(main())


async def _late_placement(*, fenced: bool) -> Job:
    """A leader decides and is paused between its check and its write; then the next term begins."""
    api = FakeClient()
    job = await api.create(JOBS, to_wire(_waiting()), namespace="default")
    placement = to_wire(make_placement(["node-0"]))
    decided = {
        "metadata": {"resourceVersion": job.metadata.resource_version, "uid": job.metadata.uid},
        "status": {"placement": placement},
    }
    if fenced:
        touched = await fence(api, _mirror(api), _term(), rng=random.Random(1))
        assert touched == 1
    return await api.patch(
        JOBS, job.metadata.name, decided, namespace="default", subresource="status"
    )


def _mirror(api: FakeClient) -> Mirror[Job]:
    return Mirror(api, JOBS, clock=LoopClock(0.0), rng=random.Random(2))


def _waiting() -> Job:
    return make_job("late", count=1, attempt=1)


def test_a_placement_decided_in_an_earlier_term_fails_after_the_fence() -> None:
    with pytest.raises(Conflict):
        run(_late_placement(fenced=True))


def test_without_the_fence_it_would_have_gone_through() -> None:
    """The canary of the test above: the compare-and-swap alone does not stop it."""
    job = run(_late_placement(fenced=False))
    assert job.status.placement is not None


def test_only_jobs_that_may_be_placed_are_touched() -> None:
    waiting = _waiting()
    placed = msgspec.structs.replace(
        waiting,
        status=msgspec.structs.replace(waiting.status, placement=make_placement(["node-0"])),
    )
    new_attempt = msgspec.structs.replace(
        placed, status=msgspec.structs.replace(placed.status, attempt=2)
    )
    new = msgspec.structs.replace(
        waiting, status=msgspec.structs.replace(waiting.status, attempt=0)
    )
    refused = StatusDraft.of(new, EPOCH).not_admitted(Reason.DEPENDENCY, "waits for job b").status
    not_admitted = msgspec.structs.replace(new, status=refused)
    assert [needs_fence(j) for j in (waiting, placed, new_attempt, new, not_admitted)] == [
        True, False, True, True, False,
    ]  # fmt: skip


def test_a_term_begins_once_the_mirror_shows_the_fence() -> None:
    async def main() -> None:
        api = FakeClient()
        await api.create(JOBS, to_wire(_waiting()), namespace="default")
        api.hold_watches()
        asyncio.get_running_loop().call_later(2.0, api.release_watches)
        mirror = _mirror(api)
        await fence(api, mirror, _term(), rng=random.Random(1))
        assert mirror.items()[0].metadata.annotations[names.FENCE] == "77"

    run(main())


def test_a_job_that_goes_while_the_fence_is_put_up_needs_none() -> None:
    async def main() -> None:
        api = FakeClient()
        await api.create(JOBS, to_wire(_waiting()), namespace="default")
        await api.create(JOBS, to_wire(make_job("other")), namespace="default")
        api.fail_next("patch", NotFound("deleted meanwhile"))
        await fence(api, _mirror(api), _term(), rng=random.Random(1))
        assert [names.FENCE in job.metadata.annotations for job in api.stored(JOBS)] == [
            False, True,
        ]  # fmt: skip

    run(main())


def test_the_fence_is_put_up_though_writes_conflict_and_not_before_the_server_allows() -> None:
    async def main() -> None:
        api = FakeClient()
        await api.create(JOBS, to_wire(_waiting()), namespace="default")
        api.fail_next("patch", Conflict("too many writers"))
        details = StatusDetails(retry_after_seconds=30)
        api.fail_next("patch", TooManyRequests("overloaded", details=details))
        assert await fence(api, _mirror(api), _term(), rng=random.Random(1)) == 1
        assert api.stored(JOBS)[0].metadata.annotations[names.FENCE] == "77"
        assert now() >= 30

    run(main())


def test_the_fence_is_up_or_the_term_does_not_begin() -> None:
    async def main() -> None:
        api = FakeClient()
        await api.create(JOBS, to_wire(_waiting()), namespace="default")
        api.fail_next("list", Forbidden("no roles yet"), Unavailable("down"))
        api.fail_next("patch", Forbidden("no roles yet"), *[Unavailable("down")] * 2)
        mirror = _mirror(api)
        assert await fence(api, mirror, _term(), rng=random.Random(1)) == 1
        assert mirror.items()[0].metadata.annotations[names.FENCE] == "77"
        assert mirror.list_count == 1
        assert api.stored(JOBS)[0].metadata.annotations[names.FENCE] == "77"
        api.fail_next("patch", *[Unavailable("down")] * 20)
        with pytest.raises(ExceptionGroup) as caught:
            await fence(api, _mirror(api), _term(), rng=random.Random(1))
        assert caught.group_contains(Unavailable)

    run(main())
