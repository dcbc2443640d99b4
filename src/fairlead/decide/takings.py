"""What takes something from a user or the fleet, as a value; it is recorded before the act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from fairlead.decide.verdict import Fact


class TakingKind(Enum):
    """What is taken."""

    #: Nodes, from a job that gives them back for another one.
    PREEMPT = "Preempt"
    #: Nodes, from a job that goes on in other places.
    MOVE = "Move"
    #: A node, from new work, or from the pods that are on it.
    DRAIN = "Drain"
    #: A machine: it is reset, restarted or ended.
    REPLACE = "Replace"
    #: Bandwidth, from the pods of a team on a node.
    SHAPE = "Shape"
    #: A job's life, by a rule.
    END = "End"


@dataclass(frozen=True, slots=True)
class Taking:
    """One taking, as it was decided. The same one has the same `id` in all tries."""

    id: str
    kind: TakingKind
    #: Whose: kind, namespace and name, such as `Job default/train` or `Node a1`.
    object: str
    uid: str
    #: The rule, and the same in words with the numbers.
    reason: str
    message: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
