"""The settings that the controllers of a cluster run with, as a client can read them.

A cluster of `fairlead up` says them in its status. On a Kubernetes cluster they are the ConfigMap
that the installation mounts into the controllers, which every user of the cluster may read. Their
types come with numpy and the planner, so who needs one section imports and reads that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fairlead.api.resources import CONFIG_MAPS
from fairlead.api.status import ApiError
from fairlead.app.configuration.client_settings import SessionsSettings, SlurmSettings
from fairlead.app.queries.messages import SETTINGS_FILE, SETTINGS_NAME, ClusterStatus
from fairlead.cli.cluster.embedded import read_status
from fairlead.cli.cluster.installation import own_namespace
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api

if TYPE_CHECKING:
    from fairlead.app.configuration.controller_settings import ControllerSettings

S = TypeVar("S", SessionsSettings, SlurmSettings)
NOT_READ = "note: the settings of the controllers cannot be read; defaults are assumed"


def read_settings(api: Api, status: ClusterStatus | None) -> ControllerSettings | None:
    """Return the controllers' settings; None when they cannot be read.

    `status` is what the cluster says of itself; None for one that is not of `fairlead up`.
    """
    from fairlead.app.configuration.controller_settings import ControllerSettings

    try:
        return msgspec.convert(_document(api, status), ControllerSettings)
    except msgspec.ValidationError:
        return None


def _document(api: Api, status: ClusterStatus | None) -> Any:
    """Return the settings as they stand there; None when they cannot be read."""
    if status is not None:
        return status.settings
    from fairlead.input.plain import UnreadableText, yaml_document

    try:
        found = api.get(CONFIG_MAPS, SETTINGS_NAME, namespace=own_namespace(api))
        return yaml_document(found.data[SETTINGS_FILE])
    except (ApiError, KeyError, UnreadableText):
        return None


def sessions_settings(common_: Common, api: Api) -> SessionsSettings:
    """Return the settings of sessions; the defaults, with a note, when they cannot be read."""
    return _section(common_, api, "sessions", SessionsSettings)


def slurm_settings(common_: Common, api: Api) -> SlurmSettings:
    """Return the settings of Slurm's names; the defaults, with a note, when they cannot be read."""
    return _section(common_, api, "slurm", SlurmSettings)


def _section(common_: Common, api: Api, name: str, type_: type[S]) -> S:
    try:
        whole = msgspec.convert(_document(api, read_status(api)), dict[str, Any])
        return msgspec.convert(whole.get(name, {}), type_)
    except msgspec.ValidationError:
        common_.note(NOT_READ)
        return type_()


def settings_or_defaults(common_: Common, api: Api) -> ControllerSettings:
    """Return the controllers' settings; the defaults, with a note, when they cannot be read."""
    from fairlead.app.configuration.controller_settings import ControllerSettings

    settings = read_settings(api, read_status(api))
    if settings is None:
        common_.note(NOT_READ)
    return settings or ControllerSettings()
