"""The cluster: each node with a cell for each GPU, by the two narrowest levels of the network.

Which GPU of a node a job has, the kubelet decides; the cells say how many. A cluster with more than
NODES_MAX nodes is shown a block at a time, and its blocks as bars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import HOSTNAME, SUBMITTED_BY
from fairlead.api.pods.pod_asks import member_amounts
from fairlead.api.values import quantity
from fairlead.cli.formats.text import natural
from fairlead.cli.views.nodes import NodeUsability, NodeUse
from fairlead.decide.words import duration
from fairlead.model.asks.requests import NAME_COLUMN
from fairlead.web.pages.home import Gpus, gpus_of, site_room
from fairlead.web.pages.room import gpus_on
from fairlead.web.pages.site import AskedPath, Site
from fairlead.web.render import Page, link
from fairlead.web.sources.view import PageFacts

NODES_MAX = 600
ROWS_MAX = 200
#: GPUs of a node that have a cell of their own.
CELLS_MAX = 32
#: Jobs of a node that its tile names.
_HOLDERS_MAX = 3
#: What keeps the free GPUs of a node from work, by its state.
_OUT = {
    NodeUsability.READY: "free", NodeUsability.SPARE: "reserved", NodeUsability.TAINTED: "cordoned",
    NodeUsability.MAINTENANCE: "cordoned", NodeUsability.CORDONED: "cordoned",
    NodeUsability.UNHEALTHY: "failed", NodeUsability.NOT_READY: "failed",
}  # fmt: skip


class Tile(NamedTuple):
    """A node: its cells as (kind, count), and all that in words."""

    name: str
    cells: Sequence[tuple[str, int]]
    words: str
    state: str


class NodeLine(NamedTuple):
    """A row of the table of nodes that match a filter."""

    name: str
    pool: str
    state: str
    gpus: str
    since: str
    reason: str


class Rack(NamedTuple):
    """Nodes of one domain of the narrowest level."""

    name: str
    tiles: Sequence[Tile]


class Block(NamedTuple):
    """Nodes of one domain of the level above; `racks` are () where they are not shown."""

    name: str
    nodes: int
    gpus: Gpus
    racks: Sequence[Rack]
    href: str


async def cluster_page(site: Site, asked: AskedPath) -> Page:
    """Return the page."""
    facts = site.cluster.facts()
    nodes = site.cluster.nodes.items()
    keys = [level.key for level in site.levels if level.key != HOSTNAME]
    blocks: dict[str, list[Node]] = {}
    for node in nodes:
        blocks.setdefault(_domain(node, keys[:-1]), []).append(node)
    given = {name: asked.text(name) for name in ("q", "state")}
    found = _matching(facts.uses.values(), given, site.cluster.clock.now())
    wanted = asked.text("block")
    is_all = len(nodes) <= NODES_MAX
    names = sorted(blocks, key=natural)
    if not is_all and wanted not in blocks and names:
        wanted = names[0]
    made = [
        _block(name, blocks[name], keys[-1:], facts, is_open=is_all or name == wanted)
        for name in names
    ]
    values = {
        "rights": site.cluster.rights, "gpus": gpus_of(facts.uses.values()), "blocks": made,
        "given": given, "found": found[:ROWS_MAX], "found_total": len(found),
        "all_states": [state.value for state in NodeUsability],
        "is_all": is_all, "nodes_total": len(nodes), "nodes_max": NODES_MAX,
        "room": site_room(site), "states": _states(facts.uses.values()),
        "levels": [level.name for level in site.levels if level.key != HOSTNAME][-2:],
        "kinds": ("used", "free", "reserved", "cordoned", "failed"),
    }  # fmt: skip
    command = site.command("nodes", "-o", "wide", filters=tuple(given.values()))
    return Page("cluster.html", "Cluster", values, command, "cluster")


def _matching(uses: Iterable[NodeUse], given: Mapping[str, str], now: float) -> Sequence[NodeLine]:
    """Return the nodes with the state and the text, the worst first; none without both."""
    if not any(given.values()):
        return ()
    order, text = {state: n for n, state in enumerate(NodeUsability)}, given["q"].lower()
    found = [
        use for use in uses
        if given["state"] in ("", use.state.value)
        and text in "\n".join((use.name, use.pool, use.state.value, use.reason)).lower()
    ]  # fmt: skip
    found.sort(key=lambda use: (-order[use.state], natural(use.name)))
    return [NodeLine(
        use.name, use.pool, use.state.value, "{}/{}".format(*reversed(gpus_on(use))),
        "-" if use.since is None else duration(now - use.since), use.reason,
    ) for use in found]  # fmt: skip


def _domain(node: Node, keys: Sequence[str]) -> str:
    """Return the domain of a node in the narrowest of these levels that it says something of."""
    labels = node.metadata.labels
    parts = [labels[key] for key in keys if labels.get(key)]
    return "/".join(parts)


def _block(
    name: str, nodes: Sequence[Node], keys: Sequence[str], facts: PageFacts, *, is_open: bool
) -> Block:
    racks: dict[str, list[Node]] = {}
    for node in nodes if is_open else ():
        racks.setdefault(_domain(node, keys), []).append(node)
    shown = [
        Rack(rack, [tile_of(node, facts) for node in _by_name(racks[rack])])
        for rack in sorted(racks, key=natural)
    ]
    uses = gpus_of(facts.uses[node.metadata.name] for node in nodes)
    return Block(name, len(nodes), uses, shown, link("cluster", block=name))


def _by_name(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: natural(node.metadata.name))


def tile_of(node: Node, facts: PageFacts) -> Tile:
    """Return a node with its GPUs."""
    name = node.metadata.name
    use = facts.uses[name]
    total, used = gpus_on(use)
    broken = max(0, _capacity(node) - total)
    free = total - used
    kept = min(free, _kept_gpus(facts, name))
    rest = free - kept
    labels = {**node.metadata.labels, NAME_COLUMN: name}
    is_reserved = use.state is NodeUsability.READY and any(
        each.holds(labels) for each in facts.reservations
    )
    kind = "reserved" if is_reserved else _OUT[use.state]
    counts = Counter({"used": used})
    counts["reserved"] += kept
    counts[kind] += rest
    counts["failed"] += broken
    words = _words(use, counts) + _held_by(facts.on_node.get(name, ()))
    return Tile(name, _few(counts), words, use.state.value)


def _held_by(jobs: Sequence[Job]) -> str:
    """Return the jobs on a node in words, and whose they are."""
    names = [f"{'/'.join(job.metadata.key)}{_of_user(job)}" for job in jobs]
    more = len(names) - _HOLDERS_MAX
    return f"; held by {', '.join(names[:_HOLDERS_MAX])}" * bool(names) + (
        f" and {more} more" if more > 0 else ""
    )


def _of_user(job: Job) -> str:
    user = job.metadata.annotations.get(SUBMITTED_BY, "")
    return f" of {user}" if user else ""


def _kept_gpus(facts: PageFacts, name: str) -> int:
    """Return the GPUs of a node that are kept for jobs whose place others leave."""
    found = 0
    for job in facts.kept.get(name, ()):
        nomination = job.status.nomination
        asked = {role.name: member_amounts(role.template.spec) for role in job.spec.roles}
        for role in nomination.roles if nomination is not None else ():
            own = asked.get(role.role, {})
            gpus = sum(amount for each, amount in own.items() if quantity.is_gpu(each))
            found += role.nodes.count(name) * gpus
    return found


def _few(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return at most CELLS_MAX cells, by kind."""
    left, found = CELLS_MAX, list[tuple[str, int]]()
    for kind, count in counts.items():
        shown = min(count, left)
        if shown:
            found.append((kind, shown))
        left -= shown
    return found


def _words(use: NodeUse, counts: Mapping[str, int]) -> str:
    parts = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    reason = f", {use.reason}" if use.reason else ""
    return f"{use.name}: {use.state.value}{reason}; GPUs: {parts or 'none'}"


def _capacity(node: Node) -> int:
    found = quantity.resources_to_base(node.status.capacity)
    return sum(amount for name, amount in found.items() if quantity.is_gpu(name))


def _states(uses: Iterable[NodeUse]) -> list[tuple[str, int]]:
    counts = Counter(use.state for use in uses)
    return [(state.value, counts[state]) for state in NodeUsability if counts[state]]
