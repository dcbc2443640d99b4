"""From a container's spec to an argv, an environment and a working directory (pure).

There is no mount namespace: a pod's volumes are plain directories. So whatever names a mounted
path, environment values, arguments and the working directory that begin with a mount path of the
container, is rewritten to the real path. A path in the middle of a text, such as in `sh -c "cat
/etc/fairlead/hostfile"`, is not: pass it in a variable.

`$(VAR)` is expanded as Kubernetes does it (kubernetes/kubernetes
third_party/forked/golang/expansion): `$$` is a literal `$`, an unknown name stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.api.kubernetes.core import Container, EnvVarSource, KeySelector, Pod, PodSpec
from fairlead.api.kubernetes.pod_parts import DownwardVolumeSource
from fairlead.api.values import quantity

HOST_IP = "127.0.0.1"
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_FIELD_KEY = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


#: Why a container waits: for a volume, or for a variable (kubelet `pkg/kubelet/images/types.go`).
CREATING = "ContainerCreating"
CONFIG_ERROR = "CreateContainerConfigError"


class ConfigMissing(Exception):
    """Something that the pod refers to does not exist yet; wait for it, with this reason."""

    def __init__(self, message: str, reason: str = CREATING) -> None:
        super().__init__(message)
        self.reason = reason


class Unsupported(Exception):
    """The pod asks for something that the local node cannot do; it fails with these words."""


@dataclass(frozen=True, slots=True)
class ContainerMount:
    """A volume at `mount_path` in the container is at `real_path` on this machine."""

    mount_path: str
    real_path: str


@dataclass(frozen=True, slots=True)
class ContainerLaunch:
    """How to start a container."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    memory_bytes: int = 0  # the limit; 0 means none


class References(Protocol):
    """Looks up, in the pod's namespace, what variables may come from; None when it is absent."""

    def config_map(self, name: str) -> Mapping[str, str] | None:
        """Return the data of a ConfigMap."""
        ...

    def secret(self, name: str) -> Mapping[str, str] | None:
        """Return the decoded data of a Secret; Unsupported when a value is no text."""
        ...


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return `text` with `$(NAME)` replaced; `$$` gives `$`; what is unknown stays."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def rewrite(text: str, mounts: Sequence[ContainerMount]) -> str:
    """Return the real path for a text that is, or begins with, a mount path; longest mount wins."""
    best: ContainerMount | None = None
    for mount in mounts:
        path = mount.mount_path.rstrip("/") or "/"
        hit = text == path or text.startswith(path.rstrip("/") + "/")
        if hit and (best is None or len(path) > len(best.mount_path.rstrip("/"))):
            best = mount
    if best is None:
        return text
    return best.real_path.rstrip("/") + text[len(best.mount_path.rstrip("/")) :]


def launch_of(
    pod: Pod,
    container: Container,
    references: References,
    *,
    pod_ip: str,
    mounts: Sequence[ContainerMount],
    base: Mapping[str, str],
    cwd: str,
) -> ContainerLaunch:
    """Return how to start the container; ConfigMissing or Unsupported.

    `base` is the environment below the declared one; `cwd` is used when none is given.
    """
    if container.restart_policy is not None:
        raise Unsupported(
            f"container {container.name} has a restartPolicy: the local node runs no sidecars"
        )
    declared = _env_from(container, references)
    for variable in container.env:
        if variable.value_from is None:
            declared[variable.name] = expand(variable.value, declared)
            continue
        value = _value_from(pod, variable.value_from, pod_ip, references)
        if value is not None:
            declared[variable.name] = value
    words = [expand(word, declared) for word in (*container.command, *container.args)]
    if not container.command:
        raise Unsupported(
            f"container {container.name} names no command: the local node runs commands of this "
            "machine, not images; set spec.containers[].command"
        )
    for text in (*words, *declared.values()):
        if "\0" in text:
            raise Unsupported(f"container {container.name} has a NUL in a variable or argument")
    env = dict(base)
    env.update((name, rewrite(value, mounts)) for name, value in declared.items())
    return ContainerLaunch(
        argv=tuple(rewrite(word, mounts) for word in words),
        env=env,
        cwd=rewrite(container.working_dir, mounts) if container.working_dir else cwd,
        memory_bytes=memory_limit(pod.spec, container.name),
    )


def memory_limit(spec: PodSpec, name: str) -> int:
    """Return the memory limit of a container in bytes; 0 when it has none."""
    every = (*spec.containers, *spec.init_containers)
    limits = next(each.resources.limits for each in every if each.name == name)
    if spec.resources is not None:  # each container may use all that the pod may
        limits = {**spec.resources.limits, **limits}
    return quantity.resources_to_base(limits).get(quantity.MEMORY, 0)


def _env_from(container: Container, references: References) -> dict[str, str]:
    """Return the variables of `envFrom`; of two with one name the later one counts."""
    out: dict[str, str] = {}
    for source in container.env_from:
        for what, ref, find in (
            ("configmap", source.config_map_ref, references.config_map),
            ("secret", source.secret_ref, references.secret),
        ):
            if ref is None:
                continue
            data = find(ref.name)
            if data is None and not ref.optional:
                raise ConfigMissing(f'{what} "{ref.name}" not found', CONFIG_ERROR)
            out.update((source.prefix + key, value) for key, value in (data or {}).items())
    return out


def _key(what: str, ref: KeySelector, data: Mapping[str, str] | None) -> str | None:
    """Return the value of a key; None when it, or all of it, is absent and may be."""
    if data is not None and ref.key in data:
        return data[ref.key]
    if ref.optional:
        return None
    key = "" if data is None else f' with key "{ref.key}"'
    raise ConfigMissing(f'{what} "{ref.name}"{key} not found', CONFIG_ERROR)


def _value_from(pod: Pod, source: EnvVarSource, pod_ip: str, references: References) -> str | None:
    """Return the value; None when an optional reference has none."""
    for what, ref, find in (
        ("configmap", source.config_map_key_ref, references.config_map),
        ("secret", source.secret_key_ref, references.secret),
    ):
        if ref is not None:
            return _key(what, ref, find(ref.name))
    if source.field_ref is not None:
        return _field(pod, source.field_ref.field_path, pod_ip)
    raise Unsupported(
        "the local node knows valueFrom with configMapKeyRef, secretKeyRef and fieldRef only"
    )


def _field(pod: Pod, path: str, pod_ip: str) -> str:
    """Return the field's value; an absent label or annotation gives "" (as the kubelet does)."""
    known = {
        **_own_fields(pod),
        "spec.nodeName": pod.spec.node_name,
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": HOST_IP,
        "status.hostIPs": HOST_IP,
    }
    return _known_field(pod, path, known)


def downward_files(pod: Pod, source: DownwardVolumeSource) -> dict[str, bytes]:
    """Return the files of a volume with fields of the pod; Unsupported."""
    known, out = _own_fields(pod), dict[str, bytes]()
    for file in source.items:
        if file.field_ref is None:
            raise Unsupported("the local node knows downwardAPI volumes with fieldRef only")
        out[file.path] = _known_field(pod, file.field_ref.field_path, known).encode()
    return out


def _own_fields(pod: Pod) -> dict[str, str]:
    """Return the fields that a volume may have, too."""
    return {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
    }


def _known_field(pod: Pod, path: str, known: Mapping[str, str]) -> str:
    """Return the field's value: one of these, or a label or annotation."""
    if path in known:
        return known[path]
    match = _FIELD_KEY.match(path)
    if match is None:
        accepted = ", ".join([*known, "metadata.labels['x']", "metadata.annotations['x']"])
        raise Unsupported(f"fieldRef {path!r} is not known; accepted: {accepted}")
    values = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
    return values.get(match[2], "")
