"""What a budget of traffic would have held back, by what Prometheus has kept (pure).

The rates of teams are asked for minute by minute on the server, so a week needs no more points than
an hour. What is beyond the budget would have waited or been dropped; senders that slow down would
have sent it later, so it is the most that the budget takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from fairlead.api.values.egress import TrafficDirection, rate_text
from fairlead.api.values.times import format_time
from fairlead.cli.formats.text import bytes_text
from fairlead.decide.words import duration

METRIC = "fairlead_traffic_bits_per_second"
_WORST_MAX = 5


class BudgetOf(NamedTuple):
    """Whose budget it is: a team's for the internet, or a destination's, of all teams."""

    team: str
    destination: str
    direction: TrafficDirection

    @property
    def name(self) -> str:
        """Return the name of the team or destination."""
        return self.team or self.destination


class BusyTime(msgspec.Struct, frozen=True, rename="camel"):
    """A time in which the budget would have held much back; rates in bits per second."""

    until: str
    rate: int
    beyond: int


class DryRun(msgspec.Struct, frozen=True, rename="camel"):
    """What was, and what would have been; `known_seconds` is the part that Prometheus has."""

    team: str
    destination: str
    direction: str
    budget: int
    seconds: int
    known_seconds: int
    mean: int
    peak: int
    bytes: int
    held_back_seconds: int
    beyond_bytes: int
    worst: tuple[BusyTime, ...]


def queries(of: BudgetOf, bits: int, step_seconds: int) -> dict[str, str]:
    """Return the queries of a dry run by what they give, each over the step before an instant."""
    way = "out" if of.direction is TrafficDirection.EGRESS else "in"
    # Of two leaders that follow each other, one.
    if of.team:
        labels = f'team="{of.team}", class="internet", direction="{way}"'
        rate = f"max({METRIC}{{{labels}}})"
    else:
        labels = f'class="{of.destination}", direction="{way}"'
        rate = f"sum(max by (team) ({METRIC}{{{labels}}}))"
    span = f"[{max(60, step_seconds)}s:60s]"
    return {
        "mean": f"avg_over_time({rate}{span})",
        "peak": f"max_over_time({rate}{span})",
        "beyond": f"avg_over_time(clamp_min({rate} - {bits}, 0){span})",
        "time": f"avg_over_time(({rate} > bool {bits}){span})",
    }


def dry_run(
    of: BudgetOf, bits: int, *, step_seconds: int, instants: Sequence[int],
    values: Mapping[str, Sequence[float | None]],
) -> DryRun:  # fmt: skip
    """Return what a budget would have held back; `values` by name of the query, for each instant.

    The first instant ends before the time that was asked for, and does not count.
    """
    rows = [
        (at, *row)
        for at, *row in zip(
            instants, values["mean"], values["peak"], values["beyond"], values["time"], strict=True
        )
    ][1:]
    known = [(at, m or 0.0, p or 0.0, b or 0.0, t or 0.0) for at, m, p, b, t in rows
             if m is not None]  # fmt: skip
    order = sorted((each for each in known if each[3] > 0), key=lambda each: (-each[3], each[0]))
    return DryRun(
        of.team, of.destination, of.direction.value, bits,
        len(rows) * step_seconds, len(known) * step_seconds,
        mean=int(sum(each[1] for each in known) / max(1, len(known))),
        peak=int(max((each[2] for each in known), default=0)),
        bytes=int(sum(each[1] for each in known) * step_seconds / 8),
        held_back_seconds=int(sum(each[4] for each in known) * step_seconds),
        beyond_bytes=int(sum(each[3] for each in known) * step_seconds / 8),
        worst=tuple(
            BusyTime(format_time(at), int(mean), int(beyond))
            for at, mean, _, beyond, _ in order[:_WORST_MAX]
        ),
    )  # fmt: skip


def dry_run_lines(run: DryRun, current: str) -> list[str]:
    """Return a dry run for people; `current` is the budget that there is, "" for none."""
    is_egress = run.direction == TrafficDirection.EGRESS.value
    verb = "sent" if is_egress else "received"
    who = f"team {run.team} {verb}"
    if run.destination:
        who = f"all teams {verb} {'to' if is_egress else 'from'} {run.destination}"
    if not run.known_seconds:
        return [f"Prometheus has nothing of what {who} in this time."]
    found = [
        f"In {duration(run.known_seconds)} that Prometheus has of {duration(run.seconds)}, "
        f"{who} {bytes_text(run.bytes)}: {rate_text(run.mean)}bit/s on average, "
        f"{rate_text(run.peak)}bit/s at most.",
    ]
    if not run.beyond_bytes:
        found.append(f"A budget of {rate_text(run.budget)}bit/s would have held nothing back.")
    else:
        part = 100 * run.beyond_bytes / max(1, run.bytes)
        found.append(
            f"A budget of {rate_text(run.budget)}bit/s would have held it back for "
            f"{duration(run.held_back_seconds)}: {bytes_text(run.beyond_bytes)} ({part:.3g} %) "
            "would have waited or been dropped, at most."
        )
        found += [
            f"  until {each.until}  {rate_text(each.rate)}bit/s, {rate_text(each.beyond)}bit/s "
            "beyond it"
            for each in run.worst
        ]
    if current:
        found.append(f"There is a budget of {current} now: what was held back by one is not seen.")
    return found
