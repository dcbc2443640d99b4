"""What this machine has of namespaces, links, routes, mounts, rules and control groups."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tools.cluster.machine import cgroup_roots


def printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _addresses() -> list[Any]:
    return sorted(
        (link["ifname"], link["operstate"], [each["local"] for each in link["addr_info"]])
        for link in json.loads(printed("ip", "-json", "address", "show"))
    )


def _mounts() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sorted(line.split(" ", 3)[3] for line in lines)


def machine_state() -> dict[str, Any]:
    """Return what a cluster could leave behind, apart from processes."""
    places = ("/run", "/run/netns", "/var/lib", "/var/log", "/etc", "/opt", "/usr/libexec")
    return {
        "links and addresses": _addresses(),
        "routes": printed("ip", "route", "show"),
        "rules": printed("nft", "list", "ruleset"),
        "mounts": _mounts(),
        "directories": {
            place: sorted(each.name for each in Path(place).iterdir() if each.is_dir())
            for place in places
            if Path(place).is_dir()
        },
        "control groups": {
            str(root): sorted(each.name for each in root.iterdir() if each.is_dir())
            for root in cgroup_roots()
        },
        "kernel parameters": {
            name: Path("/proc/sys/net", name).read_text()
            for name in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables")
        },
    }


def processes_of(directory: Path) -> list[str]:
    """Return the processes that name a directory, or are in a network other than this one's."""
    here = Path("/proc/self/ns/net")
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            is_elsewhere = not (process / "ns" / "net").samefile(here)
        except OSError:
            continue
        if str(directory) in command or is_elsewhere:
            found.append(f"{process.name} {command}")
    return sorted(found)
