"""Who may read the archive: the API server says, as it does for kubelets.

A TokenReview finds the user of the bearer token, a SubjectAccessReview whether that user may do in
the API what the archive would show: `get` on `pods/log` of the namespace for logs, `list` on
`jobs.fairlead.dev` for history, on `nodepools.fairlead.dev` for that of the fleet. Without both
answers nothing is shown. They are kept for a short time, under a hash of the token: a right that
was taken away ends with it.

What is no token at all, and each token that is not known yet beyond a rate, is refused without a
question: every one costs the API server a TokenReview. Tokens that were somebody's are known for
longer than the answer is kept, and unknown ones are remembered apart from them, so tokens that are
made up evict nobody's and, from other addresses than theirs, delay nobody's.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairlead.api import names
from fairlead.api.resources import Resource
from fairlead.api.reviews import (
    ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    AccessReview,
    AccessReviewSpec,
    ResourceAttributes,
    TokenReview,
    TokenReviewSpec,
    UserInfo,
)
from fairlead.api.status import (
    ApiError,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from fairlead.app.messages import TOKEN_HEADER
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock

KEEP_SECONDS = 10.0
KEPT_MAX = 1_024
REVIEWS_MAX = 16
REVIEW_SECONDS_MAX = 5.0
TOKEN_BYTES_MAX = 16 * 1024
#: What RFC 6750, section 2.1, takes for a bearer token, and `~` as in those of OpenShift. Tokens of
#: clouds are no JWTs.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
#: How long a token that was somebody's is known, to be asked about again at any rate.
KNOWN_SECONDS = 3600.0
SOURCES_MAX = 1_024
K = TypeVar("K")
V = TypeVar("V")


def to_read_logs(namespace: str) -> ResourceAttributes:
    """Return the right that shows the logs of a namespace."""
    return ResourceAttributes("get", "pods", subresource="log", namespace=namespace)


def to_read_history(namespace: str) -> ResourceAttributes:
    """Return the right that shows the history of a namespace, or of all for ""."""
    return ResourceAttributes("list", "jobs", group=names.GROUP, namespace=namespace)


def to_read_fleet() -> ResourceAttributes:
    """Return the right that shows what was decided about the fleet."""
    return ResourceAttributes("list", "nodepools", group=names.GROUP)


def token_of(headers: Mapping[str, str]) -> str:
    """Return the bearer token of a request, however it came; Unauthorized without one."""
    token = headers.get(TOKEN_HEADER, "")
    if not token:
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
    if not token:
        raise Unauthorized("the archive takes a bearer token, and none came with the request")
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthorized(f"the token is longer than {TOKEN_BYTES_MAX} bytes")
    if _TOKEN.fullmatch(token) is None:
        raise Unauthorized("what came with the request is not a bearer token (RFC 6750)")
    return token


@dataclass(frozen=True, slots=True)
class Rate:
    """So many at once, and so many in a second after that."""

    burst: float
    per_second: float


#: Of tokens that are not known: from one address, and from all together. The API server's proxy is
#: one address.
SOURCE_RATE, TOTAL_RATE = Rate(100.0, 10.0), Rate(400.0, 40.0)


class _Bucket:
    """Tells whether one more is within the rate."""

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._at = now

    def take(self, now: float) -> bool:
        passed = max(now - self._at, 0.0)
        self._left = min(self._left + passed * self._rate.per_second, self._rate.burst)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class _Kept(Generic[K, V]):
    """Answers for a time, KEPT_MAX at most; the oldest go first."""

    def __init__(self, clock: Clock, seconds: float = KEEP_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._answers: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the answer that is kept, None when there is none."""
        until, answer = self._answers.get(key, (0.0, None))
        return answer if self._clock.now() < until <= self._clock.now() + self._seconds else None

    def keep(self, key: K, answer: V) -> None:
        self._answers.pop(key, None)
        self._answers[key] = (self._clock.now() + self._seconds, answer)
        if len(self._answers) > KEPT_MAX:
            self._answers.popitem(last=False)


class ArchiveGuard:
    """Asks the API server of a client, REVIEWS_MAX questions at a time."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._slots = asyncio.Semaphore(REVIEWS_MAX)
        self._users: _Kept[bytes, UserInfo] = _Kept(clock)
        self._strangers: _Kept[bytes, bool] = _Kept(clock)
        self._known: _Kept[bytes, bool] = _Kept(clock, KNOWN_SECONDS)
        self._rights: _Kept[tuple[bytes, ResourceAttributes], bool] = _Kept(clock)
        self._total = _Bucket(TOTAL_RATE, clock.now())
        #: By address, the one that asked last at the end.
        self._sources: OrderedDict[str, _Bucket] = OrderedDict()

    async def check(self, token: str, wanted: ResourceAttributes, *, source: str = "") -> None:
        """Return when the token's user has the right. `source` is the address that it came from.

        Unauthorized when the token is no user's, Forbidden, TooManyRequests for unknown tokens
        beyond the rates, Unavailable when the API server does not answer.
        """
        user = await self.user_of(token, source=source)
        key = _key_of(token)
        is_allowed = self._rights.get((key, wanted))
        if is_allowed is None:
            is_allowed = await self._is_allowed(user, wanted)
            self._rights.keep((key, wanted), is_allowed)
        if not is_allowed:
            raise Forbidden(_refusal(user, wanted))

    async def user_of(self, token: str, *, source: str = "") -> UserInfo:
        """Return the token's user. Unauthorized, TooManyRequests, Unavailable as in `check`."""
        key = _key_of(token)
        user = self._users.get(key)
        if user is None and not self._strangers.get(key):
            if not self._known.get(key):
                self._admit_unknown(source)
            user = await self._user(token)
            if user is None:
                self._strangers.keep(key, answer=True)
            else:
                self._users.keep(key, user)
                self._known.keep(key, answer=True)
        if user is None:
            raise Unauthorized("the API server knows no user of this token")
        return user

    def _admit_unknown(self, source: str) -> None:
        now = self._clock.now()
        bucket = self._sources.pop(source, None) or _Bucket(SOURCE_RATE, now)
        self._sources[source] = bucket
        if len(self._sources) > SOURCES_MAX:
            self._sources.popitem(last=False)
        if not (bucket.take(now) and self._total.take(now)):
            raise TooManyRequests(
                "too many tokens came that are not known here: try again in some seconds"
            )

    async def _user(self, token: str) -> UserInfo | None:
        review = await self._ask(TOKEN_REVIEWS, TokenReview(TokenReviewSpec(token)))
        status = review.status
        return status.user if status.authenticated and status.user.username else None

    async def _is_allowed(self, user: UserInfo, wanted: ResourceAttributes) -> bool:
        spec = AccessReviewSpec(wanted, user.username, user.uid, user.groups, user.extra)
        return (await self._ask(ACCESS_REVIEWS, AccessReview(spec))).status.allowed

    async def _ask(self, resource: Resource[V], review: V) -> V:
        try:
            async with asyncio.timeout(REVIEW_SECONDS_MAX), self._slots:
                return await self._client.create(resource, review)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {REVIEW_SECONDS_MAX:g} s"
            text = f"the API server does not say who may read the archive: {why}"
            raise Unavailable(text) from error


def _key_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def _refusal(user: UserInfo, wanted: ResourceAttributes) -> str:
    kind = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    what = f"{kind}/{wanted.subresource}" if wanted.subresource else kind
    where = f"namespace {wanted.namespace}" if wanted.namespace else "all namespaces"
    return f"{user.username} may not {wanted.verb} {what} in {where}"
