"""What calls to a cloud's API share: they run in threads, and within what the cloud allows.

The SDKs of clouds block. They do not retry by themselves here: the controller does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlead.cloud.provider import CloudError

_BACK_OFF_SECONDS, _BACK_OFF_SECONDS_MAX = 2.0, 120.0
#: A cloud that names a time to wait is not asked before then, up to this limit: some name a time
#: that is much longer than their limit lasts.
RETRY_AFTER_SECONDS_MAX = 600.0

#: How long what a cloud has announced is believed before it is asked again.
ANNOUNCED_SECONDS = 60.0

#: Runs a blocking call elsewhere.
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]


class Throttled(CloudError):
    """The cloud refused a call because there were too many; it may name a time to wait."""

    def __init__(self, text: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


def retry_after_seconds(header: Any) -> float:
    """Return the seconds of a Retry-After header; 0.0 for a date and for what is no number."""
    text = str(header or "").strip()
    return float(text[:9]) if text.isdecimal() and text.isascii() else 0.0


@dataclass(slots=True)
class Throttle:
    """A token bucket of the calls to one cloud; instants are of the event loop."""

    cloud: str
    burst_max: float
    per_second: float
    _tokens: float = field(init=False)
    _at: float = float("-inf")
    _closed_until: float = float("-inf")
    _back_off_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._tokens = self.burst_max

    async def call(self, run: Runner, question: Callable[[], Any]) -> Any:
        """Run a call when its turn comes; CloudError, also while the cloud throttles."""
        await self.take()
        try:
            answer = await run(question)
        except Throttled as error:
            self.refused(error.retry_after_seconds)
            raise CloudError(str(error)) from error
        self.passed()
        return answer

    async def take(self) -> None:
        """Wait for the turn of one call; CloudError while the cloud throttles."""
        now = asyncio.get_running_loop().time()
        if now < self._closed_until:
            seconds = self._closed_until - now
            raise CloudError(f"{self.cloud} throttles; asked again in {seconds:.0f} s")
        self._refill(now)
        self._tokens -= 1.0
        if self._tokens < 0.0:
            await asyncio.sleep(-self._tokens / self.per_second)

    def wait_seconds(self) -> float:
        """Return for how long the next call would wait for its turn."""
        self._refill(asyncio.get_running_loop().time())
        return max(0.0, 1.0 - self._tokens) / self.per_second

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._tokens = min(self.burst_max, self._tokens + passed * self.per_second)
        self._at = now

    def refused(self, retry_after_seconds: float = 0.0) -> None:
        """Note that the cloud throttled a call: ask nothing for a while, longer each time.

        Nor before `retry_after_seconds` have passed, where the cloud names them.
        """
        longer = min(max(_BACK_OFF_SECONDS, 2 * self._back_off_seconds), _BACK_OFF_SECONDS_MAX)
        self._back_off_seconds = longer
        seconds = max(longer, min(retry_after_seconds, RETRY_AFTER_SECONDS_MAX))
        self._closed_until = asyncio.get_running_loop().time() + seconds

    def passed(self) -> None:
        """Note that a call was not throttled."""
        self._back_off_seconds = 0.0


@dataclass(slots=True)
class Announced:
    """Maintenance that a cloud has announced, by the name of the machine; asked once a minute."""

    read: Callable[[], Awaitable[Mapping[str, str]]]
    _known: Mapping[str, str] = field(default_factory=dict[str, str])
    _error: str = ""
    _at: float = float("-inf")

    async def get(self) -> tuple[Mapping[str, str], str]:
        """Return what is announced, each as START/END, and why it is not known, if so.

        What was known stays while the cloud does not answer.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._at + ANNOUNCED_SECONDS:
            self._at = now
            try:
                self._known, self._error = await self.read(), ""
            except CloudError as error:
                self._error = f"what maintenance is announced is not known: {error}"
        return self._known, self._error
