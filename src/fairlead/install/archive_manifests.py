"""The archive's part of the manifests: who may reach it, and the rights to find out who asks.

It is served on the webhook's port. All users of the cluster may have the API server send a read
there (`services/proxy`, this one Service alone); what they are shown, the archive asks the API
server about. The account is for people whose kubeconfig has no token but a certificate: who may
create tokens in the controllers' namespace is an administrator and may take one of it.
"""

from __future__ import annotations

from typing import Any

from fairlead.api import names
from fairlead.api.reviews import ACCESS_REVIEWS, TOKEN_REVIEWS
from fairlead.app.messages import ACCOUNT, PROXIED_NAME
from fairlead.install.blueprint import Release
from fairlead.install.pieces import Part, local, rule, whole
from fairlead.install.webhook_manifests import ENABLED

_RBAC = "rbac.authorization.k8s.io"


def parts() -> list[Part]:
    """Return the archive's objects."""
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": Release.NAMESPACE}
    everybody = {"kind": "Group", "name": "system:authenticated", "apiGroup": _RBAC}
    reads = [
        rule("", ["pods/log"], ["get"]),
        rule(names.GROUP, ["jobs"], ["list"]),
    ]
    reaches = [rule("", ["services/proxy"], ["get"], resourceNames=[PROXIED_NAME])]
    version = f"{_RBAC}/v1"
    bodies = {
        "serviceaccount-archive": local(
            "ServiceAccount", "v1", ACCOUNT, automountServiceAccountToken=False
        ),
        "clusterrole-archive": whole("ClusterRole", version, ACCOUNT, rules=reads),
        "clusterrolebinding-archive": whole(
            "ClusterRoleBinding", version, ACCOUNT, roleRef=_role("ClusterRole"), subjects=[account]
        ),
        "role-archive": local("Role", version, ACCOUNT, rules=reaches),
        "rolebinding-archive": local(
            "RoleBinding", version, ACCOUNT, roleRef=_role("Role"), subjects=[everybody]
        ),
    }
    return [Part(file, body, ENABLED) for file, body in bodies.items()]


def cluster_rules() -> list[dict[str, Any]]:
    """Return the rights to ask whose a token is, and what its user may do."""
    return [rule(each.group, [each.plural], ["create"]) for each in (TOKEN_REVIEWS, ACCESS_REVIEWS)]


def _role(kind: str) -> dict[str, Any]:
    return {"apiGroup": _RBAC, "kind": kind, "name": ACCOUNT}
