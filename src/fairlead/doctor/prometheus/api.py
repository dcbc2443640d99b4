"""The HTTP interface of Prometheus: answers as values, with a bound on their number and size."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from typing import Any

from fairlead.runtime.outside.fetch import ANSWER_SECONDS_MAX, Web, said

REQUESTS_MAX = 100
ANSWER_BYTES_MAX = 32 << 20

Get = Callable[[str], bytes]


class BadPrometheusAnswer(Exception):
    """An answer that is not Prometheus', or says that it failed; the message says which."""


class PrometheusApi:
    """Asks one server through `get`, which takes a path with its query; BadAnswer, OSError."""

    def __init__(self, get: Get, requests_max: int = REQUESTS_MAX) -> None:
        self._get = get
        self._requests_max = requests_max
        self.requests = 0

    def page(self, path: str) -> bytes:
        """Return the body of an answer."""
        if self.requests >= self._requests_max:
            raise BadPrometheusAnswer(f"more than {self._requests_max} requests were needed")
        self.requests += 1
        return self._get(path)

    def data(self, path: str) -> dict[str, Any]:
        """Return the data of an answer."""
        name = path.partition("?")[0]
        try:
            answer: Any = json.loads(self.page(path))
        except (ValueError, RecursionError) as error:
            raise BadPrometheusAnswer(f"{name} does not answer with JSON") from error
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise BadPrometheusAnswer(f"{name} is not an answer of Prometheus")
        return data


def server_get(url: str, web: Web, *, seconds_left: Callable[[], float] | None = None) -> Get:
    """Return a GET on the server at a URL. An error of Prometheus is BadAnswer with its text."""

    def get(path: str) -> bytes:
        seconds = ANSWER_SECONDS_MAX if seconds_left is None else seconds_left()
        try:
            return web.fetch(
                url.rstrip("/") + path, bytes_max=ANSWER_BYTES_MAX, seconds_max=seconds
            )
        except urllib.error.HTTPError as error:
            raise BadPrometheusAnswer(said(error)) from error

    return get
