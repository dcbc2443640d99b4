"""The file by which a collector hands the agent what the controllers ask for.

An empty file: nothing is asked for. A request is of one boot of one machine, ends at an instant,
and has an id that no other one has; so one that is copied to another node, kept over a reboot or
written again does nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.api.cluster.node_report import COMPONENT_MAX, ID_MAX, REPORTED_FAULTS_MAX, Action
from fairlead.api.values.times import parse_time

REQUEST_VERSION = 1
REQUEST_BYTES_MAX = 64 << 10


class UnreadableRequest(ValueError):
    """The text is no request of this version; the message says why."""


class RepairRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What is asked for, once. `components` are the parts of the machine that have faults.

    `takes_back`: before the reboot, what the tuning profile had set for this boot is taken back.
    """

    version: int
    id: Annotated[str, Meta(min_length=1, max_length=ID_MAX)]
    action: Action
    boot_id: Annotated[str, Meta(min_length=1, max_length=ID_MAX)]
    expires_at: str
    components: Annotated[
        tuple[Annotated[str, Meta(max_length=COMPONENT_MAX)], ...],
        Meta(max_length=REPORTED_FAULTS_MAX),
    ] = ()
    takes_back: bool = False


def encode_request(request: RepairRequest | None) -> bytes:
    """Return the text of the file."""
    return b"" if request is None else msgspec.json.encode(request) + b"\n"


def decode_request(data: bytes) -> RepairRequest | None:
    """Return what a file asks for, None where it asks for nothing; UnreadableRequest."""
    if not data.strip():
        return None
    try:
        request = msgspec.json.decode(data, type=RepairRequest)
        parse_time(request.expires_at)
    except (ValueError, RecursionError) as error:  # msgspec's are of it, too
        raise UnreadableRequest(f"it is no request: {error}") from error
    if request.version != REQUEST_VERSION:
        raise UnreadableRequest(f"it has version {request.version}; accepted: {REQUEST_VERSION}")
    return request
