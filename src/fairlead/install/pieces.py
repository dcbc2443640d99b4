"""What the parts of the manifests are made of: names, labels, and the frames of objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlead import __version__
from fairlead.install.blueprint import (
    Blueprint,
    ChartOnly,
    Given,
    Ref,
    Release,
    When,
)

Manifest = dict[str, Any]

NAME = "fairlead-controller"
NAMESPACE = "fairlead-system"
PART_OF = ("app.kubernetes.io/part-of", "fairlead")


@dataclass(frozen=True, slots=True)
class Part:
    """One object of the blueprint.

    `file` is its template's name in the chart; empty for what a chart leaves to Helm.
    """

    file: str
    body: dict[str, Blueprint]
    test: Given | None = None


def labels() -> dict[str, Blueprint]:
    """Return the labels of everything that is ours."""
    key, value = PART_OF
    return {
        **selector(),
        "app.kubernetes.io/version": __version__,
        key: value,
        "app.kubernetes.io/managed-by": Release.SERVICE,
        "helm.sh/chart": ChartOnly('printf "%s-%s" .Chart.Name .Chart.Version'),
    }


def selector() -> dict[str, Blueprint]:
    """Return the labels by which the controllers' pods are found."""
    return {
        "app.kubernetes.io/name": "fairlead",
        "app.kubernetes.io/instance": Release.NAME,
        "app.kubernetes.io/component": "controller",
    }


def whole(kind: str, api_version: str, name: Blueprint, **body: Blueprint) -> Manifest:
    """Return an object of the whole cluster."""
    metadata: Manifest = {"name": name, "labels": labels()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def local(kind: str, api_version: str, name: str, **body: Blueprint) -> Manifest:
    """Return an object of the controllers' namespace."""
    metadata: Manifest = {"name": name, "namespace": Release.NAMESPACE, "labels": labels()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def rule(group: str, resources: Sequence[str], verbs: Sequence[str], **more: Any) -> Manifest:
    """Return one rule of a role."""
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs), **more}


def optional(path: str) -> When:
    """Return a value that is left out when it is empty."""
    return When(Given(path), Ref(path))
