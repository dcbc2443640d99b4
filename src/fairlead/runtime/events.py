"""Events for people, written on the side: de-duplicated, counted, bounded, never waited for.

`record` only notes; the recorder's own `run` writes. The same (object, reason, message) again
within its quiet period becomes one patch of `count` and `lastTimestamp` at the period's end. An
event's name is derived from what it says, so a restarted controller finds its
earlier event and goes on counting instead of writing another. What cannot be written is dropped and
counted: nothing automated may depend on events.

Source: kubernetes/community contributors/devel/sig-instrumentation/event-style-guide.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from fairlead.api.meta import ObjectMeta
from fairlead.api.names import DEFAULT_NAMESPACE
from fairlead.api.resources import EVENTS, Resource
from fairlead.api.status import AlreadyExists, ApiError, NotFound
from fairlead.api.values.times import format_time
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.backoff import BackoffOptions, delay_seconds
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.queue import KeyQueue
from fairlead.runtime.wake_up import WakeUp

_NAME_LENGTH_MAX = 253
_MESSAGE_LENGTH_MAX = 1024


class EventKind(Enum):
    """`type` of an event: Warning only for what is undesired."""

    NORMAL = "Normal"
    WARNING = "Warning"


class EventSink(Protocol):
    """Who takes events; `fairlead.runtime.events.Recorder` is one."""

    def record(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        kind: EventKind,
        *,
        reason: str,
        message: str,
    ) -> None:
        """Note that something happened to an object."""


@dataclass(slots=True)
class Allowance:
    """How many events of a kind that could come by the thousand may be recorded, by the clock."""

    per_second: float
    burst: float
    _left: float = field(init=False)
    _at: float = field(init=False, default=-math.inf)

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, now: float) -> bool:
        """Return True, and use one up, when one is left."""
        earned = max(0.0, now - self._at) * self.per_second  # the clock may be set back
        self._left, self._at = min(self.burst, self._left + earned), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """Limits of the recorder."""

    #: Repeats within this time are counted and written at its end.
    quiet_seconds: float = 10.0
    #: The same per reason, where another time is wanted.
    quiet_seconds_by_reason: Mapping[str, float] = field(default_factory=dict[str, float])
    #: Events that are remembered for counting; the least recently seen is forgotten first.
    cache_max: int = 4096
    #: Events that wait to be written; the oldest is dropped first.
    queue_max: int = 1024
    retries_max: int = 3
    retry: BackoffOptions = field(default_factory=lambda: BackoffOptions(0.5, 10.0))


@dataclass(slots=True)
class _Noted:
    """One event and what is still to be written of it."""

    key: ObjectKey
    #: The event on the wire, without counts and times; None while nothing is to be written.
    body: dict[str, Any] | None
    first_at: float
    last_at: float
    count: int = 0  # as written
    unwritten: int = 0
    quiet_until: float = 0.0


class Recorder:
    """Takes events from one component and writes them through one client."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        component: str,
        *,
        rng: random.Random,
        options: RecorderOptions | None = None,
        log: Logger = SILENT,
    ) -> None:
        #: Events that were never written; `Metrics.watch_events` reports it.
        self.dropped_count = 0
        self._client = client
        self._clock = clock
        self._component = component
        self._rng = rng
        self._options = options or RecorderOptions()
        self._log = log
        self._noted: dict[ObjectKey, _Noted] = {}
        self._queue = KeyQueue[ObjectKey]()
        self._woken = WakeUp()

    def record(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        kind: EventKind,
        *,
        reason: str,
        message: str,
    ) -> None:
        """Note that something happened to an object. Never waits and never fails."""
        now = self._clock.now()
        message = message[:_MESSAGE_LENGTH_MAX]
        key = _event_key(metadata, f"{self._component}\0{kind.value}\0{reason}\0{message}")
        noted = self._noted.pop(key, None) or _Noted(key, None, first_at=now, last_at=now)
        if noted.body is None:
            about = {
                "kind": resource.kind, "apiVersion": resource.api_version,
                "namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
            }  # fmt: skip
            noted.body = {
                "involvedObject": {name: value for name, value in about.items() if value},
                "type": kind.value, "reason": reason, "message": message,
                "source": {"component": self._component},
                "reportingComponent": self._component,
            }  # fmt: skip
        self._noted[key] = noted
        noted.last_at = now
        noted.unwritten += 1
        if now >= noted.quiet_until:
            self._queue.add(key)
        else:
            self._queue.add_at(key, noted.quiet_until)
        self._enforce_limits()
        self._woken.set()

    async def run(self) -> None:
        """Write what is noted until cancelled."""
        while True:
            await self.flush()
            wake_at = self._queue.wake_at()
            delay = None if wake_at is None else max(wake_at - self._clock.now(), 0.001)
            await self._woken.wait(delay)
            self._woken.clear()

    async def flush(self) -> None:
        """Write everything that is due now."""
        while True:
            keys = self._queue.pop(self._clock.now(), 1)
            if not keys:
                return
            noted = self._noted.get(keys[0])
            if noted is not None and noted.body is not None:
                await self._write(noted, noted.body)

    def _enforce_limits(self) -> None:
        while len(self._queue) > self._options.queue_max:
            [key] = self._queue.pop(float("-inf"), 1)
            self._forget(key)
        while len(self._noted) > self._options.cache_max:
            self._forget(next(iter(self._noted)))

    def _forget(self, key: ObjectKey) -> None:
        self._queue.discard(key)
        noted = self._noted.pop(key, None)
        if noted is not None:
            self.dropped_count += noted.unwritten

    async def _write(self, noted: _Noted, body: dict[str, Any]) -> None:
        """Write one event's news, with retries; drop them when that does not help.

        The body goes once all is written: thousands are remembered, and few happen again.
        """
        news = noted.unwritten
        for attempt in range(self._options.retries_max + 1):
            try:
                await self._write_once(noted, body, news)
            except ApiError as error:
                if error.retryable and attempt < self._options.retries_max:
                    delay = delay_seconds(self._rng, attempt, self._options.retry)
                    await asyncio.sleep(max(delay, error.retry_after_seconds))
                    continue
                self.dropped_count += news
                self._log.warning(
                    "Event dropped",
                    event_reason=body["reason"],
                    object="/".join(noted.key),
                    reason=error.status.reason,
                    error=error.message,
                )
            break
        noted.unwritten -= news
        reason = body["reason"]
        quiet = self._options.quiet_seconds_by_reason.get(reason, self._options.quiet_seconds)
        noted.quiet_until = self._clock.now() + quiet
        if noted.unwritten:
            self._queue.add_at(noted.key, noted.quiet_until)
        else:
            noted.body = None

    async def _write_once(self, noted: _Noted, body: dict[str, Any], news: int) -> None:
        if noted.count == 0:
            try:
                await self._create(noted, body, news)
            except AlreadyExists:  # ours, from before a restart: go on counting
                event = await self._client.get(EVENTS, noted.key[1], namespace=noted.key[0])
                noted.count = max(1, event.count)
            else:
                return
        try:
            await self._client.patch(
                EVENTS.only_metadata,
                noted.key[1],
                {"count": noted.count + news, "lastTimestamp": format_time(noted.last_at)},
                namespace=noted.key[0],
            )
        except NotFound:  # events expire
            noted.first_at = noted.last_at
            await self._create(noted, body, news)
            return
        noted.count += news

    async def _create(self, noted: _Noted, body: dict[str, Any], news: int) -> None:
        event = {
            "metadata": {"namespace": noted.key[0], "name": noted.key[1]},
            **body,
            "count": news,
            "firstTimestamp": format_time(noted.first_at),
            "lastTimestamp": format_time(noted.last_at),
        }
        await self._client.create(EVENTS.only_metadata, event, namespace=noted.key[0])
        noted.count = news


def _event_key(metadata: ObjectMeta, said: str) -> ObjectKey:
    """Return the event's namespace and name: the object's name and a digest of what is said."""
    text = f"{metadata.namespace}\0{metadata.name}\0{metadata.uid}\0{said}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    stem = metadata.name[: _NAME_LENGTH_MAX - len(digest) - 1].rstrip(".-")
    return (metadata.namespace or DEFAULT_NAMESPACE, f"{stem}.{digest}")
