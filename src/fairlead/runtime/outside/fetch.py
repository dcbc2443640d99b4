"""Fetches over HTTP with credentials, bounded in bytes and in time, by a blocking call.

Credentials never follow a redirect to another origin than that which they are meant for. The time
bound is over the whole answer: a server that sends a byte now and then cannot hold a run. Clients
of an API server have `fairlead.kube` instead.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from fairlead.terminal import printable

#: Of a page of metrics: an API server's has some 10 MB.
PAGE_BYTES_MAX = 256 << 20
TIMEOUT_SECONDS = 30.0
ANSWER_SECONDS_MAX = 120.0
_CHUNK_BYTES = 64 << 10
_ERROR_BYTES_MAX = 4096


class TooMuch(OSError):
    """An answer that is longer, or takes longer, than the bound."""


@dataclass(frozen=True, slots=True)
class WebAccess:
    """Who asks, and which certificates are trusted. Empty: none, and those of the system.

    `login` is `user:password` for basic authentication; `token` goes before it.
    """

    token: str = ""
    login: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    skips_verification: bool = False

    def context(self) -> ssl.SSLContext:
        """Return the TLS settings; OSError for a file that cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.cert_file:
            # The empty password: a key that needs one is refused rather than asked for.
            context.load_cert_chain(self.cert_file, self.key_file or None, password=str)
        if self.skips_verification:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def authorization(self) -> str:
        """Return the value of the header; "": none."""
        if self.token:
            return f"Bearer {self.token}"
        if self.login:
            return f"Basic {base64.b64encode(self.login.encode()).decode()}"
        return ""


def mounted_access(directory: Path) -> WebAccess:
    """Return the access that the files of a mounted Secret give; OSError for one unreadable.

    Those of a Secret of type kubernetes.io/tls (ca.crt, tls.crt, tls.key), token and login. A file
    that is not there gives nothing.
    """

    def path(name: str) -> str:
        file = directory / name
        return str(file) if file.exists() else ""

    def text(name: str) -> str:
        content = (directory / name).read_bytes().strip() if path(name) else b""
        if not all(0x20 <= each < 0x7F for each in content):
            raise OSError(f"{directory / name}: not one line of ASCII text")
        return content.decode()

    return WebAccess(text("token"), text("login"), path("ca.crt"), path("tls.crt"), path("tls.key"))


class Redirects(Enum):
    """Where redirects are followed to."""

    #: To no place: an answer that redirects is an HTTPError.
    NOWHERE = auto()
    #: Within the origin of the URL; another one is an error.
    WITHIN = auto()
    #: To any place, without the credentials.
    BARE = auto()


class _Redirected(urllib.request.HTTPRedirectHandler):
    def __init__(self, follows: Redirects) -> None:
        self._follows = follows

    def redirect_request(self, *args: Any, **more: Any) -> urllib.request.Request | None:
        """Return the request that follows a redirect; None for none. URLError."""
        (request, *_, url) = args
        if self._follows is Redirects.NOWHERE:
            return None
        if self._follows is Redirects.WITHIN and origin_of(url) != origin_of(request.full_url):
            raise urllib.error.URLError(f"redirects to another server, {url[:200]}")
        return super().redirect_request(*args, **more)


class Web:
    """Sends requests with one kind of access.

    With `is_direct`, through no proxy of the environment.
    """

    def __init__(
        self, access: WebAccess | None = None, clock: Callable[[], float] = time.monotonic,
        *, redirects: Redirects = Redirects.WITHIN, is_direct: bool = False,
    ) -> None:  # fmt: skip
        self._access = access or WebAccess()
        self._clock = clock
        self._redirects = redirects
        self._proxies = (urllib.request.ProxyHandler({}),) if is_direct else ()

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The TLS settings; OSError for a file that cannot be used."""
        return self._access.context()

    def fetch(
        self, url: str, body: bytes | None = None, *, accept: str = "*/*",
        bytes_max: int = PAGE_BYTES_MAX, seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> bytes:  # fmt: skip
        """Return the answer to a GET, or to a POST of a JSON body; OSError.

        HTTPError for an answer that is not one of success, ValueError for what is no URL.
        """
        request = urllib.request.Request(  # noqa: S310 # http and https only
            url, body, {"User-Agent": "fairlead", "Accept": accept}
        )
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if header := self._access.authorization():
            is_bare = self._redirects is Redirects.BARE
            add = request.add_unredirected_header if is_bare else request.add_header
            add("Authorization", header)
        ends = self._clock() + seconds_max
        timeout = max(min(TIMEOUT_SECONDS, seconds_max), 0.1)
        opener = urllib.request.build_opener(
            *self._proxies, _Redirected(self._redirects),
            urllib.request.HTTPSHandler(context=self.context),
        )  # fmt: skip
        try:
            with opener.open(request, timeout=timeout) as answer:
                return self._read(answer, bytes_max, ends)
        except HTTPException as error:
            raise OSError(f"not an HTTP answer: {type(error).__name__}") from error

    def _read(self, answer: HTTPResponse, bytes_max: int, ends: float) -> bytes:
        parts: list[bytes] = []
        size = 0
        while chunk := answer.read1(_CHUNK_BYTES):
            parts.append(chunk)
            size += len(chunk)
            if size > bytes_max:
                raise TooMuch(f"the answer has more than {bytes_max:,} bytes")
            if self._clock() > ends:
                raise TooMuch("the answer takes too long")
        if answer.length:
            raise OSError(f"the answer ends {answer.length:,} bytes early")
        return b"".join(parts)


def said(error: OSError) -> str:
    """Return what went wrong on one line; of an HTTP error its code and the `error` of its body."""
    if not isinstance(error, urllib.error.HTTPError):
        inner = error.reason if isinstance(error, urllib.error.URLError) else error
        text = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(inner)
        return printable(text, 200)
    try:
        answer: Any = json.loads(error.read(_ERROR_BYTES_MAX))
    except (ValueError, RecursionError, OSError):
        answer = None
    text = answer.get("error") if isinstance(answer, dict) else None
    return f"HTTP {error.code}" + (f", {printable(text, 200)}" if isinstance(text, str) else "")


def origin_of(url: str) -> tuple[str, str]:
    """Return the scheme of a URL, and its host with the port."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
