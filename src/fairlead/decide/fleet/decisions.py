"""Decisions of the fleet as records: what was done, by which rule, on which numbers.

The status of a pool holds the latest ones. It is written in the same compare-and-swap as what was
decided, so a controller that dies right after it leaves them for the next one to record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec.structs import replace

from fairlead.api.cluster.fleet import FleetStatus, Grant
from fairlead.api.cluster.node_pool import (
    BalloonCounts,
    Launch,
    NodePoolStatus,
    PoolDecision,
    UnavailableDomain,
)
from fairlead.decide.fleet.actions import Announce
from fairlead.decide.fleet.leaving.spares import SpareChanges
from fairlead.decide.removal.removals import RemovalOutcome, Ruling, rule_words
from fairlead.decide.words import plural
from fairlead.model.pools.pool_nodes import PoolNode

Facts: TypeAlias = dict[str, int | float | str | bool]
DECISIONS_MAX = 50
#: Too many to keep in a status: nodes join by the thousand.
ADMIT, AWAIT_TURN = "Admit", "AwaitTurn"
_NOT_KEPT = (ADMIT, AWAIT_TURN)
_MESSAGE_MAX = 500
_IDS_SHOWN_MAX = 5


def with_decisions(
    status: NodePoolStatus, decided: Sequence[PoolDecision]
) -> tuple[NodePoolStatus, tuple[PoolDecision, ...]]:
    """Return the status with new decisions in it, and the decisions with their numbers."""
    last = status.decisions[-1].number if status.decisions else 0
    numbered: list[PoolDecision] = []
    for each in decided:
        last += each.action not in _NOT_KEPT
        numbered.append(replace(each, number=last))
    kept = [each for each in numbered if each.action not in _NOT_KEPT]
    latest = (*status.decisions, *kept)[-DECISIONS_MAX:]
    return replace(status, decisions=latest), tuple(numbered)


def refusal(launch: Launch, why: str, mark: UnavailableDomain, at: str) -> PoolDecision:
    """Return that a provider refused a launch, and how long its domain is avoided."""
    facts = _avoidance(launch, mark)
    return PoolDecision(at, "Refused", "ProviderRefused", why[:_MESSAGE_MAX], facts)


def _avoidance(launch: Launch, mark: UnavailableDomain) -> Facts:
    return {"token": launch.token, "count": launch.count, "domain": launch.domain,
            "avoidedUntil": mark.until, "refusals": mark.refusals}  # fmt: skip


def given_up(launch: Launch, why: str, mark: UnavailableDomain, at: str) -> PoolDecision:
    """Return that a launch is not waited for any more, and how long its domain is avoided."""
    text = f"{plural(launch.count, 'node')} of {launch.requested_at}: {why}"
    return PoolDecision(at, "GiveUp", "LaunchDeadline", text, _avoidance(launch, mark))


def launched(launch: Launch, ids: Sequence[str], at: str) -> PoolDecision:
    """Return that a provider launched machines."""
    shown = ", ".join(ids[:_IDS_SHOWN_MAX]) + (", ..." if len(ids) > _IDS_SHOWN_MAX else "")
    text = f"{plural(len(ids), 'machine')} of {launch.count}" + (f": {shown}" if ids else "")
    facts: Facts = {"token": launch.token, "count": launch.count, "domain": launch.domain,
             "machines": len(ids)}  # fmt: skip
    return PoolDecision(at, "Launched", "ProviderAnswered", text, facts)


def removal_decision(ruling: Ruling, at: str) -> PoolDecision:
    """Return what was ruled on a removal, with the budget before and after."""
    removal = ruling.removal
    text = f"{removal.name}: {removal.why}; {rule_words(ruling.rule)}"
    action = "Remove" if ruling.outcome is RemovalOutcome.REMOVE else "Mark"
    facts: Facts = {
        "instance": removal.instance, "node": removal.node, "domain": removal.charge.domain,
        "rule": ruling.rule.value, **ruling.facts,
    }  # fmt: skip
    return PoolDecision(at, action, removal.charge.cause.value, text, facts)


def removal_end(grant: Grant, at: str, *, is_used: bool) -> PoolDecision:
    """Return how a removal that was granted ended: the machine is gone, or in use again."""
    name = grant.node or grant.instance
    facts: Facts = {"instance": grant.instance, "node": grant.node}
    if grant.granted_at is not None:
        facts["grantedAt"] = grant.granted_at
    if is_used:
        return PoolDecision(at, "Kept", "InUse", f"{name}: a job uses it again", facts)
    return PoolDecision(at, "Removed", grant.cause.value, f"{name}: it is gone", facts)


def unmarked(node: PoolNode, at: str, *, is_wanted: bool) -> PoolDecision:
    """Return that a node is no longer to go."""
    why = "it is wanted again" if is_wanted else "nothing asks for its removal any more"
    facts: Facts = {"instance": node.instance, "node": node.name, "was": node.removal}
    reason = "Wanted" if is_wanted else "NotSurplus"
    return PoolDecision(at, "Unmark", reason, f"{node.name}: {why}", facts)


def announced(action: Announce, at: str) -> PoolDecision:
    """Return that maintenance of a node is announced, or that it no longer is."""
    name = action.node.metadata.name
    facts: Facts = {"node": name, "window": action.window}
    if action.window:
        text = f"{name}: maintenance from {action.window.replace('/', ' to ')}"
        return PoolDecision(at, "Announce", "ProviderMaintenance", text, facts)
    text = f"{name}: its provider announces no maintenance any more"
    return PoolDecision(at, "Withdraw", "ProviderMaintenance", text, facts)


def begins_early(action: Announce, at: str) -> PoolDecision:
    """Return that announced maintenance of an idle node is to begin now."""
    name = action.node.metadata.name
    text = f"{name}: nothing uses it, so its provider is asked to begin its maintenance now"
    return PoolDecision(at, "Begin", "ProviderMaintenance", text, {"node": name})


def balloons_changed(
    before: BalloonCounts | None, after: BalloonCounts | None, at: str
) -> tuple[PoolDecision, ...]:
    """Return that a pool is to keep more or fewer balloons; () when it is not."""
    was, wanted = (counts.wanted if counts is not None else 0 for counts in (before, after))
    if was == wanted:
        return ()
    text = f"{plural(wanted, 'balloon')}, {was} before"
    facts: Facts = {"balloons": wanted, "was": was}
    return (PoolDecision(at, "Balloons", "Demand" if wanted > was else "Surplus", text, facts),)


def admitted(count: int, waiting: int, *, tokens: float, at: str) -> PoolDecision:
    """Return that new nodes may take work. `tokens`: what the bucket held before."""
    text = f"{plural(count, 'node')} may take work, {waiting - count} wait for their turn"
    facts: Facts = {"waiting": waiting, "tokensBefore": round(tokens, 2),
             "tokensAfter": round(tokens - count, 2)}  # fmt: skip
    return PoolDecision(at, ADMIT, "JoinRate", text, facts)


def await_turn(count: int, at: str) -> PoolDecision:
    """Return that nodes which are not ready are to wait for their turn once they are."""
    text = f"{plural(count, 'node')} will wait for their turn once they are ready again"
    return PoolDecision(at, AWAIT_TURN, "NotReady", text, {"nodes": count})


def spares_changed(changes: SpareChanges, at: str) -> tuple[PoolDecision, ...]:
    """Return which nodes became spares, and which are ordinary nodes again; () when none did."""
    out: list[PoolDecision] = []
    for action, reason, nodes, what in (
        ("Spare", "Wanted", [*changes.admitted, *changes.made], "kept for repairs"),
        ("Unspare", "InUse", changes.used, "in use, so no spare any more"),
        ("Unspare", "Surplus", changes.surplus, "more spares than wanted"),
    ):
        if nodes:
            shown = ", ".join(node.name for node in nodes[:_IDS_SHOWN_MAX])
            more = ", ..." if len(nodes) > _IDS_SHOWN_MAX else ""
            text = f"{plural(len(nodes), 'node')}, {what}: {shown}{more}"
            out.append(PoolDecision(at, action, reason, text, {"nodes": len(nodes)}))
    return tuple(out)


def sight_changed(before: FleetStatus, after: FleetStatus, at: str) -> tuple[PoolDecision, ...]:
    """Return that removals stopped, or are possible again; () when neither changed."""
    if before.blind == after.blind:
        return ()
    facts: Facts = {"was": ", ".join(before.blind)}
    if not after.blind:
        return (PoolDecision(at, "Resume", "Clear", "nodes may be removed again", facts),)
    return (PoolDecision(at, "Hold", after.blind[0], after.message[:_MESSAGE_MAX], facts),)
