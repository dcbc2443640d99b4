"""Claims for the resources of pods that devices serve, as kube-scheduler makes them (KEP-5004).

Pure: it reads the classes and nodes that its owner knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.devices import ResourceClaim
from fairlead.api.pods.served_resources import (
    SERVED_CLAIM,
    ResourceClasses,
    ServedRequests,
    served_asks,
    served_claim_name,
    served_requests,
)
from fairlead.api.values.quantity import resources_to_base
from fairlead.decide.verdict import ObjectKey


class ServedPods:
    """Which resources of pods devices serve on their nodes."""

    def __init__(self, node: Callable[[str], Node | None]) -> None:
        """`node` returns a node by its name."""
        self.classes = ResourceClasses()
        self._node = node

    def served(self, pod: Pod, node: str) -> dict[str, str]:
        """Return the class of each resource of a pod that devices serve on a node: those that the
        node has none of by itself.
        """
        found = self._node(node) if node and self.classes else None
        if found is None:
            return {}
        own = resources_to_base(found.status.allocatable)
        asked = [name for name in served_asks(pod.spec, self.classes) if not own.get(name)]
        return {name: cls for name in asked if (cls := self.classes.get(name)) is not None}

    def claim_of(self, pod: Pod, node: str = "") -> ResourceClaim | None:
        """Return the claim for the resources of a pod on a node, by default its own; None where
        devices serve none.
        """
        requests = self._requests(pod, node or pod.spec.node_name)
        if not requests.requests:
            return None
        owner, key = pod.metadata, served_claim_key(pod)
        wire: dict[str, Any] = {
            "metadata": {
                "name": key[1],
                "namespace": key[0],
                "annotations": {SERVED_CLAIM: "true"},
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid,
                    "controller": True,
                }],
            },
            "spec": {"devices": {"requests": requests.requests}},
        }  # fmt: skip
        return msgspec.convert(wire, ResourceClaim)

    def status_of(self, pod: Pod, claim: ResourceClaim, node: str = "") -> dict[str, Any]:
        """Return what the status of a pod says of the claim for its resources."""
        mappings = self._requests(pod, node or pod.spec.node_name).mappings
        said = {"resourceClaimName": claim.metadata.name, "requestMappings": mappings}
        return {"extendedResourceClaimStatus": said}

    def _requests(self, pod: Pod, node: str) -> ServedRequests:
        return served_requests(pod.spec, self.served(pod, node))


def served_claim_key(pod: Pod) -> ObjectKey:
    """Return the key of the claim for a pod's resources."""
    return (pod.metadata.namespace, served_claim_name(pod.metadata.name))


def is_served_claim(claim: ResourceClaim, pod: Pod) -> bool:
    """True for the claim that was made for the resources of this pod."""
    owners = [each.uid for each in claim.metadata.owner_references if each.controller]
    return claim.metadata.annotations.get(SERVED_CLAIM) == "true" and owners == [pod.metadata.uid]


def may_be_served(pod: Pod) -> bool:
    """True for a pod that asks for resources other than those that every node has."""
    spec = pod.spec
    return any(
        "/" in name
        for each in (*spec.containers, *spec.init_containers)
        for name in (*each.resources.limits, *each.resources.requests)
    )
