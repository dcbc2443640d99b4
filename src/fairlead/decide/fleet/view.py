"""What one decision about the fleet looks at, and what is kept from one to the next."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fairlead.api.cluster.cluster_report import ClusterReport
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import Launch, NodePool, NodePoolStatus
from fairlead.decide.fleet.joins import JoinBucket, JoinLimits
from fairlead.decide.pinning import Binding
from fairlead.decide.removal.books import LedgerClock
from fairlead.decide.removal.ledger import Budgets, Peaks
from fairlead.decide.removal.trust import Sight, SightLimits, SightMemory
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, JobKey
from fairlead.model.health.machines import Instance, Inventory
from fairlead.model.pools.pool_nodes import PoolNodes


class PoolFault(Exception):
    """Code of ours raised over one pool; `__cause__` is what it raised."""

    def __init__(self, pool: str) -> None:
        super().__init__(pool)
        self.pool = pool


@contextmanager
def about(pool: str) -> Generator[None]:
    """Attribute what the block raises to a pool: PoolFault."""
    try:
        yield
    except Exception as error:
        raise PoolFault(pool) from error


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """The options of the fleet controller."""

    #: Time between two decisions while there is something to do, and while there is not.
    loop_seconds: float = 5.0
    idle_loop_seconds: float = 30.0
    #: Time between two lists of a provider.
    list_seconds: float = 15.0
    #: So long before its start a node is closed to jobs that could run into announced maintenance.
    announce_seconds: float = 86_400.0
    #: The clock of the ledger is written this often while a window still counts something.
    ledger_seconds: float = 300.0
    #: Who binds pods where a node does not say; None: there is no other scheduler, so no balloons.
    binding: Binding | None = None
    sight: SightLimits = field(default_factory=SightLimits)
    budgets: Budgets = field(default_factory=Budgets)
    joins: JoinLimits = field(default_factory=JoinLimits)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool, and the latest list of its machines."""

    pool: NodePool
    mistakes: tuple[str, ...] = ()
    inventory: Inventory | None = None
    #: By a monotonic clock; infinite when there is no list.
    age_seconds: float = float("inf")
    #: What the provider answered instead of a list, lately.
    error: str = ""

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self.pool.metadata.name

    @property
    def instances(self) -> tuple[Instance, ...]:
        """The machines of the latest list; () when there is none."""
        return self.inventory.instances if self.inventory is not None else ()


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything that one decision looks at."""

    fleet: Fleet | None
    pools: Sequence[PoolView]
    nodes: PoolNodes
    state: ClusterState
    #: Gangs that wait for room, in the order of the queue.
    waiting: Sequence[tuple[JobKey, GangRequest]]
    #: The wall clock, for what people read and for deadlines; and a monotonic one, for the rest.
    now: float
    instant: float
    #: How old the list of nodes is at most, by the monotonic clock.
    nodes_age_seconds: float = 0.0
    api_latency_seconds: float = 0.0
    api_error_share: float = 0.0
    #: The latest report of the doctor, whatever its age; None where there is no doctor.
    report: ClusterReport | None = None
    #: It is known which devices that claims ask for each node has. False: no job asks, or not yet.
    knows_devices: bool = True


@dataclass(slots=True)
class Quiet:
    """What a decision looked at that found nothing to do. See `quiet.py`."""

    fleet: Fleet
    pools: Sequence[PoolView]
    nodes_version: int
    sight: Sight
    #: Before this instant, time alone changes nothing.
    until: float


@dataclass(slots=True)
class FleetMemory:
    """What a process keeps between decisions. A new process begins with the defaults: blind."""

    sight: SightMemory = field(default_factory=SightMemory)
    peaks: Peaks = field(default_factory=Peaks)
    bucket: JoinBucket = field(default_factory=JoinBucket)
    looked_at: float | None = None
    ledger: LedgerClock = field(default_factory=LedgerClock)
    #: Removals, by name, that were marked in the decision before.
    marked: frozenset[str] = frozenset()
    #: Machines whose removal had been granted then.
    leaving: frozenset[str] = frozenset()
    #: Machines that no launch of ours accounts for, and since when.
    stray_since: dict[str, float] = field(default_factory=dict[str, float])
    #: For how long the lists have agreed with each other while the records did not.
    agree_seconds: float = 0.0
    #: The launches of each pool whose record this process wrote: it may send these.
    own_launches: dict[str, tuple[Launch, ...]] = field(default_factory=dict)
    #: Pools on which the finalizer may not be put: they are acted on without.
    without_finalizer: set[str] = field(default_factory=set[str])
    #: Pools of whose machines this process has had a complete list.
    counted: set[str] = field(default_factory=set[str])
    #: The latest decision, where it found nothing to do.
    quiet: Quiet | None = None
    #: The machines of each pool, and since when complete lists lack them, None for those that the
    #: latest list had: pool -> id -> (instant, machine).
    seen: dict[str, dict[str, tuple[float | None, Instance]]] = field(default_factory=dict)

    def wrote(self, pool: str, status: NodePoolStatus) -> None:
        """Note the launches in a status of a pool that this process wrote and had confirmed."""
        self.own_launches[pool] = status.unanswered
