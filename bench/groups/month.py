"""A month of failures as published, with and without tests of nodes, beside an oracle.

    without   nobody tests: people find a bad machine after three attempts that it spoiled
    engine    idle nodes are tested, nodes that a test condemns go out, and come back when mended
    oracle    no machine is ever bad in silence: those are known before any work begins there

All three have the same jobs, and the node and GPU failures of `meta-rsc` and `llama3`; beside them
machines are bad and say nothing, some from their first day. The goodput is the GPU time of attempts
that was neither lost nor spoiled, over all GPU time of attempts. On 40 nodes for a week, with ten
times as many silent faults; with `FAIRLEAD_MONTH_NODES=2000` on that many, for a month, at the
stated rates.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from msgspec.structs import replace

from bench.harness import Report
from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.sim.scenarios.scenario import ClusterSpec, LoadSpec, Scenario, faults_of
from fairlead.sim.scenarios.summary import Summary

PROFILES = ("meta-rsc", "llama3")
NODES, DAYS, FULL_DAYS = 40, 7.0, 30.0
#: Per 1,000 node-days, and the part of the machines that are bad from their first day: ours, as no
#: source gives them.
SILENT_RATE, SILENT_RATE_SMALL, INFANTS = 2.0, 20.0, 0.02
#: Half of the GPUs are in use, and a node takes a member every 14 hours: it is tested each 20.
JOBS_PER_NODE_DAY = 0.5
SEED = 40


@dataclass(frozen=True, slots=True)
class MonthOfRuns:
    """The three runs of one profile, and how many node-days each has."""

    without: Summary
    engine: Summary
    oracle: Summary
    node_days: float

    @property
    def over_oracle(self) -> tuple[float, float]:
        """The goodput with the engine, and without it, over that of the oracle."""
        best = goodput(self.oracle)
        return goodput(self.engine) / best, goodput(self.without) / best

    @property
    def false_cordons(self) -> float:
        """Good nodes that were taken out, per 1,000 node-days."""
        return self.engine.nodes_taken_good / self.node_days * 1_000

    @property
    def repeats(self) -> float:
        """Of the nodes that were taken out the share that had been mended within 7 days."""
        return self.engine.nodes_taken_again / max(1, self.engine.nodes_taken)


def run(report: Report) -> None:
    """Simulate both profiles once; equal seeds give equal figures."""
    text = os.environ.get("FAIRLEAD_MONTH_NODES", "")
    days, rate = (FULL_DAYS, SILENT_RATE) if text else (DAYS, SILENT_RATE_SMALL)
    for profile in PROFILES:
        begun = time.process_time()
        found = simulated(profile, int(text or NODES), days, rate=rate)
        engine, without = found.over_oracle
        for name in ("without", "engine", "oracle"):
            print(f"  {profile}, {name}: {_line(getattr(found, name))}", flush=True)
        print(f"  {time.process_time() - begun:.0f} s CPU", flush=True)
        name = f"month_{text}.{profile}" if text else f"month.{profile}"  # bounds: the default size
        report.add(f"{name}.goodput", engine, "x oracle")
        report.add(f"{name}.goodput_without", without, "x oracle")
        report.add(f"{name}.false_cordons", found.false_cordons, "per 1,000 node-days")
        report.add(f"{name}.repeats", found.repeats, "of nodes taken out")


def simulated(profile: str, nodes: int, days: float, *, rate: float) -> MonthOfRuns:
    """Return the runs of a profile; `rate` of silent faults is per 1,000 node-days."""
    load = LoadSpec(
        days=days, jobs_per_day=JOBS_PER_NODE_DAY * nodes, run_seconds_median=14_400,
        run_seconds_sigma=1.2, run_seconds_max=86_400, members_max=8, checkpoint_seconds=3600,
    )  # fmt: skip
    plain = Scenario(
        cluster=ClusterSpec(nodes=nodes), load=load, seed=SEED, faults=profile,
    )  # fmt: skip
    silent = replace(faults_of(plain), infant_share=INFANTS, silent_faults_per_1000_node_days=rate)
    sick = replace(plain, faults=silent)
    runs = (sick, replace(sick, node_tests="quick"), plain)
    without, engine, oracle = (ScenarioRun(each).run().summary for each in runs)
    for each in (without, engine, oracle):
        assert not each.violations, each.violations
    return MonthOfRuns(without, engine, oracle, nodes * days)


def goodput(summary: Summary) -> float:
    """Return the part of the GPU time of attempts that was neither lost nor spoiled."""
    spoiled, useful = summary.spoiled_gpu_seconds or 0.0, summary.useful_gpu_seconds
    return max(0.0, useful - spoiled) / (useful + summary.lost_gpu_seconds)


def _line(summary: Summary) -> str:
    return (
        f"goodput {goodput(summary):.4f}, {summary.finished} of {summary.jobs} jobs,"
        f" {summary.node_failures} node and {summary.gpu_faults} GPU failures,"
        f" {summary.silent_faults} silent ones, {summary.gangs_hit} attempts begun on them,"
        f" {summary.nodes_taken} nodes taken out ({summary.nodes_taken_good} good,"
        f" {summary.nodes_taken_again} again)"
    )
