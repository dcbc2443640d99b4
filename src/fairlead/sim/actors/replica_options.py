"""What a world's options mean for the replicas of its controllers (pure)."""

from __future__ import annotations

from dataclasses import replace

from fairlead.app.configuration.policies import Policies
from fairlead.app.use_service import looks_of
from fairlead.controllers.records.idle import Measured
from fairlead.decide.fleet.view import FleetPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.sim.actors.replicas import ReplicaOptions
from fairlead.sim.setup.world_options import WorldOptions


def replica_options(options: WorldOptions, late_seconds: float) -> ReplicaOptions:
    """Return the policies of a world's controllers, and how often they are killed.

    `late_seconds`: so much later than its sender gave up a write may be carried out.
    """
    jobs = JobsPolicy(
        checkpoint_root="/checkpoints", late_pod_seconds=late_seconds, binding=options.binding,
        peer_naming=options.peer_naming,
    )  # fmt: skip
    policies = Policies(
        jobs, options.policy, options.adoption, fleet=FleetPolicy(sight=options.sight),
        doctor=options.doctor, teams=options.teams,
        health=replace(options.health, sight=options.sight), images=options.images,
        silence=options.silence, idle=options.idle,
    )  # fmt: skip
    if options.balloons and options.binding is not None:
        policies = policies.with_balloons(LeaderOptions().namespace, options.binding)
    return ReplicaOptions(
        policies, options.lease_seconds, options.calls_between_kills_mean,
        options.steps_between_crashes_mean, options.down_seconds_max, options.replicas,
        options.clock_jumps_per_day, options.clock_jump_seconds_max,
    )  # fmt: skip


def measured_by(options: WorldOptions, virtual: VirtualNodes) -> Measured | None:
    """Return what reads the use of pods; None where the profile says nothing of it."""
    if options.profile.use is None:
        return None
    return lambda: list(looks_of(virtual.measured_pods()))
