"""The Fleet kind (fairlead.dev/v1alpha1, cluster scope): one object, named `fleet`.

People edit the spec: freeze all removals, or allow named nodes to be removed beyond the budgets.
The status is the ledger of what automation removed; the one compare-and-swap on it grants removals,
so two leaders cannot spend the same budget.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.cluster.node_report import ID_MAX, Action
from fairlead.api.meta import Condition, Instant, ObjectMeta, Wire
from fairlead.api.values.bounds import NAME_MAX, OBJECT_NAME_MAX, LabelKey, ObjectName, doc

#: The name of the one object.
FLEET_NAME = "fleet"
OVERRIDES_MAX = 64
OVERRIDE_NODES_MAX = 10_000
GRANTS_MAX = 512
REPAIRS_MAX = 512
TRIED_MAX = 256


class RemovalCause(Enum):
    """Why a node is to be removed; each has budgets of its own."""

    FAILED_LAUNCH = "FailedLaunch"
    REPAIR = "Repair"
    MAINTENANCE = "Maintenance"
    IDLE = "Idle"


class Freeze(Wire, frozen=True):
    """Stop everything that takes from the fleet, and buying too."""

    reason: Annotated[str, doc("Why the fleet is frozen.", minLength=1, maxLength=OBJECT_NAME_MAX)]
    by: Annotated[ObjectName, doc("Who froze the fleet.")] = ""


class Override(Wire, frozen=True):
    """Allow these nodes to be removed although a budget or the ceiling is used up."""

    name: Annotated[str, doc("Name of the override.", minLength=1, maxLength=NAME_MAX)]
    nodes: Annotated[
        tuple[str, ...],
        doc(
            "Names of the nodes, or ids of instances without one.",
            minItems=1,
            maxItems=OVERRIDE_NODES_MAX,
        ),
    ]
    expires_at: Annotated[Instant, doc("When it ends.")]
    by: Annotated[str, doc("Who allows it.", minLength=1, maxLength=OBJECT_NAME_MAX)]
    reason: Annotated[str, doc("Why.", minLength=1, maxLength=OBJECT_NAME_MAX)]


class FleetSpec(Wire, frozen=True):
    """What people decide about the fleet as a whole."""

    freeze: Annotated[
        Freeze | None, doc("Stop buying and removing nodes. No default: not frozen.")
    ] = None
    overrides: Annotated[
        tuple[Override, ...],
        doc("Removals that are allowed beyond the budgets.", maxItems=OVERRIDES_MAX),
    ] = ()


class Removed(Wire, frozen=True):
    """Nodes whose removal was granted at one reading of the ledger's clock."""

    at: Annotated[float, doc("Reading of the ledger's clock, in seconds.")]
    pool: Annotated[ObjectName, doc("Pool of the nodes.")]
    domain: Annotated[LabelKey, doc("Failure domain of the nodes.")]
    cause: Annotated[RemovalCause, doc("Why they were removed.")]
    count: Annotated[int, doc("How many.", ge=1)]
    bought: Annotated[
        float | None,
        doc("When they were bought, by the same clock. Absent: a day before or earlier."),
    ] = None


class Grant(Wire, frozen=True):
    """A removal that was granted and has not been seen through."""

    pool: Annotated[ObjectName, doc("Pool of the node.")]
    instance: Annotated[str, doc("The instance to remove, as the provider names it.")]
    node: Annotated[str, doc("Its node; empty when none registered.")] = ""
    cause: Annotated[RemovalCause, doc("Why it is removed.")] = RemovalCause.IDLE
    granted_at: Annotated[Instant | None, doc("When it was granted.")] = None


class Repair(Wire, frozen=True):
    """A node that may be taken out of service for a fault, and has not come back."""

    node: Annotated[ObjectName, doc("The node.")]
    uid: Annotated[str, doc("Its uid: another node of the name is not meant.")]
    pool: Annotated[ObjectName, doc("Its pool; empty: none.")] = ""
    granted_at: Annotated[Instant | None, doc("When it was granted.")] = None


class MachineTry(Wire, frozen=True):
    """A reset, reboot or replacement of a machine, which outlives the name of its node."""

    machine: Annotated[
        tuple[Annotated[str, doc(maxLength=2 * ID_MAX)], ...],
        doc("What the machine is known by: its board, its GPUs.", maxItems=2),
    ]
    node: Annotated[ObjectName, doc("The node that it was then.")]
    uid: Annotated[str, doc("The uid of that node.")]
    action: Annotated[Action, doc("What was tried.")]
    at: Annotated[Instant, doc("When.")]


class FleetStatus(Wire, frozen=True):
    """What automation removed and what it sees, written by Fairlead's fleet controller."""

    clock: Annotated[
        float, doc("The ledger's clock: seconds during which a controller watched the fleet.")
    ] = 0.0
    removed: Annotated[
        tuple[Removed, ...], doc("Removals that a budget still counts, oldest first.")
    ] = ()
    grants: Annotated[tuple[Grant, ...], doc("Removals on their way.", maxItems=GRANTS_MAX)] = ()
    repairs: Annotated[
        tuple[Repair, ...],
        doc("Nodes that are out of service for a fault.", maxItems=REPAIRS_MAX),
    ] = ()
    tried: Annotated[
        tuple[MachineTry, ...],
        doc("Resets, reboots and replacements of 7 days, by machine.", maxItems=TRIED_MAX),
    ] = ()
    blind: Annotated[
        tuple[str, ...], doc("Why nothing is removed now; empty when the controller sees clearly.")
    ] = ()
    message: Annotated[str, doc("The same for people, with the numbers.")] = ""
    since: Annotated[Instant | None, doc("Since when `blind` has been as it is.")] = None
    unmanaged: Annotated[
        dict[str, int],
        doc("Nodes that belong to a pool which does not exist: how many, by pool."),
    ] = {}
    #: For the API server's admission policies, which see one object beside the request.
    teams_count: Annotated[
        int, doc("How many teams there are; written by the teams controller.")
    ] = 0
    teams: Annotated[
        dict[str, str],
        doc(
            "By namespace: its teams, each with the highest priority that may borrow, such as "
            "vision=0,speech= (speech borrows nothing); written by the teams controller."
        ),
    ] = {}
    conditions: Annotated[
        tuple[Condition, ...],
        doc("Frozen: the fleet controller has seen `spec.freeze`, and neither buys nor removes."),
    ] = ()


class Fleet(Wire, frozen=True):
    """The fleet as a whole: freeze, overrides, and the ledger of removals."""

    metadata: ObjectMeta = ObjectMeta()
    spec: FleetSpec = FleetSpec()
    status: FleetStatus = FleetStatus()
