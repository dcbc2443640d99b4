"""`why`: the planner's own explanation of a job, asked on the state that the API shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOBS, PRIORITY_CLASSES
from fairlead.api.status import Forbidden
from fairlead.api.values.indices import parse_indices
from fairlead.app.queries.messages import ClusterStatus, Explained
from fairlead.cli.cluster.answers import ask_why
from fairlead.cli.cluster.dependencies import left_texts
from fairlead.cli.cluster.embedded import read_status
from fairlead.cli.cluster.image_outlook import image_outlook
from fairlead.cli.cluster.lookup import find_array, find_job
from fairlead.cli.cluster.numbers import name_of
from fairlead.cli.connection.common import Common, Format, common, now, text_width
from fairlead.cli.connection.completers import complete_jobs
from fairlead.cli.connection.transport import Api
from fairlead.cli.formats.text import wrapped
from fairlead.cli.job_request.arrays import ArrayReference, is_one, parse_reference, select
from fairlead.cli.job_request.flag_groups.flags import Flag
from fairlead.cli.job_request.hypothesis import Changes, changed_job, read_changes
from fairlead.cli.records.ended_jobs import past_failures, past_job, stopped
from fairlead.cli.records.last_lines import LastLines, last_lines
from fairlead.cli.views.array_why import ArrayNow, array_facts, array_now, array_text
from fairlead.cli.views.fleet import Buying, buying_for
from fairlead.cli.views.why import (
    FACT_INDENT,
    labelled,
    last_lines_text,
    supposed_text,
    why_facts,
    why_text,
)
from fairlead.decide.answers.explanation import UnknownBound
from fairlead.decide.images.outlook import GangOutlook
from fairlead.decide.reasons import Outcome, Trait
from fairlead.decide.verdict import Verdict
from fairlead.input.errors import CliError, Code, Exit, Problem, fail

if TYPE_CHECKING:
    from fairlead.cli.cluster.own_answers import OwnAnswers

PARTIAL = "note: jobs of namespaces that you may not list are left out"


@click.command(
    epilog="""Examples:

    \b
      fairlead why train-1
      fairlead why train-1 -o json
      fairlead why train-1 --if nodes=4 --if priority=high
      fairlead why sweep-1 'sweep-2[3-9]'
      fairlead why $(fairlead ps --state Waiting -o name)
    """
)
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_jobs)
@click.option("--if", "words", metavar="FLAG=VALUE", multiple=True,
              help="Explain the job as if it had been submitted so: nodes, gpus, cpus, memory, "
              "time or priority; repeatable.")  # fmt: skip
@common()
def why(common_: Common, *, jobs: tuple[str, ...], words: tuple[str, ...]) -> int:
    """Explain why jobs wait, or what they do.

    Of a waiting job: the verdict, the numbers behind it, who is ahead and who holds the room, when
    it may start, and what would let it start now. Every suggestion was tried on the cluster's state
    before it is made.

    With --if, what the planner would do with the job if it had been submitted so; nothing is
    changed.

    Of an array, or of some elements of it such as NAME[3-9]: how many ended, which failed and how,
    and why the next one waits.

    Of a job that has failed, its attempts and what the member wrote last whose program failed
    first.

    Of a job that was deleted, or of a stopped cluster of this machine, how it ended.
    """
    changes = read_changes(words)
    if changes and len(jobs) > 1:
        raise fail(Code.BAD_VALUE, f"--if: explains one job, got {len(jobs)}")
    asking = Asking(common_, changes, now())
    asked: list[JobAnswer | ArrayAnswer] = []
    problems: list[Problem] = []
    for job in jobs:
        try:
            asked.append(asking.of(job))
        except CliError as error:
            if error.problems[0].code is not Code.NO_SUCH_JOB:
                raise
            problems += error.problems
    _show(common_, asked, changes, asking.instant)
    if problems:
        raise CliError(problems)
    return Exit.OK


def _show(
    common_: Common, asked: Sequence[JobAnswer | ArrayAnswer], changes: Changes, instant: float
) -> None:
    if not asked:
        return
    if common_.is_structured:
        facts = [each.facts(changes) for each in asked]
        common_.data(facts[0] if len(facts) == 1 else facts)
    elif common_.format is Format.NAME:
        common_.lines(each.name for each in asked)
    else:
        text = "\n".join(each.text(changes, instant) for each in asked)
        common_.emit(wrapped(text, text_width(0), FACT_INDENT))


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """A job, what the planner says of it, and what node pools do for it; `is_up`: it is of a
    cluster of `fairlead up`.
    """

    job: Job
    explained: Explained = field(default_factory=Explained)
    buying: Buying | None = None
    is_up: bool = False
    #: What has not ended of each array that it waits for.
    left: Sequence[str] = ()
    #: What is left to pull.
    images: GangOutlook = field(default_factory=GangOutlook)
    #: Of the member whose failure ended it.
    last: LastLines | None = None

    @property
    def name(self) -> str:
        """What the job is called."""
        return self.job.metadata.name

    def facts(self, changes: Changes) -> dict[str, Any]:
        """Return it as data."""
        supposed = {"if": {flag.value: value for flag, value in changes.items()}} if changes else {}
        found = self.explained
        last = {"lastLines": self.last.facts} if self.last is not None else {}
        facts = why_facts(self.job, found.explanation, found.owners)
        return {**supposed, **facts, **self.images.facts, **last}

    def text(self, changes: Changes, instant: float) -> str:
        """Return it in words."""
        found = self.explained
        text = why_text(
            self.job, found.explanation, instant, is_up=self.is_up, unready=found.unready,
            unreachable=found.unreachable,
            buying=self.buying, owners=found.owners,
            node_lost_grace_seconds=found.node_lost_grace_seconds,
        )  # fmt: skip
        text = "\n".join((text, *(f"  {each}\n" for each in self.left)))
        text += "".join(f"{each}\n" for each in labelled("images", self.images.lines))
        if self.last is not None:
            text += last_lines_text(self.name, self.last.member, self.last.lines)
        return supposed_text(self.job, found.explanation, changes, text) if changes else text


@dataclass(frozen=True, slots=True)
class ArrayAnswer:
    """Elements of an array, and the answer about the one that is next in line."""

    now: ArrayNow
    next: JobAnswer | None = None

    @property
    def name(self) -> str:
        """What the array is called."""
        return self.now.elements.array.metadata.name

    def facts(self, changes: Changes) -> dict[str, Any]:
        """Return it as data."""
        return {**array_facts(self.now), "next": self.next.facts(changes) if self.next else None}

    def text(self, changes: Changes, instant: float) -> str:
        """Return it in words."""
        text = array_text(self.now, instant)
        return f"{text}\n{self.next.text(changes, instant)}" if self.next else text


class Asking:
    """Answers about one job after the other; what they need of the cluster is read once."""

    def __init__(self, common_: Common, changes: Changes, instant: float) -> None:
        self._common, self._changes = common_, changes
        self.instant = instant
        self._stopped = stopped(common_)
        self._is_stopped = self._stopped is not None
        self._is_answered, self._is_partial = True, False

    def of(self, name: str) -> JobAnswer | ArrayAnswer:
        """Return the answer about a job, an array or elements of one."""
        if self._is_stopped:
            found = past_job(self._common, name)
            if found is not None:
                return self._of_ended(self._changed(found), is_up=True)
        space = self._common.space(self._api.connection.namespace)
        named = name_of(self._api, space, name)
        reference = parse_reference(named)
        try:
            return self._of_job(find_job(self._api, space, named))
        except CliError as error:
            if error.problems[0].code is not Code.NO_SUCH_JOB:
                raise
            array = find_array(self._api, space, reference.name)
            past = None
            if self._status is not None and (array is None or is_one(reference)):
                past = past_job(self._common, name)  # the latest of its name
            if past is not None:
                return self._of_job(past)
            if array is None:
                raise
        return self._of_array(array, reference)

    def _changed(self, job: Job) -> Job:
        """Return the job as if it had been submitted with the changes."""
        if not self._changes:
            return job
        has_priority = Flag.PRIORITY in self._changes and not self._is_stopped
        classes = self._api.list(PRIORITY_CLASSES) if has_priority else ()
        return changed_job(job, self._changes, classes)

    def _of_job(self, job: Job) -> JobAnswer:
        found, is_up = self._changed(job), self._status is not None
        if found.is_finished:
            return self._of_ended(found, is_up=is_up)
        explained = self._explained(found)
        pools, holding = explained.pools, explained.holding
        why = explained.explanation
        buying = None if why is None else buying_for(
            found, pools, holding, self.instant,
            is_impossible=_needs_other_nodes(why.verdict),
        )  # fmt: skip
        place = None if why is None else why.place
        images = image_outlook(self._api, found, place) if place or not self._changes else None
        return JobAnswer(
            found, explained, buying, is_up, left_texts(self._api, found),
            images or GangOutlook(),
        )  # fmt: skip

    def _of_ended(self, job: Job, *, is_up: bool) -> JobAnswer:
        last = last_lines(self._common, self._stopped or self._api, job)
        return JobAnswer(job, is_up=is_up, last=last)

    def _of_array(self, array: JobArray, reference: ArrayReference) -> ArrayAnswer:
        if self._changes:
            first = parse_indices(array.spec.indices).first
            message = f"--if: explains one job, and {array.metadata.name} is an array"
            help_ = (f"name an element: '{array.metadata.name}[{first}]'",)
            raise fail(Code.BAD_VALUE, message, help=help_)
        elements = select(array, reference)
        jobs = elements.jobs_among(self._api.list(JOBS, namespace=array.metadata.namespace))
        past = past_failures(self._common, array) if elements.failed else ()
        waiting = next((job for job in jobs if not job.is_finished and not job.status.placement),
                       None)  # fmt: skip
        found = array_now(elements, jobs, elements.jobs_among(past))
        return ArrayAnswer(found, None if waiting is None else self._of_job(waiting))

    def _explained(self, job: Job) -> Explained:
        """Return what the process that decides says of the job, else what the planner says here."""
        if self._is_answered:
            answer = ask_why(self._api, job, is_changed=bool(self._changes))
            if answer is not None and not (_is_short(answer) and self._own is not None):
                if answer.is_partial and not self._is_partial:
                    self._is_partial = True
                    self._common.note(PARTIAL)
                return answer
            self._is_answered = False
        if (own := self._own) is None:
            return Explained()
        return own.suppose(job) if self._changes else own.explain(job)

    @cached_property
    def _api(self) -> Api:
        return self._common.connect()

    @cached_property
    def _status(self) -> ClusterStatus | None:
        return read_status(self._api)

    @cached_property
    def _own(self) -> OwnAnswers | None:
        """Answers with the settings of the controllers where these can be read; None for a user who
        may not see the cluster, and gets what the status of the job says.
        """
        from fairlead.app.configuration.controller_settings import ControllerSettings
        from fairlead.cli.cluster.cluster_settings import NOT_READ, read_settings
        from fairlead.cli.cluster.own_answers import OwnAnswers  # loads the planner

        settings = read_settings(self._api, self._status)
        try:
            own = OwnAnswers(self._api, settings or ControllerSettings(), self.instant)
        except Forbidden:
            self._common.note(
                "note: you may not list what the cluster has; this is what the job says"
            )
            return None
        if settings is None:
            self._common.note(NOT_READ)
        return own


def _is_short(answer: Explained) -> bool:
    """True where the forecast took the controllers too long, for a user who may see the cluster."""
    found = answer.explanation
    return not answer.is_partial and found is not None and found.forecast is UnknownBound.TOO_LONG


def _needs_other_nodes(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.IMPOSSIBLE and verdict.reason.has(Trait.NODES_HELP)
