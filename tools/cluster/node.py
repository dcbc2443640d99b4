"""Process 1 of a node, or of the control plane: runs its daemons and restarts those that end.

    python node.py HOME

It is started in process, mount, host-name and network namespaces of its own. Mounts are made
private first, so that the machine sees none of them, then shared again within the node, as kubelets
need it. When this process ends, the kernel ends all others of the namespace, and their mounts go.

HOME/node.json says what to do; HOME/NAME.off keeps the daemon NAME from being started again.
The log of each daemon is HOME/NAME.log. SIGTERM ends the node like a power cut.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESTART_SECONDS = 1.0
POLL_SECONDS = 0.1


def mount(*arguments: str) -> None:
    """Run the program mount."""
    subprocess.run(["mount", *arguments], check=True)


def prepare(home: Path, node: dict[str, Any]) -> None:
    """Make the mounts, and set the host name and the kernel's parameters of this node."""
    mount("--make-rprivate", "/")
    mount("--make-rshared", "/")
    for path in node["directories"]:
        own = home / "root" / path.lstrip("/")
        own.mkdir(parents=True, exist_ok=True)
        mount("--bind", str(own), path)
    for path in node["runDirectories"]:
        mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", path)
    socket.sethostname(node["name"])
    for key, value in node["sysctls"].items():
        Path("/proc/sys", *key.split(".")).write_text(value)


class Daemons:
    """The daemons by name; a daemon that ended is started again after a second."""

    def __init__(self, home: Path, commands: dict[str, list[str]]) -> None:
        self._home = home
        self._commands = commands
        self._pids: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def start(self) -> None:
        """Start those that do not run, unless they are switched off."""
        for name, command in self._commands.items():
            is_due = time.monotonic() >= self._not_before.get(name, 0.0)
            if name in self._pids or not is_due or (self._home / f"{name}.off").exists():
                continue
            with (self._home / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                    start_new_session=True,
                )  # fmt: skip
            self._pids[name] = process.pid
            self._not_before[name] = time.monotonic() + RESTART_SECONDS

    def reap(self) -> None:
        """Collect what has ended: daemons, and processes of containers that lost their parent."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name in [name for name, its in self._pids.items() if its == pid]:
                del self._pids[name]


def main() -> None:
    """Run until SIGTERM."""
    home = Path(sys.argv[1])
    node = json.loads((home / "node.json").read_text())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    prepare(home, node)
    daemons = Daemons(home, node["daemons"])
    while True:
        daemons.start()
        time.sleep(POLL_SECONDS)
        daemons.reap()


if __name__ == "__main__":
    main()
