"""What a job asks of the topology: the field `spec.topology`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead.api.bounds import INT32_MAX, LABEL_KEY_MAX, bounded
from fairlead.api.meta import Wire


class Topology(Wire, frozen=True):
    """Keep the gang close together. A level is one that the controllers are configured with, such
    as zone or rack, or any node label.
    """

    key: Annotated[
        str,
        bounded(
            "Level, or node label, of which one domain is to hold the gang, such as a rack or a "
            "block.",
            maxLength=LABEL_KEY_MAX,
        ),
    ] = ""
    required: Annotated[
        bool, Meta(description="True: one domain or wait. False: one domain if possible.")
    ] = False
    preferred: Annotated[
        str,
        bounded(
            "Narrower level of which one domain is to hold the gang if possible. Only where key is "
            "required.",
            maxLength=LABEL_KEY_MAX,
        ),
    ] = ""
    preferred_seconds: Annotated[
        int,
        bounded(
            "How long the job waits for one domain of the level that it prefers before it takes a "
            "wider one. Default 0.",
            ge=0,
            maximum=INT32_MAX,
        ),
    ] = 0
    slice_level: Annotated[
        str,
        bounded(
            "Level, or node label, of which one domain is to hold each slice, such as an NVLink "
            "domain.",
            maxLength=LABEL_KEY_MAX,
        ),
    ] = ""
    slice_size: Annotated[
        int,
        bounded(
            "Members of a slice: so many consecutive members of a role are in one domain of "
            "sliceLevel. The last slice of a role may be smaller. Default 0: no slices.",
            ge=0,
            maximum=INT32_MAX,
        ),
    ] = 0
