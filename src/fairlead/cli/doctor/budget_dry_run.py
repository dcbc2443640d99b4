"""Asks Prometheus what a budget of traffic would have held back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.api.cluster.team import Team
from fairlead.api.resources import NODE_REPORTS, TEAMS
from fairlead.api.status import NotFound
from fairlead.api.values.egress import TEAM_BITS_MIN, TrafficDirection, egress_bits, rate_text
from fairlead.cli.connection.common import Common, now, seconds_of
from fairlead.cli.doctor.access import check_url, tell_unreadable, web_of
from fairlead.cli.views.budget_dry_run import (
    BudgetOf,
    DryRun,
    dry_run,
    dry_run_lines,
    queries,
)
from fairlead.cli.views.network import destination_lines
from fairlead.doctor.monitoring.boards import Board, Panel
from fairlead.doctor.prometheus.ranges import BoardReader, QueryWindow
from fairlead.input.errors import Code, Exit, fail
from fairlead.runtime.outside.fetch import said


def show_dry_run(common: Common, team: str, options: Mapping[str, Any]) -> int:
    """Write what each budget that is asked for would have held back; 3 without an answer."""
    url = options["prometheus"]
    check_url(url, "--prometheus")
    budgets = [
        (direction, _bits(options[direction.value], f"--{direction.value}"))
        for direction in TrafficDirection
        if options[direction.value]
    ]
    if not budgets:
        raise fail(Code.BAD_COMBINATION, "no budget to try", help=("--egress 5G",))
    destination = options["destination"]
    if bool(team) == bool(destination):
        raise fail(Code.BAD_COMBINATION, "a budget is of a TEAM or of a --destination")
    seconds = seconds_of(options["since"], "--since")
    current = _current(common, team, destination)
    reader = BoardReader(url, web_of(options, "prometheus"), time.monotonic)
    runs: list[DryRun] = []
    try:
        for direction, bits in budgets:
            of = BudgetOf(team, destination, direction)
            runs.append(_run(reader, of, bits, seconds=seconds))
    except OSError as error:
        return tell_unreadable(url, said(error))
    if common.is_structured:
        common.data(msgspec.to_builtins(runs))
        return Exit.OK
    for run in runs:
        common.lines(dry_run_lines(run, current.get(run.direction, "")))
    return Exit.OK


def _run(reader: BoardReader, of: BudgetOf, bits: int, *, seconds: float) -> DryRun:
    window = QueryWindow.of(now() - seconds, now())
    asked = queries(of, bits, window.step)
    board = Board("dry-run", of.name, ((of.name, tuple(
        Panel(name, ((query, name),)) for name, query in asked.items()
    )),))  # fmt: skip
    answers = reader.read([board], window)
    for query in asked.values():
        if why := answers[query].failure:
            raise fail(Code.BAD_VALUE, f"--prometheus: it does not answer: {why}")
    nothing = (None,) * len(window.instants)
    values = {
        name: next((line.values for line in answers[query].lines), nothing)
        for name, query in asked.items()
    }
    return dry_run(of, bits, step_seconds=window.step, instants=window.instants, values=values)


def _current(common: Common, team: str, destination: str) -> dict[str, str]:
    """Return the budgets that there are now, by direction."""
    if destination:
        lines = destination_lines(list(common.connect().list(NODE_REPORTS)))
        return {
            each.direction: rate_text(each.budget)
            for each in lines
            if each.destination == destination
        }
    network = _team(common, team).spec.network
    return {each.value: network.internet(each) for each in TrafficDirection}


def _team(common: Common, name: str) -> Team:
    try:
        return common.connect().get(TEAMS, name)
    except NotFound as error:
        raise fail(Code.BAD_VALUE, f"there is no team '{name}'",
                   help=("fairlead teams",)) from error  # fmt: skip


def _bits(text: str, flag: str) -> int:
    try:
        return egress_bits(text, least=TEAM_BITS_MIN)
    except ValueError as error:
        raise fail(Code.BAD_VALUE, f"{flag}: {error}") from error
