"""The machines of a simulated world: node pools, a cloud that outlives every controller, and what
it costs.

`provider_of_process` is what one process of the operator calls the cloud with: a call is a step at
which the process may be killed, before or after its effect. `FleetChecker` watches the cloud itself
and every committed write:

* a pool never has more machines than its `max`, and no more are coming than jobs wait for;
* in a day no more than half of the fleet and of a pool are ended, those aside that were launched
  shortly before, and no machine under a job or under a person's cordon;
* a pool that was deleted buys nothing, and one that keeps its machines loses none;
* a machine that never becomes a node is ended, unless a budget of the ledger holds it back;
* spares only replace lost nodes (`promises/placement_checkers.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet, RemovalCause
from fairlead.api.cluster.node_pool import DeletionPolicy, NodePool
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import to_wire
from fairlead.api.status import Unavailable
from fairlead.cloud.provider import CloudError, LaunchRequest, MachineProvider
from fairlead.cloud.registry import ProviderFactory
from fairlead.cloud.simulated import CloudRates, SimulatedCloud, SimulatedProvider
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.virtual.profile import NodeShape
from fairlead.model.health.machines import Instance, Inventory
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS, Observer
from fairlead.sim.promises.placement_checkers import SpareChecker
from fairlead.sim.setup.world_options import DAY_SECONDS, PoolShape, WorldOptions

T = TypeVar("T")

#: Of a fleet or pool, in a day; and what any may lose.
_CEILING_SHARE, _CEILING_LEAST = 0.5, 2
#: From a machine's deadline until it is ended, while nothing holds that back.
_FORGOTTEN_SECONDS = 3600.0


def pool_body(shape: PoolShape, node: NodeShape) -> dict[str, Any]:
    """Return the NodePool of a shape; its nodes have what the other nodes of the world have."""
    domains = [
        {"name": f"{shape.name}-{number}", "labels": {names.ZONE: f"{shape.name}-{number}"},
         "max": shape.domain_max}
        for number in range(shape.domains)
    ]  # fmt: skip
    return {
        "metadata": {"name": shape.name},
        "spec": {
            "provider": {"type": "Simulated"},
            "template": {"resources": dict(node.resources), "devices": to_wire(node.devices)},
            "max": shape.max, "min": shape.min, "headroomNodes": shape.headroom,
            "spareNodes": shape.spares, "weight": shape.weight, "mode": "Active",
            "domains": domains,
            "scaleUp": {"readySeconds": shape.ready_seconds, "unavailableSeconds": 60,
                        "nodesPerLaunchMax": shape.per_launch_max},
            "scaleDown": {"idleSeconds": shape.idle_seconds,
                          "consolidates": shape.consolidates},
        },
    }  # fmt: skip


def provider_of_process(
    cloud: SimulatedCloud | None, step: Callable[[str], None]
) -> ProviderFactory:
    """Return what makes the providers of one process. `step` raises once the process is dead."""

    def make(pool: NodePool) -> MachineProvider:
        assert cloud is not None, "a world with pools has a cloud"
        return _Watched(SimulatedProvider(cloud, pool.metadata.name), step)

    return make


class _Watched:
    def __init__(self, inner: MachineProvider, step: Callable[[str], None]) -> None:
        self._inner = inner
        self._step = step

    async def instances(self) -> Inventory:
        return await self._call("list machines", self._inner.instances())

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        return await self._call("launch machines", self._inner.launch(request))

    async def terminate(self, ids: tuple[str, ...]) -> None:
        await self._call("end machines", self._inner.terminate(ids))

    async def _call(self, what: str, call: Awaitable[T]) -> T:
        self._pass(f"before {what}", call)
        answer = await call
        self._pass(f"after {what}")
        return answer

    def _pass(self, what: str, call: Awaitable[Any] | None = None) -> None:
        try:
            self._step(what)
        except Unavailable as error:
            close: Callable[[], object] = getattr(call, "close", lambda: None)
            close()
            raise CloudError(error.message) from error


@dataclass(slots=True)
class _Machine:
    """A machine that exists."""

    instance: Instance
    launched_at: float
    #: Its node took work once.
    has_joined: bool = False
    node: Node | None = None
    #: Since when its node is marked to be removed.
    marked_at: float | None = None


@dataclass(slots=True)
class MachineUse:
    """What pools bought. Idle is what no job had a place on, also while it started."""

    launched: int = 0
    ended: int = 0
    most: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0


class FleetChecker(Observer):
    """An `Observer` of the writes; `launched` and `ended` are called by the cloud."""

    def __init__(self, options: WorldOptions, now: Callable[[], float]) -> None:
        self.use = MachineUse()
        self.spares = SpareChecker()
        self._pools = {pool.name: pool for pool in options.pools}
        # One replica notes when a launch was answered, another one judges that it is late.
        jumps = options.clock_jumps_per_day > 0
        self._jump_seconds = 2 * options.clock_jump_seconds_max if jumps else 0.0
        self._now = now
        self._at = now()
        self._machines: dict[str, _Machine] = {}
        self._sizes: Counter[str] = Counter()
        #: Since when pools are going or gone, and since when their machines are to stay.
        self._deleted: dict[str, float] = {}
        self._kept: dict[str, float] = {}
        self._machine_nodes: set[str] = set()
        self._used_nodes = 0  # of these
        #: Since when each node has each job: node -> job -> instant.
        self._users: dict[str, dict[ObjectKey, float]] = {}
        self._nodes_of: dict[ObjectKey, frozenset[str]] = {}
        #: Bound members, and whether they have ended well: pod -> (node, job, has succeeded).
        self._members: dict[ObjectKey, tuple[str, ObjectKey, bool]] = {}
        self._unplaced: dict[ObjectKey, int] = {}
        self._lacking = 0
        #: (instant, members without a place), (instant, pool), (instant, sizes): oldest first.
        self._lacked: deque[tuple[float, int]] = deque([(self._at, 0)])
        self._ends: deque[tuple[float, str]] = deque()
        self._seen_sizes: deque[tuple[float, Counter[str]]] = deque()

    # The cloud

    def launched(self, instance: Instance) -> None:
        """Machines must be wanted, and within the pool's limits."""
        now = self._advance()
        self._machines[instance.id] = _Machine(instance, now)
        self.use.launched += 1
        self.use.most = max(self.use.most, len(self._machines))
        self._resize(instance.pool, 1)
        pool = self._pools[instance.pool]
        if self._sizes[pool.name] > pool.max:
            size = self._sizes[pool.name]
            raise PromiseBroken(f"10: pool {pool.name} has {size} machines, of {pool.max} at most")
        deleted_at = self._deleted.get(pool.name, now)
        if now - deleted_at > STALE_SECONDS:
            ago = f"{now - deleted_at:.0f} s ago"
            raise PromiseBroken(f"10: a machine is bought for {pool.name}, which was deleted {ago}")
        ready = max(each.ready_seconds for each in self._pools.values())
        fresh = [
            machine for machine in self._machines.values()
            if not machine.has_joined
            and now - machine.launched_at
            < self._pools[machine.instance.pool].ready_seconds - self._jump_seconds
        ]  # fmt: skip
        while len(self._lacked) > 1 and self._lacked[1][0] < now - ready - STALE_SECONDS:
            self._lacked.popleft()
        wanted = max(members for _, members in self._lacked)
        wanted += sum(p.headroom + p.spares + p.min for p in self._pools.values())
        if len(fresh) > wanted:
            raise PromiseBroken(f"10: {len(fresh)} machines are coming for {wanted} at most")

    def ended(self, instance: Instance) -> None:
        """Few machines end in a day, none of them in use."""
        now = self._advance()
        self.use.ended += 1
        machine = self._machines.pop(instance.id)
        if machine.node is not None:
            self._machine_nodes.discard(machine.node.metadata.name)
            self._check_unused(machine.node, now)
            self._check_kept(machine, now)
        # What was bought within a day may go again; the ledger's clock may be slower than ours.
        if now - machine.launched_at > 2 * DAY_SECONDS:
            self._ends.append((now, instance.pool))
            self._check_ceiling(now, instance.pool)
        self._resize(instance.pool, -1)

    def _check_unused(self, node: Node, now: float) -> None:
        name = node.metadata.name
        users = self._users.get(name, {})
        for key, since in users.items():
            if now - since > STALE_SECONDS and not self._has_left(name, key):
                raise PromiseBroken(f"6: the machine of {name} is ended under {key}")
        self._used_nodes -= bool(users)
        if node.spec.unschedulable and names.REMOVAL not in node.metadata.annotations:
            raise PromiseBroken(f"7: the machine of {name} is ended under a person's cordon")

    def _has_left(self, node: str, job: ObjectKey) -> bool:
        """True when the job's members on a node have ended well: they do not come back to it."""
        found = [good for *where, good in self._members.values() if where == [node, job]]
        return bool(found) and all(found)

    def _check_kept(self, machine: _Machine, now: float) -> None:
        """6: a pool that was deleted to keep its machines loses those alone that were leaving."""
        known_at = self._kept.get(machine.instance.pool, now) + STALE_SECONDS
        if now > known_at and (machine.marked_at or now) > known_at:
            raise PromiseBroken(
                f"6: a machine of {machine.instance.pool} is ended {now - known_at:.0f} s after it "
                f"was known that the pool is deleted and keeps its machines"
            )

    def _check_ceiling(self, now: float, pool: str) -> None:
        while self._ends[0][0] <= now - DAY_SECONDS:
            self._ends.popleft()
        while len(self._seen_sizes) > 1 and self._seen_sizes[1][0] < now - DAY_SECONDS:
            self._seen_sizes.popleft()
        for name in ("", pool):
            peak = max(_size(sizes, name) for _, sizes in self._seen_sizes)
            ends = sum(name in ("", where) for _, where in self._ends)
            if ends > max(_CEILING_LEAST, int(peak * _CEILING_SHARE)):
                what = f"pool {name}" if name else "the fleet"
                raise PromiseBroken(f"6: {ends} of {peak} machines of {what} are ended in a day")

    def _resize(self, pool: str, change: int) -> None:
        self._sizes[pool] += change
        self._seen_sizes.append((self._now(), Counter(self._sizes)))

    # Writes

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note where members are, and which have ended well."""
        self._members.pop(key, None)
        job = new.metadata.labels.get(names.JOB_NAME) if new is not None else None
        if new is not None and job and new.spec.node_name:
            is_good = new.status.phase == "Succeeded"
            self._members[key] = new.spec.node_name, (key[0], job), is_good

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Note where a job has its place, or how many members wait for one."""
        self._advance()
        self.spares.job(new, key, now)
        placement = new.status.placement if new is not None and not new.is_finished else None
        nodes = frozenset(nodes_of(placement))
        before = self._nodes_of.pop(key, frozenset())
        if nodes:
            self._nodes_of[key] = nodes
        for name in before - nodes:
            self._users[name].pop(key)
            self._used_nodes -= not self._users[name] and name in self._machine_nodes
        for name in nodes - before:
            users = self._users.setdefault(name, {})
            self._used_nodes += not users and name in self._machine_nodes
            users[key] = now
        waits = new is not None and not new.is_finished and placement is None
        members = new.least_count if new is not None and waits else 0
        lacking = self._lacking + members - self._unplaced.pop(key, 0)
        if members:
            self._unplaced[key] = members
        if lacking != self._lacking:
            self._lacking = lacking
            self._lacked.append((now, lacking))

    def pool(self, new: NodePool | None, name: str, now: float) -> None:
        """Take in a pool, new, changed, being deleted or (None) gone."""
        if new is not None and new.metadata.deletion_timestamp is None:
            self._deleted.pop(name, None)
            self._kept.pop(name, None)
            return
        self._deleted.setdefault(name, now)
        if new is None or new.spec.deletion_policy is DeletionPolicy.KEEP:
            self._kept.setdefault(name, now)
        else:
            self._kept.pop(name, None)

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Note the node of a machine, and whether it takes work."""
        self._advance()
        self.spares.node(new, name, now)
        machine = self._machines.get(new.spec.provider_id) if new is not None else None
        if machine is None or new is None:
            return
        if machine.node is None and self._users.get(name):
            self._used_nodes += 1
        machine.node = new
        is_marked = names.REMOVAL in new.metadata.annotations
        machine.marked_at = (machine.marked_at or now) if is_marked else None
        self._machine_nodes.add(name)
        is_joining = any(taint.key == names.TAINT_JOINING for taint in new.spec.taints)
        is_ready = any(c.type == names.READY and c.status == "True" for c in new.status.conditions)
        machine.has_joined = machine.has_joined or (is_ready and not is_joining)

    # Time

    def _advance(self) -> float:
        now = self._now()
        passed, self._at = now - self._at, now
        self.use.seconds += passed * len(self._machines)
        self.use.idle_seconds += passed * (len(self._machines) - self._used_nodes)
        return now

    def forgotten(self, fleet: Fleet | None) -> list[str]:
        """Return the machines that never became a node and that nothing is done about."""
        now = self._now()
        late = [
            machine.instance for machine in self._machines.values()
            if not machine.has_joined and now - machine.launched_at
            > self._pools[machine.instance.pool].ready_seconds + _FORGOTTEN_SECONDS
        ]  # fmt: skip
        if not late or fleet is None:
            return [instance.id for instance in late]
        status = fleet.status
        granted = {grant.instance for grant in status.grants}
        # One failed launch a day may always be ended: one that waits, waits behind another one.
        recent = [
            each for each in status.removed
            if each.cause is RemovalCause.FAILED_LAUNCH and each.at > status.clock - DAY_SECONDS
        ]  # fmt: skip
        ends = bool(recent) or len(status.removed) >= _CEILING_LEAST
        return [] if ends else [each.id for each in late if each.id not in granted]


def _size(sizes: Mapping[str, int], pool: str) -> int:
    return sizes.get(pool, 0) if pool else sum(sizes.values())


def stop_failing(cloud: SimulatedCloud) -> None:
    """Let nothing fail in the cloud from now on; what takes time still does."""
    before = cloud.rates
    cloud.rates = CloudRates(
        before.launch_seconds, before.launch_jitter_seconds,
        latency_seconds_mean=before.latency_seconds_mean,
        list_lag_seconds_max=before.list_lag_seconds_max,
    )  # fmt: skip
