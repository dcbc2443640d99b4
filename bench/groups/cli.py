"""How long people wait for the command line, and for a cluster to come up; what the table of many
ended jobs costs.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import msgspec

from bench.cluster import Cluster, cluster
from bench.harness import Report, cpu_slowness, slowness
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import Condition
from fairlead.api.resources import JOBS
from fairlead.api.values.times import format_micro_time, parse_time
from fairlead.cli.cluster.recent_jobs import recent_jobs
from fairlead.cli.connection.common import collector_paused
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.table import render_table
from fairlead.cli.views.jobs import (
    COLUMNS,
    FINISHED_SHOWN_MAX,
    JobChoice,
    choose_jobs,
    job_rows,
)
from fairlead.kube.http1 import HttpResponse
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import HttpRequest
from fairlead.testing.builders import EPOCH, make_job

HELP_RUNS = SUBMIT_RUNS = 10
FLEETS = ((200, 3), (7_500, 1))  # virtual nodes, repeats
ENDED, ENDED_ROUNDS = 10_000, 5


def run(report: Report) -> None:
    """Measure `--help`, and `up --detach` from the start of the process until it is ready."""
    with cluster() as made:
        made.fairlead("--help")
        taken: list[float] = []
        slow = slowness()
        for _ in range(HELP_RUNS):
            start = time.perf_counter()
            made.fairlead("--help")
            taken.append(time.perf_counter() - start)
    slow = (slow + slowness()) / 2
    report.add("cli.help", statistics.median(taken) / slow * 1e3, "ms")
    for nodes, repeats in FLEETS:
        starts: list[float] = []
        for _ in range(repeats):
            with cluster() as made:
                slow = slowness()
                taken_seconds = made.up("--nodes", str(nodes))
                starts.append(taken_seconds / ((slow + slowness()) / 2))
                if nodes == FLEETS[0][0] and len(starts) == 1:
                    _submit(report, made)
        report.add(f"cli.up_{nodes}", statistics.median(starts), "s")
    _ended(report)


def _submit(report: Report, made: Cluster) -> None:
    """Report the CPU of `submit` and of `squeue`, beside that of `--help`; minima, as others' load
    only adds.
    """
    (made.root / "train.sh").write_text("#!/bin/sh\ntrue\n")
    flags = ("--kubeconfig", str(made.data / "kubeconfig"), "--gpus", "1", "--on", "virtual")
    helps, submits, slow = list[float](), list[float](), list[float]()
    squeues: list[float] = []
    for _ in range(SUBMIT_RUNS):
        slow.append(cpu_slowness())
        helps.append(_cpu(lambda: made.fairlead("--help")))
        squeues.append(_cpu(lambda: made.slurm("squeue")))
        submits.append(_cpu(lambda: made.fairlead("submit", "train.sh", "--dry-run", *flags)))
    report.add("cli.squeue_ratio", min(squeues) / min(helps), "x help")
    report.add("cli.submit_ratio", min(submits) / min(helps), "x help")
    report.add("cli.submit", min(c / s for c, s in zip(submits, slow, strict=True)) * 1e3, "ms CPU")


def _cpu(command: Callable[[], object]) -> float:
    """Return the CPU seconds of the processes that a call starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _ended(report: Report) -> None:
    """Report what `ps` and `ps --all` do with each ended job once they have the list, beside
    decoding that without types.
    """
    page = {"metadata": {}, "items": [_job(number) for number in range(ENDED)]}
    listed = msgspec.json.encode(page)
    api, costs = _OneAnswer(listed), defaultdict[str, list[float]](list)

    def all_of_them() -> None:
        chosen = choose_jobs(api.list(JOBS), JobChoice(shows_all=True))
        rows = job_rows(chosen, EPOCH, is_up=True, is_wide=False)
        render_table(COLUMNS, rows, width=None, wide=False)

    ways: dict[str, Callable[[], object]] = {
        "cli.ps_ended": all_of_them,
        "cli.ps": lambda: recent_jobs(api, "", lambda _: True, FINISHED_SHOWN_MAX),
        "": lambda: msgspec.json.decode(listed),
    }
    for _ in range(ENDED_ROUNDS):
        for figure, way in ways.items():
            gc.collect()
            parse_time.cache_clear()
            with collector_paused():  # as in the command
                start = time.process_time()
                way()
                costs[figure].append(time.process_time() - start)
    bare = costs.pop("")
    for figure, taken in costs.items():
        ratios = (each / one for each, one in zip(taken, bare, strict=True))
        report.add(f"{figure}_ratio", statistics.median(ratios), "x bare")
        each = statistics.median(taken) / ENDED / cpu_slowness()
        report.add(figure, each * 1e6, "us CPU")


class _OneAnswer(Api):
    """A server that has one answer."""

    def __init__(self, body: bytes) -> None:
        super().__init__(Connection("http://nowhere", source="here"))
        self._whole = HttpResponse(200, "OK", {}, body)

    def send(self, asked: HttpRequest) -> HttpResponse:
        """Return it."""
        return self._whole


def _job(number: int) -> Job:
    """Return a job as it is stored once it has ended, at an instant of its own."""
    begun = format_micro_time(EPOCH - 9_000 + number * 0.8)
    ended = format_micro_time(EPOCH - 8_964 + number * 0.8)
    run = Attempt(1, started_at=begun, finished_at=ended, reason="Succeeded")
    said = {"Admitted": "Admitted", "Running": "Succeeded", "Placed": "Finished"}
    conditions = [
        *(Condition(kind, "False", reason, last_transition_time=ended)
          for kind, reason in said.items()),
        Condition("Succeeded", "True", "AllMembersSucceeded", last_transition_time=ended),
    ]  # fmt: skip
    status = {"attempts": (run,), "started_at": begun, "finished_at": ended, "state": "Succeeded"}
    return make_job(f"train-{number}", gpus=1, conditions=tuple(conditions), status=status)
