"""The agents of a simulated world's nodes and their collector: nodes fall sick, and are mended.

A fault is written into the NodeReport of its node as a collector would. What the health controller
asks for is done or refused; a reset or a reboot helps or does not; people mend what they are asked
to. Now and then a wrong table makes all nodes look sick at once. In the end all are healthy.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress

from msgspec.structs import replace

from fairlead.api.cluster.node_report import (
    Action,
    AgentAnswer,
    NodeReportStatus,
    ReportedFault,
    RequestAnswer,
    Severity,
)
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import to_wire
from fairlead.api.names import REPAIRED
from fairlead.api.resources import NODE_REPORTS, NODES
from fairlead.api.status import AlreadyExists, NotFound
from fairlead.api.values.times import format_time
from fairlead.model.health.node_record import NodeRecord, NodeState, record_of
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.sim.observers.observer import Observer
from fairlead.sim.setup.world_options import DAY_SECONDS, WorldOptions

_ACTIONS = (Action.NONE, Action.RESET_GPU, Action.REBOOT, Action.REPLACE, Action.ASK_PERSON)
#: How long a person takes to mend a node; how often the agents say that all is as it was.
_PERSON_SECONDS, _CONFIRM_SECONDS = 300.0, 600.0
_STORM, _STORM_SECONDS = "storm", (300.0, 1800.0)


def _answer_of(drawn: float) -> AgentAnswer:
    """Return how an agent answers; a fifth of the requests come to nothing."""
    if drawn < 0.05:
        return AgentAnswer.FORBIDDEN
    if drawn < 0.1:
        return AgentAnswer.FAILED
    return AgentAnswer.REFUSED if drawn < 0.2 else AgentAnswer.DONE


class Agents(Observer):
    """An `Observer` of the nodes; `sick_since` says since when each has a fault that counts."""

    def __init__(
        self, options: WorldOptions, client: Client, clock: Clock, rng: random.Random
    ) -> None:
        self._options = options
        self._client = client
        self._clock = clock
        self._rng = rng
        self._nodes: dict[str, Node] = {}
        self._faults: dict[str, dict[str, ReportedFault]] = {}
        self._boots: dict[str, int] = {}
        self._answers: dict[str, RequestAnswer] = {}
        #: Records with a request or a call for a person, and when that is answered.
        self._due: dict[str, tuple[float, NodeRecord]] = {}
        #: When each fault ends by itself: instant, node, check.
        self._ends: list[tuple[float, str, str]] = []
        self.sick_since: dict[str, float] = {}
        self.faults = self.storms = 0
        self.is_over = False

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in what is asked of the agent of a node."""
        if new is None:
            for kept in (self._nodes, self._faults, self._due, self.sick_since):
                kept.pop(name, None)
            return
        before = self._nodes.get(name)
        self._nodes[name] = new
        if before is not None and before.metadata.annotations == new.metadata.annotations:
            return
        record = record_of(new.metadata.annotations)
        is_asked = record is not None and (
            record.request is not None or record.state is NodeState.ASKING
        )
        if record is None or not is_asked:
            self._due.pop(name, None)
        elif name not in self._due or self._due[name][1].entered_at != record.entered_at:
            self._due[name] = (now + self._rng.uniform(5, _PERSON_SECONDS), record)

    async def run(self, until: float) -> None:
        """Let nodes fall sick until an instant of the loop; then all are mended."""
        options = self._options
        rate = options.sick_nodes_per_day / DAY_SECONDS
        storms = options.sick_storms_per_day / DAY_SECONDS
        if rate <= 0:
            return
        loop, rng = asyncio.get_running_loop(), self._rng
        next_at = loop.time() + rng.expovariate(rate)
        storm_at = loop.time() + rng.expovariate(storms) if storms > 0 else until
        calm_at = confirm_at = until
        while (now := min(next_at, storm_at, calm_at, confirm_at, until, loop.time() + 5)) < until:
            await asyncio.sleep(max(0.0, now - loop.time()))
            if now >= next_at:
                next_at = now + rng.expovariate(rate)
                await self._fall_sick()
            if now >= storm_at:
                storm_at, calm_at = (
                    now + rng.expovariate(storms),
                    now + rng.uniform(*_STORM_SECONDS),
                )
                await self._storm()
            if now >= calm_at:
                calm_at = until
                await self._calm()
            await self._answer()
            await self._end(now)
        await asyncio.sleep(max(0.0, until - loop.time()))
        self.is_over = True
        for name in sorted(self._nodes):
            self._faults.pop(name, None)
            await self._tell(name)

    async def confirm(self) -> None:
        """After the end, say from time to time that all is well, until cancelled."""
        while self._options.sick_nodes_per_day > 0:
            await asyncio.sleep(_CONFIRM_SECONDS)
            if self.is_over:
                for name in sorted(self._nodes):
                    await self._tell(name)

    async def _fall_sick(self) -> None:
        if not self._nodes:
            return
        rng, name = self._rng, self._rng.choice(sorted(self._nodes))
        check = rng.choice(("gpu-xid", "ib-port", "disk"))
        fault = self._fault(check, rng.choice(tuple(Severity)), rng.choice(_ACTIONS))
        self._faults.setdefault(name, {})[check] = fault
        lasts = rng.expovariate(1 / self._options.sick_seconds)
        self._ends.append((asyncio.get_running_loop().time() + lasts, name, check))
        self.faults += 1
        await self._tell(name)

    def _fault(self, check: str, severity: Severity, action: Action) -> ReportedFault:
        at = format_time(self._clock.now())
        return ReportedFault(check, "part", severity, action, action.recovery, at, at)

    async def _end(self, now: float) -> None:
        """End the faults that nobody has ended in their time."""
        for end in [each for each in self._ends if each[0] <= now]:
            self._ends.remove(end)
            _, name, check = end
            if self._faults.get(name, {}).pop(check, None) is not None:
                await self._tell(name)

    async def _storm(self) -> None:
        self.storms += 1
        for name in sorted(self._nodes):
            fault = self._fault(_STORM, Severity.CRITICAL, Action.REPLACE)
            self._faults.setdefault(name, {})[_STORM] = fault
            await self._tell(name)

    async def _calm(self) -> None:
        for name in sorted(self._nodes):
            if self._faults.get(name, {}).pop(_STORM, None) is not None:
                await self._tell(name)

    async def _answer(self) -> None:
        """Do what is asked of agents and people and is due."""
        for name, record in list(self._answerable()):
            del self._due[name]
            helps = self._rng.random() < 0.5
            if record.request is None:
                self._faults.pop(name, None)
                note = {REPAIRED: format_time(self._clock.now())}
                with suppress(NotFound):
                    await self._client.patch(NODES, name, {"metadata": {"annotations": note}})
                await self._tell(name)
                continue
            answer = _answer_of(self._rng.random())
            refuses = answer is not AgentAnswer.DONE
            self._answers[name] = RequestAnswer(record.request.id, answer)
            if record.request.action is Action.REBOOT and not refuses:
                self._boots[name] = self._boots.get(name, 0) + 1
            if helps and not refuses:
                self._faults.pop(name, None)
            await self._tell(name)

    def _answerable(self) -> Iterator[tuple[str, NodeRecord]]:
        now = self._clock.now()
        return ((name, record) for name, (at, record) in sorted(self._due.items()) if at <= now)

    async def _tell(self, name: str) -> None:
        """Write the report of a node."""
        node, now = self._nodes.get(name), self._clock.now()
        if node is None:
            return
        faults = tuple(self._faults.get(name, {}).values())
        status = NodeReportStatus(
            format_time(now), node.metadata.uid, f"boot-{self._boots.get(name, 0)}",
            critical=sum(each.severity is Severity.CRITICAL for each in faults),
            warning=sum(each.severity is Severity.WARNING for each in faults),
            faults=tuple(replace(each, last_seen=format_time(now)) for each in faults),
            answered=self._answers.get(name),
        )  # fmt: skip
        if faults:
            self.sick_since.setdefault(name, now)
        else:
            self.sick_since.pop(name, None)
        with suppress(AlreadyExists):
            await self._client.create(NODE_REPORTS, {"metadata": {"name": name}})
        body = {"faults": None, "critical": None, "warning": None, **to_wire(status)}
        await self._client.patch(NODE_REPORTS, name, {"status": body}, subresource="status")
