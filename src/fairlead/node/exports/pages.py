"""Fetches a page of a program beside the agent, within bounds of bytes and of time as a whole."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    import http.client

#: node_exporter's page has some 100 kB, that of eight GPUs 50 kB.
PAGE_BYTES_MAX = 8 << 20
#: Samples of wanted metrics.
SAMPLES_MAX = 4096
SECONDS_MAX = 5.0
_CHUNK_BYTES = 64 << 10
_TEXT = {"Accept": "text/plain"}


class PageStatusError(OSError):
    """A server answered with another status than 200."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"{url} answers {status} {reason[:80]!r}")
        self.status = status


def loopback_fault(url: str, *, has_tls: bool = False) -> str:
    """Return why a URL is none of a page on this machine's loopback; "": it is one.

    `has_tls`: https:// is accepted as well.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return f"'{url}' is no URL: {error}"
    schemes = ("http", "https") if has_tls else ("http",)
    if parts.scheme not in schemes or parts.username is not None:
        return f"'{url}' is no plain http:// URL, such as http://127.0.0.1:9400/metrics"
    with suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return ""
    return f"'{host}' is not the loopback: the agent reads what is on its own machine, 127.0.0.1"


def fetch_page(
    url: str, *, method: str = "GET", headers: Mapping[str, str] = _TEXT,
    bytes_max: int = PAGE_BYTES_MAX,
) -> bytes:  # fmt: skip
    """Return what a server answers; OSError, also for what is too long or takes too long.

    PageStatusError where the status is not 200. Nothing follows a redirection.
    """
    import http.client

    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = _connection(parts)
    connection.connect()
    is_late = threading.Event()
    timer = threading.Timer(SECONDS_MAX, _end, (connection.sock, is_late))
    timer.daemon = True
    timer.start()
    try:
        connection.request(method, target, headers=dict(headers))
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise PageStatusError(url, response.status, response.reason)
        data = bytearray()
        while len(data) <= bytes_max and (chunk := response.read1(_CHUNK_BYTES)):
            data += chunk
        if len(data) > bytes_max:
            size = f"{bytes_max >> 20} MiB" if bytes_max >> 20 else f"{bytes_max >> 10} KiB"
            raise OSError(f"{url} is larger than {size}")
        if is_late.is_set():
            raise OSError(f"{url} takes longer than {SECONDS_MAX:g} s")
        return bytes(data)
    except http.client.HTTPException as error:
        raise OSError(f"{url} does not speak HTTP: {str(error)[:80]!r}") from error
    finally:
        timer.cancel()
        connection.close()


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    """Return a connection that is not made yet.

    A certificate is not verified: it is the server's own on the loopback, and nothing that is
    secret is sent there.
    """
    import http.client

    host = parts.hostname or ""
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, parts.port or 80, timeout=SECONDS_MAX)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(
        host, parts.port or 443, timeout=SECONDS_MAX, context=context
    )


def _end(connection: socket.socket, is_late: threading.Event) -> None:
    """End the connection, so that whatever waits for it returns."""
    is_late.set()
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
