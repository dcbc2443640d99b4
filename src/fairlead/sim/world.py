"""A simulated cluster: the real store, controllers and virtual nodes, in virtual time, with faults.

    workload -> store <- service <- in-process client <- FaultyClient <- scheduler, jobs controller
                  |                                   <- virtual nodes (fail and recover)
                  +-> checkers and event log, at every committed write

Two phases, as in TigerBeetle's VOPR: first safety, with faults; then faults stop, everything is
mended, and every job must come to its end within a bound (liveness). One seed decides all: the
log's hash covers every write with its instant, so equal hashes mean equal runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import crd
from fairlead.api.core import Lease, Node, Pod
from fairlead.api.job import Job
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import CRDS, JOBS, NODES, PODS, PRIORITY_CLASSES
from fairlead.api.status import ApiError, NotFound
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.jobs import JobsController
from fairlead.controllers.jobs_mirrors import JobsMirrors
from fairlead.controllers.scheduler import SchedulerController
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store, StoreEvent
from fairlead.embedded.verbs.options import DeleteOptions
from fairlead.embedded.verbs.service import Service
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import Profile, load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Client, EventType
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import Recorder
from fairlead.runtime.fencing import fence
from fairlead.runtime.leader import Term
from fairlead.runtime.loop import Controller, ControllerLoop
from fairlead.sim.checkers import Checkers, PromiseBroken, unwrap_broken
from fairlead.sim.faults import ROUGH, FaultRates, FaultSwitch, FaultyClient
from fairlead.sim.kills import CallCounter, LifeObserver, mortal
from fairlead.sim.lasting_watches import LastingWatches
from fairlead.sim.loop import run
from fairlead.sim.observer import Observer
from fairlead.sim.workload import HIGH, Arrival, WorkloadOptions, generate

#: 2026-01-01T00:00:00Z
EPOCH = 1_767_225_600.0
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What is simulated. Durations in seconds, rates per simulated day."""

    nodes: int = 200
    workload: WorkloadOptions = field(default_factory=lambda: WorkloadOptions(500, _DAY))
    profile: Profile = field(default_factory=lambda: load_profile("default"))
    faults: FaultRates = ROUGH
    calls_between_kills_mean: float = 400.0
    down_seconds_max: float = 20.0
    node_failures_per_day: float = 20.0
    node_repair_seconds: float = 3600.0
    drains_per_day: float = 50.0  # a random node is cordoned and its pods are evicted
    cordon_seconds: float = 1800.0
    node_repair_sigma: float = 0.0  # of a log-normal repair time with that median; 0: constant
    node_detect_seconds_max: float = 40.0
    lemon_share: float = 0.0  # of the nodes, which fail `lemon_factor` times as often
    lemon_factor: float = 1.0
    user_acts_per_day: float = 100.0  # holds, releases and cancels of random jobs
    settle_seconds_max: float = 12 * 3600.0
    look_seconds: float = 60.0  # how often promises are checked by the clock
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    #: False: watches last and send no bookmarks, so that idle time costs nothing.
    renews_watches: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation came to."""

    seed: int
    log_hash: str
    writes: int
    jobs: int
    succeeded: int
    failed: int
    kills: int
    faults: int
    late: int
    node_failures: int
    evictions: int
    user_acts: int
    seconds: float


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
        self._arrivals = arrivals
        self._observers = tuple(observers)
        self._on_writes = on_writes
        self._over = asyncio.Event()
        self.checkers = Checkers()
        self.writes = 0
        self.node_failures = 0
        self.user_acts = 0
        self._written = asyncio.Event()  # some job was written
        self._last_written: ObjectKey = ("", "")
        self._terms = 0
        self._digest = hashlib.sha256()
        self._store = Store.open(None)
        ids = self._rng("uid")
        self._service = Service(
            self._store,
            Registry.with_builtins(),
            self.clock,
            ids=lambda: f"{ids.getrandbits(128):032x}",
            rng=self._rng("names"),
        )
        client = InProcessClient if options.renews_watches else LastingWatches
        self._client = client(self._service)
        self._switch = FaultSwitch(options.faults)
        self._counters: list[CallCounter] = []
        self._virtual = VirtualNodes(
            self._client,
            NodeFleet(options.nodes, options.profile.node),
            options.profile,
            clock=self.clock,
            rng=self._rng("nodes"),
        )

    def _rng(self, name: str) -> random.Random:
        """Return a stream of its own: what one part draws does not shift another's."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 # a simulation, no secret

    # The log and the checkers

    def _observe(self, events: Sequence[StoreEvent]) -> None:
        now = self._now = self.clock.now()
        for event in events:
            self.writes += 1
            record = event.record
            line = f"{now:.6f} {event.type.value} {event.info.name} {record.key} {event.version} "
            self._digest.update(line.encode())
            self._digest.update(record.data)
            deleted = event.type is EventType.DELETED
            new = None if deleted else record
            previous = event.previous
            if event.info.name == JOBS.name:
                self._last_written = record.key
                self._written.set()
                self.checkers.job(_typed(new, Job), _typed(previous, Job), now)
                for observer in self._observers:
                    observer.job(_typed(new, Job), record.key, now)
            elif event.info.name == PODS.name:
                self.checkers.pod(_typed(new, Pod), _typed(previous, Pod), now)
                for observer in self._observers:
                    observer.pod(_typed(new, Pod), record.key, now)
            elif event.info.name == NODES.name:
                self.checkers.node(_typed(new, Node), _typed(previous, Node), now)
                for observer in self._observers:
                    observer.node(_typed(new, Node), record.key[1], now)
            for observer in self._observers:
                observer.wrote(event.info.name)
        self._on_writes()

    def stop(self) -> None:
        """End the run early, without judging jobs that have not ended. Safe in a signal handler."""
        self.is_stopped = True
        self._over.set()

    # The parts

    async def run(self) -> Outcome:
        """Run both phases; PromiseBroken at the write that breaks one."""
        await self._service.bootstrap()
        for manifest in crd.manifests():
            await self._client.create(CRDS, manifest)
        await self._client.create(PRIORITY_CLASSES, HIGH)
        self._store.subscribe(self._observe)
        await self._virtual.start()
        arrivals = self._arrivals
        if arrivals is None:
            arrivals = generate(self.options.workload, self._rng("workload"))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._service.run(), name="service"),
                group.create_task(self._virtual.run(), name="virtual"),
                group.create_task(self._mortal("scheduler", self._scheduler)),
                group.create_task(self._mortal("jobs", self._jobs)),
                group.create_task(self._look()),
                group.create_task(self._switch.late.run(), name="late"),
            ]
            tasks.append(group.create_task(self._story(arrivals), name="story"))
            await self._over.wait()
            for task in tasks:
                task.cancel()
        return self._outcome()

    async def _story(self, arrivals: Sequence[Arrival]) -> None:
        """Both phases: jobs arrive while things break; then all is mended, and every job ends."""
        end = self.options.workload.seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._break_nodes(end))
            group.create_task(self._drain_nodes(end))
            group.create_task(self._act_as_users(end))
            await self._submit(arrivals)
        await self._settle()
        self._over.set()

    def _elapsed(self) -> float:
        return self.clock.now() - EPOCH

    async def _mortal(self, name: str, make: Callable[[Client, Recorder], Controller[Any]]) -> None:
        rng = self._rng(f"kills/{name}")
        observer = LifeObserver(name, self.clock, self.checkers)
        counter = CallCounter(rng, self.options.calls_between_kills_mean, on_kill=observer.killed)
        self._counters.append(counter)
        faults, loops = self._rng(f"faults/{name}"), self._rng(f"loop/{name}")

        async def live() -> None:
            client = FaultyClient(self._client, self._switch, faults, step=counter.tick)
            recorder = Recorder(client, self.clock, name, rng=loops)
            controller = make(client, recorder)
            if isinstance(controller, SchedulerController):
                await self._fence(client, controller, faults)
            async with asyncio.TaskGroup() as group:
                group.create_task(recorder.run())
                loop = ControllerLoop(controller, clock=self.clock, rng=loops, observer=observer)
                group.create_task(loop.run())

        down = self.options.down_seconds_max
        await mortal(live, counter, down_seconds=lambda: rng.random() * down)

    async def _fence(
        self, client: Client, scheduler: SchedulerController, rng: random.Random
    ) -> None:
        """Outdate what the scheduler before may have under way, as the start of a term does."""
        self._terms += 1
        lease = Lease(metadata=ObjectMeta(resource_version=str(self._terms)))
        while True:
            try:
                await fence(client, scheduler.jobs, Term(lease, math.inf), rng=rng)
            except* ApiError:
                await asyncio.sleep(1.0)
            else:
                return

    def _scheduler(self, client: Client, events: Recorder) -> Controller[Any]:
        rng = self._rng("mirrors/scheduler")
        world = ClusterWorld.make(client, clock=self.clock, rng=rng)
        return SchedulerController(client, world, policy=self.options.policy, events=events)

    def _jobs(self, client: Client, events: Recorder) -> Controller[Any]:
        late = self.options.faults.stall_seconds_max + self.options.faults.late_seconds_max
        policy = JobsPolicy(checkpoint_root="/checkpoints", late_pod_seconds=late)
        rng = self._rng("mirrors/jobs")
        return JobsController(
            client,
            ClusterWorld.make(client, clock=self.clock, rng=rng),
            JobsMirrors.make(client, policy, clock=self.clock, rng=rng),
            history=MemoryHistory(),
            events=events,
            policy=policy,
            clock=self.clock,
        )

    async def _submit(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            await asyncio.sleep(max(0.0, arrival.at - self._elapsed()))
            await self._client.create(JOBS, arrival.body, namespace="default")

    async def _act_as_users(self, until: float) -> None:
        """Hold, release or cancel random jobs; in the end release what is held."""
        rng, rate = self._rng("users"), self.options.user_acts_per_day / _DAY
        held: dict[ObjectKey, None] = {}
        while rate > 0 and (wait := rng.expovariate(rate)) < until - self._elapsed():
            await asyncio.sleep(wait)
            key = await self._choose(rng)
            if key is None:
                continue
            if rng.random() < 0.1:
                await self._set_spec(key, {"cancel": True})
            elif key in held:
                del held[key]
                await self._set_spec(key, {"suspend": False})
            else:
                held[key] = None
                await self._set_spec(key, {"suspend": True})
        await asyncio.sleep(max(0.0, until - self._elapsed()))
        for key in held:
            await self._set_spec(key, {"suspend": False})

    async def _choose(self, rng: random.Random) -> ObjectKey | None:
        """Choose a job to act on: any, or one that has just been written, the worst moment."""
        if rng.random() < 0.5:
            keys = list(self.checkers.unfinished())
            return rng.choice(keys) if keys else None
        self._written.clear()
        try:
            async with asyncio.timeout(self.options.look_seconds):
                await self._written.wait()
        except TimeoutError:
            return None
        await asyncio.sleep(rng.random() * 0.2)
        key = self._last_written
        return None if key in self.checkers.finished else key

    async def _set_spec(self, key: ObjectKey, spec: dict[str, bool]) -> None:
        self.user_acts += 1
        await self._client.patch(JOBS, key[1], {"spec": spec}, namespace=key[0])

    async def _break_nodes(self, until: float) -> None:
        """Fail random nodes at exponential intervals; each comes back after its repair.

        One task does both, and mends in the order of breaking: the order in which a task group
        cancels its tasks is that of their addresses.
        """
        rng, names = self._rng("breaks"), self._virtual.node_names()
        lemons = names[: round(len(names) * self.options.lemon_share)]
        rate = self.options.node_failures_per_day / _DAY
        next_at = self._elapsed() + rng.expovariate(rate) if rate > 0 else until
        broken: dict[str, float] = {}  # name -> when it is repaired, in the order of breaking
        while (now := min([next_at, *broken.values()])) < until:
            await asyncio.sleep(max(0.0, now - self._elapsed()))
            for name in [name for name, at in broken.items() if at <= now]:
                del broken[name]
                self._virtual.recover_node(name)
            if next_at <= now:
                next_at = now + rng.expovariate(rate)
                name = self._breaking(names, lemons, rng)
                if name not in broken:
                    self.node_failures += 1
                    broken[name] = now + self._repair_seconds(rng)
                    detect = rng.random() * self.options.node_detect_seconds_max
                    self._virtual.fail_node(name, detect_seconds=detect)
        await asyncio.sleep(max(0.0, until - self._elapsed()))
        for name in broken:
            self._virtual.recover_node(name)

    async def _drain_nodes(self, until: float) -> None:
        """Drain random nodes at exponential intervals; each is open again after a while."""
        rng, names = self._rng("drains"), self._virtual.node_names()
        rate = self.options.drains_per_day / _DAY
        next_at = self._elapsed() + rng.expovariate(rate) if rate > 0 else until
        cordoned: dict[str, float] = {}  # name -> until when, in the order of draining
        while (now := min([next_at, *cordoned.values()])) < until:
            await asyncio.sleep(max(0.0, now - self._elapsed()))
            for name in [name for name, at in cordoned.items() if at <= now]:
                del cordoned[name]
                await self._cordon(name, value=False)
            if next_at <= now:
                next_at = now + rng.expovariate(rate)
                name = rng.choice(names)
                if name not in cordoned:
                    cordoned[name] = now + self.options.cordon_seconds
                    await self._drain(name, rng)
        await asyncio.sleep(max(0.0, until - self._elapsed()))
        for name in cordoned:
            await self._cordon(name, value=False)

    async def _cordon(self, name: str, *, value: bool) -> None:
        await self._client.patch(NODES, name, {"spec": {"unschedulable": value or None}})

    async def _drain(self, name: str, rng: random.Random) -> None:
        """Cordon a node and evict what is there, one after the other, as `kubectl drain` does."""
        await self._cordon(name, value=True)
        found = await self._client.list(PODS, field_selector=f"spec.nodeName={name}")
        for pod in found.items:
            await asyncio.sleep(rng.random() * 0.5)
            with suppress(NotFound):
                await self._service.evict(pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))

    def _breaking(self, names: Sequence[str], lemons: Sequence[str], rng: random.Random) -> str:
        """Draw the node that breaks; lemons have a larger share of the draws."""
        weight = len(lemons) * self.options.lemon_factor
        if lemons and rng.random() < weight / (weight + len(names) - len(lemons)):
            return rng.choice(lemons)
        return rng.choice(names)

    def _repair_seconds(self, rng: random.Random) -> float:
        sigma = self.options.node_repair_sigma
        return self.options.node_repair_seconds * (rng.lognormvariate(0.0, sigma) if sigma else 1)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self.options.look_seconds)
            self.checkers.check_partial(self.clock.now())

    async def _settle(self) -> None:
        """Faults stop: from now on every job must come to its end within the bound."""
        self._switch.stop()
        for counter in self._counters:
            counter.stop()
        deadline = self._elapsed() + self.options.settle_seconds_max
        while self.checkers.unfinished_count:
            if self._elapsed() > deadline:
                left = list(self.checkers.unfinished())
                raise PromiseBroken(f"3: {len(left)} jobs never end, the first is {left[0]}")
            await asyncio.sleep(self.options.look_seconds)

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
        """How many times a controller was killed."""
        return sum(counter.kills for counter in self._counters)

    @property
    def faults_injected(self) -> int:
        """How many calls of controllers failed."""
        return self._switch.injected

    def _outcome(self) -> Outcome:
        states = [job.status.state for job in self.checkers.finished.values()]
        return Outcome(
            seed=self.seed,
            log_hash=self.log_hash,
            writes=self.writes,
            jobs=len(self.checkers.accepted),
            succeeded=states.count("Succeeded"),
            failed=len(states) - states.count("Succeeded"),
            kills=self.kills,
            faults=self.faults_injected,
            late=self._switch.late.arrived,
            node_failures=self.node_failures,
            evictions=self.checkers.evictions,
            user_acts=self.user_acts,
            seconds=self._elapsed(),
        )


def _typed(record: Any, type_: type[Any]) -> Any:
    return None if record is None else record.typed(type_)


def simulate(options: WorldOptions, seed: int) -> Outcome:
    """Run a world to its end; equal arguments give equal hashes. PromiseBroken says the replay."""

    async def main() -> Outcome:
        return await World(options, seed).run()

    try:
        return run(main())
    except BaseExceptionGroup as group:
        broken = unwrap_broken(group)
        raise PromiseBroken(f"{broken}\n  replay: {replay_command(options, seed)}") from group


def replay_command(options: WorldOptions, seed: int) -> str:
    """Return the command that runs the same world again."""
    workload = options.workload
    return (
        f"python -m fairlead.sim --seed {seed} --nodes {options.nodes} --jobs {workload.jobs} "
        f"--seconds {workload.seconds:g} --members-max {workload.members_max} "
        f"--calls-between-kills {options.calls_between_kills_mean:g} "
        f"--node-failures-per-day {options.node_failures_per_day:g} "
        f"--drains-per-day {options.drains_per_day:g} "
        f"--user-acts-per-day {options.user_acts_per_day:g} "
        f"--stall {options.faults.stall:g}"
    )
