"""What a pod says about the pods beside it: anti-affinity and spread; see `api.core`.

Source: core/v1 `types.go`. Preferences about other pods are not read.
"""

from __future__ import annotations

import msgspec

from fairlead.api.meta import LabelSelector, Wire


class PodAffinityTerm(Wire, frozen=True):
    """The pods that match, and the label of the nodes that tells domains apart."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class PodAntiAffinity(Wire, frozen=True):
    """Only the required part is read."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )


class TopologySpreadConstraint(Wire, frozen=True):
    """How to spread pods over domains."""

    topology_key: str
    max_skew: int = 0
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    min_domains: int | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""
