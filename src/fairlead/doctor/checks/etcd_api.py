"""Checks of what etcd's members say over etcd's own API: alarms, members, errors, lag."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.check import (
    IS_CRITICAL,
    IS_INFO,
    IS_WARNING,
    Check,
    Reading,
    critical,
    warning,
)
from fairlead.doctor.etcd_state import Member
from fairlead.doctor.facts import Facts, Source
from fairlead.input.printable import printable

P = (Source.ETCD_API,)


def corrupt(facts: Facts) -> Iterator[Reading]:
    """Read whether a member has raised the alarm CORRUPT."""
    etcd = facts.seen_etcd()
    for alarm in facts.seen(etcd.alarms, Source.ETCD_API):
        is_corrupt = alarm.kind == "CORRUPT"
        yield Reading(
            etcd.name_of(alarm.member), float(is_corrupt), f"alarm {printable(alarm.kind)}"
        )


def _members(facts: Facts) -> tuple[Member, ...]:
    return facts.seen(facts.seen_etcd().members, Source.ETCD_API)


def unstarted(facts: Facts) -> Iterator[Reading]:
    """Read whether a member was added and never started."""
    members = _members(facts)
    for each in members:
        is_unstarted = not each.name and not each.is_learner
        name = facts.seen_etcd().name_of(each.id)
        yield Reading(name, float(is_unstarted), f"one of {len(members)} members, without a name")


def learners(facts: Facts) -> Iterator[Reading]:
    """Read whether a member is a learner."""
    for each in _members(facts):
        name = facts.seen_etcd().name_of(each.id)
        yield Reading(name, float(each.is_learner), "isLearner: true")


def errors(facts: Facts) -> Iterator[Reading]:
    """Read how many errors a member reports; alarms have checks of their own."""
    for instance, status in facts.seen_etcd().statuses:
        found = [each for each in status.errors if "alarm:" not in each]
        yield Reading(instance, float(len(found)), printable("; ".join(found[:3]), 300))


def behind(facts: Facts) -> Iterator[Reading]:
    """Read how many entries of the raft log a member has not got, or not applied."""
    etcd = facts.seen_etcd()
    for instance, status in etcd.statuses:
        missing = max(etcd.index_before - status.raft_index, 0)
        unapplied = max(status.raft_index - status.raft_applied_index, 0)
        text = (f"raft index {status.raft_index:,}, applied {status.raft_applied_index:,}; a "
                f"member had {etcd.index_before:,} before")  # fmt: skip
        yield Reading(instance, float(missing + unapplied), text)


CHECKS: tuple[Check, ...] = (
    Check(
        "ETCD-08B", "etcd has an active CORRUPT alarm", P, corrupt, IS_CRITICAL,
        "The members' data differ: what is read depends on the member that answers. Writes are "
        "refused.",
        "stop the member that differs, remove its data, and add it again as a new member:\n"
        "etcdctl endpoint hashkv --cluster -w table   # the one whose hash differs\n"
        "etcdctl member remove ID; etcdctl member add NAME --peer-urls=URL\n"
        "etcdctl alarm disarm",
        "etcd documentation, data corruption", unit="bool",
    ),
    Check(
        "ETCD-11B", "An etcd member is behind", P, behind, (warning(1_000.0), critical(5_000.0)),
        "It reads old data, and its loss of time shows a slow disk or network. A member that has "
        "5,000 entries to apply refuses requests.",
        "its disk (ETCD-01) and its network (ETCD-12)",
        "etcd, maxGapBetweenApplyAndCommitIndex", unit="entries",
    ),
    Check(
        "ETCD-10B", "An etcd member was never started", P, unstarted, IS_WARNING,
        "It counts for the quorum and never votes: one more loss may stop all writes.",
        "start it, or etcdctl member remove ID", "etcd documentation, runtime reconfiguration",
        unit="bool",
    ),
    Check(
        "ETCD-09C", "An etcd member reports errors", P, errors, (warning(0.5),),
        "The member knows of a fault, such as that it sees no leader.",
        "etcdctl endpoint status --cluster -w json", "etcd API, StatusResponse.errors",
        unit="errors",
    ),
    Check(
        "ETCD-10C", "An etcd member is a learner", P, learners, IS_INFO,
        "It takes the log of the others and has no vote, so it adds no tolerance.",
        "etcdctl member promote ID   # once it has caught up", "etcd documentation, learners",
        unit="bool",
    ),
)  # fmt: skip
