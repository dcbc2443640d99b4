"""A cluster in which others work, and a tenant: the real store, controllers and webhook answers.

Teams `rich` (it lends nothing), `lender` and `poor` (which borrows from it), and gangs of no team
in `open` run for as long as the world does; others come, run and end between the tenant's
sequences. In some worlds his namespace has a team of its own, in others it has none.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from prometheus_client import CollectorRegistry

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.kubernetes.devices import ResourceClaim
from fairlead.api.names import GANG_GATE, GANG_NAME, HOSTNAME, JOB_FINALIZER, SIMULATE_SECONDS
from fairlead.api.resources import (
    CRDS,
    DEVICE_CLASSES,
    JOB_ARRAYS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    TEAMS,
)
from fairlead.api.schema import crd
from fairlead.api.status import ApiError, NotFound
from fairlead.app.configuration.policies import Policies
from fairlead.app.context import ProcessContext
from fairlead.app.controllers import Controllers
from fairlead.decide.adoption.view import AdoptionPolicy
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.pinning import Binding
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.embedded.own_controllers.device_allocator import DeviceAllocator
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.records import Record
from fairlead.embedded.storage.store import Store, StoreEvent
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.virtual.fleet import NodeFleet
from fairlead.embedded.virtual.nodes import VirtualNodes
from fairlead.embedded.virtual.profile import load_profile
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import EventType
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.exported.metrics import Metrics
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.runtime.supervisor import SupervisedService, Supervisor
from fairlead.sim.actors.quiet_client import QuietClient
from fairlead.sim.actors.stock_scheduler import StockScheduler
from fairlead.sim.actors.training_operator import OWNER_DEFINITION
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.promises.array_checker import ArrayChecker
from fairlead.sim.setup.world_options import EPOCH
from fairlead.sim.tenants.api import TenantApi
from fairlead.sim.tenants.bodies import array, asking, gated, job
from fairlead.sim.tenants.calls import EDITED, TENANT, Call
from fairlead.sim.tenants.devices import TEMPLATES, classes, node_slice, request, template
from fairlead.sim.tenants.promises import (
    LATE_SECONDS_MAX,
    PREEMPTORS,
    SHARED,
    DevicePromises,
    Promises,
    entries_of,
)
from fairlead.sim.tenants.quota import CLOSED_CLASS, QUOTAS

#: Of which rich has 3, lender 2, poor 1, and no team 4; the tenant's own is beside them.
_NODES = 10
#: After his last call of a round, until what others are promised at rest is judged.
_REST_SECONDS = 12.0
#: His objects are gone this long after he has deleted them.
_GONE_SECONDS_MAX = 60.0
_LOOK_SECONDS = 2.0
#: The gangs of others that ask for devices for as long as the world runs, by template.
_USERS = {"one": ("rich", "rich-one"), "big": (SHARED, "open-big")}


@dataclass(frozen=True, slots=True)
class WorldShape:
    """What differs between worlds."""

    has_team: bool
    binding: Binding
    preempts_adopted: bool
    moves_on_request: bool

    @classmethod
    def of(cls, seed: str) -> WorldShape:
        """Return the shape of the world of this seed."""
        rng = random.Random(f"{seed}/shape")  # noqa: S311 # a simulation, no secret
        return cls(
            has_team=rng.random() < 0.5,
            binding=rng.choice((Binding.PINNED, Binding.DIRECT)),
            preempts_adopted=rng.random() < 0.3,
            moves_on_request=rng.random() < 0.3,
        )


@dataclass(slots=True)
class Played:
    """What a world came to. `met` counts outcomes of calls."""

    log_hash: str = ""
    writes: int = 0
    calls: int = 0
    outcomes: list[list[str]] = field(default_factory=list[list[str]])


class TenantWorld:
    """One cluster. Enter `running`, then `play` sequences."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.shape = shape = WorldShape.of(seed)
        self.clock = LoopClock(EPOCH)
        self.history = MemoryHistory()
        self.played = Played()
        self.promises = Promises(
            own_team=TENANT if shape.has_team else "", borrowers=frozenset({"poor"}),
            lenders=frozenset({"lender"}), preempts_adopted=shape.preempts_adopted,
        )  # fmt: skip
        self.device_promises = DevicePromises(self.promises)
        self.arrays = ArrayChecker()
        self._digest = hashlib.sha256()
        self._broken: PromiseBroken | None = None
        self._has_crashed = False
        self._store = Store.open(None)
        ids, registry, rng = self._rng("uid"), Registry.with_builtins(), self._rng("names")

        def new_id() -> str:
            return f"{ids.getrandbits(128):032x}"

        self._service = ApiService(self._store, registry, self.clock, ids=new_id, rng=rng)
        self.client = QuietClient(self._service, renews_watches=False, keeps_events=False)
        self.tenant = TenantApi(self._service, self._on_made)
        self._scheduler = StockScheduler(self._service, self.client)
        self._add_controllers()

    def _add_controllers(self) -> None:
        shape = self.shape
        policies = Policies(
            JobsPolicy(binding=shape.binding),
            PlacementPolicy(
                preemption_min_run_seconds=1.0, preempts_adopted=shape.preempts_adopted,
                defragments_on_request=shape.moves_on_request, move_min_run_seconds=1.0,
            ),
            adoption=AdoptionPolicy(keep_finished_seconds=1),
            teams=TeamsPolicy(
                use_seconds=1.0, sums_seconds=30.0, publishes=True
            ),
        )  # fmt: skip
        metrics = Metrics(CollectorRegistry(), version="simulated")
        context = ProcessContext(self.clock, metrics, streams=self._rng)
        self.controllers = Controllers(policies, self.client, self.history, context=context)
        profile = load_profile("instant")
        self._virtual = VirtualNodes(
            self.client, NodeFleet(_NODES + shape.has_team, profile.node), profile,
            clock=self.clock, rng=self._rng("nodes"),
        )  # fmt: skip
        self._supervisor = Supervisor(
            [
                SupervisedService("api", self._service.run),
                SupervisedService("virtual-nodes", self._virtual.run),
                SupervisedService("stock-scheduler", self._scheduler.run),
                SupervisedService("device-claims", self._keep_claims),
                *self.controllers.services(),
            ],
            clock=self.clock, rng=self._rng("supervisor"), crashed=self._on_crash,
        )  # fmt: skip

    def _on_crash(self, name: str, error: BaseException) -> None:
        self._has_crashed = True

    async def _keep_claims(self) -> None:
        """Make and free claims for devices, as kube-controller-manager does."""
        keeper = DeviceAllocator(
            self.client, self.controllers.mirrors.pods, self.controllers.mirrors.nodes,
            clock=self.clock, rng=self._rng("claims"), allocates=False,
        )  # fmt: skip
        await keeper.run()

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 # a simulation, no secret

    # What is seen

    def _observe(self, events: Sequence[StoreEvent]) -> None:
        now = self.clock.now()
        for event in events:
            record = event.record
            is_deleted = event.type is EventType.DELETED
            line = f"{now:.6f} {event.info.name} {record.key} {event.version} {is_deleted} "
            self._digest.update(line.encode() + record.data)
            self.played.writes += 1
            try:
                self._show(event, None if is_deleted else record, now)
            except PromiseBroken as broken:
                self._broken = self._broken or broken

    def _show(self, event: StoreEvent, record: Any, now: float) -> None:
        name, key = event.info.name, event.record.key
        if name == JOBS.name:
            for judge in (self.promises, self.arrays):
                judge.job(record and record.typed(Job), key, now)
        elif name == JOB_ARRAYS.name:
            found = record and record.typed(JobArray)
            for judge in (self.promises, self.arrays):
                judge.array(found, key, now)
        elif name == PODS.name:
            pod = record and record.typed(Pod)
            for observer in (self._scheduler, self.promises, self.device_promises):
                observer.pod(pod, key, now)
        elif name == NODES.name:
            node = record and record.typed(Node)
            for watcher in (self._scheduler, self.promises):
                watcher.node(node, key[1], now)
        elif name == TEAMS.name:
            self.promises.team(record and record.typed(Team), key[1])

        elif name == RESOURCE_CLAIMS.name:
            self._scheduler.stored(name, record, key, now)
            self.device_promises.claim(record and record.typed(ResourceClaim), key)
        elif name in (DEVICE_CLASSES.name, RESOURCE_SLICES.name):
            self._scheduler.stored(name, record, key, now)

    def _on_made(self, resource: str, record: Record) -> None:
        if resource == JOBS.name:
            self.promises.made(record.typed(Job))

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken
        for service in self._supervisor.health().services if self._has_crashed else ():
            if service.crash_count:
                raise PromiseBroken(f"service: {service.name} crashed: {service.last_error}")
        self.promises.check_by_clock(self.clock.now())
        self.device_promises.check_by_clock(self.clock.now())

    async def _pass(self, seconds: float) -> None:
        """Let time pass, and judge what takes time on the way."""
        left = seconds
        while left > 0:
            await asyncio.sleep(min(left, _LOOK_SECONDS))
            left -= _LOOK_SECONDS
            self._check()

    # The others

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[TenantWorld]:
        """Run the cluster; the others work once this is entered."""
        await self._service.bootstrap()
        for manifest in crd.manifests():
            await self.client.create(CRDS, manifest)
        await self.client.create(CRDS, OWNER_DEFINITION)
        await self.client.create(PRIORITY_CLASSES, {"metadata": {"name": "mid"}, "value": 5})
        closed = {"metadata": {"name": CLOSED_CLASS}, "value": 1_000}
        await self.client.create(PRIORITY_CLASSES, closed)
        spaces = (LeaderOptions().namespace, "rich", "lender", "poor", SHARED, PREEMPTORS, TENANT)
        for space in spaces:
            await self.client.create(NAMESPACES, {"metadata": {"name": space}})
        self._store.subscribe(self._observe)
        for device_class in classes():
            await self.client.create(DEVICE_CLASSES, device_class)
        for space, (name, of_class) in product(("rich", SHARED, PREEMPTORS), TEMPLATES.items()):
            body = template(name, request(of_class))
            await self.client.create(RESOURCE_CLAIM_TEMPLATES, body, namespace=space)
        for body in QUOTAS:
            await self.client.create(RESOURCE_QUOTAS, body, namespace=TENANT)
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._supervisor.run())
                await self._settle_in()
                yield self
                task.cancel()
        finally:
            self.played.log_hash = self._digest.hexdigest()

    async def _settle_in(self) -> None:
        teams = {"rich": (3, 0, 0), "lender": (2, 0, None), "poor": (1, None, 0)}
        if self.shape.has_team:
            teams[TENANT] = (1, 0, 0)
        for name, (nodes, borrows, lends) in teams.items():
            limits = {"borrowLimitNodes": borrows, "lendLimitNodes": lends}
            spec = {"namespaces": [name], "shares": [{"nodes": nodes}], **limits}
            spec = {key: value for key, value in spec.items() if value is not None}
            await self.client.create(TEAMS, {"metadata": {"name": name}, "spec": spec})
        await self._pass(5.0)
        for node in (await self.client.list(NODES)).items:
            await self.client.create(RESOURCE_SLICES, node_slice(node.metadata.name))
        for space, name, count in (
            ("rich", "rich-long", 2), ("poor", "poor-own", 1), ("poor", "poor-borrow", 2),
            (SHARED, "open-long", 2), ("rich", "rich-one", 2), (SHARED, "open-big", 1),
        ):  # fmt: skip
            body = job(name, count=count, gpus=8)
            if name.endswith(tuple(TEMPLATES)):
                body = asking(name, name[-3:], count=count)
            if name == "poor-borrow":
                self._tie(body, "lender")
            if space == SHARED:
                body["spec"]["priorityClassName"] = "mid"  # no gang takes its nodes
            await self._submit(space, body)
            await self._pass(2.0)

    def _tie(self, body: dict[str, Any], team: str) -> None:
        """Keep a gang on the nodes of a team."""
        values = self.promises.nodes_of(team)
        term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": values}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec = body["spec"]["roles"][0]["template"]["spec"]
        spec["affinity"] = {"nodeAffinity": required}

    async def _submit(self, space: str, body: dict[str, Any]) -> None:
        body["metadata"]["namespace"] = space
        body["spec"]["ttlSecondsAfterFinished"] = 0
        await self.client.create(JOBS, body, namespace=space)

    async def _others_come(self, number: int) -> None:
        """Submit gangs that have room, whatever the tenant does, and owners of lent nodes."""
        seconds = {SIMULATE_SECONDS: "1"}
        for space, name, gpus in (("rich", "canary", 8), (SHARED, "canary", 1)):
            body = job(f"{name}-{number}", gpus=gpus)
            body["spec"]["roles"][0]["template"]["metadata"] = {"annotations": seconds}
            await self._submit(space, body)
        space = (PREEMPTORS, "rich", SHARED)[number % 3]
        urgent = {"priorityClassName": "mid"} if space == PREEMPTORS else {}
        await self._submit(space, asking(f"devices-{number}", "one", seconds=1, **urgent))
        element = job("x", seconds=0.5)
        self._tie(element, "rich")
        sweep = array(
            "rich-sweep", "0-5", template=element, parallelism=2, ttlSecondsAfterFinished=0
        )
        await self.client.create(JOB_ARRAYS, sweep, namespace="rich")
        name, gates = f"guest-{number}", [{"name": GANG_GATE}]
        guest = gated(name, 1, gang=name, size="1", seconds=1, schedulingGates=gates)
        await self.client.create(PODS, guest, namespace=SHARED)
        if number % 2:
            body = job(f"urgent-{number}", gpus=8, priorityClassName="mid")
            body["spec"]["roles"][0]["template"]["metadata"] = {"annotations": seconds}
            await self._submit(PREEMPTORS, body)
        if number % 4 == 3:
            body = job(f"owner-{number}", count=2, gpus=8)
            body["spec"]["roles"][0]["template"]["metadata"] = {"annotations": seconds}
            self._tie(body, "lender")
            await self._submit("lender", body)

    # The tenant

    async def play(self, rounds: Sequence[Sequence[Sequence[Call]]]) -> Played:
        """Send the sequences of each round; PromiseBroken. He deletes all of his at its end."""
        kept = 0
        for number, sequences in enumerate(rounds):
            for sequence in sequences:
                outcomes: list[str] = []
                self.played.outcomes.append(outcomes)
                for i, call in enumerate(sequence):
                    await self._pass(call.wait)
                    if i == len(sequence) // 2 and sequence is sequences[0]:
                        await self._others_come(number)
                    outcomes.append(await self.tenant.send(call))
                    self.played.calls += 1
            self.tenant.restore()
            await self._pass(_REST_SECONDS)
            self._check_devices(exact=False)
            await self._clean()
            await self._pass(_REST_SECONDS)  # guests whose place his plain pods took run now
            await self.client.delete_collection(PODS, namespace=SHARED, label_selector=GANG_NAME)
            await self._pass(_LOOK_SECONDS)
            self.promises.check_accounts()
            await self.promises.check_records(self.history)
            self._check_arrays()
            self._check_devices(exact=True)
            self._check()
            if number == 0:
                kept = entries_of(self.controllers)
        if len(rounds) > 1:
            self.promises.check_kept(kept, entries_of(self.controllers), len(rounds) - 1)
        return self.played

    def _check_devices(self, *, exact: bool) -> None:
        jobs = {of_class: self.controllers.mirrors.jobs.get(*_USERS[name])
                for name, of_class in TEMPLATES.items()}  # fmt: skip
        found = {of_class: job for of_class, job in jobs.items() if job is not None}
        state = self.controllers.world.state
        self.device_promises.check_counts(state, found, exact=exact)

    def _check_arrays(self) -> None:
        """The arrays of others have ended; promise 15 is judged at every write."""
        self.promises.judged["arrays"] = self.arrays.checked
        late = [key for key in self.arrays.unfinished() if key[0] != TENANT]
        if late:
            raise PromiseBroken(f"late: array {late[0]} has not ended")

    async def _clean(self) -> None:
        """Delete what is his, with what holds it; all of it goes within a bound."""
        for resource in EDITED.values():
            raw = resource.raw
            for obj in (await self.client.list(raw, namespace=TENANT)).items:
                name, held = obj["metadata"]["name"], obj["metadata"].get("finalizers", ())
                try:
                    is_ours = resource.name == JOBS.name
                    kept = [each for each in held if is_ours and each == JOB_FINALIZER]
                    if len(kept) != len(held):
                        free = {"metadata": {"finalizers": kept or None}}
                        await self.client.patch(raw, name, free, namespace=TENANT)
                    await self.client.delete(raw, name, namespace=TENANT, grace_period_seconds=0)
                except NotFound:
                    continue
                except ApiError as error:
                    raise PromiseBroken(f"service: {resource.name} {name} stays: {error}") from None
        waited = 0.0
        while left := await self._left():
            if waited > _GONE_SECONDS_MAX:
                raise PromiseBroken(f"service: deleted objects stay: {', '.join(left[:5])}")
            await self._pass(_LOOK_SECONDS)
            waited += _LOOK_SECONDS

    async def _left(self) -> list[str]:
        return [
            f"{resource.plural}/{obj['metadata']['name']}"
            for resource in EDITED.values()
            if resource is not EDITED["serviceaccounts"] and resource is not EDITED["configmaps"]
            for obj in (await self.client.list(resource.raw, namespace=TENANT)).items
        ]


assert LATE_SECONDS_MAX > _LOOK_SECONDS
