"""What only a cluster of `fairlead up` has: the extension endpoints under /fairlead/v1."""

from __future__ import annotations

import msgspec

from fairlead.api.status import ApiError
from fairlead.app.messages import ClusterStatus
from fairlead.cli.transport import Api

STATUS_PATH = "/fairlead/v1/status"


def logs_path(namespace: str, job: str) -> str:
    """Return the path of a job's logs."""
    return f"/fairlead/v1/namespaces/{namespace}/jobs/{job}/logs"


def read_status(api: Api) -> ClusterStatus | None:
    """Return the cluster's own status; None when it is not one of `fairlead up`."""
    try:
        answer = api.request("GET", STATUS_PATH)
        return msgspec.json.decode(answer.body, type=ClusterStatus)
    except (ApiError, msgspec.DecodeError):
        return None


def is_embedded(api: Api) -> bool:
    """True when the cluster is one of `fairlead up`."""
    return read_status(api) is not None
