"""`node`: one node, what is wrong with it, what happens next, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from fairlead.api import names
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.resources import JOBS, NODE_REPORTS, NODES, PODS
from fairlead.api.status import Forbidden, NotFound
from fairlead.api.values.times import format_time
from fairlead.app.queries.messages import FleetLine
from fairlead.cli.cluster.known_nodes import node_named
from fairlead.cli.commands.node_tests import fleet_tests, test, tests_of
from fairlead.cli.connection.common import Common, common, now, seconds_of
from fairlead.cli.connection.identity import submitter_name
from fairlead.cli.connection.transport import Api
from fairlead.cli.records.ended_jobs import past_decisions
from fairlead.cli.views.fleet import HISTORY_COLUMNS, history_rows
from fairlead.cli.views.node import (
    FAULT_COLUMNS,
    TRY_COLUMNS,
    Preview,
    fault_rows,
    node_lines,
    preview_lines,
    slow_members,
    try_rows,
)
from fairlead.cli.views.node_tests import TEST_COLUMNS, rows_of_tests
from fairlead.cli.views.tuning import DIFFERENCE_COLUMNS, difference_rows, tuning_line
from fairlead.input.errors import Code, fail
from fairlead.model.health.node_record import record_of
from fairlead.model.health.windows import window_text
from fairlead.model.pools.pool_nodes import uses_node

#: Who marks nodes that the fleet controller removes: such a cordon is no person's.
_FLEET = "fairlead-fleet"
_HISTORY_MAX = 1_000
F = TypeVar("F", bound=Callable[..., Any])


class _NodeGroup(click.Group):
    """A group whose sub-command may be the name of a node: it is shown."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first argument; that of a name is `show`."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            return "show", self.commands["show"], args
        return super().resolve_command(ctx, args)


def _acts(command: F) -> F:
    """Add what all commands have that change a node."""
    dry = click.option("--dry-run", is_flag=True, help="Only say what would happen.")
    name = click.argument("name", metavar="NAME")
    return name(dry(command))


@click.group(
    cls=_NodeGroup,
    epilog="""Examples:

    \b
      fairlead node n17                    state, faults, what happens next and when
      fairlead node cordon n17 --reason "noisy fan"
      fairlead node drain n17 --within 2h --dry-run
      fairlead node resume n17
      fairlead node test n17               CPU, memory, disk, clock, GPUs, beside the fleet
      fairlead node tests                  what the tests of all nodes measured
      fairlead node repair n17             its faults are mended: test it and take it back
      fairlead node retire n17 --reason "third repair"
      fairlead node tune n17               settings that are not as its profile says
    """,
)
def node() -> None:
    """Show one node, or change whether it takes work."""


@node.command()
@click.argument("name", metavar="NAME")
@common()
def tune(common_: Common, *, name: str) -> None:
    """Show which settings of a node's machine are not as its tuning profile says."""
    api = common_.connect()
    found, report = node_named(api, name), _report(api, name)
    is_own = report is not None and report.status.node_uid == found.metadata.uid
    tuning = report.status.tuning if report is not None and is_own else None
    if tuning is None:
        raise fail(Code.BAD_VALUE, f"node '{name}' reports no settings", help=(
            "its agent needs a profile: tuning.profile in the settings of fairlead agent run",
        ))  # fmt: skip
    if common_.is_structured:
        common_.data(msgspec.to_builtins(tuning))
        return
    common_.table(DIFFERENCE_COLUMNS, difference_rows(tuning), empty="nothing differs")
    common_.note(tuning_line(tuning))


@node.command()
@click.argument("name", metavar="NAME")
@click.option("--history", "has_history", is_flag=True, help="Also what was decided about it.")
@common()
def show(common_: Common, *, name: str, has_history: bool) -> None:
    """Show a node: state, faults, tries, what happens next and when."""
    api = common_.connect()
    found, at = node_named(api, name), now()
    report = _report(api, name)
    if common_.is_structured:
        raw = api.get(NODES.raw, name)
        common_.data({"node": raw, "report": _raw_report(api, name)})
        return
    common_.lines(node_lines(found, report, _preview(api, found), at))
    if faults := fault_rows(report, found, at):
        common_.emit("\n")
        common_.table(FAULT_COLUMNS, faults, empty="")
    record = record_of(found.metadata.annotations)
    if record is not None and record.tries:
        common_.emit("\n")
        common_.table(TRY_COLUMNS, try_rows(record, at), empty="")
    tests = tests_of(api, name)
    if tests:
        common_.emit("\n")
        common_.table(TEST_COLUMNS, rows_of_tests(tests, at), empty="")
    if has_history:
        own = node_decisions(common_, name, found.metadata.labels.get(names.POOL, ""))
        common_.emit("\n")
        common_.table(HISTORY_COLUMNS, history_rows(own), empty="no decisions about it are kept")


def node_decisions(common_: Common, name: str, pool: str) -> list[FleetLine]:
    """Return what was decided about a node of a pool, "" for none, the latest first."""
    query = {"limit": str(_HISTORY_MAX), **({"pool": pool} if pool else {})}
    lines = past_decisions(common_, "", query)
    return [each for each in lines if each.facts.get("node") == name]


@node.command()
@_acts
@click.option("--reason", default="", help="Why; for those who find it.")
@common(output=False)
def cordon(common_: Common, *, name: str, dry_run: bool, reason: str) -> None:
    """Keep new work off a node. What runs there goes on; only a person ends it."""
    api = common_.connect()
    found = node_named(api, name)
    _say(common_, api, found, "takes no new work")
    _write(common_, api, found, cordon_patch(_who(api), reason), dry_run=dry_run)


@node.command()
@_acts
@click.option("--within", metavar="DURATION", default="1h", show_default=True,
              help="The node is empty after so long.")  # fmt: skip
@click.option("--reason", default="", help="Why; for those who find it.")
@common(output=False)
def drain(common_: Common, *, name: str, dry_run: bool, within: str, reason: str) -> None:
    """Empty a node by a deadline, and keep new work off it until resume.

    Gangs that save checkpoints leave after the next one, the others shortly before the deadline.
    Pods of others are evicted within their disruption budgets, and deleted at the deadline, where
    the health of nodes is on (health.enabled).
    """
    api, at = common_.connect(), now()
    found = node_named(api, name)
    ends = at + seconds_of(within, "--within")
    _say(common_, api, found, f"is to be empty by {format_time(ends)}")
    _write(common_, api, found, drain_patch(_who(api), reason, at, ends), dry_run=dry_run)


@node.command()
@_acts
@common(output=False)
def resume(common_: Common, *, name: str, dry_run: bool) -> None:
    """End a cordon, a drain or a retirement by hand. A fault keeps its node out all the same."""
    api = common_.connect()
    found = node_named(api, name)
    patch = resume_patch(found)
    record = record_of(found.metadata.annotations)
    if record is not None and record.is_out:
        common_.note(f"node {name} stays out of service for a fault: {record.reason}")
        common_.note(f"if it is mended: fairlead node repair {name}")
    else:
        common_.note(f"node {name} takes work again")
    _write(common_, api, found, patch, dry_run=dry_run)


@node.command()
@_acts
@click.option("--within", metavar="DURATION", default="1d", show_default=True,
              help="The node is empty after so long.")  # fmt: skip
@click.option("--reason", required=True, help="Why; it is in the record of the removal.")
@common(output=False)
def retire(common_: Common, *, name: str, dry_run: bool, within: str, reason: str) -> None:
    """Empty a node, and let its pool remove the machine. Without a pool it stays empty."""
    api, at = common_.connect(), now()
    found = node_named(api, name)
    ends = at + seconds_of(within, "--within")
    what = "its pool removes the machine then, within the budgets"
    if not found.metadata.labels.get(names.POOL):
        what = "it belongs to no pool, so nothing removes it"
    _say(common_, api, found, f"is to be empty by {format_time(ends)}; {what}")
    patch = drain_patch(_who(api), reason, at, ends)
    patch["metadata"]["annotations"][names.RETIRE] = reason
    _write(common_, api, found, patch, dry_run=dry_run)


@node.command()
@_acts
@common(output=False)
def repair(common_: Common, *, name: str, dry_run: bool) -> None:
    """Say that the faults of a node are mended: it is tested, and taken back into service.

    A fault that is seen again since then counts again.
    """
    api = common_.connect()
    found, report = node_named(api, name), _report(api, name)
    faults = report.status.faults if report is not None else ()
    for each in faults:
        common_.note(f"counts as mended: {each.severity.value} {each.words}")
    if not faults:
        common_.note(f"the agent of node {name} reports no fault")
    patch = {"metadata": {"annotations": {names.REPAIRED: format_time(now())}}}
    _write(common_, api, found, patch, dry_run=dry_run)


def _who(api: Api) -> str:
    return submitter_name(api) or "hand"


def cordon_patch(who: str, reason: str) -> dict[str, Any]:
    """Return what keeps new work off a node; `who` and why are for those who find it."""
    notes: dict[str, Any] = {names.CORDONED_BY: f"{who}: {reason}" if reason else who}
    return {"metadata": {"annotations": notes}, "spec": {"unschedulable": True}}


def drain_patch(who: str, reason: str, at: float, ends: float) -> dict[str, Any]:
    """Return what empties a node between two instants, and keeps new work off it."""
    patch = cordon_patch(who, reason)
    patch["metadata"]["annotations"][names.DRAIN] = window_text(at, ends)
    return patch


def resume_patch(found: Node) -> dict[str, Any]:
    """Return what ends a cordon, a drain or a retirement; CliError for one of the fleet's."""
    meta = found.metadata
    if meta.annotations.get(names.CORDONED_BY) == _FLEET and names.RETIRE not in meta.annotations:
        why = meta.annotations.get(names.REMOVAL, "it is to be removed")
        raise fail(
            Code.BAD_VALUE, f"node {meta.name} was cordoned by the fleet controller: {why}",
            help=(f"fairlead fleet why {meta.name}", "fairlead fleet freeze REASON"),
        )  # fmt: skip
    gone = dict.fromkeys((names.CORDONED_BY, names.DRAIN, names.RETIRE))
    return {"metadata": {"annotations": gone}, "spec": {"unschedulable": None}}


def patch_node(api: Api, found: Node, patch: dict[str, Any]) -> None:
    """Change a node as it was read; CliError where that is not allowed, Conflict where somebody
    else has changed it meanwhile.
    """
    meta = found.metadata
    own = {"resourceVersion": meta.resource_version, "uid": meta.uid}
    try:
        api.patch(NODES, meta.name, {**patch, "metadata": {**patch["metadata"], **own}})
    except Forbidden as error:
        help_ = ("an administrator of the cluster may patch nodes",)
        raise fail(Code.FORBIDDEN, error.message, help=help_) from error


def _write(common_: Common, api: Api, found: Node, patch: dict[str, Any], *, dry_run: bool) -> None:
    if dry_run:
        common_.note("nothing was changed (--dry-run)")
        return
    patch_node(api, found, patch)


def _say(common_: Common, api: Api, found: Node, what: str) -> None:
    common_.note(f"node {found.metadata.name} {what}")
    for line in preview_lines(_preview(api, found)):
        common_.note(line)


def _preview(api: Api, found: Node) -> Preview:
    """Return what is on a node, as far as this person may see it."""
    name = found.metadata.name
    jobs: Sequence[Job] = ()
    pods: Sequence[Pod] = ()
    try:
        known = api.list(JOBS)
        jobs = [
            job for job in known
            if not job.is_finished and name in nodes_of(job.status.placement)
        ]  # fmt: skip
        others = api.list(PODS, label_selector=f"!{names.JOB_NAME}")
        pods = [pod for pod in others if pod.spec.node_name == name and uses_node(pod)]
    except Forbidden:
        return Preview((), (), is_seen=False)
    return Preview(tuple(jobs), tuple(pods), slow=slow_members(known, name, now()))


def _report(api: Api, name: str) -> NodeReport | None:
    try:
        return api.get(NODE_REPORTS, name)
    except (NotFound, Forbidden):
        return None


def _raw_report(api: Api, name: str) -> Any:
    try:
        return api.get(NODE_REPORTS.raw, name)
    except (NotFound, Forbidden):
        return None


node.add_command(test)
node.add_command(fleet_tests)
