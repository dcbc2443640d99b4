"""The types that metadata must have, whatever the server then does with it.

What the server owns is thrown away unread, and what is empty counts as not there; so this must be
looked at before, as Go does by decoding. The happy path is one conversion in C; words for what is
wrong come from the kind's schema.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from fairlead.api.status import BadRequest
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.verbs import structural

Obj = dict[str, Any]

#: As in Go, what is empty of these is as good as not there.
_OPTIONAL = ("labels", "annotations", "finalizers", "ownerReferences", "generateName")
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class _Given(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Metadata as a client may write it; null means missing.

    What maps and lists hold is looked at when the object is decoded.
    """

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    self_link: str | None = None
    generation: int | None = None
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    owner_references: list[Any] | None = None
    finalizers: list[Any] | None = None
    managed_fields: list[Any] | None = None


def metadata_of(info: ResourceInfo, body: Obj) -> Obj:
    """Return a copy of a body's metadata, without what is empty; BadRequest for a wrong type."""
    metadata = body.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise BadRequest("metadata: must be an object")
    try:
        msgspec.convert(metadata, _Given)
    except msgspec.ValidationError as error:
        structural.repair(info, {"metadata": metadata})  # has the words for most
        raise BadRequest(
            f'{info.kind} in version "{info.api_version}" cannot be handled as a {info.kind}: '
            f"metadata: {error}"
        ) from None
    out = dict(metadata)
    for field in _OPTIONAL:
        if field in out and not out[field]:  # a map, a list, a text or null by now
            del out[field]
    return out
