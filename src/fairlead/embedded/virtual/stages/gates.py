"""Tests in which pods meet, on virtual nodes: those of gangs before their programs, and of pairs.

Members of a gang find the same, as they do where they measure each other: the first one whose time
is over asks for all of them. A machine that hangs holds its gang up for as long as a test may.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.api import names
from fairlead.api.cluster.machine_result import SuiteResult, encode_result
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.embedded.virtual.hardware import EndedTestPod, Hardware
from fairlead.embedded.virtual.stages.records import PodRecord
from fairlead.embedded.virtual.stages.status import Terminated, terminated
from fairlead.model.health.gang_check import (
    CheckedMember,
    GangVerdict,
    judge_gang,
    merged,
    ring,
    second_opinions,
)

#: How long the test takes, and the longest that it may.
SECONDS, SECONDS_MAX = 10.0, 30.0


class GangGates:
    """The pods of gangs that test their nodes, by job and attempt."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._gangs: dict[tuple[str, str], dict[str, PodRecord]] = {}
        self._verdicts: dict[tuple[str, str], tuple[GangVerdict, dict[int, SuiteResult]]] = {}
        #: Pods of pairs that wait for the other one, by the name of their pair.
        self._listening: dict[str, PodRecord] = {}

    def add(self, record: PodRecord) -> None:
        """Take in a pod, if it has the test."""
        if record.has_gate:
            self._gangs.setdefault(_key(record), {})[record.uid] = record

    def remove(self, record: PodRecord) -> None:
        """Take in that a pod is gone."""
        pair = _word_after(record, "--pair")
        if pair and self._listening.get(pair) is record:
            del self._listening[pair]
        gang = self._gangs.get(_key(record))
        if gang is not None and gang.pop(record.uid, None) is not None and not gang:
            del self._gangs[_key(record)]
            self._verdicts.pop(_key(record), None)

    def ends_of_test(self, record: PodRecord) -> Iterator[tuple[PodRecord, EndedTestPod]]:
        """Yield the pods that the start of a test of machines ends, and how; else none of them.

        Of a pair that is the second pod, which connects: it ends both.
        """
        node, hardware = record.node.name, self._hardware
        pair = _word_after(record, "--pair")
        if not pair:
            if (end := hardware.answer(record.pod, node)) is not None:
                yield record, end
        elif not _word_after(record, "--connect"):
            self._listening[pair] = record
        else:
            other = self._listening.pop(pair, None)
            there = "" if other is None else other.node.name
            if (end := hardware.pair(record.pod, node, there)) is not None:
                yield record, end
            if other is not None and (end := hardware.pair(other.pod, there, node)) is not None:
                yield other, end

    def begin(self, record: PodRecord, now: float) -> float | None:
        """Begin the test of a pod, and return when it ends; None: it has none, or has passed it."""
        if record.gate is not None or not record.has_gate:
            return None
        record.gate_at = now
        gang = self._gangs.get(_key(record), {})
        hangs = any(self._hardware.hangs(each.node.name) for each in gang.values())
        return now + (SECONDS_MAX if hangs else SECONDS)

    def has_passed(self, record: PodRecord, now: float) -> bool:
        """End the test of a pod; True: its program may start."""
        record.gate = self._end(record, now)
        return record.gate.exit_code == 0

    def _end(self, record: PodRecord, now: float) -> Terminated:
        key = _key(record)
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(list(self._gangs[key].values()))
        verdict, results = self._verdicts[key]
        rank = _rank(record)
        message = encode_result(results[rank]).decode() if rank in results else ""
        code = 0
        if verdict.outcome is MachineOutcome.FAILED:
            code = 1 if rank in verdict.failed else names.EXIT_STOPPED
        return terminated(code, message=message, started_at=record.gate_at, finished_at=now)

    def _judge(self, gang: list[PodRecord]) -> tuple[GangVerdict, dict[int, SuiteResult]]:
        gang = sorted(gang, key=_rank)
        ranks = [_rank(each) for each in gang]
        nodes = [each.node.name for each in gang]
        found = {
            rank: result for rank, each in zip(ranks, gang, strict=True)
            if (result := self._hardware.in_gang(each.pod, each.node.name)) is not None
        }  # fmt: skip
        if ranks == list(range(len(ranks))) and gang[0].wants_network:
            met = [pair for pairs in ring(len(ranks)) for pair in pairs]
            found = self._hardware.met(found, met, nodes)
            again = second_opinions(merged(found), nodes)
            found = self._hardware.met(found, again, nodes)
        members = [
            CheckedMember(
                index, node, each.pod.metadata.labels.get(names.ROLE, ""), found.get(rank), "late"
            )
            for index, (rank, node, each) in enumerate(zip(ranks, nodes, gang, strict=True))
        ]
        return judge_gang(members), found


def _key(record: PodRecord) -> tuple[str, str]:
    labels = record.pod.metadata.labels
    return labels.get(names.JOB_UID, record.uid), labels.get(names.ATTEMPT, "")


def _rank(record: PodRecord) -> int:
    text = record.pod.metadata.labels.get(names.RANK, "0")
    return int(text) if text.isdecimal() else 0


def _word_after(record: PodRecord, option: str) -> str:
    """Return the namespace and the value of an option of a test pod; "": there is none."""
    containers = record.pod.spec.containers
    if names.NODE_TEST not in record.pod.metadata.labels or not containers:
        return ""
    words = containers[0].command
    found = (words[i + 1] for i in range(len(words) - 1) if words[i] == option)
    return f"{record.pod.metadata.namespace}/{word}" if (word := next(found, "")) else ""
