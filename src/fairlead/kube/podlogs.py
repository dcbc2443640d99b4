"""Reads the logs of pods through the API server, which asks the node's kubelet."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from urllib.parse import quote

from fairlead.api.core import Pod
from fairlead.api.resources import PODS
from fairlead.api.status import Timeout
from fairlead.kube.client import HttpClient
from fairlead.runtime.history import LogText


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
