"""Run one MPI rank: its output goes to the member's own log, its end is recorded.

Hydra's proxy pipes the output of all ranks to the first member and hides how a rank ended. This
small parent of the rank gives the rank the member's own stdout and stderr (inherited descriptors
named by FAIRLEAD_RANK_OUTPUT) and writes "exit N" or "signal N" to FAIRLEAD_RANK_RESULT; it then
ends the same way, so that the proxy sees what happened too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType


def main(argv: list[str]) -> int:
    """Run `argv` as the rank; return its exit code, or die of its signal."""
    out, err = (int(part) for part in os.environ.pop("FAIRLEAD_RANK_OUTPUT").split(","))
    result = Path(os.environ.pop("FAIRLEAD_RANK_RESULT"))
    try:
        # The rank talks to the proxy over the PMI descriptor: it must inherit everything.
        child = subprocess.Popen(argv, stdout=out, stderr=err, close_fds=False)
    except OSError as error:
        os.write(err, f"fairlead mpirun: cannot start '{argv[0]}': {error.strerror}\n".encode())
        result.write_text("exit 127")
        return 127
    os.close(out)
    os.close(err)

    def terminate(_number: int, _frame: FrameType | None) -> None:
        child.terminate()

    signal.signal(signal.SIGTERM, terminate)
    code = child.wait()
    if code >= 0:
        result.write_text(f"exit {code}")
        return code
    result.write_text(f"signal {-code}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
