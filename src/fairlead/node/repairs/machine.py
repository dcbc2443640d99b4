"""What the machine itself says before a reset or a reboot, and the commands for them. Blocks.

Work is every pod of the kubelet that has not ended and is of no DaemonSet: what the controllers
call use of a node. A process holds a GPU while it has its device file open, whatever container it
is in (/proc/PID/fd); that the driver says no such thing of a process that hangs in it is why it is
not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.api.cluster.node_report import Action
from fairlead.node.repairs.request import RepairRequest
from fairlead.node.running.host import Host
from fairlead.node.running.program_run import ProgramOutcome, run
from fairlead.node.settings import RepairSettings
from fairlead.node.traffic.pods import PodSource, read_pods

_GPUS = "proc/driver/nvidia/gpus"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(\.[0-7])?")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)$", re.MULTILINE)
_ENDED = ("Succeeded", "Failed")
_LASTING = "DaemonSet"
_HOLDERS_MAX = 64
#: The command only asks for it.
_REBOOT_COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RepairFacts:
    """Pods of work, and the GPUs with faults with the processes that hold them.

    None with a reason: what could not be read.
    """

    pods: tuple[str, ...] | None = ()
    pods_why: str = ""
    gpus: tuple[str, ...] = ()
    holders: tuple[str, ...] | None = ()
    holders_why: str = ""


def read_facts(host: Host, settings: RepairSettings, request: RepairRequest) -> RepairFacts:
    """Return what a ruling takes."""
    pods, pods_why = _work(settings)
    if pods is None or pods or request.action is not Action.RESET_GPU:
        return RepairFacts(pods, pods_why)
    gpus = gpus_of(host, request.components)
    try:
        holders: tuple[str, ...] | None = tuple(_holders(host, gpus, settings.gpu_daemons))
        return RepairFacts(pods, gpus=tuple(gpus), holders=holders)
    except OSError as error:
        why = f"{error.filename}: {error.strerror or error}"
        return RepairFacts(pods, gpus=tuple(gpus), holders=None, holders_why=why)


def _work(settings: RepairSettings) -> tuple[tuple[str, ...] | None, str]:
    """Return the pods of work on the machine; None and a reason where they cannot be read."""
    try:
        pods = read_pods(PodSource(settings.pods, settings.token_file, settings.ca_file))
    except (OSError, ValueError) as error:
        return None, str(error)
    return tuple(sorted(
        f"{each.metadata.namespace}/{each.metadata.name}"
        for each in pods
        if each.status.phase not in _ENDED
        and not any(owner.kind == _LASTING for owner in each.metadata.owner_references or ())
    )), ""  # fmt: skip


def gpus_of(host: Host, components: Sequence[str]) -> dict[str, int]:
    """Return the GPUs that are meant by components, by address; with the number of the device.

    A component names a GPU by its address, with or without the function; others mean none.
    """
    wanted = [each.lower() for each in components if _ADDRESS.fullmatch(each.lower())]
    found: dict[str, int] = {}
    try:
        names = sorted(each.name for each in host.path(_GPUS).iterdir())
    except OSError:
        return found
    for name in names:
        if not any(name.lower() == each or name.lower().startswith(f"{each}.") for each in wanted):
            continue
        try:
            minor = _MINOR.search(host.text(_GPUS, name, "information"))
        except OSError:
            continue
        if minor is not None:
            found[name] = int(minor[1])
    return found


def _holders(host: Host, gpus: dict[str, int], daemons: Sequence[str]) -> Iterator[str]:
    """Yield the processes that have the device of a GPU open; OSError.

    Those named in `daemons` are left out: the command ends them itself.
    """
    devices = {f"/dev/nvidia{minor}" for minor in gpus.values()}
    count = 0
    names = (each.name for each in host.path("proc").iterdir())
    for pid in sorted(filter(str.isdecimal, names), key=int):
        try:
            if not any(link in devices for link in _links(host.path("proc", pid, "fd"))):
                continue
            name = host.text("proc", pid, "comm")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if name in daemons:
            continue
        yield f"{name} ({pid})"
        count += 1
        if count == _HOLDERS_MAX:
            return


def _links(folder: Path) -> Iterator[str]:
    for each in folder.iterdir():
        try:
            yield str(each.readlink())
        except FileNotFoundError:
            continue


def perform(
    settings: RepairSettings, request: RepairRequest, gpus: Sequence[str]
) -> ProgramOutcome:
    """Run the command of an action to its end, or to its time-out."""
    if request.action is Action.REBOOT:
        first, *rest = settings.reboot_command
        return run(Path(first), _REBOOT_COMMAND_SECONDS, *rest)
    first, *rest = settings.reset_command
    return run(Path(first), settings.reset_seconds, *rest, "-i", ",".join(gpus))
