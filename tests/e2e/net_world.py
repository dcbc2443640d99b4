"""Network namespaces joined by veth pairs: pods, the node that forwards, and the world outside.

The namespaces have no name: they are held by descriptors, so they are gone with the process,
however it ends.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)

_NODE_MAC, _PODS_MAC, _OUTSIDE_MAC = (f"02:00:00:00:00:0{n}" for n in (1, 2, 3))
INTERNET4, INTERNAL4, STORAGE4 = "8.8.8.8", "10.200.0.1", "199.36.153.9"
INTERNET6, INTERNAL6 = "2a00:1450::8", "fd99::1"


def _call(name: str, *arguments: int) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Namespace:
    """One network namespace."""

    def __init__(self) -> None:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _call("unshare", _NEWNET)
            self.descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            ip("link set lo up")
        finally:
            _call("setns", home, _NEWNET)
            os.close(home)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread opens and starts is in the namespace."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _call("setns", self.descriptor, _NEWNET)
        try:
            yield
        finally:
            _call("setns", home, _NEWNET)
            os.close(home)

    def close(self) -> None:
        os.close(self.descriptor)


def run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def ip(arguments: str) -> None:
    run("ip", *arguments.split())


def _know(mac: str, device: str, *addresses: str) -> None:
    """Write neighbours down: finding them is traffic, and their table is one for the machine."""
    lines = [f"neigh add {each} lladdr {mac} dev {device} nud permanent" for each in addresses]
    run("ip", "-batch", "-", text="\n".join(lines) + "\n")


class NetWorld:
    """`pods` sends by way of `node` to `outside`. Each has both families."""

    def __init__(self) -> None:
        self.pods, self.node, self.outside = Namespace(), Namespace(), Namespace()
        with self.node.inside():
            ip(f"link add veth-pods address {_NODE_MAC} type veth peer name eth0 "
               f"address {_PODS_MAC} netns {self.pods.path}")  # fmt: skip
            ip(f"link add veth-out address {_NODE_MAC} type veth peer name eth0 "
               f"address {_OUTSIDE_MAC} netns {self.outside.path}")  # fmt: skip
            for file in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
                Path(f"/proc/sys/net/{file}").write_text("1")
            for device, address in (("veth-pods", "10.1.255.254/16"), ("veth-out", "10.9.0.1/30")):
                ip(f"addr add {address} dev {device}")
            for device, address in (("veth-pods", "fd01::ffff/64"), ("veth-out", "fd09::1/64")):
                ip(f"addr add {address} dev {device} nodad")
            for device in ("veth-pods", "veth-out"):
                ip(f"link set {device} up gso_max_segs 1")
            _know(_OUTSIDE_MAC, "veth-out", "10.9.0.2", "fd09::2")
            ip("route add default via 10.9.0.2")
            ip("route add default via fd09::2")
        with self.outside.inside():
            ip("link set eth0 up gso_max_segs 1")
            ip("addr add 10.9.0.2/30 dev eth0")
            ip("addr add fd09::2/64 dev eth0 nodad")
            _know(_NODE_MAC, "eth0", "10.9.0.1", "fd09::1")
            ip("route add default via 10.9.0.1")
            ip("route add default via fd09::1")
            for address in (INTERNET4, INTERNAL4, STORAGE4):
                ip(f"addr add {address}/32 dev lo")
            for address in (INTERNET6, INTERNAL6):
                ip(f"addr add {address}/128 dev lo nodad")
        for each in (self.pods, self.outside):
            with each.inside():  # so that all segments but the first have headers of one size
                Path("/proc/sys/net/ipv4/tcp_sack").write_text("0")
        with self.pods.inside():
            ip("link set eth0 up gso_max_segs 1")
            ip("addr add 10.1.255.1/16 dev eth0")
            ip("addr add fd01::fffe/64 dev eth0 nodad")
            _know(_NODE_MAC, "eth0", "10.1.255.254", "fd01::ffff")
            ip("route add default via 10.1.255.254")
            ip("route add default via fd01::ffff")

    def add_addresses(self, *addresses: str) -> None:
        """Give the pods' namespace more addresses."""
        lines = [
            f"addr add {each} dev eth0" + (" nodad" if ":" in each else "") for each in addresses
        ]
        with self.pods.inside():
            run("ip", "-batch", "-", text="\n".join(lines) + "\n")
        with self.node.inside():
            _know(_PODS_MAC, "veth-pods", *(each.partition("/")[0] for each in addresses))

    def close(self) -> None:
        for each in (self.pods, self.node, self.outside):
            each.close()


def net_world() -> NetWorld:
    """Return the world; the test is skipped where the kernel or the user may not make it."""
    try:
        Namespace().close()
    except OSError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.strerror}")
    for program in ("ip", "nft"):
        if not any((Path(each) / program).exists() for each in ("/usr/sbin", "/sbin", "/usr/bin")):
            pytest.skip(f"no {program} here")
    return NetWorld()
