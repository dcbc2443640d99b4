"""`health`: what another policy would have done about the faults that nodes had."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from fairlead.api.values.times import format_time
from fairlead.app.queries.health_replay import (
    FILE_BYTES_MAX,
    Facts,
    FactsError,
    PolicyComparison,
    compared,
    facts_of,
)
from fairlead.cli.connection.common import Common, common
from fairlead.cli.views.health_replay import NODE_COLUMNS, SUM_COLUMNS, node_rows, sum_rows
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.remembered.replay import HealthStep
from fairlead.input.errors import CliError, Code, Problem, fail

_WRITES = "fairlead fleet history --since 30d --limit 100000 -o json > FACTS writes such a file"


@click.group(
    epilog="""Examples:

    \b
      fairlead fleet history --since 30d --limit 100000 -o json > facts.json
      fairlead health replay facts.json --policy new.yaml
      fairlead health replay facts.json --policy new.yaml --than old.yaml
    """,
)
def health() -> None:
    """Show what another policy would do about the faults of nodes."""


@health.command()
@click.argument("facts", metavar="FACTS")
@click.option("--policy", "policy_file", metavar="FILE", required=True,
              help="Settings of the controllers with the policy to try.")  # fmt: skip
@click.option("--than", "than_file", metavar="FILE", default="",
              help="Compare with these settings, and not with what was done.")  # fmt: skip
@common(cluster=False)
def replay(common_: Common, *, facts: str, policy_file: str, than_file: str) -> None:
    """Decide again about recorded faults, under another policy. No cluster is needed.

    FACTS is what fairlead fleet history -o json printed. The decisions are those that the
    controllers would have made; how long repairs and drains take is assumed, so the times are
    estimates. Compare two policies with --than, since both have the same assumptions.
    """
    recorded = _facts(facts)
    policy = _policy(policy_file)
    found = compared(recorded, policy, _policy(than_file) if than_file else None)
    if common_.is_structured:
        common_.data(_structured(found, recorded))
        return
    before = f"as {than_file} would" if than_file else "as it was done"
    common_.note(f"BEFORE: {before}. AFTER: as {policy_file} would")
    common_.table(NODE_COLUMNS, node_rows(found), empty="the same is done about each node")
    if not common_.is_csv:
        common_.emit("\n")
        common_.table(SUM_COLUMNS, sum_rows(found.tallies), empty="")


def _structured(found: PolicyComparison, facts: Facts) -> dict[str, object]:
    begin, end = facts.span
    before, after = found.tallies
    return {
        "from": format_time(begin), "until": format_time(end),
        "before": asdict(before), "after": asdict(after),
        "nodes": [
            {"node": name, "before": _steps(old), "after": _steps(new)}
            for name, (old, new) in found.nodes.items()
        ],
    }  # fmt: skip


def _steps(steps: Iterable[HealthStep]) -> list[dict[str, str]]:
    return [{"at": format_time(each.at), "action": each.action} for each in steps]


def _facts(file: str) -> Facts:
    try:
        with Path(file).open("rb") as given:
            data = given.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        message = f"'{file}' cannot be read: {error.strerror}"
        raise fail(Code.FACTS_FILE, message, help=(_WRITES,)) from error
    if len(data) > FILE_BYTES_MAX:
        raise fail(
            Code.FACTS_FILE, f"'{file}' is larger than {FILE_BYTES_MAX >> 20} MiB",
            help=("take a shorter time: fairlead fleet history --since",),
        )  # fmt: skip
    try:
        return facts_of(data)
    except FactsError as error:
        raise CliError(
            Problem(Code.FACTS_FILE, error.why, where=file, field=error.where, help=(_WRITES,))
        ) from error


def _policy(file: str) -> HealthPolicy:
    from fairlead.app.configuration.controller_settings import load_settings
    from fairlead.decide.jobs.policy import JobsPolicy

    return load_settings(file).policies(JobsPolicy()).health_policy
