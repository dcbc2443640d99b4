"""The kinds of objects that are read because a group of pods, or the job of one, names them.

Who may create pods or jobs in a namespace chooses what these name, and the controllers read it with
rights of their own. So the list is closed: a kind that is not here is never read, and no text from
a pod or a job becomes a part of a request but a version of a known form and a name. All kinds are
namespaced, and what is read is in the namespace of the group. The rights in the chart follow from
this list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fairlead.api.resources import Resource
from fairlead.model.pools.grouping import Tool

_VERSION = re.compile(r"v[0-9]{1,9}((alpha|beta)[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A namespaced kind, and whose convention its objects follow."""

    group: str
    plural: str
    kind: str
    tool: Tool


#: Sorted by group and plural.
SOURCE_KINDS = (
    SourceKind("apps", "statefulsets", "StatefulSet", Tool.STATEFUL_SET),
    SourceKind("batch", "jobs", "Job", Tool.JOB),
    SourceKind("jobset.x-k8s.io", "jobsets", "JobSet", Tool.JOB_SET),
    SourceKind("kubeflow.org", "jaxjobs", "JAXJob", Tool.KUBEFLOW),
    SourceKind("kubeflow.org", "mpijobs", "MPIJob", Tool.KUBEFLOW),
    SourceKind("kubeflow.org", "paddlejobs", "PaddleJob", Tool.KUBEFLOW),
    SourceKind("kubeflow.org", "pytorchjobs", "PyTorchJob", Tool.KUBEFLOW),
    SourceKind("kubeflow.org", "tfjobs", "TFJob", Tool.KUBEFLOW),
    SourceKind("kubeflow.org", "xgboostjobs", "XGBoostJob", Tool.KUBEFLOW),
    SourceKind(
        "leaderworkerset.x-k8s.io", "leaderworkersets", "LeaderWorkerSet", Tool.LEADER_WORKER_SET
    ),
    SourceKind("ray.io", "rayclusters", "RayCluster", Tool.RAY),
    SourceKind("scheduling.volcano.sh", "podgroups", "PodGroup", Tool.VOLCANO),
    SourceKind("scheduling.x-k8s.io", "podgroups", "PodGroup", Tool.POD_GROUP),
)
_BY_NAME = {(each.group, each.kind): each for each in SOURCE_KINDS}


def source_kind_of(api_version: str, kind: str) -> SourceKind | None:
    """Return the listed kind of this group, with a version of the usual form; None for any other.

    The version itself may be any: which ones a cluster serves is for its API server to say.
    """
    group, _, version = api_version.rpartition("/")
    return _BY_NAME.get((group, kind)) if _VERSION.fullmatch(version) else None


def resource_of(api_version: str, kind: str) -> Resource[dict[str, Any]] | None:
    """Return where a listed kind is served; None for any other, which is not read."""
    found = source_kind_of(api_version, kind)
    if found is None:
        return None
    version = api_version.rpartition("/")[2]
    return Resource(found.group, version, found.plural, found.kind, dict)


def rules() -> Iterator[tuple[str, list[str]]]:
    """Yield the rights that reading takes: a group and its plurals, of which objects are got."""
    for group, kinds in groupby(SOURCE_KINDS, key=lambda each: each.group):
        yield group, [each.plural for each in kinds]
