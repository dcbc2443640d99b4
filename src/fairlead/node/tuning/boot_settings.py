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
from functools import lru_cache
from typing import Any, cast

from fairlead.input.plain import UnreadableText, yaml_document
from fairlead.node.host import Absent, Host

COMMAND_LINE = "proc/cmdline"
NOT_SET, GIVEN = "not set", "given"
#: The kubelet as a unit, and where the process ids of a unit are (cgroup v2, v1).
_GROUPS = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
_KUBELETS = ("kubelet", "k3s", "rke2-agent")
_DROP_INS_MAX = 64
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


def kernel_argument(host: Host, name: str) -> str:
    """Return the value of an argument, the last one where it is given more than once; GIVEN for one
    without a value, NOT_SET for one that is not there; Absent, OSError.

    Names are alike with - and _, and what follows `--` is for init (the kernel's admin guide).
    """
    found, wanted = NOT_SET, name.replace("-", "_")
    for word in _split(host.present(COMMAND_LINE)):
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


def kubelet_command(host: Host) -> str:
    """Return the file with the command line of the kubelet that runs; Absent."""
    for group in _GROUPS:
        for name in _KUBELETS:
            try:
                numbers = host.text(group, f"{name}.service", "cgroup.procs").split()
            except OSError:
                continue
            if numbers and all(number.isdecimal() for number in numbers):
                return f"proc/{min(map(int, numbers))}/cmdline"
    raise Absent("no kubelet runs as a unit of systemd")


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
