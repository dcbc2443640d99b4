"""The PyTorch example under a real torchrun, where an interpreter of this machine has torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch"
INTERPRETERS = (sys.executable, "/usr/bin/python3")
ASKS = (
    "import torch, torch.distributed as d; assert d.is_gloo_available(); print(torch.__version__)"
)


def version(interpreter: str) -> str:
    """Return the version of the interpreter's torch; "" when it has none that can be used."""
    if not Path(interpreter).exists():
        return ""
    done = subprocess.run([interpreter, "-c", ASKS], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    own = Shell(tmp_path)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "torch").symlink_to(EXAMPLE)
    own.up("--nodes", "0", "--listen", "127.0.0.1:0")
    yield own
    own.down()


def trainers(uid: str) -> list[int]:
    """Return the processes that torchrun has started for a job."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"FAIRLEAD_JOB_UID={uid}".encode() in environment and b"distributed.run" not in command:
            found.append(int(process.name))
    return sorted(found)


def test_torchrun_starts_two_processes_on_each_member_and_goes_on_from_the_checkpoint(
    shell: Shell,
) -> None:
    python = next((each for each in INTERPRETERS if version(each)), "")
    if not python:
        pytest.skip("no interpreter of this machine has torch (on Debian: python3-torch)")
    shell.environment["PYTHON"] = python
    if version(python).startswith("1."):  # its torchrun does not read its own defaults on 3.11
        shell.environment |= {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1"}
    passed = [f"--env={name}" for name in ("PYTHON", "PET_REDIRECTS", "PET_TEE")]
    shell.run("submit", "examples/torch/train.sh", "--name", "torch", "--retries", "1", *passed,
              "--", "--steps", "200", "--step-seconds", "0.05")  # fmt: skip

    def said(text: str) -> bool:
        return text in shell.run("logs", "torch", code=None).out

    eventually(lambda: said("step 50"), True)
    members = trainers(shell.job("torch")["metadata"]["uid"])
    assert len(members) >= 4, "two members, two processes on each"
    os.kill(members[-1], signal.SIGKILL)
    eventually(lambda: shell.state("torch"), "Succeeded")
    assert shell.job("torch")["status"]["attempt"] == 2
    assert said("rank 3: resumed from the checkpoint of step")
    assert said("on unseen samples after 200 steps")
