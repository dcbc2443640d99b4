"""The closed set of the fleet controller's actions. Each carries the object it was decided on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api import names
from fairlead.api.cluster.node_pool import Launch, NodePool, NodePoolStatus, PoolDecision
from fairlead.api.kubernetes.core import Node
from fairlead.decide.removal.books import CreateFleet, WriteFleet


@dataclass(frozen=True, slots=True)
class PoolAction:
    """An action on a pool, or on machines of it."""

    pool: NodePool


@dataclass(frozen=True, slots=True)
class NodeAction:
    """An action on a node."""

    node: Node


@dataclass(frozen=True, slots=True)
class WritePool(PoolAction):
    """Write the status of a pool; `decided` is what is new, for events."""

    status: NodePoolStatus
    decided: tuple[PoolDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class SetPoolFinalizer(PoolAction):
    """Put the finalizer on a pool, or take it off."""

    has_finalizer: bool

    @property
    def finalizers(self) -> list[str]:
        """All finalizers of the pool afterwards."""
        others = [f for f in self.pool.metadata.finalizers if f != names.POOL_FINALIZER]
        return [*others, names.POOL_FINALIZER] if self.has_finalizer else others


@dataclass(frozen=True, slots=True)
class CallLaunch(PoolAction):
    """Send recorded launches to the provider, and write the answers with what else was decided.

    `base` is the status that the answers are added to.
    """

    launches: tuple[Launch, ...]
    base: NodePoolStatus
    decided: tuple[PoolDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class Terminate(PoolAction):
    """End machines whose removal was granted."""

    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mark(NodeAction):
    """Cordon a node that will be removed, and say why."""

    why: str


@dataclass(frozen=True, slots=True)
class Unmark(NodeAction):
    """Take our mark off a node, and our cordon, if it is still there."""


@dataclass(frozen=True, slots=True)
class Admit(NodeAction):
    """Lift the startup taint of a node, so that it takes work, for the first time or again.

    `is_spare`: that of a spare takes its place in the same write.
    """

    is_spare: bool = False


@dataclass(frozen=True, slots=True)
class AwaitTurn(NodeAction):
    """Taint a node that is not ready, so that it waits for its turn once it is ready again."""


@dataclass(frozen=True, slots=True)
class SetSpare(NodeAction):
    """Make a node a spare, or an ordinary one again."""

    is_spare: bool


@dataclass(frozen=True, slots=True)
class Announce(NodeAction):
    """Write the maintenance window that the provider of a node announces; "": take it off."""

    window: str


@dataclass(frozen=True, slots=True)
class BeginMaintenance(PoolAction):
    """Ask the provider to begin the announced maintenance of a machine that nothing uses."""

    instance: str


@dataclass(frozen=True, slots=True)
class RestartMachine(PoolAction):
    """Ask the provider to restart a machine, once for a `request`."""

    instance: str
    request: str


@dataclass(frozen=True, slots=True)
class DeleteNode(NodeAction):
    """Delete the node of a machine that is gone."""


Action: TypeAlias = (
    WritePool | SetPoolFinalizer | CreateFleet | WriteFleet | CallLaunch | Terminate | Mark | Unmark
    | Admit | AwaitTurn | SetSpare | Announce | BeginMaintenance | RestartMachine | DeleteNode
)  # fmt: skip
