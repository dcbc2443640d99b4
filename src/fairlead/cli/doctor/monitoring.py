"""Writes the alert rules for Prometheus, and the boards: for Grafana, or drawn."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.cli.connection.common import Common, Format, dump, now, seconds_of
from fairlead.cli.doctor.access import check_url, tell_unreadable, web_of
from fairlead.doctor.facts import Source
from fairlead.doctor.monitoring.alerts import groups
from fairlead.doctor.monitoring.boards import Board, all_boards, boards
from fairlead.doctor.output.snapshot import snapshot_page
from fairlead.doctor.prometheus.ranges import BoardReader, QueryWindow
from fairlead.doctor.readers.prometheus import parse_jobs
from fairlead.doctor.sources import METRIC_SOURCES
from fairlead.input.errors import Code, Exit, fail, writing
from fairlead.input.suggest import nearest
from fairlead.runtime.outside.fetch import said


def write_alerts(
    common: Common, format_: str, jobs: Sequence[str], *, operator: bool, runbooks: str
) -> int:
    """Write the rules to stdout, as a rule file or as an object of the Prometheus operator."""
    if runbooks:
        check_url(runbooks, "--runbooks")
    rules = groups(jobs_of(jobs), runbooks)
    if operator:
        rules = {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "fairlead-alerts"},
            "spec": rules,
        }
    common.emit(dump(rules, Format(format_)))
    return Exit.OK


def write_boards(common: Common, directory: str, jobs: Sequence[str]) -> int:
    """Write each board into a file of its own; files of other names stay."""
    made = boards(jobs_of(jobs))
    with writing(directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
        for name, board in made.items():
            (Path(directory) / name).write_text(json.dumps(board, indent=2) + "\n")
    common.note(f"wrote {', '.join(made)} to {directory}")
    return Exit.OK


def write_snapshot(common: Common, url: str, options: Mapping[str, Any]) -> int:
    """Write the boards with their data to stdout; 3 when the server does not answer."""
    check_url(url, "URL")
    chosen = _chosen(options["board"], all_boards(jobs_of(options["jobs"])))
    end = now() - seconds_of(options["until"], "--until")
    start = now() - seconds_of(options["since"], "--since")
    if start >= end:
        raise fail(Code.BAD_VALUE, "--since: must be longer ago than --until")
    if start < 0:
        raise fail(Code.BAD_VALUE, f"--since: '{options['since']}' ago there were no metrics")
    window = QueryWindow.of(start, end)
    common.note(f"asking Prometheus at {url}")
    try:
        answers = BoardReader(url, web_of(options), time.monotonic).read(chosen, window)
    except OSError as error:
        return tell_unreadable(url, said(error))
    failed = sum(bool(each.failure) for each in answers.values())
    if failed:
        common.note(f"{failed} of {len(answers)} queries failed; the page says why")
    common.emit(snapshot_page(chosen, answers, window, f"Prometheus at {url}"))
    return Exit.OK


def _chosen(names: Sequence[str], known: Sequence[Board]) -> tuple[Board, ...]:
    """Return the boards of these names, all without any; CliError."""
    uids = {board.uid.removeprefix("fairlead-"): board for board in known}
    for name in names:
        if name not in uids:
            near = nearest(name, uids) or ", ".join(uids)
            raise fail(Code.BAD_VALUE, f"--board: there is no board '{name}'",
                       help=(f"--board {near}",))  # fmt: skip
    return tuple(uids[name] for name in names or uids)


def jobs_of(given: Sequence[str]) -> Mapping[Source, str]:
    """Return the pattern of the label `job` by source; CliError."""
    try:
        return parse_jobs(given)
    except ValueError as error:
        help_ = f"SOURCE is one of {', '.join(METRIC_SOURCES)}"
        raise fail(Code.BAD_VALUE, f"--job: {error}", help=(help_,)) from error
