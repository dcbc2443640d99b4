"""What `cancel`, `hold`, `release`, `requeue`, `priority` and `update` write into a job or an array
(pure).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.api.jobs.after import After
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, JobArraySpec
from fairlead.api.values.times import format_time
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValues
from fairlead.cli.job_request.request import JobRequest, parse_request
from fairlead.decide.jobs.admitting.gate import has_begun
from fairlead.input.errors import CliError


@dataclass(frozen=True, slots=True)
class ChangeVerb:
    """A verb: what it patches, how it says that it is done, and when nothing is to be done."""

    verb: str
    patch: Mapping[str, Any]
    done: str
    already: str
    #: What it does, where the command is no verb.
    infinitive: str = ""
    #: It is a field of the jobs' own spec: of an array, of its template, which all elements follow.
    is_of_template: bool = False
    #: It is of single jobs, elements among them: the template of an array does not take it.
    is_of_jobs_alone: bool = False
    #: What counts until the job queues, or until it begins: flags, for a refusal afterwards.
    until_queued: str = ""
    until_begun: str = ""
    #: It names the attempt that is to end, so that it ends no later one.
    is_of_attempt: bool = False

    def comes_too_late(self, job: Job) -> str:
        """Return why it would change nothing of a job any more; "" where it does."""
        if self.until_queued and job.status.attempt > 0:
            return f"{self.until_queued} counts before a job queues, and it has queued already"
        if self.until_begun and has_begun(job):
            return f"{self.until_begun} counts before a job begins, and it has begun already"
        if self.is_of_attempt and job.spec.cancel:
            return "it is being cancelled"
        if self.is_of_attempt and job.status.current_attempt is None:
            return "it is in the queue, and nothing of it runs"
        return ""

    def patch_of(self, work: Job | JobArray) -> Mapping[str, Any]:
        """Return what is written into a job or an array."""
        if self.is_of_attempt and isinstance(work, Job):
            attempt = work.status.current_attempt
            return {"spec": {"requeueAttempt": attempt.number if attempt is not None else 0}}
        if self.is_of_template and isinstance(work, JobArray):
            return {"spec": {"template": self.patch["spec"]}}
        return self.patch

    def is_done(self, work: Job | JobArray) -> bool:
        """True when the spec says so already."""
        if self.is_of_attempt:
            return False
        spec = work.spec
        of_jobs = spec.template if isinstance(spec, JobArraySpec) else spec
        values = {
            "cancel": spec.cancel, "suspend": spec.suspend,
            "priorityClassName": of_jobs.priority_class_name,
            "timeLimitSeconds": of_jobs.time_limit_seconds, "reservation": of_jobs.reservation,
            "notBefore": of_jobs.not_before, "deadline": of_jobs.deadline,
            "after": msgspec.to_builtins(of_jobs.after),
        }  # fmt: skip
        return all((values[key] or None) == (value or None)
                   for key, value in self.patch["spec"].items())  # fmt: skip


CANCEL = ChangeVerb("cancel", {"spec": {"cancel": True}}, "cancelled", "is being cancelled already")
HOLD = ChangeVerb("hold", {"spec": {"suspend": True}}, "held", "is held already")
RELEASE = ChangeVerb("release", {"spec": {"suspend": False}}, "released", "is not held")
REQUEUE = ChangeVerb("requeue", {}, "queued again", "", is_of_jobs_alone=True, is_of_attempt=True)


def priority_change(class_name: str) -> ChangeVerb:
    """Return the change to a PriorityClass."""
    return ChangeVerb(
        "priority", {"spec": {"priorityClassName": class_name}},
        f"moved to priority class {class_name}", f"has priority class {class_name} already",
        infinitive="move", is_of_template=True,
    )  # fmt: skip


#: The flags of `submit` that may be given again later, and the field that each writes.
UPDATES: Mapping[Flag, str] = {
    Flag.TIME: "timeLimitSeconds", Flag.AFTER: "after", Flag.BEGIN: "notBefore",
    Flag.DEADLINE: "deadline", Flag.RESERVATION: "reservation",
}  # fmt: skip
#: The value of a flag that takes away what was given.
NONE = "none"


def read_update(givens: FlagValues, now: float) -> JobRequest:
    """Return what the given flags of UPDATES ask for, without those that are to be taken away.

    CliError with all values that `submit` would refuse.
    """
    asked = {flag: values for flag, values in givens.items() if not takes_away(givens, flag)}
    request, problems = parse_request(asked, {}, now=now)
    if problems:
        raise CliError(problems)
    return request


def takes_away(givens: FlagValues, flag: Flag) -> bool:
    """True where the last value of a flag is `none`."""
    return flag in givens and givens[flag][-1].value == NONE


def update_change(givens: FlagValues, request: JobRequest, after: Sequence[After]) -> ChangeVerb:
    """Return the change to what `read_update` gave; `after` are its dependencies, with arrays known
    as such.
    """
    instants = {Flag.BEGIN: request.not_before, Flag.DEADLINE: request.deadline}
    values: dict[Flag, Any] = {
        Flag.TIME: request.time_seconds, Flag.AFTER: msgspec.to_builtins(after),
        Flag.RESERVATION: request.reservation,
        **{flag: None if at is None else format_time(at) for flag, at in instants.items()},
    }  # fmt: skip
    spec = {
        field: None if takes_away(givens, flag) else values[flag]
        for flag, field in UPDATES.items()
        if flag in givens
    }
    flags = " ".join(
        f"--{flag.value} {given.value}" for flag in UPDATES for given in givens.get(flag, ())
    )
    return ChangeVerb(
        "update", {"spec": spec}, f"updated: {flags}", f"has {flags} already",
        is_of_jobs_alone=True,
        until_queued=f"--{Flag.AFTER.value}" if Flag.AFTER in givens else "",
        until_begun=f"--{Flag.BEGIN.value}" if Flag.BEGIN in givens else "",
    )  # fmt: skip
