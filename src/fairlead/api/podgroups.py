"""Kubernetes' own gangs: Workload and PodGroup of scheduling.k8s.io, in the versions that we speak.

Only what identifies a group is read; the bodies that we write differ by version and are made in
`decide/jobs/rendering/native.py`. Both kinds: https://kep.k8s.io/4671.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.resources import Resource

GROUP = "scheduling.k8s.io"


class GroupApi(Enum):
    """A version of the API that has both kinds (1.37 and 1.36), the one to prefer first."""

    V1BETA1 = "v1beta1"
    V1ALPHA2 = "v1alpha2"


class PodGroup(Wire, frozen=True):
    """Pods that kube-scheduler places together or not at all."""

    metadata: ObjectMeta = ObjectMeta()


class Workload(Wire, frozen=True):
    """What groups are made from; ours has one template, the gang."""

    metadata: ObjectMeta = ObjectMeta()


def pod_groups(api: GroupApi) -> Resource[PodGroup]:
    """Return where PodGroups are in this version."""
    return Resource(GROUP, api.value, "podgroups", "PodGroup", PodGroup)


def workloads(api: GroupApi) -> Resource[Workload]:
    """Return where Workloads are in this version."""
    return Resource(GROUP, api.value, "workloads", "Workload", Workload)


def kinds(api: GroupApi) -> tuple[Resource[Any], ...]:
    """Return both."""
    return (pod_groups(api), workloads(api))
