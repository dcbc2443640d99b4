"""Balloons: which pods hold the idle nodes of a pool whose machines another autoscaler owns.

An autoscaler removes idle nodes, and adds nodes for pods that have none. A balloon is a pod of low
priority that takes most of a node: it keeps one that is idle, and where there is none, it waits and
so asks for one. How many there are to be is in the status of the pool (`external.py`).

Two balloons never share a node: each asks for more than half of it, and for all of its devices. So
no rule between pods is needed, whose cost grows with the square of their number. The rest of the
node is left to DaemonSets, and to differences between a template and its nodes.

A balloon is deleted as soon as a job has a place on its node, or a pod of others runs there.
Another one is created for it, which holds or asks for another node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from fairlead.api import names
from fairlead.api.cluster.node_pool import VALID, NodePool
from fairlead.api.kubernetes.core import Pod, Toleration
from fairlead.api.meta import is_true, to_wire
from fairlead.api.values import quantity
from fairlead.decide.fleet.settings import BalloonSettings
from fairlead.decide.pinning import Binding, native_affinity, own_binding
from fairlead.model.inventory.labels import is_condition_taint, tolerates
from fairlead.model.pools.balloons import KIND
from fairlead.model.pools.pool_nodes import PoolNode, PoolNodes

#: Shared by all pods of a node; of any other resource, a balloon takes all.
_DIVISIBLE = (quantity.CPU, quantity.MEMORY, quantity.EPHEMERAL_STORAGE)
#: Of a node's divisible resources, what a balloon asks for: more than half, and not all.
_SHARE = (3, 4)
_HARD_EFFECTS = ("NoSchedule", "NoExecute")
_USER = 65535


#: Settings say what the fields of their names are for, and have the defaults.
_SETTINGS = BalloonSettings()


@dataclass(frozen=True, slots=True)
class BalloonPolicy:
    """The options of the balloon controller."""

    #: Fairlead's own namespace; "": there are no balloons.
    namespace: str = ""
    image: str = _SETTINGS.image
    #: Who binds pods where a node does not say.
    binding: Binding = Binding.NATIVE
    changes_max: int = _SETTINGS.changes_max
    evictions_max: int = _SETTINGS.evictions_max
    interval_seconds: float = 1.0


class BalloonEnding(Enum):
    """Why a balloon is deleted. The closed set."""

    NODE_IN_USE = "NodeInUse"
    NODE_CLOSED = "NodeClosed"
    OVER = "Over"
    OUTDATED = "Outdated"
    SURPLUS = "Surplus"
    POOL_GONE = "PoolGone"


@dataclass(frozen=True, slots=True)
class CreateBalloon:
    """Create a balloon of a pool, which waits until it has a node."""

    pool: NodePool
    body: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        meta = self.body["metadata"]
        return (meta["namespace"], meta["name"])


@dataclass(frozen=True, slots=True)
class EndBalloon:
    """Delete this very balloon."""

    pod: Pod
    why: BalloonEnding


Action: TypeAlias = CreateBalloon | EndBalloon


def may_stand(node: PoolNode, pool: NodePool, binding: Binding) -> bool:
    """True when balloons of the pool may be on a node, of whatever team it is.

    Not where members are bound without a look at what the node has left, nor on nodes that are
    cordoned, to be removed or tainted otherwise than the template says. Taints that follow a node's
    condition are left to Kubernetes, which evicts after some minutes.
    """
    if node.is_cordoned or node.removal or node.pool != pool.metadata.name:
        return False
    if (own_binding(node.node.metadata.labels) or binding) is Binding.DIRECT:
        return False
    tolerations = _tolerations(pool)
    return all(
        taint.effect not in _HARD_EFFECTS or is_condition_taint(taint)
        or any(tolerates(toleration, taint) for toleration in tolerations)
        for taint in node.node.spec.taints
    )  # fmt: skip


def may_have_balloons(pool: NodePool, binding: Binding | None) -> bool:
    """True when another scheduler binds pods on the nodes of a pool."""
    own = own_binding(pool.spec.template.labels)
    return binding is not None and (own or binding) is not Binding.DIRECT


def plan_pool(
    pool: NodePool,
    nodes: PoolNodes,
    policy: BalloonPolicy,
    *,
    balloons: Sequence[Pod],
    is_taken: Callable[[str], bool],
) -> list[Action]:
    """Return what to do about the balloons of one pool: those for real work first.

    `balloons` are the pool's, in any order; `is_taken`: a pod of this name is there already.
    While the pool's spec is not judged, or is wrong, balloons only leave for real work. One that a
    scheduler has put beside real work holds no idle node, so it does not count. It stays until
    enough others have a node: while some wait, the scheduler would put the next one there again.
    """
    stay: list[Pod] = []
    evicted: list[Action] = []
    ended: list[Action] = []
    beside: list[Action] = []
    is_judged = _is_judged(pool)
    digest = _digest(_spec(pool, policy)) if is_judged else ""
    for pod in sorted(balloons, key=_order):
        if pod.metadata.deletion_timestamp is not None:
            continue
        is_beside = bool(pod.spec.node_name) and nodes.is_used(pod.spec.node_name)
        if is_beside and pod.metadata.key in nodes.late_balloons:
            beside.append(EndBalloon(pod, BalloonEnding.SURPLUS))
        elif is_beside:
            evicted.append(EndBalloon(pod, BalloonEnding.NODE_IN_USE))
        elif (why := _fault(pod, pool, nodes, policy)) is not None:
            ended.append(EndBalloon(pod, why))
        elif is_judged and pod.metadata.labels.get(names.BALLOON) != digest:
            ended.append(EndBalloon(pod, BalloonEnding.OUTDATED))
        else:
            stay.append(pod)
    if not is_judged:
        return [*evicted, *ended]
    target = _target(pool, policy)
    if sum(bool(pod.spec.node_name) for pod in stay) >= target:
        ended += beside
    # Those that wait go first, then the ones that were made last.
    surplus = sorted(stay, key=lambda pod: (not pod.spec.node_name, _order(pod)), reverse=True)
    ended += [
        EndBalloon(pod, BalloonEnding.SURPLUS) for pod in surplus[: max(0, len(stay) - target)]
    ]
    number, made = 0, list[Action]()
    while len(stay) + len(made) < target and len(made) < policy.changes_max:
        if not is_taken(_name(pool, number)):
            made.append(CreateBalloon(pool, balloon(pool, number, policy)))
        number += 1
    return [*evicted, *ended, *made]


def orphans(balloons: Sequence[Pod]) -> list[Action]:
    """Return the ends of balloons whose pool is gone."""
    return [
        EndBalloon(pod, BalloonEnding.POOL_GONE)
        for pod in sorted(balloons, key=_order)
        if pod.metadata.deletion_timestamp is None
    ]


def bounded(actions: Sequence[Action], policy: BalloonPolicy) -> tuple[Action, ...]:
    """Return what may be done within one interval; what leaves for real work has its own bound."""
    evicted = [each for each in actions if _is_eviction(each)]
    others = [each for each in actions if not _is_eviction(each)]
    return (*evicted[: policy.evictions_max], *others[: policy.changes_max])


def _is_eviction(action: Action) -> bool:
    return isinstance(action, EndBalloon) and action.why is BalloonEnding.NODE_IN_USE


def balloon(pool: NodePool, number: int, policy: BalloonPolicy) -> dict[str, Any]:
    """Return the body of a balloon."""
    spec, meta = _spec(pool, policy), pool.metadata
    owner = {
        "apiVersion": names.API_VERSION, "kind": KIND, "name": meta.name, "uid": meta.uid,
        "controller": True,
    }  # fmt: skip
    return {
        "metadata": {
            "name": _name(pool, number), "namespace": policy.namespace,
            "labels": {
                names.POOL: meta.name, names.BALLOON: _digest(spec), names.MANAGED_BY: "fairlead",
                names.GANG_SCHEDULING: "disabled",
            },
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }  # fmt: skip


def _name(pool: NodePool, number: int) -> str:
    return f"balloon-{pool.metadata.name}-{number}"


def _order(pod: Pod) -> tuple[int, str]:
    """Order by the number of a balloon."""
    name = pod.metadata.name
    return (len(name), name)


def _is_judged(pool: NodePool) -> bool:
    """True when the fleet controller has found the present spec valid, or the pool is to go."""
    is_seen = pool.status.observed_generation == pool.metadata.generation
    is_ending = pool.metadata.deletion_timestamp is not None
    return is_ending or (is_seen and is_true(pool.status.conditions, VALID))


def _target(pool: NodePool, policy: BalloonPolicy) -> int:
    counts = pool.status.balloons
    if counts is None or not (pool.is_external and pool.is_active):
        return 0
    return counts.wanted if may_have_balloons(pool, policy.binding) else 0


def _fault(
    pod: Pod, pool: NodePool, nodes: PoolNodes, policy: BalloonPolicy
) -> BalloonEnding | None:
    if pod.is_terminal:
        return BalloonEnding.OVER
    node = nodes.by_name.get(pod.spec.node_name)
    if node is not None and not may_stand(node, pool, policy.binding):
        return BalloonEnding.NODE_CLOSED
    return None


def _spec(pool: NodePool, policy: BalloonPolicy) -> dict[str, Any]:
    template = pool.spec.template
    numerator, denominator = _SHARE
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for resource, amount in quantity.resources_to_base(template.resources).items():
        if resource == quantity.PODS:
            continue
        if resource in _DIVISIBLE:
            amount = -(-amount * numerator // denominator)
        else:  # the API server requires it
            limits[resource] = quantity.format_base(resource, amount)
        requests[resource] = quantity.format_base(resource, amount)
    affinity = native_affinity(None, policy.binding)
    return {
        "containers": [
            {
                "name": "pause", "image": policy.image,
                "resources": {"requests": requests, **({"limits": limits} if limits else {})},
                "securityContext": {
                    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "nodeSelector": {**template.labels, names.POOL: pool.metadata.name},
        "affinity": to_wire(affinity),
        "tolerations": [to_wire(each) for each in _tolerations(pool)],
        "priorityClassName": names.BALLOON_PRIORITY_CLASS,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }  # fmt: skip


def _tolerations(pool: NodePool) -> tuple[Toleration, ...]:
    """Return what balloons tolerate: nodes of every team, and the taints of the template."""
    own = (
        Toleration(key=t.key, operator="Equal", value=t.value, effect=t.effect)
        for t in pool.spec.template.taints
    )
    return (Toleration(key=names.TEAM, operator="Exists", effect="NoSchedule"), *own)


def _digest(spec: dict[str, Any]) -> str:
    text = msgspec.json.encode(spec, order="deterministic")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
