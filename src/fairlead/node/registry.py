"""All sources by name, and the file of settings that may name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from fairlead.api.cluster.node_report import TuningMode
from fairlead.input.sections import load
from fairlead.node.exports import loopback_fault
from fairlead.node.running.host import Host
from fairlead.node.settings import (
    AgentSettings,
    RepairSettings,
    ShapingSettings,
    TrafficSettings,
)
from fairlead.node.source import AnySource
from fairlead.node.sources import (
    clock,
    cloud,
    containerd,
    dcgm,
    disks,
    ecc,
    exporters,
    gpud,
    hardware,
    infiniband,
    kernel_log,
    memory,
    mounts,
    network,
    nvml,
    packet_loss,
    pcie,
    programs,
    reach,
    services,
    shaping,
    smart,
    tasks,
    traffic,
    tuning,
)
from fairlead.node.tuning import unknown_facts

#: What makes each; None where the settings name nothing for it.
SOURCES: dict[str, Callable[[Host, AgentSettings], AnySource | None]] = {
    "kernel-log": kernel_log.source,
    nvml.SOURCE: nvml.source,
    "memory-ecc": ecc.source,
    "pcie": pcie.source,
    "infiniband": infiniband.source,
    "disks": disks.source,
    "memory": memory.source,
    "network-tables": network.source,
    packet_loss.SOURCE: packet_loss.source,
    "tasks": tasks.source,
    "clock": clock.source,
    mounts.SOURCE: mounts.source,
    smart.SOURCE: smart.source,
    services.SOURCE: services.source,
    reach.SOURCE: reach.source,
    gpud.SOURCE: gpud.source,
    dcgm.SOURCE: dcgm.source,
    cloud.SOURCE: cloud.source,
    containerd.SOURCE: containerd.source,
    "programs": programs.source,
    tuning.SOURCE: tuning.source,
    "traffic": traffic.source,
    "shaping": shaping.source,
    hardware.SOURCE: hardware.source,
    exporters.SOURCE: exporters.source,
}


def sources(host: Host, settings: AgentSettings) -> tuple[AnySource, ...]:
    """Return the sources that are not switched off."""
    chosen = [make for name, make in SOURCES.items() if name not in settings.disabled]
    return tuple(made for make in chosen if (made := make(host, settings)))


def without_changes(settings: AgentSettings) -> AgentSettings:
    """Return the settings of one look, which changes nothing on the machine."""
    settings = replace(settings, traffic=TrafficSettings(), shaping=ShapingSettings())
    tuned = settings.tuning
    if not (tuned.profile or tuned.chosen_file):
        return replace(settings, disabled=(*settings.disabled, tuning.SOURCE))
    return replace(settings, tuning=replace(tuned, mode=TuningMode.VERIFY))


def conflicts(settings: AgentSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of fields that cannot be, or do not go together."""
    for i, name in enumerate(settings.disabled):
        if name not in SOURCES:
            yield f"disabled[{i}]", f"no source '{name}'; there are {', '.join(SOURCES)}"
    yield from unknown_facts(settings.tuning.facts, "tuning.facts")
    yield from traffic.conflicts(settings.traffic)
    yield from shaping.conflicts(settings)
    yield from exporters.conflicts(settings.exporters)
    yield from reach.conflicts(settings.reach)
    kubelet = settings.services.kubelet
    if kubelet and (fault := loopback_fault(kubelet)):
        yield "services.kubelet", fault
    for name, url in (("gpud", settings.monitors.gpud), ("dcgm", settings.monitors.dcgm)):
        if url and (fault := loopback_fault(url, has_tls=True)):
            yield f"monitors.{name}", fault
    yield from _of_repairs(settings.repairs)
    tuned = settings.tuning
    for name, value, why in (
        ("acceptedFile", tuned.accepted_file, "a change that fails is taken back by a reboot"),
        ("kubeletDirectory", tuned.kubelet_directory, "the kubelet reads it at its start"),
        ("containerdDirectory", tuned.containerd_directory, "containerd reads it at its start"),
        ("eccFile", tuned.ecc_file, "GPUs have it from their next start"),
        ("kernelArguments", tuned.kernel_arguments, "the kernel reads them at its start"),
    ):
        if value and not settings.repairs.reboots:
            yield f"tuning.{name}", f"it takes repairs.reboots: {why}"
    for path, codes in (("gpu.xid", settings.gpu.xid), ("gpu.sxid", settings.gpu.sxid)):
        for code in codes:
            if not (code.isascii() and code.isdecimal()):
                yield path, f"'{code}' is not the number of a code"
    for path, low, high in (
        ("disk.warningPercent", settings.disk.warning_percent, settings.disk.critical_percent),
        ("network.neighbourWarningPercent", settings.network.neighbour_warning_percent,
         settings.network.neighbour_critical_percent),
        ("clock.warningMilliseconds", settings.clock.warning_milliseconds,
         settings.clock.critical_milliseconds),
    ):  # fmt: skip
        if low > high:
            yield path, f"{low} is more than what is critical, {high}"


def _of_repairs(settings: RepairSettings) -> Iterator[tuple[str, str]]:
    for name, value in (("requests", settings.requests), ("pods", settings.pods)):
        if (settings.resets or settings.reboots) and not value:
            yield f"repairs.{name}", "it takes a value with repairs.resets or repairs.reboots"


def load_settings(file: str) -> AgentSettings:
    """Return the settings of a file, the defaults without one; CliError with all mistakes."""
    return load(Path(file), AgentSettings, conflicts) if file else AgentSettings()
