"""Pods of the host's network, told from the node by their cgroups: where those are, and the rules.

Such a pod has the node's addresses, so its sockets say whose a packet is: nft's `socket cgroupv2`
(nft(8), "SOCKET EXPRESSION"). libnftables-json(5) has no such expression, so what uses it is a
transaction of nft's own language, apart from the others: where nft or the kernel refuses it, the
same chains count these pods with the node. Names in it are checked before: `find_hosts` takes none
that is not of Kubernetes' grammar, and no path that is not of a kubelet's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairlead.node.running.host import Absent, Host
from fairlead.node.traffic.classes import FAMILIES
from fairlead.node.traffic.pods import CountedPod, is_named_soundly
from fairlead.node.traffic.ruleset import (
    DIRECTIONS,
    TABLE,
    AddressOwner,
    CountingPlan,
    CountingRules,
    counter_name,
    host_chain,
    host_map,
)

#: Pods of the host's network that are counted; some on each node are usual.
HOST_PODS_MAX = 64
ROOT = "sys/fs/cgroup"
#: Of kubelets with either driver, also below a slice of their own (kind): how deep pods are.
_PARENT = re.compile(r"kubelet(\.slice)?|([a-z0-9-]+-)?kubepods(-besteffort|-burstable)?(\.slice)?|"
                     r"besteffort|burstable")  # fmt: skip
_POD = re.compile(r"(?:[a-z0-9-]+-)?pod([A-Za-z0-9_-]{1,64}?)(?:\.slice)?")
_DEPTH_MAX = 5
_RUNNING = "Running"


def find_hosts(host: Host, pods: Iterable[CountedPod]) -> tuple[dict[str, AddressOwner], str]:
    """Return the cgroups of running pods of the host's network, and why some have none ("": all).

    A cgroup is its path below the root, as nft writes it.
    """
    wanted = {
        each.metadata.uid.replace("_", "-"): each.owner
        for each in sorted(pods, key=lambda each: each.owner)
        if each.spec.host_network
        and each.status.phase == _RUNNING
        and is_named_soundly(each.metadata)
    }
    if not wanted:
        return {}, ""
    if not _has(host, "cgroup.controllers"):
        return {}, f"/{ROOT} is no hierarchy of cgroups of version 2"
    found = {
        path: wanted[uid] for uid, path in sorted(_pods_below(host, "", 0)) if uid in wanted
    }  # fmt: skip
    counted = dict(list(found.items())[:HOST_PODS_MAX])
    missing = len(wanted) - len(counted)
    return counted, f"the cgroup of {missing} of them is not known" if missing else ""


def _pods_below(host: Host, path: str, depth: int) -> Iterable[tuple[str, str]]:
    """Yield (uid, path) of the pods' cgroups."""
    try:
        names = host.names(ROOT, path) if path else host.names(ROOT)
    except (Absent, OSError):
        return
    for name in names:
        below = f"{path}/{name}" if path else name
        if depth < _DEPTH_MAX and _PARENT.fullmatch(name):
            yield from _pods_below(host, below, depth + 1)
        elif depth and (pod := _POD.fullmatch(name)):
            yield pod[1].replace("_", "-"), below


def _has(host: Host, name: str) -> bool:
    try:
        host.present(ROOT, name)
    except (Absent, OSError):
        return False
    return True


def host_rules(plan: CountingPlan, rules: CountingRules) -> str:
    """Return one transaction in nft's language that tells host pods from the node.

    A packet of a socket in such a cgroup is counted for its pod and leaves the chain of its class;
    any other goes on to the rule that counts for the address. A map is asked once for each level at
    which there are pods, since a socket may be in a cgroup below its pod's.
    """
    lines: list[str] = []
    levels = sorted({len(path.split("/")) for path in rules.hosts})
    for name in plan.classes:
        for direction in DIRECTIONS:
            where = host_map(name, direction, rules.number)
            lines.append(f"add map inet {TABLE} {where} {{ type cgroupsv2 : counter; }}")
            elements = ", ".join(
                f'"{path}" : "{counter_name(owner, name, direction, is_host=True)}"'
                for path, owner in sorted(rules.hosts.items())
            )
            lines.append(f"add element inet {TABLE} {where} {{ {elements} }}")
            lines += [
                f"insert rule inet {TABLE} {host_chain(name, direction, family, rules.number)} "
                f"counter name socket cgroupv2 level {level} map @{where} return"
                for family in FAMILIES
                for level in levels
            ]
    return "".join(f"{line}\n" for line in lines)
