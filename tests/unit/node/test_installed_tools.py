"""Tools of NVIDIA's: what is read of their output, and what it says of the machine.

The documents have the form of the tools' own sources and tests: dcgmi 4 and 3 (NVIDIA/DCGM,
testing/ and nvvs/tests/JsonResultTests.cpp), nvbandwidth (json_output.cpp), nccl-tests (README).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.cluster.machine_result import Figure, MachineFinding, MachineOutcome
from fairlead.node.machine_tests.installed import dcgm, nccl, nvbandwidth
from fairlead.node.machine_tests.installed.tool import InstalledTool
from fairlead.node.machine_tests.program import measured

PASSED, FAILED = MachineOutcome.PASSED, MachineOutcome.FAILED
ERROR, SKIPPED = MachineOutcome.ERROR, MachineOutcome.SKIPPED
IDLE = "0, Disabled, 4\n1, Disabled, 4\n"


def installed(
    directory: Path, tool: str, said: str, *, code: int = 0, gpus: str = IDLE
) -> InstalledTool:
    """Install programs that say this, for real."""
    for name, text, status in ((tool, said, code), ("nvidia-smi", gpus, 0)):
        (directory / f"{name}.out").write_text(text)
        program = directory / name
        program.write_text(
            f"#!/bin/sh\necho \"$@\" >> '{directory}/{name}.args'\n"
            f"cat '{directory}/{name}.out'\nexit {status}\n"
        )
        program.chmod(0o755)
    return InstalledTool(tool, places=str(directory))


def found(measure: Callable[[], Iterable[Figure]]) -> MachineFinding:
    return measured("tool", measure)


# dcgmi


def result(gpu: int, status: str = "Pass", **warning: Any) -> dict[str, Any]:
    out: dict[str, Any] = {
        "entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status
    }  # fmt: skip
    return out | ({"warnings": [warning]} if warning else {})


def diagnosis(*results: dict[str, Any], category: str = "Hardware", test: str = "memory") -> str:
    tests = [{"name": test, "results": list(results), "test_summary": {"status": "Pass"}}]
    return json.dumps({
        "DCGM Diagnostic": {"test_categories": [{"category": category, "tests": tests}]},
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"version": "4.2.3", "Driver Version Detected": "580.82.09"},
    })  # fmt: skip


PERSISTENCE = {
    "error_category": 8, "error_id": 29, "error_severity": 5,
    "warning": "Persistence Mode: Persistence mode for GPU 0 is disabled.",
}  # fmt: skip
ISOLATE = {"error_severity": 2, "error_id": 12, "warning": "Uncorrectable ECC memory error"}
#: DCGM 3: one list of GPUs, warnings as texts, nulls between tests, and a line before.
OLD = """WARNING: a line of the library
{"DCGM GPU Diagnostic": {"test_categories": [
  {"category": "Deployment", "tests": [
    {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}, null]},
  {"category": "Hardware", "tests": [
    {"name": "GPU Memory", "results": [
      {"gpu_ids": "0", "status": "PASS"}, {"gpu_ids": "1", "status": "STATUS" MORE}]}]}],
  "version": "3.3.1"}}
"""


@pytest.mark.parametrize(
    ("said", "outcome", "message"),
    [
        (diagnosis(result(0), result(1)), PASSED, ""),
        (diagnosis(result(0), result(1, "Fail", **ISOLATE)), FAILED,
         "GPU 1: memory: Uncorrectable ECC memory error"),
        (diagnosis(result(0, "Fail", **PERSISTENCE), result(1), category="Deployment",
                   test="software"),
         ERROR, f"RuntimeError: dcgmi: GPU 0: software: {PERSISTENCE['warning']}"),
        (diagnosis(result(0, "Fail", **PERSISTENCE), result(1, "Fail", **ISOLATE)), FAILED,
         "GPU 1: memory: Uncorrectable ECC memory error"),
        (diagnosis(result(0, "Fail", error_severity=1, warning="watch it"), result(1)), PASSED, ""),
        (diagnosis(result(0, "Fail", warning="AER error"), result(1)), FAILED,
         "GPU 0: memory: AER error"),
        (diagnosis(result(0, "Fail", warning="no permission"), result(1), category="Deployment"),
         ERROR, "RuntimeError: dcgmi: GPU 0: memory: no permission"),
        (diagnosis(result(0, "Skip"), result(1, "Skip")), SKIPPED, "dcgmi skipped every test"),
        (diagnosis(result(0)), ERROR,
         "RuntimeError: dcgmi: the diagnosis is of 1 GPUs, and 2 are here"),
        (diagnosis(), ERROR, "RuntimeError: dcgmi: the diagnosis is of 0 GPUs, and 2 are here"),
        ('{"DCGM Diagnostic": {"runtime_error": "Another diagnostic is running"}}', ERROR,
         "RuntimeError: dcgmi: Another diagnostic is running"),
        (OLD.replace("STATUS", "PASS").replace("MORE", ""), PASSED, ""),
        (OLD.replace("STATUS", "FAIL").replace("MORE", ', "warnings": "ECC error"'), FAILED,
         "GPU 1: GPU Memory: ECC error"),
        ("Error: unable to establish a connection to the specified host: localhost", ERROR,
         "RuntimeError: dcgmi says what is no diagnosis: Error: unable to establish a connection"),
        ("", ERROR, "RuntimeError: dcgmi says what is no diagnosis: nothing"),
        ("[" * 50_000 + "{}", ERROR, "RuntimeError: dcgmi says what is no diagnosis"),
    ],
)  # fmt: skip
def test_a_diagnosis_fails_a_gpu_for_its_hardware_and_nothing_else(
    said: str, outcome: MachineOutcome, message: str, tmp_path: Path
) -> None:
    tool = installed(tmp_path, "dcgmi", said, code=226)
    ended = found(lambda: dcgm.measure(dcgm.DcgmOptions(level=3, host="h:5555"), tool))
    assert (ended.outcome, ended.message[: len(message) or 200]) == (outcome, message)
    assert (tmp_path / "dcgmi.args").read_text() == "diag --host h:5555 -r 3 -j\n"


# nvbandwidth


def bandwidths(*cases: dict[str, Any], **more: Any) -> str:
    own = {"CUDA Runtime Version": 12040, "Driver Version": "550.54.15", "version": "0.8"}
    return json.dumps({"nvbandwidth": {**own, "testcases": list(cases), **more}})


def case(name: str, *rows: list[str], status: str = "Passed", **more: Any) -> dict[str, Any]:
    return {"name": name, "status": status, "bandwidth_matrix": list(rows), "sum": 1.5, **more}


H2D, P2P = "host_to_device_memcpy_ce", "device_to_device_memcpy_read_ce"


def test_the_worst_pair_of_a_run_counts_in_bytes_per_second(tmp_path: Path) -> None:
    said = bandwidths(
        case(H2D, ["55.6", "21.3"]), case(P2P, ["N/A", "276.07"], ["271.5", "N/A"]),
        {"name": "device_to_host_memcpy_ce", "status": "Waived"}, case("another", ["1.0"]),
    )  # fmt: skip
    tool = installed(tmp_path, "nvbandwidth", said)
    ended = found(lambda: nvbandwidth.measure(nvbandwidth.BandwidthOptions(), tool))
    assert (ended.outcome, ended.message) == (PASSED, "")
    assert {each.name: each.value for each in ended.figures} == {
        "toDeviceBytesPerSecond": 21.3e9, "peerBytesPerSecond": 271.5e9
    }  # fmt: skip
    assert len((tmp_path / "nvbandwidth.args").read_text().splitlines()) == 3, "the best of three"


@pytest.mark.parametrize(
    ("said", "outcome", "message"),
    [
        (bandwidths(case(H2D, status="Error", error="CUDA_ERROR_NOT_READY")), ERROR,
         f"RuntimeError: nvbandwidth: {H2D}: CUDA_ERROR_NOT_READY"),
        (bandwidths(error="no CUDA-capable device"), ERROR,
         "RuntimeError: nvbandwidth: no CUDA-capable device"),
        (bandwidths(case(H2D, ["fast"])), ERROR,
         f"RuntimeError: nvbandwidth: {H2D}: 'fast' is no rate"),
        (bandwidths({"name": P2P, "status": "Waived"}), SKIPPED,
         "nvbandwidth runs none of the copies here"),
        ("Segmentation fault", ERROR,
         "RuntimeError: nvbandwidth says what is no result: Segmentation fault"),
        ('{"nvbandwidth": {"testcases": 3}}', ERROR, "RuntimeError: nvbandwidth says what is no"),
    ],
)  # fmt: skip
def test_what_nvbandwidth_cannot_measure_says_nothing_of_the_machine(
    said: str, outcome: MachineOutcome, message: str, tmp_path: Path
) -> None:
    tool = installed(tmp_path, "nvbandwidth", said)
    ended = found(lambda: nvbandwidth.measure(nvbandwidth.BandwidthOptions(), tool))
    assert (ended.outcome, ended.message[: len(message)]) == (outcome, message)


# nccl-tests

REDUCED = """# nThread 1 nGpus 2 minBytes 17179869184 maxBytes 17179869184 step: 1048576(bytes)
#
# Using devices
#  Rank  0 Group  0 Pid 855 on n1 device  0 [0xa4] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 855 on n1 device  1 [0xa9] NVIDIA H100 80GB HBM3
#
#                                                     out-of-place             in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong
 17179869184    4294967296     float     sum      -1    65330  262.97  460.20      0
# Out of bounds values : {wrong}
# Avg bus bandwidth    : 460.201
#
"""


@pytest.mark.parametrize(
    ("said", "outcome", "message"),
    [
        (REDUCED.format(wrong="0 OK"), PASSED, ""),
        (REDUCED.format(wrong="12 FAILED"), FAILED, "all-reduce over all GPUs: 12 sums are wrong"),
        ("n1: Test NCCL failure common.cu:1005 'unhandled cuda error'\n .. n1 pid 9: Test failure",
         ERROR, "RuntimeError: all_reduce_perf: n1: Test NCCL failure common.cu:1005"),
        (REDUCED.format(wrong="0 OK").split("# Avg")[0], ERROR,
         "RuntimeError: all_reduce_perf says what is no result"),
        ("", ERROR, "RuntimeError: all_reduce_perf says what is no result: nothing"),
    ],
)  # fmt: skip
def test_wrong_sums_fail_the_machine_and_what_did_not_run_does_not(
    said: str, outcome: MachineOutcome, message: str, tmp_path: Path
) -> None:
    tool = installed(tmp_path, "all_reduce_perf", said)
    ended = found(lambda: nccl.measure(nccl.NcclOptions(), tool))
    assert (ended.outcome, ended.message[: len(message) or 200]) == (outcome, message)
    if outcome is PASSED:
        assert [(each.name, each.value) for each in ended.figures] == [
            ("busBytesPerSecond", 4.60201e11)
        ]
    assert (tmp_path / "all_reduce_perf.args").read_text().splitlines()[0] == (
        "-b 16G -e 16G -g 2 -n 5 -c 1"
    )


def test_a_variable_of_a_user_is_an_error_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = installed(tmp_path, "all_reduce_perf", REDUCED.format(wrong="0 OK"))
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    ended = found(lambda: nccl.measure(nccl.NcclOptions(), tool))
    assert (ended.outcome, "NCCL_P2P_DISABLE is set" in ended.message) == (ERROR, True)


# Where they are, and the GPUs


@pytest.mark.parametrize(
    ("gpus", "outcome", "message"),
    [
        ("0, Enabled, 4\n1, Disabled, 4\n", SKIPPED, "GPUs are cut into instances (MIG)"),
        ("0, Disabled, 4\n1, [N/A], 40960\n", ERROR,
         "RuntimeError: GPU 1 is in use: 40960 MiB of its memory"),
        ("", SKIPPED, "nvidia-smi lists no GPU"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver\n", ERROR,
         "RuntimeError: nvidia-smi says what is no list of GPUs"),
        ("0, [N/A], 4\n", SKIPPED, "there is one GPU alone"),
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_tested_say_nothing_of_the_machine(
    gpus: str, outcome: MachineOutcome, message: str, tmp_path: Path
) -> None:
    tool = installed(tmp_path, "all_reduce_perf", REDUCED.format(wrong="0 OK"), gpus=gpus)
    ended = found(lambda: nccl.measure(nccl.NcclOptions(), tool))
    assert (ended.outcome, ended.message[: len(message)]) == (outcome, message)


def test_a_tool_that_is_not_installed_is_skipped_and_one_that_hangs_an_error(
    tmp_path: Path,
) -> None:
    empty = InstalledTool("dcgmi", places=str(tmp_path))
    ended = found(lambda: dcgm.measure(dcgm.DcgmOptions(), empty))
    assert (ended.outcome, ended.message) == (SKIPPED, "dcgmi is not installed")
    tool = installed(tmp_path, "dcgmi", "")
    (tmp_path / "dcgmi").write_text("#!/bin/sh\nexec sleep 60\n")
    ended = found(lambda: dcgm.measure(dcgm.DcgmOptions(seconds=0.2), tool))
    assert (ended.outcome, ended.message) == (ERROR, "RuntimeError: dcgmi: killed after 0.2 s")


def test_a_tool_runs_as_a_program_of_the_suites() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fairlead.node.machine_tests", "gpu-dcgm", '{"level": 1}'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    outcome = json.loads(ran.stdout)["outcome"]
    assert outcome in ("Skipped", "Error", "Passed"), "no GPU is condemned where none is"
