"""The NodePool kind (fairlead.dev/v1alpha1, cluster scope, short name np): nodes of one shape.

The fleet controller writes `status` by compare-and-swap. A launch is written there, with its token,
before the provider is called with that token; so a controller that dies in between neither
forgets a machine nor buys it twice.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

import msgspec

from fairlead.api import names
from fairlead.api.kubernetes.core import Taint
from fairlead.api.kubernetes.device_shapes import SHAPES_MAX, DeviceShape
from fairlead.api.meta import Amount, Condition, CountOrShare, Instant, ObjectMeta, Wire
from fairlead.api.values.bounds import (
    INT32_MAX,
    PATH_MAX,
    Count,
    Name,
    ObjectName,
    Positive,
    doc,
)
from fairlead.api.values.quantity import QuantityError, is_gpu, parse, resources_to_base

DOMAINS_MAX = 256
NODES_MAX = 100_000
#: Option of the type Exec: the variables of the controllers that the command inherits.
ENVIRONMENT = "environment"
LAUNCHES_MAX = 64
_MICROS_MAX = 2**53
LAUNCH_NODES_MAX = 1_000
#: The option that says how long a provider may queue a launch.
QUEUE_SECONDS = "queueSeconds"
JOBS_SHOWN_MAX = 20
VALID = "Valid"  # a condition of a pool
_NodeCount: TypeAlias = Annotated[int, doc(ge=0, maximum=NODES_MAX)]


class ProviderType(Enum):
    """Who makes the machines."""

    AWS = "AWS"
    AZURE = "Azure"
    GCP = "GCP"
    STATIC = "Static"
    EXEC = "Exec"
    SIMULATED = "Simulated"
    EXTERNAL = "External"  # another autoscaler: Fairlead only keeps balloons

    @property
    def restarts(self) -> bool:
        """True where Fairlead can have a machine restarted from outside of it."""
        return self in (ProviderType.STATIC, ProviderType.SIMULATED)


class PoolMode(Enum):
    """Whether a pool is acted on."""

    DRY_RUN = "DryRun"
    ACTIVE = "Active"


class DeletionPolicy(Enum):
    """What becomes of the machines when the pool is deleted."""

    KEEP = "Keep"
    DRAIN = "Drain"


class Provider(Wire, frozen=True):
    """Who makes the machines of the pool, and what it calls them."""

    type: Annotated[
        ProviderType,
        doc(
            "AWS (an Auto Scaling group or EC2 Fleet), Azure (scale sets), GCP (managed instance "
            "groups), Static (an inventory file), Exec (a command), Simulated, or External "
            "(another autoscaler: Fairlead keeps balloons there)."
        ),
    ]
    reference: Annotated[
        str,
        doc(
            "What the provider calls the pool: the name of an Auto Scaling group, of scale sets "
            "or of managed instance groups, the path of an inventory file or of a command. Empty "
            "for EC2 Fleet, where the option launchTemplate says what to launch.",
            maxLength=PATH_MAX,
        ),
    ] = ""
    options: Annotated[
        dict[str, str],
        doc("Options of the provider, such as region or launchTemplate. See the guide."),
    ] = {}


class NodeTemplate(Wire, frozen=True):
    """What a node of the pool offers once it is ready."""

    resources: Annotated[
        dict[str, Amount], doc("Allocatable resources: cpu, memory, nvidia.com/gpu, pods.")
    ]
    labels: Annotated[dict[str, str], doc("Labels that each node has.")] = {}
    taints: Annotated[tuple[Taint, ...], doc("Taints that each node keeps.")] = ()
    devices: Annotated[
        tuple[DeviceShape, ...],
        doc(
            "Devices that claims ask for (DRA) and that the drivers of each node offer. Nodes that "
            "are there count before this; a pool that has none needs it.",
            maxItems=SHAPES_MAX,
        ),
    ] = ()


class PoolDomain(Wire, frozen=True):
    """A zone, placement group or rack that the pool can buy in."""

    name: Annotated[Name, doc("Name of the domain, as the provider knows it.")]
    labels: Annotated[
        dict[str, str], doc("Labels of nodes in this domain, beside those of the template.")
    ] = {}
    max: Annotated[_NodeCount, doc("Most nodes in this domain. Default: as many as the pool.")] = (
        NODES_MAX
    )


class ScaleUp(Wire, frozen=True):
    """How the pool buys."""

    nodes_per_launch_max: Annotated[
        int,
        doc(
            "Most nodes in one request to the provider. Default 100.",
            ge=1,
            maximum=LAUNCH_NODES_MAX,
        ),
    ] = 100
    ready_seconds: Annotated[
        Positive,
        doc(
            "A machine whose node is not ready after so long has failed and is replaced. Default "
            "1800."
        ),
    ] = 1800
    launch_seconds: Annotated[
        Positive | None,
        doc(
            "A machine without a node after so long has failed and is replaced; a launch that the "
            "provider has not answered after so long is no longer waited for. Default: "
            "readySeconds."
        ),
    ] = None
    expected_seconds: Annotated[
        Count,
        doc("How long a machine usually takes to be ready. For answers to users. Default 360."),
    ] = 360
    unavailable_seconds: Annotated[
        Positive,
        doc(
            "After a refused launch the domain is avoided for so long; doubles with each refusal "
            "in a row, up to an hour. Default 300."
        ),
    ] = 300


class ScaleDown(Wire, frozen=True):
    """How the pool gives nodes back."""

    enabled: Annotated[bool, doc("False: idle nodes stay. Default true.")] = True
    idle_seconds: Annotated[
        Count, doc("A node that has been idle for longer is surplus. Default 600.")
    ] = 600
    consolidates: Annotated[
        bool,
        doc(
            "True: while no job waits for room, running jobs are moved off nodes that they use "
            "little, to nodes that are in use anyway, each after a checkpoint; the nodes then go "
            "as idle ones. Default false."
        ),
    ] = False


class Disruption(Wire, frozen=True):
    """How many nodes of the pool may be removed, for whatever cause, beyond Fairlead's own budgets.

    Each is a count, or a share of the pool such as "10%": rounded down, 1 at least.
    """

    nodes_at_once_max: Annotated[
        CountOrShare | None,
        doc("Nodes that are cordoned for removal or being removed at a time. No default."),
    ] = None
    nodes_per_hour_max: Annotated[
        CountOrShare | None, doc("Nodes that are removed within any hour. No default.")
    ] = None
    nodes_per_day_max: Annotated[
        CountOrShare | None, doc("Nodes that are removed within any 24 hours. No default.")
    ] = None


class NodePoolSpec(Wire, frozen=True):
    """What the operator wants of the pool."""

    provider: Annotated[Provider, doc("Who makes the machines.")]
    template: Annotated[NodeTemplate, doc("What a node of the pool offers.")]
    max: Annotated[_NodeCount, doc("Most nodes of the pool.")]
    min: Annotated[_NodeCount, doc("Fewest nodes of the pool. Default 0.")] = 0
    mode: Annotated[
        PoolMode,
        doc(
            "DryRun shows what would be bought and removed (fairlead fleet plan); Active does it. "
            "Default DryRun."
        ),
    ] = PoolMode.DRY_RUN
    hold: Annotated[
        _NodeCount | None,
        doc("Keep exactly this size, idle or not. No default: follow the demand."),
    ] = None
    headroom_nodes: Annotated[
        _NodeCount, doc("Idle nodes that are kept ready beyond the demand. Default 0.")
    ] = 0
    headroom_gpus: Annotated[
        Count,
        doc(
            "GPUs that are kept idle beyond the demand, on whole nodes; the larger of this and "
            "headroomNodes counts. Default 0."
        ),
    ] = msgspec.field(default=0, name="headroomGPUs")
    spare_nodes: Annotated[
        _NodeCount,
        doc(
            "Nodes that stand ready and are used only to replace lost nodes of running gangs; "
            "once one is used, another takes its place. They count in max, beside the headroom, "
            "which any job may use, and all other jobs have max less these. Default 0."
        ),
    ] = 0
    weight: Annotated[
        int,
        doc(
            "Pools with more weight are bought from first. Default 0.",
            minimum=-INT32_MAX,
            maximum=INT32_MAX,
        ),
    ] = 0
    price_per_hour: Annotated[
        Amount,
        doc(
            "What a node costs per hour, in any currency, such as 98.32. Among pools of one "
            "weight, the cheapest for a gang is bought from first. Default 0."
        ),
    ] = 0
    domains: Annotated[
        tuple[PoolDomain, ...],
        doc(
            "Zones or placement groups in order of preference. No default: the provider chooses.",
            maxItems=DOMAINS_MAX,
        ),
    ] = ()
    scale_up: Annotated[ScaleUp, doc("How the pool buys.")] = ScaleUp()
    scale_down: Annotated[ScaleDown, doc("How the pool gives nodes back.")] = ScaleDown()
    disruption: Annotated[
        Disruption, doc("How many nodes of the pool may be removed at once and in time.")
    ] = Disruption()
    test_suite: Annotated[
        str,
        doc(
            "Suite that nodes with the taint fairlead.dev/preflight, and those that come back from "
            "a repair, pass before they take work. Default: the setting health.testSuite.",
            maxLength=63,
        ),
    ] = ""
    deletion_policy: Annotated[
        DeletionPolicy,
        doc(
            "What becomes of the machines when the pool is deleted. Keep: they stay, with their "
            "jobs, and nothing manages them any more. Drain: their nodes are cordoned, and each "
            "machine is removed once nothing uses its node, within all budgets; the pool is gone "
            "after the last one. Default Keep."
        ),
    ] = DeletionPolicy.KEEP
    joins_per_minute: Annotated[
        int,
        doc(
            "Nodes of this pool that may begin to take work per minute, while the API server "
            "answers well. Default 100.",
            ge=1,
            maximum=NODES_MAX,
        ),
    ] = 100

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a node of the template; QuantityError."""
        resources = resources_to_base(self.template.resources)
        return sum(amount for name, amount in resources.items() if is_gpu(name))

    @property
    def headroom(self) -> int:
        """Nodes that are kept idle beyond the demand; QuantityError."""
        gpus = self.gpus_per_node if self.headroom_gpus else 0
        of_gpus = -(-self.headroom_gpus // gpus) if gpus else 0
        return max(self.headroom_nodes, of_gpus)

    @property
    def limit(self) -> int:
        """The most nodes that the pool may have now."""
        return self.max if self.hold is None else self.hold

    @property
    def price_micros(self) -> int:
        """What a node costs per hour, in millionths; 0 where the text is no quantity."""
        try:
            return int(parse(self.price_per_hour) * 1_000_000)
        except QuantityError:
            return 0

    @property
    def gpu_hour_micros(self) -> int:
        """What a GPU costs per hour, in millionths; 0 where no price or no GPU is known."""
        try:
            gpus = self.gpus_per_node
        except QuantityError:
            return 0
        return min(self.price_micros // gpus, _MICROS_MAX) if gpus else 0


class Launch(Wire, frozen=True):
    """Machines that were asked for and are not all nodes that take work yet."""

    token: Annotated[str, doc("Names the request to the provider; repeating it is harmless.")]
    domain: Annotated[str, doc("Domain to buy in; empty: the provider chooses.")]
    count: Annotated[int, doc("Machines asked for.", ge=1)]
    requested_at: Annotated[Instant, doc("When it was decided.")]
    jobs: Annotated[
        tuple[str, ...], doc("Some of the jobs that it is for, as namespace/name.")
    ] = ()
    instances: Annotated[
        tuple[str, ...] | None,
        doc("The machines, once the provider has answered. Absent: it has not."),
    ] = None
    answered_at: Annotated[
        Instant | None, doc("When the provider answered; the machines start then.")
    ] = None
    given_up_at: Annotated[
        Instant | None,
        doc("Since when it is not waited for any more: no answer, or no node, in time."),
    ] = None
    takeovers: Annotated[int, doc("How often another process took over to send it.", ge=0)] = 0

    @property
    def begun_at(self) -> str:
        """The instant from which deadlines of the machines count."""
        return self.answered_at or self.requested_at


class UnavailableDomain(Wire, frozen=True):
    """A domain that refused a launch."""

    domain: Annotated[str, doc("The domain; empty: the provider's choice.")]
    reason: Annotated[ObjectName, doc("What the provider said.")]
    until: Annotated[Instant, doc("Nothing is bought there before.")]
    refusals: Annotated[int, doc("Refusals in a row.", ge=1)] = 1


class BalloonCounts(Wire, frozen=True):
    """Balloons of a pool whose machines another autoscaler owns."""

    wanted: Annotated[int, doc("Balloons that there should be.", ge=0)] = 0
    standing: Annotated[int, doc("Balloons that hold a node.", ge=0)] = 0
    waiting: Annotated[int, doc("Balloons that have no node yet.", ge=0)] = 0
    requested: Annotated[
        int, doc("Nodes that balloons are to request from the other autoscaler.", ge=0)
    ] = 0
    jobs: Annotated[
        tuple[str, ...], doc("Some of the jobs that those are for, as namespace/name.")
    ] = ()


class Bought(Wire, frozen=True):
    """Machines that took up work after a launch, by the clock of the Fleet's ledger."""

    at: Annotated[float, doc("Reading of the ledger's clock, in seconds.")]
    instances: Annotated[tuple[str, ...], doc("Those that are still there.", minItems=1)]


class Lost(Wire, frozen=True):
    """Machines that went and that Fairlead did not remove."""

    at: Annotated[float, doc("Reading of the ledger's clock, in seconds.")]
    count: Annotated[int, doc("How many.", ge=1)]


class PoolDecision(Wire, frozen=True):
    """What the controller decided about the pool, and why."""

    at: Annotated[Instant, doc("When.")]
    action: Annotated[str, doc("What was done, such as Launch or Remove.")]
    reason: Annotated[str, doc("The rule or the demand behind it.")]
    message: Annotated[str, doc("The same for people, with the numbers.")] = ""
    facts: Annotated[
        dict[str, int | float | str | bool],
        doc("What it was decided on: sizes, budgets before and after, alternatives."),
    ] = {}
    number: Annotated[int, doc("Counts the decisions about the pool.")] = 0


class NodePoolStatus(Wire, frozen=True):
    """What is so, written by the fleet controller."""

    observed_generation: Annotated[
        int, doc("The metadata.generation that this status is about.")
    ] = 0
    conditions: Annotated[
        tuple[Condition, ...], doc("Valid: whether the spec can be acted on.")
    ] = ()
    nodes: Annotated[int, doc("Nodes of the pool.")] = 0
    ready: Annotated[int, doc("Nodes that can take work.")] = 0
    launching: Annotated[int, doc("Machines without a node yet.")] = 0
    joining: Annotated[int, doc("Nodes that do not take work yet.")] = 0
    idle: Annotated[int, doc("Nodes that can take work and have none.")] = 0
    spares: Annotated[int, doc("Idle nodes that only replace lost nodes of running gangs.")] = 0
    leaving: Annotated[int, doc("Nodes that are being removed.")] = 0
    wanted: Annotated[int, doc("Nodes that demand, headroom, spares and limits ask for.")] = 0
    message: Annotated[str, doc("What holds the pool back; empty when nothing does.")] = ""
    consolidates_to: Annotated[
        Annotated[int, doc(ge=0)] | None,
        doc(
            "Jobs may be moved off nodes of the pool while more than so many are in use. Absent: "
            "they may not (scaleDown.consolidates)."
        ),
    ] = None
    recorded: Annotated[int | None, doc("Machines of the pool by our own records.")] = None
    bought: Annotated[
        tuple[Bought, ...],
        doc(
            "Machines that were bought within a day, oldest first: those may go again beyond the "
            "budgets of an hour and a day for idle nodes."
        ),
    ] = ()
    lost: Annotated[
        tuple[Lost, ...],
        doc("Machines lost within a day, oldest first: as many of those bought replaced them."),
    ] = ()
    launch_number: Annotated[int, doc("Launches so far; names the next token.")] = 0
    launches: Annotated[tuple[Launch, ...], doc("Launches under way.", maxItems=LAUNCHES_MAX)] = ()
    unavailable: Annotated[
        tuple[UnavailableDomain, ...], doc("Domains that refused launches.")
    ] = ()
    balloons: Annotated[
        BalloonCounts | None, doc("Balloons, where another autoscaler owns the machines.")
    ] = None
    decisions: Annotated[
        tuple[PoolDecision, ...], doc("The latest decisions, oldest first.", maxItems=50)
    ] = ()

    @property
    def unanswered(self) -> tuple[Launch, ...]:
        """The launches that the provider has not answered."""
        return tuple(launch for launch in self.launches if launch.instances is None)


class NodePool(Wire, frozen=True):
    """Nodes of one shape that Fairlead buys for gangs and gives back when they are idle."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodePoolSpec = NodePoolSpec(
        provider=Provider(ProviderType.STATIC), template=NodeTemplate({}), max=0
    )
    status: NodePoolStatus = NodePoolStatus()

    @property
    def is_active(self) -> bool:
        """True when the pool is to be acted on."""
        return self.spec.mode is PoolMode.ACTIVE and (not self.is_deleted or self.is_draining)

    @property
    def is_deleted(self) -> bool:
        """True once somebody has deleted the pool, while it is still there."""
        return self.metadata.deletion_timestamp is not None

    @property
    def has_finalizer(self) -> bool:
        """True where the finalizer keeps it until it is known what becomes of its machines."""
        return names.POOL_FINALIZER in self.metadata.finalizers

    @property
    def is_draining(self) -> bool:
        """True when the pool is deleted and its machines are to go. In dry run none goes."""
        is_asked = self.spec.deletion_policy is DeletionPolicy.DRAIN
        is_possible = self.spec.mode is PoolMode.ACTIVE and self.has_finalizer
        return self.is_deleted and is_asked and is_possible and not self.is_external

    @property
    def is_external(self) -> bool:
        """True when another autoscaler owns the machines."""
        return self.spec.provider.type is ProviderType.EXTERNAL
