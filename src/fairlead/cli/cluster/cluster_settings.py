"""The settings that the controllers of a cluster run with, as a client can read them.

A cluster of `fairlead up` says them in its status. On a Kubernetes cluster they are the ConfigMap
that the installation mounts into the controllers, which every user of the cluster may read.
"""

from __future__ import annotations

import msgspec

from fairlead.api.resources import CONFIG_MAPS
from fairlead.api.status import ApiError
from fairlead.app.controller_settings import ControllerSettings
from fairlead.app.messages import SETTINGS_FILE, SETTINGS_NAME, ClusterStatus
from fairlead.cli.cluster.embedded import read_status
from fairlead.cli.cluster.installation import own_namespace
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.input.plain import UnreadableText, yaml_document

NOT_READ = "note: the settings of the controllers cannot be read; defaults are assumed"


def read_settings(api: Api, status: ClusterStatus | None) -> ControllerSettings | None:
    """Return the controllers' settings; None when they cannot be read.

    `status` is what the cluster says of itself; None for one that is not of `fairlead up`.
    """
    try:
        if status is not None:
            return msgspec.convert(status.settings, ControllerSettings)
        found = api.get(CONFIG_MAPS, SETTINGS_NAME, namespace=own_namespace(api))
        return msgspec.convert(yaml_document(found.data[SETTINGS_FILE]), ControllerSettings)
    except (ApiError, KeyError, UnreadableText, msgspec.ValidationError):
        return None


def settings_or_defaults(common_: Common, api: Api) -> ControllerSettings:
    """Return the controllers' settings; the defaults, with a note, when they cannot be read."""
    settings = read_settings(api, read_status(api))
    if settings is None:
        common_.note(NOT_READ)
    return settings or ControllerSettings()
