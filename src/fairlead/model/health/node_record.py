"""What is done about the faults of a node: its state, as the annotation `HEALTH` has it.

The annotation is written together with the taint and the drain, and ends with the Node. What cannot
be read there counts as no record; the drain and the taint keep the node out all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

import msgspec

from fairlead.api.cluster.fleet import RemovalCause
from fairlead.api.cluster.node_report import Action
from fairlead.api.meta import Instant, Wire
from fairlead.api.names import HEALTH, RETIRE
from fairlead.api.values.times import parse_time

#: Of a record: the latest tries, and characters of its reason.
TRIES_MAX, REASON_MAX = 8, 300


class NodeState(Enum):
    """The states of a node.

    `exits` names those that may follow.
    """

    _value_: str
    exits: tuple[str, ...]

    def __new__(cls, value: str, *exits: str) -> Self:
        """Make a member."""
        made = object.__new__(cls)
        made._value_, made.exits = value, exits
        return made

    # These follow from other objects; a record that says Ready only remembers tries.
    JOINING = "Joining", "Ready"
    READY = "Ready", "Suspect", "Retired"
    SUSPECT = "Suspect", "Ready", "Cordoned", "Draining"
    RETIRED = "Retired", "Ready"
    # These are written.
    CORDONED = (
        "Cordoned", "Draining", "Resetting", "Rebooting", "Replacing", "Asking", "Validating",
    )  # fmt: skip
    DRAINING = (
        "Draining", "Cordoned", "Resetting", "Rebooting", "Replacing", "Asking", "Validating",
    )  # fmt: skip
    RESETTING = "Resetting", "Rebooting", "Replacing", "Asking", "Validating"
    REBOOTING = "Rebooting", "Resetting", "Replacing", "Asking", "Validating"
    REPLACING = "Replacing", "Asking", "Validating"
    ASKING = "Asking", "Validating"
    VALIDATING = (
        "Validating", "Ready", "Cordoned", "Draining", "Resetting", "Rebooting", "Replacing",
        "Asking",
    )  # fmt: skip

    @property
    def returns(self) -> bool:
        """True for a state that gives a node back, or is on the way there.

        Nothing enters any other one unless what is seen can be trusted.
        """
        return self in (NodeState.READY, NodeState.VALIDATING)


class NodeRequest(Wire, frozen=True):
    """What the agent of the node, or the provider of its machine, is asked to do, once.

    `id` tells it from every other request. `takes_back`: before a reboot the agent takes back what
    its tuning profile had set for this boot.
    """

    id: str
    action: Action
    components: tuple[str, ...] = ()
    is_by_provider: bool = False
    takes_back: bool = False


class TuningStep(Enum):
    """What a reboot is for that is no repair: settings of a tuning profile count from a start."""

    SET = "Set"
    TAKE_BACK = "TakeBack"


class Try(Wire, frozen=True):
    """An action that was asked for, and the boot in which it was."""

    action: Action
    at: Instant
    boot_id: str = ""
    tuning: TuningStep | None = None

    @property
    def is_repair(self) -> bool:
        """True where it was to mend the machine, and counts for what is tried next."""
        return self.tuning is None


class NodeRecord(Wire, frozen=True):
    """What is done about the faults of a node. `entered_at` and `deadline` are of the state.

    `drain` is SINCE/DEADLINE, as the annotation `HEALTH_DRAIN` has it; `session` counts how often
    the node was taken out.
    """

    state: NodeState
    entered_at: Instant
    reason: str = ""
    session: int = 0
    deadline: Instant | None = None
    drain: str = ""
    request: NodeRequest | None = None
    tries: tuple[Try, ...] = ()
    #: Tests that would find its faults again: it passes them before it comes back.
    retests: tuple[str, ...] = ()

    @property
    def is_out(self) -> bool:
        """True while work is kept off the node."""
        return self.state is not NodeState.READY


@dataclass(frozen=True, slots=True)
class Departure:
    """Why the machine of a node is to go for good."""

    why: str
    cause: RemovalCause
    is_by_person: bool = False


@dataclass(frozen=True, slots=True)
class ProviderRestart:
    """That a provider is to restart the machine of a node, which ran `boot_id` at `since`."""

    id: str
    since: float
    boot_id: str


def record_of(notes: Mapping[str, str]) -> NodeRecord | None:
    """Return the record in the annotations of a node; None where there is none that can be read."""
    text = notes.get(HEALTH)
    if text is None:
        return None
    try:
        record = msgspec.json.decode(text, type=NodeRecord)
        for instant in (record.entered_at, record.deadline):
            if instant is not None:
                parse_time(instant)
    except ValueError:  # msgspec's are of it, too
        return None
    return record


def record_text(record: NodeRecord) -> str:
    """Return a record as it stands in the annotation."""
    return msgspec.json.encode(record).decode()


def departure_of(notes: Mapping[str, str]) -> Departure | None:
    """Return why the machine of a node with these annotations is to go; None: it is not."""
    if (why := notes.get(RETIRE)) is not None:
        return Departure(
            f"retired: {why[:REASON_MAX]}", RemovalCause.MAINTENANCE, is_by_person=True
        )
    record = record_of(notes)
    if record is None or record.state is not NodeState.REPLACING:
        return None
    return Departure(record.reason, RemovalCause.REPAIR)


def provider_restart_of(notes: Mapping[str, str]) -> ProviderRestart | None:
    """Return what the provider of a node's machine is asked for; None: nothing."""
    record = record_of(notes)
    if record is None or record.state is not NodeState.REBOOTING or not record.tries:
        return None
    asked = record.request
    if asked is None or not asked.is_by_provider:
        return None
    return ProviderRestart(asked.id, parse_time(record.entered_at), record.tries[-1].boot_id)
