"""The doctor as a controller, on the in-process API: its report, its Events, its cost, its ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fairlead.api.cluster.cluster_report import REPORT_NAME, ClusterReport, FindingSeverity
from fairlead.api.meta import ObjectMeta, find_condition
from fairlead.api.resources import CLUSTER_REPORTS, CRDS, NODES, Resource
from fairlead.api.schema import crd
from fairlead.api.status import NotFound, Unavailable
from fairlead.api.values.times import format_time
from fairlead.controllers.doctor import DoctorController
from fairlead.decide.doctor.examination import Examination, ExaminationFinding
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.doctor.examiner import Examiner
from fairlead.doctor.registry import BEHIND
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import Client, ClientWrapper, Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.exported.doctor_metrics import DoctorMetrics
from fairlead.runtime.loop import ControllerLoop
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH

A = TypeVar("A")
POLICY = DoctorPolicy(interval_seconds=60, start_seconds=5, confirm_seconds=300, pause_seconds=1)
FULL = ExaminationFinding(
    "ETCD-04", FindingSeverity.CRITICAL, "etcd-0", "close to its quota", "0.91"
)


class Killed(BaseException):
    """The end of the process."""


class Counting(ClientWrapper):
    """Notes requests, answers pages of metrics, and ends the process at a step."""

    def __init__(self, inner: Client) -> None:
        super().__init__(inner)
        self.asked: list[tuple[float, str]] = []
        self.pages: dict[str, bytes] = {}
        self.steps_left = -1

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Killed

    async def call(self, request: Request[A]) -> A:
        what = request.name if request.verb is RequestVerb.READ else request.resource.plural
        self.asked.append((asyncio.get_running_loop().time(), f"{request.verb} {what}"))
        self._step()
        if request.verb is RequestVerb.READ and request.name in self.pages:
            answer: Any = self.pages[request.name]
        else:
            answer = await self.inner.call(request)
        self._step()
        return answer

    def count(self, verb: str) -> int:
        return sum(what.startswith(f"{verb} ") for _, what in self.asked)


class Cluster:
    def __init__(self) -> None:
        self.clock, self.rng = LoopClock(EPOCH), random.Random(1)
        self.events: list[tuple[str, str]] = []
        service = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{self.rng.getrandbits(128):032x}", rng=self.rng,
        )  # fmt: skip
        self.service, self.inner = service, InProcessClient(service)
        self.client = Counting(self.inner)
        self.controller: DoctorController | None = None

    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None:  # fmt: skip
        self.events.append((reason, message))

    async def start(self, *, has_kinds: bool = True) -> None:
        await self.service.bootstrap()
        for manifest in crd.manifests() if has_kinds else ():
            await self.inner.create(CRDS, manifest)

    async def live(
        self, examine: Callable[[], Awaitable[Examination]], reader: MirrorReader | None = None
    ) -> None:
        """One life of the controller, until cancelled or killed."""
        mirror = Mirror(self.inner, CLUSTER_REPORTS, clock=self.clock, rng=self.rng)
        self.controller = controller = DoctorController(
            self.client, mirror, examine, events=self, clock=self.clock, policy=POLICY,
            reader=reader,
        )  # fmt: skip
        self.loop = ControllerLoop(controller, clock=self.clock, rng=self.rng)
        await self.loop.run()

    def examiner(self) -> Examiner:
        return Examiner(self.client.read, clock=self.clock, pause_seconds=POLICY.pause_seconds)

    async def report(self) -> ClusterReport:
        return await self.inner.get(CLUSTER_REPORTS, REPORT_NAME)


async def for_seconds(seconds: float, task: Awaitable[None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await task


class Results:
    """Examinations as the test says."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.found: tuple[ExaminationFinding, ...] = ()
        self.count = 0
        self.seconds = 3.0
        self.is_broken = False

    async def __call__(self) -> Examination:
        self.count += 1
        await asyncio.sleep(self.seconds)
        if self.is_broken:
            raise ValueError("a check that raises")
        return Examination(self.clock.now(), self.found, passed=("ETCD-08",), behind=BEHIND)


def test_without_metrics_their_checks_are_unknown_and_never_passed() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.start()
        for i in range(3):
            await cluster.inner.create(NODES, {"metadata": {"name": f"n{i}"}})
        await for_seconds(120, cluster.live(cluster.examiner()))
        status = (await cluster.report()).status
        assert {"ETCD-04", "API-01", "API-02"} <= set(status.unknown)
        assert status.not_seen == len(status.unknown)
        assert status.nodes == 3
        assert [(c.type, c.status) for c in status.conditions] == [
            ("EtcdNearlyFull", "Unknown"), ("APIServerDegraded", "Unknown"),
        ]  # fmt: skip

    run(main())


PAGE = """\
process_start_time_seconds {start}
apiserver_request_total{{verb="LIST",resource="pods",code="200"}} {good}
apiserver_request_total{{verb="LIST",resource="pods",code="429"}} {refused}
"""


def test_rates_are_over_the_time_between_two_pages_of_one_process_only() -> None:
    """A page of another process, or the first one of a process, says nothing about rates."""
    cluster = Cluster()
    server = {"start": 1000, "good": 10_000, "refused": 1_000_000}

    async def main() -> None:
        await cluster.start()
        examine = cluster.examiner()

        async def degraded() -> bool:
            cluster.client.pages["/metrics"] = PAGE.format(**server).encode()
            found = (await examine()).found
            return any(each.check == "API-01" for each in found)

        assert not await degraded()  # a million in its whole life, none of them now
        server["refused"] += 10_000
        assert await degraded()
        server.update(start=2000, refused=5_000_000)  # another API server behind the address
        assert not await degraded()
        assert "API-01" in (await examine()).passed
        server.update(start=1000, refused=1_010_000)
        assert not await degraded()
        server["refused"] += 10_000
        assert await degraded()

    run(main())


def test_an_examination_is_spread_and_its_cost_is_bounded_whatever_the_size() -> None:
    counts: list[int] = []
    for nodes in (1, 120):
        cluster = Cluster()

        async def main(cluster: Cluster = cluster, nodes: int = nodes) -> None:
            await cluster.start()
            for i in range(nodes):
                await cluster.inner.create(NODES, {"metadata": {"name": f"n{i}"}})
            await for_seconds(3600, cluster.live(cluster.examiner()))

        run(main())
        reads = [at for at, what in cluster.client.asked if what.startswith("read ")]
        assert min(b - a for a, b in pairwise(reads)) >= 0.99
        counts.append(len(reads))
        assert cluster.client.count("list") == 0
        assert cluster.client.count("patch") <= 3600 / POLICY.confirm_seconds + 2
    assert counts[0] == counts[1] <= 3600 / POLICY.interval_seconds * 25


def test_findings_become_a_report_and_events_once() -> None:
    cluster = Cluster()
    results = Results(cluster.clock)

    async def main() -> None:
        await cluster.start()
        async with asyncio.TaskGroup() as group:
            life = group.create_task(cluster.live(results))
            await asyncio.sleep(100)
            assert (await cluster.report()).status.critical == 0
            results.found = (FULL,)
            await asyncio.sleep(600)
            assert results.count >= 9
            report = await cluster.report()
            assert report.status.findings[0].check == "ETCD-04"
            condition = find_condition(report.status.conditions, "EtcdNearlyFull")
            assert condition is not None
            assert condition.status == "True"
            results.found = ()
            await asyncio.sleep(200)
            assert (await cluster.report()).status.critical == 0
            life.cancel()
        assert [reason for reason, _ in cluster.events] == ["FindingBegan", "FindingEnded"]
        assert cluster.events[0][1] == "ETCD-04 etcd-0: close to its quota (0.91)"

    run(main())


def test_a_report_that_somebody_deletes_comes_back() -> None:
    cluster = Cluster()
    results = Results(cluster.clock)

    async def main() -> None:
        await cluster.start()
        async with asyncio.TaskGroup() as group:
            life = group.create_task(cluster.live(results))
            await asyncio.sleep(100)
            await cluster.inner.delete(CLUSTER_REPORTS, REPORT_NAME)
            await asyncio.sleep(100)
            assert (await cluster.report()).status.observed_at is not None
            life.cancel()

    run(main())


def test_a_new_process_waits_for_its_turn() -> None:
    """A process that crashes and starts again must not examine more often."""
    cluster = Cluster()
    results = Results(cluster.clock)

    async def main() -> None:
        await cluster.start()
        await for_seconds(20, cluster.live(results))
        assert results.count == 1
        for _ in range(8):
            await for_seconds(5, cluster.live(results))
        assert results.count == 1
        await for_seconds(30, cluster.live(results))
        assert results.count == 2

    run(main())


def test_a_report_from_a_clock_that_was_ahead_delays_no_examination_beyond_the_interval() -> None:
    cluster = Cluster()
    results = Results(cluster.clock)

    async def main() -> None:
        await cluster.start()
        await cluster.inner.create(CLUSTER_REPORTS, {"metadata": {"name": REPORT_NAME}})
        ahead = {"status": {"observedAt": format_time(cluster.clock.now() + 86400)}}
        await cluster.inner.patch(CLUSTER_REPORTS, REPORT_NAME, ahead, subresource="status")
        await for_seconds(POLICY.interval_seconds - 1, cluster.live(results))
        assert results.count == 0
        await for_seconds(POLICY.interval_seconds + 1, cluster.live(results))
        assert results.count == 1

    run(main())


def test_the_control_plane_has_a_whole_interval_of_rest_after_a_long_examination() -> None:
    cluster = Cluster()
    results = Results(cluster.clock)
    results.seconds = 2.0 * POLICY.interval_seconds

    async def main() -> None:
        await cluster.start()
        await for_seconds(10 + 6 * POLICY.interval_seconds, cluster.live(results))
        assert results.count == 3

    run(main())


def test_a_check_that_raises_is_run_again_only_at_its_time() -> None:
    cluster = Cluster()
    results = Results(cluster.clock)
    results.is_broken = True

    async def main() -> None:
        await cluster.start()
        with pytest.raises(ExceptionGroup):  # nothing is set aside here: the fault is ours
            await cluster.live(results)
        assert results.count == 1
        reader = MirrorReader(SetAside())
        await for_seconds(100, cluster.live(results, reader))
        assert results.count == 3
        assert cluster.loop.cycle_count < 30

    run(main())


def test_whatever_await_ends_the_process_the_next_one_writes_the_report() -> None:
    step, kills = 0, 0
    while True:
        step += 1
        cluster = Cluster()
        cluster.client.steps_left = step

        async def main(cluster: Cluster = cluster) -> bool:
            await cluster.start()
            is_killed = False

            async def live(seconds: float) -> None:
                nonlocal is_killed
                try:
                    await for_seconds(seconds, cluster.live(cluster.examiner()))
                except* Killed:
                    is_killed = True

            await live(100)
            cluster.client.steps_left = -1
            await live(100)
            report = await cluster.report()
            assert report.status.not_seen > 0
            assert report.status.observed_at is not None
            return is_killed

        if not run(main()):
            break
        kills += 1
    assert kills >= 40


def test_a_server_that_answers_nothing_gives_no_report_and_no_storm() -> None:
    cluster = Cluster()

    class Down(ClientWrapper):
        async def call(self, request: Request[A]) -> A:
            cluster.client.asked.append((0.0, f"{request.verb} x"))
            raise Unavailable("down")

    async def main() -> None:
        await cluster.start()
        cluster.client.inner = Down(cluster.inner)
        await for_seconds(600, cluster.live(cluster.examiner()))
        with pytest.raises(NotFound):
            await cluster.report()
        assert cluster.client.count("create") // 2 < 200
        assert 20 < cluster.client.count("read") // 2 < 300

    run(main())


def test_a_cluster_without_the_kind_of_the_report_is_examined_and_nothing_is_written() -> None:
    cluster = Cluster()
    results = Results(cluster.clock)

    async def main() -> None:
        await cluster.start(has_kinds=False)
        await for_seconds(200, cluster.live(results))
        assert results.count > 1
        assert cluster.client.asked == []

    run(main())


def test_the_metrics_are_those_of_the_latest_examination() -> None:
    registry = CollectorRegistry()
    metrics = DoctorMetrics(registry)
    assert b"fairlead_doctor" not in generate_latest(registry)
    odd = ExaminationFinding("ETCD-17", FindingSeverity.WARNING, "kube-apiserver")
    other = ExaminationFinding(FULL.check, FULL.severity, "etcd-1")
    examination = Examination(EPOCH, (FULL, other, odd), ("API-01",), ("API-02",), requests=19)
    metrics.watch(lambda: examination)
    text = generate_latest(registry).decode()
    for line in (
        'fairlead_doctor_findings{severity="critical"} 2.0',
        'fairlead_doctor_findings{severity="info"} 0.0',
        'fairlead_doctor_check_findings{check="ETCD-04",severity="critical"} 2.0',
        'fairlead_doctor_checks{result="found"} 2.0',
        'fairlead_doctor_checks{result="unknown"} 1.0',
        "fairlead_doctor_requests 19.0",
    ):
        assert line in text
    metrics.watch(None)
    assert b"fairlead_doctor" not in generate_latest(registry)
