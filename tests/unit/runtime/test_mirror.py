"""The mirror: one list, resumed watches, 410 with a diff, order of handlers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.api.cluster.team import Team
from fairlead.api.kubernetes.core import ConfigMap
from fairlead.api.resources import CONFIG_MAPS, TEAMS
from fairlead.api.status import (
    Expired,
    Forbidden,
    InternalError,
    NotFound,
    StatusDetails,
    TooManyRequests,
    Unavailable,
)
from fairlead.runtime.client import ObjectList, Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.logs import SilentLogger
from fairlead.runtime.watching.mirror import Change, Mirror, MirrorOptions
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

LONG_SECONDS = 3600


def new_mirror(client: FakeClient, **options: object) -> Mirror[ConfigMap]:
    return Mirror(
        client,
        CONFIG_MAPS,
        clock=LoopClock(0.0),
        rng=random.Random(1),
        options=MirrorOptions(**{"watch_seconds": LONG_SECONDS, **options}),
    )


@asynccontextmanager
async def running(mirror: Mirror):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mirror.run())
        await mirror.wait_synced()
        yield task
        task.cancel()


async def put(client: FakeClient, name: str, value: str = "", namespace: str = "a") -> None:
    body = {"metadata": {"name": name}, "data": {"value": value}}
    await client.create(CONFIG_MAPS, body, namespace=namespace)


async def change(client: FakeClient, name: str, value: str, namespace: str = "a") -> None:
    await client.patch(CONFIG_MAPS, name, {"data": {"value": value}}, namespace=namespace)


def names(mirror: Mirror) -> list[str]:
    return [obj.metadata.name for obj in mirror.items()]


def describe(seen: Change[ConfigMap]) -> str:
    if seen.old is None:
        return f"+{seen.key[1]}"
    return f"-{seen.key[1]}" if seen.new is None else f"~{seen.key[1]}"


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapper() -> None:
        run(test())

    wrapper.__name__ = test.__name__
    return wrapper


@simulated
async def test_holds_what_was_there_and_follows_what_comes() -> None:
    client = FakeClient()
    await put(client, "one")
    mirror = new_mirror(client)
    seen: list[str] = []
    mirror.on_change(lambda c: seen.append(describe(c)))
    async with running(mirror):
        await put(client, "two")
        await change(client, "one", "x")
        await client.delete(CONFIG_MAPS, "two", namespace="a")
        await asyncio.sleep(1)
        assert seen == ["+one", "+two", "~one", "-two"]
        assert names(mirror) == ["one"]
        assert mirror.get("a", "one").data == {"value": "x"}
        assert mirror.resource_version == client.version


@simulated
async def test_a_start_costs_one_list_whatever_happens_to_the_watches() -> None:
    client = FakeClient()
    mirror = new_mirror(client)
    async with running(mirror):
        for round_number in range(20):
            client.cut_watches(None if round_number % 2 else Unavailable("connection reset"))
            await put(client, f"during-the-gap-{round_number:02}")
            await asyncio.sleep(60)
        assert len(mirror) == 20
    assert client.count("list") == 1


@simulated
async def test_running_again_after_a_cancellation_resumes_without_a_list() -> None:
    client = FakeClient()
    mirror = new_mirror(client)
    async with running(mirror):
        await put(client, "one")
        await asyncio.sleep(1)
    await put(client, "two")
    async with running(mirror):
        await asyncio.sleep(1)
        assert names(mirror) == ["one", "two"]
    assert client.count("list") == 1


class SlowLists(FakeClient):
    """Answers a list after a while."""

    list_seconds = 0.0

    async def call(self, request: Request[Any]) -> Any:
        if request.verb is RequestVerb.LIST:
            await asyncio.sleep(self.list_seconds)
        return await super().call(request)


@simulated
async def test_a_list_that_was_cancelled_is_asked_again() -> None:
    client = SlowLists()
    mirror = new_mirror(client)
    async with running(mirror):
        client.list_seconds = 10.0
        mirror.relist()
        await asyncio.sleep(1)
    async with running(mirror):
        await asyncio.sleep(20)
    assert mirror.list_count == 2


@simulated
async def test_after_410_the_list_is_compared_and_deletions_in_the_gap_are_reported() -> None:
    client = FakeClient()
    for name in ("gone", "kept", "reborn", "touched"):
        await put(client, name)
    mirror = new_mirror(client)
    seen: list[str] = []
    async with running(mirror):
        mirror.on_change(lambda c: seen.append(describe(c)))
        seen.clear()
        client.hold_watches()
        await client.delete(CONFIG_MAPS, "gone", namespace="a")
        await client.delete(CONFIG_MAPS, "reborn", namespace="a")
        await put(client, "reborn")
        await change(client, "touched", "x")
        await put(client, "new")
        client.compact()
        client.cut_watches()
        client.release_watches()
        await asyncio.sleep(10)
        assert seen == ["-gone", "+new", "-reborn", "+reborn", "~touched"]
        assert mirror.items() == client.stored(CONFIG_MAPS)
    assert client.count("list") == 2


@simulated
async def test_a_bookmark_moves_the_version_so_that_a_quiet_kind_survives_compaction() -> None:
    client = FakeClient()
    mirror = new_mirror(client)
    async with running(mirror):
        await asyncio.sleep(1)
        version = client.touch()
        client.send_bookmarks()
        await asyncio.sleep(1)
        assert mirror.resource_version == version
        client.compact()
        client.cut_watches()
        await asyncio.sleep(60)
        assert client.count("watch") > 1
    assert client.count("list") == 1


@simulated
async def test_repeated_410_does_not_hammer_the_server() -> None:
    client = FakeClient()
    client.fail_next("watch", *[Expired("too old") for _ in range(8)])
    mirror = new_mirror(client)
    async with running(mirror):
        await asyncio.sleep(1)
        assert client.count("list") <= 6
        await asyncio.sleep(600)
        await put(client, "one")
        await asyncio.sleep(1)
        assert names(mirror) == ["one"]


@simulated
async def test_a_quiet_kind_is_listed_at_once_after_each_restart_of_the_server() -> None:
    client, log = FakeClient(), Warnings()
    options = MirrorOptions(watch_seconds=LONG_SECONDS)
    mirror = Mirror(
        client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1), options=options, log=log
    )
    async with running(mirror):
        for restarts in (1, 2, 3):
            await asyncio.sleep(600)
            client.touch()
            client.compact()
            client.fail_next("watch", *[Unavailable("starting") for _ in range(6)])
            client.cut_watches(Unavailable("stopped"))
            await asyncio.sleep(60)
            assert client.count("list") == 1 + restarts
            assert log.reasons == ["ServiceUnavailable"] * 7 * restarts


@simulated
async def test_errors_are_waited_out_ever_longer_and_retry_after_is_honoured() -> None:
    client = FakeClient()
    client.fail_next("list", *[Forbidden("no such right yet") for _ in range(10)])
    mirror = new_mirror(client)
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mirror.run())
        await mirror.wait_synced()
        assert 40 < loop.time() < 150  # 0.2 s doubled up to 30 s, ten times, jittered
        assert client.count("list") == 11
        for asked, waited in ((45, 45), (100_000, 60)):  # no server stops us for longer
            await asyncio.sleep(10)
            details = StatusDetails(retry_after_seconds=asked)
            before, count = loop.time(), client.count("watch")
            client.cut_watches(TooManyRequests("slow down", details=details))
            while client.count("watch") == count:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.5)
            assert waited <= loop.time() - before < waited + 1
        task.cancel()


@simulated
async def test_an_exception_in_a_handler_is_ours_and_ends_the_mirror() -> None:
    client = FakeClient()
    mirror = new_mirror(client)

    def broken(_change: Change[ConfigMap]) -> None:
        raise ZeroDivisionError

    mirror.on_change(broken)
    await put(client, "one")
    with pytest.raises(ZeroDivisionError):
        await mirror.run()


@simulated
async def test_a_handler_that_comes_late_is_told_what_is_there_and_can_leave() -> None:
    client = FakeClient()
    mirror = new_mirror(client)
    seen: list[str] = []
    async with running(mirror):
        for name in ("b", "a"):
            await put(client, name)
        await asyncio.sleep(1)
        leave = mirror.on_change(lambda c: seen.append(describe(c)))
        assert seen == ["+a", "+b"]
        leave()
        await put(client, "c")
        await asyncio.sleep(1)
        assert seen == ["+a", "+b"]


@simulated
async def test_relist_interrupts_the_watch_and_mends_what_a_faulty_server_left_out() -> None:
    client = FakeClient()
    mirror = new_mirror(client)
    async with running(mirror):
        client.hold_watches()
        await put(client, "one")
        await asyncio.sleep(100)
        assert names(mirror) == []
        mirror.relist()
        for _ in range(5):  # asking again at any moment of it does no harm
            await asyncio.sleep(0)
            mirror.relist()
        await asyncio.sleep(0.1)
        assert names(mirror) == ["one"]
        assert mirror.resource_version == client.version


class TimeTraveller(FakeClient):
    """Answers a list from the past when told to."""

    past: ObjectList | None = None
    lists_from_the_past = 0

    async def call(self, request: Request[Any]) -> Any:
        answer = await super().call(request)
        is_now = self.past is None or self.lists_from_the_past == 0
        if is_now or request.verb is not RequestVerb.LIST:
            return answer
        self.lists_from_the_past -= 1
        return self.past


@simulated
async def test_a_list_that_is_older_than_what_was_seen_is_asked_again_however_often() -> None:
    """Old lists that are far apart do not show that a store was put back."""
    client = TimeTraveller()
    mirror = new_mirror(client)
    seen: list[str] = []
    async with running(mirror):
        client.past = await client.list(CONFIG_MAPS)
        await put(client, "one")
        await asyncio.sleep(1)
        mirror.on_change(lambda c: seen.append(describe(c)))
        for count in (2, 3, 4):
            client.lists_from_the_past = 3
            mirror.relist()
            await asyncio.sleep(30)
            assert seen == ["+one"]
            assert mirror.list_count == count


@simulated
async def test_a_store_that_was_put_back_for_good_is_believed_in_the_end() -> None:
    client = TimeTraveller()
    mirror = new_mirror(client)
    async with running(mirror):
        client.past = await client.list(CONFIG_MAPS)
        await put(client, "one")
        await asyncio.sleep(1)
        seen: list[str] = []
        mirror.on_change(lambda c: seen.append(describe(c)))
        client.hold_watches()
        client.lists_from_the_past = 10**9
        mirror.relist()
        await asyncio.sleep(300)
        assert seen == ["+one", "-one"]
        assert mirror.resource_version == int(client.past.resource_version)


class WithoutTeams(FakeClient):
    """A server that does not know the kind Team, until it is defined."""

    is_defined = False

    async def call(self, request: Request[Any]) -> Any:
        if request.resource == TEAMS and not self.is_defined:
            raise NotFound("the server could not find the requested resource")
        return await super().call(request)


class Warnings(SilentLogger):
    """Keeps the messages of warnings."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reasons: list[str] = []

    def warning(self, event: str, **facts: Any) -> None:
        self.lines.append(event)
        self.reasons.append(facts.get("reason", ""))


def team_mirror(client: FakeClient, log: Warnings) -> Mirror[Team]:
    return Mirror(client, TEAMS, clock=LoopClock(0.0), rng=random.Random(1), log=log)


@simulated
async def test_a_kind_that_may_be_absent_counts_as_empty_until_it_is_defined() -> None:
    client, log = WithoutTeams(), Warnings()
    mirror = team_mirror(client, log)
    async with asyncio.timeout(1), running(mirror):
        assert (mirror.synced, mirror.is_undefined, len(mirror)) == (True, True, 0)
    async with running(mirror):
        await asyncio.sleep(100)
        assert mirror.seconds_since_contact < 31
        assert log.lines == ["Kind is not defined"]
        client.is_defined = True
        await client.create(TEAMS, {"metadata": {"name": "vision"}, "spec": {}})
        await asyncio.sleep(31)
        assert names(mirror) == ["vision"]
        assert not mirror.is_undefined


@simulated
async def test_what_is_held_of_a_kind_stays_when_the_server_says_that_it_knows_none() -> None:
    client = WithoutTeams()
    client.is_defined = True
    await client.create(TEAMS, {"metadata": {"name": "vision"}, "spec": {}})
    mirror = team_mirror(client, Warnings())
    async with running(mirror):
        client.is_defined = False
        mirror.relist()
        await asyncio.sleep(100)
        assert names(mirror) == ["vision"]
        assert not mirror.is_undefined
        client.is_defined = True
        await client.delete(TEAMS, "vision")
        await asyncio.sleep(100)
        assert names(mirror) == []


@simulated
async def test_a_kind_that_every_cluster_has_is_waited_for() -> None:
    client = FakeClient()
    client.fail_next("list", *[NotFound("not yet") for _ in range(5)])
    mirror = new_mirror(client)
    async with running(mirror):
        assert mirror.list_count == 1
        assert not mirror.is_undefined


@simulated
async def test_staleness_is_observable() -> None:
    client = FakeClient()
    mirror = new_mirror(client)
    assert mirror.seconds_since_contact is None
    async with running(mirror):
        await asyncio.sleep(120)
        assert mirror.seconds_since_contact == pytest.approx(120, abs=1)
        client.send_bookmarks()
        await asyncio.sleep(1)
        assert mirror.seconds_since_contact == pytest.approx(1, abs=0.1)


@simulated
async def test_a_selecting_mirror_sees_objects_enter_and_leave_the_selection() -> None:
    client = FakeClient()
    mirror = new_mirror(client, label_selector="keep=yes")
    async with running(mirror):
        await put(client, "one")
        labels = {"metadata": {"labels": {"keep": "yes"}}}
        await client.patch(CONFIG_MAPS, "one", labels, namespace="a")
        await asyncio.sleep(1)
        assert [obj.metadata.key for obj in mirror.items()] == [("a", "one")]
        labels["metadata"]["labels"]["keep"] = "no"
        await client.patch(CONFIG_MAPS, "one", labels, namespace="a")
        await asyncio.sleep(1)
        assert names(mirror) == []


async def trouble(client: FakeClient, rng: random.Random) -> None:
    """One random event: a write, or a fault."""
    name = f"n{rng.randrange(6)}"
    exists = any(obj.metadata.name == name for obj in client.stored(CONFIG_MAPS))
    roll = rng.random()
    if roll < 0.25 and not exists:
        await put(client, name, str(rng.random()))
    elif roll < 0.45 and exists:
        await change(client, name, str(rng.random()))
    elif roll < 0.65 and exists:
        await client.delete(CONFIG_MAPS, name, namespace="a")
    elif roll < 0.75:
        client.cut_watches(rng.choice([None, Unavailable("cut"), InternalError("oops")]))
    elif roll < 0.80:
        client.compact()
    elif roll < 0.85:
        client.fail_next(rng.choice(["watch", "list"]), Unavailable("refused"))
    elif roll < 0.90:
        client.hold_watches()
    elif roll < 0.95:
        client.release_watches()
    else:
        client.send_bookmarks()
    await asyncio.sleep(rng.choice([0, 0, 0.01, 1, 10]))


@pytest.mark.parametrize("seed", range(40))
def test_after_any_history_the_mirror_equals_the_store_and_its_changes_add_up(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        client = FakeClient(latency_seconds=rng.choice([0.0, 0.001]))
        mirror = new_mirror(client)
        replayed: dict[tuple[str, str], ConfigMap] = {}

        def replay(seen: Change[ConfigMap]) -> None:
            assert replayed.get(seen.key) is seen.old
            if seen.new is None:
                del replayed[seen.key]
            else:
                assert seen.old is None or seen.old.metadata.uid == seen.new.metadata.uid
                replayed[seen.key] = seen.new

        mirror.on_change(replay)
        async with running(mirror):
            for _ in range(150):
                await trouble(client, rng)
            client.release_watches()
            await asyncio.sleep(300)
            assert mirror.items() == client.stored(CONFIG_MAPS)
            assert tuple(replayed[key] for key in sorted(replayed)) == mirror.items()

    run(main())


@simulated
async def test_a_listener_is_called_once_all_handlers_have_seen_the_changes() -> None:
    client = FakeClient()
    for number in range(3):
        await put(client, f"listed-{number}")
    mirror = new_mirror(client)
    seen, calls = list[str](), list[int]()
    remove = mirror.on_changes(lambda: calls.append(len(seen)))
    mirror.on_change(lambda c: seen.append(describe(c)))
    async with running(mirror):
        await asyncio.sleep(1)
        assert calls == [3]
        await put(client, "more")
        await asyncio.sleep(1)
        assert calls == [3, 4]
        remove()
        await put(client, "last")
        await asyncio.sleep(1)
        assert (len(seen), calls) == (5, [3, 4])
