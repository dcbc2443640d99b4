"""What the API server has beyond what every one has."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.podgroups import GroupApi, pod_groups
from fairlead.api.status import Forbidden, NotFound
from fairlead.runtime.client import Client


async def discover_groups(client: Client) -> GroupApi | None:
    """Return the version in which PodGroups are served; None when they are not, or not to us.

    Kubernetes serves them only with the feature gate on (tried on 1.36.3: without it, the version
    asked for by --runtime-config is 404).
    """
    for api in GroupApi:
        try:
            await client.list(pod_groups(api), label_selector=names.JOB_UID)
        except (Forbidden, NotFound):
            continue
        return api
    return None
