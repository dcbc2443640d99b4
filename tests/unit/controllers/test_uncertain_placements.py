"""Placements whose answer never came, and that come true late, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.api.resources import JOBS, NODES
from fairlead.api.status import (
    ApiError,
    Conflict,
    InternalError,
    NotFound,
    Timeout,
    TooManyRequests,
    Unavailable,
)
from fairlead.controllers.placing.uncertain_placements import may_come_late
from fairlead.runtime.client import Request, RequestVerb
from fairlead.testing.builders import make_job, make_nodes, make_priority_class
from fairlead.testing.fake_client import FakeClient

from .test_scheduler import World, check


class Line(FakeClient):
    """Placements of one job get stuck on it, and arrive later."""

    def __init__(self) -> None:
        super().__init__()
        self.swallows = ""
        self.late: list[Callable[[], Awaitable[Any]]] = []

    async def call(self, request: Request[Any]) -> Any:
        send = super().call
        is_place = request.verb is RequestVerb.PATCH and "placement" in request.body.get(
            "status", {}
        )
        if is_place and request.body["status"]["placement"] and request.name == self.swallows:
            self.late.append(lambda: send(request))
            raise Timeout("no answer in time")
        return await send(request)

    async def deliver(self) -> list[str]:
        """Let what was swallowed arrive; return how it went."""
        late, self.late = self.late, []
        results: list[str] = []
        for send in late:
            try:
                await send()
            except ApiError as error:
                results.append(error.reason)
            else:
                results.append("")
        return results


class LateWorld(World):
    def __init__(self) -> None:
        super().__init__(Line())

    @property
    def line(self) -> Line:
        assert isinstance(self.client, Line)
        return self.client


def play(main: Callable[[LateWorld], Awaitable[None]]) -> None:
    check(main, LateWorld)


def test_a_placement_that_comes_true_late_finds_its_room_kept() -> None:
    async def main(world: LateWorld) -> None:
        await world.create(*make_nodes(1))
        await asyncio.sleep(1)
        world.line.swallows = "a"
        await world.create(make_job("a"))
        await asyncio.sleep(30)
        # Ahead of a, and asks for the same node: it would be given it.
        await world.create(make_priority_class("high", 10))
        await world.create(make_job("b", spec={"priority_class_name": "high"}))
        await asyncio.sleep(60)
        assert world.placed("b") is None
        late = world.line.late
        world.line.late = late[:1]
        assert await world.line.deliver() == [""]
        world.line.late = late[1:]
        assert set(await world.line.deliver()) == {"Conflict"}
        await asyncio.sleep(60)
        assert (world.placed("a"), world.placed("b")) == (["node-0000"], None)

    play(main)


def test_it_is_sent_again_until_there_is_an_answer_and_then_the_late_ones_fail() -> None:
    async def main(world: LateWorld) -> None:
        await world.create(*make_nodes(2))
        await asyncio.sleep(1)
        world.line.swallows = "a"
        await world.create(make_job("a"))
        await asyncio.sleep(30)
        assert len(world.line.late) > 5
        world.line.swallows = ""
        await asyncio.sleep(60)
        assert world.placed("a") == ["node-0000"]
        await world.create(make_job("b"))
        await asyncio.sleep(1)
        assert set(await world.line.deliver()) == {"Conflict"}
        assert (world.placed("a"), world.placed("b")) == (["node-0000"], ["node-0001"])

    play(main)


@pytest.mark.parametrize("how", ["held", "deleted"])
def test_the_room_is_free_once_the_job_has_moved_on_by_itself(how: str) -> None:
    async def main(world: LateWorld) -> None:
        await world.create(*make_nodes(1))
        await asyncio.sleep(1)
        world.line.swallows = "a"
        await world.create(make_job("a"))
        await asyncio.sleep(10)
        if how == "held":
            await world.client.patch(JOBS, "a", {"spec": {"suspend": True}}, namespace="default")
        else:
            await world.client.delete(JOBS, "a", namespace="default")
        world.line.swallows = ""
        await world.create(make_job("b"))
        await asyncio.sleep(1)
        assert world.placed("b") == ["node-0000"]
        expected = {"Conflict"} if how == "held" else {"NotFound"}
        assert set(await world.line.deliver()) == expected

    play(main)


def test_a_repair_that_may_come_late_keeps_both_the_old_places_and_the_new() -> None:
    async def main(world: LateWorld) -> None:
        await world.create(*make_nodes(4), make_job("a", count=2))
        await asyncio.sleep(1)
        assert world.placed("a") == ["node-0000", "node-0001"]
        world.line.swallows = "a"
        await world.client.delete(NODES, "node-0001")
        await world.set("a", {"attempt": 2})
        await asyncio.sleep(30)
        high = {"priority_class_name": "high"}
        await world.create(make_priority_class("high", 10))
        await world.create(make_job("b", count=2, spec=high), make_job("c", spec=high))
        await asyncio.sleep(60)
        assert (world.placed("b"), world.placed("c")) == (None, ["node-0003"])
        world.line.late = world.line.late[:1]
        assert await world.line.deliver() == [""]
        assert world.placed("a") == ["node-0000", "node-0002"]

    play(main)


def test_it_is_not_sent_again_once_its_node_takes_no_more_pods() -> None:
    async def main(world: LateWorld) -> None:
        await world.create(*make_nodes(2))
        await asyncio.sleep(1)
        world.line.swallows = "a"
        await world.create(make_job("a"))
        await asyncio.sleep(10)
        await world.client.patch(NODES, "node-0000", {"spec": {"unschedulable": True}})
        await asyncio.sleep(60)
        sent = len(world.line.late)
        verdict = world.job("a").status.verdict
        assert verdict is not None
        assert (verdict.reason, verdict.facts["node"]) == ("PlaceWithdrawn", "node-0000")
        world.line.swallows = ""
        await asyncio.sleep(60)
        assert world.placed("a") == ["node-0001"]
        assert len(world.line.late) == sent
        assert set(await world.line.deliver()) == {"Conflict"}

    play(main)


def test_nodes_that_a_gang_keeps_may_be_closed_to_others() -> None:
    async def main(world: LateWorld) -> None:
        await world.create(*make_nodes(3), make_job("a", count=2))
        await asyncio.sleep(1)
        world.line.swallows = "a"
        await world.client.delete(NODES, "node-0001")
        await world.set("a", {"attempt": 2})
        await asyncio.sleep(10)
        await world.client.patch(NODES, "node-0000", {"spec": {"unschedulable": True}})
        world.line.swallows = ""
        await asyncio.sleep(60)
        assert world.placed("a") == ["node-0000", "node-0002"]

    play(main)


@pytest.mark.parametrize(
    ("error", "open_"),
    [
        (Timeout("x"), True),
        (Unavailable("x"), True),
        (InternalError("etcdserver: request timed out"), True),
        (TooManyRequests("x"), False),
        (Conflict("x"), False),
        (NotFound("x"), False),
    ],
)
def test_only_an_answer_that_says_what_became_of_the_write_settles_it(
    error: ApiError, open_: bool
) -> None:
    assert may_come_late(error) is open_
