"""Which address a pod's processes listen on at a port.

Pods of the local node share the machine's addresses. A port is forwarded to what the pod's own
processes listen on and to nothing else, as if it had a network of its own: not to another pod that
listens on 127.0.0.1, and not to the machine's sshd.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv6Address
from pathlib import Path

from fairlead.embedded.local.machine import read_text

_LISTEN = "0A"


def listening_address(pids: Iterable[int], port: int, pod_ip: str, proc: Path) -> str | None:
    """Return the address to connect to; None when none of the processes listens on the port.

    It reads files of all these processes: call it in a thread.
    """
    sockets = _listeners(port, pod_ip, proc)
    if not sockets:
        return None
    for pid in pids:
        try:
            for entry in (proc / str(pid) / "fd").iterdir():
                address = sockets.get(str(entry.readlink()))
                if address is not None:
                    return address
        except OSError:
            continue  # it has ended
    return None


def _listeners(port: int, pod_ip: str, proc: Path) -> dict[str, str]:
    """Return the addresses that somebody listens on, by their sockets' names (proc_net_tcp)."""
    found: dict[str, str] = {}
    for name in ("tcp6", "tcp"):
        for line in read_text(proc / "self/net" / name).splitlines()[1:]:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTEN and int(number, 16) == port:
                found[f"socket:[{fields[9]}]"] = _address(address, pod_ip)
    return found


def _address(text: str, pod_ip: str) -> str:
    """Return an address of the kernel's table: words in the order of the machine's bytes."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if not any(packed):  # all addresses
        return pod_ip if len(words) == 1 else "::1"
    return socket.inet_ntoa(packed) if len(words) == 1 else str(IPv6Address(packed))
