"""The options of all controllers, read once from the settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fairlead.api.jobs.job_defaults import JobTerms
from fairlead.api.names import BALLOON_PRIORITY_CLASS, HOSTNAME
from fairlead.decide.adoption.view import AdoptionPolicy
from fairlead.decide.arrays import ArraysPolicy
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.decide.fleet.balloons import BalloonPolicy
from fairlead.decide.fleet.view import FleetPolicy
from fairlead.decide.health.conditions import ConditionRules
from fairlead.decide.health.policy import HealthPolicy, SilencePolicy
from fairlead.decide.images.policy import ImagesPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.network import EgressPolicy
from fairlead.decide.notices import NoticesPolicy, TicketsPolicy
from fairlead.decide.pinning import Binding
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.decide.use.idle import IdlePolicy
from fairlead.decide.use.use_samples import UsePolicy
from fairlead.model.asks.topology import DEFAULT_LEVELS, Level
from fairlead.runtime.kept.numbers import NumbersOptions


@dataclass(frozen=True, slots=True)
class Policies:
    """The options of each controller."""

    jobs: JobsPolicy = field(default_factory=JobsPolicy)
    placement: PlacementPolicy = field(default_factory=PlacementPolicy)
    adoption: AdoptionPolicy = field(default_factory=AdoptionPolicy)
    teams: TeamsPolicy = field(default_factory=TeamsPolicy)
    fleet: FleetPolicy = field(default_factory=FleetPolicy)
    doctor: DoctorPolicy = field(default_factory=DoctorPolicy)
    balloons: BalloonPolicy = field(default_factory=BalloonPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    silence: SilencePolicy = field(default_factory=SilencePolicy)
    images: ImagesPolicy = field(default_factory=ImagesPolicy)
    arrays: ArraysPolicy = field(default_factory=ArraysPolicy)
    egress: EgressPolicy = field(default_factory=EgressPolicy)
    notices: NoticesPolicy = field(default_factory=NoticesPolicy)
    tickets: TicketsPolicy = field(default_factory=TicketsPolicy)
    use: UsePolicy = field(default_factory=UsePolicy)
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    numbers: NumbersOptions = field(default_factory=NumbersOptions)
    #: Defaults and maxima of all jobs, which admission applies.
    terms: JobTerms = field(default_factory=JobTerms)
    #: Levels of the topology, widest first.
    levels: tuple[Level, ...] = DEFAULT_LEVELS

    @property
    def own_namespace(self) -> str:
        """Where pods of ours are that leave for work: balloons, tests of nodes; "": nowhere."""
        if self.balloons.namespace:
            return self.balloons.namespace
        return self.health.test_namespace if self.health.enabled else ""

    @property
    def condition_rules(self) -> ConditionRules | None:
        """What conditions mean that other tools state of nodes; None where health does not look."""
        return self.health.condition_rules() if self.health.enabled else None

    @property
    def health_policy(self) -> HealthPolicy:
        """The policy of health, with the levels of the network whose links are tested."""
        keys = (each.key for each in self.levels if each.key != HOSTNAME)
        return replace(self.health, levels=tuple(keys))

    def with_balloons(self, namespace: str, binding: Binding) -> Policies:
        """Return the policies of a cluster where Fairlead's own pods, such as balloons, are there.

        `binding`: who binds pods on nodes that do not say.
        """
        balloons = replace(self.balloons, namespace=namespace, binding=binding)
        fleet = replace(self.fleet, binding=binding)
        health = replace(
            self.health, test_namespace=namespace,
            test_priority_class=BALLOON_PRIORITY_CLASS,
        )  # fmt: skip
        images = replace(self.images, namespace=namespace, priority_class=BALLOON_PRIORITY_CLASS)
        teams = replace(self.teams, own_namespace=namespace, publishes=True)
        numbers = replace(self.numbers, namespace=namespace)
        return replace(
            self, balloons=balloons, fleet=fleet, health=health, images=images, teams=teams,
            numbers=numbers,
        )  # fmt: skip
