"""One node: its state and what happens next, its faults, and who is hit."""

from __future__ import annotations

from fairlead.cli.views.node import FAULT_COLUMNS, TRY_COLUMNS, fault_rows, node_facts, try_rows
from fairlead.cli.views.nodes import pool_of
from fairlead.model.health.node_record import record_of
from fairlead.model.pools.pool_nodes import uses_node
from fairlead.web.pages.change import node_offers
from fairlead.web.pages.cluster import tile_of
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site, job_lines, table_of
from fairlead.web.render import Page

_PODS_MAX = 50


async def node_page(site: Site, asked: AskedPath) -> Page:
    """Return the page of a node; NoSuchPage."""
    name = asked.path[1]
    cluster = site.cluster
    node = cluster.nodes.get("", name)
    if node is None:
        why = "" if cluster.rights.nodes else ": you may not list nodes"
        raise NoSuchPage(f"there is no node {name}{why}")
    facts, now = cluster.facts(), cluster.clock.now()
    report = cluster.reports.get("", name)
    record = record_of(node.metadata.annotations)
    others = [
        pod for pod in cluster.others.items() if pod.spec.node_name == name and uses_node(pod)
    ]
    faults = fault_rows(report, node, now) if report is not None else []
    tries = try_rows(record, now) if record is not None else []
    values = {
        "node": node, "offers": node_offers(node), "pool": pool_of(node),
        "tile": tile_of(node, facts),
        "facts": list(node_facts(node, report, now)), "rights": cluster.rights,
        "faults": table_of(FAULT_COLUMNS, faults), "tries": table_of(TRY_COLUMNS, tries),
        "lines": job_lines(site, facts.on_node.get(name, ()), now),
        "kept": job_lines(site, facts.kept.get(name, ()), now),
        "pods": ["/".join(pod.metadata.key) for pod in others[:_PODS_MAX]],
        "pods_total": len(others),
        "history_command": site.command("node", "show", name, "--history"),
    }  # fmt: skip
    return Page("node.html", name, values, site.command("node", name), "cluster")
