"""What metrics of nodes' exporters cost: 1,000 nodes of 8 GPUs, 8 metrics, each scraped or summed.

Without sums Prometheus has a series for each metric and GPU of each node. The bounds are on what
the leader spends: the time of one report, which comes once a minute from each node, and the
longest time for which the text of the figures holds its process up.
"""

from __future__ import annotations

import time
from itertools import pairwise

from bench.harness import Report, cpu_slowness
from fairlead.api.cluster.node_report import EXPORTED_METRICS_MAX, ReportedExports, ReportedSketch
from fairlead.api.values.sketch import Sketch
from fairlead.api.values.times import format_time
from fairlead.decide.use.exports import ExportBook
from fairlead.runtime.exported.export_metrics import HEAD, lines_of

NODES, GPUS, READS = 1_000, 8, 4
RACK_NODES, TEAMS, JOB_NODES = 16, 20, 4
METRICS = tuple(f"DCGM_FI_METRIC_{number}" for number in range(EXPORTED_METRICS_MAX))
NOW = 1_790_000_000.0


def run(report: Report) -> None:
    """Measure pages with and without sums, and what the sums cost."""
    exported = [reported(node) for node in range(NODES)]
    book = ExportBook()
    fill(book, exported)
    began = time.thread_time()
    fill(book, exported)  # what a node said before is taken away
    report.add("exports.report_ms", ms(time.thread_time() - began) / NODES, "ms")
    page, longest = text(book)
    report.add("exports.slice_ms", ms(longest), "ms")
    scraped = [raw_page(node) for node in range(NODES)]
    series = sum(each.count("\n") for each in scraped)
    report.add("exports.series_share", 100 * page.count("\nfairlead_exported{") / series, "%")
    bytes_ = sum(map(len, scraped))
    report.add("exports.bytes_share", 100 * len(page) / bytes_, "%")


def ms(seconds: float) -> float:
    """Return seconds of this machine's core as milliseconds of the usual one."""
    return 1000 * seconds / cpu_slowness()


def value(node: int, gpu: int, metric: int, read: int) -> int:
    """Return a value that differs between nodes, GPUs and reads."""
    return (node * 7 + gpu * 3 + metric * 11 + read) % 100


def reported(node: int) -> ReportedExports:
    """Return what a node reports in a minute."""
    sketches: list[ReportedSketch] = []
    for number, metric in enumerate(METRICS):
        sketch = Sketch()
        for gpu in range(GPUS):
            for read in range(READS):
                sketch.add(value(node, gpu, number, read))
        sketches.append(ReportedSketch(metric, sketch.text(), "vision", f"train-{node}"))
    return ReportedExports(format_time(NOW), 60, tuple(sketches))


def fill(book: ExportBook, exported: list[ReportedExports]) -> None:
    """Put the reports of all nodes."""
    for node, each in enumerate(exported):
        owner = f"team-{node // JOB_NODES % TEAMS}", f"default/job-{node // JOB_NODES}"
        book.put(
            f"n{node}", each, NOW, pool="h100", rack=f"rack-{node // RACK_NODES}",
            owner=lambda _space, _pod, owner=owner: owner,
        )  # fmt: skip


def text(book: ExportBook) -> tuple[str, float]:
    """Return the text of all figures, and the longest time between two pauses, in seconds."""
    parts, times = [HEAD], [time.thread_time()]
    for number, key in enumerate(book.shown()):
        sketch = book.get(key)
        if sketch is not None:
            parts.append(lines_of(key, sketch))
        if number % 100 == 0:
            times.append(time.thread_time())
    return "".join(parts), max(b - a for a, b in pairwise(times))


def raw_page(node: int) -> str:
    """Return what NVIDIA's exporter says of these metrics: its labels, and nothing else."""
    return "".join(
        f'{metric}{{gpu="{gpu}",UUID="GPU-{node:08x}-{gpu:04x}",device="nvidia{gpu}",modelName='
        f'"NVIDIA H100 80GB HBM3",Hostname="n{node}",container="main",namespace="vision",'
        f'pod="train-{node}"}} {value(node, gpu, number, 0)}\n'
        for number, metric in enumerate(METRICS)
        for gpu in range(GPUS)
    )
