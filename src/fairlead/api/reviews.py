"""Questions to an API server: whose token is this, and may that user do something.

Both are created and answered in one request; nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.api.meta import Wire
from fairlead.api.resources import Resource


class UserInfo(Wire, frozen=True):
    """A user as an API server knows it."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])


class TokenReviewSpec(Wire, frozen=True):
    """A bearer token."""

    token: str = ""


class TokenReviewStatus(Wire, frozen=True):
    """Whose it is, when `authenticated`."""

    authenticated: bool = False
    user: UserInfo = UserInfo()
    error: str = ""


class TokenReview(Wire, frozen=True):
    """See `TOKEN_REVIEWS`."""

    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


class ResourceAttributes(Wire, frozen=True):
    """A request as authorizers see it; namespace "" means all."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class AccessReviewSpec(Wire, frozen=True):
    """A user, and what it wants; of `SELF_ACCESS_REVIEWS` the user is who asks."""

    resource_attributes: ResourceAttributes | None = None
    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])


class AccessReviewStatus(Wire, frozen=True):
    """The answer."""

    allowed: bool = False
    reason: str = ""


class AccessReview(Wire, frozen=True):
    """A SubjectAccessReview; see `ACCESS_REVIEWS`."""

    spec: AccessReviewSpec = AccessReviewSpec()
    status: AccessReviewStatus = AccessReviewStatus()


TOKEN_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", TokenReview, namespaced=False
)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", AccessReview,
    namespaced=False,
)  # fmt: skip
#: SelfSubjectAccessReview: the same question about who asks it.
SELF_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview",
    AccessReview, namespaced=False,
)  # fmt: skip
