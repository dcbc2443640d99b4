"""What happens to a simulated world from outside: users act, nodes and GPUs fail, nodes are slow
and are drained, storage stalls, groups of another tool arrive.

Each runs as one task with a random stream of its own, from the start until the instant that it is
given, and leaves nothing behind that would keep a job from its end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.names import MAINTENANCE
from fairlead.api.resources import JOBS, NODES, PODS, TEAMS
from fairlead.api.status import Conflict, NotFound
from fairlead.api.values.times import format_time
from fairlead.app.context import Streams
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.verbs.options import DeleteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.nodes import STALLED, VirtualNodes
from fairlead.runtime.client import Client
from fairlead.sim.actors.training_operator import OWNERS, SPACE, owner_body
from fairlead.sim.observers.observer import Observer
from fairlead.sim.promises.checkers import Checkers
from fairlead.sim.setup.world_options import DAY_SECONDS, EPOCH, WorldOptions

#: The longest run time of a group of another tool, and its most members as it arrives.
GROUP_SECONDS_MAX, GROUP_MEMBERS_MAX = 600.0, 10
#: Shares of the groups that their users enlarge, and delete, while they wait or run.
_ENLARGED_SHARE, _DELETED_SHARE = 0.2, 0.2
#: How long before it begins maintenance is announced at most, and how long it takes, in seconds.
_AHEAD_SECONDS_MAX, _MAINTENANCE_SECONDS = 3600.0, (60.0, 1800.0)

#: What is under way, and until when; and what has begun.
_UnderWay: TypeAlias = Mapping[str, float]
_Begun: TypeAlias = tuple[str, float] | None
_Begin: TypeAlias = Callable[[random.Random, float, _UnderWay], Awaitable[_Begun]]
_End: TypeAlias = Callable[[str], Awaitable[None]]


class Disturbances(Observer):
    """An `Observer` of the world: users act on what has just been written."""

    def __init__(
        self,
        options: WorldOptions,
        client: Client,
        service: ApiService,
        virtual: VirtualNodes,
        *,
        checkers: Checkers,
        streams: Streams,
    ) -> None:
        self.node_failures = self.gpu_faults = self.device_faults = 0
        self.slowdowns = self.stalls = 0
        #: Nodes that are slow, and how many times a program takes longer on them.
        self._slow: dict[str, float] = {}
        self._is_stalled = False
        self.user_acts = 0
        self._options = options
        self._client = client
        self._service = service
        self._virtual = virtual
        self._checkers = checkers
        self._streams = streams
        self._written = asyncio.Event()  # some job was written
        self._last_written: ObjectKey = ("", "")

    @property
    def hardware(self) -> Counter[str]:
        """How often hardware failed, but for whole nodes."""
        return Counter(
            {
                "GPU fault": self.gpu_faults,
                "device fault": self.device_faults,
                "slow node": self.slowdowns,
                "storage stall": self.stalls,
            }
        )

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Note the job that users may act on next; of adopted ones the other tool decides."""
        if new is not None and new.spec.adopts is None:
            self._last_written = key
            self._written.set()

    async def run(self, until: float) -> None:
        """Run all of them, and return when they are over."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._break_nodes(until))
            group.create_task(self._break_together(until))
            group.create_task(self._drain_nodes(until))
            group.create_task(self._maintain_nodes(until))
            group.create_task(self._act_as_users(until))
            group.create_task(self._fail_gpus(until))
            group.create_task(self._fail_devices(until))
            group.create_task(self._slow_nodes(until))
            group.create_task(self._stall_storage(until))
            group.create_task(self._change_teams())
            if self._options.groups:
                group.create_task(self._submit_groups(until))

    @staticmethod
    def _elapsed() -> float:
        return asyncio.get_running_loop().time()

    async def _submit_groups(self, until: float) -> None:
        """Let groups of the other tool arrive; some are enlarged or deleted a while later."""
        rng, nodes = self._streams("groups"), self._options.nodes
        instants = sorted(rng.random() * until for _ in range(self._options.groups))
        for number, at in enumerate(instants):
            await asyncio.sleep(max(0.0, at - self._elapsed()))
            name, workers = (
                f"group-{number}",
                rng.randint(0, max(0, min(nodes, GROUP_MEMBERS_MAX) - 2)),
            )
            body = owner_body(
                name, seconds=rng.uniform(5, GROUP_SECONDS_MAX), Master=1, Worker=workers
            )
            await self._client.create(OWNERS, body, namespace=SPACE)
            await asyncio.sleep(rng.uniform(0, 30))
            drawn = rng.random()
            if drawn < _DELETED_SHARE:
                await self._client.delete(OWNERS, name, namespace=SPACE)
            elif drawn < _DELETED_SHARE + _ENLARGED_SHARE:
                role = {"Worker": {"replicas": workers + 1}}
                patch = {"spec": {"pytorchReplicaSpecs": role}}
                await self._client.patch(OWNERS, name, patch, namespace=SPACE)

    async def _change_teams(self) -> None:
        """Write each change of a team at its instant."""
        present: dict[str, None] = {}
        for change in self._options.team_changes:
            await asyncio.sleep(max(0.0, change.at_seconds - self._elapsed()))
            if change.name in present and (change.spec is None or change.replaced):
                await self._client.delete(TEAMS, change.name)
                del present[change.name]
            if change.spec is None:
                continue
            if change.name in present:
                await self._client.patch(TEAMS, change.name, change.patch)
            else:
                await self._client.create(TEAMS, change.body)
                present[change.name] = None

    async def _act_as_users(self, until: float) -> None:
        """Hold, release or cancel random jobs; in the end release what is held."""
        rng, rate = self._streams("users"), self._options.user_acts_per_day / DAY_SECONDS
        held: dict[ObjectKey, None] = {}
        while rate > 0 and (wait := rng.expovariate(rate)) < until - self._elapsed():
            await asyncio.sleep(wait)
            key = await self.chosen(rng)
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

    async def chosen(self, rng: random.Random) -> ObjectKey | None:
        """Choose a job to act on: any, or one that has just been written, the worst moment."""
        if rng.random() < 0.5:
            keys = [key for key in self._checkers.unfinished() if not self._checkers.adopts(key)]
            return rng.choice(keys) if keys else None
        self._written.clear()
        try:
            async with asyncio.timeout(self._options.look_seconds):
                await self._written.wait()
        except TimeoutError:
            return None
        await asyncio.sleep(rng.random() * 0.2)
        key = self._last_written
        is_over = key in self._checkers.finished or key not in self._checkers.accepted
        return None if is_over else key

    async def _set_spec(self, key: ObjectKey, spec: dict[str, bool]) -> None:
        self.user_acts += 1
        with suppress(NotFound):  # deleted by others, or an element that ended, meanwhile
            await self._client.patch(JOBS, key[1], {"spec": spec}, namespace=key[0])

    async def _recurring(
        self, stream: str, per_day: float, until: float, *, begin: _Begin, end: _End
    ) -> None:
        """Begin something at exponential intervals, and end it when its time is over or all is.

        `begin` is called with the random stream and the time, and returns on what it has acted and
        until when; None where it did not act. One task does both, and ends in the order of
        beginning: the order in which a task group cancels its tasks is that of their addresses.
        """
        rng, rate = self._streams(stream), per_day / DAY_SECONDS
        next_at = self._elapsed() + rng.expovariate(rate) if rate > 0 else until
        under_way: dict[str, float] = {}  # name -> until when, in the order of beginning
        while (now := min([next_at, *under_way.values()])) < until:
            await asyncio.sleep(max(0.0, now - self._elapsed()))
            for name in [name for name, at in under_way.items() if at <= now]:
                del under_way[name]
                await end(name)
            if next_at <= now:
                next_at = now + rng.expovariate(rate)
                begun = await begin(rng, now, under_way)
                if begun is not None:
                    under_way[begun[0]] = begun[1]
        await asyncio.sleep(max(0.0, until - self._elapsed()))
        for name in under_way:
            await end(name)

    async def _break_nodes(self, until: float) -> None:
        """Fail random nodes; each comes back after its repair."""
        options, first = self._options, self._virtual.node_names()
        lemons = first[: round(len(first) * options.lemon_share)]

        async def begin(rng: random.Random, now: float, broken: _UnderWay) -> _Begun:
            names = self._virtual.node_names() if options.pools else first
            name = self._breaking(names, lemons, rng) if names else ""
            if not name or name in broken:
                return None
            self.node_failures += 1
            repair = lognormal(rng, options.node_repair_seconds, options.node_repair_sigma)
            detect = rng.random() * options.node_detect_seconds_max
            self._virtual.fail_node(name, detect_seconds=detect)
            return name, now + repair

        async def end(name: str) -> None:
            self._virtual.recover_node(name)

        await self._recurring("breaks", options.node_failures_per_day, until, begin=begin, end=end)

    async def _fail_gpus(self, until: float) -> None:
        """Fail one GPU of random nodes; the program that uses it ends, the node goes on."""
        options = self._options

        async def begin(rng: random.Random, now: float, broken: _UnderWay) -> _Begun:
            name = self._chosen(rng, broken)
            if not name or not self._virtual.fail_gpu(name, rng.random()):
                return None
            self.gpu_faults += 1
            return name, now + lognormal(rng, options.gpu_repair_seconds, options.node_repair_sigma)

        async def end(name: str) -> None:
            self._virtual.mend_gpu(name)

        await self._recurring("gpus", options.gpu_faults_per_day, until, begin=begin, end=end)

    async def _fail_devices(self, until: float) -> None:
        """Fail one device of random nodes that claims ask for; its slice lacks it until then."""
        options = self._options

        async def begin(rng: random.Random, now: float, broken: _UnderWay) -> _Begun:
            name = self._chosen(rng, broken)
            if not name or not await self._virtual.fail_device(name, rng.random()):
                return None
            self.device_faults += 1
            return name, now + lognormal(rng, options.gpu_repair_seconds, options.node_repair_sigma)

        async def end(name: str) -> None:
            self._virtual.mend_device(name)

        rate = options.device_faults_per_day
        await self._recurring("devices", rate, until, begin=begin, end=end)

    async def _slow_nodes(self, until: float) -> None:
        """Slow random nodes down for a while: they answer, and their programs get on slowly."""
        options = self._options

        async def begin(rng: random.Random, now: float, slow: _UnderWay) -> _Begun:
            name = self._chosen(rng, slow)
            if not name:
                return None
            self.slowdowns += 1
            self.slow(name, options.slow_factor)
            return name, now + lognormal(rng, options.slow_seconds, options.node_repair_sigma)

        async def end(name: str) -> None:
            self.slow(name, 1.0)

        await self._recurring("slow", options.slowdowns_per_day, until, begin=begin, end=end)

    async def _stall_storage(self, until: float) -> None:
        """Let the storage that all programs wait for stall for a while."""
        options = self._options

        async def begin(rng: random.Random, now: float, stalled: _UnderWay) -> _Begun:
            if stalled:
                return None
            self.stalls += 1
            self._is_stalled = True
            for name in self._virtual.node_names():
                self._set_speed(name)
            return "storage", now + lognormal(rng, options.stall_seconds, options.node_repair_sigma)

        async def end(_: str) -> None:
            self._is_stalled = False
            for name in self._virtual.node_names():
                self._set_speed(name)

        await self._recurring("stalls", options.stalls_per_day, until, begin=begin, end=end)

    def _chosen(self, rng: random.Random, under_way: _UnderWay) -> str:
        """Draw a node; "" where there is none, or something is under way on it."""
        names = self._virtual.node_names()
        name = rng.choice(names) if names else ""
        return "" if name in under_way else name

    def slow(self, name: str, factor: float) -> None:
        """Let programs on a node take so many times longer; 1: they do no more."""
        self._slow[name] = factor
        self._set_speed(name)

    def _set_speed(self, name: str) -> None:
        speed = 1.0 / self._slow.get(name, 1.0)
        self._virtual.set_speed(name, STALLED if self._is_stalled else speed)

    async def _break_together(self, until: float) -> None:
        """Fail the nodes of each outage together; they come back together, by `until` at last."""
        rng, names = self._streams("outages"), self._virtual.node_names()
        outages = self._options.outages
        steps = [(one.at_seconds, number, True) for number, one in enumerate(outages)]
        steps += [(one.at_seconds + one.repair_seconds, n, False) for n, one in enumerate(outages)]
        for at, number, fails in sorted(steps):
            if at >= until and fails:
                continue
            await asyncio.sleep(max(0.0, min(at, until) - self._elapsed()))
            for index in outages[number].nodes:
                if fails:
                    self.node_failures += 1
                    detect = rng.random() * self._options.node_detect_seconds_max
                    self._virtual.fail_node(names[index], detect_seconds=detect)
                elif outages[number].at_seconds < until:
                    self._virtual.recover_node(names[index])

    async def _drain_nodes(self, until: float) -> None:
        """Drain random nodes; each is open again after a while."""
        options, first = self._options, self._virtual.node_names()

        async def begin(rng: random.Random, now: float, cordoned: _UnderWay) -> _Begun:
            names = self._virtual.node_names() if options.pools else first
            name = rng.choice(names) if names else ""
            if not name or name in cordoned:
                return None
            await self._drain(name, rng)
            return name, now + options.cordon_seconds

        async def end(name: str) -> None:
            await self._cordon(name, value=False)

        await self._recurring("drains", options.drains_per_day, until, begin=begin, end=end)

    async def _maintain_nodes(self, until: float) -> None:
        """Announce windows of random nodes; each is gone once it is over."""
        options, names = self._options, self._virtual.node_names()

        async def begin(rng: random.Random, now: float, planned: _UnderWay) -> _Begun:
            name = rng.choice(names)
            start = now + rng.uniform(0, _AHEAD_SECONDS_MAX)
            if name in planned:
                return None
            last = start + rng.uniform(*_MAINTENANCE_SECONDS)
            instants = (format_time(EPOCH + at) for at in (start, last))
            await self._announce(name, "/".join(instants))
            return name, last

        async def end(name: str) -> None:
            await self._announce(name, None)

        await self._recurring(
            "maintenances", options.maintenances_per_day, until, begin=begin, end=end
        )

    async def _announce(self, name: str, window: str | None) -> None:
        await self._client.patch(NODES, name, {"metadata": {"annotations": {MAINTENANCE: window}}})

    async def _cordon(self, name: str, *, value: bool) -> None:
        with suppress(NotFound):  # its machine may have been ended
            await self._client.patch(NODES, name, {"spec": {"unschedulable": value or None}})

    async def _drain(self, name: str, rng: random.Random) -> None:
        """Cordon a node and evict what is there, one after the other, as `kubectl drain` does."""
        await self._cordon(name, value=True)
        found = await self._client.list(PODS, field_selector=f"spec.nodeName={name}")
        for pod in found.items:
            await asyncio.sleep(rng.random() * 0.5)
            with suppress(NotFound, Conflict):  # gone, or another pod has its name
                await self._service.evict(pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))

    def _breaking(self, names: Sequence[str], lemons: Sequence[str], rng: random.Random) -> str:
        """Draw the node that breaks; lemons have a larger share of the draws."""
        weight = len(lemons) * self._options.lemon_factor
        if lemons and rng.random() < weight / (weight + len(names) - len(lemons)):
            return rng.choice(lemons)
        return rng.choice(names)


def lognormal(rng: random.Random, median: float, sigma: float) -> float:
    """Draw a log-normal duration; the median with sigma 0."""
    return median * (rng.lognormvariate(0.0, sigma) if sigma else 1)
