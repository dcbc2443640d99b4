"""The wires: a bridge in the control plane's namespace, one link to each node, one to the machine.

Pods have routed addresses, a subnet for each node, and no address translation. The machine reaches
nodes, pods and Services over its own link, and nothing of the cluster reaches further than that.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess

from tools.cluster.layout import CONTROL_PLANE, SLOTS_MAX, Layout
from tools.cluster.processes import NETNS

BRIDGE = "nodes"


def ip(*arguments: str) -> str:
    """Run the program ip and return what it prints."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def free_slot() -> int:
    """Return the first slot whose addresses this machine does not use."""
    taken = [
        ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False)
        for link in json.loads(ip("-json", "address", "show"))
        for address in link["addr_info"]
        if address["family"] == "inet"
    ]
    taken += [
        ipaddress.ip_network(route["dst"])
        for route in json.loads(ip("-json", "-4", "route", "show"))
        if route["dst"] != "default"
    ]
    for slot in range(SLOTS_MAX):
        layout = Layout(NETNS, slot, 1)
        wanted = [ipaddress.ip_network(net) for net in (layout.lan, layout.pods, layout.services)]
        if not any(net.overlaps(other) for net in wanted for other in taken):
            return slot
    raise RuntimeError(f"the networks of all {SLOTS_MAX} slots are in use on this machine")


def connect(layout: Layout) -> None:
    """Make namespaces, links, addresses and routes."""
    control_plane = layout.namespace(CONTROL_PLANE)
    for machine in layout.machines:
        ip("netns", "add", layout.namespace(machine))
        ip("-n", layout.namespace(machine), "link", "set", "lo", "up")
    ip("-n", control_plane, "link", "add", BRIDGE, "type", "bridge")
    ip("-n", control_plane, "address", "add", f"{layout.address(CONTROL_PLANE)}/24", "dev", BRIDGE)
    ip("-n", control_plane, "link", "set", BRIDGE, "up")
    ip("link", "add", layout.host_link, "type", "veth", "peer", "name", "host",
       "netns", control_plane)  # fmt: skip
    ip("-n", control_plane, "link", "set", "host", "master", BRIDGE, "up")
    ip("address", "add", f"{layout.address('host')}/24", "dev", layout.host_link)
    ip("link", "set", layout.host_link, "up")
    for network in (layout.pods, layout.services):
        ip("route", "add", network, "via", layout.address(CONTROL_PLANE), "dev", layout.host_link)
    # Addresses of Services need some route before they are rewritten.
    ip("-n", control_plane, "route", "add", "default", "via", layout.address("host"))
    for node in layout.nodes:
        _connect_node(layout, node)
    for machine in layout.machines:
        for other in layout.nodes:
            if other != machine:
                ip("-n", layout.namespace(machine), "route", "add", layout.pods_of(other),
                   "via", layout.address(other))  # fmt: skip


def _connect_node(layout: Layout, node: str) -> None:
    control_plane, own = layout.namespace(CONTROL_PLANE), layout.namespace(node)
    ip("-n", control_plane, "link", "add", node, "type", "veth", "peer", "name", "eth0",
       "netns", own)  # fmt: skip
    ip("-n", control_plane, "link", "set", node, "master", BRIDGE, "up")
    ip("-n", own, "address", "add", f"{layout.address(node)}/24", "dev", "eth0")
    ip("-n", own, "link", "set", "eth0", "up")
    ip("-n", own, "route", "add", "default", "via", layout.address(CONTROL_PLANE))


def disconnect(layout: Layout) -> None:
    """Remove what `connect` made; what is not there is not missed."""
    # The link first: the kernel removes the links of a namespace some time after the namespace.
    try:
        ip("link", "delete", layout.host_link)
    except RuntimeError:
        links = {link["ifname"] for link in json.loads(ip("-json", "link", "show"))}
        if layout.host_link in links:
            raise
    for machine in layout.machines:
        if (NETNS / layout.namespace(machine)).exists():
            ip("netns", "delete", layout.namespace(machine))
