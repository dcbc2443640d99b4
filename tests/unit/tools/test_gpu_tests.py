"""`make test-gpu`: what it expects of each step, with findings that a test puts in place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tools.gpu_tests.__main__ import Bench, in_process, main, slowed_product
from tools.gpu_tests.check import AS_EXPECTED, NO_GPU, PEAK_SHARE_MIN, PEAKS, UNEXPECTED

from fairlead.api.cluster.machine_result import (
    Figure,
    MachineFinding,
    MachineOutcome,
    SuiteResult,
)
from fairlead.api.cluster.node_suites import suites

ROOT = Path(__file__).parents[3]
FAILED, PASSED, SKIPPED = MachineOutcome.FAILED, MachineOutcome.PASSED, MachineOutcome.SKIPPED
GOOD_RATES = {f"{short}FlopsPerSecond": rate for short, rate in (
    ("bf16", 600e12), ("fp16", 600e12), ("fp32", 45e12),
)}  # fmt: skip


def products(share: float = 1.0, outcome: MachineOutcome = PASSED) -> MachineFinding:
    figures = tuple(Figure(name, rate * share) for name, rate in GOOD_RATES.items())
    return MachineFinding("gpu-matmul", outcome, figures=figures)


def suite(*changed: MachineFinding, device: str = "NVIDIA H100 80GB HBM3") -> SuiteResult:
    """Return what the suite finds on one good GPU, with some findings in place of its own."""
    copies = MachineFinding("gpu-copies", PASSED, figures=(
        Figure("toDeviceBytesPerSecond", 55e9, 54e9), Figure("fromDeviceBytesPerSecond", 53e9),
    ))  # fmt: skip
    alone = MachineFinding("gpu-peers", SKIPPED, "no two GPUs can reach each other")
    one = MachineFinding("gpu-all-reduce", SKIPPED, "there is one GPU alone")
    own = {each.test: each for each in (products(), copies, alone, one, *changed)}
    names = [name for name in suites()["quick"].tests if name.startswith("gpu-")]
    found = tuple(own.get(name, MachineFinding(name, PASSED)) for name in names)
    return SuiteResult("quick", found, devices=(device,) if device else ())


def alone(step: Callable[[], MachineFinding], seconds_max: float) -> MachineFinding:
    """Answer planted steps as a GPU test that works."""
    assert 0 < seconds_max <= 120
    test = "gpu-memory" if "memory" in step.__name__ else "gpu-matmul"
    return products(0.5) if step is slowed_product else MachineFinding(test, FAILED, "one bit")


def test_a_good_gpu_and_tests_that_find_what_was_planted_are_as_expected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(Bench(suite, alone)) == AS_EXPECTED
    said = capsys.readouterr().out
    assert "9 steps, all as expected" in said
    floor = PEAK_SHARE_MIN * PEAKS["H100"]["bf16FlopsPerSecond"]
    assert f"threshold {floor:.4g}" in said
    assert "threshold 4.8e+10, worst 5.4e+10" in said, "the floor of the suites' table"
    assert "bf16FlopsPerSecond 3e+14 is less than 5.4e+14" in said, "nine tenths of what it had"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (products(0.3), "bf16FlopsPerSecond 1.8e+14 is less than"),
        (products(outcome=FAILED), "gpu-matmul: Failed (wanted Passed)"),
        (MachineFinding("gpu-copies", PASSED, figures=(Figure("toDeviceBytesPerSecond", 12e9),)),
         "toDeviceBytesPerSecond 1.2e+10 is less than 4.8e+10"),
        (MachineFinding("gpu-clocks", FAILED, "GPU 0 is slowed down: heat"), "is slowed down"),
        (MachineFinding("gpu-memory", MachineOutcome.ERROR, "in use"), "gpu-memory: Error"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_slow_or_wrong_is_not_as_expected(
    found: MachineFinding, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(Bench(lambda: suite(found), alone)) == UNEXPECTED
    text = capsys.readouterr().out
    assert said in text
    assert f"not as expected: {found.test}" in text


def test_a_test_that_misses_what_was_planted_is_not_as_expected() -> None:
    def blind(step: Callable[[], MachineFinding], seconds_max: float) -> MachineFinding:
        found = alone(step, seconds_max)
        return replace(found, outcome=PASSED) if found.outcome is FAILED else products(0.99)

    assert main(Bench(suite, blind)) == UNEXPECTED


def test_a_gpu_of_unknown_architecture_has_no_floor() -> None:
    assert main(Bench(lambda: suite(products(0.1), device="another"), slower)) == AS_EXPECTED
    assert main(Bench(lambda: suite(products(0.1), device=""), slower)) == AS_EXPECTED


def slower(step: Callable[[], MachineFinding], seconds_max: float) -> MachineFinding:
    return products(0.01) if step is slowed_product else alone(step, seconds_max)


def test_a_step_that_dies_is_an_error() -> None:
    found = in_process(die, 60.0)
    assert (found.outcome, found.message) == (MachineOutcome.ERROR, "it ended without a result")


def die() -> MachineFinding:
    raise SystemExit(3)


def test_without_a_gpu_it_is_said_and_the_exit_code_is_its_own() -> None:
    none = MachineFinding("gpu-matmul", SKIPPED, "torch finds no GPU")
    assert main(Bench(lambda: suite(none), alone)) == NO_GPU
    run = subprocess.run([sys.executable, "-m", "tools.gpu_tests"], cwd=ROOT, check=False,
                         capture_output=True, text=True)  # fmt: skip
    if run.returncode == NO_GPU:  # as on most machines
        assert run.stdout.startswith("no GPU to test: torch ")
        assert run.stderr == ""
    else:
        assert "steps, " in run.stdout
