"""Reads one value after another of many devices: what cannot be read of one stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from fairlead.node.running.host import Host

V = TypeVar("V")


def read_each(
    names: Iterable[str], read: Callable[[str], V]
) -> tuple[dict[str, V], tuple[str, ...]]:
    """Return what was read of each, and a reason for each that could not be read.

    A device that has gone since it was listed is left out.
    """
    found: dict[str, V] = {}
    unreadable: list[str] = []
    for name in names:
        try:
            found[name] = read(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            unreadable.append(f"{name}: {error.strerror or error}")
    return found, tuple(unreadable)


def network_devices(host: Host) -> list[str]:
    """Return the network devices that are hardware; Absent where the kernel shows no devices."""
    names = host.names("sys/class/net")
    return [name for name in names if host.path("sys/class/net", name, "device").exists()]
