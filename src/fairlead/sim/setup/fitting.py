"""Which jobs of a world can never run, however empty its nodes are.

Such a job breaks no promise: it waits, and its verdict must say that it is impossible. An array of
such jobs waits as long as one of them does, and must say so too. The rule here is simpler than the
planner's and shares no code with it: members of one role need room on equal, empty nodes; several
roles must have room one by one. Domains are those of the virtual nodes, in the order of their
names; nodes that are bought have none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlead.api.meta import to_wire
from fairlead.api.values.indices import parse_indices
from fairlead.api.values.quantity import GPU, resources_to_base
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.setup.devices import members_per_node
from fairlead.sim.setup.volumes import VolumeChecker
from fairlead.sim.setup.workload import Arrival, job_spec
from fairlead.sim.setup.world_options import WorldOptions


def never_fits(body: dict[str, Any], options: WorldOptions) -> str:
    """Return why a job can never run in a world; "" if it can."""
    nodes = options.nodes + sum(pool.max - pool.spares for pool in options.pools)
    held = resources_to_base(options.profile.node.resources)
    for role in job_spec(body)["roles"]:
        count = int(role.get("minCount", role.get("count", 1)))
        asked = _asked(role["template"]["spec"])
        lacking = [name for name, amount in asked.items() if amount > held.get(name, 0)]
        if lacking:
            name = lacking[0]
            return f"a member asks for {asked[name]} {name}, a node has {held.get(name, 0)}"
        per_node = room_of_node(role["template"], options)
        if count > (room := nodes * per_node):
            gpus = f" with {asked[GPU]} GPUs each" if asked.get(GPU) else ""
            return (
                f"a gang of {count} members{gpus} cannot fit: {nodes} nodes with "
                f"{held.get(GPU, 0)} GPUs hold {room} of them"
            )
        topology = job_spec(body).get("topology")
        if topology and count > (room := _room_together(topology, per_node, options)):
            return f"a gang of {count} members cannot be together: its domains hold {room} of them"
    return ""


def room_of_node(template: dict[str, Any], options: WorldOptions) -> int:
    """Return how many members of a template have room on an empty node."""
    pod, held = template["spec"], resources_to_base(options.profile.node.resources)
    room = min(held.get(name, 0) // amount for name, amount in _asked(pod).items())
    if pod.get("resourceClaims"):
        devices = options.workload.devices
        room = min(room, members_per_node(pod, devices, options.profile.node))
    return min(room, 1) if _keeps_apart(template) else room


def _room_together(asked: dict[str, Any], per_node: int, options: WorldOptions) -> int:
    """Return how many members have room in one domain of the level that they require, in slices."""
    shape, nodes = options.profile.node, options.nodes
    per_block = shape.nodes_per_rack * shape.racks_per_block
    per_domain = {
        "host": 1, "rack": shape.nodes_per_rack, "block": per_block,
        "zone": per_block * shape.blocks_per_zone,
    }  # fmt: skip
    outer = per_domain[asked["key"]] if asked.get("required") else max(nodes, 1)
    size = asked.get("sliceSize", 1)
    inner = per_domain[asked["sliceLevel"]] if size > 1 else 1
    most = 0
    for start in range(0, nodes, outer):
        end = min(start + outer, nodes)
        rooms = [per_node * (min(at + inner, end) - at) for at in range(start, end, inner)]
        whole = sum(room // size * size for room in rooms)
        most = max(most, whole + max(room % size for room in rooms))  # the last slice may be less
    return most


def unfit_jobs(arrivals: Iterable[Arrival], options: WorldOptions) -> dict[ObjectKey, str]:
    """Return the jobs that can never run and why, in order of arrival; elements of arrays too."""
    found: dict[ObjectKey, str] = {}
    for arrival in arrivals:
        why = never_fits(arrival.body, options)
        if why:
            namespace = arrival.body["metadata"].get("namespace", "")
            keys = ((namespace, name) for name in (arrival.name, *_elements(arrival)))
            found |= dict.fromkeys(keys, why)
    return found


def out_of_reach(volumes: VolumeChecker, options: WorldOptions) -> dict[ObjectKey, str]:
    """Return the jobs that can not run any more and why: more of their members must be on the nodes
    that reach their volumes than these hold. Arrays of such jobs are not among them.
    """
    found: dict[ObjectKey, str] = {}
    for key, role, members in volumes.waiting():
        room = room_of_node(to_wire(role.template), options)
        for nodes, count in members.items():
            if count > len(nodes) * room:
                found[key] = f"{len(nodes)} nodes reach the volumes of {count} members, {room} each"
    return found


def _elements(arrival: Arrival) -> list[str]:
    """Return the names of the jobs of an array; none of a job."""
    if arrival.body["kind"] != "JobArray":
        return []
    return [f"{arrival.name}-{index}" for index in parse_indices(arrival.body["spec"]["indices"])]


def _keeps_apart(template: dict[str, Any]) -> bool:
    """True when two pods of a template of `sim/setup/workload.py` may not be on one node."""
    spec, labels = template["spec"], template["metadata"].get("labels", {})
    if any(p.get("hostPort") for c in spec["containers"] for p in c.get("ports", ())):
        return True
    anti = spec.get("affinity", {}).get("podAntiAffinity", {})
    terms = anti.get("requiredDuringSchedulingIgnoredDuringExecution", ())
    return any(t["labelSelector"]["matchLabels"].items() <= labels.items() for t in terms)


def _asked(pod: dict[str, Any]) -> dict[str, int]:
    """Return what one pod asks for, in base units; nothing for what it does not name."""
    total = {"pods": 1}
    for container in pod["containers"]:
        resources = container.get("resources", {})
        wanted = resources_to_base({**resources.get("limits", {}), **resources.get("requests", {})})
        for name, amount in wanted.items():
            total[name] = total.get(name, 0) + amount
    return {name: amount for name, amount in total.items() if amount}
