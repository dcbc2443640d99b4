"""The loop of the agent: looks at each source in its turn, keeps what it knows, and reports.

A source is looked at once in its period, which is a second at the least, or earlier in a second in
which it asks for that. What the looks of a second
changed is written once: first the state, then the report, which replaces the one before as a whole.
Only the begin of a fault does not wait for the end of its second.
A fault of our own in one source stops that source, says so, and leaves the others alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fairlead.node.files import replace_file
from fairlead.node.readers import Reader
from fairlead.node.repairs import Repairs
from fairlead.node.reports.report import report_of
from fairlead.node.reports.state import State, StateError
from fairlead.node.reports.watch import MachineWatch
from fairlead.node.running.host import Host
from fairlead.node.source import AnySource
from fairlead.runtime.logs import SILENT, Logger

TICK_SECONDS = 1.0


class Agent:
    """Runs until it is stopped."""

    def __init__(
        self, host: Host, sources: Sequence[AnySource], state: State, *, report: Path,
        read_seconds_max: float, report_seconds: float, repairs: Repairs | None = None,
        log: Logger = SILENT,
    ) -> None:  # fmt: skip
        self._log = log
        self._host = host
        self._sources = sources
        self._state = state
        self._report = report
        self._read_seconds_max = read_seconds_max
        self._report_seconds = report_seconds
        self._repairs = repairs
        self._watch = MachineWatch(sources, state.load(), boot_id=host.boot_id(), now=host.now())
        self._machine_id = host.machine_id()
        self._is_stopped, self._is_due = False, asyncio.Event()
        self._not_kept = state.replaced
        self._published: object = None
        self._published_at = 0.0

    def stop(self) -> None:
        """End the loop at its next step."""
        self._is_stopped = True
        self._is_due.set()

    async def run(self) -> None:
        """Look and report until stopped; what is known then is kept.

        OSError when the first report cannot be written; later ones are tried again.
        """
        self._write_report(asyncio.get_running_loop().time())
        async with asyncio.TaskGroup() as group:
            followers = [group.create_task(self._follow(each)) for each in self._sources]
            if self._repairs is not None:
                followers.append(group.create_task(self._repair(self._repairs)))
            await self._report_on_changes()
            for task in followers:
                task.cancel()
        self._publish(asyncio.get_running_loop().time())

    async def _follow(self, source: AnySource) -> None:
        """Look at one source in its turn, for ever."""
        loop, reader = asyncio.get_running_loop(), Reader(source)
        due = loop.time()
        while True:
            begun = self._watch.begun
            try:
                await reader.look(self._watch, self._host, self._read_seconds_max)
            except Exception as error:  # noqa: BLE001 # ours: it stops this source only
                self._log.error("Stopped a source", source=source.name, exc_info=error)
                why = f"stopped by a fault of the agent: {type(error).__name__}: {error}"
                self._watch.blind(source, why, self._host.now())
                return
            if self._watch.begun != begun:
                self._is_due.set()
            due = max(due + source.period_seconds, loop.time())
            if source.is_early is None:
                await asyncio.sleep(due - loop.time())
            else:
                due = await _due_or_early(source.is_early, due)

    async def _repair(self, repairs: Repairs) -> None:
        """Follow what the controllers ask for, until cancelled."""
        while True:
            try:
                after = await repairs.step()
                self._watch.gpus_reset(after.gpus_reset, self._host.now().time)
            except StateError as error:  # nothing is done that is not kept
                self._log.warning("Left a request aside", error=str(error))
            except Exception as error:  # noqa: BLE001 # ours: it stops repairs only
                self._log.error("Stopped repairs", exc_info=error)
                return
            await asyncio.sleep(TICK_SECONDS)

    async def _report_on_changes(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_stopped:
            self._is_due.clear()
            self._publish(loop.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._is_due.wait()

    def _publish(self, now: float) -> None:
        """Keep and report what is new; the report alone where the state cannot be written."""
        try:
            mark, cleared = self._state.requested_clears()
            self._watch.clear(cleared, self._host.now().time)
            self._state.save(self._watch.kept())
            if mark:
                self._state.forget_clears(mark)
            self._not_kept = self._state.replaced
        except StateError as error:
            self._not_kept = f"the state cannot be written: {error}"
        try:
            self._write_report(now)
        except OSError as error:
            self._log.warning("Could not write the report", error=str(error))

    def _write_report(self, now: float) -> None:
        """Replace the report if it says something new, or is old; OSError."""
        report = report_of(
            self._watch, self._host.now(), not_kept=self._not_kept, machine_id=self._machine_id,
            counted=(each.usage() for each in self._sources),
            repair=None if self._repairs is None else self._repairs.latest,
        )  # fmt: skip
        sources = [(each.source, each.state, each.lost, each.unreadable) for each in report.sources]
        changed = (report.faults, report.ended, report.skipped, report.not_kept, report.tuning,
                   report.hardware, report.repair, sources)  # fmt: skip
        if changed != self._published or now - self._published_at >= self._report_seconds:
            replace_file(self._report, msgspec.json.encode(report) + b"\n", mode=0o644)
            self._published, self._published_at = changed, now


async def _due_or_early(is_early: Callable[[], bool], due: float) -> float:
    """Return when a look is due: at this time, or at the end of a second that asks for one."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(min(due - loop.time(), TICK_SECONDS))
        if loop.time() >= due:
            return due
        if is_early():
            return loop.time()
