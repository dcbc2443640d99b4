"""Adds up what nodes' exporters said, from their reports, and keeps the text of the figures.

It writes nothing. Sums follow each report; the text is made every few seconds, in slices, so that
neither a scrape nor a decision waits for it.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.names import JOB_NAME, POOL, RACK, TEAM
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.network import team_of
from fairlead.decide.use.exports import ExportBook, ExportState
from fairlead.runtime.clock import Clock
from fairlead.runtime.exported.export_metrics import HEAD, ExportReport, lines_of
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow

TEXT_SECONDS = 15.0
#: Sums of one slice of the text: some 3 ms.
_SLICE = 100


class NodeExports:
    """One per process and leader. After a crash, create a new one: its state is in the reports."""

    def __init__(
        self,
        world: ClusterWorld,
        reports: Mirror[NodeReport],
        *,
        clock: Clock,
        reader: MirrorReader | None = None,
    ) -> None:
        self._world = world
        self._clock = clock
        self._book = ExportBook()
        self._text = b""
        self._is_used = asyncio.Event()
        self._followed = ExitStack()
        self._followed.callback(follow(reports, self._report_changed, reader))

    def close(self) -> None:
        """Detach from the mirror, which lives longer."""
        self._followed.close()

    def _report_changed(self, change: Change[NodeReport]) -> None:
        old = change.old.status.exports if change.old is not None else None
        new = change.new.status.exports if change.new is not None else None
        if old == new and new is not None:
            return  # a report of something else: the same window does not begin again
        name = change.key[1]
        node = self._world.mirrors.nodes.get("", name)
        is_of_node = node is not None and (
            change.new is not None and change.new.status.node_uid == node.metadata.uid
        )
        if node is None or not is_of_node:
            self._book.put(name, None, 0.0)
            return
        labels = node.metadata.labels
        self._book.put(
            name, new, self._clock.now(), pool=labels.get(POOL, ""), rack=labels.get(RACK, ""),
            owner=lambda space, pod: self._owner(name, space, pod),
        )  # fmt: skip
        self._is_used.set()

    def _owner(self, node: str, namespace: str, name: str) -> tuple[str, str]:
        """Return the team and the job of a pod on this node; of others nothing."""
        pod = self._world.mirrors.pods.get(namespace, name)
        if pod is None or pod.spec.node_name != node:
            return "", ""
        labels = pod.metadata.labels
        job = labels.get(JOB_NAME, "")
        teams = self._world.state.teams.open_to(namespace)
        return team_of(teams, labels.get(TEAM, "")), f"{namespace}/{job}" if job else ""

    @property
    def report(self) -> ExportReport:
        """Return what is known of the nodes, and the latest text."""
        states = self._book.states
        shown = {each.value: states[each] for each in ExportState}
        absent = len(self._world.mirrors.nodes) - states.total()
        return ExportReport({**shown, "absent": max(0, absent)}, self._text)

    async def observe(self) -> None:
        """Keep the text until cancelled; a cluster without such reports costs nothing."""
        await self._is_used.wait()
        while True:
            await self._write()
            await asyncio.sleep(TEXT_SECONDS)

    async def _write(self) -> None:
        self._book.expire(self._clock.now())
        keys, parts = list(self._book.shown()), [HEAD]
        for number, key in enumerate(keys, 1):
            sketch = self._book.get(key)
            if sketch is not None:
                parts.append(lines_of(key, sketch))
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        self._text = "".join(parts).encode() if keys else b""
