"""The agent's own drop-in of the kubelet: settings that count from the kubelet's next start.

It is one file in the directory of `--config-dir`, and all of it is the agent's. What it should have
follows from the profile and the kubelet's other files; that it has something else asks for a
reboot. It is written right before the machine starts again, when health has emptied the node, so a
roll-out goes as fast as the budgets of health allow, and no kubelet that starts by chance has a
change that others have not been tested with.

A kubelet that does not run with it has it taken away: the file is renamed, which is the record that
its content is refused. Each change is one rename, so a process that is killed at any line leaves
the old file or the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.api.cluster.node_report import SettingState
from fairlead.node.files import read_file, replace_file
from fairlead.node.host import Absent, Host, whole_number
from fairlead.node.tuning.boot_settings import (
    NOT_SET,
    kubelet_command,
    kubelet_directory,
    kubelet_setting,
)
from fairlead.node.tuning.profile import LineKind, ReadyProfile
from fairlead.node.tuning.verify import compare, value_wanted

NAME = "99-fairlead-tuning.conf"
REFUSED = f"{NAME}.refused"
_BYTES_MAX = 64 << 10
_HEAD = "# By the agent of Fairlead, for its tuning profile. Boot: "
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
#: A kubelet that is younger, so long after the machine's start, is one that starts again and again.
_YOUNG_SECONDS, _STARTING_SECONDS = 60.0, 300.0
#: Of clock ticks in /proc/PID/stat: USER_HZ, 100 on every architecture of Linux that is in use.
_TICKS = 100.0


@dataclass(frozen=True, slots=True)
class DropIn:
    """What the drop-in should have, and has; "" is no file. `settings` are those that it gives.

    `is_loaded`: the machine has started since it was written. `is_refused`: a kubelet did not run
    with what it should have.
    """

    wanted: str
    has: str
    is_loaded: bool
    is_refused: bool
    settings: tuple[str, ...]

    @property
    def needs_restart(self) -> bool:
        """True when the machine should start again for it."""
        return not self.is_refused and (self.wanted != self.has or not self.is_loaded)


def drop_in(
    host: Host, directory: str, profile: ReadyProfile, facts: Mapping[str, int]
) -> DropIn:  # fmt: skip
    """Return how the drop-in is; Absent without a kubelet that reads this directory, OSError."""
    command = kubelet_command(host)
    read = kubelet_directory(host, command)
    if Path(read) != Path(directory):
        raise Absent(f"the kubelet that runs reads {read or 'no directory'}, and not {directory}")
    known = dict(profile.profile.facts) | dict(facts)
    values: dict[str, object] = {}
    for want in profile.wants:
        line = want.line
        if line.kind is not LineKind.KUBELET or line.name not in FIELDS:
            continue
        there = kubelet_setting(host, command, line.name, without=NAME)
        is_by_hand = there != NOT_SET and not line.overwrite
        if is_by_hand or compare(want, known, there).state is not SettingState.DIFFERS:
            continue
        values[line.name] = _typed(value_wanted(want, known))
    head, has = _read(host, directory, NAME)
    wanted = _body(values)
    is_refused = bool(wanted) and _read(host, directory, REFUSED)[1] == wanted
    is_loaded = not has or head.removeprefix(_HEAD) != host.boot_id()
    return DropIn(wanted, has, is_loaded, is_refused, tuple(sorted(values)))


def write_drop_in(host: Host, directory: str, found: DropIn) -> None:
    """Make the file what it should be, durably; OSError. It counts from the next start."""
    wanted = "" if found.is_refused else found.wanted
    if wanted == found.has:
        return
    path = host.path(directory, NAME)
    if not wanted:
        path.unlink(missing_ok=True)
        return
    text = f"{_HEAD}{host.boot_id()}\n{wanted}\n"
    replace_file(path, text.encode(), mode=0o644, is_durable=True)


def remove_drop_in(host: Host, directory: str) -> bool:
    """Remove the file, and what is known of one that was refused; False: there was none. OSError"""
    paths = [host.path(directory, name) for name in (NAME, REFUSED)]
    there = [path for path in paths if path.is_file()]
    for path in there:
        path.unlink(missing_ok=True)
    return bool(there)


def is_kubelet_down(host: Host) -> bool:
    """True when no kubelet runs, or one that has just begun, long after the machine's start."""
    uptime = host.now().uptime_seconds
    if uptime < _STARTING_SECONDS:
        return False
    try:
        stat = host.text(kubelet_command(host).replace("cmdline", "stat"))
        began = float(stat.rpartition(")")[2].split()[19]) / _TICKS
    except (Absent, OSError, ValueError, IndexError):
        return True
    return uptime - began < _YOUNG_SECONDS


def take_back(host: Host, directory: str) -> bool:
    """Rename a drop-in with which the kubelet does not run; False where there is none. OSError."""
    path = host.path(directory, NAME)
    if not path.is_file():
        return False
    path.replace(host.path(directory, REFUSED))
    return True


def _read(host: Host, directory: str, name: str) -> tuple[str, str]:
    """Return the first line of a file and the rest; "" for a file that is not there. OSError."""
    try:
        text = read_file(host.path(directory, name), _BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return "", ""
    head, _, body = text.partition("\n")
    return (head, body.strip()) if head.startswith(_HEAD) else ("", text.strip())


def _body(values: Mapping[str, object]) -> str:
    if not values:
        return ""
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    return msgspec.json.encode({**kind, **dict(sorted(values.items()))}).decode()


def _typed(text: str) -> bool | int | str:
    """Return a value of a profile as the kubelet has it."""
    if text in ("true", "false"):
        return text == "true"
    number = whole_number(text)
    return text if number is None else number
