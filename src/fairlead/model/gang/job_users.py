"""As whose a job counts: the users to whom the limits of each user in a team apply."""

from __future__ import annotations

from fairlead.api.meta import ObjectMeta
from fairlead.api.names import SUBMITTED_BY

#: How the name of a service account begins, and that of the group of those of a namespace.
SERVICE_ACCOUNT, SERVICE_ACCOUNTS = "system:serviceaccount:", "system:serviceaccounts:"


def counted_user(said: str) -> str:
    """Return as whose a job counts that says this user.

    All service accounts of a namespace are one user, named as their group: who may create one may
    create many.
    """
    if not said.startswith(SERVICE_ACCOUNT):
        return said
    return SERVICE_ACCOUNTS + said.removeprefix(SERVICE_ACCOUNT).partition(":")[0]


def user_of(metadata: ObjectMeta, adopts: object) -> str:
    """Return as whose a job counts; "" where that is not known.

    Nothing says who made a group of other tools' pods, and what its job says has no effect: all
    those of a namespace count as one user, together with its service accounts, which can make such
    pods.
    """
    if adopts is not None:
        return SERVICE_ACCOUNTS + metadata.namespace
    return counted_user(metadata.annotations.get(SUBMITTED_BY, ""))
