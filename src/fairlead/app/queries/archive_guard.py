"""Who may read the archive: the API server says, as it does for kubelets.

`app/queries/access_reviews.py` finds the user of the bearer token, and whether that user may do in
the API what the archive would show: `get` on `pods/log` of the namespace for logs, `list` on
`jobs.fairlead.dev` for history, on `nodepools.fairlead.dev` for that of the fleet. Without both
answers nothing is shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.api import names
from fairlead.api.reviews import ResourceAttributes, UserInfo
from fairlead.api.status import Forbidden, Unauthorized
from fairlead.app.queries.access_reviews import AccessReviews, checked_token
from fairlead.app.queries.messages import TOKEN_HEADER


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
    return checked_token(token)


class ArchiveGuard(AccessReviews):
    """Lets users read what the API server of a client would let them read."""

    async def check(self, token: str, wanted: ResourceAttributes, *, source: str = "") -> None:
        """Return when the token's user has the right. `source` is the address that it came from.

        Unauthorized when the token is no user's, Forbidden, TooManyRequests for unknown tokens
        beyond the rates, Unavailable when the API server does not answer.
        """
        user = await self.user_of(token, source=source)
        if not await self.is_allowed(user, wanted):
            raise Forbidden(_refusal(user, wanted))


def _refusal(user: UserInfo, wanted: ResourceAttributes) -> str:
    kind = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
    what = f"{kind}/{wanted.subresource}" if wanted.subresource else kind
    where = f"namespace {wanted.namespace}" if wanted.namespace else "all namespaces"
    return f"{user.username} may not {wanted.verb} {what} in {where}"
