"""Scenarios: all that a run depends on, in one YAML file or from flags.

    cluster: {nodes: 90, gpus: 8}
    load: {trace: philly.csv.gz, days: 7}
    policy: fifo
    faults: meta-rsc
    seed: 7

A relative path is taken from the directory of the file. Every mistake is collected, each with its
path in the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairlead.api.cluster.node_suites import suites
from fairlead.api.kubernetes.device_shapes import DeviceShape, drivers_of
from fairlead.api.values.quantity import CPU, MEMORY, QuantityError, to_base
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.embedded.virtual.profile import PROFILE_DEFAULT, device_problems, shipped_profiles
from fairlead.input.plain import UnreadableText, yaml_document
from fairlead.model.claimed.device_asks import DEVICES_PER_CLAIM_MAX
from fairlead.model.claimed.device_selectors import ExpressionError, device_expression
from fairlead.sim.setup.world_options import DAY_SECONDS
from fairlead.sim.traces.recorded import RecordedLoad
from fairlead.sim.traces.trace import TraceProblem

T = TypeVar("T")

SCENARIO_BYTES_MAX = 1 << 20
_PACKAGE = "fairlead.sim"
_CHECKPOINT_SECONDS_MAX = 604_800
_NAME = re.compile("[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class _Data(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of the file's types: camelCase in the file, unknown fields are mistakes."""


class NodeFailure(_Data, frozen=True):
    """A node fails at an instant, in seconds from the first arrival. `node` counts from 0."""

    at_seconds: float
    node: int
    repair_seconds: float = 3600.0


class FaultProfile(_Data, frozen=True):
    """Failures of nodes, jobs and the API. Rates are per 1,000 node-days, durations in seconds.

    A repair takes a log-normal time. `lemonShare` of the nodes fail `lemonFactor` times as often
    as the others; the mean rate stays as stated. All nodes of a rack fail together at
    `rackFailuresPer1000RackDays`, those of a block, behind one switch, at
    `switchFailuresPer1000SwitchDays`. `nodeFailures` come in addition, at stated instants. A GPU
    fault takes one GPU of a node until it is repaired, and ends the program that uses it. On a slow
    node programs take `slowFactor` times longer; while the storage stalls, none gets on. Their
    durations are log-normal with `repairSigma`, too. `infantShare` of the machines are bad from
    their first day, others become bad at `silentFaultsPer1000NodeDays`, and nothing says so: tests
    of nodes find them, or people do after `foundAfterHits` attempts that they spoiled. `api` names
    the faults between controllers and API: none or rough.
    """

    name: str
    description: str = ""
    sources: tuple[str, ...] = ()
    node_failures_per_1000_node_days: float = msgspec.field(
        default=0.0, name="nodeFailuresPer1000NodeDays"
    )
    repair_seconds_median: float = 3600.0
    repair_sigma: float = 0.0
    detect_seconds_max: float = 40.0
    rack_failures_per_1000_rack_days: float = msgspec.field(
        default=0.0, name="rackFailuresPer1000RackDays"
    )
    switch_failures_per_1000_switch_days: float = msgspec.field(
        default=0.0, name="switchFailuresPer1000SwitchDays"
    )
    node_failures: tuple[NodeFailure, ...] = ()
    gpu_faults_per_1000_node_days: float = msgspec.field(
        default=0.0, name="gpuFaultsPer1000NodeDays"
    )
    gpu_repair_seconds_median: float = 7200.0
    device_faults_per_1000_node_days: float = msgspec.field(
        default=0.0, name="deviceFaultsPer1000NodeDays"
    )
    slowdowns_per_1000_node_days: float = msgspec.field(
        default=0.0, name="slowdownsPer1000NodeDays"
    )
    slow_factor: float = 4.0
    slow_seconds_median: float = 3600.0
    storage_stalls_per_day: float = 0.0
    stall_seconds_median: float = 600.0
    infant_share: float = 0.0
    silent_faults_per_1000_node_days: float = msgspec.field(
        default=0.0, name="silentFaultsPer1000NodeDays"
    )
    found_after_hits: int = 3
    lemon_share: float = 0.0
    lemon_factor: float = 1.0
    failing_job_share: float = 0.0
    calls_between_kills_mean: float = 0.0
    api: str = "none"


class PoolSpec(_Data, frozen=True):
    """Nodes that are bought when jobs lack room and that go when they are idle. In seconds."""

    name: str
    max: int
    min: int = 0
    headroom_nodes: int = 0
    spare_nodes: int = 0
    weight: int = 0
    idle_seconds: int = 600
    ready_seconds: int = 1800
    nodes_per_launch_max: int = 100


class CloudSpec(_Data, frozen=True):
    """How the provider of the pools behaves.

    A machine is a node after `launchSeconds` and up to `launchJitterSeconds` more. `refusedShare`
    of the launches find no capacity; `lostShare` of the machines never become a node.
    """

    launch_seconds: float = 60.0
    launch_jitter_seconds: float = 60.0
    refused_share: float = 0.0
    lost_share: float = 0.0


class ClusterSpec(_Data, frozen=True):
    """The nodes: how many, what each has, how they lie in racks and blocks; `pools` buy more.

    `devices` are those that claims ask for (DRA), and `deviceClasses` expressions by class, as in a
    profile of virtual nodes.
    """

    nodes: int = 90
    gpus: int = 8
    cpu: str = "96"
    memory: str = "1Ti"
    nodes_per_rack: int = 8
    racks_per_block: int = 4
    devices: tuple[DeviceShape, ...] = ()
    device_classes: dict[str, str] = {}
    pools: tuple[PoolSpec, ...] = ()
    cloud: CloudSpec = CloudSpec()


class DeviceLoad(_Data, frozen=True):
    """A `share` of the jobs: each member asks for `count` devices of a class by a claim (DRA),
    beside what else it asks for. `expression` says in CEL which devices of the class will do.
    """

    device_class: str = msgspec.field(name="class")
    count: int = 1
    share: float = 1.0
    expression: str = ""


class LoadSpec(_Data, frozen=True):
    """The jobs: of a trace, or drawn from the stated distributions. Durations in seconds.

    `days` cuts a trace, or says how long jobs arrive. `timeScale` below 1 makes them arrive faster.
    With `burstsPerDay`, drawn jobs arrive in bursts of `burstSeconds`, evenly over the day. With
    `checkpointSeconds` jobs save a checkpoint so often, and a further attempt goes on from it.
    """

    trace: str = ""
    format: str = "auto"
    days: float | None = None
    jobs_max: int | None = None
    time_scale: float = 1.0
    jobs_per_day: float = 500.0
    run_seconds_median: float = 600.0
    run_seconds_sigma: float = 1.3
    run_seconds_max: float = 4 * 3600.0
    members_max: int = 64
    bursts_per_day: int = 0
    burst_seconds: float = 600.0
    checkpoint_seconds: float | None = None
    devices: tuple[DeviceLoad, ...] = ()


class TenantTeams(_Data, frozen=True):
    """Each tenant of the trace is a team with a share of `nodes`, by default an equal part of all.

    `borrows`: its jobs may run on idle nodes of other teams, and give them back.
    """

    nodes: int | None = None
    borrows: bool = True


class Scenario(_Data, frozen=True):
    """A whole run. `ideal`: no start delays, no failures, run times exact.

    `node_tests` names the suite that idle nodes run, and those that come back from a repair.
    `profile` is the life of the pods, by name or from a file; its nodes' shape is not taken.
    """

    name: str = ""
    description: str = ""
    cluster: ClusterSpec = ClusterSpec()
    load: LoadSpec = LoadSpec()
    policy: str = "default"
    profile: str = PROFILE_DEFAULT
    teams: TenantTeams | None = None
    faults: str | FaultProfile = "none"
    ideal: bool = False
    seed: int = 0
    node_tests: str = ""


#: The order policies. A job at the head of the queue that does not fit keeps room free: at once
#: (strict order; but for jobs that do not delay it by their time limits, or none of the first 32,
#: or by these and the run times of past jobs), after a while, or never.
POLICIES: dict[str, PlacementPolicy] = {
    "fifo": PlacementPolicy(starvation_seconds=0.0, backfills=False),
    "easy": PlacementPolicy(starvation_seconds=0.0, predictions_seconds_max=0.0),
    "conservative": PlacementPolicy(
        starvation_seconds=0.0, predictions_seconds_max=0.0, backfill_reservations_max=32
    ),
    "predicted": PlacementPolicy(starvation_seconds=0.0),
    "default": PlacementPolicy(),
    "greedy": PlacementPolicy(starvation_seconds=float("inf")),
}


class ScenarioError(ValueError):
    """The scenario cannot be run; `mistakes` has all of them."""

    def __init__(self, source: str, mistakes: list[str]) -> None:
        self.source = source
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(f"{source}: {mistake}" for mistake in mistakes))


def load_scenario(path: Path) -> Scenario:
    """Return the scenario in a YAML file; `ScenarioError` with all mistakes."""
    document = _document(path)
    found: list[str] = []
    scenario = _convert(document, Scenario, found)
    if scenario is None:
        raise ScenarioError(str(path), found)
    trace = scenario.load.trace
    if trace and not Path(trace).is_absolute():
        load = msgspec.structs.replace(scenario.load, trace=str(path.parent / trace))
        scenario = msgspec.structs.replace(scenario, load=load)
    if scenario.profile not in shipped_profiles():
        profile = str(path.parent / scenario.profile)
        scenario = msgspec.structs.replace(scenario, profile=profile)
    check_scenario(scenario, str(path))
    return scenario


def _document(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ScenarioError(str(path), [f"cannot be read: {why}"]) from error
    if len(text) > SCENARIO_BYTES_MAX:
        raise ScenarioError(str(path), [f"larger than {SCENARIO_BYTES_MAX} bytes"])
    try:
        return yaml_document(text) or {}
    except UnreadableText as error:
        raise ScenarioError(str(path), [str(error)]) from error


def _convert(value: Any, type_: type[T], found: list[str]) -> T | None:
    """Return `value` as `type_`, or None with the mistakes in `found`, one per field."""
    if not isinstance(value, dict):
        found.append(f"expected a mapping, got {type(value).__name__}")
        return None
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError:
        for key, item in value.items():
            try:
                msgspec.convert({key: item}, type_)
            except msgspec.ValidationError as error:
                found.append(str(error))
        return None


def check_scenario(scenario: Scenario, source: str) -> None:
    """Raise `ScenarioError` with every value that cannot be simulated."""
    mistakes = list(_mistakes(scenario))
    if mistakes:
        raise ScenarioError(source, mistakes)


def _mistakes(scenario: Scenario) -> Iterator[str]:
    cluster, load = scenario.cluster, scenario.load
    fewest = 0 if cluster.pools else 1
    if not fewest <= cluster.nodes <= 100_000:
        yield f"cluster.nodes: {cluster.nodes}; accepted: {fewest} to 100,000"
    yield from _shape_mistakes(cluster)
    yield from _device_mistakes(cluster, load)
    yield from _pool_mistakes(cluster)
    yield from _load_mistakes(load)
    if scenario.ideal and scenario.profile != PROFILE_DEFAULT:
        yield f"profile: '{scenario.profile}'; accepted: only without ideal, which has no delays"
    if scenario.teams is not None and not load.trace:
        yield "teams: drawn jobs have no tenants; accepted: with load.trace"
    if scenario.teams is not None and (scenario.teams.nodes or 0) < 0:
        yield f"teams.nodes: {scenario.teams.nodes}; accepted: 0 or more"
    if scenario.node_tests and scenario.node_tests not in suites():
        yield f"nodeTests: '{scenario.node_tests}'; accepted: {', '.join(suites())}"
    if scenario.policy not in POLICIES:
        yield f"policy: '{scenario.policy}'; accepted: {', '.join(POLICIES)}"
    if isinstance(scenario.faults, str) and scenario.faults not in fault_profiles():
        yield f"faults: '{scenario.faults}'; accepted: {', '.join(fault_profiles())}, or a mapping"
    elif (profile := faults_of(scenario)).api not in ("none", "rough"):
        yield f"faults.api: '{profile.api}'; accepted: none, rough"
    elif not 1 <= profile.slow_factor <= 1e6:
        yield f"faults.slowFactor: {profile.slow_factor:g}; accepted: 1 to 1,000,000"
    else:
        yield from _negatives("faults", profile)
        if profile.infant_share > 1:
            yield f"faults.infantShare: {profile.infant_share:g}; accepted: 0 to 1"
        if profile.found_after_hits < 1:
            yield f"faults.foundAfterHits: {profile.found_after_hits}; accepted: 1 or more"
        for number, failure in enumerate(profile.node_failures):
            where = f"faults.nodeFailures[{number}]"
            yield from _negatives(where, failure)
            if not 0 <= failure.node < cluster.nodes:
                yield f"{where}.node: {failure.node}; accepted: 0 to {cluster.nodes - 1}"


def _shape_mistakes(cluster: ClusterSpec) -> Iterator[str]:
    if not 0 <= cluster.gpus <= 1024:
        yield f"cluster.gpus: {cluster.gpus}; accepted: 0 to 1,024 per node"
    for resource, text in ((CPU, cluster.cpu), (MEMORY, cluster.memory)):
        try:
            is_amount = to_base(resource, text) >= 0
        except QuantityError:
            is_amount = False
        if not is_amount:
            yield f"cluster.{resource}: '{text}'; accepted: a quantity such as 96 or 1Ti"
    for name, count in (
        ("nodesPerRack", cluster.nodes_per_rack), ("racksPerBlock", cluster.racks_per_block),
    ):  # fmt: skip
        if count < 1:
            yield f"cluster.{name}: {count}; accepted: 1 or more"


def _device_mistakes(cluster: ClusterSpec, load: LoadSpec) -> Iterator[str]:
    for path, why in device_problems(cluster.devices, cluster.device_classes, "cluster."):
        yield f"{path}: {why}"
    classes = sorted({*drivers_of(cluster.devices), *cluster.device_classes})
    for i, each in enumerate(load.devices):
        at = f"load.devices[{i}]"
        if each.device_class not in classes:
            accepted = ", ".join(classes) or "none, as cluster.devices is empty"
            yield f"{at}.class: '{each.device_class}'; accepted: {accepted}"
        if not 1 <= each.count <= DEVICES_PER_CLAIM_MAX:
            yield f"{at}.count: {each.count}; accepted: 1 to {DEVICES_PER_CLAIM_MAX}"
        if not 0 <= each.share <= 1:
            yield f"{at}.share: {each.share:g}; accepted: 0 to 1"
        try:
            _ = device_expression(each.expression) if each.expression else None
        except ExpressionError as error:
            yield f"{at}.expression: '{each.expression[:200]}'; {error}"


def _negatives(where: str, data: _Data) -> Iterator[str]:
    """Yield the numbers with a fraction that are below zero, or not finite."""
    for field in msgspec.structs.fields(data):
        value = getattr(data, field.name)
        if isinstance(value, float) and not 0 <= value < math.inf:
            yield f"{where}.{field.encode_name}: {value:g}; accepted: 0 or more"


def _load_mistakes(load: LoadSpec) -> Iterator[str]:
    yield from _burst_mistakes(load)
    if load.days is not None and not 0 < load.days <= 3650:
        yield f"load.days: {load.days:g}; accepted: more than 0, up to 3,650"
    if not 0 < load.time_scale <= 1000:
        yield f"load.timeScale: {load.time_scale:g}; accepted: more than 0, up to 1,000"
    if load.jobs_max is not None and load.jobs_max < 1:
        yield f"load.jobsMax: {load.jobs_max}; accepted: 1 or more"
    if not 0 < load.jobs_per_day <= 10_000_000:
        yield f"load.jobsPerDay: {load.jobs_per_day:g}; accepted: more than 0, up to 10,000,000"
    for name, seconds in (
        ("runSecondsMedian", load.run_seconds_median), ("runSecondsMax", load.run_seconds_max),
    ):  # fmt: skip
        if not 0 < seconds < math.inf:
            yield f"load.{name}: {seconds:g}; accepted: more than 0"
    if not 0 <= load.run_seconds_sigma <= 10:
        yield f"load.runSecondsSigma: {load.run_seconds_sigma:g}; accepted: 0 to 10"
    if load.members_max < 1:
        yield f"load.membersMax: {load.members_max}; accepted: 1 or more"
    every = load.checkpoint_seconds
    if every is not None and not 1 <= every <= _CHECKPOINT_SECONDS_MAX:
        yield f"load.checkpointSeconds: {every:g}; accepted: 1 to {_CHECKPOINT_SECONDS_MAX:,}"


def _burst_mistakes(load: LoadSpec) -> Iterator[str]:
    if not 0 <= load.bursts_per_day <= 1_440:
        yield f"load.burstsPerDay: {load.bursts_per_day}; accepted: 0 to 1,440"
    elif load.bursts_per_day and not 0 < load.burst_seconds <= DAY_SECONDS / load.bursts_per_day:
        most = DAY_SECONDS / load.bursts_per_day
        yield f"load.burstSeconds: {load.burst_seconds:g}; accepted: more than 0, up to {most:g}"
    if load.bursts_per_day and load.trace:
        yield "load.burstsPerDay: a trace says when its jobs arrive; accepted: for drawn jobs"


def _pool_mistakes(cluster: ClusterSpec) -> Iterator[str]:
    seen: set[str] = set()
    for number, pool in enumerate(cluster.pools):
        where = f"cluster.pools[{number}]"
        if not _NAME.fullmatch(pool.name):
            yield f"{where}.name: '{pool.name}'; accepted: up to 40 of a-z, 0-9 and -"
        if pool.name in seen:
            yield f"{where}.name: '{pool.name}'; another pool has it"
        seen.add(pool.name)
        if not 1 <= pool.max <= 100_000:
            yield f"{where}.max: {pool.max}; accepted: 1 to 100,000"
        for name, value, most in (
            ("min", pool.min, pool.max), ("headroomNodes", pool.headroom_nodes, pool.max),
            ("spareNodes", pool.spare_nodes, pool.max),
            ("idleSeconds", pool.idle_seconds, 2**31 - 1),
        ):  # fmt: skip
            if not 0 <= value <= most:
                yield f"{where}.{name}: {value}; accepted: 0 to {most:,}"
        if not 1 <= pool.nodes_per_launch_max <= 1_000:
            yield f"{where}.nodesPerLaunchMax: {pool.nodes_per_launch_max}; accepted: 1 to 1,000"
        if not 1 <= pool.ready_seconds <= 2**31 - 1:
            yield f"{where}.readySeconds: {pool.ready_seconds}; accepted: 1 or more"
    cloud = cluster.cloud
    for name, share in (("refusedShare", cloud.refused_share), ("lostShare", cloud.lost_share)):
        if not 0 <= share < 1:
            yield f"cluster.cloud.{name}: {share:g}; accepted: 0 to below 1"
    for name, seconds in (
        ("launchSeconds", cloud.launch_seconds),
        ("launchJitterSeconds", cloud.launch_jitter_seconds),
    ):
        if not 0 <= seconds <= DAY_SECONDS:
            yield f"cluster.cloud.{name}: {seconds:g}; accepted: 0 to {DAY_SECONDS:g}"


def fault_profiles() -> tuple[str, ...]:
    """Return the names of the fault profiles that come with the package, sorted."""
    folder = resources.files(_PACKAGE) / "profiles"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".yaml")))


def faults_of(scenario: Scenario) -> FaultProfile:
    """Return the scenario's fault profile: none for an ideal run."""
    if scenario.ideal:
        return FaultProfile(name="none")
    if isinstance(scenario.faults, FaultProfile):
        return scenario.faults
    text = (resources.files(_PACKAGE) / "profiles" / f"{scenario.faults}.yaml").read_text()
    return msgspec.convert(yaml_document(text), FaultProfile)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What the reader of the trace assumed and left out."""

    source: str
    format: str
    jobs: int
    assumptions: tuple[str, ...] = ()
    problems: tuple[TraceProblem, ...] = ()
    problem_count: int = 0
    #: What was done with these jobs where they were recorded.
    recorded: RecordedLoad | None = None
