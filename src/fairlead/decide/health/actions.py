"""The closed set of the health controller's actions. Each carries the object it was decided on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.decide.health.proving.gate import LiftTaint
from fairlead.decide.health.proving.testing import TestAction
from fairlead.decide.removal.books import CreateFleet, WriteFleet
from fairlead.model.health.node_record import NodeRecord


@dataclass(frozen=True, slots=True)
class SetRecord:
    """Write the record of a node, with the taint and the drain that belong to it; None: none.

    `decided` is for events and records.
    """

    node: Node
    record: NodeRecord | None
    decided: tuple[PoolDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict a pod of others within its budgets; one that a budget keeps is asked again."""

    pod: Pod
    node: Node


@dataclass(frozen=True, slots=True)
class DeleteOverduePod:
    """Delete a pod of others that is there after the deadline, with its own grace period."""

    pod: Pod
    node: Node


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """Delete the report of a node that is not there any more."""

    report: NodeReport


@dataclass(frozen=True, slots=True)
class Note:
    """Record a decision that writes nothing: a rule in shadow, or a change of sight."""

    node: Node | None
    decided: PoolDecision


Action: TypeAlias = (
    CreateFleet
    | WriteFleet
    | SetRecord
    | EvictPod
    | DeleteOverduePod
    | DeleteReport
    | Note
    | LiftTaint
    | TestAction
)
