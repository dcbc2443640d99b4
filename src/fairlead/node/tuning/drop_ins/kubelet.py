"""The drop-in of the kubelet: settings that count from its next start.

It is one file in the directory of `--config-dir`. It is written right before the machine starts
again, when health has emptied the node, so no kubelet that starts by chance has a change that
others have not been tested with. A kubelet that does not run with it has it taken away.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from fairlead.node.running.host import Absent, Host, whole_number
from fairlead.node.tuning.boot_settings import (
    KUBELETS,
    NOT_SET,
    is_unit_down,
    kubelet_command,
    kubelet_directory,
    kubelet_setting,
)
from fairlead.node.tuning.drop_ins.choice import ChosenLines, DropIn, choose
from fairlead.node.tuning.drop_ins.own_file import OwnFile
from fairlead.node.tuning.profile import LineKind, ReadyProfile

NAME = "99-fairlead-tuning.conf"
#: What a drop-in may set: single values that neither open the kubelet, nor name what it runs or
#: where it keeps its state, nor are maps of which a part would replace the defaults of the rest.
FIELDS = frozenset(
    {
        "containerLogMaxFiles", "containerLogMaxSize", "containerLogMaxWorkers", "eventBurst",
        "eventRecordQPS", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent",
        "imageMaximumGCAge", "imageMinimumGCAge", "kubeAPIBurst", "kubeAPIQPS",
        "maxParallelImagePulls", "nodeStatusMaxImages", "podPidsLimit", "registryBurst",
        "registryPullQPS", "serializeImagePulls", "shutdownGracePeriod",
        "shutdownGracePeriodCriticalPods",
    }
)  # fmt: skip


def kubelet_file(host: Host, directory: str) -> OwnFile:
    """Return the file in the directory of the kubelet's drop-ins."""
    return OwnFile(host, directory, NAME)


def kubelet_drop_in(
    host: Host, directory: str, profile: ReadyProfile, facts: Mapping[str, int]
) -> tuple[DropIn, ChosenLines]:  # fmt: skip
    """Return how the drop-in is; Absent without a kubelet that reads this directory, OSError."""
    command = kubelet_command(host)
    read = kubelet_directory(host, command)
    if Path(read) != Path(directory):
        raise Absent(f"the kubelet that runs reads {read or 'no directory'}, and not {directory}")

    def there(name: str) -> str:
        try:
            return kubelet_setting(host, command, name, without=NAME)
        except OSError as error:
            if name in FIELDS:
                raise
            raise Absent(str(error)) from error

    def set_by(name: str) -> str:
        return "" if there(name) == NOT_SET else "another file or a flag of the kubelet sets it"

    chosen = choose(profile, facts, LineKind.KUBELET, there=there, refusal=_refusal, set_by=set_by)
    file = kubelet_file(host, directory)
    text, refused = file.read(), file.refused()
    wanted = _body(chosen.values)
    is_refused = bool(wanted) and refused.body == wanted
    why = (refused.note or "the kubelet did not run with it") if is_refused else ""
    is_loaded = not text.is_there or text.boot != host.boot_id()
    names = tuple(sorted(chosen.values))
    return DropIn(wanted, text.body, is_loaded, is_refused, names, why), chosen


def set_kubelet(host: Host, directory: str, found: DropIn) -> None:
    """Make the file what it should be, durably; OSError. It counts from the next start."""
    if found.is_refused or found.wanted == found.has:
        return
    file = kubelet_file(host, directory)
    if found.wanted:
        file.write(found.wanted)
    else:
        file.put_back(None)


def is_kubelet_down(host: Host) -> bool:
    """True when no kubelet runs, or one that has just begun, long after the machine's start."""
    return is_unit_down(host, KUBELETS)


def _refusal(name: str, value: str) -> str:
    del value
    return "" if name in FIELDS else "no agent gives this field"


def _body(values: Mapping[str, str]) -> str:
    if not values:
        return ""
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    fields = {name: _typed(text) for name, text in sorted(values.items())}
    return msgspec.json.encode({**kind, **fields}).decode()


def _typed(text: str) -> bool | int | str:
    """Return a value of a profile as the kubelet has it."""
    if text in ("true", "false"):
        return text == "true"
    number = whole_number(text)
    return text if number is None else number
