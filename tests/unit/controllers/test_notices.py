"""The notices controller on the in-process API: tries, hand-overs, floods, and whose Secret."""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_defaults import JobTerms, NoticeTerms
from fairlead.api.jobs.notify import NOTIFY_SECRET, NoticeState
from fairlead.api.resources import CRDS, JOBS, NAMESPACES, SECRETS, Resource
from fairlead.api.schema import crd
from fairlead.api.status import Conflict
from fairlead.api.values.times import format_time
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.records.notices import NoticesController
from fairlead.decide.notices import Delivery, NoticesPolicy, Post, TryOutcome, TryReason
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import ClientWrapper, Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.loop import ControllerLoop, LoopOptions
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH

A = TypeVar("A")
URL = "https://hooks.example/secret-path"
DELIVERED = TryOutcome(TryReason.DELIVERED, 200)


class Sender:
    """Keeps what it is given; `answer` says how each one ends."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.sent: list[tuple[float, Delivery]] = []
        self.answer: Callable[[Delivery], Awaitable[TryOutcome]] = self._deliver
        self.now = self.most = 0

    async def _deliver(self, _: Delivery) -> TryOutcome:
        return DELIVERED

    async def send(self, delivery: Delivery) -> TryOutcome:
        self.sent.append((self.clock.now(), delivery))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self.answer(delivery)
        finally:
            self.now -= 1

    async def post_ticket(self, post: Post) -> TryOutcome:
        raise AssertionError("jobs have no tickets")

    def names(self) -> Counter[tuple[str, str]]:
        return Counter((each.letter.namespace, each.letter.name) for _, each in self.sent)


class Disputed(ClientWrapper):
    """Counts the reads of Secrets, and answers some patches with a conflict."""

    conflicts = 0
    rng = random.Random(3)

    def __init__(self, client: InProcessClient) -> None:
        super().__init__(client)
        self.secrets: set[tuple[str, str]] = set()

    async def call(self, request: Request[A]) -> A:
        if request.resource.name == SECRETS.name:
            self.secrets.add((request.namespace or "", request.name))
            assert request.verb is RequestVerb.GET
        if request.verb is RequestVerb.PATCH and self.rng.random() < self.conflicts / 10:
            raise Conflict("somebody was faster")
        return await super().call(request)


class Cluster:
    def __init__(self, policy: NoticesPolicy | None = None) -> None:
        self.clock, rng = LoopClock(EPOCH), random.Random(1)
        self.policy = policy or NoticesPolicy()
        self.events: list[tuple[str, str]] = []
        self.service = ApiService(
            Store.open(None), Registry.with_builtins(), self.clock,
            ids=lambda: f"{rng.getrandbits(128):032x}", rng=rng,
            terms=JobTerms(notices=NoticeTerms(mail_domains=("example.com",), has_commands=True)),
        )  # fmt: skip
        self.admin = InProcessClient(self.service)
        self.client = Disputed(self.admin)
        self.sender = Sender(self.clock)
        self.counted: Counter[TryReason] = Counter()

    def record(
        self, resource: Resource[Any], metadata: Any, kind: EventKind, *, reason: str, message: str
    ) -> None:
        self.events.append((reason, message))

    async def controller(self) -> None:
        """Run one, until cancelled: as another leader does, on mirrors of its own."""
        rng = random.Random(4)
        world = ClusterWorld.make(self.client, clock=self.clock, rng=rng)
        reader = MirrorReader(SetAside("notices", events=self))
        controller = NoticesController(
            self.client, world, self.sender, events=self, clock=self.clock, policy=self.policy,
            counted=lambda reason: self.counted.update((reason,)), reader=reader,
        )  # fmt: skip
        options = LoopOptions(beside_max=self.policy.sending_max)
        await ControllerLoop(controller, clock=self.clock, rng=rng, options=options).run()

    def play(self, main: Callable[[], Awaitable[None]]) -> None:
        async def all_() -> None:
            await self.service.bootstrap()
            for manifest in crd.manifests():
                await self.admin.create(CRDS, manifest)
            for name in ("vision", "speech"):
                await self.admin.create(NAMESPACES, {"metadata": {"name": name}})
            await main()

        run(all_())

    async def add(self, name: str, namespace: str = "vision", **target: Any) -> None:
        """Create a job that has failed."""
        notify = [{"on": ["End", "Fail"], **(target or {"url": URL})}]
        template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
        spec = {"roles": [{"name": "worker", "template": template}], "notify": notify}
        body = {"metadata": {"name": name}, "spec": spec}
        await self.admin.create(JOBS, body, namespace=namespace)
        at = format_time(self.clock.now())
        failed = {"type": "Failed", "status": "True", "reason": "ExitCode", "message": "",
                  "lastTransitionTime": at}  # fmt: skip
        status = {"conditions": [failed], "state": "Failed", "attempt": 1, "finishedAt": at}
        patch = {"status": status}
        await self.admin.patch(JOBS, name, patch, namespace=namespace, subresource="status")

    async def job(self, name: str, namespace: str = "vision") -> Job:
        return await self.admin.get(JOBS, name, namespace=namespace)

    async def state(self, name: str, namespace: str = "vision") -> tuple[NoticeState, int, str]:
        (record,) = (await self.job(name, namespace)).status.notices
        return record.state, record.tries, record.reason

    async def secret(self, namespace: str, **data: str) -> None:
        body = {"metadata": {"name": NOTIFY_SECRET},
                "data": {key: base64.b64encode(each.encode()).decode()
                         for key, each in data.items()}}  # fmt: skip
        await self.admin.create(SECRETS, body, namespace=namespace)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_notice_is_sent_once_and_the_status_says_so_without_the_url() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.add("train")
        task = asyncio.create_task(cluster.controller())
        await asyncio.sleep(7200)
        await stop(task)
        assert await cluster.state("train") == (NoticeState.DELIVERED, 1, "Delivered")
        assert "secret-path" not in str((await cluster.job("train")).status)

    cluster.play(main)
    ((_, delivery),) = cluster.sender.sent
    assert delivery.url == URL
    assert cluster.events == []
    assert cluster.counted == {TryReason.DELIVERED: 1}


def test_processes_that_end_at_any_moment_lose_nothing_and_repeat_a_bounded_number_of_times() -> (
    None
):
    cluster = Cluster()
    cluster.client.conflicts = 3
    rng = random.Random(8)

    async def slow(_: Delivery) -> TryOutcome:
        await asyncio.sleep(20 * rng.random())
        return DELIVERED if rng.random() < 0.6 else TryOutcome(TryReason.BUSY, 503)

    cluster.sender.answer = slow

    async def main() -> None:
        for i in range(20):
            await cluster.add(f"job{i}")
        for _ in range(60):
            task = asyncio.create_task(cluster.controller())
            await asyncio.sleep(30 * rng.random())
            await stop(task)
        task = asyncio.create_task(cluster.controller())
        await asyncio.sleep(3 * 3600)
        await stop(task)
        for i in range(20):
            state, tries, _ = await cluster.state(f"job{i}")
            assert state is NoticeState.DELIVERED or tries == cluster.policy.tries_max
            sent = cluster.sender.names()["vision", f"job{i}"]
            assert 1 <= sent <= tries <= cluster.policy.tries_max

    cluster.play(main)
    ids = Counter(each.letter.id for _, each in cluster.sender.sent)
    assert len(ids) == 20
    assert max(ids.values()) > 1  # the trouble took place


def test_a_dead_target_costs_nobody_else_and_is_given_up() -> None:
    cluster = Cluster()

    async def answer(delivery: Delivery) -> TryOutcome:
        if delivery.letter.namespace == "vision":
            await asyncio.sleep(3600)  # hangs: the controller's own limit ends it
        return DELIVERED

    cluster.sender.answer = answer

    async def main() -> None:
        task = asyncio.create_task(cluster.controller())
        for i in range(60):
            await cluster.add(f"dead{i}")
        await asyncio.sleep(5)
        at = cluster.clock.now()
        await cluster.add("live", "speech")
        await asyncio.sleep(5)
        (sent,) = [when for when, each in cluster.sender.sent if each.letter.name == "live"]
        assert sent - at < 1
        assert cluster.sender.most <= cluster.policy.namespace_sending_max + 1
        await asyncio.sleep(2 * 86_400)
        assert await cluster.state("dead0") == (NoticeState.GIVEN_UP, 8, "Timeout")
        await stop(task)

    cluster.play(main)
    reason, message = cluster.events[0]
    assert reason == "NotNotified"
    assert "secret-path" not in message
    assert message.endswith("not delivered: Timeout (tries: 8)")


def test_the_secret_is_that_of_the_jobs_own_namespace_and_none_other() -> None:
    cluster = Cluster()

    async def main() -> None:
        await cluster.secret("speech", url="https://theirs.example/", other="https://o.example/")
        await cluster.secret("vision", own="https://own.example/", **{"signing-key": "k"})
        task = asyncio.create_task(cluster.controller())
        await cluster.add("steals", urlKey="url")
        await cluster.add("asks", urlKey="own")
        await cluster.add("reads", "speech", urlKey="other")
        await asyncio.sleep(86_400)
        await stop(task)
        assert await cluster.state("steals") == (NoticeState.GIVEN_UP, 8, "SecretMissing")

    cluster.play(main)
    sent = {each.letter.name: (each.url, each.signing_key) for _, each in cluster.sender.sent}
    assert sent == {"asks": ("https://own.example/", "k"), "reads": ("https://o.example/", "")}
    assert cluster.client.secrets == {("vision", NOTIFY_SECRET), ("speech", NOTIFY_SECRET)}


def test_a_command_that_got_past_admission_is_not_run_on_a_shared_cluster() -> None:
    cluster = Cluster()  # its API has served another policy

    async def main() -> None:
        task = asyncio.create_task(cluster.controller())
        await cluster.add("runs", command=["/bin/true"])
        await cluster.add("mails", mail="ada@example.com")
        await asyncio.sleep(7200)
        await stop(task)
        for name in ("runs", "mails"):
            assert await cluster.state(name) == (NoticeState.REFUSED, 1, "NotOffered")

    cluster.play(main)
    assert cluster.sender.sent == []


def test_a_fault_of_the_sender_stays_with_its_job() -> None:
    cluster = Cluster()

    async def answer(delivery: Delivery) -> TryOutcome:
        if delivery.letter.name == "odd":
            raise ValueError("a target that nobody thought of")
        return DELIVERED

    cluster.sender.answer = answer

    async def main() -> None:
        task = asyncio.create_task(cluster.controller())
        await cluster.add("odd")
        await cluster.add("even")
        await asyncio.sleep(86_400)
        assert not task.done()
        await stop(task)
        assert await cluster.state("even") == (NoticeState.DELIVERED, 1, "Delivered")
        assert (await cluster.state("odd"))[:2] == (NoticeState.GIVEN_UP, 8)

    cluster.play(main)
    assert cluster.sender.names() == {("vision", "odd"): 8, ("vision", "even"): 1}
