"""NoExecute taints evict the pods that do not tolerate them, at once or when their time is up.

A pod goes when a NoExecute taint of its node is not tolerated, or when the shortest
`tolerationSeconds` of the tolerations that match has passed since the taint was added (kubernetes
`pkg/controller/tainteviction`). Only tainted nodes and what is on them is looked at; without such
taints a change of a pod costs one comparison.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.api.kubernetes.core import Node, Pod, Taint
from fairlead.api.values.times import parse_time
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import field_reader
from fairlead.embedded.storage.records import Key, Record, StoreEvent
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.disruption import DisruptionCause, disrupt
from fairlead.embedded.verbs.options import DeleteOptions
from fairlead.model.inventory.labels import tolerates
from fairlead.runtime.client import EventType
from fairlead.runtime.wake_up import WakeUp

STEP_MAX = 64  # evictions between two turns of the event loop
_NODE_OF = field_reader(builtins.PODS, ("spec.nodeName",))


@dataclass(frozen=True, slots=True)
class _Tainted:
    """The NoExecute taints of a node, and when they were first seen."""

    taints: tuple[Taint, ...]
    seen_at: float


class TaintEviction:
    """Call `note` with every batch of store events, and keep `run` running."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tainted: dict[str, _Tainted] = {}
        self._nodes: dict[str, None] = {}  # whose taints changed: look at all their pods
        self._pods: dict[Key, None] = {}  # on tainted nodes, to look at
        self._due: list[tuple[float, Key]] = []  # a heap: when to look again
        self._wake = WakeUp()
        for record in context.store.records(builtins.NODES.name):
            self._note_node(record)

    @property
    def backlog(self) -> int:
        """How much is left to look at now; what is due later does not count."""
        return len(self._nodes) + len(self._pods)

    def note(self, events: Sequence[StoreEvent]) -> None:
        """Take in committed writes; called by the store."""
        for event in events:
            if event.info is builtins.NODES:
                if event.type is EventType.DELETED:
                    self._tainted.pop(event.record.name, None)
                else:
                    self._note_node(event.record)
            elif not self._tainted or event.type is EventType.DELETED:
                continue
            elif event.info is builtins.PODS:
                self._pods[event.record.key] = None
        if self._nodes or self._pods:
            self._wake.set()

    def _note_node(self, record: Record) -> None:
        taints = tuple(t for t in record.typed(Node).spec.taints if t.effect == "NoExecute")
        before = self._tainted.get(record.name)
        if not taints:
            self._tainted.pop(record.name, None)
        elif before is None or before.taints != taints:
            self._tainted[record.name] = _Tainted(taints, self._context.clock.now())
            self._nodes[record.name] = None

    async def run(self) -> None:
        """Evict for ever. Raises InternalError when the store can't store any more."""
        store = self._context.store
        while True:
            now = self._context.clock.now()
            while self._due and self._due[0][0] <= now:
                self._pods[heapq.heappop(self._due)[1]] = None
            if self._nodes:
                self._find_pods()
            if not self._pods:
                await self._wait()
                continue
            for key in list(self._pods)[:STEP_MAX]:
                del self._pods[key]
                self._look(key, now)
            await store.committed(store.next_version - 1)
            await asyncio.sleep(0)

    def _find_pods(self) -> None:
        """Queue the pods of the nodes whose taints changed: one walk for all of them."""
        for record in self._context.store.records(builtins.PODS.name):
            if _NODE_OF.read(record.data)["spec.nodeName"] in self._nodes:
                self._pods[record.key] = None
        self._nodes.clear()

    def _look(self, key: Key, now: float) -> None:
        record = self._context.store.latest(builtins.PODS.name, key)
        if record is None or record.is_deleting:
            return
        pod = record.typed(Pod)
        at = _evicted_at(pod, self._tainted.get(pod.spec.node_name))
        if at is None:
            return
        if at > now:
            heapq.heappush(self._due, (at, key))
        else:
            options = DeleteOptions(uid=record.uid)
            disrupt(self._context, key, options, DisruptionCause.TAINT)

    async def _wait(self) -> None:
        now = self._context.clock.now()
        self._wake.clear()
        await self._wake.wait(self._due[0][0] - now if self._due else None)


def _evicted_at(pod: Pod, tainted: _Tainted | None) -> float | None:
    """Return when the taints of its node evict a pod; None: never."""
    at: float | None = None
    for taint in tainted.taints if tainted is not None else ():
        assert tainted is not None
        since = parse_time(taint.time_added) if taint.time_added else tainted.seen_at
        matching = [t for t in pod.spec.tolerations if tolerates(t, taint)]
        bounds = [t.toleration_seconds for t in matching if t.toleration_seconds is not None]
        if not matching or bounds:
            due = since + max(0, min(bounds, default=0))
            at = due if at is None else min(at, due)
    return at
