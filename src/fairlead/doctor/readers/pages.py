"""Pages of metrics: by URL, or through the API server; once or twice, to have rates."""

from __future__ import annotations

import urllib.error
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlead.api.status import ApiError
from fairlead.doctor.metrics import ALARM, Scrapes, pair
from fairlead.doctor.sources import METRIC_SOURCES, Source
from fairlead.runtime.exported.metrics_page import BadPage, Labels, parse_page
from fairlead.runtime.outside.fetch import Web

Samples = dict[str, dict[Labels, float]]


@dataclass(frozen=True, slots=True)
class PageTarget:
    """One instance: its source, its name in findings, and how its page is fetched."""

    source: Source
    instance: str
    fetch: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """A page at a URL, and who asks for it."""

    url: str
    web: Web

    def fetch(self) -> bytes:
        """Return the page; OSError."""
        return self.web.fetch(self.url)

    def fetch_etcd(self) -> bytes:
        """Return etcd's page with one line more: whether /health reports the alarm NOSPACE."""
        page = self.fetch()
        parts = urllib.parse.urlsplit(self.url)
        health = urllib.parse.urlunsplit((parts.scheme, parts.netloc, "/health", "", ""))
        try:
            answer = self.web.fetch(health)
        except urllib.error.HTTPError as error:
            answer = error.read(4096)
        except OSError:
            return page
        return page + b"\n%s %d\n" % (ALARM.encode(), b"NOSPACE" in answer)


def page_target(given: str, web: Web | None = None) -> PageTarget | None:
    """Return the target that NAME=URL names; None when it is no such text."""
    name, equals, url = given.partition("=")
    source = METRIC_SOURCES.get(name)
    if not equals or source is None or not url.startswith(("http://", "https://")):
        return None
    page = MetricsPage(url, web or Web())
    fetch = page.fetch_etcd if source is Source.ETCD else page.fetch
    return PageTarget(source, url.split("/")[2], fetch)


class PageReader:
    """Scrapes targets, twice with `wait` between when rates are wanted."""

    def __init__(self, wanted: Mapping[Source, frozenset[str]], wall: Callable[[], float]) -> None:
        """`wall` gives the time in seconds since 1970."""
        self._wanted = wanted
        self._wall = wall
        self.absent: dict[Source, str] = {}

    def read(
        self, targets: list[PageTarget], wait: Callable[[], None] | None
    ) -> dict[Source, tuple[Scrapes, ...]]:
        """Return the scrapes of each source; what failed is in `absent`."""
        first = [(each, *self._scrape(each)) for each in targets]
        if wait is not None and any(samples is not None for _, samples, _ in first):
            wait()
            second = [self._scrape(each) if samples is not None else (None, 0.0)
                      for each, samples, _ in first]  # fmt: skip
        else:
            second = [(None, 0.0) for _ in first]
        found: dict[Source, tuple[Scrapes, ...]] = {}
        for (target, earlier, began), (later, ended) in zip(first, second, strict=True):
            if earlier is None:
                continue
            if later is None:
                scrapes = pair(target.instance, earlier, before=None, seconds=0.0, at=began)
            else:
                scrapes = pair(target.instance, later, before=earlier,
                               seconds=max(ended - began, 1e-3), at=ended)  # fmt: skip
            found[target.source] = (*found.get(target.source, ()), scrapes)
        return found

    def _scrape(self, target: PageTarget) -> tuple[Samples | None, float]:
        try:
            page = target.fetch()
            return parse_page(page, self._wanted.get(target.source, ())), self._wall()
        except (OSError, ApiError, BadPage, ValueError, urllib.error.URLError) as error:
            name = target.source.value
            self.absent[target.source] = f"{name}: {target.instance}: {str(error)[:200]}"
            return None, 0.0
