"""Observers are called for what they look at, in their order."""

from __future__ import annotations

from fairlead.api.jobs.job import Job
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.observer import Observer, ObserverCalls
from fairlead.testing.builders import make_job


class Jobs(Observer):
    def __init__(self, seen: list[str], name: str) -> None:
        self._seen = seen
        self._name = name

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        self._seen.append(f"{self._name} {key[1]} {now:g}")


class JobsAndKinds(Jobs):
    def wrote(self, kind: str) -> None:
        self._seen.append(f"{self._name} {kind}")


def test_only_what_a_class_overrides_is_called() -> None:
    seen: list[str] = []
    calls = ObserverCalls.of([Jobs(seen, "a"), Observer(), JobsAndKinds(seen, "b")])
    assert (len(calls.job), len(calls.pod), len(calls.node), len(calls.wrote)) == (2, 0, 0, 1)
    for saw in calls.job:
        saw(make_job("x"), ("default", "x"), 7.0)
    for wrote in calls.wrote:
        wrote("jobs")
    assert seen == ["a x 7", "b x 7", "b jobs"]
