"""What a simulated world consists of and what goes wrong in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.cloud.simulated import CloudRates
from fairlead.decide.adoption.view import AdoptionPolicy
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.decide.health.policy import HealthPolicy, SilencePolicy
from fairlead.decide.images.policy import ImagesPolicy
from fairlead.decide.jobs.policy import PeerNaming
from fairlead.decide.pinning import Binding
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.removal.trust import SightLimits
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.use.idle import IdlePolicy
from fairlead.embedded.virtual.profile import Profile, load_profile
from fairlead.sim.setup.faults import ROUGH, FaultRates
from fairlead.sim.setup.team_changes import TeamChange
from fairlead.sim.setup.workload import WorkloadOptions

#: 2026-01-01T00:00:00Z
EPOCH = 1_767_225_600.0
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Nodes that fail together, by their number in the order of names. Durations in seconds."""

    at_seconds: float
    nodes: range
    repair_seconds: float


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A node pool of the simulated cloud. Each of its `domains` may have `domain_max` nodes."""

    name: str
    max: int
    min: int = 0
    headroom: int = 0
    spares: int = 0
    weight: int = 0
    domains: int = 0
    domain_max: int = 100_000
    ready_seconds: int = 900
    idle_seconds: int = 600
    per_launch_max: int = 100
    consolidates: bool = False


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What is simulated. Durations in seconds, rates per simulated day."""

    nodes: int = 200
    workload: WorkloadOptions = field(default_factory=lambda: WorkloadOptions(500, DAY_SECONDS))
    groups: int = 0  # of another tool's pods, which Fairlead adopts
    profile: Profile = field(default_factory=lambda: load_profile("default"))
    faults: FaultRates = ROUGH
    replicas: int = 2
    lease_seconds: float = 60.0
    calls_between_kills_mean: float = 800.0  # of a replica, which dies
    steps_between_crashes_mean: float = 200.0  # of a controller, which its supervisor restarts
    down_seconds_max: float = 20.0
    clock_jumps_per_day: float = 0.0  # of a replica's wall clock, forward or back
    clock_jump_seconds_max: float = 300.0
    node_failures_per_day: float = 20.0
    node_repair_seconds: float = 3600.0
    drains_per_day: float = 50.0  # a random node is cordoned and its pods are evicted
    cordon_seconds: float = 1800.0
    maintenances_per_day: float = 0.0  # windows, announced up to an hour before
    node_repair_sigma: float = 0.0  # of a log-normal repair time with that median; 0: constant
    node_detect_seconds_max: float = 40.0
    outages: tuple[Outage, ...] = ()  # in addition, in the order of their instants
    lemon_share: float = 0.0  # of the nodes, which fail `lemon_factor` times as often
    lemon_factor: float = 1.0
    gpu_faults_per_day: float = 0.0  # one GPU of a random node, until it is repaired
    gpu_repair_seconds: float = 7200.0  # the median, with `node_repair_sigma`, as of the next two
    device_faults_per_day: float = 0.0  # one that claims ask for, likewise
    slowdowns_per_day: float = 0.0  # a random node, whose programs take `slow_factor` times longer
    slow_factor: float = 4.0
    slow_seconds: float = 3600.0
    infant_share: float = 0.0  # of the machines, which are bad from their first day, and silent
    silent_faults_per_day: float = 0.0  # a random machine becomes bad, and nothing says so
    found_after_hits: int = 3  # attempts that such a machine spoils before people look at it
    stalls_per_day: float = 0.0  # of the storage: no program gets on
    stall_seconds: float = 600.0
    sick_nodes_per_day: float = 0.0  # faults that the agents report; with `health` enabled
    sick_seconds: float = 600.0  # the mean time after which a fault ends by itself
    sick_storms_per_day: float = 0.0  # for a while all nodes look sick
    lease_outages_per_day: float = 0.0  # no node, or half of them, is heard; with `silence`
    pools: tuple[PoolShape, ...] = ()  # whose nodes are bought, in addition
    cloud: CloudRates = field(default_factory=CloudRates)
    user_acts_per_day: float = 100.0  # holds, releases and cancels of random jobs
    deletions_per_day: float = 0.0  # of random jobs, most of which are submitted again
    pool_deletions_per_day: float = 0.0  # of random node pools, which are made again
    team_changes: tuple[TeamChange, ...] = ()  # in the order of their instants
    settle_seconds_max: float | None = None  # None: what the jobs that are left need
    look_seconds: float = 60.0  # how often promises are checked by the clock
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    adoption: AdoptionPolicy = field(default_factory=AdoptionPolicy)
    teams: TeamsPolicy = field(default_factory=TeamsPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    #: Enabled, nodes renew their leases every 10 s, which are 8,640 writes a day of each.
    silence: SilencePolicy = field(default_factory=lambda: SilencePolicy(enabled=False))
    images: ImagesPolicy = field(default_factory=ImagesPolicy)
    idle: IdlePolicy = field(default_factory=IdlePolicy)  # with `use` in the profile
    doctor: DoctorPolicy = field(default_factory=DoctorPolicy)
    #: None: as on an embedded cluster, without another scheduler and without adoption.
    binding: Binding | None = Binding.DIRECT
    #: Another autoscaler owns nodes: Fairlead may keep balloons, which the stock scheduler binds.
    balloons: bool = False
    peer_naming: PeerNaming = PeerNaming.ADDRESS
    #: False: watches last and send no bookmarks, so that idle time costs nothing.
    renews_watches: bool = True
    #: False: Events are sent but not stored, as no controller reads them.
    keeps_events: bool = True

    @property
    def has_silent_faults(self) -> bool:
        """True where machines may be bad without a sign."""
        return bool(self.infant_share or self.silent_faults_per_day)

    @property
    def sight(self) -> SightLimits:
        """What counts as seeing: watches that are not renewed say nothing while nothing happens."""
        silent = SightLimits(nodes_age_seconds_max=float("inf"))
        return SightLimits() if self.renews_watches else silent
