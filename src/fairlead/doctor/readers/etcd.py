"""Asks the members of an etcd cluster over etcd's own API, through its gateway for JSON.

Nothing is changed: the status of each member, the list of members, and alarms with the action GET.
The statuses are asked for twice. A member whose raft index is then below what another one had
before is behind, whatever was written meanwhile.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from fairlead.doctor.etcd_state import (
    Alarm,
    AlarmList,
    EtcdState,
    EtcdStatus,
    MemberList,
    page_of,
)
from fairlead.doctor.facts import Source
from fairlead.doctor.metrics import ALARM
from fairlead.doctor.readers.pages import MetricsPage, PageTarget
from fairlead.runtime.outside.fetch import Web, said

T = TypeVar("T")
MEMBERS_MAX = 9
ANSWER_BYTES_MAX, ANSWER_SECONDS_MAX = 1 << 20, 10.0


class EtcdReader:
    """Reads one cluster; `problems` collects what could not be read."""

    def __init__(self, urls: Sequence[str], web: Web) -> None:
        """`urls` are those for clients, one of each member; of more than nine the rest is left."""
        self._urls = [each.rstrip("/") for each in urls[:MEMBERS_MAX]]
        self._web = web
        self.problems: list[str] = []
        self.requests = 0

    def read(self) -> EtcdState | None:
        """Return the state; None when no member answers."""
        first = self._statuses(self._urls)
        if not first:
            return None
        answering = [url for url, _ in first]
        before = max(status.raft_index for _, status in first)
        members = self._ask_any(answering, "cluster/member/list", MemberList)
        alarms = self._ask_any(answering, "maintenance/alarm", AlarmList, action="GET")
        return EtcdState(
            tuple((_host(url), status) for url, status in self._statuses(answering)), before,
            members.members if members is not None and members.members else None,
            alarms.alarms if alarms is not None else None,
        )  # fmt: skip

    def targets(self, state: EtcdState | None) -> list[PageTarget]:
        """Return the members' pages of metrics; their statuses where they show no page."""
        found: list[PageTarget] = []
        statuses = dict(state.statuses) if state is not None else {}
        alarms = None if state is None else state.alarms
        for url in self._urls:
            page, status = MetricsPage(f"{url}/metrics", self._web), statuses.get(_host(url))

            def fetch(page: MetricsPage = page, status: EtcdStatus | None = status) -> bytes:
                if alarms is None:
                    return page.fetch_etcd()
                try:
                    return page.fetch() + alarm_line(alarms)
                except OSError:
                    if status is None:
                        raise
                    return page_of(status) + alarm_line(alarms)

            found.append(PageTarget(Source.ETCD, _host(url), fetch))
        return found

    def absent(self) -> dict[Source, str]:
        """Return why parts were not seen."""
        if not self.problems:
            return {}
        return {Source.ETCD_API: f"{Source.ETCD_API.value}: {self.problems[0]}"}

    def _statuses(self, urls: Sequence[str]) -> list[tuple[str, EtcdStatus]]:
        asked = [(url, self._ask(url, "maintenance/status", EtcdStatus)) for url in urls]
        return [(url, status) for url, status in asked if status is not None]

    def _ask_any(self, urls: Sequence[str], path: str, type_: type[T], **body: str) -> T | None:
        """Return the answer of the first member that gives one."""
        for url in urls:
            answer = self._ask(url, path, type_, **body)
            if answer is not None:
                return answer
        return None

    def _ask(self, url: str, path: str, type_: type[T], **body: str) -> T | None:
        self.requests += 1
        try:
            answer = self._web.fetch(
                f"{url}/v3/{path}", json.dumps(body).encode(), bytes_max=ANSWER_BYTES_MAX,
                seconds_max=ANSWER_SECONDS_MAX,
            )  # fmt: skip
            return msgspec.json.decode(answer, type=type_, strict=False)
        except (OSError, ValueError, RecursionError) as error:
            text = said(error) if isinstance(error, OSError) else "not an answer of etcd"
            self.problems.append(f"{_host(url)}: {path}: {text}")
            return None


def alarm_line(alarms: Sequence[Alarm]) -> bytes:
    """Return the sample that says whether the alarm NOSPACE is active."""
    return f"{ALARM} {int(any(each.kind == 'NOSPACE' for each in alarms))}\n".encode()


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc
