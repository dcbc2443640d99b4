"""Under which name the jobs of the person at the terminal are stored."""

from __future__ import annotations

import getpass
from typing import Any

import msgspec

from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.connection.transport import Api

_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def local_user() -> str:
    """Return the user of this machine; "" when it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def submitter_name(api: Api) -> str:
    """Return the name that a job of this person gets.

    That is who the API server says they are. Who may say whose a job is, as an administrator may,
    says the user of this machine; so does everyone where the server does not answer the question.
    """
    from fairlead.decide.admission.limits import acts_for_others
    from fairlead.decide.admission.teams import RequestSender

    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer: Any = msgspec.json.decode(api.request("POST", _REVIEWS, body=body).body)
    except (Forbidden, NotFound):
        return local_user()
    info = answer["status"]["userInfo"]
    user = RequestSender(info.get("username", ""), tuple(info.get("groups") or ()))
    return local_user() if acts_for_others(user, "") else user.name
