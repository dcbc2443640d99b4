"""`sim`: run the real controllers on a recorded or drawn load, in virtual time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from fairlead import terminal
from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS, NODES
from fairlead.api.values.times import parse_time
from fairlead.charts import percent
from fairlead.cli.commands.history import LIMIT_MAX
from fairlead.cli.commands.sim_registry import registry
from fairlead.cli.connection.common import Common, common, now, seconds_of
from fairlead.cli.connection.completers import complete_profiles
from fairlead.cli.formats.table import Align, Column
from fairlead.cli.records.ended_jobs import past_lines
from fairlead.decide.words import duration
from fairlead.embedded.virtual.profile import is_kwok
from fairlead.input.errors import CliError, Code, Exit, Problem, fail, writable_directory, writing
from fairlead.input.sections import read_text
from fairlead.sim.kwok.stages import convert
from fairlead.sim.scenarios.compare import compare
from fairlead.sim.scenarios.figures import cells
from fairlead.sim.scenarios.recording import SCENARIO_FILE, write_recording
from fairlead.sim.scenarios.recording import record as recorded
from fairlead.sim.scenarios.report import figure_rows
from fairlead.sim.scenarios.run import (
    RunProgress,
    RunResult,
    ScenarioRun,
    read_results,
    write_results,
)
from fairlead.sim.scenarios.scenario import (
    POLICIES,
    ClusterSpec,
    LoadSpec,
    Scenario,
    ScenarioError,
    check_scenario,
    fault_profiles,
    load_scenario,
)
from fairlead.sim.scenarios.story import Story
from fairlead.sim.setup.world_options import EPOCH
from fairlead.sim.traces.readers import FORMATS, read_trace, write_csv
from fairlead.sim.traces.trace import TraceError

_BAR_WIDTH = 24
_KWOK = "kwok"
_HEAD_BYTES = 64 * 1024


@click.group(
    epilog="""Examples:

    \b
      fairlead sim run --trace jobs.csv --nodes 100 --days 7 --out week
      fairlead sim run examples/scenarios/lemon-nodes.yaml --out lemons
      fairlead sim compare week week-fifo
      fairlead sim replay week --trace-job job-00017
      fairlead sim registry --nodes 1000 --image 17G
    """
)
def sim() -> None:
    """Simulate a cluster under a load: the real controllers, in virtual time."""


sim.add_command(registry)


@contextmanager
def _errors() -> Generator[None]:
    """Turn what is wrong with a scenario or a trace into the one form of errors."""
    try:
        yield
    except ScenarioError as error:
        problems = [
            Problem(Code.SCENARIO, mistake, where=error.source) for mistake in error.mistakes
        ]
        raise CliError(problems) from error
    except TraceError as error:
        raise fail(Code.TRACE, str(error), help=("fairlead sim import --help",)) from error


@sim.command()
@click.argument("scenario_file", metavar="[SCENARIO]", required=False, type=click.Path())
@click.option("--trace", metavar="FILE", default="", help="Jobs to replay; may be gzipped.")
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    default="auto",
    help=f"Of the trace: {', '.join(FORMATS)}. [default: by its header]",
)
@click.option("--days", type=float, metavar="N", help="Only the first N days of arrivals.")
@click.option("--jobs", type=int, metavar="N", help="Only the first N jobs.")
@click.option("--nodes", type=int, metavar="N", help="Nodes. [default: 90]")
@click.option("--gpus", type=int, metavar="N", help="GPUs per node. [default: 8]")
@click.option("--policy", metavar="NAME", help=f"{', '.join(POLICIES)}. [default: default]")
@click.option(
    "--profile",
    metavar="NAME|FILE",
    shell_complete=complete_profiles,
    help="Life of the pods. [default: default]",
)
@click.option("--faults", metavar="NAME", help=f"{', '.join(fault_profiles())}. [default: none]")
@click.option("--seed", type=int, metavar="N", help="Equal seeds give equal runs. [default: 0]")
@click.option(
    "--ideal", is_flag=True, help="No start delays, no failures, exact run times: the bare policy."
)
@click.option("--out", type=click.Path(), metavar="DIR", help="Directory for the results.")
@common(cluster=False)
def run(common_: Common, *, scenario_file: str | None, out: str | None, **flags: Any) -> int:
    """Run a scenario, a trace, or a drawn load; flags win over the scenario's file.

    DIR gets report.html, summary.json, jobs.csv, samples.csv and scenario.json. Ctrl-C ends the run
    early with the same files.
    """
    with _errors():
        scenario = load_scenario(Path(scenario_file)) if scenario_file else Scenario()
        scenario = _with_flags(scenario, flags)
        check_scenario(scenario, scenario_file or "the flags")
        if out:  # before what takes long
            writable_directory(Path(out))
        result = _execute(ScenarioRun(scenario, _show(common_)))
    if out:
        with writing(out):
            write_results(result, Path(out))
    _print(common_, result)
    if out:
        common_.note(f"\nreport: {Path(out) / 'report.html'}")
    return _exit(result, f"fairlead sim replay {out}" if out else "")


def _with_flags(scenario: Scenario, flags: dict[str, Any]) -> Scenario:
    cluster = {key: flags[key] for key in ("nodes", "gpus") if flags[key] is not None}
    load: dict[str, Any] = {}
    if flags["trace"]:
        load |= {"trace": flags["trace"], "format": flags["format_"]}
    load |= {"days": flags["days"]} if flags["days"] is not None else {}
    load |= {"jobs_max": flags["jobs"]} if flags["jobs"] is not None else {}
    top = {
        key: flags[key] for key in ("policy", "profile", "faults", "seed") if flags[key] is not None
    }
    changed = msgspec.structs.replace
    new_cluster: ClusterSpec = changed(scenario.cluster, **cluster)
    new_load: LoadSpec = changed(scenario.load, **load)
    ideal = scenario.ideal or flags["ideal"]
    return changed(scenario, cluster=new_cluster, load=new_load, ideal=ideal, **top)


def _execute(run_: ScenarioRun) -> RunResult:
    """Run with Ctrl-C ending the simulation instead of the program; a second one ends both."""

    def stop(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        run_.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        return run_.run()
    finally:
        signal.signal(signal.SIGINT, before)


def _show(common_: Common) -> Callable[[RunProgress], None]:
    """Return what draws the progress bar: on a terminal only."""
    if common_.quiet or not terminal.can_redraw():
        return lambda _: None

    def show(progress: RunProgress) -> None:
        done = progress.submitted / max(progress.jobs, 1)
        bar = "#" * round(done * _BAR_WIDTH)
        line = (
            f"[{bar:<{_BAR_WIDTH}}] {duration(progress.simulated_seconds):>8} simulated, "
            f"{progress.speed:,.0f} x; {progress.running:,} running, {progress.waiting:,} waiting, "
            f"{percent(progress.busy_share)} busy"
        )
        terminal.redraw(f"{line[:109]:<109}", is_last=progress.is_over)

    return show


def _print(common_: Common, result: RunResult) -> None:
    if common_.is_structured:
        common_.data(asdict(result.summary))
        return
    rows = figure_rows(result.summary)
    common_.table([Column("FIGURE"), Column("VALUE")], rows, empty="")
    for problem in result.load.problems:
        common_.note(f"left out: {result.load.source}:{problem.line}: {problem.message}")


def _exit(result: RunResult, replay: str) -> int:
    if not result.summary.violations:
        return Exit.OK if result.summary.is_complete else Exit.INTERRUPTED
    for text in result.summary.violations:
        terminal.tell(f"a promise is broken: {text}")
    if replay:
        terminal.tell(f"  replay: {replay}")
    return Exit.FAILED


@sim.command(name="compare")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path())
@common(cluster=False)
def compare_(common_: Common, *, folders: tuple[str, ...]) -> None:
    """Compare runs; those that differ only in their seed become one column with its spread."""
    with _errors():
        groups = compare([Path(folder) for folder in folders])
    if common_.is_structured:
        common_.data([asdict(group) for group in groups])
        return
    columns = [Column("FIGURE"), *(Column(g.name.upper(), Align.RIGHT) for g in groups)]
    common_.table(columns, cells(groups), empty="")


@sim.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--until", type=float, metavar="SECONDS", help="Stop after this simulated time.")
@click.option(
    "--trace-job",
    "name",
    metavar="NAME",
    default="",
    help="Show what happened to this job, or node, event by event.",
)
@common(cluster=False)
def replay(common_: Common, *, folder: str, until: float | None, name: str) -> int:
    """Run a scenario again from its results, and check that the log's hash is the same."""
    with _errors():
        scenario, summary = read_results(Path(folder))
        story = Story(name, EPOCH)
        observers = (story,) if name else ()
        result = _execute(ScenarioRun(scenario, _show(common_), observers=observers, until=until))
    if name and not story.events:
        known = ", ".join(list(result.recorder.jobs)[:3])
        raise fail(Code.NO_SUCH_JOB, f"no job or node '{name}' in this run",
                   help=(f"jobs are named as in jobs.csv, such as {known}",))  # fmt: skip
    for at, text in story.events:
        common_.emit(f"{at:14.3f}  {text}\n")
    if not name:
        _print(common_, result)
    if until is not None or not result.summary.is_complete:
        return _exit(result, "") if until is None else Exit.OK
    if result.summary.log_hash != summary.get("log_hash"):
        raise fail(
            Code.SCENARIO, "the log's hash differs from that of the first run",
            detail=(f"then {summary.get('log_hash')}", f"now  {result.summary.log_hash}"),
            help=("use the version of fairlead that made the first run",),
        )  # fmt: skip
    common_.note(f"same log hash as the first run: {result.summary.log_hash}")
    return _exit(result, "")


@sim.command()
@click.argument("folder", metavar="DIR", type=click.Path())
@click.option("--since", metavar="DURATION", default="7d", show_default=True,
              help="Jobs that ended this long ago or later, and those that run.")  # fmt: skip
@click.option("--history", "store", metavar="URL|FILE", default="",
              help="Read ended jobs from here. Also: FAIRLEAD_HISTORY_URL.")  # fmt: skip
@common(output=False)
def record(common_: Common, *, folder: str, since: str, store: str) -> None:
    """Record a cluster's jobs, nodes and node failures as a scenario for `sim run`.

    DIR gets scenario.yaml and jobs.csv. Change the scenario's policy, or its nodes, and run it.
    """
    earliest = now() - seconds_of(since, "--since")
    writable_directory(Path(folder))
    jobs = {job.metadata.uid: job for job in _ended_jobs(common_, store, earliest)}
    api = common_.connect()
    jobs.update({job.metadata.uid: job for job in api.list(JOBS) if _ended_after(job, earliest)})
    with _errors():
        found = recorded(jobs.values(), api.list(NODES), now=now())
    with writing(folder):
        write_recording(found, Path(folder))
    count, seconds = len(found.trace.jobs), found.trace.seconds
    common_.note(f"{count:,} jobs over {duration(seconds)}, {found.scenario.cluster.nodes} nodes")
    for line in found.trace.assumptions:
        common_.note(f"assumed: {line}")
    common_.note(f"run it: fairlead sim run {Path(folder) / SCENARIO_FILE} --out RESULTS")


def _ended_jobs(common_: Common, store: str, earliest: float) -> list[Job]:
    """Return the jobs of the history; none, with a note, where the cluster gives none to read."""
    everywhere = replace(common_, all_namespaces=True)
    query = {"since": f"{earliest:.3f}", "limit": str(LIMIT_MAX)}
    try:
        ended = past_lines(everywhere, store, query)
    except CliError as error:
        if store or error.problems[0].code is not Code.REFUSED:
            raise
        common_.note(f"{error}: jobs that were deleted are left out; --history names a store")
        return []
    return [msgspec.convert(line.document, Job) for line in ended]


def _ended_after(job: Job, earliest: float) -> bool:
    """Return False for a job that ended before."""
    at = job.status.finished_at
    return at is None or parse_time(at) >= earliest


@sim.command(name="import")
@click.argument("source", metavar="FILE", type=click.Path())
@click.argument("target", metavar="TARGET", type=click.Path())
@click.option(
    "--format",
    "format_",
    metavar="FORMAT",
    default="auto",
    help=f"Of the source: {', '.join(FORMATS)}, {_KWOK}. [default: by its content]",
)
@common(output=False, cluster=False)
def import_(common_: Common, *, source: str, target: str, format_: str) -> None:
    """Convert a trace to CSV, or stages of KWOK to a profile.

    Says what was assumed, and what was left out. CSV is the generic form of traces; the output of
    Slurm's sacct -P is one (docs/howto/moving-a-slurm-site.md).
    """
    if Path(source).exists() and Path(target).exists() and Path(target).samefile(source):
        message = f"'{target}' is what is to be converted; it would be overwritten"
        raise fail(Code.DATA_UNWRITABLE, message, help=("name another file for the result",))
    if format_ == _KWOK or (format_ == "auto" and _is_kwok_file(Path(source))):
        _import_stages(common_, source, target)
        return
    with _errors():
        trace = read_trace(Path(source), format_)
    with writing(target):
        write_csv(trace, Path(target))
    common_.note(f"{len(trace.jobs):,} jobs over {duration(trace.seconds)}, format {trace.format}")
    for line in trace.assumptions:
        common_.note(f"assumed: {line}")
    if trace.problem_count:
        common_.note(f"{trace.problem_count:,} lines are not jobs and were left out:")
    for problem in trace.problems:
        common_.note(f"  {source}:{problem.line}: {problem.message}")


def _is_kwok_file(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return is_kwok(file.read(_HEAD_BYTES).decode("utf-8", errors="replace"))
    except OSError:
        return False


def _import_stages(common_: Common, source: str, target: str) -> None:
    found = convert(read_text(Path(source)), source=source, name=Path(target).stem)
    with writing(target):
        Path(target).write_text(found.text, encoding="utf-8")
    common_.note(f"{found.stages} stages of a profile, from {source}")
    for line in found.assumed:
        common_.note(f"assumed: {line}")
    for line in found.left_out:
        common_.note(f"left out: {line}")
    common_.note(f"use it: fairlead up --profile {target}, fairlead sim run --profile {target}")
