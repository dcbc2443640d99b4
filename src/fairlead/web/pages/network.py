"""Network: traffic of teams, budgets of it, and the pods that send most."""

from __future__ import annotations

from fairlead.cli.views.network import (
    BUDGET_COLUMNS,
    DESTINATION_COLUMNS,
    POD_COLUMNS,
    TrafficBy,
    budget_lines,
    budget_rows,
    destination_lines,
    pod_lines,
    pod_rows,
    traffic_columns,
    traffic_lines,
    traffic_rows,
    uncounted_words,
)
from fairlead.model.asks.teams import TeamTable
from fairlead.web.pages.site import AskedPath, Site, table_of
from fairlead.web.render import Page

PODS_MAX, TEAMS_MAX = 100, 200


async def network_page(site: Site, asked: AskedPath) -> Page:
    """Return the page, as agents last reported; with `q` the teams and pods that match.

    On which nodes nothing is limited follows from the pods of each team, which only the command
    lists, so that column is left out.
    """
    cluster, wanted = site.cluster, asked.text("q").lower()
    reports = cluster.reports.items()
    teams = [each for each in cluster.teams.items() if wanted in each.metadata.name.lower()]
    budgets = [row[:-1] for row in budget_rows(budget_lines(teams, reports, {}))]
    pods = [
        each for each in pod_lines(reports)
        if wanted in "\n".join((each.line.namespace, each.line.name, each.line.team,
                                each.node)).lower()
    ]  # fmt: skip
    table = TeamTable(cluster.teams.items())
    flows = traffic_lines(reports, table.open_to, TrafficBy.TEAM,
                          wants=lambda team, _: wanted in team.lower())  # fmt: skip
    values = {
        "traffic": table_of(traffic_columns(TrafficBy.TEAM),
                            traffic_rows(flows[:TEAMS_MAX], TrafficBy.TEAM)),
        "uncounted": uncounted_words(reports) if flows else (),
        "rights": cluster.rights, "q": asked.text("q"), "total": len(pods),
        "budgets": table_of(BUDGET_COLUMNS[:-1], budgets[:TEAMS_MAX]),
        "destinations": table_of(DESTINATION_COLUMNS, budget_rows(destination_lines(reports))),
        "budgets_total": len(budgets), "pods": table_of(POD_COLUMNS, pod_rows(pods[:PODS_MAX])),
    }  # fmt: skip
    command = site.command("network", "show", "-o", "wide", filters=(asked.text("q"),))
    return Page("network.html", "Network", values, command, "network")
