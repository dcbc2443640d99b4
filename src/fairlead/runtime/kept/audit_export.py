"""Sends audit records to targets outside, in order, each record at least once.

How far a target is, is kept beside the records, after it has taken them. A target that takes none
holds up no taking and no other target.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.kept.audit import AuditQuery, AuditRecord
from fairlead.runtime.kept.audit_book import AuditBook
from fairlead.runtime.kept.history import History, HistoryError
from fairlead.runtime.logs import Logger
from fairlead.runtime.wake_up import WakeUp

TARGETS_MAX = 4
_BATCH = 100
#: Another process may have written, such as the leader before.
_LOOK_SECONDS = 30.0
_PORTS = {"tcp": 514, "udp": 514, "tls": 6514, "http": 80, "https": 443}


class TargetScheme(Enum):
    """How a target takes records: lines of a file, posts of lines, or syslog."""

    FILE = "file"
    HTTPS = "https"
    HTTP = "http"
    TCP = "tcp"
    TLS = "tls"
    UDP = "udp"


@dataclass(frozen=True, slots=True)
class AuditAddress:
    """Where a target is. `path` of a file is absolute; of a URL it may be a credential."""

    scheme: TargetScheme
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """The URL of a target that takes posts."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme.value}://{host}:{self.port}{self.path}"

    @property
    def shown(self) -> str:
        """What logs say of it."""
        is_file = self.scheme is TargetScheme.FILE
        return (
            f"file://{self.path}" if is_file else f"{self.scheme.value}://{self.host}:{self.port}"
        )

    @property
    def key(self) -> str:
        """What the store knows it by."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:32]


def parse_target(text: str) -> AuditAddress:
    """Return what a URL of a target says; ValueError says what is wrong with it."""
    parts = urlsplit(text)
    schemes = ", ".join(each.value for each in TargetScheme)
    if parts.scheme not in {each.value for each in TargetScheme}:
        raise ValueError(f"begins with none of {schemes}")
    scheme = TargetScheme(parts.scheme)
    if parts.username is not None or parts.password is not None:
        raise ValueError("names a user; put a token into the file audit-token")
    if scheme is TargetScheme.FILE:
        if parts.netloc or not parts.path.startswith("/") or parts.path.endswith("/"):
            raise ValueError("must be file:// and the absolute path of a file")
        return AuditAddress(scheme, "", 0, parts.path)
    is_post = scheme in (TargetScheme.HTTP, TargetScheme.HTTPS)
    if not parts.hostname or parts.fragment or (not is_post and (parts.path or parts.query)):
        raise ValueError(f"must be {scheme.value}://HOST:PORT" + ("/PATH" if is_post else ""))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "") if is_post else ""
    return AuditAddress(scheme, parts.hostname, parts.port or _PORTS[scheme.value], path)


class TargetFailed(Exception):
    """A target did not take records; the message says why, without the path of its URL."""


class AuditTarget(NamedTuple):
    """A target, and what sends to it."""

    address: AuditAddress
    sender: AuditSender


class AuditSender(Protocol):
    """Sends to one target."""

    async def send(self, records: Sequence[AuditRecord]) -> None:
        """Return when the target has all of them; TargetFailed."""
        ...


class AuditExport:
    """Of the process that writes the records; runs while it does."""

    def __init__(
        self, history: History, book: AuditBook, targets: Sequence[AuditTarget], *,
        rng: random.Random, log: Logger, reported: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`reported` is called with the number of targets that take no records."""
        self._history = history
        self._book = book
        self._targets = targets
        self._rng = rng
        self._log = log
        self._reported = reported
        #: Targets that do not take records, and why.
        self.failing: dict[str, str] = {}

    async def run(self) -> None:
        """Send what there is and what comes, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for each in self._targets:
                    group.create_task(self._serve(each), name=f"audit-{each.address.shown}")
        finally:
            self._reported(0)

    async def _serve(self, target: AuditTarget) -> None:
        backoff = Backoff(self._rng, BackoffOptions(1.0, 60.0))
        woken = WakeUp()
        self._book.waiting.append(woken)
        shown = target.address.shown
        try:
            while True:
                woken.clear()
                try:
                    is_more = await self._send(target)
                except (TargetFailed, HistoryError) as error:
                    if self.failing.get(shown) != str(error):
                        self._log.warning("Audit records not exported", to=shown, error=str(error))
                    self.failing[shown] = str(error)
                    self._reported(len(self.failing))
                    await asyncio.sleep(backoff.next())
                    continue
                if self.failing.pop(shown, None):
                    self._reported(len(self.failing))
                    self._log.info("Audit records are exported again", to=shown)
                backoff = Backoff(self._rng, BackoffOptions(1.0, 60.0))
                if not is_more:
                    await woken.wait(_LOOK_SECONDS)
        finally:
            self._book.waiting.remove(woken)

    async def _send(self, target: AuditTarget) -> bool:
        """Send the next records; True when there may be more."""
        key, shown = target.address.key, target.address.shown
        sent = await self._history.audit_sent(key)
        head = await self._page(AuditQuery(limit=1, last=True))
        if not head or head[-1].number == sent:
            return False
        if head[-1].number < sent:  # of a store that was put back to an earlier state
            self._log.warning("Audit records begin again", to=shown, had=sent,
                              there_are=head[-1].number)  # fmt: skip
            sent = 0
        records = await self._page(AuditQuery(after=sent, limit=_BATCH))
        if records and records[0].number > sent + 1:
            self._log.warning("Audit records were dropped before they were exported", to=shown,
                              count=records[0].number - sent - 1)  # fmt: skip
        await target.sender.send(records)
        await self._history.note_audit_sent(key, records[-1].number)
        return len(records) == _BATCH

    async def _page(self, query: AuditQuery) -> list[AuditRecord]:
        return [each async for page in self._history.query_audit(query) for each in page]
