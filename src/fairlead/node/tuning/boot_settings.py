"""Settings that count from the start of something: arguments of the kernel, and of the kubelet.

They are read where they are in effect, as far as files say it: the command line with which the
kernel was booted, the command line of the kubelet that runs, and the files that this one names. A
flag of the kubelet wins over its files, and of its files the last drop-in wins (`--config-dir`).
What none of them says is "not set"; the default is the kubelet's own, and of its version.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

from fairlead.input.plain import UnreadableText, yaml_document
from fairlead.node.running.host import Absent, Host

COMMAND_LINE = "proc/cmdline"
NOT_SET, GIVEN = "not set", "given"
#: The kubelet as a unit, and where the process ids of a unit are (cgroup v2, v1).
_GROUPS = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
KUBELETS = ("kubelet", "k3s", "rke2-agent")
_DROP_INS_MAX = 64
#: A unit that is younger, so long after the machine's start, is one that starts again and again.
_YOUNG_SECONDS, _STARTING_SECONDS = 60.0, 300.0
#: Of clock ticks in /proc/PID/stat: USER_HZ, 100 on every architecture of Linux that is in use.
_TICKS = 100.0
#: Flags that are not called as their field is (kubernetes, `cmd/kubelet/app/options/options.go`).
_FLAGS = {
    "authentication/anonymous/enabled": "anonymous-auth",
    "authentication/webhook/enabled": "authentication-token-webhook",
    "contentType": "kube-api-content-type",
    "enableContentionProfiling": "contention-profiling",
    "eventRecordQPS": "event-qps",
    "imageGCHighThresholdPercent": "image-gc-high-threshold",
    "imageGCLowThresholdPercent": "image-gc-low-threshold",
    "imageMinimumGCAge": "minimum-image-ttl-duration",
    "kubeAPIQPS": "kube-api-qps",
    "makeIPTablesUtilChains": "make-iptables-util-chains",
    "podPidsLimit": "pod-max-pids",
    "registryPullQPS": "registry-qps",
    "reservedSystemCPUs": "reserved-cpus",
    "serverTLSBootstrap": "rotate-server-certificates",
    "staticPodPath": "pod-manifest-path",
    "staticPodURL": "manifest-url",
}
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def kernel_argument(host: Host, name: str, *, without: Sequence[str] = ()) -> str:
    """Return the value of an argument, the last one where it is given more than once; GIVEN for one
    without a value, NOT_SET for one that is not there; Absent, OSError.

    Names are alike with - and _, and what follows `--` is for init (the kernel's admin guide).
    `without` are arguments that do not count, in a row.
    """
    found, wanted = NOT_SET, name.replace("-", "_")
    for word in without_run(_split(host.present(COMMAND_LINE)), without):
        if word == "--":
            break
        key, is_set, value = word.partition("=")
        if key.replace("-", "_") == wanted:
            found = value if is_set else GIVEN
    return found


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed
        return text.split()


def without_run(words: Sequence[str], run: Sequence[str]) -> list[str]:
    """Return the words without the last place where those of `run` stand in a row."""
    for i in range(len(words) - len(run), -1, -1) if run else ():
        if list(words[i : i + len(run)]) == list(run):
            return [*words[:i], *words[i + len(run) :]]
    return list(words)


def kubelet_command(host: Host) -> str:
    """Return the file with the command line of the kubelet that runs; Absent."""
    for process in _of_units(host, KUBELETS):
        return f"{process}/cmdline"
    raise Absent("no kubelet runs as a unit of systemd")


def _of_units(host: Host, names: Sequence[str], program: str = "") -> Iterator[str]:
    """Yield the directory below /proc of the oldest process of each unit that runs.

    With `program` of those alone that have this name: a unit of containerd has its shims, too.
    """
    for group in _GROUPS:
        for name in names:
            try:
                numbers = host.text(group, f"{name}.service", "cgroup.procs").split()
            except OSError:
                continue
            if not all(number.isdecimal() for number in numbers):
                continue
            for number in sorted(map(int, numbers)):
                with suppress(OSError):
                    if not program or host.text("proc", str(number), "comm") == program:
                        yield f"proc/{number}"
                        break


def unit_began(host: Host, names: Sequence[str], program: str = "") -> float | None:
    """Return the uptime at which a unit has begun, None where none of them runs."""
    for process in _of_units(host, names, program):
        try:
            return float(host.text(process, "stat").rpartition(")")[2].split()[19]) / _TICKS
        except (OSError, ValueError, IndexError):
            return None
    return None


def is_unit_down(host: Host, names: Sequence[str], program: str = "") -> bool:
    """True when no unit runs, or one that has just begun, long after the machine's start."""
    uptime = host.now().uptime_seconds
    if uptime < _STARTING_SECONDS:
        return False
    began = unit_began(host, names, program)
    return began is None or uptime - began < _YOUNG_SECONDS


def kubelet_directory(host: Host, command: str) -> str:
    """Return the directory of the kubelet's drop-ins; "" for none. Absent, OSError."""
    return _flag(host.present(command).split("\0"), "config-dir") or ""


def kubelet_setting(host: Host, command: str, name: str, *, without: str = "") -> str:
    """Return a setting of KubeletConfiguration, with / between levels; NOT_SET; Absent, OSError.

    `without` names a drop-in that does not count.
    """
    arguments = host.present(command).split("\0")
    whole = name.partition("/")[0]
    flag = _FLAGS.get(name) or _WORDS.sub("-", whole).lower()
    given = _flag(arguments, flag)
    if given is not None and name != whole and name not in _FLAGS:
        raise OSError(f"the flag --{flag} gives all of {whole}")
    if given is not None:
        return given
    value: object = None
    for table in _tables(host, arguments, without):
        here: object = table
        for step in name.split("/"):
            here = here.get(step) if isinstance(here, Mapping) else None
        value = value if here is None else here
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, (int, float, str)):
        return NOT_SET if value is None else str(value)
    raise OSError(f"{name} is no single value")


def _flag(arguments: Sequence[str], name: str) -> str | None:
    """Return the last value of a flag; a flag that stands alone is true."""
    found = None
    for i, word in enumerate(arguments):
        key, is_set, value = word.partition("=")
        if key.startswith("-") and key.lstrip("-") == name:
            after = arguments[i + 1] if i + 1 < len(arguments) else ""
            found = value if is_set else (after if after and not after.startswith("-") else "true")
    return found


def _tables(host: Host, arguments: Sequence[str], without: str) -> Iterator[Mapping[str, Any]]:
    """Yield what the files of the kubelet say, the one that wins last."""
    file, directory = _flag(arguments, "config"), _flag(arguments, "config-dir")
    if file:
        yield _parsed(host.text(file), file)
    if directory:
        names = (name for name in host.names(directory) if name != without)
        drop_ins = [name for name in names if name.endswith(".conf")]
        for name in drop_ins[:_DROP_INS_MAX]:
            yield _parsed(host.text(directory, name), f"{directory}/{name}")


@lru_cache(maxsize=8)  # one look reads the same file for each of its lines
def _parsed(text: str, name: str) -> Mapping[str, Any]:
    try:
        found = yaml_document(text)
    except UnreadableText as error:
        raise OSError(f"{name}: {error}") from error
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}
