"""The Fleet kind (fairlead.dev/v1alpha1, cluster scope): one object, named `fleet`.

People edit the spec: freeze all removals, or allow named nodes to be removed beyond the budgets.
The status is the ledger of what automation removed; the one compare-and-swap on it grants removals,
so two leaders cannot spend the same budget.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.bounds import LABEL_KEY_MAX, NAME_MAX, OBJECT_NAME_MAX, bounded
from fairlead.api.meta import Instant, ObjectMeta, Wire

#: The name of the one object.
FLEET_NAME = "fleet"
OVERRIDES_MAX = 64
OVERRIDE_NODES_MAX = 10_000
GRANTS_MAX = 512


class RemovalCause(Enum):
    """Why a node is to be removed; each has budgets of its own."""

    FAILED_LAUNCH = "FailedLaunch"
    REPAIR = "Repair"
    MAINTENANCE = "Maintenance"
    IDLE = "Idle"


class Freeze(Wire, frozen=True):
    """Stop everything that takes from the fleet, and buying too."""

    reason: Annotated[
        str, bounded("Why the fleet is frozen.", minLength=1, maxLength=OBJECT_NAME_MAX)
    ]
    by: Annotated[str, bounded("Who froze the fleet.", maxLength=OBJECT_NAME_MAX)] = ""


class Override(Wire, frozen=True):
    """Allow these nodes to be removed although a budget or the ceiling is used up."""

    name: Annotated[str, bounded("Name of the override.", minLength=1, maxLength=NAME_MAX)]
    nodes: Annotated[
        tuple[str, ...],
        bounded("Names of the nodes, or ids of instances without one.",
                minItems=1, maxItems=OVERRIDE_NODES_MAX),
    ]  # fmt: skip
    expires_at: Annotated[Instant, bounded("When it ends.")]
    by: Annotated[str, bounded("Who allows it.", minLength=1, maxLength=OBJECT_NAME_MAX)]
    reason: Annotated[str, bounded("Why.", minLength=1, maxLength=OBJECT_NAME_MAX)]


class FleetSpec(Wire, frozen=True):
    """What people decide about the fleet as a whole."""

    freeze: Annotated[
        Freeze | None, bounded("Stop buying and removing nodes. No default: not frozen.")
    ] = None
    overrides: Annotated[
        tuple[Override, ...],
        bounded("Removals that are allowed beyond the budgets.", maxItems=OVERRIDES_MAX),
    ] = ()


class Removed(Wire, frozen=True):
    """Nodes whose removal was granted at one reading of the ledger's clock."""

    at: Annotated[float, bounded("Reading of the ledger's clock, in seconds.")]
    pool: Annotated[str, bounded("Pool of the nodes.", maxLength=OBJECT_NAME_MAX)]
    domain: Annotated[str, bounded("Failure domain of the nodes.", maxLength=LABEL_KEY_MAX)]
    cause: Annotated[RemovalCause, bounded("Why they were removed.")]
    count: Annotated[int, bounded("How many.", ge=1)]


class Grant(Wire, frozen=True):
    """A removal that was granted and has not been seen through."""

    pool: Annotated[str, bounded("Pool of the node.", maxLength=OBJECT_NAME_MAX)]
    instance: Annotated[str, bounded("The instance to remove, as the provider names it.")]
    node: Annotated[str, bounded("Its node; empty when none registered.")] = ""
    cause: Annotated[RemovalCause, bounded("Why it is removed.")] = RemovalCause.IDLE
    granted_at: Annotated[Instant | None, bounded("When it was granted.")] = None


class FleetStatus(Wire, frozen=True):
    """What automation removed and what it sees, written by Fairlead's fleet controller."""

    clock: Annotated[
        float,
        bounded("The ledger's clock: seconds during which a controller watched the fleet."),
    ] = 0.0
    removed: Annotated[
        tuple[Removed, ...], bounded("Removals that a budget still counts, oldest first.")
    ] = ()
    grants: Annotated[
        tuple[Grant, ...], bounded("Removals on their way.", maxItems=GRANTS_MAX)
    ] = ()
    blind: Annotated[
        tuple[str, ...],
        bounded("Why nothing is removed now; empty when the controller sees clearly."),
    ] = ()
    message: Annotated[str, bounded("The same for people, with the numbers.")] = ""
    since: Annotated[Instant | None, bounded("Since when `blind` has been as it is.")] = None


class Fleet(Wire, frozen=True):
    """The fleet as a whole: freeze, overrides, and the ledger of removals."""

    metadata: ObjectMeta = ObjectMeta()
    spec: FleetSpec = FleetSpec()
    status: FleetStatus = FleetStatus()
