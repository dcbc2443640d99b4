"""Where the Fairlead of a Kubernetes cluster is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.api.names import OWN_NAMESPACE
from fairlead.api.status import ApiError

if TYPE_CHECKING:
    from fairlead.cli.connection.transport import Api

#: Binds the account of the controllers to their rights, and so names its namespace. An installation
#: lets every user of the cluster read it.
BINDING_PATH = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/fairlead-controller"


class _Account(msgspec.Struct, frozen=True):
    namespace: str


class _Binding(msgspec.Struct, frozen=True):
    subjects: tuple[_Account, ...]


def own_namespace(api: Api) -> str:
    """Return the namespace of Fairlead's own pods; the usual one where the cluster does not say."""
    try:
        answer = api.request("GET", BINDING_PATH)
        return msgspec.json.decode(answer.body, type=_Binding).subjects[0].namespace
    except (ApiError, ValueError, IndexError):
        return OWN_NAMESPACE
