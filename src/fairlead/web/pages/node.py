"""One node: its state and what happens next, its faults, who is hit, and its past."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.cli.views.node import (
    FAULT_COLUMNS,
    TRY_COLUMNS,
    fault_rows,
    node_facts,
    slow_members,
    try_rows,
)
from fairlead.cli.views.node_tests import (
    COMPARED_COLUMNS,
    TEST_COLUMNS,
    compared_rows,
    rows_of_tests,
)
from fairlead.cli.views.nodes import pool_of
from fairlead.model.health.node_record import record_of
from fairlead.model.pools.pool_nodes import uses_node
from fairlead.web.pages.change import node_offers
from fairlead.web.pages.cluster import tile_of
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site, job_lines, table_of
from fairlead.web.render import Page
from fairlead.web.sources.history_reads import NodePast
from fairlead.web.sources.view import PageFacts

_PODS_MAX = 50
_TESTS_MAX, _FIGURES_MAX, _DECISIONS_MAX, _RAN_MAX, _SLOW_MAX = 20, 60, 30, 10, 5
#: Tests and history follow where they take longer to read.
PATIENCE_SECONDS = 0.2


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
    faults = fault_rows(report, node, now)
    tries = try_rows(record, now) if record is not None else []
    own = {job.metadata.uid: job for job in (*facts.on_node.get(name, ()), *_ran_here(facts, name))}
    slow = [("slow", text) for text in slow_members(own.values(), name, now)[:_SLOW_MAX]]
    values = {
        "node": node, "offers": node_offers(node), "pool": pool_of(node),
        "tile": tile_of(node, facts),
        "facts": [*node_facts(node, report, now), *slow], "rights": cluster.rights,
        "faults": table_of(FAULT_COLUMNS, faults), "tries": table_of(TRY_COLUMNS, tries),
        "lines": job_lines(site, facts.on_node.get(name, ()), now),
        "kept": job_lines(site, facts.kept.get(name, ()), now),
        "pods": ["/".join(pod.metadata.key) for pod in others[:_PODS_MAX]],
        "pods_total": len(others),
        **await _past(site, node, now),
        "ran": job_lines(site, _ran_here(facts, name)[:_RAN_MAX], now),
        "history_command": site.command("node", "show", name, "--history"),
    }  # fmt: skip
    return Page("node.html", name, values, site.command("node", name), "cluster")


async def _past(site: Site, node: Node, now: float) -> dict[str, object]:
    """Return the node's tests, the latest beside those of its shape, and what was decided of it."""
    key = (node.metadata.name, node.metadata.labels.get(names.POOL, ""))
    found = await site.questions.node_past(key, patience_seconds=PATIENCE_SECONDS)
    past = found or NodePast()
    latest = next((each for each in past.tests if each.status.measured), None)
    compared = compared_rows(latest, past.all_tests) if latest is not None else []
    return {
        "is_read": found is not None, "problem": past.problem,
        "tests": table_of(TEST_COLUMNS, rows_of_tests(past.tests[:_TESTS_MAX], now)),
        "tests_total": len(past.tests), "latest": latest,
        "compared": table_of(COMPARED_COLUMNS, compared[:_FIGURES_MAX]),
        "decided": [
            (each.at_ms / 1_000, each.action, each.reason, each.message)
            for each in past.decisions[:_DECISIONS_MAX]
        ],
        "decided_total": len(past.decisions),
        "tests_command": site.command("node", "tests"),
    }  # fmt: skip


def _ran_here(facts: PageFacts, name: str) -> list[Job]:
    """Return jobs that have ended, are kept, and had a place on the node, or lost it under one."""
    return [
        job for job in facts.jobs
        if job.is_finished and (
            name in nodes_of(job.status.placement)
            or any(name in each.nodes_lost for each in job.status.attempts)
        )
    ]  # fmt: skip
