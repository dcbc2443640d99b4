"""Resets and reboots that the controllers ask for, as far as the agent itself allows them.

`request` is the file that a collector writes, `ruling` decides about one (pure), `machine` reads
what that takes and runs the commands, `repairs` follows the file and answers.
Design: docs/design/node-agent.md.
"""

from fairlead.node.repairs.machine import RepairFacts
from fairlead.node.repairs.repairs import AfterStep, Repairs
from fairlead.node.repairs.request import (
    REQUEST_BYTES_MAX,
    REQUEST_VERSION,
    RepairRequest,
    UnreadableRequest,
    decode_request,
    encode_request,
)
from fairlead.node.repairs.ruling import RepairRefusal, ruling_on

__all__ = [
    "REQUEST_BYTES_MAX",
    "REQUEST_VERSION",
    "AfterStep",
    "RepairFacts",
    "RepairRefusal",
    "RepairRequest",
    "Repairs",
    "UnreadableRequest",
    "decode_request",
    "encode_request",
    "ruling_on",
]
