"""Tickets of nodes with the controllers, virtual nodes and a simulated cloud, in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_health import ACTING, HealthWorld, ready

from fairlead.api import names
from fairlead.api.cluster.node_report import Action
from fairlead.api.jobs.notify import NoticeState
from fairlead.api.resources import NODES
from fairlead.decide.notices import (
    Delivery,
    Post,
    TicketsPolicy,
    TicketTarget,
    TryOutcome,
    TryReason,
)
from fairlead.model.health.node_record import NodeState
from fairlead.model.health.ticket import TicketRecord, tickets_of
from fairlead.runtime.kept.audit import AuditQuery
from fairlead.sim.loop import run

DESK = TicketTarget("desk.example", "https://desk.example/hook")
BOTH = TicketsPolicy((DESK, TicketTarget("Provider")))


class Desk:
    """A desk of people; `seconds`: how long it takes to answer, `taken`: what it has by then."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.tries: Counter[str] = Counter()
        self.taken: list[dict[str, Any]] = []

    async def send(self, delivery: Delivery) -> TryOutcome:
        raise AssertionError("no job asks for notices")

    async def post_ticket(self, post: Post) -> TryOutcome:
        self.tries[post.id] += 1
        body = json.loads(post.body_for("desk.example"))
        self.taken.append(body)
        await asyncio.sleep(self.seconds)
        return TryOutcome(TryReason.DELIVERED, 202)

    def types(self) -> list[str]:
        return [each["type"] for each in self.taken]


async def asking(
    fleet: FleetWorld, desk: Desk, policy: TicketsPolicy = BOTH
) -> tuple[HealthWorld, str]:
    """Let a node of a fleet have a fault that a person mends; return it."""
    fleet.tickets, fleet.sender = policy, desk
    await fleet.kill()
    world = await ready(fleet, 3)
    name = (await fleet.nodes())[0].metadata.name
    await world.tell(name, world.fault(action=Action.ASK_PERSON))
    await asyncio.sleep(30)
    assert await world.state(name) is NodeState.ASKING
    return world, name


async def tickets(world: HealthWorld, name: str) -> dict[str, TicketRecord]:
    found = tickets_of((await world.node(name)).metadata.annotations)
    return {each.to: each for each in found}


def test_a_person_and_the_cloud_are_asked_once_and_told_once_that_it_is_over() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk()
            world, name = await asking(fleet, desk)
            await asyncio.sleep(60)
            found = await tickets(world, name)
            assert {to: each.state for to, each in found.items()} == {
                "desk.example": NoticeState.DELIVERED, "Provider": NoticeState.DELIVERED,
            }  # fmt: skip
            assert desk.types() == ["node.ticket.opened"]
            assert [f["check"] for f in desk.taken[0]["faults"]] == ["gpu-xid"]
            (report,) = fleet.cloud.reported.values()
            node = await world.node(name)
            assert (report.machine, report.checks) == (node.spec.provider_id, ("gpu-xid 79",))
            metrics = fleet.metrics.render().decode()
            assert 'fairlead_health_tickets{state="Delivered"} 2.0' in metrics
            said = [each for each in await fleet.decisions() if each.action == "Ticket"]
            assert len(said) == 2, "one record of each"
            await world.tell(name)
            await asyncio.sleep(300)
            assert await world.state(name) is NodeState.READY
            assert desk.types() == ["node.ticket.opened", "node.ticket.resolved"]
            assert [each.is_over for each in fleet.cloud.reported.values()] == [False, True]
            assert max(desk.tries.values()) == 1
            assert fleet.crashes() == []

    run(main())


def test_a_desk_that_never_answers_is_given_up_and_holds_up_no_other_target() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk(seconds=float("inf"))
            world, name = await asking(fleet, desk)
            assert (await tickets(world, name))["desk.example"].state is NoticeState.SENDING
            await asyncio.sleep(4 * 3600)
            found = await tickets(world, name)
            assert found["Provider"].state is NoticeState.DELIVERED
            assert found["desk.example"].state is NoticeState.GIVEN_UP
            assert found["desk.example"].tries == 8
            assert await world.state(name) is NodeState.ASKING, "a person is asked all the same"
            assert 'fairlead_health_tickets{state="GivenUp"} 1.0' in fleet.metrics.render().decode()
            await world.tell(name)
            await asyncio.sleep(300)
            assert await world.state(name) is NodeState.READY
            assert fleet.crashes() == []

    run(main())


def test_a_node_comes_back_while_the_desk_has_not_answered() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk(seconds=float("inf"))
            world, name = await asking(fleet, desk, TicketsPolicy((DESK,)))
            await world.tell(name)
            await asyncio.sleep(75)
            assert await world.state(name) is NodeState.READY
            assert desk.types()[0] == "node.ticket.opened"
            desk.seconds = 1.0
            await asyncio.sleep(300)
            assert desk.types()[-1] == "node.ticket.resolved"
            (found,) = (await tickets(world, name)).values()
            assert found.state is NoticeState.DELIVERED

    run(main())


def test_a_desk_that_answers_late_is_not_asked_again_meanwhile() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk(seconds=50)
            world, name = await asking(fleet, desk, TicketsPolicy((DESK,)))
            await asyncio.sleep(600)
            assert (await tickets(world, name))["desk.example"].state is NoticeState.DELIVERED
            assert desk.types() == ["node.ticket.opened"]

    run(main())


def test_a_machine_that_is_replaced_was_reported_to_its_provider() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk()
            fleet.tickets, fleet.sender = BOTH, desk
            await fleet.kill()
            world = await ready(fleet, 3)
            node = (await fleet.nodes())[0]
            name = node.metadata.name
            await world.tell(name, world.fault(action=Action.REPLACE))

            async def is_gone() -> bool:
                return node.spec.provider_id not in fleet.cloud.machines

            await fleet.until(is_gone, 3600)
            (report,) = fleet.cloud.reported.values()
            assert report.machine == node.spec.provider_id
            assert desk.taken == [], "nobody is asked for what is replaced"
            pages = [page async for page in fleet.history.query_audit(AuditQuery())]
            reasons = [each.reason for page in pages for each in page]
            assert reasons.count("HostReported") == 1, "one taking, however often it is tried"
            assert fleet.crashes() == []

    run(main())


def test_a_node_that_is_deleted_while_a_person_is_asked_is_told_as_resolved() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk()
            _, name = await asking(fleet, desk, TicketsPolicy((DESK,)))
            await fleet.client.delete(NODES, name)
            await asyncio.sleep(120)
            assert desk.types() == ["node.ticket.opened", "node.ticket.resolved"]
            assert desk.taken[1]["node"]["name"] == name
            assert fleet.crashes() == []

    run(main())


def test_controllers_that_are_killed_at_any_moment_lose_no_ticket() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk(seconds=20)
            fleet.tickets, fleet.sender = TicketsPolicy((DESK,)), desk
            await fleet.kill()
            world = await ready(fleet, 3)
            name = (await fleet.nodes())[0].metadata.name
            await world.tell(name, world.fault(action=Action.ASK_PERSON))
            for seconds in (1.6, 2.5, 3, 5, 8, 13, 21):
                await asyncio.sleep(seconds)
                await fleet.kill()
            await asyncio.sleep(1800)
            (found,) = (await tickets(world, name)).values()
            assert found.state is NoticeState.DELIVERED
            (tries,) = desk.tries.values()
            assert 1 < tries <= found.tries <= 8, "one message, of which tries were lost"
            assert fleet.crashes() == []

    run(main())


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing() -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            desk = Desk()
            world, name = await asking(fleet, desk, TicketsPolicy(BOTH.targets, is_dry_run=True))
            await asyncio.sleep(60)
            found = await tickets(world, name)
            assert {each.reason for each in found.values()} == {"DryRun"}
            assert (desk.taken, fleet.cloud.reported) == ([], {})
            node = await world.node(name)
            assert names.TICKETS in node.metadata.annotations

    run(main())
