"""Who somebody is and what he may do: the API server says, and its answers are kept for seconds.

A TokenReview finds the user of a bearer token, a SubjectAccessReview whether a user may do
something. Answers are kept for a short time, tokens as hashes: a right that was taken away ends
with it.

What is no token at all, and each token that is not known yet beyond a rate, is refused without a
question: every one costs the API server a TokenReview. Tokens that were somebody's are known for
longer than the answer is kept, and unknown ones are remembered apart from them, so tokens that are
made up evict no answer and, from other addresses than theirs, delay no user.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

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
from fairlead.api.status import ApiError, TooManyRequests, Unauthorized, Unavailable
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


def checked_token(token: str) -> str:
    """Return what can be a bearer token; Unauthorized for what cannot."""
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


class RateBucket:
    """Tells whether one more is within the rate."""

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._at = now

    def take(self, now: float) -> bool:
        """Take one; False where there is none left."""
        passed = max(now - self._at, 0.0)
        self._left = min(self._left + passed * self._rate.per_second, self._rate.burst)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class _Kept(Generic[K, V]):
    """Answers for a time, `kept_max` at most; the oldest go first."""

    def __init__(
        self, clock: Clock, seconds: float = KEEP_SECONDS, *, kept_max: int = KEPT_MAX
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._kept_max = kept_max
        self._answers: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the answer that is kept, None when there is none."""
        until, answer = self._answers.get(key, (0.0, None))
        return answer if self._clock.now() < until <= self._clock.now() + self._seconds else None

    def keep(self, key: K, answer: V) -> None:
        self._answers.pop(key, None)
        self._answers[key] = (self._clock.now() + self._seconds, answer)
        if len(self._answers) > self._kept_max:
            self._answers.popitem(last=False)


class AccessReviews:
    """Asks the API server of a client, REVIEWS_MAX questions at a time."""

    def __init__(
        self, client: Client, clock: Clock, *, rights_max: int = KEPT_MAX,
        denied_seconds: float = KEEP_SECONDS,
    ) -> None:  # fmt: skip
        """Keep `rights_max` answers about rights; refusals for `denied_seconds`: to see a new
        right a little later does no harm.
        """
        self._client = client
        self._clock = clock
        self._slots = asyncio.Semaphore(REVIEWS_MAX)
        self._users: _Kept[bytes, UserInfo] = _Kept(clock)
        self._strangers: _Kept[bytes, bool] = _Kept(clock)
        self._known: _Kept[bytes, bool] = _Kept(clock, KNOWN_SECONDS)
        self._rights: _Kept[tuple[bytes, ResourceAttributes], bool] = _Kept(
            clock, kept_max=rights_max
        )
        self._denied: _Kept[tuple[bytes, ResourceAttributes], bool] = _Kept(
            clock, denied_seconds, kept_max=rights_max
        )
        self._total = RateBucket(TOTAL_RATE, clock.now())
        #: By address, the one that asked last at the end.
        self._sources: OrderedDict[str, RateBucket] = OrderedDict()

    async def user_of(self, token: str, *, source: str = "") -> UserInfo:
        """Return the token's user. `source` is the address that it came from.

        Unauthorized when the token is no user's, TooManyRequests for unknown tokens beyond the
        rates, Unavailable when the API server does not answer.
        """
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
        bucket = self._sources.pop(source, None) or RateBucket(SOURCE_RATE, now)
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

    async def is_allowed(self, user: UserInfo, wanted: ResourceAttributes) -> bool:
        """Return whether a user has a right; Unavailable when the API server does not answer."""
        key = hashlib.sha256(msgspec.json.encode(user)).digest(), wanted
        if self._rights.get(key):
            return True
        if self._denied.get(key):
            return False
        spec = AccessReviewSpec(wanted, user.username, user.uid, user.groups, user.extra)
        is_allowed = (await self._ask(ACCESS_REVIEWS, AccessReview(spec))).status.allowed
        (self._rights if is_allowed else self._denied).keep(key, answer=True)
        return is_allowed

    async def _ask(self, resource: Resource[V], review: V) -> V:
        try:
            async with asyncio.timeout(REVIEW_SECONDS_MAX), self._slots:
                return await self._client.create(resource, review)
        except (ApiError, TimeoutError) as error:
            why = str(error) or f"no answer within {REVIEW_SECONDS_MAX:g} s"
            raise Unavailable(f"the API server does not say who may see this: {why}") from error


def _key_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
