"""The mode of ECC of the GPUs, which counts from the next start of the machine.

It is set right before a reboot that health asks for. Which mode each GPU had before stands in a
file, on the disk before the first is set: it is what comes back when the profile has no such line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from fairlead.api.cluster.node_report import SettingState
from fairlead.node.running.host import Host
from fairlead.node.tuning.drop_ins.choice import ChosenLines, DropIn
from fairlead.node.tuning.drop_ins.own_file import OwnFile
from fairlead.node.tuning.gpus import ECC, TARGETS, gpu_modes, write_gpu
from fairlead.node.tuning.profile import LineKind, ReadyProfile
from fairlead.node.tuning.verify import compare, value_wanted


def ecc_file(host: Host, path: str) -> OwnFile:
    """Return the file with the modes from before, by GPU."""
    where = PurePosixPath(path)
    return OwnFile(host, str(where.parent), where.name)


def ecc_drop_in(
    host: Host, path: str, profile: ReadyProfile, facts: Mapping[str, int]
) -> tuple[DropIn, ChosenLines]:  # fmt: skip
    """Return which modes there should be, and are; Absent without GPUs or NVML, OSError."""
    file, known = ecc_file(host, path), dict(profile.profile.facts) | dict(facts)
    earlier = _modes(file.read().body, path)
    wants = [want for want in profile.wants
             if want.line.kind is LineKind.GPU and want.line.name == ECC]  # fmt: skip
    if not wants and not earlier:
        return DropIn("", "", True, False, ()), ChosenLines()
    has = {gpu: modes.ecc for gpu, modes in gpu_modes(host).items() if modes.ecc}
    wanted = {gpu: earlier.get(gpu, mode) for gpu, mode in has.items()}
    for want in wants:
        for gpu, mode in has.items():
            state = compare(want, known, mode).state
            if state is SettingState.DIFFERS:
                wanted[gpu] = value_wanted(want, known)
            elif state is SettingState.AS_WANTED:
                wanted[gpu] = mode
    refused = file.refused()
    body = _body(wanted)
    is_refused = wanted != has and refused.body == body
    return DropIn(
        body, _body(has), True, is_refused, (ECC,) if wants else (),
        refused.note if is_refused else "",
    ), ChosenLines()  # fmt: skip


def set_ecc(host: Host, path: str, found: DropIn) -> None:
    """Set what differs for the next start, after the modes from before are kept; OSError."""
    if not found.needs_restart:
        return
    wanted, has = _modes(found.wanted, path), _modes(found.has, path)
    file = ecc_file(host, path)
    file.write(_body(has | _modes(file.read().body, path)))
    for gpu, mode in wanted.items():
        if mode != has[gpu]:
            write_gpu(host, f"{TARGETS}{gpu}/{ECC}", mode)
    if not found.settings:  # all is as it was: what changes it then is no part of a profile
        file.put_back(None)


def take_back_ecc(host: Host, path: str, why: str) -> bool:
    """Set the modes from before for the next start and refuse the present ones; OSError, Absent.

    False where none was set.
    """
    file = ecc_file(host, path)
    earlier = _modes(file.read().body, path)
    has = {gpu: modes.ecc for gpu, modes in gpu_modes(host).items() if modes.ecc} if earlier else {}
    changed = {gpu: mode for gpu, mode in earlier.items() if has.get(gpu, mode) != mode}
    if changed:
        file.refuse(_body(has), why)
    for gpu, mode in changed.items():
        write_gpu(host, f"{TARGETS}{gpu}/{ECC}", mode)
    return bool(changed)


def _modes(body: str, path: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(body, type=dict[str, str]) if body else {}
    except ValueError as error:
        raise OSError(f"{path} is no record of modes: {error}") from error


def _body(modes: Mapping[str, str]) -> str:
    return msgspec.json.encode(dict(sorted(modes.items()))).decode()
