"""The tickets controller: asks those who repair machines, and says when it is over.

Nothing waits for it, the health controller least: it reads the state that a node is in, and its
own progress stands in an annotation of the node beside it. Tries are those of notices of jobs
(`message_tries.py`, docs/design/notices.md). A cloud is asked by the provider of the node's pool.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from msgspec.structs import replace as replaced

from fairlead.api import names
from fairlead.api.cluster.fleet import FLEET_NAME, Fleet
from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.jobs.notify import NoticeState
from fairlead.api.kubernetes.core import Node
from fairlead.api.resources import NODES
from fairlead.api.status import ApiError
from fairlead.api.values.times import format_time
from fairlead.cloud.provider import CloudError, RefusedByProvider, ReportsHosts
from fairlead.cloud.registry import ProviderFactory
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.nodes.fleet_records import FleetRecords
from fairlead.controllers.records.message_tries import MessageTries, NoticeSender
from fairlead.decide.notices import (
    SendTicket,
    SettleTicket,
    Ticket,
    TicketAction,
    TicketKey,
    TicketsPolicy,
    TicketTarget,
    TicketView,
    TryOutcome,
    TryReason,
    decide_tickets,
    host_report_of,
    is_ticket_past,
    key_of_ticket,
    post_of_ticket,
    ticket_of,
    ticket_wants_turn,
    with_ticket,
)
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.health.ticket import TicketEvent, TicketRecord, tickets_of, tickets_text
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventSink
from fairlead.runtime.kept.history import History
from fairlead.runtime.keyed_controller import KeyedDecider
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

#: Nodes that were deleted while a ticket was open, of which the end is still to be said.
_GONE_MAX = 256


@dataclass(frozen=True, slots=True)
class TicketRecipients:
    """The ways of tickets: by `sender`, or by the provider of the node's pool."""

    sender: NoticeSender
    providers: ProviderFactory


class TicketsController:
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "tickets"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        recipients: TicketRecipients,
        *,
        reports: Mirror[NodeReport],
        fleets: Mirror[Fleet],
        history: History,
        events: EventSink,
        clock: Clock,
        policy: TicketsPolicy,
        counted: Callable[[TryReason], None] = lambda _: None,
        reader: MirrorReader | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`counted` is called with how each try ended."""
        self._world, self._nodes = world, world.mirrors.nodes
        self._reports, self._fleets = reports, fleets
        self._objects = ObjectWriter(client)
        self._recipients = recipients
        self._records = FleetRecords(history, events, log)
        self._clock, self._policy = clock, policy
        self._set_aside = set_aside_of(reader)
        #: Nodes with a record of their faults or a ticket, and the tickets.
        self._open: dict[ObjectKey, tuple[TicketRecord, ...]] = {}
        #: Nodes that are gone, with their tickets: what is written of those stays in memory.
        self._gone: dict[ObjectKey, Node] = {}
        self._decider: KeyedDecider[TicketAction] = KeyedDecider(
            self._nodes, self._decide_one, set_aside=self._set_aside
        )
        self._tries: MessageTries[TicketKey] = MessageTries(
            policy.sending, self._decider.mark, counted
        )
        self._undo = (
            follow(self._nodes, self._node_changed, reader),
            follow(fleets, lambda _: self._mark_all(), reader),
            follow(world.mirrors.pools, lambda _: self._mark_all(), reader),
        )

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (self._nodes, self._world.mirrors.pools, self._reports, self._fleets)

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        for undo in self._undo:
            undo()

    async def observe(self) -> None:
        """Write what became of tickets to the history, until cancelled."""
        await self._records.run()

    def states(self) -> Counter[NoticeState]:
        """Return how far the tickets are of nodes that still need repair."""
        every = (each for tickets in self._open.values() for each in tickets)
        return Counter(each.state for each in every if each.event is TicketEvent.OPENED)

    def _node_changed(self, change: Change[Node]) -> None:
        node, key = change.new, change.key
        old = change.old
        if old is not None and (node is None or node.metadata.uid != old.metadata.uid):
            self._keep_gone(old)
        notes = {} if node is None else node.metadata.annotations
        if names.HEALTH in notes or names.TICKETS in notes:
            self._open[key] = tickets_of(notes)
        elif self._open.pop(key, None) is None:
            return
        self._decider.mark(key)

    def _keep_gone(self, node: Node) -> None:
        """Keep a node that was deleted until the ends of its tickets are said."""
        key = _gone_key(node)
        if any(_is_owed(each) for each in tickets_of(node.metadata.annotations)):
            while len(self._gone) >= _GONE_MAX:
                self._gone.pop(next(iter(self._gone)))
            self._gone[key] = node
            self._decider.mark(key)

    def _mark_all(self) -> None:
        for key in self._open:
            self._decider.mark(key)

    def due_at(self) -> float | None:
        """Return when something is to be decided; None: when a node changes."""
        return self._tries.due_at(self._decider, self._clock.now())

    def decide(self, now: float) -> Decision[TicketAction]:
        """Decide on the nodes that are marked or due, and on those whose turn it is."""
        return self._tries.decide(self._decider, now)

    def _decide_one(self, key: ObjectKey, now: float) -> Decision[TicketAction] | None:
        node, is_gone = self._nodes.get(*key), key in self._gone
        node = self._gone.get(key, node)
        if node is None or (key not in self._open and not is_gone):
            self._tries.forget(key)
            return None
        known = tickets_of(node.metadata.annotations)
        if is_gone and not any(_is_owed(each) for each in known):
            del self._gone[key]
            self._tries.forget(key)
            return None
        outcomes = self._tries.outcomes(key, lambda each: is_ticket_past(each, known))
        view = TicketView(
            node, outcomes, is_granted=self._is_granted(node), is_gone=is_gone,
            is_sending=self._tries.is_sending(key),
        )  # fmt: skip
        wants = ticket_wants_turn(view, self._policy, now)
        has_turn = self._tries.has_turn(key, now, wants=wants)
        return decide_tickets(view, self._policy, now, has_turn=has_turn)

    def _is_granted(self, node: Node) -> bool:
        fleet = self._fleets.get("", FLEET_NAME)
        repairs = () if fleet is None else fleet.status.repairs
        return any(each.uid == node.metadata.uid for each in repairs)

    def key_of(self, action: TicketAction) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        return self._key(action.node)

    def _key(self, node: Node) -> ObjectKey:
        gone = _gone_key(node)
        return gone if gone in self._gone else node.metadata.key

    def is_beside(self, action: TicketAction) -> bool:
        """True for tries: their targets may be slow (`ActsBeside`)."""
        return isinstance(action, SendTicket)

    def takings(self, action: TicketAction) -> Sequence[Taking]:
        """Return what a provider may take of a machine, for the record before it."""
        if not isinstance(action, SendTicket) or action.record.event is not TicketEvent.OPENED:
            return ()
        return (takings.host_report(action),) if action.target.is_provider else ()

    async def perform(self, action: TicketAction) -> Written | None:
        """Carry out one action; Conflict means: decide again on newer objects."""
        match action:
            case SettleTicket(node, record):
                written = await self._write(node, record)
                self._note(node, record)
                return written
            case SendTicket(node, target, record):
                return await self._tries.send(
                    self._key(node), key_of_ticket(record), self._write(node, record),
                    lambda: self._try(node, target, record),
                )  # fmt: skip
            case _:
                assert_never(action)

    async def _write(self, node: Node, record: TicketRecord) -> Written | None:
        notes, key = node.metadata.annotations, _gone_key(node)
        text = tickets_text(with_ticket(tickets_of(notes), record))
        if key in self._gone:
            meta = replaced(node.metadata, annotations={**notes, names.TICKETS: text})
            self._gone[key] = replaced(node, metadata=meta)
            self._decider.mark(key)
            return None
        patch = {"metadata": {"annotations": {names.TICKETS: text}}}
        return await self._objects.patch(NODES, node.metadata, patch)

    async def _try(self, node: Node, target: TicketTarget, record: TicketRecord) -> TryOutcome:
        if self._policy.is_dry_run:
            return TryOutcome(TryReason.DRY_RUN)
        report = self._reports.get("", node.metadata.name)
        ticket = ticket_of(node, record, report, self._clock.now())
        try:
            async with asyncio.timeout(self._policy.sending.try_seconds_max):
                if target.is_provider:
                    return await self._report(node, ticket)
                return await self._recipients.sender.post_ticket(post_of_ticket(ticket, target))
        except TimeoutError:
            return TryOutcome(TryReason.TIMEOUT)

    async def _report(self, node: Node, ticket: Ticket) -> TryOutcome:
        """Report the host of a node's machine to the provider of its pool."""
        pool = self._world.mirrors.pools.get("", node.metadata.labels.get(names.POOL, ""))
        if pool is None:
            return TryOutcome(TryReason.NOT_OFFERED)
        try:
            provider = self._recipients.providers(pool)
            if not isinstance(provider, ReportsHosts):
                return TryOutcome(TryReason.NOT_OFFERED)
            is_taken = await provider.report_host(host_report_of(ticket))
        except RefusedByProvider:
            return TryOutcome(TryReason.REJECTED)
        except CloudError:
            return TryOutcome(TryReason.BUSY)
        return TryOutcome(TryReason.DELIVERED if is_taken else TryReason.NOT_OFFERED)

    def _note(self, node: Node, record: TicketRecord) -> None:
        is_told = record.state is NoticeState.DELIVERED
        is_open = record.event is TicketEvent.OPENED
        if not record.tries:
            return  # what never arrived is over
        action = "Ticket" if is_told or not is_open else "TicketFailed"
        code = "" if record.code is None else f" {record.code}"
        text = f"{record.event.value} at {record.to}: {record.reason}{code} (tries: {record.tries})"
        facts: dict[str, int | float | str | bool] = {
            "to": record.to,
            "tries": record.tries,
            "openedAt": record.opened_at,
        }
        at = format_time(self._clock.now())
        # Records of one second differ by their numbers.
        number = next(i for i, to in enumerate(self._policy.targets) if to.name == record.to)
        said = PoolDecision(at, action, record.reason, text, facts, number)
        self._records.note(NODES, node.metadata, (said,))

    def changed(self, key: ObjectKey) -> None:
        """Look at a node again: an action on it did not get through."""
        self._decider.requeue(key)

    def failed(self, action: TicketAction, error: ApiError) -> None:
        """Leave it: the loop comes back to the node ever more rarely."""

    def faulted(self, action: TicketAction, error: Exception) -> None:
        """Our own code raised over this node: set it aside, so that the others go on."""
        self._set_aside.note(NODES, action.node.metadata, AsideStage.ACT, error)


def _is_owed(record: TicketRecord) -> bool:
    return record.event is TicketEvent.OPENED or record.state is NoticeState.SENDING


def _gone_key(node: Node) -> ObjectKey:
    """Return the key of a node that is gone, which one that is made of its name does not have."""
    return ("gone", node.metadata.uid)
