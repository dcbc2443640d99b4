"""Which jobs of a world can never run, however empty its nodes are.

Such a job breaks no promise: it waits, and its verdict must say that it is impossible. The rule
here is simpler than the planner's and shares no code with it: members of one role need room on
equal, empty nodes; several roles must have room one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlead.api.quantity import GPU, resources_to_base
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.workload import Arrival
from fairlead.sim.world_options import WorldOptions


def never_fits(body: dict[str, Any], options: WorldOptions) -> str:
    """Return why a job can never run in a world; "" if it can."""
    nodes = options.nodes + sum(pool.max for pool in options.pools)
    held = resources_to_base(options.profile.node.resources)
    for role in body["spec"]["roles"]:
        count, asked = int(role.get("count", 1)), _asked(role["template"]["spec"])
        lacking = [name for name, amount in asked.items() if amount > held.get(name, 0)]
        if lacking:
            name = lacking[0]
            return f"a member asks for {asked[name]} {name}, a node has {held.get(name, 0)}"
        per_node = min((held[name] // amount for name, amount in asked.items()), default=count)
        if _keeps_apart(role["template"]):
            per_node = min(per_node, 1)
        if count > (room := nodes * per_node):
            gpus = f" with {asked[GPU]} GPUs each" if asked.get(GPU) else ""
            return (
                f"a gang of {count} members{gpus} cannot fit: {nodes} nodes with "
                f"{held.get(GPU, 0)} GPUs hold {room} of them"
            )
    return ""


def unfit_jobs(arrivals: Iterable[Arrival], options: WorldOptions) -> dict[ObjectKey, str]:
    """Return the jobs that can never run and why, in order of arrival."""
    found: dict[ObjectKey, str] = {}
    for arrival in arrivals:
        why = never_fits(arrival.body, options)
        if why:
            found[arrival.body["metadata"].get("namespace", ""), arrival.name] = why
    return found


def _keeps_apart(template: dict[str, Any]) -> bool:
    """True when two pods of a template of `sim/workload.py` may not be on one node."""
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
