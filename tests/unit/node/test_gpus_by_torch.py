"""Tests of GPUs by torch, with CPUs in the place of GPUs; torch is in no lock file of ours.

Run them with a Python that has it: `PYTHONPATH=src:. PYTHON -m pytest tests/unit/node/FILE`.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import suppress
from typing import Any

import pytest

from fairlead.api.cluster.machine_result import MachineFinding, MachineOutcome
from fairlead.node.machine_tests import gpu, gpu_all_reduce, gpu_products
from fairlead.node.machine_tests.program import measured

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def sums(*, spoiled: int = -1, seconds: float = 60.0) -> MachineFinding:
    options = gpu_all_reduce.AllReduceOptions(bytes=1 << 20, seconds=seconds)
    return measured("gpu-all-reduce", lambda: gpu_all_reduce.reduce_over(
        "gloo", ["cpu", "cpu", "cpu"], options, spoiled=spoiled
    ))  # fmt: skip


def test_sums_over_all_devices_are_right_and_one_that_is_wrong_is_found() -> None:
    good = sums()
    assert (good.outcome, good.message) == (MachineOutcome.PASSED, "")
    assert good.figures[0].name == "busBytesPerSecond"
    assert good.figures[0].value > 0
    bad = sums(spoiled=1)
    assert (bad.outcome, bad.message) == (
        MachineOutcome.FAILED, "a sum over 3 GPUs is wrong on cpu",
    )  # fmt: skip


def test_processes_that_do_not_meet_in_time_condemn_nothing() -> None:
    late = sums(seconds=0.01)
    assert (late.outcome, late.message) == (
        MachineOutcome.ERROR, "RuntimeError: the process of cpu did not end in time",
    )  # fmt: skip


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put two CPUs in the place of GPUs."""
    torch: Any = importlib.import_module("torch")

    def find() -> tuple[Any, list[int]]:
        return torch, [0, 1]

    real = {name: getattr(torch, name) for name in ("empty", "arange", "ones")}

    def on_cpu(name: str) -> Any:
        def make(*size: Any, **options: Any) -> Any:
            return real[name](*size, **{**options, "device": "cpu"})

        return make

    class Tensors:
        """`to` of a tensor, without its device."""

        @staticmethod
        def to(self: Any, *given: Any, **options: Any) -> Any:
            kept = [each for each in given if not isinstance(each, str)]
            return TO(self, *kept, **options) if kept else self

    TO = torch.Tensor.to  # noqa: N806 # the one of torch
    for name in real:
        monkeypatch.setattr(torch, name, on_cpu(name))
    monkeypatch.setattr(torch.Tensor, "to", Tensors.to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for module in (gpu, gpu_products):
        monkeypatch.setattr(module, "find_gpus", find)
    return torch


def test_products_in_each_type_are_right_and_a_flipped_bit_is_found(cpus: Any) -> None:
    options = gpu_products.MatmulOptions(seconds=0.2, size=64)
    good = measured("gpu-matmul", lambda: gpu_products.matmul(options))
    assert (good.outcome, good.message) == (MachineOutcome.PASSED, "")
    names = {each.name.removesuffix("FlopsPerSecond") for each in good.figures}
    assert {"bf16", "fp16", "fp32", "fp64"} <= names
    assert ("fp8" in names) is hasattr(cpus, "_scaled_mm")

    def flip(product: Any) -> None:
        with suppress(RuntimeError):
            product.view(-1)[17] += 1

    bad = measured("gpu-matmul", lambda: gpu_products.matmul(options, flip))
    assert bad.outcome is MachineOutcome.FAILED
    assert bad.message.endswith("the same product in bf16 came out in two ways")


def test_copies_are_measured_from_each_side_and_a_changed_one_is_found(
    cpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = gpu.CopyOptions(bytes=1 << 20)
    monkeypatch.setattr(gpu, "sides", lambda *_: [{0}, {0}])
    good = measured("gpu-copies", lambda: gpu.copies(options))
    assert (good.outcome, [each.name for each in good.figures]) == (MachineOutcome.PASSED, [
        "toDeviceBytesPerSecond", "farToDeviceBytesPerSecond",
        "fromDeviceBytesPerSecond", "farFromDeviceBytesPerSecond",
    ])  # fmt: skip
    monkeypatch.setattr(gpu, "sides", lambda *_: [{0}])
    assert len(tuple(gpu.copies(options))) == 2
    monkeypatch.setattr(cpus, "equal", lambda *_: False)
    bad = measured("gpu-copies", lambda: gpu.copies(options))
    assert bad.message == "GPU 0: a copy to it and back has other data"
