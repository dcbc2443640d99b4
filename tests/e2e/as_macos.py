"""Runs command lines as on macOS, as far as this machine can show it: `python -m as_macos JSON`.

What Python has on Linux alone is not there: functions, constants, /proc and /sys. Each command line
runs in this process; the last line of stderr has their exit codes as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

#: By module, what the documentation of Python says is there on Linux, and not on macOS.
LACKS: dict[Any, tuple[str, ...]] = {
    os: (
        "pidfd_open", "eventfd", "memfd_create", "copy_file_range", "splice", "getrandom", "pipe2",
        "sched_getaffinity", "sched_setaffinity", "setns", "unshare", "fdatasync",
        "posix_fallocate", "posix_fadvise", "getxattr", "setxattr", "listxattr", "setresuid",
        "setresgid", "O_PATH", "O_TMPFILE", "O_DIRECT", "P_PIDFD", "waitid",
    ),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX", "SIGPWR"),
    socket: (
        "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SO_PEERCRED", "SO_BINDTODEVICE", "SOCK_CLOEXEC",
        "SOCK_NONBLOCK", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE",
    ),
    select: ("epoll",),
    resource: ("prlimit", "RLIMIT_RTPRIO", "RLIMIT_NICE", "RLIMIT_SIGPENDING"),
    time: ("CLOCK_BOOTTIME",),
}  # fmt: skip


def _no_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
        root = arguments[0].split("/")[1:2]
        if root in (["proc"], ["sys"]):
            raise FileNotFoundError(2, "No such file or directory", arguments[0])


def main() -> None:
    """Run the command lines."""
    for module, names in LACKS.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = "darwin"
    sys.addaudithook(_no_proc)
    from fairlead.cli.main import guarded

    codes = [guarded(words) for words in json.loads(sys.argv[1])]
    sys.stdout.flush()
    sys.stderr.write(f"\n{json.dumps(codes)}\n")


if __name__ == "__main__":
    main()
