"""`network`: traffic of teams and jobs, what goes to the internet, and which limits that has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import msgspec

from fairlead.api.cluster.node_report import ReportedFlow
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import JobTraffic
from fairlead.api.kubernetes.core import Pod
from fairlead.api.names import JOB_NAME
from fairlead.api.resources import NODE_REPORTS, NODES, PODS, TEAMS
from fairlead.api.status import NotFound
from fairlead.api.values.egress import TrafficDirection
from fairlead.cli.commands.doctor import access_flags
from fairlead.cli.connection.common import Common, common
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.ended_jobs import past_traffic, present_or_past_job
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
    why_lines,
    with_ended,
)
from fairlead.input.errors import CliError, Code, fail
from fairlead.model.asks.teams import TeamTable

_PODS_MAX = 20


@click.group(
    epilog="""Examples:

    \b
      fairlead network traffic
      fairlead network show --team vision
      fairlead network why loader-0
    """
)
def network() -> None:
    """Show what teams and pods send where.

    Traffic by class, budgets for the internet, and the limits of a pod, from what the agents of the
    nodes last reported. This machine: fairlead agent network.
    """


@network.command(
    epilog="""Examples:

    \b
      fairlead network traffic                 teams, by class of the other end
      fairlead network traffic --by job --class internet
      fairlead network traffic -n vision --job train-7
    """
)
@click.option(
    "--by", type=click.Choice([each.value for each in TrafficBy]), default=TrafficBy.TEAM.value,
    show_default=True, help="What a line is of.",
)  # fmt: skip
@click.option("--team", metavar="NAME", default="", help="Only this team.")
@click.option("--job", metavar="NAME", default="", help="Only this job; implies --by job.")
@click.option(
    "--class", "traffic_class", metavar="NAME", default="",
    help="Only this class: internal, peered, storage, internet or an own one.",
)  # fmt: skip
@common()
def traffic(common_: Common, *, by: str, team: str, job: str, traffic_class: str) -> None:
    """Show what pods send and receive, by team, namespace or job and class.

    Rates are in bits per second over about a minute, sums since the nodes began to count. What a
    job's ended pods have sent is in its namespace's line; of a job that has ended, --job has it
    from the history.
    """
    api = common_.connect()
    reports = list(api.list(NODE_REPORTS))
    table = TeamTable(api.list(TEAMS))
    space = common_.space(api.connection.namespace) if job else common_.namespace
    kind = TrafficBy.JOB if job else TrafficBy(by)

    def wants(owner: str, flow: ReportedFlow) -> bool:
        return (
            team in ("", owner) and space in ("", flow.namespace)
            and job in ("", flow.job) and traffic_class in ("", flow.traffic_class)
        )  # fmt: skip

    lines = traffic_lines(reports, table.open_to, kind, wants=wants)
    ended = _ended_job(common_, job) if job else None
    if ended is not None and team in ("", ended[0].spec.team):
        past, kept = ended
        kept = msgspec.structs.replace(kept, classes=tuple(
            each for each in kept.classes if traffic_class in ("", each.traffic_class)
        ))  # fmt: skip
        lines = with_ended(lines, past.spec.team, past.metadata.key, kept)
    notes = uncounted_words(reports, [each.metadata.name for each in api.list(NODES)])
    if common_.is_structured:
        common_.data({"traffic": msgspec.to_builtins(lines), "notCounted": notes})
        return
    common_.table(traffic_columns(kind), traffic_rows(lines, kind), empty="no traffic is reported")
    for each in notes:
        common_.note(f"not counted: {each}")


def _ended_job(common_: Common, job: str) -> tuple[Job, JobTraffic] | None:
    """Return a job that has ended, and what its members had exchanged; None for another."""
    try:
        found = present_or_past_job(common_, "", job)
        traffic = past_traffic(common_, "", found)
    except CliError as error:
        problem = error.problems[0]
        if problem.code not in (Code.NO_SUCH_JOB, Code.REFUSED):
            raise
        if problem.code is Code.REFUSED:
            common_.note(f"whether a job of this name has ended is not known: {problem.message}")
        return None
    return None if traffic is None else (found, traffic)


@network.command(
    epilog="""Examples:

    \b
      fairlead network show                    budgets of teams, and the pods that send most
      fairlead network show --team vision -o wide
      fairlead network show -n vision --job train-7
    """
)
@click.option("--team", metavar="NAME", default="", help="Only this team and its pods.")
@click.option("--job", metavar="NAME", default="", help="Only pods of this job.")
@common()
def show(common_: Common, *, team: str, job: str) -> None:
    """Show budgets and their use, and the pods that send most.

    Budgets of destinations (traffic.destinations of the controllers' settings) are of all teams
    together. Rates are in bits per second. Each agent reports its 20 pods that send most.
    """
    api = common_.connect()
    reports = list(api.list(NODE_REPORTS))
    teams = [each for each in api.list(TEAMS) if team in ("", each.metadata.name)]
    lines = budget_lines(teams, reports, _nodes_of(api, teams))
    destinations = [] if team or job else destination_lines(reports)
    pods = [each for each in pod_lines(reports) if team in ("", each.line.team)]
    if common_.namespace:
        pods = [each for each in pods if each.line.namespace == common_.namespace]
    if job:
        space = common_.space(api.connection.namespace)
        members = {
            each.metadata.name
            for each in api.list(PODS, namespace=space)
            if each.metadata.labels.get(JOB_NAME) == job
        }
        pods = [each for each in pods
                if each.line.namespace == space and each.line.name in members]  # fmt: skip
    if common_.is_structured:
        common_.data(msgspec.to_builtins({
            "teams": lines, "destinations": destinations, "pods": pods,
        }))  # fmt: skip
        return
    common_.table(BUDGET_COLUMNS, budget_rows(lines), empty="no team has a budget of traffic")
    common_.emit("")
    if destinations:
        common_.table(DESTINATION_COLUMNS, budget_rows(destinations), empty="")
        common_.emit("")
    common_.table(POD_COLUMNS, pod_rows(pods[:_PODS_MAX]), empty="no pod with a limit is reported")
    for line in lines:
        if line.unlimited_nodes:
            shown = ", ".join(line.unlimited_nodes[:5])
            common_.note(f"team {line.team}: nothing is limited on {shown}: their agents keep no "
                         "limits")  # fmt: skip
    for each in destinations:
        if each.unlimited_nodes:
            shown = ", ".join(each.unlimited_nodes[:5])
            common_.note(
                f"destination {each.destination}: {each.direction} is not limited on {shown}: "
                "their agents keep no limits, or have no such class"
            )


def _nodes_of(api: Api, teams: Iterable[Team]) -> dict[str, frozenset[str]]:
    """Return the nodes that have pods of each team with a budget."""
    found: dict[str, frozenset[str]] = {}
    table = TeamTable(teams)
    for team in table:
        if any(team.spec.network.internet(direction) for direction in TrafficDirection):
            pods = (
                each for space in team.spec.namespaces for each in api.list(PODS, namespace=space)
            )
            found[team.metadata.name] = frozenset(
                each.spec.node_name for each in pods if _sends(each)
            )
    return found


def _sends(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and not pod.is_terminal and not pod.spec.host_network


@network.command(
    epilog="""Examples:

    \b
      fairlead network why loader-0
      fairlead network why loader-0 -n vision
    """
)
@click.argument("pod", metavar="POD")
@common()
def why(common_: Common, *, pod: str) -> None:
    """Show which limits a pod has, what it sends, and who uses its team's budget."""
    api = common_.connect()
    space = common_.space(api.connection.namespace)
    try:
        found = api.get(PODS, pod, namespace=space)
    except NotFound as error:
        raise fail(Code.NO_SUCH_POD, f"no pod '{pod}' in namespace {space}",
                   help=("kubectl get pods",)) from error  # fmt: skip
    reports = list(api.list(NODE_REPORTS))
    report = next((e for e in reports if e.metadata.name == found.spec.node_name), None)
    lines = why_lines(found, report, list(api.list(TEAMS)), reports)
    if common_.is_structured:
        common_.data({"pod": pod, "namespace": space, "lines": lines})
    else:
        common_.lines(lines)


@network.command(
    name="dry-run",
    epilog="""Examples:

    \b
      fairlead network dry-run vision --egress 5G --prometheus http://127.0.0.1:9090
      fairlead network dry-run vision --ingress 2G --since 1d --prometheus http://127.0.0.1:9090
      fairlead network dry-run --destination data --ingress 8G --prometheus http://127.0.0.1:9090
    """,
)
@click.argument("team", metavar="[TEAM]", default="")
@click.option("--destination", metavar="NAME", default="",
              help="A class of addresses instead of a team.")  # fmt: skip
@click.option("--prometheus", metavar="URL", required=True,
              help="A Prometheus that scrapes the controllers.")  # fmt: skip
@access_flags("--prometheus", "token-file", "login-file", "ca-file", prefix="prometheus-")
@click.option("--egress", metavar="RATE", default="", help="A budget of what is sent, as 5G.")
@click.option("--ingress", metavar="RATE", default="", help="A budget of what is received.")
@click.option("--since", metavar="TIME", default="7d", show_default=True, help="So long ago.")
@common()
def dry_run(common_: Common, *, team: str, **options: Any) -> int:
    """Show what a budget would have held back.

    Of a team, or of a destination, which all teams share. From the rates that
    Prometheus has kept, minute by minute. Changes nothing.
    """
    from fairlead.cli.doctor.budget_dry_run import show_dry_run

    return show_dry_run(common_, team, options)
