"""An object that its owner has filled up, so that Fairlead cannot write it: what makes room.

An API server stores 1.5 MiB of an object, and bounds of its metadata only the annotations. Who may
change an object can fill it with labels, owners or finalizers until not one byte more is taken. A
job could then neither be asked for its place nor end, and its pods could not be deleted, for as
long as he likes. What was added by him goes then. Annotations stay, of which there are 256 KiB at
most, and policies may guard them; a spec is bounded by admission.
"""

from __future__ import annotations

from typing import Any

from fairlead.api import names
from fairlead.api.meta import ObjectMeta, to_wire

#: Labels and finalizers that mean something here.
_OWN = frozenset(
    value for value in vars(names).values()
    if isinstance(value, str) and value.startswith(f"{names.GROUP}/")
)  # fmt: skip
#: Finalizers and owners of others that stay.
_OTHERS_MAX = 32


def room_patch(metadata: ObjectMeta) -> dict[str, Any]:
    """Return the merge patch of the metadata that leaves of it what Fairlead and the garbage
    collector need, and who manages which field out.
    """
    owners = sorted(metadata.owner_references, key=lambda each: not each.controller)
    finalizers = [each for each in metadata.finalizers if each in _OWN]
    others = [each for each in metadata.finalizers if each not in _OWN]
    return {
        "labels": {key: None for key in metadata.labels if key not in _OWN},
        "ownerReferences": [to_wire(each) for each in owners[:_OTHERS_MAX]] or None,
        "finalizers": [*finalizers, *others[:_OTHERS_MAX]] or None,
        "managedFields": [{}],
    }
