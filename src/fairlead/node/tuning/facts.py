"""Facts of which the values of a profile are formulas.

Those of the machine are read from its files. Those of the cluster are given: the agent is no client
of an API server, and what it guessed would size tables wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Self

from fairlead.node.devices import network_devices
from fairlead.node.running.host import Absent, Host
from fairlead.node.sources.memory import read as memory_of


class Fact(Enum):
    """A fact; `meaning` is what it counts."""

    _value_: str
    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Make a member."""
        fact = object.__new__(cls)
        fact._value_, fact.meaning = value, meaning
        return fact

    NODES = "nodes", "nodes of the cluster at its largest; given"
    PODS = "pods", "pods of the cluster at its largest; given"
    CORES = "cores", "processors that are online"
    MEMORY_BYTES = "memory_bytes", "memory of the machine"
    GPUS = "gpus", "NVIDIA GPUs with a driver"
    RDMA_DEVICES = "rdma_devices", "InfiniBand and RoCE devices"
    NICS = "nics", "network interfaces that are hardware"


FACT_NAMES = tuple(fact.value for fact in Fact)


def read_facts(host: Host, given: Mapping[str, int]) -> dict[str, int]:
    """Return the facts that are known, by name; what is given replaces what the machine says.

    A fact that cannot be read is left out: what needs it is not judged.
    """
    found: dict[str, int] = {}
    for fact, read in _READERS.items():
        try:
            found[fact.value] = read(host)
        except (Absent, OSError, ValueError):
            continue
    return found | dict(given)


def _cores(host: Host) -> int:
    """Return how many processors a list such as 0-63,128 names; OSError, ValueError."""
    ranges = host.text("sys/devices/system/cpu/online").split(",")
    ends = [(low, high or low) for low, _, high in (each.partition("-") for each in ranges)]
    return sum(int(high) - int(low) + 1 for low, high in ends)


def _memory_bytes(host: Host) -> int:
    return memory_of(host)["MemTotal"]


def _count(host: Host, *parts: str) -> int:
    try:
        return len(host.names(*parts))
    except Absent:
        return 0


def _gpus(host: Host) -> int:
    return _count(host, "proc/driver/nvidia/gpus")


def _rdma_devices(host: Host) -> int:
    return _count(host, "sys/class/infiniband")


def _nics(host: Host) -> int:
    return len(network_devices(host))


_READERS = {
    Fact.CORES: _cores,
    Fact.MEMORY_BYTES: _memory_bytes,
    Fact.GPUS: _gpus,
    Fact.RDMA_DEVICES: _rdma_devices,
    Fact.NICS: _nics,
}
