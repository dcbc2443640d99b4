"""Where a tool is, what its GPUs are, and one run of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairlead.node.running import program_run
from fairlead.node.running.host import Absent

#: Where images put them, beside the usual places (NVIDIA/nccl-tests and NVIDIA/nvbandwidth, builds
#: in their own directories; Azure/azurehpc-health-checks).
PLACES = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/nccl-tests/build:"
    "/opt/nccl_tests/build:/opt/nvbandwidth:/opt/nvidia/nvbandwidth"
)
OUTPUT_BYTES_MAX = 1 << 20
#: Memory of a GPU that may be in use before a test: contexts of the driver and of monitors.
_USED_MEBIBYTES_MAX = 1024
_ASK_SECONDS = 30.0
#: Of the environment, what a program has beside its own: a user's NCCL_* must fail no node.
INHERITED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
_QUERY = ("--query-gpu=index,mig.mode.current,memory.used", "--format=csv,noheader,nounits")

#: Runs a program for so long, and returns its exit code and output.
Runner = Callable[[Path, float, tuple[str, ...]], program_run.ProgramOutcome]


def run(path: Path, seconds: float, arguments: tuple[str, ...]) -> program_run.ProgramOutcome:
    """Run a program, and keep all that it says."""
    return program_run.run(
        path, seconds, *arguments, inherit=INHERITED, output_bytes_max=OUTPUT_BYTES_MAX
    )


@dataclass(frozen=True, slots=True)
class InstalledTool:
    """A program that is installed. `places`: directories, with colons between them."""

    name: str
    places: str = PLACES
    runner: Runner = run

    def said(self, seconds: float, *arguments: str) -> program_run.ProgramOutcome:
        """Return how a run ended; Absent where it is not installed, RuntimeError for one that did
        not end by itself.
        """
        ended = self.runner(self._path(self.name), seconds, arguments)
        if ended.code is None:
            raise RuntimeError(f"{self.name}: {ended.why}")
        return ended

    def gpus(self) -> int:
        """Return how many GPUs can be tested; Absent for none, RuntimeError for one in use."""
        self._path(self.name)
        ended = self.runner(self._path("nvidia-smi"), _ASK_SECONDS, _QUERY)
        if ended.code != 0:
            raise RuntimeError(f"nvidia-smi: {ended.why or f'exit code {ended.code}'}")
        found = [
            [word.strip() for word in line.split(",")] for line in ended.text.splitlines() if line
        ]
        if any(len(words) != len(("index", "mig", "memory")) for words in found):
            raise RuntimeError(f"nvidia-smi says what is no list of GPUs: {ended.line[:80]}")
        if not found:
            raise Absent("nvidia-smi lists no GPU")
        if any(mig == "Enabled" for _, mig, _ in found):
            raise Absent("GPUs are cut into instances (MIG)")
        for index, _, used in found:
            if used.isdecimal() and int(used) > _USED_MEBIBYTES_MAX:
                raise RuntimeError(f"GPU {index} is in use: {used} MiB of its memory")
        return len(found)

    def _path(self, name: str) -> Path:
        path = shutil.which(name, path=self.places)
        if path is None:
            raise Absent(f"{name} is not installed")
        return Path(path)
