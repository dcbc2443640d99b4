"""Moves one node that is out of service from state to state, level-triggered.

    Cordoned -> Draining -> Resetting | Rebooting | Replacing | Asking -> Validating -> Ready

Each decision looks at what is so now: the faults of the report, the boot, who uses the node, the
answer to the latest request. So a controller that was away for days, or that died anywhere, goes on
where the node is, and never acts on what is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

from msgspec.structs import replace

from fairlead.api.cluster.node_report import Action, AgentAnswer, NodeReport, ReportedFault
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import HEALTH_DRAIN, REPAIRED, TAINT_UNHEALTHY
from fairlead.api.values.times import format_time, parse_time, time_or
from fairlead.decide.health.changes import change_of
from fairlead.decide.health.need import Need, is_proven, open_faults
from fairlead.decide.health.policy import TRIES_SECONDS, HealthPolicy
from fairlead.decide.health.proving.testing import has_passed, is_gated, outdated
from fairlead.decide.health.remembered.machine_memory import RememberedTries
from fairlead.model.health.node_record import (
    REASON_MAX,
    TRIES_MAX,
    NodeRecord,
    NodeRequest,
    NodeState,
    Try,
    TuningStep,
)
from fairlead.model.health.windows import Window, drain_of, window_text

#: The rungs, in the order in which one follows what did not help; each with its state.
_STATES = {
    Action.RESET_GPU: NodeState.RESETTING,
    Action.REBOOT: NodeState.REBOOTING,
    Action.REPLACE: NodeState.REPLACING,
    Action.ASK_PERSON: NodeState.ASKING,
}
#: A node in these still runs what it ran.
_EMPTIED = (NodeState.CORDONED, NodeState.DRAINING)
_NOTHING_KNOWN = RememberedTries()
_LADDER = (Action.RESET_GPU, Action.REBOOT, Action.REPLACE, Action.ASK_PERSON)


@dataclass(frozen=True)  # without slots: what follows from the fields is computed once
class NodeView:
    """One node that may need something.

    `is_used`: a job has a place on it or a pod runs there. `is_replaceable`: it belongs to a pool
    whose machines Fairlead ends and buys. One view serves all decisions until a field changes.
    """

    node: Node
    record: NodeRecord | None
    report: NodeReport | None
    is_used: bool = False
    #: Since when nothing has used it, as far as this process knows: an instant of the loop.
    idle_since: float = float("-inf")
    is_replaceable: bool = False
    #: The provider of its machine can restart it.
    is_restartable: bool = False
    #: Its tests, and the suite that it is to pass before it takes work; "": none.
    tests: tuple[NodeTest, ...] = ()
    suite: str = ""
    #: Faults that others state as conditions of the node.
    stated: tuple[ReportedFault, ...] = ()

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.node.metadata.name

    @cached_property
    def is_marked(self) -> bool:
        """True while it has the taint or the drain of a node that is out."""
        has_taint = any(taint.key == TAINT_UNHEALTHY for taint in self.node.spec.taints)
        return has_taint or HEALTH_DRAIN in self.node.metadata.annotations

    @cached_property
    def change(self) -> ReportedFault | None:
        """That its machine is another one than the one that was tested; None: it is not.

        One at the gate, and one that is emptied no more, is tested anyway.
        """
        record = self.record
        is_emptied = record is not None and record.state in _EMPTIED
        if is_gated(self.node) or (record is not None and record.is_out and not is_emptied):
            return None
        return change_of(self.node, self.report, self.tests, self.suite) if self.suite else None

    @cached_property
    def is_plain(self) -> bool:
        """True for a node without an open fault that is not out, nor marked as one that is."""
        if self.record is not None or self.is_marked or self.change is not None:
            return False
        return not open_faults(self.node, self.report, self.tests, self.stated)

    @property
    def has_sources(self) -> bool:
        """True where something is said of its faults, good or bad."""
        has_any = self.report is not None or bool(self.tests) or bool(self.stated)
        return has_any or self.change is not None

    @cached_property
    def drain(self) -> Window | None:
        """Until when it is to be empty; None: it is not."""
        return drain_of(self.node.metadata.annotations)

    @cached_property
    def ordered_tests(self) -> tuple[NodeTest, ...]:
        """Its tests in the order of their numbers."""
        return tuple(sorted(self.tests, key=lambda each: (each.spec.number, each.metadata.name)))

    @cached_property
    def open_test(self) -> NodeTest | None:
        """The first of its tests that has not ended; the others wait for it."""
        return next((each for each in self.ordered_tests if each.is_open), None)

    @cached_property
    def is_at_rest(self) -> bool:
        """True where nothing follows for its tests: none is open or old, and none is waited for."""
        if not self.tests:
            return not self.suite or self.gate_since is None
        is_open = self.open_test is not None
        return not is_open and self.gate_since is None and not outdated(self.tests, self.suite)

    @property
    def gate_since(self) -> float | None:
        """Since when a test counts for a node at the gate; None: it is not there."""
        if not self.suite:
            return None
        record = self.record
        if record is not None and record.is_out:
            is_back = record.state is NodeState.VALIDATING
            return time_or(record.entered_at, float("-inf")) if is_back else None
        return float("-inf") if is_gated(self.node) else None

    @property
    def retests(self) -> tuple[str, ...]:
        """The tests of faults that it had, while it is out."""
        record = self.record
        return record.retests if record is not None and record.is_out else ()

    @property
    def boot_id(self) -> str:
        """The boot that the report is of; "": not known."""
        report = self.report
        is_own = report is not None and report.status.node_uid == self.node.metadata.uid
        own = report.status.boot_id if report is not None and is_own else ""
        return own or self.node.status.node_info.boot_id


@dataclass(frozen=True, slots=True)
class _Now:
    view: NodeView
    need: Need | None
    policy: HealthPolicy
    now: float

    def enter(
        self, record: NodeRecord, state: NodeState, reason: str, seconds: float | None = None
    ) -> NodeRecord:
        """Return the record of a node that enters a state."""
        deadline = None if seconds is None else format_time(self.now + seconds)
        return replace(
            record, state=state, entered_at=format_time(self.now), reason=reason[:REASON_MAX],
            deadline=deadline, request=None,
        )  # fmt: skip

    def is_over(self, record: NodeRecord) -> bool:
        """True when the deadline of the state has passed."""
        return record.deadline is not None and self.now >= parse_time(record.deadline)


def taken_out(
    view: NodeView, need: Need, policy: HealthPolicy, now: float, *,
    known: RememberedTries = _NOTHING_KNOWN,
) -> NodeRecord:  # fmt: skip
    """Return the record of a node that is taken out of service now.

    `known`: what was tried on its machine under other names, which counts like its own.
    """
    before = view.record
    own = before.tries if before is not None else ()
    merged = {(each.at, each.action.rank): each for each in (*known.tries, *own)}
    latest = [each for _, each in sorted(merged.items())][-TRIES_MAX:]
    tries = _since_repair(view.node, latest, now)
    session = before.session + 1 if before is not None else 1
    words = need.words
    if known.nodes and tries:
        words += f"; the machine was repaired before, as node {', '.join(known.nodes)}"
    record = NodeRecord(
        NodeState.CORDONED, format_time(now), words[:REASON_MAX], session=session,
        drain=window_text(now, max(now, need.deadline)), tries=tries, retests=need.retests,
    )  # fmt: skip
    return _emptying(_Now(view, need, policy, now), record)


def stray(view: NodeView, policy: HealthPolicy, now: float) -> NodeRecord:
    """Return the record of a node that has our marks, no fault, and no record."""
    at = format_time(now)
    record = NodeRecord(NodeState.VALIDATING, at, drain=f"{at}/", session=1)
    why = "it has the marks of a node that is out, and no record that can be read"
    return _Now(view, None, policy, now).enter(
        record, NodeState.VALIDATING, why, policy.validate_seconds_max
    )


def next_record(
    view: NodeView, need: Need | None, policy: HealthPolicy, now: float
) -> NodeRecord | None:
    """Return the record that follows that of a node which is out; the same one: nothing does.

    `need`: what its faults ask for. None: the node is back, and nothing is left to remember.
    """
    record = view.record
    assert record is not None
    at = _Now(view, need, policy, now)
    if need is not None:
        record = _tightened(_with_retests(record, need), need, now)
    if record.state is NodeState.VALIDATING:
        return _validated(at, record)
    if need is None:
        return _healed(at, record)
    if record.state in _EMPTIED:
        return _to_test(at, record) if need.is_test and not view.is_used else _drained(at, record)
    if record.state is NodeState.ASKING:
        return record
    return _acted(at, record)


def _with_retests(record: NodeRecord, need: Need) -> NodeRecord:
    """Return the record with the tests of what was found meanwhile."""
    known = tuple(sorted({*record.retests, *need.retests}))
    return record if known == record.retests else replace(record, retests=known)


def _tightened(record: NodeRecord, need: Need, now: float) -> NodeRecord:
    """Return the record with the deadline of its drain where a fault now asks for an earlier one.

    It never moves later: what alternates with other faults comes to its end as well.
    """
    if not record.drain:
        return record
    since, _, deadline = record.drain.partition("/")
    if need.deadline >= time_or(deadline, float("inf")):
        return record
    began = time_or(since, now)
    return replace(record, drain=window_text(began, max(began, need.deadline)))


def _healed(at: _Now, record: NodeRecord) -> NodeRecord:
    """The faults have ended, whoever ended them: the node is tested before it comes back."""
    since = record.drain.partition("/")[0]
    record = replace(record, drain=f"{since}/")  # what runs there may stay
    return at.enter(
        record, NodeState.VALIDATING, f"the faults have ended ({record.reason})",
        at.policy.validate_seconds_max,
    )  # fmt: skip


def _to_test(at: _Now, record: NodeRecord) -> NodeRecord:
    """A node on which nothing is wrong, and nothing runs: it passes its suite again."""
    assert at.need is not None
    reason = f"it is tested again: {at.need.worst.evidence}"
    return at.enter(record, NodeState.VALIDATING, reason, at.policy.validate_seconds_max)


def _drained(at: _Now, record: NodeRecord) -> NodeRecord:
    """Follow a node that is being emptied."""
    assert at.need is not None
    is_late = at.now >= drain_deadline(record) + at.need.stay_seconds(at.policy)
    if not is_late and (at.view.is_used or at.need.is_announced):
        return _emptying(at, record)
    if not at.view.is_used:
        return _go_on(at, record, "it is empty")
    return _go_on(at, record, "it is not empty after its deadline", is_stuck=True)


def _emptying(at: _Now, record: NodeRecord) -> NodeRecord:
    """Return the record of a node in the part of its drain that it is in."""
    assert at.need is not None
    ends = drain_deadline(record)
    begins = ends - at.policy.eviction_seconds
    state, until = NodeState.CORDONED, begins
    if at.now >= begins:
        state, until = NodeState.DRAINING, ends + at.need.stay_seconds(at.policy)
    if record.state is state and record.deadline is not None:
        return replace(record, deadline=format_time(until))
    return at.enter(record, state, record.reason, until - at.now)


def drain_deadline(record: NodeRecord) -> float:
    """Return when a node that is out is to be empty."""
    return time_or(record.drain.partition("/")[2], float("inf"))


def _go_on(
    at: _Now, record: NodeRecord, why: str, *, is_stuck: bool = False, after: Action | None = None
) -> NodeRecord:
    """Return the record with the next thing to do about the faults.

    `after`: what did not help, so that the next rung of the ladder is due.
    """
    need, policy, tries = at.need, at.policy, _recent(at.view.node, record, at.now)
    assert need is not None
    record = replace(record, tries=tries)
    step = tuning_step(record)
    if need.is_tuning and step is None:  # no repair: whatever was tried before, it goes no further
        return _asked(at, record, Action.REBOOT, f"{need.words}; {why}")
    if need.is_tuning:
        return at.enter(record, NodeState.ASKING, f"a person is needed: {need.words}; {why}")
    if step is TuningStep.SET:  # nothing was wrong before it
        text = f"the change of the tuning profile is taken back: {need.words}"
        return _asked(at, record, Action.REBOOT, text, takes_back=True)
    tries = tuple(each for each in tries if each.is_repair)
    if len(tries) >= policy.tries_max:
        text = f"{len(tries)} tries in 7 days did not help: {need.words}"
        return at.enter(record, NodeState.ASKING, text)
    action = need.action if need.action.asks else Action.ASK_PERSON
    if after is not None and action.rank <= after.rank:
        action = _LADDER[_LADDER.index(after) + 1]
    done = [each.action for each in tries]
    if action is Action.RESET_GPU and (is_stuck or done.count(action) >= policy.resets_max):
        action = Action.REBOOT  # what is stuck holds its GPUs
    if action is Action.REBOOT and done.count(action) >= policy.reboots_max:
        action = Action.REPLACE
    if action is Action.REPLACE and (is_stuck or not at.view.is_replaceable):
        action = Action.ASK_PERSON
    if action is Action.ASK_PERSON:
        return at.enter(record, NodeState.ASKING, f"a person is needed: {need.words}; {why}")
    return _asked(at, record, action, f"{need.words}; {why}")


def tuning_step(record: NodeRecord) -> TuningStep | None:
    """Return what the latest try did to settings of a tuning profile since the node went out."""
    since = time_or(record.drain.partition("/")[0], float("inf"))
    last = record.tries[-1] if record.tries else None
    return last.tuning if last is not None and time_or(last.at, 0.0) >= since else None


def _asked(
    at: _Now, record: NodeRecord, action: Action, why: str, *, takes_back: bool = False
) -> NodeRecord:
    """Return the record with an action under way."""
    policy, need = at.policy, at.need
    assert need is not None
    tuning = TuningStep.SET if need.is_tuning else None
    if takes_back:
        tuning = TuningStep.TAKE_BACK
    seconds = {
        Action.RESET_GPU: policy.reset_seconds, Action.REBOOT: policy.reboot_seconds,
    }.get(action, policy.replace_seconds)  # fmt: skip
    may_restart = at.view.is_restartable and action is not Action.REPLACE and tuning is None
    is_by_provider = may_restart and _is_silent(at)
    if is_by_provider:
        action, seconds = Action.REBOOT, policy.reboot_seconds
        why = f"the agent is silent, so its provider restarts the machine: {why}"
    record = at.enter(record, _STATES[action], why, seconds)
    boot_id = at.view.node.status.node_info.boot_id if is_by_provider else at.view.boot_id
    new = Try(action, format_time(at.now), boot_id, tuning)
    record = replace(record, tries=(*record.tries, new)[-TRIES_MAX:])
    if action is Action.REPLACE:
        return record
    id_ = f"{at.view.node.metadata.uid}/{record.session}/{record.entered_at}"
    asked = NodeRequest(
        id_, action, need.components, is_by_provider=is_by_provider, takes_back=takes_back
    )
    return replace(record, request=asked)


def _is_silent(at: _Now) -> bool:
    """True when the node has no agent that was heard of late, so that nobody follows a request."""
    report = at.view.report
    if report is None or report.status.node_uid != at.view.node.metadata.uid:
        return True
    heard = time_or(report.status.observed_at, float("-inf"))
    return at.now - heard > at.policy.report_seconds_max


def _acted(at: _Now, record: NodeRecord) -> NodeRecord:
    """Follow an action whose faults are still there."""
    if record.state is NodeState.REPLACING:
        if not at.view.is_replaceable:
            return at.enter(record, NodeState.ASKING, "it belongs to no pool any more")
        if at.is_over(record):
            return at.enter(record, NodeState.ASKING, "it was not replaced in time")
        return record
    last = record.tries[-1] if record.tries else None
    action = record.request.action if record.request is not None else Action.REBOOT
    is_by_provider = record.request is not None and record.request.is_by_provider
    # What the report of a silent agent says is of before.
    boot_id = at.view.node.status.node_info.boot_id if is_by_provider else at.view.boot_id
    if last is not None and last.boot_id and boot_id not in ("", last.boot_id):
        return _go_on(at, record, "the machine has started again, and it is still there",
                      after=_before(action, record, at.policy))  # fmt: skip
    report = at.view.report
    answer = report.status.answered if report is not None else None
    is_answered = (
        answer is not None and record.request is not None and answer.id == record.request.id
    )
    if is_answered and answer is not None:
        match answer.answer:
            case AgentAnswer.REFUSED:
                return _go_on(at, record, f"the agent refused: {answer.message}", after=action)
            case AgentAnswer.FAILED:
                return _go_on(at, record, f"{action.value}: {answer.message}",
                              after=_before(action, record, at.policy))  # fmt: skip
            case AgentAnswer.FORBIDDEN:
                text = f"the agent may not: {answer.message}; {record.reason}"
                return at.enter(record, NodeState.ASKING, text)
            case AgentAnswer.ACCEPTED | AgentAnswer.DONE:
                pass
            case _:
                assert_never(answer.answer)
    if not at.is_over(record):
        return record
    if not is_answered:
        who = "the machine has not started again by its provider" if is_by_provider \
            else f"no agent carries out {action.value} there"  # fmt: skip
        return at.enter(record, NodeState.ASKING, f"{who}: {record.reason}")
    return _go_on(at, record, f"{action.value} did not help in time",
                  after=_before(action, record, at.policy))  # fmt: skip


def _before(action: Action, record: NodeRecord, policy: HealthPolicy) -> Action | None:
    """Return the rung that is done with: a reboot may be tried again."""
    done = sum(each.action is action and each.is_repair for each in record.tries)
    is_left = action is Action.REBOOT and done < policy.reboots_max
    return None if is_left else action


def _validated(at: _Now, record: NodeRecord) -> NodeRecord | None:
    """Follow a node whose faults have ended."""
    if at.need is not None:
        return _drained(at, replace(record, reason=at.need.words[:REASON_MAX]))
    since = parse_time(record.entered_at)
    if not _is_proven(at, since):
        if at.is_over(record):
            proof = f"test of the suite {at.view.suite}" if at.view.suite else "working agent"
            return at.enter(record, NodeState.ASKING, f"no {proof} says that it is healthy")
        return record
    if at.now < since + at.policy.validate_seconds:
        return record
    tries = _recent(at.view.node, record, at.now)
    if not tries:
        return None
    return NodeRecord(
        NodeState.READY, format_time(at.now), "it is healthy again", session=record.session,
        tries=tries,
    )  # fmt: skip


def _is_proven(at: _Now, since: float) -> bool:
    """True when the agent looks and sees nothing, and a test has passed where there is a gate.

    The test alone is proof of a node without an agent.
    """
    view = at.view
    is_seen = is_proven(view.node, view.report, at.policy, at.now)
    if not view.suite:
        return is_seen
    has_agent = view.report is not None
    return (is_seen or not has_agent) and has_passed(
        view.node, view.tests, view.suite, since, retests=view.retests
    )


def has_taken_back(view: NodeView, now: float) -> bool:
    """True where a change of the tuning profile was taken back, and no person has said since that
    the node is mended.
    """
    record = view.record
    return record is not None and any(
        each.tuning is TuningStep.TAKE_BACK for each in _recent(view.node, record, now)
    )


def _recent(node: Node, record: NodeRecord, now: float) -> tuple[Try, ...]:
    """Return the tries that still count: of 7 days, and since a person mended the node."""
    return _since_repair(node, record.tries, now)


def _since_repair(node: Node, tries: Iterable[Try], now: float) -> tuple[Try, ...]:
    repaired = time_or(node.metadata.annotations.get(REPAIRED), float("-inf"))
    since = max(now - TRIES_SECONDS, repaired)
    return tuple(each for each in tries if time_or(each.at, now) > since)
