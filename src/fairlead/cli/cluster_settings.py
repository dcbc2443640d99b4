"""The settings that the controllers of a cluster run with, as a client can read them.

A cluster of `fairlead up` says them in its status. On a Kubernetes cluster they are the ConfigMap
that the installation mounts into the controllers, which every user of the cluster may read.
"""

from __future__ import annotations

import msgspec
import yaml

from fairlead.api.resources import CONFIG_MAPS
from fairlead.api.status import ApiError
from fairlead.app.controller_settings import ControllerSettings
from fairlead.app.messages import SETTINGS_FILE, SETTINGS_KEY, ClusterStatus
from fairlead.cli.transport import Api


def read_settings(api: Api, status: ClusterStatus | None) -> ControllerSettings | None:
    """Return the controllers' settings; None when they cannot be read.

    `status` is what the cluster says of itself; None for one that is not of `fairlead up`.
    """
    try:
        if status is not None:
            return msgspec.convert(status.settings, ControllerSettings)
        namespace, name = SETTINGS_KEY
        found = api.get(CONFIG_MAPS, name, namespace=namespace)
        return msgspec.convert(yaml.safe_load(found.data[SETTINGS_FILE]), ControllerSettings)
    except (ApiError, KeyError, yaml.YAMLError, msgspec.ValidationError):
        return None
