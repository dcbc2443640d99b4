"""GET requests to an API server, counted and bounded, from a blocking or an asynchronous caller.

A reader is a generator: it yields what it asks for and is sent the body, or has the ApiError thrown
in. So one reader serves the command, which blocks, and the controller, which must not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from fairlead.api.status import ApiError, Unavailable

T = TypeVar("T")
REQUESTS_MAX = 100


@dataclass(frozen=True, slots=True)
class Ask:
    """One GET."""

    path: str
    query: Mapping[str, str]


#: Yields requests, takes the bodies of their answers, returns what was read.
Asking: TypeAlias = Generator[Ask, bytes, T]
#: Sends one GET without blocking; ApiError.
ReadPath: TypeAlias = Callable[[str, Mapping[str, str]], Awaitable[bytes]]


class Get(Protocol):
    """Sends one GET and returns the body; ApiError for what the server refuses."""

    def __call__(self, path: str, query: Mapping[str, str], /) -> bytes:
        """Return the body."""
        ...


class Budget:
    """Counts requests; Unavailable beyond the bound."""

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self.requests = 0

    def spend(self) -> None:
        """Count one request; Unavailable when none is left."""
        if self.requests >= self._requests_max:
            raise Unavailable(f"the doctor's budget of {self._requests_max} requests is spent")
        self.requests += 1


class BudgetedGet:
    """Passes requests on until the budget is spent; then Unavailable."""

    def __init__(self, get: Get, requests_max: int = REQUESTS_MAX) -> None:
        self._get = get
        self._budget = Budget(requests_max)

    @property
    def requests(self) -> int:
        """How many were sent."""
        return self._budget.requests

    def __call__(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the body; ApiError."""
        self._budget.spend()
        return self._get(path, query)


def carry_out(asking: Asking[T], get: Get) -> T:
    """Run a reader to its end with a blocking GET."""
    try:
        asked = next(asking)
        while True:
            try:
                body = get(asked.path, asked.query)
            except ApiError as error:
                asked = asking.throw(error)
            else:
                asked = asking.send(body)
    except StopIteration as end:
        return end.value


async def carry_out_async(asking: Asking[T], read: ReadPath) -> T:
    """Run a reader to its end with a GET that is awaited."""
    try:
        asked = next(asking)
        while True:
            try:
                body = await read(asked.path, asked.query)
            except ApiError as error:
                asked = asking.throw(error)
            else:
                asked = asking.send(body)
    except StopIteration as end:
        return end.value
