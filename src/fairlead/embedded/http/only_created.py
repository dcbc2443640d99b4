"""Kinds that can only be created, and are never stored: reviews, and what nothing here acts on.

Reviews are questions about oneself (`kubectl auth can-i`, `kubectl auth whoami`). There is one
user, the bearer of the token, and it may do everything, so the answers are constant; what matters
is that clients get them in the shape that they know (kubernetes `pkg/apis/authorization`,
`pkg/apis/authentication`).

Kinds of a Kubernetes cluster that nothing acts on here are refused, with what to do instead.
Clients find them in discovery, with the verb create alone: a `kubectl apply` of a manifest then
shows our words, where an unknown kind would make kubectl guess at a missing definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.status import (
    ApiError,
    BadRequest,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    StatusDetails,
)

USER = "fairlead"
GROUPS = ("system:masters", "system:authenticated")
_EVERYTHING = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


@dataclass(frozen=True, slots=True)
class OnlyCreated:
    """One such kind."""

    group: str
    version: str
    plural: str
    kind: str


@dataclass(frozen=True, slots=True)
class Review(OnlyCreated):
    """One kind of question and its constant answer (the `status`)."""

    status: Mapping[str, Any]

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the question with its answer; BadRequest when it is another kind of object."""
        kind = body.get("kind", self.kind)
        if kind != self.kind:
            raise BadRequest(f"the body is a {kind}; {self.plural} takes a {self.kind}")
        answer = {"kind": self.kind, "apiVersion": f"{self.group}/{self.version}", "metadata": {}}
        answer.update({key: body[key] for key in ("metadata", "spec") if key in body})
        answer["status"] = dict(self.status)
        return answer


@dataclass(frozen=True, slots=True)
class Unserved(OnlyCreated):
    """One kind that is refused."""

    instead: str

    def refuse(self, method: str, name: str) -> ApiError:
        """Return the error that answers a request for it; one error serves every body."""
        full, details = f"{self.plural}.{self.group}", StatusDetails(name=name, kind=self.plural)
        why = f"nothing on this embedded cluster runs a {self.kind}; {self.instead}"
        if method == "POST":
            return Forbidden(f"{full} is forbidden: {why}", details=details)
        if name:
            return NotFound(f'{full} "{name}" not found: {why}', details=details)
        return MethodNotAllowed(f"{method} is not supported on {full}: {why}", details=details)


_ALLOWED = {"allowed": True, "reason": "the bearer of the token may do everything"}
_RUN = "queue the work as a Job of fairlead.dev (fairlead submit), or use a Kubernetes cluster"
_SERVE = "it runs jobs to their end, and a service needs a Kubernetes cluster"
REVIEWS: tuple[Review, ...] = (
    Review(
        "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview",
        {"userInfo": {"username": USER, "groups": list(GROUPS)}},
    ),
    Review(
        "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview",
        _ALLOWED,
    ),
    Review(
        "authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview",
        _EVERYTHING,
    ),
)  # fmt: skip
UNSERVED = (
    Unserved("apps", "v1", "daemonsets", "DaemonSet", _SERVE),
    Unserved("apps", "v1", "deployments", "Deployment", _SERVE),
    Unserved("apps", "v1", "replicasets", "ReplicaSet", _SERVE),
    Unserved("apps", "v1", "statefulsets", "StatefulSet", _SERVE),
    Unserved("batch", "v1", "cronjobs", "CronJob", _RUN),
    Unserved("batch", "v1", "jobs", "Job", _RUN),
)
REVIEWS_BY_PATH = {(r.group, r.version, r.plural): r for r in REVIEWS}
UNSERVED_BY_PATH = {(u.group, u.version, u.plural): u for u in UNSERVED}
