"""`eff`: what a job used of what it asked for, and what to ask for next time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click
import msgspec

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import JobTraffic, MemberUse
from fairlead.api.values.times import parse_time
from fairlead.app.queries.messages import UseLine
from fairlead.cli.connection.common import Common, common, now
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.records.ended_jobs import past_traffic, past_use, present_or_past_job
from fairlead.cli.views.efficiency import (
    account_lines,
    efficiency_facts,
    efficiency_text,
    network_lines,
    plot_lines,
)
from fairlead.decide.attempts.usage import JobAccount, account_of
from fairlead.decide.use.efficiency import Efficiency, efficiency

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
    found = past_efficiency(common_, store, present_or_past_job(common_, store, job), attempt)
    if common_.is_structured:
        common_.structured([msgspec.to_builtins(found.facts)], is_list=False)
        return
    common_.lines(found.lines)
    if plot:
        common_.lines(found.plot)


@dataclass(frozen=True, slots=True)
class PastEfficiency:
    """What an attempt of a job used, by its members that have ended."""

    job: Job
    attempt: int
    uses: Mapping[str, MemberUse]
    traffic: JobTraffic | None = None

    @property
    def _result(self) -> Efficiency:
        return efficiency(self.job, self.uses)

    @property
    def _account(self) -> JobAccount:
        ended = self.job.status.finished_at
        return account_of(self.job, parse_time(ended) if ended else now())

    @property
    def facts(self) -> dict[str, Any]:
        """It for programs."""
        return efficiency_facts(
            self.job, self.attempt, self._result, self.uses, account=self._account,
            traffic=self.traffic,
        )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        """It in words."""
        note = "no member has ended of which a node said what it used"
        text = efficiency_text(self.job, self.attempt, self._result, note=note)
        return [*text, *network_lines(self.traffic), *account_lines(self._account)]

    @property
    def plot(self) -> list[str]:
        """The member that used most memory over time; nothing where no member is known."""
        if not self.uses:
            return []
        task = self._result.memory_peak_task or min(self.uses)
        return plot_lines(task, self.uses[task])


def past_efficiency(
    common_: Common, store: str, job: Job, attempt: int | None = None
) -> PastEfficiency:
    """Return what a job used in an attempt, by default the latest of which use is known."""
    query = {"uid": job.metadata.uid, **({"attempt": str(attempt)} if attempt else {})}
    lines = past_use(common_, store, query)
    shown = attempt or max((line.attempt for line in lines), default=job.status.attempt)
    uses = {line.task: line.use for line in _latest(lines) if line.attempt == shown}
    return PastEfficiency(job, shown, uses, past_traffic(common_, store, job))


def _latest(lines: list[UseLine]) -> list[UseLine]:
    """Return the lines so that of two of one task, which was replaced, the later one counts."""
    return sorted(lines, key=lambda line: line.ended_at_ms)
