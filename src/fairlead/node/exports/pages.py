"""Fetches a page of an exporter on the loopback, within bounds of bytes and of time as a whole."""

from __future__ import annotations

import ipaddress
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

#: node_exporter's page has some 100 kB, that of eight GPUs 50 kB.
PAGE_BYTES_MAX = 8 << 20
#: Samples of wanted metrics.
SAMPLES_MAX = 4096
SECONDS_MAX = 5.0
_CHUNK_BYTES = 64 << 10


def loopback_fault(url: str) -> str:
    """Return why a URL is none of a page on this machine's loopback; "": it is one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return f"'{url}' is no URL: {error}"
    if parts.scheme != "http" or parts.username is not None:
        return f"'{url}' is no plain http:// URL, such as http://127.0.0.1:9400/metrics"
    with suppress(ValueError):
        if host == "localhost" or ipaddress.ip_address(host).is_loopback:
            return ""
    return f"'{host}' is not the loopback: the agent reads what is on its own machine, 127.0.0.1"


def fetch_page(url: str) -> bytes:
    """Return what a server answers; OSError, also for what is too long or takes too long."""
    import http.client

    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port or 80, timeout=SECONDS_MAX
    )
    connection.connect()
    is_late = threading.Event()
    timer = threading.Timer(SECONDS_MAX, _end, (connection.sock, is_late))
    timer.daemon = True
    timer.start()
    try:
        connection.request("GET", target, headers={"Accept": "text/plain"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise OSError(f"{url} answers {response.status} {response.reason[:80]!r}")
        data = bytearray()
        while len(data) <= PAGE_BYTES_MAX and (chunk := response.read1(_CHUNK_BYTES)):
            data += chunk
        if len(data) > PAGE_BYTES_MAX:
            raise OSError(f"{url} is larger than {PAGE_BYTES_MAX >> 20} MiB")
        if is_late.is_set():
            raise OSError(f"{url} takes longer than {SECONDS_MAX:g} s")
        return bytes(data)
    except http.client.HTTPException as error:
        raise OSError(f"{url} does not speak HTTP: {str(error)[:80]!r}") from error
    finally:
        timer.cancel()
        connection.close()


def _end(connection: socket.socket, is_late: threading.Event) -> None:
    """End the connection, so that whatever waits for it returns."""
    is_late.set()
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
