"""What the pages ask beside the mirrors, with the functions of the command line itself: why a job
is where it is (`fairlead why`), what teams use now (`fairlead teams`), what its members write
(`fairlead logs`), changes (`changes.py`), and whether the person may make one.

These functions block, so they run in threads, of which there is a fixed number. Why a job waits is
computed by the process that decides, one question at a time; so an answer is kept for some seconds
and shared by all who look at the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Callable,
    Hashable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from fairlead.api.cluster.team import TeamUse
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.meta import to_wire
from fairlead.api.resources import PRIORITY_CLASSES
from fairlead.api.reviews import (
    SELF_ACCESS_REVIEWS,
    AccessReview,
    AccessReviewSpec,
    ResourceAttributes,
)
from fairlead.api.status import ApiError
from fairlead.app.messages import DecisionLine, RunLine
from fairlead.cli.cluster.answers import ask_teams
from fairlead.cli.cluster.embedded import LogPart
from fairlead.cli.commands.decisions import read_decision, read_decisions
from fairlead.cli.commands.usage import UsageRecords, read_records
from fairlead.cli.commands.why import Asking, JobAnswer
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.text import wrapped
from fairlead.cli.job_request.flags import Flag
from fairlead.cli.job_request.jobspec import Origin
from fairlead.cli.records.past import past_runs, present_or_past_job
from fairlead.cli.views.usage import Totals, Waits, waits_of
from fairlead.cli.views.why import FACT_INDENT
from fairlead.decide.verdict import ObjectKey
from fairlead.input.errors import CliError, render_error
from fairlead.kube.kubeconfig import Connection
from fairlead.model.asks.priorities import SYSTEM_PREFIX
from fairlead.runtime.clock import Clock
from fairlead.web.changes import ChangeOrder, make_change
from fairlead.web.drafts import DraftAnswer, JobDraft, answer_draft
from fairlead.web.followed_log import FollowedLog

#: Answers are kept for so long, and so many of them.
ANSWER_SECONDS, ANSWERS_MAX = 10.0, 256
#: Decisions of the scheduler that are listed.
DECISIONS_MAX = 100
#: Reading the history may take minutes, and it changes slowly.
USAGE_SECONDS = 300.0
#: Runs that have ended are read again so often, and at most so many of the latest.
RUNS_SECONDS, RUNS_MAX = 30.0, 10_000
#: Logs that are followed at a time, each by a thread.
FOLLOWED_MAX = 16
#: Of the text of an answer, as on a terminal of this width.
_COLUMNS = 80


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TooManyLogs(Exception):
    """As many logs are being followed as may be."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What `fairlead why` says of a job; `text` alone where it says nothing but why not."""

    text: str
    at: float
    answer: JobAnswer | None = None


@dataclass(frozen=True, slots=True)
class _Kept(Generic[V]):
    """An answer, and when it was asked for."""

    value: V
    at: float


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
class ChangeResult:
    """How a change went: the name of what it made, "" for nothing new; or why it was refused."""

    made: str = ""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class LatestDecisions:
    """What the scheduler decided last; `problem` says why that cannot be seen."""

    lines: Sequence[DecisionLine] = ()
    problem: str = ""


class SharedAnswers(Generic[K, V]):
    """Answers of `ask`, which blocks and runs in a thread: one question at a time for each key,
    each answer kept for `seconds` and shared by all who ask. ANSWERS_MAX are kept.
    """

    def __init__(
        self, ask: Callable[[K], V], threads: ThreadPoolExecutor, clock: Clock, *, seconds: float,
        answered: Callable[[], None],
    ) -> None:  # fmt: skip
        """`answered` is called whenever an answer has come."""
        self._ask, self._threads, self._clock = ask, threads, clock
        self._seconds, self._answered = seconds, answered
        self._answers: dict[K, _Kept[V]] = {}
        self._asked: dict[K, asyncio.Future[V]] = {}

    async def of(self, key: K, *, patience_seconds: float | None = None) -> V | None:
        """Return the answer, and ask again where the one that is kept is old by now.

        None where nothing is known within `patience_seconds`.
        """
        kept, now = self._answers.get(key), self._clock.now()
        if kept is not None and now - kept.at < self._seconds:
            return kept.value
        asking = self._asked.get(key)
        if asking is None:
            asking = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, key)
            self._asked[key] = asking
            asking.add_done_callback(lambda done: self._keep(key, now, done))
        if kept is not None and patience_seconds is not None:
            return kept.value
        try:
            async with asyncio.timeout(patience_seconds):
                return await asyncio.shield(asking)
        except TimeoutError:
            return None

    def forget(self, key: K) -> None:
        """Have it asked for again."""
        self._answers.pop(key, None)

    def _keep(self, key: K, at: float, done: asyncio.Future[V]) -> None:
        self._asked.pop(key, None)
        if done.cancelled():
            return
        if (fault := done.exception()) is not None:  # nobody may be waiting for it any more
            context = {"message": f"a question about {key} failed", "exception": fault}
            done.get_loop().call_exception_handler(context)
            return
        self._answers.pop(key, None)
        while len(self._answers) >= ANSWERS_MAX:
            self._answers.pop(next(iter(self._answers)))
        self._answers[key] = _Kept(done.result(), at)
        self._answered()


class QuestionThreads:
    """The threads of all who ask: `asking` questions, `following` logs, and a history at a time."""

    def __init__(self, *, asking: int = 1, following: int = FOLLOWED_MAX) -> None:
        self.following_max = following
        self.asking = ThreadPoolExecutor(asking, thread_name_prefix="why")
        self.reading = ThreadPoolExecutor(1, thread_name_prefix="history")
        self.following = ThreadPoolExecutor(following, thread_name_prefix="logs")
        self._feeds: dict[FollowedLog, asyncio.Future[None]] = {}

    @property
    def has_room(self) -> bool:
        """True where one more log may be followed."""
        return len(self._feeds) < self.following_max

    def follow(self, feed: FollowedLog, key: ObjectKey, query: LogPart) -> asyncio.Future[None]:
        """Read a log in a thread of its own until its end; return that end."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self.following, feed.run, key, query)
        self._feeds[feed] = running
        running.add_done_callback(lambda _: self._feeds.pop(feed, None))
        return running

    async def close(self) -> None:
        """End what is followed, and return once the threads have ended with it."""
        for feed in self._feeds:
            feed.stop()
        await asyncio.gather(*self._feeds.values(), return_exceptions=True)
        for each in (self.asking, self.reading, self.following):
            each.shutdown(wait=False, cancel_futures=True)


class Questions:
    """Asks in threads, as the user of a connection. `common` are the flags of its commands."""

    def __init__(
        self,
        common: Common,
        connection: Connection,
        clock: Clock,
        threads: QuestionThreads,
        *,
        followed_max: int = FOLLOWED_MAX,
    ) -> None:
        self._common, self._connection, self._clock = common, connection, clock
        self._threads, self._followed_max, self._followed = threads, followed_max, 0
        #: Called when an answer has come; who looks may want to see it.
        self.answered: Callable[[], None] = lambda: None

        def shared(
            ask: Callable[[K], V], threads: ThreadPoolExecutor, seconds: float
        ) -> SharedAnswers[K, V]:
            return SharedAnswers(ask, threads, clock, seconds=seconds, answered=self._has_come)

        self._whys = shared(self._ask_why, threads.asking, ANSWER_SECONDS)
        self._uses = shared(self._ask_teams, threads.asking, ANSWER_SECONDS)
        self._decisions = shared(self._ask_decisions, threads.asking, ANSWER_SECONDS)
        self._rights = shared(self._ask_right, threads.asking, ANSWER_SECONDS)
        self._classes = shared(self._ask_classes, threads.asking, ANSWER_SECONDS)
        self._supposed = shared(self._ask_supposed, threads.asking, ANSWER_SECONDS)
        self._usages = shared(self._ask_usage, threads.reading, USAGE_SECONDS)
        self._runs = shared(self._ask_runs, threads.reading, RUNS_SECONDS)
        self._jobs = shared(self._ask_job, threads.reading, RUNS_SECONDS)

    def _has_come(self) -> None:
        self.answered()

    async def why(
        self, key: ObjectKey, *, patience_seconds: float | None = None
    ) -> Answered | None:
        """Return what `fairlead why` says of a job, as `SharedAnswers.of`."""
        return await self._whys.of(key, patience_seconds=patience_seconds)

    async def team_uses(
        self, *, patience_seconds: float | None = None
    ) -> Mapping[str, TeamUse] | None:
        """Return what each team uses now, as `fairlead teams` asks for it; None where no process
        says it, or not within `patience_seconds`.
        """
        return await self._uses.of((), patience_seconds=patience_seconds)

    async def usage(
        self, question: UsageQuestion, *, patience_seconds: float | None = None
    ) -> UsageSums | None:
        """Return the sums of `fairlead usage`, as `SharedAnswers.of`."""
        return await self._usages.of(question, patience_seconds=patience_seconds)

    async def runs(
        self, question: RunsQuestion, *, patience_seconds: float | None = None
    ) -> PastRuns | None:
        """Return the runs that have ended, as `SharedAnswers.of`."""
        return await self._runs.of(question, patience_seconds=patience_seconds)

    async def past_job(
        self, key: ObjectKey, *, patience_seconds: float | None = None
    ) -> PastJob | None:
        """Return the job that `fairlead runs show` shows, as `SharedAnswers.of`."""
        return await self._jobs.of(key, patience_seconds=patience_seconds)

    async def decisions(self, *, patience_seconds: float | None = None) -> LatestDecisions | None:
        """Return what `fairlead decisions` lists, as `SharedAnswers.of`."""
        return await self._decisions.of((), patience_seconds=patience_seconds)

    async def decision_file(self, cycle: int) -> bytes:
        """Return what `fairlead decisions save` writes; CliError, ApiError."""
        loop = asyncio.get_running_loop()
        lines = await loop.run_in_executor(
            self._threads.reading, read_decision, self._common, cycle
        )
        return b"".join(line + b"\n" for line in lines)

    def _ask_decisions(self, _key: tuple[()]) -> LatestDecisions:
        try:
            return LatestDecisions(read_decisions(self._common, DECISIONS_MAX))
        except CliError as error:
            problem = error.problems[0]
            return LatestDecisions(problem="; ".join((problem.message, *problem.detail)))
        except ApiError as error:
            return LatestDecisions(problem=str(error))

    def _ask_usage(self, question: UsageQuestion) -> UsageSums:
        until = self._clock.now()
        begin = until - question.seconds
        common = self._in_namespace(question.namespace)
        try:
            records: UsageRecords = read_records(common, "", begin)
        except (CliError, ApiError) as error:
            return UsageSums(until, problem=str(error))
        return UsageSums(
            until, records.totals(question.keys, begin, until),
            records.totals(("week", "team"), begin, until), waits_of(records.lines),
            is_cut=records.is_cut,
        )  # fmt: skip

    def _in_namespace(self, space: str) -> Common:
        return replace(self._common, namespace=space, all_namespaces=not space)

    def _ask_runs(self, question: RunsQuestion) -> PastRuns:
        query = {"limit": str(RUNS_MAX), **({"tag": question.tag} if question.tag else {})}
        if question.seconds:
            query["since"] = f"{self._clock.now() - question.seconds:.3f}"
        try:
            lines = past_runs(self._in_namespace(question.namespace), "", query)
        except (CliError, ApiError) as error:
            return PastRuns(problem=str(error))
        return PastRuns(lines, is_cut=len(lines) == RUNS_MAX)

    def _ask_job(self, key: ObjectKey) -> PastJob:
        try:
            return PastJob(present_or_past_job(self._in_namespace(key[0]), "", key[1]))
        except (CliError, ApiError) as error:
            return PastJob(problem=str(error))

    def _ask_why(self, key: ObjectKey) -> Answered:
        at = self._clock.now()
        try:
            answer = Asking(replace(self._common, namespace=key[0]), {}, at).of(key[1])
        except (CliError, ApiError) as error:
            return Answered(str(error), at)
        text = wrapped(answer.text({}, at), _COLUMNS, FACT_INDENT)
        return Answered(text, at, answer if isinstance(answer, JobAnswer) else None)

    def _ask_teams(self, _key: tuple[()]) -> Mapping[str, TeamUse] | None:
        try:
            return self._with_api(ask_teams)
        except (CliError, ApiError):
            return None

    async def why_not(self, right: ResourceAttributes) -> str:
        """Return why the person may not do something, by the API server's word; "" where he may."""
        return await self._rights.of(right) or ""

    def _ask_right(self, right: ResourceAttributes) -> str:
        what = f"{right.verb} {right.resource}{f'.{right.group}' * bool(right.group)}"
        space = f" in namespace {right.namespace}" * bool(right.namespace)
        try:
            found: AccessReview = self._with_api(
                lambda api: api.create(SELF_ACCESS_REVIEWS, to_wire(AccessReview(
                    AccessReviewSpec(right)
                )))
            )  # fmt: skip
        except (CliError, ApiError) as error:
            return f"The API server does not say whether you may {what}{space}: {error}"
        if found.status.allowed:
            return ""
        reason = f": {found.status.reason}" * bool(found.status.reason)
        return f"You may not {what}{space}{reason}"

    async def priority_classes(self) -> Sequence[PriorityClass]:
        """Return the classes that a person may name, the highest first; () where they cannot be
        listed.
        """
        return await self._classes.of(()) or ()

    def _ask_classes(self, _key: tuple[()]) -> Sequence[PriorityClass]:
        try:
            found = self._with_api(lambda api: api.list(PRIORITY_CLASSES))
        except (CliError, ApiError):
            return ()
        own = [each for each in found if not each.metadata.name.startswith(SYSTEM_PREFIX)]
        return sorted(own, key=lambda each: (-each.value, each.metadata.name))

    async def supposed(self, key: ObjectKey, class_name: str) -> str:
        """Return what `fairlead why --if priority=CLASS` says of a job."""
        return await self._supposed.of((*key, class_name)) or ""

    def _ask_supposed(self, key: tuple[str, str, str]) -> str:
        namespace, name, class_name = key
        changes, at = {Flag.PRIORITY: class_name}, self._clock.now()
        try:
            answer = Asking(replace(self._common, namespace=namespace), changes, at).of(name)
        except (CliError, ApiError) as error:
            return str(error)
        return wrapped(answer.text(changes, at), _COLUMNS, FACT_INDENT)

    async def change(self, order: ChangeOrder) -> ChangeResult:
        """Make a change as its command does."""
        loop = asyncio.get_running_loop()
        self._whys.forget((order.namespace, order.name))
        return await loop.run_in_executor(self._threads.asking, self._change, order)

    def _change(self, order: ChangeOrder) -> ChangeResult:
        try:
            made = self._with_api(lambda api: make_change(self._common, api, order))
        except CliError as error:
            lines = [line for each in error.problems for line in (each.message, *each.help)]
            return ChangeResult(refusal="; ".join(lines))
        except ApiError as error:
            return ChangeResult(refusal=str(error))
        return ChangeResult(made)

    async def draft(self, draft: JobDraft, origin: Origin, *, stores: bool) -> DraftAnswer:
        """Check a job that is written on the page, and store it where `stores`."""
        loop = asyncio.get_running_loop()
        ask = partial(self._answer_draft, draft, origin, stores=stores)
        return await loop.run_in_executor(self._threads.asking, ask)

    def _answer_draft(self, draft: JobDraft, origin: Origin, *, stores: bool) -> DraftAnswer:
        common = replace(self._common, connection=self._connection)
        try:
            return answer_draft(common, draft, origin, stores=stores)
        except CliError as error:
            return DraftAnswer(problem=render_error(error))
        except ApiError as error:
            return DraftAnswer(problem=str(error))

    def _with_api(self, ask: Callable[[Api], V]) -> V:
        api = Api(self._connection)
        try:
            return ask(api)
        finally:
            api.close()

    async def logs(self, key: ObjectKey, query: LogPart) -> AsyncGenerator[bytes]:
        """Yield what a job's members write, as `fairlead logs` has it; TooManyLogs."""
        if self._followed >= self._followed_max or not self._threads.has_room:
            raise TooManyLogs
        feed = FollowedLog(self._connection, asyncio.get_running_loop())
        self._followed += 1
        running = self._threads.follow(feed, key, query)
        running.add_done_callback(self._has_ended)
        try:
            while (piece := await feed.pieces.get()) is not None:
                yield piece
        finally:
            feed.stop()

    def _has_ended(self, _: asyncio.Future[None]) -> None:
        self._followed -= 1
