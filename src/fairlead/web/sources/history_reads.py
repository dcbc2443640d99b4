"""What pages ask of the history, of the scheduler's records and of nodes, as the commands read it.

All of it blocks. Each function returns an answer that says in `problem` why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fairlead.api import names
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.jobs.job import Job
from fairlead.api.resources import NODE_TESTS
from fairlead.api.status import ApiError
from fairlead.app.queries.decision_file import DecisionHead
from fairlead.app.queries.messages import DecisionLine, FleetLine, RunLine
from fairlead.cli.commands.decisions import read_decision_head, read_decisions
from fairlead.cli.commands.eff import past_efficiency
from fairlead.cli.commands.node import node_decisions
from fairlead.cli.commands.top import use_lines
from fairlead.cli.commands.usage import UsageRecords, read_records
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.table import Row
from fairlead.cli.records.ended_jobs import past_runs, present_or_past_job
from fairlead.cli.views.decisions import verdict_counts, write_rows
from fairlead.cli.views.top import TopLine
from fairlead.cli.views.usage import Totals, Waits, waits_of
from fairlead.decide.verdict import ObjectKey
from fairlead.input.errors import CliError
from fairlead.runtime.clock import Clock

#: Decisions of the scheduler that are listed.
DECISIONS_MAX = 100
#: A node, and its pool, "" for none.
NodeKey: TypeAlias = tuple[str, str]
#: Runs that have ended are at most so many of the latest.
RUNS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """What GPU-hours to sum: of a namespace ("": all), by which keys, of how many seconds."""

    namespace: str
    keys: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class UsageSums:
    """GPU-hours by the keys, by week and team, and waits; `problem` says why there are none."""

    at: float
    found: Totals = field(default_factory=dict[tuple[str, ...], tuple[float, ...]])
    weeks: Totals = field(default_factory=dict[tuple[str, ...], tuple[float, ...]])
    waits: Waits = field(default_factory=dict[str, Sequence[float]])
    is_cut: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RunsQuestion:
    """Which runs that have ended: of a namespace ("": all), with a tag ("": any), since so many
    seconds ago (0: whenever).
    """

    namespace: str
    tag: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PastRuns:
    """Runs that have ended, the latest first; `problem` says why there are none."""

    lines: Sequence[RunLine] = ()
    is_cut: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PastJob:
    """A job that may have ended; `problem` says why there is none."""

    job: Job | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LatestDecisions:
    """What the scheduler decided last; `problem` says why that cannot be seen."""

    lines: Sequence[DecisionLine] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OpenedDecision:
    """A decision: when it was made and on how many objects, how often it gave each verdict, and
    what it did; `head` is None where `problem` says why.
    """

    head: DecisionHead | None = None
    verdicts: Mapping[str, int] = field(default_factory=dict[str, int])
    rows: Sequence[Row] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobUseAnswer:
    """What a job uses now, in one line of `fairlead top`, and what `fairlead eff` says of it;
    `problem` says why what it uses now is not known.
    """

    now: TopLine | None = None
    lines: Sequence[str] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """Running jobs by what they use, as `fairlead top -A` has them; `problem` says why that is not
    known.
    """

    at: float
    lines: Sequence[TopLine] = ()
    problem: str = ""

    @property
    def idle_gpus(self) -> int:
        """GPUs of jobs that have used almost nothing for a while."""
        return sum(line.idle_gpus for line in self.lines)

    @property
    def busy_gpus(self) -> int:
        """GPUs of jobs that have used more."""
        return sum(e.gpus for e in self.lines if not e.unknown_jobs and not e.idle_jobs)

    @property
    def unknown_gpus(self) -> int:
        """GPUs of jobs of which it is not known, or not for long enough."""
        return sum(line.gpus for line in self.lines if line.unknown_jobs)


@dataclass(frozen=True, slots=True)
class NodePast:
    """The tests of a node, the newest first, those of all nodes, and what was decided about it;
    `problem` says why the last is not known.
    """

    tests: Sequence[NodeTest] = ()
    all_tests: Sequence[NodeTest] = ()
    decisions: Sequence[FleetLine] = ()
    problem: str = ""


def usage_sums(common: Common, clock: Clock, question: UsageQuestion) -> UsageSums:
    """Return what `fairlead usage` sums up until now."""
    until = clock.now()
    begin = until - question.seconds
    try:
        records: UsageRecords = read_records(in_namespace(common, question.namespace), "", begin)
    except (CliError, ApiError) as error:
        return UsageSums(until, problem=str(error))
    return UsageSums(
        until, records.totals(question.keys, begin, until),
        records.totals(("week", "team"), begin, until), waits_of(records.lines),
        is_cut=records.is_cut,
    )  # fmt: skip


def ended_runs(common: Common, clock: Clock, question: RunsQuestion) -> PastRuns:
    """Return what `fairlead runs` reads of the history."""
    query = {"limit": str(RUNS_MAX), **({"tag": question.tag} if question.tag else {})}
    if question.seconds:
        query["since"] = f"{clock.now() - question.seconds:.3f}"
    try:
        lines = past_runs(in_namespace(common, question.namespace), "", query)
    except (CliError, ApiError) as error:
        return PastRuns(problem=str(error))
    return PastRuns(lines, is_cut=len(lines) == RUNS_MAX)


def job_of_history(common: Common, key: ObjectKey) -> PastJob:
    """Return the job that `fairlead runs show` shows."""
    try:
        return PastJob(present_or_past_job(in_namespace(common, key[0]), "", key[1]))
    except (CliError, ApiError) as error:
        return PastJob(problem=str(error))


def latest_decisions(common: Common) -> LatestDecisions:
    """Return what `fairlead decisions` lists."""
    try:
        return LatestDecisions(read_decisions(common, DECISIONS_MAX))
    except (CliError, ApiError) as error:
        return LatestDecisions(problem=_words(error))


def one_decision(common: Common, cycle: int) -> OpenedDecision:
    """Return a decision as the first line of what `fairlead decisions save` writes has it."""
    try:
        found = read_decision_head(common, cycle)
    except (CliError, ApiError) as error:
        return OpenedDecision(problem=_words(error))
    return OpenedDecision(found, verdict_counts(found.actions), write_rows(found.actions))


def use_of_job(common: Common, key: ObjectKey, api: Api) -> JobUseAnswer:
    """Return what a job uses now, if it runs, and what its members did that have ended."""
    found = job_of_history(common, key)
    if found.job is None:
        return JobUseAnswer(problem=found.problem)
    job, now, problem = found.job, None, ""
    if not job.is_finished:
        selector = f"{names.JOB_NAME}={job.metadata.name},{names.ATTEMPT}={job.status.attempt}"
        try:
            lines, problem = use_lines(
                api, (job,), namespace=job.metadata.namespace, selector=selector
            )
            now = next(iter(lines), None)
        except (CliError, ApiError) as error:
            problem = _words(error)
    past: Sequence[str] = ()
    if any(each.finished_at for each in job.status.attempts):
        try:
            used = past_efficiency(in_namespace(common, job.metadata.namespace), "", job)
            past = [*used.lines, *used.plot]
        except (CliError, ApiError) as error:
            problem = problem or _words(error)
    return JobUseAnswer(now, past, problem)


def use_of_cluster(jobs: Sequence[Job], at: float, api: Api) -> ClusterUse:
    """Return what these jobs use, those of all namespaces; at least one look at each pod."""
    try:
        lines, problem = use_lines(api, jobs, namespace="")
    except (CliError, ApiError) as error:
        return ClusterUse(at, problem=_words(error))
    return ClusterUse(at, lines, problem)


def past_of_node(common: Common, key: NodeKey, api: Api) -> NodePast:
    """Return the tests of a node beside those of all, and what was decided about it."""
    try:
        tests = list(api.list(NODE_TESTS))
    except (CliError, ApiError):  # the kind is not there, or not for this person
        tests = []
    node, pool = key
    own = sorted((t for t in tests if t.spec.node == node), key=lambda each: -each.spec.number)
    try:
        return NodePast(own, tests, node_decisions(common, node, pool))
    except (CliError, ApiError) as error:
        return NodePast(own, tests, problem=_words(error))


def in_namespace(common: Common, space: str) -> Common:
    """Return the flags of a command for a namespace, "" all."""
    return replace(common, namespace=space, all_namespaces=not space)


def _words(error: CliError | ApiError) -> str:
    if isinstance(error, ApiError):
        return str(error)
    problem = error.problems[0]
    return "; ".join((problem.message, *problem.detail))
