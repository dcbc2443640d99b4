"""The controller of unreachable nodes: follows the leases of nodes, and marks who is lost.

Kubelets renew their leases every 10 s: 750 events a second of 7,500 nodes. Their handler takes one
step in the book of leases and wakes nothing. A decision is due when the oldest lease becomes late,
which while all is well is put off before it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, assert_never

from fairlead.api.kubernetes.core import Lease, Node
from fairlead.api.meta import ObjectMeta
from fairlead.api.names import NODE_LEASES_NAMESPACE, UNREACHABLE
from fairlead.api.resources import LEASES, NODES
from fairlead.api.status import ApiError
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.health.policy import SilencePolicy
from fairlead.decide.health.unreachable_nodes import (
    Contact,
    Presence,
    PresenceAnswer,
    SetMark,
    SilenceAction,
    SilenceReport,
    SilenceView,
    TryNodes,
    decide_silence,
    machine_address,
    presence_of,
)
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.decide.words import duration
from fairlead.model.health.lease_book import LeaseBook
from fairlead.model.health.unreachable import UnreachableMark, mark_of
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock, loop_time
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow

#: Tries a connection: to an address, at a port, for so many seconds. It raises nothing.
Connect = Callable[[str, int, float], Awaitable[Contact]]


class UnreachableNodesController:
    """One per process and leader. After a crash, create a new one: the marks are on the nodes."""

    name = "unreachable-nodes"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        leases: Mirror[Lease],
        connect: Connect,
        *,
        events: EventSink,
        clock: Clock,
        policy: SilencePolicy,
        reader: MirrorReader | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`leases` are those of kube-node-lease; where the policy is off it may be dormant."""
        self.report = SilenceReport()
        self._client = client
        self._world = world
        self._leases = leases
        self._connect = connect
        self._objects = ObjectWriter(client)
        self._events = events
        self._clock = clock
        self._policy = policy
        self._log = log
        self._book = LeaseBook(policy.doubt_seconds)
        self._marked: dict[str, Node] = {}
        self._marks_seen: dict[str, float] = {}
        self._answers: dict[str, PresenceAnswer] = {}
        self._tried: set[str] = set()
        self._wake_at: float | None = 0.0
        self._removers = (
            follow(world.mirrors.nodes, self._node_changed, reader),
            follow(leases, self._lease_changed, reader),
        )

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads and writes; leases wake nothing."""
        return (self._world.mirrors.nodes,)

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        for remove in self._removers:
            remove()

    # What it sees

    def _lease_changed(self, change: Change[Lease]) -> None:
        lease, name = change.new, change.key[1]
        if lease is None:
            return  # the node is as old as before: kubelets make it again
        if self._world.mirrors.nodes.get("", name) is not None:
            self._put(lease)
            if name in self._marked:
                self._wake_at = 0.0

    def _put(self, lease: Lease) -> None:
        spec = lease.spec
        name, seconds = lease.metadata.name, spec.lease_duration_seconds
        was_empty = not len(self._book)
        self._book.put(name, spec.renew_time, seconds, loop_time())
        if was_empty:
            self._wake_at = 0.0

    def _node_changed(self, change: Change[Node]) -> None:
        name, node = change.key[1], change.new
        if node is None:
            self._book.remove(name)
            self._answers.pop(name, None)
        elif name not in self._book:
            lease = self._leases.get(NODE_LEASES_NAMESPACE, name)
            if lease is not None:
                self._put(lease)
        if node is None or UNREACHABLE not in node.metadata.annotations:
            self._marked.pop(name, None)
            self._marks_seen.pop(name, None)
            return
        before, self._marked[name] = self._marked.get(name), node
        text = node.metadata.annotations[UNREACHABLE]
        if before is None or before.metadata.annotations[UNREACHABLE] != text:
            self._marks_seen[name] = loop_time()
            self._wake_at = 0.0

    # Decisions

    def due_at(self) -> float | None:
        """Return when to decide: when the oldest lease becomes late, or a node's mark may end."""
        return self._wake_at

    def decide(self, now: float) -> Decision[SilenceAction]:
        """Decide about nodes that are silent, and about marks."""
        view = SilenceView(
            self._book, lambda name: self._world.mirrors.nodes.get("", name), self._marked,
            self._marks_seen, self._world.health.unready_since, self._answers, now, loop_time(),
            is_listed=self._leases.synced,
        )  # fmt: skip
        decision, report = decide_silence(view, self._policy)
        if report.hold is not None and report.hold is not self.report.hold:
            self._log.warning(
                "No node is marked as unreachable", hold=report.hold.value, silent=report.silent
            )
        self.report = report
        self._wake_at = decision.wake_at
        return decision

    def key_of(self, action: SilenceAction) -> ObjectKey:
        """Return the object of an action; nodes that are tried together have the first one's."""
        match action:
            case TryNodes(nodes=nodes):
                return ("try", nodes[0].metadata.name)
            case SetMark(node=node):
                return ("", node.metadata.name)
            case _:
                assert_never(action)

    def is_beside(self, action: SilenceAction) -> bool:
        """Let no cycle wait for connections."""
        return isinstance(action, TryNodes)

    # Actions

    async def perform(self, action: SilenceAction) -> Written | None:
        """Carry an action out; safe to repeat."""
        match action:
            case TryNodes():
                await self._try(action)
                return None
            case SetMark(node=node, mark=mark):
                text = None if mark is None else mark.text
                patch = {"metadata": {"annotations": {UNREACHABLE: text}}}
                written = await self._objects.patch(NODES, node.metadata, patch)
                self._report(node, mark)
                return written
            case _:
                assert_never(action)

    async def _try(self, action: TryNodes) -> None:
        """Find out about nodes that are silent; nodes that are being tried are left out."""
        nodes = [each for each in action.nodes if each.metadata.name not in self._tried]
        names = {each.metadata.name for each in nodes}
        self._tried |= names
        try:
            async with asyncio.TaskGroup() as group:
                controls = [group.create_task(self._contact(each)) for each in action.controls]
                found = [group.create_task(self._tries(each)) for each in nodes]
                renewed = [group.create_task(self._is_renewed(each)) for each in nodes]
        finally:
            self._tried -= names
            self._wake_at = 0.0
        others = [each.result() for each in controls]
        for node, tries, is_renewed in zip(nodes, found, renewed, strict=True):
            presence = presence_of(tries.result(), others)
            if is_renewed.result() is not False:
                presence = Presence.RENEWED if is_renewed.result() else Presence.UNKNOWN
            self._note(node, PresenceAnswer(loop_time(), presence))

    async def _is_renewed(self, node: Node) -> bool | None:
        """Ask the API server, beside the watch, for a renewal; None: it says nothing."""
        name = node.metadata.name
        known = self._book.text_of(name)
        try:
            lease = await self._client.get(LEASES, name, namespace=NODE_LEASES_NAMESPACE)
        except ApiError as error:
            self._log.warning("Lease not read", node=name, error=error.message)
            return None
        return lease.spec.renew_time != known

    async def _tries(self, node: Node) -> Sequence[Contact]:
        out: list[Contact] = []
        for _ in range(self._policy.connects):
            out.append(await self._contact(node))
            if out[-1] is not Contact.SILENT:
                break
        return out

    async def _contact(self, node: Node) -> Contact:
        address, policy = machine_address(node), self._policy
        if not address:
            return Contact.UNKNOWN
        return await self._connect(address, policy.kubelet_port, policy.connect_seconds)

    def _note(self, node: Node, answer: PresenceAnswer) -> None:
        name = node.metadata.name
        before = self._answers.get(name)
        self._answers[name] = answer
        if name not in self._book:
            return
        is_first = before is None or before.at < self._book.heard(name)
        says = _WORDS.get(answer.presence)
        if says is None or not (is_first or before is None or before.presence != answer.presence):
            return
        silence = duration(loop_time() - self._book.heard(name))
        message = f"Its lease was not renewed for {silence}, and {says}"
        self._record(node.metadata, EventKind.WARNING, "NodeSilent", message)
        self._log.warning("Node is silent", node=name, presence=answer.presence.value)

    def _report(self, node: Node, mark: UnreachableMark | None) -> None:
        before = mark_of(node.metadata.annotations)
        name = node.metadata.name
        if mark is not None and mark.until is None:
            silence = duration(self._clock.now() - mark.since)
            message = (
                f"Its lease was not renewed for {silence}, and nothing answers on port "
                f"{self._policy.kubelet_port}: members on it count as lost"
            )
            self._record(node.metadata, EventKind.WARNING, "NodeUnreachable", message)
            self._log.warning("Node is unreachable", node=name, silence=silence)
        elif before is not None and before.until is None:
            away = duration(self._clock.now() - before.since)
            message = f"It renews its lease again, after {away}"
            self._record(node.metadata, EventKind.NORMAL, "NodeReachable", message)
            self._log.info("Node is reachable again", node=name, away=away)

    def _record(self, about: ObjectMeta, kind: EventKind, reason: str, message: str) -> None:
        self._events.record(NODES, about, kind, reason=reason, message=message)

    def changed(self, key: ObjectKey) -> None:
        """Look again: its node has changed under an action."""
        self._wake_at = 0.0

    def faulted(self, action: SilenceAction, error: Exception) -> None:
        """Raise: what is tried and written is made here, from values that were checked."""
        raise error

    def failed(self, action: SilenceAction, error: ApiError) -> None:
        """Leave it to the next decision."""


#: What an answer says of a machine that is not lost.
_WORDS = {
    Presence.ANSWERS: "its kubelet takes connections: nothing is lost",
    Presence.REFUSES: "its kubelet does not run, but its machine answers: nothing is lost",
    Presence.UNKNOWN: "it is unknown whether its machine answers: nothing is done",
}
