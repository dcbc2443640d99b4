"""The replicas of the operator in a simulated world: they contend, crash, die and start again.

Each is what a process of the operator consists of (`app/replica.py`): elector, fencing, shared
mirrors, and controllers under a supervisor. Three things end one, at points drawn from the seed:

* a crash: a controller raises, after a decision or an action, and its supervisor restarts it;
* a kill: from one API call on, before or after it is applied, nothing of the process reaches the
  API; after a while a process with another identity starts;
* a stop in order, as a rolling update does: the leader releases the lease.

Two rules are checked here, independently of the elector: at most one replica leads at any instant,
and a replica that does not lead writes nothing but the lease.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from fairlead.api.resources import LEASES
from fairlead.api.status import ApiError, Unavailable
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext, Streams
from fairlead.app.replica import Replica, ReplicaSettings
from fairlead.cloud.simulated import SimulatedCloud
from fairlead.controllers.nodes.unreachable_nodes import Connect
from fairlead.controllers.records.idle import Measured
from fairlead.decide.health.unreachable_nodes import Contact
from fairlead.decide.leader_election import LeaseTimes
from fairlead.runtime.client import Client, ClientWrapper, Request, RequestVerb
from fairlead.runtime.clock import Clock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.kept.history import History
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.runtime.logs import SilentLogger
from fairlead.runtime.loop import ActionResult
from fairlead.runtime.supervisor import Supervisor
from fairlead.sim.actors.machines import provider_of_process
from fairlead.sim.actors.receivers import Receivers
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.working_time import WorkingTime
from fairlead.sim.setup.faults import FaultSwitch, FaultyClient
from fairlead.sim.setup.world_options import DAY_SECONDS

A = TypeVar("A")
#: What changes nothing. The checker says so by itself: the fence asks the request.
_READS = (RequestVerb.GET, RequestVerb.LIST, RequestVerb.READ)
#: Of the ends of processes, the share that is in order.
_STOPPED_SHARE = 0.2
#: Calls about the lease come all the time: few of them count, so that processes end amid work.
_LEASE_SHARE = 0.05
# Taken before a run: inside one, Fairlead's own code must not read the wall clock.
_stopwatch = time.perf_counter


async def no_contact(_address: str, _port: int, _seconds: float) -> Contact:
    """Say that nothing is known of any machine."""
    return Contact.UNKNOWN


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """How many replicas there are and how often they end. Means of 0: never."""

    policies: Policies
    lease_seconds: float = 15.0
    calls_between_kills_mean: float = 0.0
    steps_between_crashes_mean: float = 0.0  # a step is a decision or an action of a controller
    down_seconds_max: float = 20.0
    count: int = 2
    clock_jumps_per_day: float = 0.0  # of any replica's clock, to within so many seconds
    clock_jump_seconds_max: float = 300.0


@dataclass(slots=True)
class DecisionTimes:
    """Decisions of one controller in all its lives; real seconds, which differ from run to run."""

    count: int = 0
    seconds: float = 0.0
    seconds_max: float = 0.0

    def note(self, seconds: float) -> None:
        """Take in one decision."""
        self.count += 1
        self.seconds += seconds
        self.seconds_max = max(self.seconds_max, seconds)


class JumpingClock:
    """The wall clock of one replica's machine, which may be wrong; timers are not affected."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.offset_seconds = 0.0

    def now(self) -> float:
        """Return what this machine takes for the present instant."""
        return self._clock.now() + self.offset_seconds


class PlantedCrash(Exception):
    """A crash that the simulation wants."""


class Countdown:
    """Counts steps down to an event; the distances are exponential. Off once stopped."""

    def __init__(self, rng: random.Random, steps_mean: float) -> None:
        self._rng = rng
        self._steps_mean = steps_mean
        self._left = -1
        self.restart()

    def restart(self) -> None:
        """Draw the distance to the next event."""
        mean = self._steps_mean
        self._left = 1 + int(self._rng.expovariate(1 / mean)) if mean else -1

    def stop(self) -> None:
        """Let no more events come."""
        self._steps_mean, self._left = 0.0, -1

    def tick(self) -> bool:
        """Note one step; True when the event is due."""
        self._left -= 1
        return self._left == 0


class _WatchedMetrics(Metrics):
    """Metrics of a process: the checkers learn when a controller works, and it crashes here."""

    def __init__(
        self,
        countdown: Countdown,
        met: Counter[str],
        works: Callable[[str], None],
        times: defaultdict[str, DecisionTimes],
    ) -> None:
        # What a decision costs is no part of the simulated world: real time.
        super().__init__(CollectorRegistry(), version="simulated", stopwatch=_stopwatch)
        self._times = times
        self._countdown = countdown
        self._met = met
        self._works = works

    def decided(self, controller: str, seconds: float) -> None:
        """See `LoopObserver`; may raise PlantedCrash."""
        self._times[controller].note(seconds)
        self._works(controller)
        self._step(controller, "a decision")

    def acted(self, controller: str, action: str, result: ActionResult) -> None:
        """See `LoopObserver`; may raise PlantedCrash."""
        self._step(controller, action)

    def _step(self, controller: str, what: str) -> None:
        if self._countdown.tick():
            self._countdown.restart()
            self._met[f"crashed {controller} after {what}"] += 1
            raise PlantedCrash(f"{controller} after {what}")


class _WatchedLog(SilentLogger):
    """The log of a process: reports errors of our own code, and the ends of controllers."""

    def __init__(
        self, report: Callable[[BaseException], None], ended: Callable[[str], None]
    ) -> None:
        self._report = report
        self._ended = ended

    def error(self, event: str, **facts: Any) -> None:
        """Report the exception, or the event where a service does not stop."""
        error, service = facts.get("exc_info"), str(facts.get("service", ""))
        if event in ("Service crashed", "Lost the lease"):
            self._ended("" if service == "leader" else service)
        # A term does not start while the API refuses what must come first.
        expected = (PlantedCrash, ApiError) if service == "leader" else PlantedCrash
        if isinstance(error, BaseException) and not _consists_of(error, expected):
            self._report(error)
        elif event == "Service did not stop in time":
            self._report(AssertionError(f"{event}: {service}"))


def _consists_of(error: BaseException, types: Any) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_consists_of(each, types) for each in error.exceptions)
    return isinstance(error, types)


class _Process:
    """One life of a replica, from its start to its end."""

    def __init__(self, countdown: Countdown, rng: random.Random, met: Counter[str]) -> None:
        self.is_dead = False
        self.had_led = False  # when it ended
        self.is_leading: Callable[[], bool] = lambda: False
        self.stop: Callable[[], None] = lambda: None
        self.kill: Callable[[], object] = lambda: None
        self._countdown = countdown
        self._rng = rng
        self._met = met

    def step(self, what: str) -> None:
        """Note one step of an API call; Unavailable for all that come after the kill."""
        counts = "leases" not in what or self._rng.random() < _LEASE_SHARE
        if counts and not self.is_dead and self._countdown.tick():
            self._countdown.restart()
            self.had_led = self.is_leading()
            if self._rng.random() < _STOPPED_SHARE:
                self._met[f"stopped {what}"] += 1
                self.stop()
            else:
                self._met[f"killed {what}"] += 1
                self.is_dead = True
                self.kill()
        if self.is_dead:
            raise Unavailable("injected: the process is dead")


class _WatchedClient(ClientWrapper):
    """The client of one process; counts calls, and reports what is written without leading."""

    def __init__(
        self,
        inner: Client,
        process: _Process,
        report: Callable[[BaseException], None],
        requests: Counter[tuple[str, str]],
    ) -> None:
        super().__init__(inner)
        self._requests = requests
        self._process = process
        self._report = report

    async def call(self, request: Request[A]) -> A:
        """Pass the request on. Tasks have the names of the services that they belong to."""
        task = asyncio.current_task()
        service = task.get_name() if task is not None else ""
        what = f"{request.verb} {request.resource.plural}"
        part = request.subresource
        self._requests[service, f"{what}/{part}" if part else what] += 1
        is_lease = request.resource.name == LEASES.name
        is_write = request.verb not in _READS
        if is_write and not is_lease and not self._process.is_leading():
            broken = PromiseBroken(f"8: a replica that does not lead sends {what}")
            self._report(broken)
            raise broken
        return await self.inner.call(request)


class Replicas:
    """All replicas of a world. `run(i)` is the task of one of them."""

    def __init__(
        self,
        options: ReplicaOptions,
        client: Client,
        switch: FaultSwitch,
        history: History,
        *,
        clock: Clock,
        streams: Streams,
        working: WorkingTime,
        report: Callable[[BaseException], None],
        cloud: SimulatedCloud | None = None,
        connect: Connect = no_contact,
        measured: Measured | None = None,
    ) -> None:
        """`report` is called with faults of our own code, and with promises that are broken."""
        self._cloud = cloud
        self._connect, self._measured = connect, measured
        #: Whom all replicas send notices to.
        self.receivers = Receivers(streams("receivers"), switch)
        self.met: Counter[str] = Counter()
        #: Calls by (service, verb and kind), and decisions by controller, of all replicas.
        self.requests: Counter[tuple[str, str]] = Counter()
        self.decision_times: defaultdict[str, DecisionTimes] = defaultdict(DecisionTimes)
        self._options = options
        self._client = client
        self._switch = switch
        self._history = history
        self._clock = clock
        self._streams = streams
        self._working = working
        self._report = report
        self._crashes = Countdown(streams("crashes"), options.steps_between_crashes_mean)
        self._kills = Countdown(streams("kills"), options.calls_between_kills_mean)
        self._latest: dict[int, _Process] = {}
        #: The only replica that is started again; None: all are.
        self._kept: int | None = None
        self._clocks: defaultdict[int, JumpingClock] = defaultdict(lambda: JumpingClock(clock))

    @property
    def kills(self) -> int:
        """How many processes ended, in order or not."""
        return sum(n for what, n in self.met.items() if what.startswith(("killed", "stopped")))

    @property
    def crashes(self) -> int:
        """How many times a controller crashed."""
        return sum(n for what, n in self.met.items() if what.startswith("crashed"))

    def stop_faults(self) -> None:
        """Let replicas live from now on."""
        self._crashes.stop()
        self._kills.stop()

    def stop_candidates(self) -> None:
        """Stop the replicas that wait for the lease, for good, once one leads. Call it again.

        Where faults have stopped they would look at the lease every second and never get it, for
        as long as the world lasts: two thirds of all calls of a world that waits.
        """
        leader = self.leader
        if self._kept is not None or leader is None:
            return
        self._kept = leader
        for number, process in self._latest.items():
            if number != leader:
                process.stop()

    async def jump_clocks(self, until: float) -> None:
        """Set the clocks of random replicas forward and back; all are right at the end."""
        rng, rate = self._streams("clocks"), self._options.clock_jumps_per_day / DAY_SECONDS
        loop, most = asyncio.get_running_loop(), self._options.clock_jump_seconds_max
        while rate > 0 and (wait := rng.expovariate(rate)) < until - loop.time():
            await asyncio.sleep(wait)
            self.met["jumped clock"] += 1
            self._clocks[rng.randrange(self._options.count)].offset_seconds = rng.uniform(
                -most, most
            )
        await asyncio.sleep(max(0.0, until - loop.time()))
        for clock in self._clocks.values():
            clock.offset_seconds = 0.0

    def check_leaders(self) -> None:
        """At most one replica leads. PromiseBroken."""
        if len(self._latest) < 2:
            return
        leaders = self._leaders()
        if len(leaders) > 1:
            raise PromiseBroken(f"8: replicas {sorted(leaders)} lead at the same time")

    @property
    def leader(self) -> int | None:
        """The replica that leads; None: none does."""
        return next(iter(self._leaders()), None)

    def _leaders(self) -> list[int]:
        return [number for number, process in self._latest.items() if process.is_leading()]

    async def run(self, number: int) -> None:
        """Start a process again and again, until cancelled or another is the one that is kept."""
        rng = self._streams(f"replica-{number}")
        life = 0
        while self._kept in (None, number):
            life += 1
            await self._live(number, f"replica-{number}-{life}")
            await asyncio.sleep(rng.random() * self._options.down_seconds_max)

    async def _live(self, number: int, identity: str) -> None:
        options = self._options
        drawn: defaultdict[str, int] = defaultdict(int)

        def streams(name: str) -> random.Random:
            drawn[name] += 1
            return self._streams(f"{identity}/{name}/{drawn[name]}")

        process = _Process(self._kills, streams("end"), self.met)
        faulty = FaultyClient(self._client, self._switch, streams("faults"), step=process.step)
        clock = self._clocks[number]
        context = ProcessContext(
            clock,
            _WatchedMetrics(self._crashes, self.met, self._works, self.decision_times),
            _WatchedLog(self._report, self._ended),
            streams,
        )
        leader = LeaderOptions(times=LeaseTimes.of(options.lease_seconds))
        replica = Replica(
            ReplicaSettings(identity, leader, options.policies),
            _WatchedClient(faulty, process, self._report, self.requests),
            self._history,
            context=context,
            providers=provider_of_process(self._cloud, process.step),
            connect=self._connect,
            notices=self.receivers,
            measured=self._measured,
        )
        supervisor = Supervisor(
            replica.services(), clock=clock, rng=streams("supervisor"), log=context.log
        )
        process.is_leading = partial(_is_leading, replica)
        process.stop = supervisor.stop
        self._latest[number] = process
        async with asyncio.TaskGroup() as group:
            task = group.create_task(supervisor.run())
            process.kill = partial(task.cancel, "killed by the simulation")
        if self._latest[number].had_led:
            self._ended("")

    def _works(self, controller: str) -> None:
        self._working.works(controller, self._clock.now())

    def _ended(self, controller: str) -> None:
        self._working.ended(controller, self._clock.now())


def _is_leading(replica: Replica) -> bool:
    return replica.elector.is_leading
