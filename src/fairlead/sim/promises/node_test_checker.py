"""Checks what the tests of nodes promise, and measures what they cost.

    budget     no more idle nodes are under test at a time than their share of the fleet
    way        a test leaves within 5 s of a place on its node, or on that of its partner in a pair,
               and no member begins beside one
    pairs      no node is in two tests at a time
    coverage   no node is idle for a day without a test

It knows pods, places and nodes, and shares no code with the controllers. Bounds on time count the
health controller's working time. A period in which a node was idle for half an hour is covered if a
test of the node ended within a day before its end, or within a day after that half hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.observers.working_time import HEALTH, WorkingTime

#: docs/design/node-tests.md: from a place on the node to the end of the test.
LEAVE_SECONDS = 5.0
IDLE_SECONDS, DAY_SECONDS = 1800.0, 86_400.0
#: A test that is due waits for its turn, begins, and may be tried again.
_TURN_SECONDS = 3 * 3600.0
_UNFIT = "unfit"


@dataclass(slots=True)
class _Test:
    """A pod of a test that has not ended. `leave_by`: on the controller's clock."""

    node: str
    since: float
    yields: bool
    leave_by: float = float("inf")
    #: The other node of a pair; "": it is none.
    peer: str = ""


@dataclass(slots=True)
class _Machine:
    """A node: what uses it, since when nothing does, and when a test last passed or ended."""

    users: set[object]
    idle_since: float
    tested: float = float("-inf")
    tried: float = float("-inf")
    #: The ends of days within which a test makes earlier idle periods covered.
    waiting: tuple[float, ...] = ()


class NodeTestChecker(Observer):
    """An `Observer`. `periods` and `covered` count idle periods that are decided."""

    def __init__(
        self, policy: HealthPolicy, working: WorkingTime, slack_seconds: float = 0.0
    ) -> None:
        """`slack_seconds`: what the faults of the world may add to every bound."""
        self.tests = self.left = self.most = self.periods = self.covered = self.pairs = 0
        #: Node time: under test, and in all.
        self.test_seconds = self.node_seconds = 0.0
        self._policy = policy
        self._working = working
        self._slack_seconds = slack_seconds
        self._machines: dict[str, _Machine] = {}
        self._largest = 0
        self._at = 0.0
        self._tests: dict[ObjectKey, _Test] = {}
        self._by_node: dict[str, dict[ObjectKey, _Test]] = {}
        self._places: dict[ObjectKey, frozenset[str]] = {}
        self._pods: dict[ObjectKey, str] = {}

    @property
    def share(self) -> float:
        """The share of the node time that tests took."""
        return self.test_seconds / self.node_seconds if self.node_seconds else 0.0

    @property
    def coverage(self) -> float | None:
        """The share of the idle periods that are covered; None: there was none."""
        return self.covered / self.periods if self.periods else None

    # What is written

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in a node; one that takes no work is not idle."""
        self._advance(now)
        if new is None:
            self._machines.pop(name, None)
            return
        machine = self._machines.get(name)
        if machine is None:
            machine = self._machines[name] = _Machine(set(), now)
            self._largest = max(self._largest, len(self._machines))
        is_ready = any(c.type == "Ready" and c.status == "True" for c in new.status.conditions)
        is_fit = is_ready and not new.spec.unschedulable and not new.spec.taints
        self._use(name, _UNFIT, now, is_used=not is_fit)

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """Take in the place of a job; the tests on its nodes are to leave."""
        placement = new.status.placement if new is not None and not new.is_finished else None
        nodes = frozenset(nodes_of(placement)) if placement is not None else frozenset[str]()
        before = self._places.pop(key, frozenset())
        if nodes:
            self._places[key] = nodes
        for name in before - nodes:
            self._use(name, key, now, is_used=False)
        for name in sorted(nodes - before):
            self._use(name, key, now, is_used=True)
            for test in (*self._by_node.get(name, {}).values(), *self._beyond(name)):
                if test.yields:
                    at = self._working.seconds(HEALTH, now)
                    test.leave_by = min(test.leave_by, at + LEAVE_SECONDS + self._slack_seconds)

    def pod(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        """Take in a pod: of a test, or one that uses its node."""
        self._advance(now)
        if new is None or new.is_terminal:
            self._gone(new, key, now)
            return
        node = new.spec.node_name
        if not node:
            return
        if names.NODE_TEST in new.metadata.labels:
            if key not in self._tests:
                self._begin(new, key, now)
        elif key not in self._pods:
            self._pods[key] = node
            self._use(node, ("pod", key), now, is_used=True)
            for other in self._beside(new, node):
                text = f"14: {'/'.join(key)} begins on {node} beside the test {other[1]}"
                raise PromiseBroken(text)

    def _beside(self, pod: Pod, node: str) -> Iterator[ObjectKey]:
        """Yield the tests beside which a member begins. Other tools look at no test."""
        owners = pod.metadata.owner_references
        if any(each.controller and each.kind == "Job" for each in owners):
            yield from (key for key, test in self._by_node.get(node, {}).items() if test.yields)

    def _beyond(self, name: str) -> Iterator[_Test]:
        """Yield the tests of other nodes whose partner a node is."""
        yield from (each for each in self._tests.values() if each.peer == name)

    def _begin(self, pod: Pod, key: ObjectKey, now: float) -> None:
        node, yields = pod.spec.node_name, names.NODE_TEST_YIELDS in pod.metadata.labels
        test = self._tests[key] = _Test(node, now, yields, peer=_peer_of(pod))
        others = self._by_node.setdefault(node, {})
        for other in others:
            raise PromiseBroken(f"14: the test {key[1]} begins on {node} beside {other[1]}")
        others[key] = test
        self.tests += 1
        self.pairs += bool(test.peer)
        count = sum(each.yields for each in self._tests.values())
        self.most = max(self.most, count)
        least = 2 if self._policy.pair_tests else 1
        allowed = max(least, int(self._largest * self._policy.idle_test_share))
        if count > allowed:
            raise PromiseBroken(f"14: {count} idle nodes are under test, {allowed} may be")

    def _gone(self, new: Pod | None, key: ObjectKey, now: float) -> None:
        node = self._pods.pop(key, "")
        if node:
            self._use(node, ("pod", key), now, is_used=False)
        test = self._tests.pop(key, None)
        if test is None:
            return
        self._check_leaves(test, key, now)
        self.left += test.leave_by < float("inf")
        del self._by_node[test.node][key]
        machine = self._machines.get(test.node)
        if new is None or machine is None:
            return
        if test.peer:
            return  # it tests no node, but a connection
        machine.tried = now
        if new.status.phase == "Succeeded":
            machine.tested = now
            self.covered += sum(now <= until for until in machine.waiting)
            self.periods += len(machine.waiting)
            machine.waiting = ()

    # By the clock

    def check_by_clock(self, now: float) -> None:
        """Look at what should have happened by now."""
        for key, test in self._tests.items():
            self._check_leaves(test, key, now)
        at = self._working.seconds(HEALTH, now)
        for name, machine in self._machines.items():
            if machine.waiting and machine.waiting[0] < now:
                late = sum(until < now for until in machine.waiting)
                self.periods += late
                machine.waiting = machine.waiting[late:]
            since = max(machine.idle_since, machine.tried)
            if machine.users or now - since < DAY_SECONDS:
                continue
            idle = at - self._working.seconds(HEALTH, since)
            if idle > DAY_SECONDS + _TURN_SECONDS + self._slack_seconds:
                text = f"14: {name} has been idle for {idle / 3600:.1f} h without a test"
                raise PromiseBroken(text)

    def _check_leaves(self, test: _Test, key: ObjectKey, now: float) -> None:
        if self._working.seconds(HEALTH, now) > test.leave_by:
            text = (
                f"14: the test {key[1]} is on {test.node} {LEAVE_SECONDS:g} s after a place there"
            )
            raise PromiseBroken(text)

    def _use(self, name: str, user: object, now: float, *, is_used: bool) -> None:
        machine = self._machines.get(name)
        if machine is None:
            return
        was_idle = not machine.users
        (machine.users.add if is_used else machine.users.discard)(user)
        if was_idle and machine.users:
            self._idle_ended(machine, now)
        elif not was_idle and not machine.users:
            machine.idle_since = now

    def _idle_ended(self, machine: _Machine, now: float) -> None:
        half_hour = machine.idle_since + IDLE_SECONDS
        if now < half_hour:
            return
        if machine.tested >= now - DAY_SECONDS:
            self.periods += 1
            self.covered += 1
        else:
            machine.waiting += (half_hour + DAY_SECONDS,)

    def _advance(self, now: float) -> None:
        seconds = now - self._at if self._at else 0.0
        self._at = now
        self.node_seconds += seconds * len(self._machines)
        self.test_seconds += seconds * len(self._tests)


def _peer_of(pod: Pod) -> str:
    """Return the other node of a pair; "": the pod is of no pair."""
    words = pod.spec.containers[0].command if pod.spec.containers else ()
    found = (words[i + 1] for i in range(len(words) - 1) if words[i] == "--peer")
    return next(found, "")
