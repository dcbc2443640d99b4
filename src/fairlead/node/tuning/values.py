"""Where the value of a line is on the machine, how it is read, and how it is written.

Everything is a file below the root of the host, but modes of GPUs (`gpus`). A line has one target,
or several: each policy of the processors has a governor of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from fairlead.node.running.host import Absent, Host
from fairlead.node.sources import containerd
from fairlead.node.tuning.boot_settings import (
    COMMAND_LINE,
    NOT_SET,
    kernel_argument,
    kubelet_command,
    kubelet_setting,
)
from fairlead.node.tuning.gpus import TARGETS, gpu_targets, read_gpu, write_gpu
from fairlead.node.tuning.profile import LineKind, ProfileLine, normal

_SYSCTLS = "proc/sys"
_HUGEPAGES = "sys/kernel/mm/transparent_hugepage"
_POLICIES = "sys/devices/system/cpu/cpufreq"
_MODULES = "sys/module"
#: Units of container runtimes, and where the process ids of a unit are (cgroup v2, v1).
_RUNTIMES = ("containerd", "crio", "k3s", "docker")
_GROUPS = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
_LIMIT_ROWS = {
    "memlock": "Max locked memory",
    "nofile": "Max open files",
    "nproc": "Max processes",
}
_CHOSEN = re.compile(r"\[([^\]]+)\]")


def sysctl_path(name: str) -> str:
    """Return the file of a setting; in a name with slashes dots are no separators (sysctl(8))."""
    return f"{_SYSCTLS}/{name if '/' in name else name.replace('.', '/')}"


def targets(host: Host, line: ProfileLine) -> tuple[str, ...]:
    """Return the files that have the value of a line; Absent when there is none, OSError."""
    match line.kind:
        case LineKind.SYSCTL:
            return (sysctl_path(line.name),)
        case LineKind.TRANSPARENT_HUGEPAGES:
            return (f"{_HUGEPAGES}/{line.name}",)
        case LineKind.CPU_GOVERNOR:
            found = [name for name in host.names(_POLICIES) if name.startswith("policy")]
            if not found:
                raise Absent("no processor has a governor")
            return tuple(f"{_POLICIES}/{name}/scaling_governor" for name in found)
        case LineKind.MODULE:
            return (f"{_MODULES}/{line.name.replace('-', '_')}",)
        case LineKind.RUNTIME_LIMIT:
            return tuple(_runtime_limits(host))
        case LineKind.KERNEL_ARGUMENT:
            return (COMMAND_LINE,)
        case LineKind.KUBELET:
            return (kubelet_command(host),)
        case LineKind.GPU:
            return gpu_targets(host, line.name)
        case LineKind.CONTAINERD:
            if not containerd.is_reachable(host):
                raise OSError(containerd.NOT_REACHABLE)
            return (containerd.CONFIG,)


def _runtime_limits(host: Host) -> Iterator[str]:
    """Yield the limits of the container runtime that runs; Absent."""
    for group in _GROUPS:
        for runtime in _RUNTIMES:
            try:
                numbers = host.text(group, f"{runtime}.service", "cgroup.procs").split()
            except OSError:
                continue
            if numbers:
                yield f"proc/{min(map(int, numbers))}/limits"
                return
    raise Absent("no container runtime runs as a unit of systemd")


def read_value(host: Host, line: ProfileLine, target: str) -> str:
    """Return the value that a target has; Absent when the machine lacks it, OSError."""
    if line.kind is LineKind.MODULE:
        return "loaded" if host.path(target).is_dir() else "not loaded"
    if line.kind is LineKind.RUNTIME_LIMIT:
        row = _LIMIT_ROWS[line.name]
        for each in host.present(target).splitlines():
            if each.startswith(row) and (words := each.removeprefix(row).split()):
                return words[0]
        raise OSError(f"{host.path(target)} has no row '{row}'")
    if line.kind is LineKind.KERNEL_ARGUMENT:
        return kernel_argument(host, line.name)
    if line.kind is LineKind.KUBELET:
        return kubelet_setting(host, target, line.name)
    if line.kind is LineKind.CONTAINERD:
        found = containerd.setting(containerd.read(host), line.name)
        return NOT_SET if found is None else found
    return read_target(host, target)


def read_target(host: Host, target: str) -> str:
    """Return the value that a target which can be written has; Absent, OSError."""
    if target.startswith(TARGETS):
        return read_gpu(host, target)
    text = host.present(target)
    chosen = _CHOSEN.search(text) if target.startswith(_HUGEPAGES) else None
    return chosen[1] if chosen else normal(text)


def why_absent(line: ProfileLine, said: str) -> str:
    """Return why the machine lacks the target of a line, as far as its files say."""
    if line.kind in (LineKind.CONTAINERD, LineKind.GPU):
        return said
    if line.kind is not LineKind.SYSCTL:
        return "the machine has none"
    if line.name.startswith("net"):
        return "not there: the kernel lacks it, or this is not the host's network namespace"
    return "not there: the kernel lacks it"


def write_value(host: Host, target: str, value: str) -> None:
    """Write a value in one write, as the kernel wants it; OSError."""
    if target.startswith(TARGETS):
        write_gpu(host, target, value)
        return
    descriptor = os.open(host.path(target), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{value}\n".encode())
    finally:
        os.close(descriptor)


def set_by_administrator(host: Host) -> dict[str, tuple[str, str]]:
    """Return (value, file) by path of what the administrator's files of sysctl.d(5) set.

    The last one counts. Files below /usr/lib are the distribution's, and no person's. A file that
    cannot be read sets nothing.
    """
    try:
        names = [name for name in host.names("etc/sysctl.d") if name.endswith(".conf")]
    except (Absent, OSError):
        names = []
    found: dict[str, tuple[str, str]] = {}
    for file in (*(f"etc/sysctl.d/{name}" for name in names), "etc/sysctl.conf"):
        try:
            text = host.text(file)
        except OSError:
            continue
        for row in text.splitlines():
            name, is_set, value = row.strip().partition("=")
            if is_set and not name.startswith(("#", ";")):
                path = sysctl_path(name.removeprefix("-").strip())
                found[path] = (normal(value), f"/{file}")
    return found
