"""Flags of control-plane components, from static pod manifests or from their pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fairlead.doctor.objects import SeenObjects, SeenPod, SeenTemplate
from fairlead.input.plain import yaml_document

COMPONENTS = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager",
              "cluster-autoscaler")  # fmt: skip
SCHEDULER_CONFIGURATION = "KubeSchedulerConfiguration"
MANIFEST_BYTES_MAX = 1 << 20


class BadManifest(ValueError):
    """A manifest that cannot be read."""


def parse_flags(words: Iterable[str]) -> dict[str, str]:
    """Return flags without dashes; a flag without a value is "true"."""
    flags: dict[str, str] = {}
    previous = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags[name] = value if equals else "true"
            previous = "" if equals else name
        elif previous:
            flags[previous] = word
            previous = ""
    return flags


def flags_of_objects(objects: SeenObjects) -> dict[str, dict[str, str]]:
    """Return the flags of the components that run as pods of the control plane or Deployments."""
    templates = [each.spec.template for each in objects.deployments or ()]
    return flags_of_pods([*(objects.control_plane_pods or ()), *templates])


def flags_of_pods(pods: Iterable[SeenPod | SeenTemplate]) -> dict[str, dict[str, str]]:
    """Return the flags of the components that run in these pods, the first pod of each."""
    found: dict[str, dict[str, str]] = {}
    for pod in pods:
        for container in pod.spec.containers:
            words = [*container.command, *container.args]
            program = Path(words[0]).name if words else ""
            name = program if program in COMPONENTS else container.name
            if name in COMPONENTS and words and name not in found:
                found[name] = parse_flags(words)
    return found


@dataclass(frozen=True, slots=True)
class Manifests:
    """Flags by component, and the configuration of kube-scheduler where there is one."""

    flags: dict[str, dict[str, str]]
    scheduler_config: Mapping[str, object] | None = None


def read_manifests(directory: Path) -> Manifests:
    """Return what a directory of static pods and configurations has; BadManifest, OSError."""
    pods: list[SeenPod] = []
    scheduler_config: Mapping[str, object] | None = None
    for path in sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")]):
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
        if len(data) > MANIFEST_BYTES_MAX:
            raise BadManifest(f"{path}: larger than {MANIFEST_BYTES_MAX >> 20} MiB")
        try:
            value: Any = yaml_document(data.decode("utf-8-sig"))
            if isinstance(value, Mapping) and value.get("kind") == SCHEDULER_CONFIGURATION:
                scheduler_config = value
            elif isinstance(value, Mapping):
                pods.append(msgspec.convert(value, SeenPod))
        except ValueError as error:
            raise BadManifest(f"{path}: {str(error)[:200]}") from error
    return Manifests(flags_of_pods(pods), scheduler_config)
