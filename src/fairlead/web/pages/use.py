"""Use: running jobs by what they use of what they hold, those that hold most idle GPUs first."""

from __future__ import annotations

from fairlead.cli.views.top import KEYS, TopLine, columns, rows, sums
from fairlead.web.pages.site import AskedPath, Site, table_of
from fairlead.web.render import Page, link
from fairlead.web.sources.history_reads import ClusterUse

ROWS_MAX = 100
PATIENCE_SECONDS = 0.4


async def use_page(site: Site, asked: AskedPath) -> Page:
    """Return the page: the jobs that are visible, or their sums; with `idle` those alone that use
    almost nothing.
    """
    cluster = site.cluster
    by, wanted, is_idle = asked.text("by"), asked.text("q"), asked.text("idle") == "1"
    by = by if by in KEYS else ""
    may = cluster.rights.jobs is None and cluster.rights.pods is None
    found = None
    if may:
        jobs = cluster.facts().jobs
        found = await site.questions.cluster_use(jobs, patience_seconds=PATIENCE_SECONDS)
    use = found or ClusterUse(cluster.clock.now())
    lines = [line for line in use.lines if line.idle_jobs or not is_idle]
    summed = sums(lines, by) if by else lines
    shown = [
        (link(*_where(line, by)), row)
        for line, row in zip(summed, rows(summed, by, spread=True), strict=True)
        if wanted.lower() in " ".join(row).lower()
    ]
    values = {
        "may": may, "is_read": found is not None, "use": use, "by": by, "keys": KEYS,
        "q": wanted, "idle": is_idle, "total": len(shown),
        "table": table_of(columns(by, spread=True), [row for _, row in shown[:ROWS_MAX]]),
        "links": [href for href, _ in shown[:ROWS_MAX]],
    }  # fmt: skip
    words = ("top", *(("--by", by) if by else ()), *(("--idle",) if is_idle else ()))
    return Page(
        "use.html", "Use", values, site.command(*words, namespace="", filters=(wanted,)), "usage"
    )


def _where(line: TopLine, by: str) -> tuple[str, ...]:
    """Return the page of what a line is about, in its parts."""
    if by == "team" and line.team:
        return ("teams", line.team)
    return ("jobs", line.namespace, line.name) if not by else ("use",)
