"""Rates that are sampled become the use of a member; GPUs are folded beside them."""

from __future__ import annotations

from fairlead.api.jobs.use import SERIES_MAX, USE_BYTES_MAX, MemberUse, decode_use, encode_use
from fairlead.decide.use.use_meter import GpuReading, UseMeter, UseReading
from fairlead.decide.use.use_samples import RateReading, SampledUse

GIB = 1 << 30


def sampled(*readings: tuple[float, int, int], known: MemberUse | None = None) -> SampledUse:
    """From instant 1,000 on, with readings of (seconds, thousandths of a CPU, GiB)."""
    out = SampledUse(1_000.0, known, step_seconds=60)
    for seconds, milli, gib in readings:
        out.take(RateReading(1_000.0 + seconds, 15.0, milli, gib * GIB))
    return out


def test_each_rate_stands_for_the_time_since_the_one_before() -> None:
    use = sampled((60, 2_000, 1), (120, 4_000, 3)).use(1_130.0)
    assert use.cpu_milliseconds == 60 * 2_000 + 60 * 4_000
    assert (use.memory_peak_bytes, use.memory_mean_bytes) == (3 * GIB, 2 * GIB)
    assert (use.step_seconds, use.cpu, use.milliseconds) == (60, (None, 2_000, 4_000), 130_000)
    assert use.is_partial, "what comes after the last sample, and between windows, is not known"


def test_a_rate_that_was_read_before_counts_once() -> None:
    once = sampled((60, 2_000, 1)).use(1_100.0)
    assert sampled((60, 2_000, 1), (60, 2_000, 1), (50, 9_000, 9)).use(1_100.0) == once


def test_of_a_time_without_samples_only_the_window_counts() -> None:
    use = sampled((60, 2_000, 1), (3_660, 1_000, 1)).use(4_700.0)
    assert use.cpu_milliseconds == 60 * 2_000 + 15 * 1_000


def test_nothing_is_known_of_a_member_that_was_never_sampled() -> None:
    assert sampled().is_empty
    assert sampled().use(1_030.0).cpu_milliseconds is None


def test_the_next_leader_goes_on_from_what_was_kept() -> None:
    before = sampled((60, 2_000, 1), (120, 2_000, 4))
    before.take_gpus(1_120.0, GpuReading(2, 100, GIB, 800_000, 500))
    kept = decode_use(encode_use(before.use(1_120.0)))
    after = sampled((180, 1_000, 1), known=kept)
    after.take_gpus(1_180.0, GpuReading(2, 200, 3 * GIB, 1_200_000, 1_000))
    use = after.use(1_180.0)
    assert use.cpu_milliseconds == 2 * 60 * 2_000 + 60 * 1_000
    assert use.memory_peak_bytes == 4 * GIB
    assert (use.gpu_milliseconds, use.gpu_busy_milliseconds) == (360_000, 120_000 + 120_000)
    assert (use.gpu_memory_peak_bytes, use.gpu_power_milliwatts) == (3 * GIB, 1_400_000 // 3)
    assert use.gpu_occupancy_permille == (250 * 240 + 500 * 120) // 360


def test_the_use_of_gpus_is_the_mean_of_one_and_the_peak_of_a_member() -> None:
    meter = UseMeter(0.0)
    meter.look(10.0, UseReading(1_000, GIB))
    meter.look_at_gpus(10.0, GpuReading(4, 200, 8 * GIB))
    meter.look_at_gpus(20.0, GpuReading(4, 0, 2 * GIB))
    meter.look_at_gpus(30.0, GpuReading(4))
    use = meter.use(30.0)
    assert (use.gpu_milliseconds, use.gpu_busy_milliseconds) == (80_000, 20_000)
    assert (use.gpu_memory_peak_bytes, use.gpu_power_milliwatts) == (8 * GIB, None)
    assert use.gpu == (None, 50, 0, None)[: len(use.gpu)]


def test_gpus_that_were_not_looked_at_for_long_do_not_count_for_that_time() -> None:
    meter = UseMeter(0.0)
    meter.look_at_gpus(60.0, GpuReading(1, 100))
    meter.look_at_gpus(3_660.0, GpuReading(1, 100))
    use = meter.use(3_660.0)
    assert (use.gpu_milliseconds, use.is_partial) == (60_000, True)


def test_a_member_with_gpus_stays_within_its_bound() -> None:
    out = SampledUse(0.0, step_seconds=60)
    for at in range(60, 3 * 86_400, 60):
        out.take(RateReading(float(at), 15.0, 96_000 + at % 1_000, 800 * GIB + at))
        out.take_gpus(float(at), GpuReading(8, 800, 640 * GIB, 5_600_000, 8_000))
    use = out.use(3 * 86_400.0)
    text = encode_use(use)
    assert len(text) <= USE_BYTES_MAX
    assert decode_use(text) == use
    assert SERIES_MAX // 2 <= len(use.gpu) <= SERIES_MAX


def test_what_the_node_said_is_joined_by_gpus_that_others_measured() -> None:
    node = MemberUse(10_000, cpu_milliseconds=5_000, step_seconds=10, cpu=(500,))
    gpus = MemberUse(9_000, step_seconds=60, gpu=(50,), gpu_milliseconds=9_000,
                     gpu_busy_milliseconds=4_500)  # fmt: skip
    joined = node.with_gpus_of(gpus)
    assert (joined.cpu_milliseconds, joined.gpu_busy_milliseconds, joined.gpu) == (5_000, 4_500, ())
    assert joined.with_gpus_of(MemberUse(1, gpu_milliseconds=1)) == joined
