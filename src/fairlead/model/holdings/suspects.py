"""Signs that a node may fail: an attempt lost it, it came back from an outage, it reports faults.

What the test before a gang's program says, and how long its members work on a step, comes from the
pods of its user, who may say what he likes. So of each team only the latest few such signs count.

All of them are read from objects (records of attempts, the node's condition and report), so each
process finds the same nodes, and no state has to be kept beside the objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from math import inf

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import READY
from fairlead.api.values.times import time_or
from fairlead.model.gang.gangs import JobKey

#: A node that becomes ready within so many seconds of its creation has just started.
START_SECONDS = 1800.0
#: Nodes that are suspected at a time: those with the latest signs.
SUSPECTS_MAX = 1000
#: Of each team, or of a namespace without one: nodes that its own gangs' tests condemn, and those
#: of its stragglers.
TESTED_MAX = 8
#: In the place of a job: the node's own condition, the report of its agent, and what other tools
#: state of it.
_NODE, _REPORT, _STATED = ("", ""), ("", "report"), ("", "stated")
#: In the place of a job's name, which is never empty.
_TESTS = ""


class SuspectTable:
    """The latest sign of each node, by what shows it."""

    def __init__(self) -> None:
        #: By node: the instant of the sign of each job, and under _NODE and _REPORT of its own.
        self._signs: dict[str, dict[JobKey, float]] = {}
        self._of_job: dict[JobKey, dict[str, float]] = {}
        #: What tests of gangs say, by team and by job.
        self._tested: dict[str, dict[JobKey, dict[str, float]]] = {}
        self._team_of: dict[JobKey, str] = {}

    def put_job(self, key: JobKey, job: Job | None) -> None:
        """Take in the attempts of a job; None: it is gone."""
        self._put_tests(key, job)
        found = _lost(job) if job is not None and job.status.attempts else None
        if not found and key not in self._of_job:
            return
        self._replace(key, found or {})

    def _put_tests(self, key: JobKey, job: Job | None) -> None:
        """Take in the nodes that failed the tests of a job, and those of its stragglers."""
        found = _failed_tests(job) if job is not None else {}
        team = self._team_of.pop(key, None)
        if team is not None:
            self._tested[team].pop(key)
            self._count_tests(team)
        if job is None or not found:
            return
        team = next((f"team/{each.team}" for each in job.status.attempts if each.team), key[0])
        self._team_of[key] = team
        self._tested.setdefault(team, {})[key] = found
        self._count_tests(team)

    def _count_tests(self, team: str) -> None:
        """Keep of what the tests of a team say the latest few nodes."""
        latest: dict[str, float] = {}
        for found in self._tested[team].values():
            for node, at in found.items():
                latest[node] = max(at, latest.get(node, at))
        if not self._tested[team]:
            del self._tested[team]
        kept = sorted(latest, key=lambda node: (-latest[node], node))[:TESTED_MAX]
        self._replace((team, _TESTS), {node: latest[node] for node in kept})

    def _replace(self, key: JobKey, found: dict[str, float]) -> None:
        before = self._of_job.get(key, {})
        if found == before:
            return
        for node in before:
            self._remove(node, key)
        for node, at in found.items():
            self._signs.setdefault(node, {})[key] = at
        self._of_job.pop(key, None)
        if found:
            self._of_job[key] = found

    def put_node(self, node: Node) -> None:
        """Take in the condition of a node."""
        at = _came_back(node)
        if at is None:
            self.remove_node(node.metadata.name)
        else:
            self._signs.setdefault(node.metadata.name, {})[_NODE] = at

    def put_report(self, name: str, *, is_sick: bool) -> None:
        """Take in whether the agent of a node reports faults now."""
        self._put_present(name, _REPORT, is_sick=is_sick)

    def put_stated(self, name: str, *, is_sick: bool) -> None:
        """Take in whether other tools state faults of a node now, as its conditions."""
        self._put_present(name, _STATED, is_sick=is_sick)

    def _put_present(self, name: str, source: JobKey, *, is_sick: bool) -> None:
        if is_sick:
            self._signs.setdefault(name, {})[source] = inf
        else:
            self._remove(name, source)

    def remove_node(self, name: str) -> None:
        """Take in that a node is gone; what attempts say of its name stays."""
        self._remove(name, _NODE)

    def since(self, instant: float) -> list[str]:
        """Return the nodes with a sign later than an instant, by name."""
        latest = ((max(signs.values()), node) for node, signs in self._signs.items())
        found: Iterable[tuple[float, str]] = [each for each in latest if each[0] > instant]
        return sorted(node for _, node in nlargest(SUSPECTS_MAX, found))

    def signs_since(self, instant: float) -> dict[str, float]:
        """Return the latest sign of each node that has one since then, but for present faults."""
        present = (_REPORT, _STATED)
        found = {
            node: max((at for source, at in signs.items() if source not in present), default=-inf)
            for node, signs in self._signs.items()
        }
        return {node: at for node, at in found.items() if at > instant}

    def _remove(self, node: str, source: JobKey) -> None:
        signs = self._signs.get(node)
        if signs is not None and signs.pop(source, None) is not None and not signs:
            del self._signs[node]


def _lost(job: Job) -> dict[str, float]:
    """Return when attempts of a job lost which nodes, the latest time for each."""
    out: dict[str, float] = {}
    for attempt in job.status.attempts:
        at = time_or(attempt.finished_at, None) if attempt.nodes_lost else None
        if at is not None:
            tested = attempt.preflight.nodes if attempt.preflight is not None else ()
            lost = [node for node in attempt.nodes_lost if node not in tested]
            out.update(dict.fromkeys(lost, at))
    return out


def _failed_tests(job: Job) -> dict[str, float]:
    """Return when nodes failed the tests before a job's program, and when members on suspected ones
    were slow last, the latest time for each.
    """
    out: dict[str, float] = {}
    for attempt in job.status.attempts:
        for each in attempt.stragglers:
            until = time_or(attempt.finished_at or each.found_at, None)
            if each.is_suspected and until is not None:
                out[each.node] = max(until, out.get(each.node, until))
        record = attempt.preflight
        at = time_or(record.ended_at, None) if record is not None and record.nodes else None
        if record is not None and at is not None:
            out.update(dict.fromkeys(record.nodes, at))
    return out


def _came_back(node: Node) -> float | None:
    """Return when a node that had been ready before became ready again; None where it did not, or
    does not say it.
    """
    ready = None
    for condition in node.status.conditions:
        if condition.type == READY and condition.status == "True":
            ready = condition.last_transition_time
    at, created = time_or(ready, None), time_or(node.metadata.creation_timestamp, None)
    if at is None or created is None or at - created <= START_SECONDS:
        return None
    return at
