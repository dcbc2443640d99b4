"""What tells this machine from another one: its GPUs, its firmware, and the drivers that run.

Nothing here is a fault. A node that passed its tests and is another machine by now is tested again
(`decide/health/changes.py`). What cannot be read is left out, which says nothing of a change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

import msgspec

from fairlead.model.health.faults import Moment
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource

SOURCE = "hardware"
_NVIDIA = "proc/driver/nvidia/gpus"
_AMD = "sys/class/drm"
#: Files with one value each.
_FILES = {
    "firmware": "sys/class/dmi/id/bios_version",
    "nvidia": "sys/module/nvidia/version",
    "amdgpu": "sys/module/amdgpu/version",
}
_PERIOD_SECONDS = 300
_DIGITS = 16


class HardwareMemory(msgspec.Struct, frozen=True, rename="camel"):
    """What the last look found, by name."""

    values: dict[str, str] = {}


def read(host: Host) -> dict[str, str]:
    """Return what can be read of the machine, by name."""
    found: dict[str, str] = {}
    for name, path in _FILES.items():
        if text := _text(host, path):
            found[name] = text
    uuids, firmware = list[str](), set[str]()
    for lines in _nvidia(host):
        uuids.append(lines.get("GPU UUID", ""))
        firmware.add(lines.get("Video BIOS", ""))
    uuids += _amd(host)
    for name, texts in (("gpus", uuids), ("gpuFirmware", sorted(firmware))):
        known = sorted(filter(None, texts))
        if known:
            digest = hashlib.sha256("\n".join(known).encode()).hexdigest()[:_DIGITS]
            found[name] = f"{len(known)} {digest}" if name == "gpus" else ", ".join(known)
    return found


def _nvidia(host: Host) -> Iterator[dict[str, str]]:
    """Yield what the driver of NVIDIA says of each GPU: `GPU UUID: GPU-...` on lines of its own.

    A GPU that does not answer has question marks for its UUID, and is not known by it.
    """
    for gpu in _names(host, _NVIDIA):
        lines = (
            each.partition(":") for each in _text(host, _NVIDIA, gpu, "information").split("\n")
        )
        yield {key.strip(): value.strip() for key, _, value in lines if "?" not in value}


def _amd(host: Host) -> list[str]:
    cards = (each for each in _names(host, _AMD) if each.startswith("card") and "-" not in each)
    return [_text(host, _AMD, card, "device/unique_id") for card in cards]


def _names(host: Host, path: str) -> list[str]:
    try:
        return host.names(path)
    except (Absent, OSError):
        return []


def _text(host: Host, *parts: str) -> str:
    try:
        return host.text(*parts)
    except OSError:
        return ""


def judge(facts: dict[str, str], _memory: HardwareMemory, _at: Moment) -> Judged[HardwareMemory]:
    """Keep what was read for the report."""
    return Judged(HardwareMemory(facts))


def source(host: Host, _settings: AgentSettings) -> SignalSource[dict[str, str], HardwareMemory]:
    """Return the source of what the machine is."""
    return SignalSource(
        SOURCE, (), HardwareMemory, partial(read, host), judge, period_seconds=_PERIOD_SECONDS
    )
