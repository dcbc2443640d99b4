"""`tune`: what a tuning profile would change on the nodes."""

from __future__ import annotations

import click
import msgspec

from fairlead.api.cluster.node_report import NodeReport, ReportedTuning
from fairlead.api.resources import NODE_REPORTS, NODES
from fairlead.cli.commands.agent import facts_of
from fairlead.cli.connection.common import Common, common
from fairlead.cli.views.tuning import CHANGE_COLUMNS, change_rows, roll_out_line
from fairlead.node.tuning import load_profile, roll_out


@click.group(
    epilog="""Examples:

    \b
      fairlead tune plan -f profile.yaml
      fairlead tune plan -f ml-node --fact nodes=2500 --fact pods=60000

    One node: fairlead node tune NODE. This machine: fairlead agent tune.
    """
)
def tune() -> None:
    """Show what a tuning profile would change on the nodes."""


@tune.command(
    epilog="""Examples:

    \b
      fairlead tune plan -f profile.yaml
      fairlead tune plan -f ml-node --fact nodes=2500 --fact pods=60000 -o json
    """
)
@click.option(
    "-f", "--file", "file", metavar="NAME|FILE", required=True, help="A shipped profile, or a file."
)
@click.option(
    "--fact",
    "facts",
    metavar="NAME=NUMBER",
    multiple=True,
    help="A fact in place of what the nodes' agents were given, such as nodes=2500.",
)
@common()
def plan(common_: Common, *, file: str, facts: tuple[str, ...]) -> None:
    """Show what would change where, from what the nodes' agents last reported.

    Changes nothing. A setting that an agent does not report, since its own profile has no line for
    it, is listed as not judged.
    """
    profile, given = load_profile(file), facts_of(facts)
    api = common_.connect()
    reports = {each.metadata.name: each for each in api.list(NODE_REPORTS)}
    nodes = {each.metadata.name: each.metadata.uid for each in api.list(NODES)}
    found = roll_out(profile, given, {
        name: _tuning(reports.get(name), uid) for name, uid in nodes.items()
    })  # fmt: skip
    if common_.is_structured:
        common_.data(msgspec.to_builtins(found))
        return
    is_blind = not found.changes and not found.as_wanted
    common_.table(
        CHANGE_COLUMNS, change_rows(found),
        empty="no node reports its settings: its agent needs a profile (tuning.profile)"
        if is_blind else "nothing would change",
    )  # fmt: skip
    common_.note(roll_out_line(found))


def _tuning(report: NodeReport | None, uid: str) -> ReportedTuning | None:
    """Return what a node reports of itself, and not what an earlier one of its name did."""
    if report is None or report.status.node_uid != uid:
        return None
    return report.status.tuning
