"""GET requests to an API server, counted and bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fairlead.api.status import Unavailable

REQUESTS_MAX = 100


class Get(Protocol):
    """Sends one GET and returns the body; ApiError for what the server refuses."""

    def __call__(self, path: str, query: Mapping[str, str], /) -> bytes:
        """Return the body."""
        ...


class BudgetedGet:
    """Passes requests on until the budget is spent; then Unavailable."""

    def __init__(self, get: Get, requests_max: int = REQUESTS_MAX) -> None:
        self._get = get
        self._requests_max = requests_max
        self.requests = 0

    def __call__(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the body; ApiError."""
        if self.requests >= self._requests_max:
            raise Unavailable(f"the doctor's budget of {self._requests_max} requests is spent")
        self.requests += 1
        return self._get(path, query)
