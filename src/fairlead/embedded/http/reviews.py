"""Reviews: questions about oneself that are asked by creating an object, which is never stored.

`kubectl auth can-i` and `kubectl auth whoami` ask them. There is one user, the bearer of the token,
and it may do everything, so the answers are constant; what matters is that clients get them in the
shape that they know (kubernetes `pkg/apis/authorization`, `pkg/apis/authentication`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.status import BadRequest

USER = "fairlead"
GROUPS = ("system:masters", "system:authenticated")
_EVERYTHING = {
    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "incomplete": False,
}


@dataclass(frozen=True, slots=True)
class Review:
    """One kind of question and its constant answer (the `status`)."""

    group: str
    version: str
    plural: str
    kind: str
    status: Mapping[str, Any]
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """`group/version`."""
        return f"{self.group}/{self.version}"

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the question with its answer; BadRequest when it is another kind of object."""
        kind = body.get("kind", self.kind)
        if kind != self.kind:
            raise BadRequest(f"the body is a {kind}; {self.plural} takes a {self.kind}")
        answer = {"kind": self.kind, "apiVersion": self.api_version, "metadata": {}}
        answer.update({key: body[key] for key in ("metadata", "spec") if key in body})
        answer["status"] = dict(self.status)
        return answer


_ALLOWED = {"allowed": True, "reason": "the bearer of the token may do everything"}
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
REVIEWS_BY_PATH = {(r.group, r.version, r.plural): r for r in REVIEWS}
