"""`eff`: what a job used of what it asked for, and what to ask for next time."""

from __future__ import annotations

import click
import msgspec

from fairlead.api.values.times import parse_time
from fairlead.app.messages import UseLine
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.records.past import past_use, present_or_past_job
from fairlead.cli.views.efficiency import (
    account_lines,
    efficiency_facts,
    efficiency_text,
    plot_lines,
)
from fairlead.decide.attempts.usage import account_of
from fairlead.decide.efficiency import efficiency

_ATTEMPT_MAX = 1_000_000


@click.command(
    epilog="""Examples:

    \b
      fairlead eff train-1
      fairlead eff train-1 --plot
      fairlead eff train-1 --attempt 2 -o json
    """
)
@click.argument("job", metavar="JOB", shell_complete=complete_jobs)
@click.option("--attempt", metavar="N", type=click.IntRange(1, _ATTEMPT_MAX),
              help="Of this attempt; by default the latest of which use is known.")  # fmt: skip
@click.option("--plot", is_flag=True, help="Draw the member that used most memory over time.")
@click.option("--history", "store", metavar="URL|FILE", default="",
              help="Read from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip
@common()
def eff(common_: Common, *, job: str, attempt: int | None, plot: bool, store: str) -> None:
    """Show what a job used of what it asked for.

    Members are counted once they have ended; on a cluster whose nodes do not measure them they are
    sampled, and counted while they run, at most 16 minutes late. What was not measured is called
    unknown. Advice for the next time is given where every member was measured for all of its time,
    and ran for a minute or longer.
    """
    found = present_or_past_job(common_, store, job)
    query = {"uid": found.metadata.uid, **({"attempt": str(attempt)} if attempt else {})}
    lines = past_use(common_, store, query)
    shown = attempt or max((line.attempt for line in lines), default=found.status.attempt)
    uses = {line.task: line.use for line in _latest(lines) if line.attempt == shown}
    result = efficiency(found, uses)
    ended = found.status.finished_at
    account = account_of(found, parse_time(ended) if ended else now())
    if common_.is_structured:
        facts = efficiency_facts(found, shown, result, uses, account=account)
        common_.structured([msgspec.to_builtins(facts)], is_list=False)
        return
    note = "no member has ended of which a node said what it used"
    common_.lines([*efficiency_text(found, shown, result, note=note), *account_lines(account)])
    if plot and uses:
        task = result.memory_peak_task or min(uses)
        common_.lines(plot_lines(task, uses[task]))


def _latest(lines: list[UseLine]) -> list[UseLine]:
    """Return the lines so that of two of one task, which was replaced, the later one counts."""
    return sorted(lines, key=lambda line: line.ended_at_ms)
