"""Examines a cluster again and again, as the controller does: one request at a time, with pauses.

Readers and checks are those of the command. What a controller has no rights or no address for is
absent, so its checks are unknown. Rates and quantiles are over the time since the page was read
before; the first examination reads it twice, at its beginning and at its end.

Behind one address there may be several API servers. Two pages belong together only if they name the
same start of the process, else counters of one would be compared with those of another.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.api.cluster import cluster_report
from fairlead.api.status import ApiError
from fairlead.decide.doctor.examination import Examination, ExaminationFinding
from fairlead.doctor.check import Check
from fairlead.doctor.etcd_state import EtcdState
from fairlead.doctor.examine import ExaminationReport, examine
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.metrics import Scrapes, pair
from fairlead.doctor.query import JOBS
from fairlead.doctor.readers.budget import ReadPath, RequestBudget
from fairlead.doctor.readers.cluster import ClusterReader
from fairlead.doctor.readers.etcd import EtcdReader
from fairlead.doctor.readers.flags import flags_of_objects
from fairlead.doctor.readers.pages import PageTarget, Samples, page_target
from fairlead.doctor.readers.prometheus import PrometheusAnswers
from fairlead.doctor.registry import BEHIND, CHECKS, wanted_samples
from fairlead.runtime.clock import Clock
from fairlead.runtime.exported.metrics_page import START, BadPage, parse_page
from fairlead.runtime.outside.fetch import Web, mounted_access

#: Larger pages are parsed in a thread, so that the controllers go on meanwhile.
_INLINE_BYTES_MAX = 64 << 10
_NO_RIGHT = {
    source: f"{source.value}: the controller does not read it; run `fairlead doctor`"
    for source in (Source.KUBELET_CONFIG, Source.NODE, Source.AUDIT)
} | {Source.ETCD_API: f"{Source.ETCD_API.value}: the setting doctor.etcd names no member"}
_API_SERVER = "apiserver"
#: Pages that are kept to compare the next ones with; the oldest is dropped first.
_PAGES_MAX = 64
#: Source, instance, and when its process started.
_Key = tuple[Source, str, float]
#: The samples of one page, and when they were read.
_Scrape = tuple[Samples, float]
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Servers:
    """Members of etcd by URL and a Prometheus with its jobs, and where access to them is mounted.

    Certificates and tokens are read again for each examination, since a Secret may change.
    """

    etcd: tuple[str, ...] = ()
    prometheus: str = ""
    jobs: Mapping[Source, str] = field(default_factory=lambda: JOBS)
    credentials: Path = Path("/etc/fairlead-doctor")

    def web(self, name: str) -> Web:
        """Return the access to a server; OSError."""
        return Web(mounted_access(self.credentials / name))


class Examiner:
    """Call it for an examination. It keeps the metrics of the latest one."""

    def __init__(
        self,
        read: ReadPath,
        *,
        clock: Clock,
        metrics: Sequence[str] = (),
        servers: Servers | None = None,
        pause_seconds: float = 0.0,
        counted: Callable[[], Mapping[str, int]] = dict,
        checks: Sequence[Check] = CHECKS,
        run: Runner = asyncio.to_thread,
    ) -> None:
        """`read` sends a GET. `metrics` are pages as NAME=URL; `servers` are asked as well.

        `counted` returns numbers of objects that the process knows, by plural. `run` runs a
        blocking call elsewhere.
        """
        self._read = read
        self._clock = clock
        self._targets = [target for each in metrics if (target := page_target(each)) is not None]
        self._servers = servers or Servers()
        self._pause_seconds = pause_seconds
        self._counted = counted
        self._checks = checks
        self._run = run
        self._wanted = wanted_samples()
        #: None: nothing was examined yet.
        self._before: dict[_Key, _Scrape] | None = None

    async def __call__(self) -> Examination:
        """Read, evaluate and return the results."""
        budget = RequestBudget()

        async def read(path: str, query: Mapping[str, str]) -> bytes:
            budget.spend()
            await asyncio.sleep(self._pause_seconds)
            return await self._read(path, query)

        etcd, members, hidden = await self._etcd()
        before = self._before
        if before is None:
            before, _ = await self._scrape(read, members)
        reader = ClusterReader(read, self._counted())
        objects = await reader.read()
        now, absent = await self._scrape(read, members)
        scrapes, single = _pairs(before, now)
        kept = {key: each for key, each in before.items() if key not in now} | now
        self._before = dict(list(kept.items())[-_PAGES_MAX:])
        facts = ClusterFacts(
            nodes=reader.nodes, objects=objects, scrapes=scrapes,
            flags=flags_of_objects(objects), etcd=etcd,
            absent=_NO_RIGHT | reader.absent() | single | absent | hidden,
        )  # fmt: skip
        report = examine(self._checks, await self._with_prometheus(facts))
        return _examination(report, at=self._clock.now(), requests=budget.requests)

    async def _etcd(self) -> tuple[EtcdState | None, list[PageTarget], dict[Source, str]]:
        """Return what etcd says of itself, its pages of metrics, and why it is not seen."""
        if not self._servers.etcd:
            return None, [], {}

        def ask() -> tuple[EtcdState | None, list[PageTarget], dict[Source, str]]:
            reader = EtcdReader(self._servers.etcd, self._servers.web("etcd"))
            state = reader.read()
            return state, reader.targets(state), reader.absent()

        try:
            return await self._run(ask)
        except OSError as error:  # of a certificate, also in a thread
            return None, [], {Source.ETCD_API: f"{Source.ETCD_API.value}: {str(error)[:200]}"}

    async def _with_prometheus(self, facts: ClusterFacts) -> ClusterFacts:
        """Return the facts with what Prometheus answers, where there is one."""
        url, clock = self._servers.prometheus, asyncio.get_running_loop().time
        if not url:
            return facts

        def ask() -> ClusterFacts:
            reader = PrometheusAnswers(url, self._servers.web("prometheus"), clock,
                                       self._servers.jobs)  # fmt: skip
            more = reader.with_status(self._checks, facts)
            return replace(more, answers=reader.read(self._checks, more))

        try:
            return await self._run(ask)
        except OSError as error:
            reason = f"{Source.RECORDED.value}: {str(error)[:200]}"
            return replace(facts, absent={**facts.absent, Source.RECORDED: reason})

    async def _scrape(
        self, read: ReadPath, members: Sequence[PageTarget]
    ) -> tuple[dict[_Key, _Scrape], dict[Source, str]]:
        """Return the samples of each page that can be read, and why others cannot."""
        found: dict[_Key, _Scrape] = {}
        absent: dict[Source, str] = {}
        targets = [*self._targets, *members]
        keys = [(each.source, each.instance) for each in targets]
        fetches: list[Callable[[], Awaitable[bytes]]] = [
            partial(self._run, each.fetch) for each in targets
        ]
        if not any(source is Source.APISERVER for source, _ in keys):
            keys.append((Source.APISERVER, _API_SERVER))
            fetches.append(partial(read, "/metrics", {}))
        for (source, instance), fetch in zip(keys, fetches, strict=True):
            try:
                page, at = await fetch(), self._clock.now()
                samples = await self._parsed(page, source)
                started = next(iter(samples.get(START, {}).values()), 0.0)
                found[source, instance, started] = (samples, at)
            except (OSError, ApiError, BadPage, ValueError) as error:
                absent[source] = f"{source.value}: {instance}: {str(error)[:200]}"
        return found, absent

    async def _parsed(self, page: bytes, source: Source) -> Samples:
        wanted = self._wanted.get(source, frozenset())
        if len(page) <= _INLINE_BYTES_MAX:
            return parse_page(page, wanted)
        return await self._run(partial(parse_page, page, wanted))


def _pairs(
    before: Mapping[_Key, _Scrape], now: Mapping[_Key, _Scrape]
) -> tuple[dict[Source, tuple[Scrapes, ...]], dict[Source, str]]:
    """Return the pages that were read twice, and why others do not count yet."""
    found: dict[Source, tuple[Scrapes, ...]] = {}
    absent: dict[Source, str] = {}
    for key, (samples, at) in now.items():
        source, instance, _ = key
        if key not in before:
            absent[source] = f"{source.value}: {instance}: read for the first time"
            continue
        earlier, began = before[key]
        scrapes = pair(instance, samples, before=earlier, seconds=max(at - began, 1e-3), at=at)
        found[source] = (*found.get(source, ()), scrapes)
    return found, absent


def _examination(report: ExaminationReport, *, at: float, requests: int) -> Examination:
    found = tuple(
        ExaminationFinding(
            each.check.id,
            cluster_report.FindingSeverity[each.severity.name],
            each.subject,
            each.check.title,
            each.evidence,
            each.value if math.isfinite(each.value) else None,
        )
        for each in report.findings
    )  # fmt: skip
    return Examination(
        at, found, tuple(each.check.id for each in report.unknown),
        tuple(each.check.id for each in report.passed),
        sum((report.left_out or {}).values()), report.nodes, requests, BEHIND,
    )  # fmt: skip
