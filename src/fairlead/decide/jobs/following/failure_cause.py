"""Why a gang failed: the one failure that brought the others down.

A member that is lost takes its peers with it within moments (MPI aborts, collectives time out), and
their exit codes do not show why. Each member is judged by itself (module `member_failure`); then
`assess` finds the failure that came first and weighs most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fairlead.api import names
from fairlead.api.jobs.job import RestartPolicy
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.jobs.following.member_failure import (
    Failure,
    Weight,
    describe,
    judge_member,
    node_lost,
)
from fairlead.decide.jobs.following.pods import AttemptPods, MemberPod
from fairlead.decide.jobs.view import JobView

#: Exit codes that say something of the other members.
_CODES_OF_GANGS = {
    EndReason.STOPPED: names.EXIT_STOPPED,
    EndReason.PEERS_UNREACHABLE: names.EXIT_UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Settling:
    """Something failed, but what brought it down may still come to light until then."""

    until: float


def failures(view: JobView) -> Iterator[Failure]:
    """Yield the failures of the attempt's members, each once; walks only what is in trouble."""
    pods = view.current
    for name in pods.troubled:
        member = pods.members[name]
        failure = judge_member(
            member,
            view.node_troubles.get(member.node),
            view.policy,
            view.now,
            is_cordoned=member.node in view.cordoned,
        )
        if failure is None:
            continue
        if failure.reason in _CODES_OF_GANGS and view.job.member_count == 1:
            # There is no other member: the program uses this number in its own way.
            text = f"{describe(member)} exited with code {_CODES_OF_GANGS[failure.reason]}"
            weight = Weight.PERHAPS_CONSEQUENCE
            failure = replace(failure, reason=EndReason.EXIT_CODE, message=text, weight=weight)
        yield failure
    for member in _on_troubled_nodes(view, pods):
        trouble = view.node_troubles[member.node]
        if not member.is_troubled and trouble.is_lost(view.policy, view.now):
            yield node_lost(member, trouble, view.now)


def _on_troubled_nodes(view: JobView, pods: AttemptPods) -> Iterator[MemberPod]:
    """Yield the members that have not ended and whose nodes are in trouble."""
    if not view.node_troubles:
        return
    for member in pods.members.values():
        if not member.is_terminal and member.node in view.node_troubles:
            yield member


def assess(view: JobView) -> Failure | Settling | None:
    """Return the failure that ends the gang, how long to collect evidence, or None: all is well.

    Of the failures within the cause window after the first, the weightiest counts, then the
    earliest, then the lowest rank. A cause that is not the user's needs no waiting. When
    members failed by themselves while the node of another is silent, the node is to blame.
    A member that says that it was stopped only because another one ended neither opens the window
    nor is the culprit while that other one may still come to light.
    """
    found = list(failures(view))
    if not found:
        return None
    causes = [f for f in found if f.weight is not Weight.CONSEQUENCE]
    first = min(f.at for f in causes or found)
    near = [f for f in found if f.at <= first + view.policy.cause_window_seconds]
    if view.job.spec.restart.policy is RestartPolicy.MEMBER:
        near = found
    culprit = min(near, key=lambda f: (f.weight.value, f.at, f.rank))
    if culprit.weight not in (Weight.NODE, Weight.OUTSIDE):
        reported = culprit.member.node if culprit.member else ""
        on_silent = _on_troubled_nodes(view, view.current)
        silent = next((member for member in on_silent if member.node != reported), None)
        if silent is not None:
            return node_lost(silent, view.node_troubles[silent.node], view.now)
    if not causes:
        return _only_stopped(view, culprit)
    dated = [f.at for f in causes if f.is_dated]
    until = min(dated, default=view.now) + view.policy.cause_window_seconds
    settled = not dated or view.now >= until or view.current.all_terminal
    if culprit.weight is Weight.PERHAPS_CONSEQUENCE and not settled:
        return Settling(until)
    return culprit


def _only_stopped(view: JobView, first: Failure) -> Failure | Settling:
    """Return what to make of members that were all stopped on account of another.

    The one that ended may report later than they did (it takes care of the rest of the gang), so
    there is more patience while any member is alive.
    """
    if not first.is_dated:
        return first
    patience = view.policy.cause_window_seconds
    if not view.current.all_terminal:
        patience = max(patience, view.policy.stopped_patience_seconds)
    until = first.at + patience
    return first if view.now >= until else Settling(until)


def late_evidence(view: JobView) -> Failure | None:
    """Return the lost node that explains an end that was judged otherwise, or None.

    A dead node is noticed later than what it does to the peers. Its member never ended, so its pod
    still stands when the rest of the gang has stopped.
    """
    for member in _on_troubled_nodes(view, view.current):
        trouble = view.node_troubles[member.node]
        if trouble.is_lost(view.policy, view.now):
            return node_lost(member, trouble, view.now)
    return None
