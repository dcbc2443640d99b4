"""Counts the machines and nodes of a pool: what is there, coming, joining, marked and leaving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from fairlead.api.cluster.fleet import Grant
from fairlead.api.cluster.node_pool import QUEUE_SECONDS, Launch, NodePoolSpec
from fairlead.api.values.times import parse_time
from fairlead.decide.fleet.view import FleetMemory, FleetView, PoolView, about
from fairlead.model.health.machines import Instance, InstanceState
from fairlead.model.pools.pool_nodes import PoolNode, devices_of

#: Lists are late and may miss machines. One that is missing for longer does not exist: so long
#: after its launch, and so long after a list that had it.
LAG_SECONDS_MAX = 120.0
#: A node that is ready again sooner was not away.
AWAY_SECONDS = 60.0
#: A list that lacks the machines of more of a pool's nodes than this is not believed, and of more
#: than so many.
GONE_SHARE_MAX, GONE_LEAST = 0.5, 3


@dataclass(slots=True)
class PoolCensus:
    """The machines of one pool, by what they are to us."""

    view: PoolView
    #: The machines that exist: those of the latest list, and those that are missing in it for less
    #: than `LAG_SECONDS_MAX`.
    instances: dict[str, Instance]
    #: Those of the latest list.
    listed: frozenset[str]
    nodes: dict[str, PoolNode]
    #: Removals that were granted, but for those of nodes that are used again.
    leaving: dict[str, Grant]
    #: This process had a complete list once. Until then there may be machines that neither a node
    #: nor our records name: those of a pool of the same name that was deleted.
    is_counted: bool = False
    #: Machines without a node that takes work, and whose deadline has not passed: by domain.
    coming: dict[str, int] = field(default_factory=dict[str, int])
    #: Idle nodes that we marked and that could return: by domain.
    marked: dict[str, list[PoolNode]] = field(default_factory=dict[str, list[PoolNode]])
    #: Machines without a node that is ready, beyond their deadline.
    failed: list[str] = field(default_factory=list[str])
    #: Launches to give up: without an answer in time, or none of whose machines came up in time.
    hopeless: list[Launch] = field(default_factory=list[Launch])
    #: Machines that have not been nodes that take work, by our own records.
    awaited: set[str] = field(default_factory=set[str])
    #: How many have no node yet.
    launching: int = 0
    joining: list[PoolNode] = field(default_factory=list[PoolNode])
    #: Nodes that are not ready and whose machine the provider has no more.
    gone: dict[str, PoolNode] = field(default_factory=dict[str, PoolNode])
    #: Spares that could replace a node now: idle, ready, and not to go.
    spares: list[PoolNode] = field(default_factory=list[PoolNode])
    #: Nodes that worked once and that nothing uses or can use: cordoned, or not ready for a while.
    out: list[PoolNode] = field(default_factory=list[PoolNode])
    #: What a node of the pool has once its device plugins are up.
    devices: tuple[tuple[str, int], ...] = field(init=False)
    #: Nodes of which drivers do not offer yet what claims may ask for there.
    undriven: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        resources = self.view.pool.spec.template.resources
        self.devices = () if self.view.mistakes else devices_of(resources)

    def is_whole(self, node: PoolNode | None) -> bool:
        """True for a node that is ready and has its devices: kubelets are ready before these."""
        if node is None or not node.is_ready or node.name in self.undriven:
            return False
        if node.devices == self.devices:  # nearly always
            return True
        found = dict(node.devices)
        return all(found.get(name, 0) >= count for name, count in self.devices)

    @property
    def spares_wanted(self) -> int:
        """How many spares there should be: those that people made, too."""
        by_hand = sum(not node.is_spare_of_pool for node in self.spares)
        return max(self.view.pool.spec.spare_nodes, by_hand)

    @property
    def spares_lacking(self) -> int:
        """How many spares there should be beyond those that there are."""
        return max(0, self.view.pool.spec.spare_nodes - len(self.spares))

    @property
    def size(self) -> int:
        """Machines that are there or coming and are not being removed."""
        overdue = sum(launch.count for launch in self.overdue)
        return self.occupied - overdue - len(self.instances.keys() & self.leaving.keys())

    @property
    def overdue(self) -> list[Launch]:
        """Launches without an answer that are not waited for any more."""
        unanswered = self.view.pool.status.unanswered
        return [launch for launch in unanswered if launch.given_up_at is not None]

    @property
    def occupied(self) -> int:
        """Machines that count against the limits of the pool: those that are being removed, too."""
        unanswered = sum(
            launch.count if launch.instances is None else
            sum(id_ not in self.instances for id_ in launch.instances)
            for launch in self.view.pool.status.launches
        )  # fmt: skip
        return len(self.instances) + unanswered

    def domain_of(self, instance: str) -> str:
        """Return the domain of a machine; "" when it has none."""
        found = self.instances.get(instance)
        return found.domain if found is not None else ""

    def domain_sizes(self, *, with_leaving: bool = False) -> dict[str, int]:
        """Return how many machines each domain has, coming ones too."""
        sizes: dict[str, int] = {}
        for each in self.instances.values():
            if with_leaving or each.id not in self.leaving:
                sizes[each.domain] = sizes.get(each.domain, 0) + 1
        for launch in self.view.pool.status.launches:
            ids = launch.instances
            count = launch.count if ids is None else sum(i not in self.instances for i in ids)
            sizes[launch.domain] = sizes.get(launch.domain, 0) + count
        return sizes


def take_census(view: FleetView, pool: PoolView, memory: FleetMemory) -> PoolCensus:
    """Count one pool; PoolFault."""
    with about(pool.name):
        return _take_census(view, pool, memory)


def _take_census(view: FleetView, pool: PoolView, memory: FleetMemory) -> PoolCensus:
    grants = view.fleet.status.grants if view.fleet is not None else ()
    leaving = {
        grant.instance: grant for grant in grants
        if grant.pool == pool.name and not is_used_again(view, grant)
    }  # fmt: skip
    nodes = view.nodes.by_pool.get(pool.name, {})
    known = {*leaving, *(node.instance for node in nodes.values())}
    known.update(id_ for launch in pool.pool.status.launches for id_ in launch.instances or ())
    census = PoolCensus(
        pool,
        _existing(pool, memory, known, view.instant),
        frozenset(each.id for each in pool.instances),
        nodes,
        leaving,
        is_counted=pool.name in memory.counted,
        undriven=_undriven(view, pool, nodes),
    )
    launched: dict[str, Launch] = {}
    for launch in pool.pool.status.launches:
        if launch.instances is None:
            if launch.given_up_at is None:
                _come(census, launch.domain, launch.count)
                census.launching += launch.count
                if view.now > parse_time(launch.requested_at) + answer_seconds(pool.pool.spec):
                    census.hopeless.append(launch)
            continue
        for id_ in launch.instances:
            launched[id_] = launch
    _count_launched(view, census, launched)
    _count_strays(view, census, launched, memory)
    for node in census.nodes.values():
        if node.instance in census.leaving:
            continue
        if node.is_waiting and not node.is_gated and census.is_whole(node):
            census.joining.append(node)
            if node.is_returning and not view.nodes.is_used(node.name):
                _come(census, census.domain_of(node.instance), 1)
        if node.is_spare and is_idle(view, census, node):
            census.spares.append(node)
        elif _is_out(view, census, node):
            census.out.append(node)
        if not node.is_ready and node.instance not in census.instances:
            census.gone[node.name] = node
        elif node.removal and not view.nodes.is_used(node.name):
            census.marked.setdefault(census.domain_of(node.instance), []).append(node)
    if len(census.gone) > max(GONE_LEAST, len(census.nodes) * GONE_SHARE_MAX):
        census.gone.clear()
    return census


def _undriven(view: FleetView, pool: PoolView, nodes: Collection[str]) -> frozenset[str]:
    shapes = pool.pool.spec.template.devices
    if not shapes or pool.mistakes or not view.knows_devices:
        return frozenset()
    wanted = Counter[str]()
    for shape in shapes:
        wanted[shape.driver] += shape.device_count
    devices = view.state.devices.pools
    return frozenset(name for name in nodes if not wanted <= devices.counts_on(name))


def is_used_again(view: FleetView, grant: Grant) -> bool:
    """True when work came to a node whose removal was granted: its machine is not ended."""
    node = view.nodes.by_instance.get(grant.instance)
    return node is not None and view.nodes.is_used(node.name)


def is_idle(view: FleetView, census: PoolCensus, node: PoolNode) -> bool:
    """True for a node that could take work at once, that has none, and that is not to go."""
    is_free = node.name in view.nodes.idle_since and node.instance not in census.leaving
    return is_free and node.is_usable and not node.removal and census.is_whole(node)


def _is_out(view: FleetView, census: PoolCensus, node: PoolNode) -> bool:
    if view.nodes.is_used(node.name) or node.removal or node.is_joining:
        return False
    if node.instance not in census.instances or node.instance in census.awaited:
        return False
    since = view.nodes.unready.get(node.name, view.instant)
    return node.is_cordoned or node.is_out or view.instant >= since + AWAY_SECONDS


def has_joined(view: FleetView, census: PoolCensus, node: PoolNode | None) -> bool:
    """True for a node that has taken up work once."""
    if node is None or node.is_joining:
        return False
    return view.nodes.is_used(node.name) or census.is_whole(node)


def _existing(
    pool: PoolView, memory: FleetMemory, known: Collection[str], instant: float
) -> dict[str, Instance]:
    """Return the machines that exist. `known`: those that our records or nodes name."""
    seen = memory.seen.setdefault(pool.name, {})
    is_complete = pool.inventory is not None and pool.inventory.is_complete
    if is_complete:
        memory.counted.add(pool.name)
    seen.update({each.id: (None, each) for each in pool.instances})
    for id_ in seen.keys() - {each.id for each in pool.instances}:
        since, each = seen[id_]
        since = instant if since is None else since
        seen[id_] = (since if is_complete else None, each)
    for id_ in known:
        if id_ not in seen:
            seen[id_] = (instant, Instance(id_, "", InstanceState.RUNNING))
    existing = {
        id_: each for id_, (since, each) in seen.items()
        if since is None or instant - since <= LAG_SECONDS_MAX
    }  # fmt: skip
    for id_ in seen.keys() - existing.keys():
        if id_ not in known:
            del seen[id_]
    return existing


def _come(census: PoolCensus, domain: str, count: int) -> None:
    census.coming[domain] = census.coming.get(domain, 0) + count


def _count_launched(view: FleetView, census: PoolCensus, launched: dict[str, Launch]) -> None:
    up, failed = set[str](), dict[str, Launch]()
    for id_, launch in launched.items():
        node = view.nodes.by_instance.get(id_)
        if has_joined(view, census, node):
            up.add(launch.token)
            continue
        if id_ in census.leaving:
            continue
        census.awaited.add(id_)
        if id_ not in census.instances and _is_listed(view, census.view, launch):
            continue  # it is gone before it worked
        census.launching += node is None
        if is_late(census, node, view.now - parse_time(launch.begun_at)):
            census.failed.append(id_)
            failed[launch.token] = launch
        else:
            up.add(launch.token)
            _come(census, launch.domain, 1)
    census.hopeless += (
        launch for token, launch in failed.items()
        if token not in up and launch.given_up_at is None
    )  # fmt: skip


def is_late(census: PoolCensus, node: PoolNode | None, age_seconds: float) -> bool:
    """True for a machine of that age that has failed: without a node, or one that is not whole."""
    scale_up = census.view.pool.spec.scale_up
    if node is None and scale_up.launch_seconds is not None:
        return age_seconds > scale_up.launch_seconds
    return age_seconds > scale_up.ready_seconds and not census.is_whole(node)


def answer_seconds(spec: NodePoolSpec) -> float:
    """Return how long a provider may take to answer a launch: longer where it queues."""
    scale_up = spec.scale_up
    seconds = scale_up.launch_seconds or scale_up.ready_seconds
    return seconds + int(spec.provider.options.get(QUEUE_SECONDS, "0"))


def _is_listed(view: FleetView, pool: PoolView, launch: Launch) -> bool:
    """True when the provider's list is complete, and newer than the launch for sure."""
    is_complete = pool.inventory is not None and pool.inventory.is_complete
    listed_at = view.now - pool.age_seconds
    return is_complete and listed_at > parse_time(launch.begun_at) + LAG_SECONDS_MAX


def is_gone(view: FleetView, census: PoolCensus, launch: Launch, instance: str) -> bool:
    """True for a machine of a launch that the provider has no more."""
    return instance not in census.instances and _is_listed(view, census.view, launch)


def _count_strays(
    view: FleetView, census: PoolCensus, launched: dict[str, Launch], memory: FleetMemory
) -> None:
    """Machines with the pool's tag that no launch of ours names: found, counted, never forgotten.

    Such a machine comes from a launch whose answer was lost with its record, or from a person. It
    counts as coming, and like any other it fails when no node of it is ready in time.
    """
    for id_ in census.instances:
        node = view.nodes.by_instance.get(id_)
        if id_ in launched or id_ in census.leaving or has_joined(view, census, node):
            memory.stray_since.pop(id_, None)
            continue
        if node is not None and not node.is_joining:
            continue  # it worked once: that it is not ready now is for the health of nodes
        since = memory.stray_since.setdefault(id_, view.instant)
        census.launching += node is None
        if is_late(census, node, view.instant - since):
            census.failed.append(id_)
        else:
            census.awaited.add(id_)
            _come(census, census.domain_of(id_), 1)
