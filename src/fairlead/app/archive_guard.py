"""Who may read the archive: the API server says, as it does for kubelets.

A TokenReview finds the user of the bearer token, a SubjectAccessReview whether that user may do in
the API what the archive would show: `get` on `pods/log` of the namespace for logs, `list` on
`jobs.fairlead.dev` for history, on `nodepools.fairlead.dev` for that of the fleet. Without both
answers nothing is shown. They are kept for a short time, under a hash of the token: a right that
was taken away ends with it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
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
from fairlead.api.status import ApiError, Forbidden, Unauthorized, Unavailable
from fairlead.app.messages import TOKEN_HEADER
from fairlead.runtime.client import Client

KEEP_SECONDS = 10.0
KEPT_MAX = 1_024
REVIEWS_MAX = 16
REVIEW_SECONDS_MAX = 5.0
TOKEN_BYTES_MAX = 16 * 1024
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
    return token


class _Kept(Generic[K, V]):
    """Answers for KEEP_SECONDS, KEPT_MAX at most."""

    def __init__(self) -> None:
        self._answers: OrderedDict[K, tuple[float, V]] = OrderedDict()

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        now = asyncio.get_running_loop().time()
        kept = self._answers.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        answer = await ask()
        self._answers.pop(key, None)
        self._answers[key] = (now + KEEP_SECONDS, answer)
        if len(self._answers) > KEPT_MAX:
            self._answers.popitem(last=False)
        return answer


class ArchiveGuard:
    """Asks the API server of a client, REVIEWS_MAX questions at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = asyncio.Semaphore(REVIEWS_MAX)
        self._users: _Kept[bytes, UserInfo | None] = _Kept()
        self._rights: _Kept[tuple[bytes, ResourceAttributes], bool] = _Kept()

    async def check(self, token: str, wanted: ResourceAttributes) -> None:
        """Return when the token's user has the right.

        Unauthorized when the token is no user's, Forbidden, Unavailable when the API server does
        not answer.
        """
        key = hashlib.sha256(token.encode(errors="replace")).digest()
        user = await self._users.get(key, lambda: self._user(token))
        if user is None:
            raise Unauthorized("the API server knows no user of this token")
        if not await self._rights.get((key, wanted), lambda: self._is_allowed(user, wanted)):
            raise Forbidden(_refusal(user, wanted))

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


def _refusal(user: UserInfo, wanted: ResourceAttributes) -> str:
    kind = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    what = f"{kind}/{wanted.subresource}" if wanted.subresource else kind
    where = f"namespace {wanted.namespace}" if wanted.namespace else "all namespaces"
    return f"{user.username} may not {wanted.verb} {what} in {where}"
