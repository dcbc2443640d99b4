"""Exporters of others on this machine: read here, so that no server has to scrape each node.

They say nothing of faults. A page that cannot be read leaves the others alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from fairlead.api.cluster.node_report import EXPORTED_METRICS_MAX
from fairlead.model.health.faults import Moment
from fairlead.node.exports import (
    SAMPLES_MAX,
    ExportsUsage,
    ExportWindow,
    fetch_page,
    loopback_fault,
)
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings, ExporterReadSettings
from fairlead.node.source import Judged, Nothing, SignalSource
from fairlead.runtime.exported.metrics_page import BadPage, parse_page

SOURCE = "exporters"
WHY_MAX = 160


def conflicts(settings: ExporterReadSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of what cannot be, or does not go together."""
    seen: set[str] = set()
    for i, page in enumerate(settings.pages):
        where = f"exporters.pages[{i}]"
        if fault := loopback_fault(page.url):
            yield f"{where}.url", fault
        if not page.metrics:
            yield f"{where}.metrics", "it takes one metric at least"
        for j, metric in enumerate(page.metrics):
            if metric.name in seen:
                yield f"{where}.metrics[{j}].name", f"'{metric.name}' is there twice"
            seen.add(metric.name)
    if len(seen) > EXPORTED_METRICS_MAX:
        message = f"{len(seen)} metrics in all; at most: {EXPORTED_METRICS_MAX}"
        yield "exporters.pages", message
    if settings.period_seconds > settings.window_seconds:
        message = f"{settings.period_seconds} is more than windowSeconds, {settings.window_seconds}"
        yield "exporters.periodSeconds", message


class ExporterReads:
    """Reads all pages, and has the latest window; `read` runs in one thread."""

    def __init__(
        self,
        host: Host,
        settings: ExporterReadSettings,
        fetch: Callable[[str], bytes] = fetch_page,
    ) -> None:
        self._host = host
        self._pages = settings.pages
        self._fetch = fetch
        offset = zlib.crc32(host.boot_id().encode())
        self._window = ExportWindow(settings.window_seconds, offset)

    def read(self) -> tuple[str, ...]:
        """Return what could not be read, each with the reason; OSError where that is all."""
        faults: list[str] = []
        self._window.begin(self._host.now())
        for page in self._pages:
            try:
                text = self._fetch(page.url)
                names = {metric.name for metric in page.metrics}
                samples = parse_page(text, names, samples_max=SAMPLES_MAX)
            except (OSError, BadPage) as error:
                faults.append(f"{page.url}: {error}"[:WHY_MAX])
                continue
            self._window.take(page.metrics, samples, self._host.now())
        if len(faults) == len(self._pages):
            raise OSError(faults[0])
        return tuple(faults)

    def usage(self) -> ExportsUsage | None:
        """Return the latest window that is over."""
        return self._window.usage


def judge(facts: tuple[str, ...], memory: Nothing, _at: Moment) -> Judged[Nothing]:
    """Name what could not be read."""
    return Judged(memory, unreadable=facts)


def source(host: Host, settings: AgentSettings) -> SignalSource[tuple[str, ...], Nothing] | None:
    """Return the source of exporters; None where none is named."""
    given = settings.exporters
    if not given.pages:
        return None
    reads = ExporterReads(host, given)
    return SignalSource(SOURCE, (), Nothing, reads.read, judge,
                        period_seconds=given.period_seconds, usage=reads.usage)  # fmt: skip
