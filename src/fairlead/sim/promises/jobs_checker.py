"""Checks what a job is promised beside its gang: it goes when asked, and waits as long as it says.

    lost      3: a job whose end is not written goes only when a person has deleted it, or when
              it is an array's and has not begun: of an element that has ended, it came late
    pods      2: no job goes before its pods, ended ones too: a job of the same name starts without
              any of them
    stays     3: a job that was deleted goes, once the nodes have ended its pods
    back-off  3: a job is between two attempts no longer than until the instant that its status says

It knows the objects only, and who deleted which of them. Jobs that represent pods of another tool
go and come with what the tool makes, so they are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.names import ADMITTED, ARRAY
from fairlead.api.values.times import parse_time
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.observers.working_time import JOBS, WorkingTime

#: From the instant from which only the jobs controller keeps a deleted job, until it has gone, and
#: keeps one from its next attempt, until it is admitted.
_STAYS_SECONDS_MAX = 600.0
#: The clocks of two controllers differ by at most this.
_CLOCKS_SECONDS = 600.0


@dataclass(slots=True)
class _JobModel:
    """A job that exists. `due_since` is on the clock of the jobs controller."""

    uid: str
    may_go: bool
    is_finished: bool
    is_deleted: bool
    #: Until when it says that it backs off; None: it does not, or another controller has to act.
    backs_off_until: float | None = None
    due_since: float | None = None


@dataclass(slots=True)
class JobsChecker(Observer):
    """An `Observer`. `gone` counts the deleted jobs that went."""

    working: WorkingTime = field(default_factory=WorkingTime)
    gone: int = 0
    _jobs: dict[ObjectKey, _JobModel] = field(default_factory=dict[ObjectKey, _JobModel])
    #: Pods by the uid of their job: whether each is being deleted.
    _pods: defaultdict[str, dict[ObjectKey, bool]] = field(
        default_factory=lambda: defaultdict[str, dict[ObjectKey, bool]](dict)
    )
    _job_of_pod: dict[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    #: The uids of what people deleted.
    _asked: set[str] = field(default_factory=set[str])

    def asked(self, key: ObjectKey) -> None:
        """Note that a person deletes a job now, if it exists."""
        if key in self._jobs:
            self._asked.add(self._jobs[key].uid)

    @property
    def ended(self) -> list[ObjectKey]:
        """The jobs that have ended, and that nobody has deleted."""
        models = sorted(self._jobs.items())
        return [key for key, model in models if model.is_finished and not model.is_deleted]

    @property
    def left(self) -> list[ObjectKey]:
        """The jobs that are deleted and still there."""
        return [key for key, model in self._jobs.items() if model.is_deleted]

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """3 and 2: a job goes for a reason, and after its pods."""
        before = self._jobs.pop(key, None)
        if before is not None and (new is None or new.metadata.uid != before.uid):
            self._check_gone(key, before)
        if new is None or new.spec.adopts is not None:
            return
        is_deleted = new.metadata.deletion_timestamp is not None
        is_unbegun_element = ARRAY in new.metadata.labels and not new.status.attempt
        model = _JobModel(
            new.metadata.uid, new.is_finished or is_unbegun_element, new.is_finished, is_deleted,
            _backs_off_until(new),
        )  # fmt: skip
        if before is not None and (before.uid, before.backs_off_until) == (
            model.uid, model.backs_off_until,
        ):  # fmt: skip
            model.due_since = before.due_since
        self._jobs[key] = model
        if is_deleted and not model.may_go and model.uid not in self._asked:
            raise PromiseBroken(f"3: {key} is deleted before its end by no person")

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Note which pods a job has."""
        before = self._job_of_pod.pop(key, None)
        if before is not None:
            self._pods[before].pop(key)
        if new is None:
            return
        uid = next((o.uid for o in new.metadata.owner_references if o.controller), "")
        self._job_of_pod[key] = uid
        self._pods[uid][key] = new.metadata.deletion_timestamp is not None

    def check_by_clock(self, now: float) -> None:
        """3: what the jobs controller has to do next for a job, it does soon."""
        at = self.working.seconds(JOBS, now)
        for key, model in self._jobs.items():
            pods = self._pods[model.uid]
            if not self._is_due(model, pods, now):
                model.due_since = None
            elif model.due_since is None:
                model.due_since = at
            elif at - model.due_since > _STAYS_SECONDS_MAX:
                what = "was deleted and is still there" if model.is_deleted else "still backs off"
                raise PromiseBroken(
                    f"3: {key} {what} {at - model.due_since:.0f} s later, with {len(pods)} pods"
                )

    @staticmethod
    def _is_due(model: _JobModel, pods: Mapping[ObjectKey, bool], now: float) -> bool:
        """True where nothing but the jobs controller keeps a job as it is."""
        if model.is_deleted:
            return not pods or not all(pods.values())  # else until the nodes have ended them
        until = model.backs_off_until
        return until is not None and not pods and now > until + _CLOCKS_SECONDS

    def _check_gone(self, key: ObjectKey, model: _JobModel) -> None:
        self.gone += model.is_deleted
        if not model.may_go and model.uid not in self._asked:
            raise PromiseBroken(f"3: {key} has gone before its end, deleted by no person")
        if pods := self._pods[model.uid]:
            raise PromiseBroken(f"2: {key} has gone, and {len(pods)} pods of it are left")


def _backs_off_until(job: Job) -> float | None:
    """Return when the jobs controller lets a job queue again by what its status says."""
    status, spec = job.status, job.spec
    if status.restart_at is None or job.is_finished or spec.suspend or spec.cancel:
        return None
    is_admitted = not any(c.type == ADMITTED and c.status == "False" for c in status.conditions)
    if status.preemption is not None or (status.placement is not None and not is_admitted):
        return None  # until the scheduler has taken the place back
    return parse_time(status.restart_at)
