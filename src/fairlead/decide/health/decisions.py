"""Decisions about the health of nodes as records: what was done, by which rule, and why."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.api.cluster.fleet import Repair
from fairlead.api.cluster.node_pool import PoolDecision
from fairlead.decide.health.need import Need
from fairlead.decide.health.node_step import NodeView
from fairlead.decide.removal.removals import Ruling, rule_words
from fairlead.decide.removal.trust import SightFinding
from fairlead.model.health.node_record import NodeRecord

_MESSAGE_MAX = 500


def decision(action: str, need: Need, node: NodeView, *, text: str, at: str) -> PoolDecision:
    """Return a decision that a need is behind; its rule is the check of the worst fault."""
    facts: dict[str, int | float | str | bool] = {
        "node": node.name, "rule": need.worst.check, "fault": need.worst.words,
        "firstSeen": need.worst.first_seen, "action": need.action.value,
        "deadline": int(need.deadline), "faults": need.count, "evidence": need.worst.evidence,
        "isUsed": node.is_used,
    }  # fmt: skip
    return PoolDecision(at, action, need.worst.check, text[:_MESSAGE_MAX], facts)


def moved(
    node: NodeView, before: NodeRecord, after: NodeRecord | None, at: str
) -> tuple[PoolDecision, ...]:
    """Return that a node has another state; () where it has the same one."""
    state = after.state.value if after is not None else "Ready"
    if after is not None and after.state is before.state and after.session == before.session:
        return ()
    reason = after.reason if after is not None else "it is healthy again"
    facts: dict[str, int | float | str | bool] = {
        "node": node.name, "was": before.state.value, "since": before.entered_at,
        "session": before.session,
    }  # fmt: skip
    if after is not None and after.deadline is not None:
        facts["deadline"] = after.deadline
    text = f"{node.name}: {reason}"
    return (PoolDecision(at, state, before.state.value, text[:_MESSAGE_MAX], facts),)


def taken(ruling: Ruling, at: str) -> PoolDecision:
    """Return that a node may be taken out, with the budget before and after."""
    removal = ruling.removal
    text = f"{removal.name}: {removal.why}; {rule_words(ruling.rule)}"
    facts = {"node": removal.node, "pool": removal.charge.pool, "rule": ruling.rule.value}
    return PoolDecision(at, "Grant", "Repair", text[:_MESSAGE_MAX], {**facts, **ruling.facts})


def over(repair: Repair, at: str) -> PoolDecision:
    """Return that a node is back or gone."""
    facts: dict[str, int | float | str | bool] = {"node": repair.node, "uid": repair.uid}
    if repair.granted_at is not None:
        facts["grantedAt"] = repair.granted_at
    text = f"{repair.node}: it is back in service, or gone"
    return PoolDecision(at, "Over", "Repair", text, facts)


def shadowed(node: NodeView, need: Need, why: str, at: str) -> PoolDecision:
    """Return what a rule in shadow would do."""
    text = f"{node.name}: would be taken out for {need.words}, but its rule is in shadow; {why}"
    return decision("WouldCordon", need, node, text=text, at=at)


def sight_changed(
    before: Sequence[str], after: Sequence[str], findings: Sequence[SightFinding], at: str
) -> PoolDecision:
    """Return that nothing is taken any more, or that it may be again."""
    facts: dict[str, int | float | str | bool] = {"was": ", ".join(before)}
    if not after:
        return PoolDecision(at, "Resume", "Clear", "sick nodes may be taken out again", facts)
    text = "; ".join(finding.message for finding in findings)
    return PoolDecision(at, "Hold", after[0], text[:_MESSAGE_MAX], facts)
