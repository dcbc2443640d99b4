"""Workloads: jobs with the instants at which they are submitted, drawn from one seeded generator.

Sizes and durations follow what production traces show: most gangs are small, a few take a good
part of the cluster, run times are log-normal with a long tail (Philly: median 874 s, mean 18,006
s), and arrivals come in bursts around the working day.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.names import SIMULATE_EXIT_CODE, SIMULATE_SECONDS
from fairlead.api.resources import JOB_ARRAYS, JOBS, Resource
from fairlead.api.status import AlreadyExists, Invalid
from fairlead.api.values.quantity import GPU
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.client import Client
from fairlead.sim.setup.devices import DeviceWish, draw_device_claims
from fairlead.sim.setup.volumes import add_claims

#: (members, GPUs per member) and weight
SHAPES: tuple[tuple[int, int, int], ...] = (
    (1, 1, 30), (1, 4, 10), (1, 8, 15), (2, 8, 15), (4, 8, 12), (8, 8, 8), (16, 8, 5), (32, 8, 3),
    (64, 8, 1), (12, 2, 1),
)  # fmt: skip


#: Of the jobs of teams, the share that names its team.
_NAMING_SHARE = 0.3
#: Who submits the jobs of teams; "": the job does not say it.
USERS = ("ana", "ben", "")
#: The class of jobs that go first.
HIGH: dict[str, Any] = {"metadata": {"name": "high"}, "value": 10}


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """How many jobs over how long; durations in seconds."""

    jobs: int
    seconds: float
    run_seconds_median: float = 600.0
    run_seconds_sigma: float = 1.3
    run_seconds_max: float = 4 * 3600.0
    members_max: int = 64
    failing_share: float = 0.05  # jobs whose members always exit with 1
    #: Teams of the jobs, each with a namespace of its name; (): no job has a team.
    teams: tuple[str, ...] = ()
    bound_share: float = 0.0  # jobs that ask for something of the topology
    ruled_share: float = 0.0  # jobs with a host port, or that are kept apart by host name
    limited_share: float = 0.0  # jobs with a time limit, longer than they run
    elastic_share: float = 0.0  # jobs that may run with fewer members
    array_share: float = 0.0  # jobs of one or two members that are arrays of such
    elements_max: int = 60  # of an array
    volume_share: float = 0.0  # jobs with claims, shared or of their members' own
    volume_limit: int = 0  # volumes that a node attaches at most; 0: it states no limit
    devices: tuple[DeviceWish, ...] = ()  # that members ask for by claims (DRA)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job to submit, `at` seconds after the start."""

    at: float
    name: str
    body: dict[str, Any]


def generate(options: WorkloadOptions, rng: random.Random) -> list[Arrival]:
    """Return the arrivals in order of time; equal seeds give equal workloads."""
    shapes = [shape for shape in SHAPES if shape[0] <= options.members_max]
    weights = [shape[2] for shape in shapes]
    instants = sorted(_instant(options.seconds, rng) for _ in range(options.jobs))
    arrivals: list[Arrival] = []
    for number, at in enumerate(instants):
        members, gpus, _ = rng.choices(shapes, weights)[0]
        factor = rng.lognormvariate(0.0, options.run_seconds_sigma)
        run_seconds = min(options.run_seconds_median * factor, options.run_seconds_max)
        name = f"job-{number:05d}"
        body = job_body(
            name,
            members=members,
            gpus=gpus,
            run_seconds=round(run_seconds, 1),
            exit_code=1 if rng.random() < options.failing_share else 0,
            is_high=rng.choice((False, False, False, True)),
        )
        if options.teams:
            team = rng.choice(options.teams)
            body["metadata"]["namespace"] = team
            body["spec"] |= {"team": team} if rng.random() < _NAMING_SHARE else {}
            user = rng.choice(USERS)
            body["metadata"]["annotations"] = {names.SUBMITTED_BY: user} if user else {}
        is_ruled = bool(options.ruled_share) and rng.random() < options.ruled_share
        if is_ruled:
            _add_rule(body, rng)
        if options.bound_share and rng.random() < options.bound_share:
            asked = rng.choice(TOPOLOGIES)
            if not (is_ruled and "sliceSize" in asked):  # the two do not go together
                body["spec"]["topology"] = asked
        if options.limited_share and rng.random() < options.limited_share:
            body["spec"]["timeLimitSeconds"] = round(run_seconds * rng.uniform(1.2, 4.0)) + 60
        arrivals.append(Arrival(at, name, body))
    if options.array_share:  # drawn last, so that all else is as in a workload without
        arrivals = [_as_array(each, options, rng) for each in arrivals]
    if options.elastic_share:  # drawn last, so that all else is as in a workload without
        for arrival in arrivals:
            _make_elastic(job_spec(arrival.body), options.elastic_share, rng)
    if options.volume_share:  # drawn last, so that all else is as in a workload without
        for arrival in arrivals:
            spec = job_spec(arrival.body)
            is_apart = "sliceSize" in spec.get("topology", {}) or "minCount" in spec["roles"][0]
            if rng.random() < options.volume_share and not is_apart:
                add_claims({"spec": spec}, rng)
    if options.devices:  # drawn last, so that all else is as in a workload without
        for arrival in arrivals:
            draw_device_claims(job_spec(arrival.body), options.devices, rng)
    return arrivals


def _as_array(arrival: Arrival, options: WorkloadOptions, rng: random.Random) -> Arrival:
    """Return a job of one or two members as an array of such, perhaps; larger ones stay."""
    body = arrival.body
    is_array, count = rng.random() < options.array_share, rng.randint(1, options.elements_max)
    limit, step, first = rng.choice((None, 1, 4, 16)), rng.choice((1, 1, 3)), rng.randrange(5)
    most_failed = rng.choice((None, None, 5))
    if not is_array or body["spec"]["roles"][0]["count"] > 2 or "topology" in body["spec"]:
        return arrival
    spec: dict[str, Any] = {
        "indices": f"{first}-{first + step * (count - 1)}:{step}",
        "template": body["spec"],
    }
    spec |= {} if limit is None else {"parallelism": limit}
    spec |= {} if most_failed is None else {"maxFailed": most_failed}
    return Arrival(arrival.at, arrival.name, {**body, "kind": "JobArray", "spec": spec})


def job_spec(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a job as plain JSON; of an array that of each element's."""
    spec: dict[str, Any] = body["spec"]
    return spec["template"] if body["kind"] == "JobArray" else spec


def _make_elastic(spec: dict[str, Any], share: float, rng: random.Random) -> None:
    """Let a job run with fewer members, perhaps; one whose members are in slices can't."""
    is_elastic, (role,) = rng.random() < share, spec["roles"]
    least = rng.randint(1, role["count"])
    if is_elastic and "sliceSize" not in spec.get("topology", {}):
        role["minCount"] = least


#: What jobs of a workload ask of the topology; `sim/setup/fitting.py` says which can never have it.
TOPOLOGIES: tuple[dict[str, Any], ...] = (
    {"key": "rack", "required": True},
    {"key": "host", "preferredSeconds": 60},
    {"key": "block", "required": True, "preferred": "host", "preferredSeconds": 120},
    {"sliceLevel": "rack", "sliceSize": 2},
    {"key": "block", "required": True, "sliceLevel": "rack", "sliceSize": 2},
    {"key": "zone", "required": True, "preferred": "rack", "preferredSeconds": 600},
    {"sliceLevel": "block", "sliceSize": 4},
)


def job_body(
    name: str,
    *,
    members: int,
    gpus: int,
    run_seconds: float,
    exit_code: int = 0,
    is_high: bool = False,
) -> dict[str, Any]:
    """Return a Job for virtual nodes whose members run `run_seconds` and end with `exit_code`."""
    annotations = {SIMULATE_SECONDS: str(run_seconds)}
    if exit_code:
        annotations[SIMULATE_EXIT_CODE] = str(exit_code)
    container = {
        "name": "main",
        "image": "train",
        "command": ["train"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {GPU: str(gpus)}},
    }
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Job",
        "metadata": {"name": name, "namespace": names.DEFAULT_NAMESPACE},
        "spec": {
            **({"priorityClassName": HIGH["metadata"]["name"]} if is_high else {}),
            "restart": {"limit": 2, "backoffSeconds": 5},
            "roles": [{"name": "worker", "count": members, "template": template}],
        },
    }


def _add_rule(body: dict[str, Any], rng: random.Random) -> None:
    """Give a job's members a port of the node, a label that others shun, or a term of their own."""
    template = body["spec"]["roles"][0]["template"]
    kind, app = rng.randrange(4), rng.choice(("a", "b"))
    if kind == 0:
        port = {"containerPort": 29500, "hostPort": 29500 + rng.randrange(2)}
        template["spec"]["containers"][0]["ports"] = [port]
    if kind in (1, 2):
        template["metadata"]["labels"] = {"app": app}
    if kind in (2, 3):
        selector = {"matchLabels": {"app": app}}
        term = {"labelSelector": selector, "topologyKey": names.HOSTNAME}
        anti = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        template["spec"]["affinity"] = {"podAntiAffinity": anti}


def _instant(seconds: float, rng: random.Random) -> float:
    """Half of the arrivals come in the middle third of the time."""
    if rng.random() < 0.5:
        return seconds * (1 + rng.random()) / 3
    return seconds * rng.random()


# People of a simulated world who submit its jobs, and try again when a limit refuses one


#: A job that a limit of its team or user refuses is submitted again after this, and one whose name
#: a deleted job still has.
_REFUSED_SECONDS, _TAKEN_SECONDS = 60.0, 1.0


@dataclass(slots=True)
class WorkloadSubmission:
    """`elapsed` returns the seconds since the world began."""

    client: Client
    elapsed: Callable[[], float]
    #: How often a limit has refused a job.
    refused: int = 0
    #: How many jobs came back under the name of a deleted one.
    returned: int = 0
    #: What was submitted.
    _bodies: dict[ObjectKey, dict[str, Any]] = field(default_factory=dict[ObjectKey, Any])

    async def run(self, arrivals: Sequence[Arrival]) -> None:
        """Submit each job at its instant; end when every one was taken."""
        async with asyncio.TaskGroup() as again:
            for arrival in arrivals:
                await asyncio.sleep(max(0.0, arrival.at - self.elapsed()))
                self._bodies[arrival.body["metadata"]["namespace"], arrival.name] = arrival.body
                if not await self._create(arrival.body):
                    again.create_task(self._create_later(arrival.body))

    def has(self, key: ObjectKey) -> bool:
        """True for what was submitted; elements of arrays are made by others."""
        return key in self._bodies

    async def run_again(self, key: ObjectKey) -> None:
        """Submit a job that was deleted again, as soon as its name is free and no limit refuses."""
        while True:
            try:
                if await self._create(self._bodies[key]):
                    self.returned += 1
                    return
                await asyncio.sleep(_REFUSED_SECONDS)
            except AlreadyExists:
                await asyncio.sleep(_TAKEN_SECONDS)

    async def _create_later(self, body: dict[str, Any]) -> None:
        while True:
            await asyncio.sleep(_REFUSED_SECONDS)
            if await self._create(body):
                return

    async def _create(self, body: dict[str, Any]) -> bool:
        """Submit a job, one whose team is gone as a job of no team; False when a limit refuses.

        So too an array.
        """
        namespace = body["metadata"]["namespace"]
        resource: Resource[Any] = JOB_ARRAYS if body["kind"] == "JobArray" else JOBS
        but_team = {name: value for name, value in job_spec(body).items() if name != "team"}
        if resource == JOB_ARRAYS:
            but_team = {**body["spec"], "template": but_team}
        for spec in (body["spec"], but_team):
            try:
                await self.client.create(resource, {**body, "spec": spec}, namespace=namespace)
            except Invalid as error:
                details = error.status.details
                causes = details.causes if details is not None else ()
                if any(cause.reason == "FieldValueForbidden" for cause in causes):
                    self.refused += 1
                    return False
                if spec == but_team:
                    raise
            else:
                break
        return True
