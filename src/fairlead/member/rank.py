"""Run one MPI rank: its output goes to the member's own log, its end is recorded.

Hydra's proxy pipes the output of all ranks to the first member and hides how a rank ended. This
small parent of the rank gives the rank the member's own stdout and stderr (inherited descriptors
named by FAIRLEAD_RANK_OUTPUT) and writes "runs PID", then "exit N" or "signal N", to
FAIRLEAD_RANK_RESULT; it then ends the same way, so that the proxy sees what happened too.
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
        # The rank talks to the proxy over the PMI descriptor: it must inherit everything. The proxy
        # kills this process's group; a rank that is not in it ends by itself, or is seen to run.
        child = subprocess.Popen(argv, stdout=out, stderr=err, close_fds=False, process_group=0)
    except OSError as error:
        os.write(err, f"fairlead mpirun: cannot start '{argv[0]}': {error.strerror}\n".encode())
        _record(result, "exit 127")
        return 127
    _record(result, f"runs {child.pid}")
    os.close(out)
    os.close(err)

    def terminate(_number: int, _frame: FrameType | None) -> None:
        child.terminate()

    signal.signal(signal.SIGTERM, terminate)
    # It stays a zombie until its end is written down.
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    kind = "exit" if ended.si_code == os.CLD_EXITED else "signal"
    _record(result, f"{kind} {ended.si_status}")
    code = child.wait()
    if code >= 0:
        return code
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


def _record(result: Path, text: str) -> None:
    """Write the result at once: the proxy may kill this process at any line."""
    new = result.with_name(f"{result.name}.new")
    new.write_text(text)
    new.replace(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
