"""GET requests to an API server, counted and bounded, from a blocking or an asynchronous caller.

A reader is a coroutine that awaits the bodies of what it asks for. The controller gives it a GET
that waits; the command gives it one that blocks instead, and takes the result with `finished`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

from fairlead.api.status import Unavailable

T = TypeVar("T")
REQUESTS_MAX = 100

#: Sends one GET and returns the body; ApiError for what the server refuses.
Get: TypeAlias = Callable[[str, Mapping[str, str]], bytes]
#: The same without blocking.
ReadPath: TypeAlias = Callable[[str, Mapping[str, str]], Awaitable[bytes]]


class RequestBudget:
    """Counts requests; Unavailable beyond the bound."""

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self.requests = 0

    def spend(self) -> None:
        """Count one request; Unavailable when none is left."""
        if self.requests >= self._requests_max:
            raise Unavailable(f"the doctor's budget of {self._requests_max} requests is spent")
        self.requests += 1


class BudgetedGet(RequestBudget):
    """Passes requests on until the budget is spent; then Unavailable."""

    def __init__(self, get: Get, requests_max: int = REQUESTS_MAX) -> None:
        super().__init__(requests_max)
        self._get = get

    def __call__(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the body; ApiError."""
        self.spend()
        return self._get(path, query)

    async def read(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the body, without a wait that an event loop would have to end; ApiError."""
        return self(path, query)


def finished(reading: Coroutine[Any, Any, T]) -> T:
    """Return the result of a reader whose GET blocks, so that it ends without a wait."""
    try:
        reading.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a blocking GET does not suspend its reader")
