"""A simulated cluster: the real store, replicas of the operator and virtual nodes, in virtual time.

    workload -> store <- service <- in-process client <- FaultyClient <- replicas of the operator
                  |                                   <- virtual nodes (fail and recover)
                  |                                   <- stock scheduler, another tool's operator
                  +-> checkers and event log, at every committed write

Two phases, as in TigerBeetle's VOPR: first safety, with faults; then faults stop, everything is
mended, and every job must come to its end within a bound (liveness). One seed decides all: the
log's hash covers every write with its instant, so equal hashes mean equal runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence

from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.resources import (
    CRDS,
    FLEETS,
    JOB_ARRAYS,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    TEAMS,
)  # fmt: skip
from fairlead.api.schema import crd
from fairlead.cloud.simulated import SimulatedCloud
from fairlead.decide.reasons import Outcome
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Store, StoreEvent
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.history.memory import MemoryHistory
from fairlead.model.health.machines import Instance
from fairlead.runtime.client import EventType
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.sim.actors.agents import Agents
from fairlead.sim.actors.deletions import Deletions
from fairlead.sim.actors.disturbances import Disturbances
from fairlead.sim.actors.health_checker import HealthChecker
from fairlead.sim.actors.kubelets import Kubelets
from fairlead.sim.actors.machines import FleetChecker, MachineUse, pool_body, stop_failing
from fairlead.sim.actors.quiet_client import QuietClient
from fairlead.sim.actors.replica_options import measured_by, replica_options
from fairlead.sim.actors.replicas import Replicas
from fairlead.sim.actors.silent_faults import SilentFaults
from fairlead.sim.actors.stock_scheduler import StockScheduler
from fairlead.sim.actors.training_operator import OWNER_DEFINITION, GateChecker, TrainingOperator
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import PromiseBroken, unwrap_broken
from fairlead.sim.observers.observer import Observer, ObserverCalls, holding, typed
from fairlead.sim.observers.working_time import WorkingTime
from fairlead.sim.outcome import SimulationOutcome
from fairlead.sim.promises.array_checker import ArrayChecker
from fairlead.sim.promises.budget_checker import BudgetChecker
from fairlead.sim.promises.checkers import Checkers
from fairlead.sim.promises.jobs_checker import JobsChecker
from fairlead.sim.promises.node_test_checker import NodeTestChecker
from fairlead.sim.promises.own_nodes_checker import OwnNodesChecker
from fairlead.sim.promises.placement_checkers import (
    MaintenanceChecker,
    NeighbourChecker,
    TopologyChecker,
)
from fairlead.sim.promises.preemption_checker import PreemptionChecker
from fairlead.sim.promises.strict_order_checker import StrictOrderChecker
from fairlead.sim.promises.team_checker import TeamChecker
from fairlead.sim.settling import settle_seconds
from fairlead.sim.setup.claimed import CLAIMED_KINDS, claim_keepers
from fairlead.sim.setup.devices import DeviceChecker
from fairlead.sim.setup.faults import PERFECT, FaultSwitch
from fairlead.sim.setup.fitting import out_of_reach, unfit_jobs
from fairlead.sim.setup.replay_command import replay_command
from fairlead.sim.setup.volumes import VolumeChecker
from fairlead.sim.setup.workload import HIGH, Arrival, WorkloadSubmission, generate
from fairlead.sim.setup.world_options import EPOCH, WorldOptions

_PARTIAL_SECONDS = 120.0
#: What refused and conflicting calls may add to a bound of seconds.
_RETRY_SECONDS = 30.0
#: Compared for every write; to compute a resource's name, or to read an Enum's member, costs more.
_JOBS, _PODS, _NODES, _DELETED = JOBS.name, PODS.name, NODES.name, EventType.DELETED
#: Served by every real cluster, and read by the operator's controllers; no quota is set here.
_QUOTAS = ResourceInfo("", "v1", "resourcequotas", "ResourceQuota")


class World:
    """One simulated cluster. Use `simulate`."""

    def __init__(
        self,
        options: WorldOptions,
        seed: int,
        *,
        arrivals: Sequence[Arrival] | None = None,
        observers: Sequence[Observer] = (),
        on_writes: Callable[[], None] = lambda: None,
    ) -> None:
        """Submit `arrivals`, or the jobs of `options.workload` when there are none.

        `observers` see every write; `on_writes` is called after each committed batch.
        """
        self.options = options
        self.seed = seed
        self.clock = LoopClock(EPOCH)
        self.is_stopped = False
        self._now = EPOCH
        drawn = arrivals is None
        self._arrivals = generate(options.workload, self._rng("workload")) if drawn else arrivals
        self._never_fit = unfit_jobs(self._arrivals, options)
        self._observers = list(observers)
        self._calls = ObserverCalls.of(())  # of `_observers`, once the world runs
        self._on_writes = on_writes
        self._over = asyncio.Event()
        late = self._late = options.faults.stall_seconds_max + options.faults.late_seconds_max
        # A gang waits for late pods before it restarts, once more after each crash.
        self._working = WorkingTime(inherited_seconds=late)
        self.checkers = Checkers(partial_seconds_max=_PARTIAL_SECONDS + late, working=self._working)
        self.history = MemoryHistory()
        self.writes = 0
        self._fault: BaseException | None = None
        self._digest = hashlib.sha256()
        self._store = Store.open(None)
        ids, registry = self._rng("uid"), Registry.with_builtins()
        registry.add(_QUOTAS)
        self._service = ApiService(
            self._store, registry, self.clock,
            ids=lambda: f"{ids.getrandbits(128):032x}", rng=self._rng("names"),
        )  # fmt: skip
        self.client = QuietClient(
            self._service, renews_watches=options.renews_watches, keeps_events=options.keeps_events
        )
        self.switch = FaultSwitch(options.faults)
        self.virtual = VirtualNodes(
            self.client, NodeFleet(options.nodes, options.profile.node), options.profile,
            clock=self.clock, rng=self._rng("nodes"),
        )  # fmt: skip
        self._add_machines()
        self._add_parts()

    def _add_machines(self) -> None:
        self.fleet: FleetChecker | None = None
        self.cloud: SimulatedCloud | None = None
        self.machine_use = MachineUse()
        if self.options.pools:
            self.fleet = fleet = FleetChecker(self.options, self.clock.now)
            self.machine_use = fleet.use
            self.cloud = SimulatedCloud(
                self.virtual, self._rng("cloud"), self.options.cloud,
                on_launch=self._reporting(fleet.launched), on_end=self._reporting(fleet.ended),
            )  # fmt: skip
            self._observers.append(fleet)

    def _reporting(self, check: Callable[[Instance], None]) -> Callable[[Instance], None]:
        """Return the check; what it finds ends the run, whatever catches it on the way."""

        def checked(instance: Instance) -> None:
            try:
                check(instance)
            except PromiseBroken as broken:
                self._report(broken)
                raise

        return checked

    def _add_parts(self) -> None:
        """Make what acts on the API: replicas, users and failures, and other tools."""
        options = self.options
        self.disturbances = Disturbances(
            options, self.client, self._service, self.virtual,
            checkers=self.checkers, streams=self._rng,
        )  # fmt: skip
        self.kubelets = Kubelets(options, self.client, self.clock, self.virtual, streams=self._rng)
        self.replicas = Replicas(
            replica_options(options, self._late), self.client, self.switch, self.history,
            clock=self.clock, streams=self._rng, working=self._working, report=self._report,
            cloud=self.cloud, connect=self.kubelets.connect,
            measured=measured_by(options, self.virtual),
        )  # fmt: skip
        #: The values of the PriorityClasses, by name; who creates another one adds it.
        priorities = self.priorities = {HIGH["metadata"]["name"]: HIGH["value"]}
        self.submission = WorkloadSubmission(self.client, self._elapsed)
        self.job_checker = JobsChecker(self._working)
        self.deleting = Deletions(options, self.client, self.submission, self.disturbances,
                                  self.job_checker, self._rng)  # fmt: skip
        self.teams = TeamChecker(priorities, self._working)
        clock_error = options.clock_jump_seconds_max if options.clock_jumps_per_day else 0.0
        self.budgets = BudgetChecker(self.teams.model, self._working, clock_error)
        self.strict = StrictOrderChecker(self.teams.model, priorities, self.checkers.free)
        self.own_nodes = OwnNodesChecker(self.teams.model, self.checkers.free)
        self.preemptions = PreemptionChecker(
            priorities, self.teams.model, clock_error_seconds=clock_error, options=options
        )
        self.scheduler = StockScheduler(self._service, self.client)
        self.tool = TrainingOperator(self.client)
        self.arrays = ArrayChecker()
        self.agents = Agents(options, self.client, self.clock, self._rng("agents"))
        self.health = HealthChecker(self.agents)
        self.silent = SilentFaults(
            options, self.client, self.clock, self.virtual,
            disturbances=self.disturbances, rng=self._rng("silent"),
        )  # fmt: skip
        slack = 0.0 if options.faults == PERFECT else self._late + _RETRY_SECONDS
        self.node_tests = NodeTestChecker(options.health, self._working, slack)
        self.neighbours = NeighbourChecker()
        self.topology = TopologyChecker()
        self.maintenance = MaintenanceChecker(clock_error)
        self.volumes, self.devices = VolumeChecker(), DeviceChecker()
        self._observers += [
            self.disturbances, self.teams, self.budgets, self.preemptions, self.neighbours,
            self.topology, self.strict, self.own_nodes, self.maintenance, self.job_checker,
            self.arrays, self.volumes, self.devices,
            *([self.agents, self.health] if options.health.enabled else []),
            *([self.node_tests] if options.health.tests_idle else []),
            *([self.silent] if options.has_silent_faults else []),
            *([self.kubelets] if options.silence.enabled else []),
        ]  # fmt: skip
        if options.binding is not None:
            self._observers += [self.scheduler, self.tool, GateChecker()]

    def _rng(self, name: str) -> random.Random:
        """Return a stream of its own: what one part draws does not shift another's."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 # a simulation, no secret

    # The log and the checkers

    def _report(self, fault: BaseException) -> None:
        """End the run: our own code has a fault, or a promise is broken. The first is raised."""
        self._fault = self._fault or fault
        self._over.set()

    def _observe(self, events: Sequence[StoreEvent]) -> None:
        try:
            self._check(events)
        except PromiseBroken as broken:  # the write's sender must not be able to swallow it
            self._report(broken)
            raise

    def _check(self, events: Sequence[StoreEvent]) -> None:
        self.replicas.check_leaders()
        now, calls = self.clock.now(), self._calls
        self._now = now
        for event in events:
            self.writes += 1
            record, name = event.record, event.info.name
            namespace, key_name = key = record.key
            kind = "DELETED" if event.type is _DELETED else "PUT"
            line = f"{now:.6f} {kind} {name} {namespace}/{key_name} {event.version} "
            self._digest.update(line.encode() + record.data)
            current = None if event.type is _DELETED else record
            if name == _JOBS:
                job = holding(typed(current, Job))
                self.checkers.job(job, holding(typed(event.previous, Job)), now)
                for saw_job in calls.job:
                    saw_job(job, key, now)
            elif name == _PODS:
                pod = typed(current, Pod)
                self.checkers.pod(pod, typed(event.previous, Pod), now)
                for saw_pod in calls.pod:
                    saw_pod(pod, key, now)
            elif name == _NODES:
                node = typed(current, Node)
                self.checkers.node(node, typed(event.previous, Node), now)
                for saw_node in calls.node:
                    saw_node(node, key_name, now)
            elif name == JOB_ARRAYS.name:
                array = typed(current, JobArray)
                for saw_array in calls.array:
                    saw_array(array, key, now)
            elif name == TEAMS.name:
                team = typed(current, Team)
                self.teams.team(team, key_name, now)
                self.budgets.team(team, key_name, now)
            elif name == FLEETS.name:
                self.health.fleet(typed(current, Fleet), now)
            elif name == NODE_POOLS.name and self.fleet is not None:
                self.fleet.pool(typed(current, NodePool), key_name, now)
            elif name in CLAIMED_KINDS:
                calls.see_claimed(name, current, key, now)
            for wrote in calls.wrote:
                wrote(name)
        self._on_writes()

    def stop(self) -> None:
        """End the run early, without judging jobs that have not ended. Safe in a signal handler."""
        self.is_stopped = True
        self._over.set()

    # The parts

    async def run(self) -> SimulationOutcome:
        """Run both phases; PromiseBroken at the write that breaks one."""
        await self._service.bootstrap()
        for manifest in crd.manifests():
            await self.client.create(CRDS, manifest)
        await self.client.create(PRIORITY_CLASSES, HIGH)
        for namespace in (LeaderOptions().namespace, *self.options.workload.teams):
            await self.client.create(NAMESPACES, {"metadata": {"name": namespace}})
        has_tools = self.options.binding is not None
        if has_tools:
            await self.client.create(CRDS, OWNER_DEFINITION)
        for pool in self.options.pools:
            await self.client.create(NODE_POOLS, pool_body(pool, self.options.profile.node))
        self._calls = ObserverCalls.of(self._observers)
        self._store.subscribe(self._observe)
        await self.virtual.start()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._service.run(), name="service"),
                group.create_task(self.virtual.run(), name="virtual"),
                *[
                    group.create_task(self.replicas.run(number), name=f"replica-{number}")
                    for number in range(self.options.replicas)
                ],
                group.create_task(self._look()),
                group.create_task(self.switch.late.run(), name="late"),
                group.create_task(self.agents.confirm(), name="agents"),
                group.create_task(self.kubelets.run(self.options.workload.seconds)),
            ]
            if self.cloud is not None:
                tasks.append(group.create_task(self.cloud.run(), name="cloud"))
            if has_tools:
                tasks.append(group.create_task(self.scheduler.run(), name="stock-scheduler"))
                tasks.append(group.create_task(self.tool.run(), name="training-operator"))
            keepers = claim_keepers(self.options, self.client, self.clock, self._rng)
            tasks += [group.create_task(keep) for keep in keepers]
            tasks.append(group.create_task(self.deleting.run(self.options.workload.seconds)))
            if self.options.has_silent_faults:
                tasks.append(group.create_task(self.silent.run(self.options.workload.seconds)))
            tasks.append(group.create_task(self._story(self._arrivals), name="story"))
            await self._over.wait()
            for task in tasks:
                task.cancel()
            if self._fault is not None:
                raise self._fault
        return self._outcome()

    async def _story(self, arrivals: Sequence[Arrival]) -> None:
        """Both phases: jobs arrive while things break; then all is mended, and every job ends."""
        end = self.options.workload.seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self.disturbances.run(end))
            group.create_task(self.replicas.jump_clocks(end))
            group.create_task(self.agents.run(end))
            await self.submission.run(arrivals)
        await self._settle()
        self._over.set()

    def _elapsed(self) -> float:
        return self.clock.now() - EPOCH

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self.options.look_seconds)
            now = self.clock.now()
            for checker in (self.preemptions, self.teams, self.job_checker, self.node_tests):
                checker.check_by_clock(now)
            self.checkers.check_partial(now)

    async def _settle(self) -> None:
        """Faults stop: every job must end within the bound, or say that it can never run."""
        self.switch.stop()
        if self.cloud is not None:
            stop_failing(self.cloud)
        self.replicas.stop_faults()
        left = {
            *self.checkers.unfinished(), *self.arrays.unfinished(), *self.deleting.jobs_under_way
        }  # fmt: skip
        deadline = self._elapsed() + settle_seconds(self.options, self._arrivals, left)
        while self.checkers.unfinished_count > len(self._waiting_unfit()) or (
            self._unfinished_arrays() or self.deleting.left or await self._unfinished_groups()
            or await self._silent() or await self._forgotten() or self.health.out_since
        ):  # fmt: skip
            if self._elapsed() > deadline:
                await self._break_liveness()
            self.replicas.stop_candidates()
            await asyncio.sleep(self.options.look_seconds)

    @property
    def unfit(self) -> dict[ObjectKey, str]:
        """Jobs and arrays that can never run, and why: they are to wait, and to say so."""
        return self._never_fit | out_of_reach(self.volumes, self.options)

    async def _break_liveness(self) -> None:
        ends = [key for key in self.checkers.unfinished() if key not in self.unfit]
        left = [*ends, *self._unfinished_arrays(), *await self._unfinished_groups()]
        if left:
            raise PromiseBroken(f"3: {len(left)} jobs never end, the first is {left[0]}")
        if self.health.out_since:
            raise PromiseBroken(f"6: {min(self.health.out_since)} is healthy and never comes back")
        if away := self.deleting.left:
            raise PromiseBroken(f"3: {away[0]} was deleted, and has not gone or not come back")
        if machines := await self._forgotten():
            raise PromiseBroken(f"10: nothing ends {machines[0]}, which never became a node")
        key = (await self._silent())[0]
        raise PromiseBroken(f"3: {key} can never run and does not say so: {self.unfit[key]}")

    async def _forgotten(self) -> list[str]:
        if self.fleet is None:
            return []
        return self.fleet.forgotten(next(iter((await self.client.list(FLEETS)).items), None))

    def _waiting_unfit(self) -> list[ObjectKey]:
        """Return the jobs that can never run and have not been cancelled."""
        accepted, finished = self.checkers.accepted, self.checkers.finished
        return [key for key in self.unfit if key in accepted and key not in finished]

    def _unfinished_arrays(self) -> list[ObjectKey]:
        """Return the arrays that must end: not those of jobs that wait and can never run."""
        unfit, has_open_jobs = self.unfit, self.arrays.has_open_jobs
        return [k for k in self.arrays.unfinished() if k not in unfit or not has_open_jobs(k)]

    async def _silent(self) -> list[ObjectKey]:
        """Return the jobs and arrays that can never run and whose verdict does not say so."""
        get, jobs = self.client.get, self._waiting_unfit()
        arrays = [key for key in self.arrays.unfinished() if key in self.unfit]
        said = {k: (await get(JOBS, k[1], namespace=k[0])).status.verdict for k in jobs}
        said |= {k: (await get(JOB_ARRAYS, k[1], namespace=k[0])).status.verdict for k in arrays}
        outcomes = {key: verdict.outcome if verdict else "" for key, verdict in said.items()}
        return [key for key, outcome in outcomes.items() if outcome != Outcome.IMPOSSIBLE.value]

    async def _unfinished_groups(self) -> list[str]:
        return await self.tool.unfinished() if self.options.groups else []

    @property
    def last_write_at(self) -> float:
        """The last instant at which something was written."""
        return self._now

    @property
    def log_hash(self) -> str:
        """The hash of every write so far and its instant."""
        return self._digest.hexdigest()

    @property
    def kills(self) -> int:
        """How many processes of replicas ended."""
        return self.replicas.kills

    @property
    def faults_met(self) -> Counter[str]:
        """How often each fault met each kind of step."""
        return self.switch.met + self.replicas.met

    @property
    def faults_injected(self) -> int:
        """How many calls of controllers failed."""
        return self.switch.injected

    def _outcome(self) -> SimulationOutcome:
        states = [job.status.state for job in self.checkers.finished.values()]
        return SimulationOutcome(
            seed=self.seed,
            log_hash=self.log_hash,
            writes=self.writes,
            jobs=len(self.checkers.accepted),
            succeeded=states.count("Succeeded"),
            failed=len(states) - states.count("Succeeded"),
            kills=self.kills,
            crashes=self.replicas.crashes,
            faults=self.faults_injected,
            late=self.switch.late.arrived,
            unfit=len(self._waiting_unfit()),
            node_failures=self.disturbances.node_failures,
            evictions=self.checkers.evictions,
            user_acts=self.disturbances.user_acts,
            seconds=self._elapsed(),
            machines=self.machine_use,
        )


def simulate(options: WorldOptions, seed: int) -> SimulationOutcome:
    """Run a world to its end; equal arguments give equal hashes. PromiseBroken says the replay."""

    async def main() -> SimulationOutcome:
        return await World(options, seed).run()

    try:
        return run(main())
    except BaseExceptionGroup as group:
        broken = unwrap_broken(group)
        raise PromiseBroken(f"{broken}\n  replay: {replay_command(options, seed)}") from group
