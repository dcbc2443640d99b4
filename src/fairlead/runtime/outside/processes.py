"""Processes of this machine that come to their end.

After SIGKILL a large process lives on for a moment, in which its locks and its ports are held. It
will not come back, so who wants them waits instead of calling it a conflict.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

#: Of the kernel's flags of a task: it is on its way out (include/linux/sched.h, PF_EXITING).
_EXITING = 0x4
_KILLED = 1 << (signal.SIGKILL - 1)


def is_ending(pid: int) -> bool:
    """True for a process that is gone, a zombie, or was killed and has not left yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return True
    fields = stat.rpartition(b")")[2].split()  # those behind the name: state, parent, ...
    if fields[0] in (b"Z", b"X") or int(fields[6]) & _EXITING:
        return True
    pending = (line for line in status.splitlines() if line.startswith((b"SigPnd:", b"ShdPnd:")))
    return any(int(line.split()[1], 16) & _KILLED for line in pending)


def wait_for_end(pid: int, seconds: float) -> bool:
    """Wait for a process that `is_ending`, at most so long; False at once for another one."""
    if not is_ending(pid):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        end = select.poll()
        end.register(descriptor, select.POLLIN)  # once its last thread has left
        return bool(end.poll(seconds * 1000))
    finally:
        os.close(descriptor)
