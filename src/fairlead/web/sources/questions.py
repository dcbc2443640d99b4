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
from dataclasses import dataclass, replace
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
from fairlead.cli.cluster.answers import ask_teams
from fairlead.cli.cluster.embedded import LogPart
from fairlead.cli.commands.decisions import read_decision
from fairlead.cli.commands.why import Asking, JobAnswer
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.text import wrapped
from fairlead.cli.job_request.flag_groups.flags import Flag
from fairlead.cli.job_request.jobspec import Origin
from fairlead.cli.views.why import FACT_INDENT
from fairlead.decide.verdict import ObjectKey
from fairlead.input.errors import CliError, render_error
from fairlead.kube.kubeconfig import Connection
from fairlead.model.asks.priorities import SYSTEM_PREFIX
from fairlead.runtime.clock import Clock
from fairlead.web.sources.changes import ChangeOrder, make_change
from fairlead.web.sources.drafts import DraftAnswer, JobDraft, answer_draft
from fairlead.web.sources.followed_log import FollowedLog
from fairlead.web.sources.history_reads import (
    ClusterUse,
    JobUseAnswer,
    LatestDecisions,
    NodeKey,
    NodePast,
    OpenedDecision,
    PastJob,
    PastRuns,
    RunsQuestion,
    UsageQuestion,
    UsageSums,
    ended_runs,
    job_of_history,
    latest_decisions,
    one_decision,
    past_of_node,
    usage_sums,
    use_of_cluster,
    use_of_job,
)

#: Answers are kept for so long, and so many of them.
ANSWER_SECONDS, ANSWERS_MAX = 10.0, 256
#: Reading the history may take minutes, and it changes slowly.
USAGE_SECONDS = 300.0
#: Runs that have ended are read again so often.
RUNS_SECONDS = 30.0
#: What a job uses, what all do, and the tests and the history of a node, likewise.
USE_SECONDS, CLUSTER_USE_SECONDS, NODE_SECONDS = 15.0, 300.0, 60.0
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
class ChangeResult:
    """How a change went: the name of what it made, "" for nothing new; or why it was refused."""

    made: str = ""
    refusal: str = ""


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
        reading = threads.reading
        self._usages = shared(partial(usage_sums, common, clock), reading, USAGE_SECONDS)
        self._runs = shared(partial(ended_runs, common, clock), reading, RUNS_SECONDS)
        self._jobs = shared(partial(job_of_history, common), reading, RUNS_SECONDS)
        self._opened = shared(partial(one_decision, common), reading, USAGE_SECONDS)
        self._job_uses = shared(self._ask_job_use, reading, USE_SECONDS)
        self._cluster_use = shared(self._ask_cluster_use, reading, CLUSTER_USE_SECONDS)
        self._nodes = shared(self._ask_node, reading, NODE_SECONDS)
        self._seen_jobs: Sequence[Job] = ()

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

    async def decision(
        self, cycle: int, *, patience_seconds: float | None = None
    ) -> OpenedDecision | None:
        """Return a decision that the scheduler has kept, as `SharedAnswers.of`."""
        return await self._opened.of(cycle, patience_seconds=patience_seconds)

    async def job_use(
        self, key: ObjectKey, *, patience_seconds: float | None = None
    ) -> JobUseAnswer | None:
        """Return what `fairlead top` and `eff` say of a job, as `SharedAnswers.of`."""
        return await self._job_uses.of(key, patience_seconds=patience_seconds)

    async def cluster_use(
        self, jobs: Sequence[Job], *, patience_seconds: float | None = None
    ) -> ClusterUse | None:
        """Return what `fairlead top -A` says, of these jobs, as `SharedAnswers.of`."""
        self._seen_jobs = jobs
        return await self._cluster_use.of((), patience_seconds=patience_seconds)

    async def node_past(
        self, node: NodeKey, *, patience_seconds: float | None = None
    ) -> NodePast | None:
        """Return what `fairlead node show --history` reads, as `SharedAnswers.of`."""
        return await self._nodes.of(node, patience_seconds=patience_seconds)

    async def decision_file(self, cycle: int) -> bytes:
        """Return what `fairlead decisions save` writes; CliError, ApiError."""
        loop = asyncio.get_running_loop()
        lines = await loop.run_in_executor(
            self._threads.reading, read_decision, self._common, cycle
        )
        return b"".join(line + b"\n" for line in lines)

    def _ask_decisions(self, _key: tuple[()]) -> LatestDecisions:
        return latest_decisions(self._common)

    def _ask_job_use(self, key: ObjectKey) -> JobUseAnswer:
        return self._with_api(partial(use_of_job, self._common, key))

    def _ask_cluster_use(self, _key: tuple[()]) -> ClusterUse:
        return self._with_api(partial(use_of_cluster, self._seen_jobs, self._clock.now()))

    def _ask_node(self, node: NodeKey) -> NodePast:
        return self._with_api(partial(past_of_node, self._common, node))

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
