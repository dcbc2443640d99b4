"""Names of users that somebody else than the cluster gives: a provider's, or a proxy's.

They become names in the cluster's own rights, so each has a prefix that the cluster's own names
cannot have (`app/configuration/web_settings.py`), and holds nothing that a header could not carry.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.api.reviews import UserInfo
from fairlead.web.responses import Refused

NAME_MAX, GROUPS_MAX = 256, 256
#: What API servers add to every user who has shown who he is.
AUTHENTICATED = "system:authenticated"


def named_user(name: str, groups: Iterable[str], *, prefix: str, groups_prefix: str) -> UserInfo:
    """Return the user of these names; Refused for a name that is none, or for too many groups."""
    found = tuple(dict.fromkeys(groups))
    if len(found) > GROUPS_MAX:
        raise Refused(403, f"you are in {len(found)} groups; accepted: {GROUPS_MAX}")
    own = tuple(_checked(each, groups_prefix) for each in found)
    return UserInfo(_checked(name, prefix), groups=(*own, AUTHENTICATED))


def _checked(name: str, prefix: str) -> str:
    if not name or len(name) > NAME_MAX or not all(" " <= each <= "~" for each in name):
        raise Refused(
            403, f"a name that you come with is not one of 1 to {NAME_MAX} printable ASCII letters"
        )
    return prefix + name
