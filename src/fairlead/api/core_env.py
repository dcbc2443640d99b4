"""The parts of a container that say where its variables and ports come from; see `api.core`."""

from __future__ import annotations

import msgspec

from fairlead.api.meta import Amount, Wire


class FieldSelector(Wire, frozen=True):
    """A field of the pod, such as `status.podIP`."""

    field_path: str
    api_version: str = "v1"


class ResourceFieldSelector(Wire, frozen=True):
    """A request or limit of a container, such as `limits.cpu`."""

    resource: str = ""
    container_name: str = ""
    divisor: Amount | None = None


class FileKeySelector(Wire, frozen=True):
    """A key of a file of variables in a volume."""

    key: str = ""
    path: str = ""
    volume_name: str = ""
    optional: bool | None = None


class EnvironmentReference(Wire, frozen=True):
    """A ConfigMap or Secret of the pod's namespace, all of whose keys become variables."""

    name: str = ""
    optional: bool = False


class EnvFromSource(Wire, frozen=True):
    """Variables from a ConfigMap or a Secret, their names after `prefix`; one source is set."""

    prefix: str = ""
    config_map_ref: EnvironmentReference | None = None
    secret_ref: EnvironmentReference | None = None


class ContainerPort(Wire, frozen=True):
    """A port that a container listens on; for information."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"
    host_port: int | None = None
    host_ip: str = msgspec.field(name="hostIP", default="")
