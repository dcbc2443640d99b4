"""The HTTP client: typed access to a real API server, or to the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar
from urllib.parse import quote

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.api.status import ApiError, Timeout, Unavailable
from fairlead.kube.decoding import DecodersByType
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import HttpOptions, LineSplitter, steps, watch_of
from fairlead.kube.transport import Transport
from fairlead.runtime.client import Client, Request, WatchEvent, WatchRequest
from fairlead.runtime.kept.history import LogText

T = TypeVar("T")
A = TypeVar("A")


class HttpClient(Client):
    """The client of an API server; `request` and `stream` give raw access."""

    def __init__(self, connection: Connection, options: HttpOptions | None = None) -> None:
        self.transport = Transport(connection, options)
        self.request = self.transport.request
        self.stream = self.transport.stream
        self._decoders = DecodersByType()

    @property
    def connection(self) -> Connection:
        """Where it talks to, and as whom."""
        return self.transport.connection

    async def call(self, request: Request[A]) -> A:
        """Send the request, as several where the API has no such one; ApiError."""
        page_size = self.transport.options.page_size
        asking = steps(request, self._decoders.of(request.resource), page_size)
        try:
            asked = next(asking)
            while True:
                try:
                    body = await self.request(
                        asked.method, asked.path, params=asked.params, body=asked.body,
                        content_type=asked.content_type, accept=asked.accept,
                    )  # fmt: skip
                except ApiError as error:
                    asked = asking.throw(error)
                else:
                    asked = asking.send(body)
        except StopIteration as end:
            return end.value

    async def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """See `Client`."""
        asked, seconds = watch_of(request), request.timeout_seconds
        chunks = self.stream(asked.method, asked.path, params=asked.params, seconds=seconds)
        decoders = self._decoders.of(request.resource)
        splitter = LineSplitter(self.transport.options.watch_line_bytes_max)
        async with aclosing(chunks):
            async for chunk in chunks:
                for line in splitter.feed(chunk):
                    yield decoders.event(line)
        if splitter.end():
            raise Unavailable("the watch was cut in the middle of an event")

    async def close(self) -> None:
        """See `Client`."""
        await self.transport.close()


class HttpLogReader:
    """Implements `LogReader`. The user needs `get` on `pods/log`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def read(self, pod: Pod, *, bytes_max: int, seconds_max: float) -> LogText:
        """Return the end of the first container's log; ApiError."""
        namespace, name = pod.metadata.key
        path = PODS.path(quote(namespace), quote(name), "log")
        parameters = {"container": pod.spec.containers[0].name}
        text, is_cut = bytearray(), False
        chunks = self._client.stream("GET", path, params=parameters, accept="*/*")
        try:
            async with asyncio.timeout(seconds_max), aclosing(chunks):
                async for chunk in chunks:
                    text += chunk
                    if len(text) > 2 * bytes_max:
                        del text[:-bytes_max]
                        is_cut = True
        except TimeoutError as error:
            if not text:
                raise Timeout(f"no log of pod {name} within {seconds_max:g} s") from error
            is_cut = True
        if len(text) > bytes_max:
            del text[:-bytes_max]
            is_cut = True
        return LogText(bytes(text), is_cut)
