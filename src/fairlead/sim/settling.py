"""How long a world may take to settle: the one bound on liveness, whoever runs the world.

Once faults have stopped, the jobs that are left end within what they need one after another, each
in as many attempts as it may have, for on one node they do run so. What keeps jobs from starting
adds its own time: a machine that never becomes a node, a team that has exceeded its budget.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fairlead.api.names import SIMULATE_SECONDS
from fairlead.api.values.indices import parse_indices
from fairlead.api.values.quantity import GPU
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.actors.disturbances import GROUP_MEMBERS_MAX, GROUP_SECONDS_MAX
from fairlead.sim.actors.training_operator import POD_GPUS
from fairlead.sim.setup.team_changes import TEAM_NAMES, budget_seconds
from fairlead.sim.setup.workload import Arrival, job_spec
from fairlead.sim.setup.world_options import DAY_SECONDS, WorldOptions

#: Attempts that a job may need, each as long as its program.
_ATTEMPTS = 4
#: For everything else: back-offs, grace periods, launches of machines.
_REST_SECONDS = DAY_SECONDS / 2
#: For machines that never become nodes, until they are given up.
_NEVER_REGISTERS_SECONDS = 3 * DAY_SECONDS


def settle_seconds(
    options: WorldOptions, arrivals: Collection[Arrival], left: Collection[ObjectKey]
) -> float:
    """Return within what time the jobs in `left` end, which have not when faults stop.

    `arrivals` are all jobs of the world. A bound that the options state comes first.
    """
    if options.settle_seconds_max is not None:
        return options.settle_seconds_max
    bodies = [arrival.body for arrival in arrivals]
    alone = sum(_run_seconds(body) for body in bodies if _key(body) in left)
    seconds = _REST_SECONDS + _ATTEMPTS * (alone + options.groups * GROUP_SECONDS_MAX)
    if options.pools and options.cloud.never_registers:
        seconds += _NEVER_REGISTERS_SECONDS
    hours = gpu_hours(options, bodies)
    return seconds + budget_seconds(options.team_changes, hours, _ATTEMPTS)


def gpu_hours(options: WorldOptions, bodies: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return what the jobs of each team need, by team: of one attempt each."""
    seconds = dict.fromkeys(options.workload.teams, 0.0)
    for body in bodies:
        if (team := body["metadata"]["namespace"]) in seconds:
            role = job_spec(body)["roles"][0]
            gpus = int(role["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])
            seconds[team] += role["count"] * gpus * _run_seconds(body)
    # Groups of the other tool are in the namespace that the first team has, too.
    members = min(options.nodes, GROUP_MEMBERS_MAX)
    if TEAM_NAMES[0] in seconds:
        seconds[TEAM_NAMES[0]] += options.groups * members * POD_GPUS * GROUP_SECONDS_MAX
    return {team: gpu_seconds / 3600.0 for team, gpu_seconds in seconds.items()}


def _run_seconds(body: Mapping[str, Any]) -> float:
    """Return how long a job runs; of an array all of its elements, one after another."""
    template = job_spec(body)["roles"][0]["template"]
    elements = len(parse_indices(body["spec"].get("indices", "0")))
    return elements * float(template["metadata"]["annotations"][SIMULATE_SECONDS])


def _key(body: Mapping[str, Any]) -> ObjectKey:
    return body["metadata"]["namespace"], body["metadata"]["name"]
