"""What a conformance test talks to: any API server, through four values in and two out.

The suite is written once. `Target` is implemented over HTTP against the embedded server (fixture
`target` in `conftest.py`), and can be pointed at a real API server the same way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """Status code, decoded JSON body (None when it is no JSON), raw body and headers."""

    status: int
    json: Any
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Target(Protocol):
    """An API server under test."""

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request; a body that is not bytes goes as JSON."""
        ...

    def watch(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """Open a watch; yields decoded events until the server ends the stream.

        It is open once the block begins: what is written then, it shows.
        """
        ...
