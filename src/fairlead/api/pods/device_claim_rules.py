"""What the claims for devices of a pod must fulfil, in the words of the API server.

Kubernetes `pkg/apis/core/validation`, `ValidatePodResourceClaims` and `validateResourceClaimNames`.
What a claim asks for is in objects of their own, which the scheduler judges
(`model/claimed/device_asks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.api.causes import (
    LABEL,
    LABEL_RULE,
    OBJECT_NAME_WHY,
    cause,
    duplicate,
    invalid,
    is_object_name,
    required,
)
from fairlead.api.kubernetes.core import PodSpec
from fairlead.api.status import StatusCause

#: Claims of one pod.
DEVICE_CLAIMS_MAX = 32


def device_claim_causes(spec: PodSpec, path: str) -> Iterator[StatusCause]:
    """Yield what is wrong with the claims for devices of a pod's spec, which is at `path`."""
    at = f"{path}.resourceClaims"
    if len(spec.resource_claims) > DEVICE_CLAIMS_MAX:
        why = f"must have at most {DEVICE_CLAIMS_MAX} items"
        yield cause("TooMany", at, f"Too many: {len(spec.resource_claims)}: {why}")
    names: set[str] = set()
    for i, each in enumerate(spec.resource_claims):
        if not LABEL.fullmatch(each.name):
            yield invalid(f"{at}[{i}].name", each.name, LABEL_RULE)
        elif each.name in names:
            yield duplicate(f"{at}[{i}].name", each.name)
        names.add(each.name)
        sources = {
            "resourceClaimName": each.resource_claim_name,
            "resourceClaimTemplateName": each.resource_claim_template_name,
        }
        given = [field for field, name in sources.items() if name]
        if len(given) != 1:
            why = "exactly one of resourceClaimName and resourceClaimTemplateName"
            yield required(f"{at}[{i}]", why)
        for field in given:
            if not is_object_name(sources[field]):
                yield invalid(f"{at}[{i}].{field}", sources[field], OBJECT_NAME_WHY)
    for kind, containers in (("containers", spec.containers),
                             ("initContainers", spec.init_containers)):  # fmt: skip
        for i, container in enumerate(containers):
            used: set[tuple[str, str]] = set()
            for j, use in enumerate(container.resources.claims):
                where = f"{path}.{kind}[{i}].resources.claims[{j}]"
                if use.name not in names:
                    why = f"must be one of the names of {at}"
                    yield invalid(f"{where}.name", use.name, why)
                elif (use.name, use.request) in used:
                    yield duplicate(where, use.name)
                used.add((use.name, use.request))
