"""What is read of a member's processes, folded into totals, a peak, a mean and short series."""

from __future__ import annotations

import random

import pytest

from fairlead.api.jobs.use import SERIES_MAX, USE_BYTES_MAX, MemberUse, decode_use, encode_use
from fairlead.decide.use.use_meter import UseMeter, UseReading

MIB = 1 << 20


def meter(*looks: tuple[float, int, int]) -> UseMeter:
    """A meter from instant 1,000 on, with looks of (seconds, CPU seconds so far, MiB)."""
    out = UseMeter(1_000.0)
    for seconds, cpu, memory in looks:
        out.look(1_000.0 + seconds, UseReading(cpu * 1000, memory * MIB))
    return out


def test_nothing_that_was_not_looked_at_is_shown_as_zero() -> None:
    use = UseMeter(0.0).use(30.0)
    assert use == MemberUse(30_000)
    assert (use.cpu_milliseconds, use.memory_peak_bytes, use.memory_mean_bytes) == (None,) * 3


def test_peak_is_the_largest_look_and_the_mean_is_weighted_with_time() -> None:
    use = meter((30, 15, 100), (40, 25, 500)).use(1_040.0)
    assert use.cpu_milliseconds == 25_000
    assert use.memory_peak_bytes == 500 * MIB
    assert use.memory_mean_bytes == 200 * MIB


def test_a_step_of_the_series_shows_its_mean_processor_time_and_its_largest_memory() -> None:
    use = meter((5, 5, 10), (9, 7, 30), (15, 8, 20)).use(1_015.0)
    assert (use.step_seconds, use.cpu, use.memory) == (10, (777, 166), (30, 20))


def test_a_time_without_looks_is_partial_and_leaves_a_gap_in_the_series() -> None:
    use = meter((5, 1, 10), (305, 300, 20)).use(1_305.0)
    assert use.is_partial
    assert use.cpu[1:31] == (None,) * 30
    assert use.memory[1:30] == (None,) * 29
    assert use.cpu_milliseconds == 300_000, "the kernel has counted meanwhile"


def test_a_meter_goes_on_from_what_an_earlier_process_knew() -> None:
    before = meter((5, 5, 10), (15, 15, 40)).use(1_015.0)
    after = UseMeter(1_000.0, before)
    after.look(1_020.0, UseReading(20_000, 30 * MIB))
    use = after.use(1_020.0)
    assert use.cpu_milliseconds == 20_000
    assert use.memory_peak_bytes == 40 * MIB
    assert use.memory[:2] == (10, 40)
    assert not use.is_partial


def test_the_counters_of_the_end_are_taken_where_all_has_ended() -> None:
    use = meter((5, 5, 10)).use(1_006.0, UseReading(6_100, 0, 4_096, 0))
    assert (use.cpu_milliseconds, use.read_bytes, use.written_bytes) == (6_100, 4_096, 0)
    assert use.memory_peak_bytes == 10 * MIB


@pytest.mark.parametrize(
    ("seconds", "least_steps"), [(60, 7), (3_600, SERIES_MAX // 2), (90 * 86_400, SERIES_MAX // 2)]
)
def test_the_use_of_the_largest_member_is_bounded_however_long_it_runs(
    seconds: int, least_steps: int
) -> None:
    rng, out = random.Random(seconds), UseMeter(0.0)
    cpu, step = 0, max(seconds // 2_000, 1)
    for at in range(step, seconds + 1, step):
        cpu += rng.randrange(step * 1_024_000)
        out.look(float(at), UseReading(cpu, rng.randrange(64 << 40)))
    use = out.use(float(seconds), UseReading(cpu, 0, 1 << 52, 1 << 52))
    text = encode_use(use)
    assert len(text) <= USE_BYTES_MAX
    assert decode_use(text) == use
    assert least_steps <= len(use.cpu) <= SERIES_MAX


def test_merged_steps_keep_the_processor_time_of_the_series() -> None:
    out = UseMeter(0.0)
    for at in range(10, 10_001, 10):
        out.look(float(at), UseReading(at * 500, MIB))
    use = out.use(10_000.0)
    assert use.step_seconds == 320
    assert {each for each in use.cpu if each is not None} == {500}


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", "{}", '{"milliseconds":-1}', '{"milliseconds":1,"cpu":["a"]}',
     '{"milliseconds":1,"memoryPeakBytes":' + "9" * 200 + "}", '{"milliseconds":1,"cpu":[' +
     ",".join("1" * 61) + "]}", '{"x":' + "[" * 1_500, '{"milliseconds":1,"x":"' + "y" * 3_000],
)  # fmt: skip
def test_a_text_that_no_node_writes_is_no_use(text: str | None) -> None:
    assert decode_use(text) is None
