"""What holds of the faults of a machine whatever its log says and whenever the agent is killed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.model.health.fault_book import FAULTS_MAX, FaultBook
from fairlead.model.health.faults import (
    Action,
    Fault,
    Identity,
    Look,
    Moment,
    Severity,
    observed,
    steady,
)
from fairlead.node.kernel_lines import KernelLines
from fairlead.node.reports.watch import Kept, MachineWatch
from fairlead.node.settings import GpuSettings
from fairlead.node.source import SignalSource
from fairlead.node.sources.kernel_log import XID, KernelLogMemory, judge
from fairlead.node.sources.kmsg import KmsgRecord
from fairlead.node.xids import XidTable

IDENTITIES = [
    Identity("a", "x"),
    Identity("a", "y"),
    Identity("b", "x"),
    Identity("a", "x", ("1",)),
]
STABLE = 10
Step = tuple[int, frozenset[int], bool]  # seconds since the last look, which are seen, could look
STEPS = st.lists(
    st.tuples(st.integers(1, 8), st.frozensets(st.integers(0, 3)), st.booleans()), max_size=40
)


def fold(book: FaultBook, at: float, seen: list[Identity], *, could_look: bool) -> None:
    moment = Moment(1000 + at, at)
    if not could_look:
        book.not_looked(["a", "b"])
        return
    verdict = steady(Severity.WARNING, Action.WATCH, STABLE)
    book.fold(Look(("a", "b"), moment, tuple(observed(i, verdict, "", moment) for i in seen)))


def clocks(fault: Fault) -> tuple[float, float, int, float | None]:
    return (fault.first_seen, fault.last_seen, fault.count, fault.quiet_since)


@given(STEPS)
def test_faults_never_share_a_clock(steps: list[Step]) -> None:
    """Each fault is as it would be if the others had never been."""
    together = FaultBook(boot_id="a")
    alone = [FaultBook(boot_id="a") for _ in IDENTITIES]
    at = 0
    for seconds, seen, could_look in steps:
        at += seconds
        fold(together, at, [IDENTITIES[i] for i in sorted(seen)], could_look=could_look)
        for i, book in enumerate(alone):
            fold(book, at, [IDENTITIES[i]] * (i in seen), could_look=could_look)
        assert {f.identity: clocks(f) for f in together.faults} == {
            f.identity: clocks(f) for book in alone for f in book.faults
        }


@given(STEPS)
def test_a_fault_is_open_while_it_was_seen_within_its_time_of_sight(steps: list[Step]) -> None:
    """Compared with a plain record of all looks, of which only the end counts."""
    book = FaultBook(boot_id="a")
    history: list[tuple[int, frozenset[int], bool]] = []
    at = 0
    for seconds, seen, could_look in steps:
        at += seconds
        history.append((at, seen, could_look))
        fold(book, at, [IDENTITIES[i] for i in sorted(seen)], could_look=could_look)
        wanted = {IDENTITIES[i] for i in range(len(IDENTITIES)) if _is_open(i, history)}
        assert {fault.identity for fault in book.faults} == wanted


def _is_open(number: int, history: list[tuple[int, frozenset[int], bool]]) -> bool:
    is_open, quiet_since = False, None
    for at, seen, could_look in history:
        if not could_look:
            quiet_since = None
        elif number in seen:
            is_open, quiet_since = True, None
        else:
            quiet_since = at if quiet_since is None else quiet_since
            is_open = is_open and at - quiet_since < STABLE
    return is_open


@given(st.integers(0, 3 * FAULTS_MAX), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_the_book_is_bounded_whatever_is_seen(count: int, worst: int) -> None:
    book = FaultBook(boot_id="a")
    moment = Moment(0, 0)
    mild, bad = (steady(each, Action.NONE, 9) for each in (Severity.INFO, Severity.CRITICAL))
    seen = [observed(Identity("a", f"{i}"), mild, "", moment) for i in range(count)]
    seen += [observed(Identity("a", f"bad-{i}"), bad, "", moment) for i in range(worst)]
    book.fold(Look(("a",), moment, tuple(seen)))
    assert len(book.faults) == min(FAULTS_MAX, count + worst)
    assert len(book.faults) + book.dropped == count + worst
    assert sum(fault.is_sick for fault in book.faults) == worst


LINES = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from([13, 31, 45, 48, 62, 79]), st.integers(0, 2)),
    max_size=40,
)


def kernel_log() -> SignalSource[tuple[KmsgRecord, ...], KernelLogMemory]:
    gpu = GpuSettings(stable_seconds=600)
    others = KernelLines(gpu.stable_seconds)
    judged = partial(judge, table=XidTable(gpu), others=others, burst_seconds=gpu.burst_seconds)
    return SignalSource(
        "kernel-log", (XID,), KernelLogMemory, tuple[KmsgRecord, ...], judged, 1, is_log=True
    )


@given(LINES, st.sets(st.integers(0, 40)), st.data())
@settings(deadline=None)
def test_a_restart_after_any_line_loses_and_doubles_nothing(
    lines: list[tuple[int, int, int]], restarts: set[int], data: st.DataObject
) -> None:
    """With kills between any two lines, and lines that are read again, it ends as without."""
    source, kept = kernel_log(), Kept()
    straight = MachineWatch([source], Kept(), boot_id="a", now=Moment(0, 0))
    broken = MachineWatch([source], kept, boot_id="a", now=Moment(0, 0))
    records: list[KmsgRecord] = []
    at = 0.0
    for number, (seconds, code, gpu) in enumerate(lines):
        at += seconds
        records.append(KmsgRecord(number, at, f"NVRM: Xid (PCI:0000:0{gpu}:00): {code}, x"))
        now = Moment(1000 + at, at)
        straight.read(source, (records[-1],), now)
        again = data.draw(st.integers(0, number), label="read again from")
        broken.read(source, tuple(records[again:]), now)
        if number in restarts:
            broken = MachineWatch([source], broken.kept(), boot_id="a", now=now)
    assert broken.faults == straight.faults
    assert broken.ended == straight.ended
    counts = Counter({f.identity: f.count for f in straight.faults})
    counts.update({e.fault.identity: 0 for e in straight.ended})
    for ended in straight.ended:
        counts[ended.fault.identity] += ended.fault.count
    assert sum(counts.values()) == len(lines), "every line is in the count of one fault"


def test_the_property_of_restarts_can_fail() -> None:
    """An agent that does not keep where it was counts lines again."""
    source = kernel_log()
    record = KmsgRecord(0, 1.0, "NVRM: Xid (PCI:0000:01:00): 48, x")
    now = Moment(1001, 1)
    watch = MachineWatch([source], Kept(), boot_id="a", now=now)
    watch.read(source, (record,), now)
    forgetful = dataclasses.replace(watch.kept(), memories={})
    again = MachineWatch([source], forgetful, boot_id="a", now=now)
    again.read(source, (record,), now)
    assert again.faults != watch.faults
