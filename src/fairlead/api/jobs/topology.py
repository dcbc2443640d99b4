"""What a job asks of the topology: the field `spec.topology`."""

from __future__ import annotations

from typing import Annotated

from fairlead.api.meta import Wire
from fairlead.api.values.bounds import Count, LabelKey, doc


class Topology(Wire, frozen=True):
    """Keep the gang close together. A level is one that the controllers are configured with, such
    as zone or rack, or any node label.
    """

    key: Annotated[
        LabelKey,
        doc(
            "Level, or node label, of which one domain is to hold the gang, such as a rack or a "
            "block."
        ),
    ] = ""
    required: Annotated[bool, doc("True: one domain or wait. False: one domain if possible.")] = (
        False
    )
    preferred: Annotated[
        LabelKey,
        doc(
            "Narrower level of which one domain is to hold the gang if possible. Only where key "
            "is required."
        ),
    ] = ""
    preferred_seconds: Annotated[
        Count,
        doc(
            "How long the job waits for one domain of the level that it prefers before it takes a "
            "wider one. Default 0."
        ),
    ] = 0
    slice_level: Annotated[
        LabelKey,
        doc(
            "Level, or node label, of which one domain is to hold each slice, such as an NVLink "
            "domain."
        ),
    ] = ""
    slice_size: Annotated[
        Count,
        doc(
            "Members of a slice: so many consecutive members of a role are in one domain of "
            "sliceLevel. The last slice of a role may be smaller. Default 0: no slices."
        ),
    ] = 0
