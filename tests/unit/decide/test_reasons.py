"""The closed set of reasons."""

from __future__ import annotations

import string

import pytest

from fairlead.decide.reasons import AMOUNT_FACTS, Outcome, Reason, Trait, render
from fairlead.decide.verdict import Verdict

#: One set of facts with everything that any template may name.
FACTS: dict[str, int | float | str | bool] = {
    "account": "user ana of team vision", "running": 3, "limit": 3, "gpus": 16, "gpus_held": 60,
    "kind": "unfinished", "event": "ended", "ahead": 3, "attempt": 2,
    "backoff_seconds": 4, "limit_seconds": 3600, "path": "a -> b -> a",
    "array": "sweep", "index": 7, "job": "prep", "state": "Succeeded",
    "wanted": "Succeeded", "members_kept": 3, "members": 4, "nodes_lost": 1, "nodes_used": 4,
    "shown": "n1, n2",
    "resource": "nvidia.com/gpu", "asked": 64, "free": 44, "total": 72, "short": 20,
    "largest": 8, "members_fit": 2, "topology_key": "rack", "domains": 5, "nodes": 9,
    "cause": "cancelled by its user", "which": "n1 (cordoned)", "role": "worker",
    "field": "spec.roles", "owner": "StatefulSet web", "members_present": 3, "ungated": 1,
    "priority_class": "high", "stage": "read", "fault": "RecursionError: too deep",
    "message": "exceeded quota: team", "team": "vision", "borrowed": 3, "open": "speech",
    "victims": 2, "moves": 2, "saving": 1, "priority": 100, "rules": "host ports", "slice_size": 8,
    "slice_level": "nvlink", "within": "the best rack", "then": "any nodes",
    "until": "2026-01-01T00:10:00Z", "days": 30, "times": 3,
    "starts_by": "2026-01-01T00:10:00Z", "node": "node-0007", "placed_at": "2026-01-01T00:10:00Z",
    "reservation": "vision/workshop", "claim": "data", "volume": "pvc-1", "storage_class": "disks",
    "device_class": "gpu.example.com", "why": "not planned",
    "user": "pod eval-0",
    "reach": "topology.kubernetes.io/zone in (a)",
    "window": "from 2026-12-01T08:00:00Z to 2026-12-01T12:00:00Z",
}  # fmt: skip


@pytest.mark.parametrize("reason", list(Reason))
def test_what_follows_from_a_reason_rests_on_facts_that_it_has(reason: Reason) -> None:
    assert not reason.has(Trait.HAS_JOB_AHEAD) or "{job}" in reason.template
    assert not reason.has(Trait.ROOM_KEPT) or "{starts_by}" in reason.template
    assert not reason.has(Trait.HAS_VICTIMS) or "{victims}" in reason.template
    assert Reason.of(reason.value) is reason


def test_a_reason_of_a_newer_version_is_not_known() -> None:
    assert Reason.of("WrittenByANewerVersion") is None


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_message_made_of_facts(reason: Reason) -> None:
    named = {name for _, name, _, _ in string.Formatter().parse(reason.template) if name}
    message = render(reason, {name: FACTS[name] for name in {*named, "resource"}})
    assert "{" not in message
    assert message == Verdict(reason, FACTS).message
    assert reason.value.isidentifier()
    assert reason.value[0].isupper()


def test_severity_follows_the_outcome() -> None:
    order = list(Outcome)
    by_severity = sorted(Reason, key=lambda reason: reason.severity)
    outcomes = [order.index(reason.outcome) for reason in by_severity]
    assert outcomes == sorted(outcomes)


def test_amounts_are_shown_in_units_that_people_read() -> None:
    facts = {"resource": "memory", "asked": 3 << 40, "free": 1 << 40, "total": 2 << 40,
             "short": 2 << 40}  # fmt: skip
    message = render(Reason.INSUFFICIENT_CAPACITY, facts)
    assert message == "needs 3Ti memory, 1Ti of 2Ti are free: 2Ti short"
    assert set(facts) - {"resource"} <= set(AMOUNT_FACTS)


def test_a_missing_fact_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError):
        render(Reason.DEPENDENCY, {"job": "prep"})
