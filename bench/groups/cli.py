"""How long people wait for the command line, and for a cluster to come up; what the table of many
ended jobs costs.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable

import msgspec

from bench.cluster import Cluster, cluster
from bench.harness import Report, cpu_slowness, slowness
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import Condition
from fairlead.api.values.times import format_time
from fairlead.cli.connection.common import collector_paused
from fairlead.cli.formats.table import render_table
from fairlead.cli.views.jobs import COLUMNS, JobChoice, choose_jobs, job_rows
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
    """Report what `ps --all` does with each ended job once it has the list, beside decoding that
    without types.
    """
    listed = b"[" + b",".join(msgspec.json.encode(_job(i)) for i in range(ENDED)) + b"]"
    decoder, costs, ratios = msgspec.json.Decoder(list[Job]), list[float](), list[float]()
    decoder.decode(listed)
    for _ in range(ENDED_ROUNDS):
        gc.collect()
        with collector_paused():  # as in the command
            start = time.process_time()
            chosen = choose_jobs(decoder.decode(listed), JobChoice(shows_all=True))
            rows = job_rows(chosen, EPOCH, is_up=True, is_wide=False)
            render_table(COLUMNS, rows, width=None, wide=False)
            costs.append(time.process_time() - start)
            start = time.process_time()
            msgspec.json.decode(listed)
            ratios.append(costs[-1] / (time.process_time() - start))
    report.add("cli.ps_ended_ratio", statistics.median(ratios), "x bare")
    each = statistics.median(costs) / ENDED / cpu_slowness()
    report.add("cli.ps_ended", each * 1e6, "us CPU")


def _job(number: int) -> Job:
    begun, ended = format_time(EPOCH - 600), format_time(EPOCH - 60 + number % 50)
    run = Attempt(1, started_at=begun, finished_at=ended)
    done = (Condition("Succeeded", "True", last_transition_time=ended),)
    status = {"attempts": (run,), "started_at": begun, "finished_at": ended, "state": "Succeeded"}
    return make_job(f"train-{number}", gpus=1, conditions=done, status=status)
