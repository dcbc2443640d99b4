"""The terminal's client on an API in a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS
from fairlead.api.status import NotFound
from fairlead.app.queries.messages import ClusterStatus, NodeCounts
from fairlead.cli.cluster.embedded import STATUS_PATH
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.kube.http1 import HttpResponse
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.client import Request
from fairlead.testing.fake_client import FakeClient

STATUS = ClusterStatus("0", 1, 0.0, "/data", NodeCounts(0, 0, 0), {}, 0, ())


class Unanswered:
    """What a command asks of a cluster whose controllers do not answer; tests add the objects."""

    connection = Connection("http://nowhere", source="a test")

    def token(self) -> str:
        """Return no token."""
        return ""

    def request(self, *_: Any, **__: Any) -> HttpResponse:
        """Raise NotFound, as there is no such path."""
        raise NotFound("404 page not found")


class FakeApi(Api):
    """What commands talk to; with `is_embedded` a cluster of `fairlead up`."""

    def __init__(self, *jobs: Any, is_embedded: bool = False) -> None:
        super().__init__(Connection("http://nowhere", source="a test"))
        self.client = FakeClient()
        self.is_embedded = is_embedded
        #: What each request for logs is answered with, in order.
        self.logs: list[list[bytes | Exception]] = []
        for job in jobs:
            self.create(JOBS.raw, to_wire(job), namespace=job.metadata.namespace)

    def call(self, request: Request[Any]) -> Any:
        """Carry the request out."""
        return asyncio.run(self.client.call(request))

    def request(self, method: str, path: str, **_: Any) -> HttpResponse:
        """Return the cluster's own status, the only path that there is."""
        if not self.is_embedded or path != STATUS_PATH:
            raise NotFound("404 page not found")
        return HttpResponse(200, "OK", {}, msgspec.json.encode(STATUS))

    def chunks(
        self, path: str, query: Mapping[str, str], *, headers: Mapping[str, str] | None = None
    ) -> Iterator[bytes]:
        """Yield the next logs."""
        for part in self.logs.pop(0):
            if isinstance(part, Exception):
                raise part
            yield part


def serve(monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> None:
    """Let commands talk to this API."""
    monkeypatch.setattr(Common, "connect", lambda _: api)
