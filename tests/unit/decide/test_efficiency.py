"""What was used of what was asked for, what is said of it, and what to ask for next time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.use import MemberUse
from fairlead.cli.views.efficiency import efficiency_facts, efficiency_text, plot_lines
from fairlead.decide.attempts.usage import JobAccount
from fairlead.decide.use.efficiency import Efficiency, efficiency
from fairlead.testing.builders import make_job

GIB = 1 << 30
HOUR = 3_600_000
JOB = make_job("train", count=2, cpu="8", memory="16Gi")
WHOLE = MemberUse(
    HOUR, cpu_milliseconds=2 * HOUR, memory_peak_bytes=3 * GIB, memory_mean_bytes=2 * GIB,
    read_bytes=5 * GIB, written_bytes=0, step_seconds=60, cpu=(1_000, 3_000, None),
    memory=(1_024, 3_072, None),
)  # fmt: skip


def found(**changes: Any) -> Efficiency:
    """Of two members, one as `WHOLE` and the other one changed."""
    return efficiency(JOB, {"worker-0": WHOLE, "worker-1": replace(WHOLE, **changes)})


def test_shares_are_of_what_was_reserved_and_of_the_largest_member() -> None:
    both = found(memory_peak_bytes=4 * GIB)
    assert both.cpu_share == 0.25
    assert (both.memory_share, both.memory_peak_task) == (0.25, "worker-1")
    assert efficiency_text(JOB, 1, both, note="") == [
        "train   unknown, attempt 1: 2 members, 1h",
        "CPU       25%: 4h of 16h that were reserved",
        "memory    25%: 4Gi of 16Gi (worker-1), 2Gi on average",
        "disk      read 10Gi, written 0",
        "next time --cpus 4 --memory 5Gi   (for each member: its largest use, and a fifth more)",
    ]


@pytest.mark.parametrize(
    "changes",
    [{"is_partial": True}, {"milliseconds": 59_999}, {"cpu": (), "memory_peak_bytes": None}],
)
def test_no_advice_follows_from_what_was_not_measured_or_was_short(changes: dict[str, Any]) -> None:
    assert found(**changes).advice == {}


def test_no_less_is_advised_than_was_asked_for() -> None:
    busy = found(cpu=(7_900,), memory_peak_bytes=15 * GIB)
    assert busy.advice == {}
    assert found(cpu=(7_900,)).advice == {"memory": 15 * GIB // 4}


def test_a_member_that_was_not_measured_is_said_to_be_missing() -> None:
    one = efficiency(JOB, {"worker-0": WHOLE})
    assert (one.members, one.measured, one.is_partial) == (2, 1, True)
    assert one.cpu_share == 0.25, "of the member whose use is known"
    lines = efficiency_text(JOB, 1, one, note="")
    assert lines[0] == "train   unknown, attempt 1: 2 members, of whom 1 were measured, 1h"
    assert lines[-1] == "note      some of it was not measured: it may have used more"


def test_what_is_not_known_is_unknown_and_no_zero() -> None:
    nothing = MemberUse(500)
    none = efficiency(JOB, {"worker-0": nothing, "worker-1": nothing})
    assert efficiency_text(JOB, 1, none, note="")[1:] == [
        "CPU       unknown", "memory    unknown", "disk      read unknown, written unknown",
    ]  # fmt: skip
    facts = efficiency_facts(JOB, 1, none, {}, account=JobAccount(0.0, None))
    assert not {"cpuMilliseconds", "memoryPeakBytes", "cpuShare", "readBytes"} & set(facts)
    assert efficiency_text(JOB, 1, efficiency(JOB, {}), note="why")[1:] == [
        "use       unknown: why"
    ]


def test_a_job_that_asked_for_nothing_has_no_share() -> None:
    job = make_job("train", cpu="0", memory="0")
    free = efficiency(job, {"worker-0": WHOLE})
    assert (free.cpu_share, free.memory_share, free.advice) == (None, None, {})
    line = efficiency_text(job, 1, free, note="")[1]
    assert line == "CPU       2h of processor time; none was asked for"


def test_the_plot_shows_each_step_against_the_highest_and_leaves_gaps() -> None:
    assert plot_lines("worker-0", WHOLE) == [
        "worker-0: a column is 1m, 3m in all",
        "CPU       |▃█ | 3.0 at most",
        "memory    |▃█ | 3Gi at most",
    ]
