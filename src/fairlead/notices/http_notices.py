"""Posts notices to URLs that tenants name, and to nothing that only the controllers can reach.

A name is resolved once. All its addresses must be ones that notices are sent to, and the connection
goes to one of these, as a number: a name that leads elsewhere a moment later changes nothing. No
redirect is followed, no proxy of the environment is asked, and of the answer the status alone is
read. Plain HTTP leads only to networks that the administrator has listed.

Signatures are those of Standard Webhooks 1.0 (github.com/standard-webhooks/standard-webhooks,
spec/standard-webhooks.md): HMAC-SHA256 over id, time and body.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult

from fairlead import __version__
from fairlead.api.validation.notify_rules import parse_url
from fairlead.decide.notices import (
    Network,
    Post,
    TryOutcome,
    TryReason,
    is_listed,
    is_public,
)
from fairlead.runtime.clock import Clock

#: Returns the addresses of a host, best first; OSError where it has none.
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]
#: From the connection to the status of the answer.
POST_SECONDS = 20.0
#: Addresses that are tried in turn, of those that a name has.
_ADDRESSES_MAX = 2
_KEY_PREFIX = "whsec_"
#: Bytes of a line of an answer, and lines of it that are read.
_LINE_MAX, _LINES_MAX = 8_192, 100
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r\n]")
_LATER = frozenset((408, 425, 429))
_LOOKUPS_MAX = 64


class HttpNotices:
    """Posts what has a URL."""

    def __init__(
        self,
        listed: Sequence[Network],
        *,
        clock: Clock,
        authority: Path | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        """`listed`: networks beside the public internet. `authority`: certificates to trust beside
        those of the system, where there is such a file.
        """
        self._listed = tuple(listed)
        self._clock = clock
        self._tls = ssl.create_default_context()
        if authority is not None and authority.exists():
            self._tls.load_verify_locations(authority)
        #: Of its own: a name server that does not answer holds up no other part of the process.
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="notices-lookup")
        self._resolve = resolve or self._look_up

    async def post(self, post: Post) -> TryOutcome:
        """Post it, once."""
        parts = parse_url(post.url)
        if isinstance(parts, str) or parts.hostname is None:
            return TryOutcome(TryReason.BAD_URL)
        is_tls, host = parts.scheme == "https", parts.hostname
        try:
            addresses = await self._resolve(host, parts.port or (443 if is_tls else 80))
        except (OSError, UnicodeError):
            return TryOutcome(TryReason.NOT_RESOLVED)
        if not addresses or not all(self._is_open(each, is_tls=is_tls) for each in addresses):
            return TryOutcome(TryReason.ADDRESS_REFUSED)
        outcome = TryOutcome(TryReason.UNREACHABLE)
        for address in addresses[:_ADDRESSES_MAX]:
            outcome = await self._post(post, parts, address)
            if outcome.reason is not TryReason.UNREACHABLE:
                break
        return outcome

    def _is_open(self, address: str, *, is_tls: bool) -> bool:
        return is_listed(address, self._listed) or (is_tls and is_public(address))

    async def _look_up(self, host: str, port: int) -> list[str]:
        """Resolve a name as it stands: the search list of this machine is not the tenant's."""
        name = (
            f"{host}." if "." in host and not host.endswith(".") and not _is_number(host) else host
        )
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    async def _post(self, post: Post, parts: SplitResult, address: str) -> TryOutcome:
        host, is_tls = parts.hostname or "", parts.scheme == "https"
        body = post.body_for(host)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {
            "Host": parts.netloc, "User-Agent": f"Fairlead/{__version__}",
            "Content-Type": "application/json", "Content-Length": str(len(body)),
            "Connection": "close", **self._signature(post, body),
        }  # fmt: skip
        lines = [f"POST {path} HTTP/1.1", *(f"{key}: {text}" for key, text in headers.items())]
        request = "\r\n".join([*lines, "", ""]).encode("ascii") + body
        tls, named = (self._tls, host) if is_tls else (None, None)
        try:
            async with asyncio.timeout(POST_SECONDS):
                reader, writer = await asyncio.open_connection(
                    address,
                    parts.port or (443 if is_tls else 80),
                    limit=_LINE_MAX,
                    ssl=tls,
                    server_hostname=named,
                )
                try:
                    writer.write(request)
                    await writer.drain()
                    return outcome_of(await _status(reader))
                finally:
                    writer.transport.abort()
        except TimeoutError:
            return TryOutcome(TryReason.TIMEOUT)
        except ssl.SSLError:
            return TryOutcome(TryReason.TLS_FAILED)
        except (OSError, ValueError, EOFError):
            return TryOutcome(TryReason.UNREACHABLE)

    def _signature(self, post: Post, body: bytes) -> dict[str, str]:
        at = str(int(self._clock.now()))
        headers = {"webhook-id": post.id, "webhook-timestamp": at}
        if post.signing_key:
            headers["webhook-signature"] = signature(post.signing_key, post.id, at, body)
        return headers


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the status of an answer, and read no further: ValueError where there is none.

    Interim answers (1xx, RFC 9110, 15.2) are passed over.
    """
    is_interim = False
    for _ in range(_LINES_MAX):
        line = await reader.readline()
        if is_interim:
            is_interim = line not in (b"\r\n", b"\n")
            continue
        found = _STATUS.match(line)
        if found is None:
            break
        if not found[1].startswith(b"1"):
            return int(found[1])
        is_interim = True
    raise ValueError("no answer of HTTP/1.1")


def signature(key: str, id_: str, at: str, body: bytes) -> str:
    """Return the signature of a body; a key is `whsec_` and base64, or any other text itself."""
    secret = key.encode()
    if key.startswith(_KEY_PREFIX):
        try:
            secret = base64.b64decode(key.removeprefix(_KEY_PREFIX), validate=True)
        except binascii.Error:
            secret = key.encode()
    digest = hmac.new(secret, f"{id_}.{at}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def outcome_of(status: int) -> TryOutcome:
    """Return what a status of HTTP means: another try mends what passes by itself."""
    if 200 <= status < 300:
        return TryOutcome(TryReason.DELIVERED, status)
    is_later = status >= 500 or status in _LATER
    return TryOutcome(TryReason.BUSY if is_later else TryReason.REJECTED, status)


def _is_number(host: str) -> bool:
    """True for an address, in any of the ways to write one that the resolver knows."""
    return ":" in host or host.rpartition(".")[2].isdecimal()
