"""Who may look: one-time links, sessions, and which requests count as the page's own.

A link is used once and within minutes. It gives a session, whose cookie scripts cannot read and
other sites cannot send. The page listens on the loopback address, where each user of the machine,
and each page that a browser on it shows, can reach it, so the address alone gives no right:

* `Host` must be one of ours: else a name of another site that resolves to 127.0.0.1 would make its
  pages ours (DNS rebinding).
* A browser says where a request comes from (`Sec-Fetch-Site`, `Origin`); what another origin sends
  is refused, another port of this machine included, to which SameSite does not apply.
* What changes something carries a token that only pages of the session have.

Sources: Jupyter Server's login by token; the OWASP cheat sheets on sessions and CSRF; RFC 6265bis.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

#: A link is good for so long, a session for so long without a request.
LINK_SECONDS_MAX = 300.0
SESSION_SECONDS_MAX = 12 * 3600.0
LINKS_MAX = 32
SESSIONS_MAX = 64
_TOKEN_BYTES = 32
_TOKEN_CHARACTERS_MAX = 128
#: What a browser says of a request that a page of ours, or the person, has sent.
_OWN_SITES = ("", "same-origin", "none")


@dataclass(slots=True)
class BrowserSession:
    """One browser that has used a link. `csrf` is in its pages, and in nothing that is sent by
    itself.
    """

    csrf: str
    used_at: float


class Sessions:
    """Links and sessions, kept as digests: what is looked up takes no longer for a near miss."""

    def __init__(self) -> None:
        self._links: dict[bytes, float] = {}
        self._sessions: dict[bytes, BrowserSession] = {}

    def link(self, now: float) -> str:
        """Return a new code, good for one use."""
        self._drop_old(now)
        while len(self._links) >= LINKS_MAX:
            self._links.pop(next(iter(self._links)))
        code = secrets.token_urlsafe(_TOKEN_BYTES)
        self._links[_digest(code)] = now + LINK_SECONDS_MAX
        return code

    def redeem(self, code: str, now: float) -> str | None:
        """Return the cookie of a new session for a code; None for one that is used or too old."""
        self._drop_old(now)
        if self._links.pop(_digest(code), None) is None:
            return None
        while len(self._sessions) >= SESSIONS_MAX:
            oldest = min(self._sessions, key=lambda each: self._sessions[each].used_at)
            self._sessions.pop(oldest)
        cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[_digest(cookie)] = BrowserSession(secrets.token_urlsafe(_TOKEN_BYTES), now)
        return cookie

    def find(self, cookie: str, now: float) -> BrowserSession | None:
        """Return the session of a cookie, which lasts again from now on; None for no such."""
        session = self._sessions.get(_digest(cookie))
        if session is None or now - session.used_at > SESSION_SECONDS_MAX:
            return None
        session.used_at = now
        return session

    def _drop_old(self, now: float) -> None:
        self._links = {code: end for code, end in self._links.items() if now < end}
        self._sessions = {
            cookie: session
            for cookie, session in self._sessions.items()
            if now - session.used_at <= SESSION_SECONDS_MAX
        }


def is_own_host(host: str, port: int) -> bool:
    """True for a `Host` that means this server on the loopback address."""
    return host.lower() in {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}


def is_own_request(headers: Mapping[str, str]) -> bool:
    """True unless the browser says that a page of another origin has sent it.

    A person who follows a link from elsewhere sends `none` or a navigation; that one has no cookie
    of ours where it comes from another site.
    """
    host, origin = headers.get("Host", ""), headers.get("Origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return False
    is_navigation = headers.get("Sec-Fetch-Mode") == "navigate" and (
        headers.get("Sec-Fetch-Dest") == "document"
    )
    return headers.get("Sec-Fetch-Site", "") in _OWN_SITES or is_navigation


def is_token(given: str, expected: str) -> bool:
    """True for an equal token; the time it takes says nothing of the expected one."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _digest(token: str) -> bytes:
    if len(token) > _TOKEN_CHARACTERS_MAX:
        return b""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
