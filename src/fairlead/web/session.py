"""Sessions, one-time links, and which requests count as the page's own.

A session's cookie is what scripts cannot read and other sites cannot send. That a request reaches
us gives no right:

* `Host` must be ours: else a name of another site that resolves to our address would make its pages
  ours (DNS rebinding).
* A browser says where a request comes from (`Sec-Fetch-Site`, `Origin`); what another origin sends
  is refused, another port of this machine included, to which SameSite does not apply.
* What changes something carries a token that only pages of the session have.

Sources: Jupyter Server's login by token; the OWASP cheat sheets on sessions and CSRF; RFC 6265bis.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.web.live import Viewer

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
    """One browser that has signed in. `csrf` is in its pages, and in nothing that is sent by
    itself.
    """

    csrf: str
    viewer: Viewer
    used_at: float
    #: However much it is used.
    ends_at: float = math.inf


class Links:
    """Codes that are good once, kept as digests: to look one up takes no longer for a near miss."""

    def __init__(self) -> None:
        self._ends: dict[bytes, float] = {}

    def make(self, now: float) -> str:
        """Return a new code."""
        self._drop_old(now)
        while len(self._ends) >= LINKS_MAX:
            self._ends.pop(next(iter(self._ends)))
        code = secrets.token_urlsafe(_TOKEN_BYTES)
        self._ends[_digest(code)] = now + LINK_SECONDS_MAX
        return code

    def redeem(self, code: str, now: float) -> bool:
        """Use a code up; False for one that is used or too old."""
        self._drop_old(now)
        return self._ends.pop(_digest(code), None) is not None

    def _drop_old(self, now: float) -> None:
        self._ends = {code: end for code, end in self._ends.items() if now < end}


class Sessions:
    """Sessions by the digests of their cookies. Beyond a bound, the one of the same person that was
    used least recently goes, and of all where each has few: no user ends the sessions of others.
    """

    def __init__(self, *, sessions_max: int = SESSIONS_MAX, own_max: int = SESSIONS_MAX) -> None:
        """Of `sessions_max`, one person may have `own_max`."""
        self._max, self._own_max = sessions_max, own_max
        self._sessions: dict[bytes, BrowserSession] = {}

    def begin(self, viewer: Viewer, now: float, *, ends_at: float = math.inf) -> str:
        """Return the cookie of a new session."""
        self._drop_old(now)
        own = [key for key, each in self._sessions.items() if each.viewer.name == viewer.name]
        if len(own) >= self._own_max:
            self._drop_oldest(own)
        elif len(self._sessions) >= self._max:
            self._drop_oldest(tuple(self._sessions))
        cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[_digest(cookie)] = BrowserSession(new_token(), viewer, now, ends_at)
        return cookie

    def find(self, cookie: str, now: float) -> BrowserSession | None:
        """Return the session of a cookie, which lasts again from now on; None for no such."""
        session = self._sessions.get(_digest(cookie))
        if session is None or not _lasts(session, now):
            return None
        session.used_at = now
        return session

    def end(self, cookie: str) -> None:
        """End the session of a cookie; harmless when repeated."""
        self._sessions.pop(_digest(cookie), None)

    def _drop_old(self, now: float) -> None:
        self._sessions = {
            cookie: session for cookie, session in self._sessions.items() if _lasts(session, now)
        }

    def _drop_oldest(self, among: Sequence[bytes]) -> None:
        self._sessions.pop(min(among, key=lambda each: self._sessions[each].used_at))


def _lasts(session: BrowserSession, now: float) -> bool:
    return now - session.used_at <= SESSION_SECONDS_MAX and now < session.ends_at


def new_token() -> str:
    """Return a text that cannot be guessed."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


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
