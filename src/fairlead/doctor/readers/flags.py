"""Flags of control-plane components, from static pod manifests or from their pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead.doctor.objects import Pod

COMPONENTS = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager",
              "cluster-autoscaler")  # fmt: skip
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


def flags_of_pods(pods: Iterable[Pod]) -> dict[str, dict[str, str]]:
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


def read_manifests(directory: Path) -> dict[str, dict[str, str]]:
    """Return the flags of the components in a directory of static pods; BadManifest, OSError."""
    pods: list[Pod] = []
    for path in sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")]):
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX)
        try:
            value: Any = yaml.safe_load(data)
            if isinstance(value, Mapping):
                pods.append(msgspec.convert(value, Pod))
        except (yaml.YAMLError, ValueError) as error:
            raise BadManifest(f"{path}: {str(error)[:200]}") from error
    return flags_of_pods(pods)
