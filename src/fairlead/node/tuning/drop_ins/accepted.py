"""Settings that take effect at once, and that the agent may set: one file that only it reads.

Where it keeps such a file, it sets no other value of them than those that are in it. Another value
is asked for like one that counts from a start: health empties the node, the file is written, and
the node is tested with what is then set. With a value that is taken back it is set no more.

A machine that has just started and has no such file is one that takes no work yet: it accepts what
its profile says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from fairlead.api.cluster.node_report import SettingState
from fairlead.node.running.host import Host
from fairlead.node.tuning.drop_ins.choice import ChosenLines, DropIn
from fairlead.node.tuning.drop_ins.own_file import OwnFile
from fairlead.node.tuning.profile import ReadyProfile
from fairlead.node.tuning.values import set_by_administrator
from fairlead.node.tuning.verify import TuningFinding, verify

#: A machine that runs for so long is no new one.
_NEW_SECONDS = 900.0


def accepted_file(host: Host, path: str) -> OwnFile:
    """Return the file."""
    where = PurePosixPath(path)
    return OwnFile(host, str(where.parent), where.name)


def accepted_values(host: Host, path: str) -> dict[str, str] | None:
    """Return the values that may be set, by setting; None without a file: all may. OSError."""
    return _values(accepted_file(host, path).read().body, path) if path else None


def accept_on_new(
    host: Host, path: str, profile: ReadyProfile, facts: Mapping[str, int]
) -> None:  # fmt: skip
    """Accept all on a machine that has just started and never had a profile; OSError."""
    file = accepted_file(host, path)
    is_new = not file.read().is_there and not file.refused().is_there
    if is_new and host.now().uptime_seconds < _NEW_SECONDS:
        file.write(_body({each.setting: each.write for each in verify(host, profile, facts)
                          if each.write is not None}))  # fmt: skip


def accepted_drop_in(
    host: Host, path: str, profile: ReadyProfile, facts: Mapping[str, int]
) -> tuple[DropIn, ChosenLines]:  # fmt: skip
    """Return how the file is; OSError."""
    file = accepted_file(host, path)
    text, refused = file.read(), file.refused()
    has, known = _values(text.body, path), {want.line.title for want in profile.wants}
    new = {
        each.setting: each.write for each in _differing(host, profile, facts)
        if each.write is not None and has.get(each.setting) != each.write
    }  # fmt: skip
    if not new:
        return DropIn(text.body, text.body, True, False, ()), ChosenLines()
    wanted = _body({name: value for name, value in has.items() if name in known} | new)
    is_refused = new.items() <= _values(refused.body, path).items()
    return DropIn(
        wanted, text.body, True, is_refused, tuple(sorted(new)), refused.note if is_refused else ""
    ), ChosenLines()  # fmt: skip


def set_accepted(host: Host, path: str, found: DropIn) -> None:
    """Make the file what it should be, durably; OSError. The settings are of the next run."""
    if found.needs_restart:
        accepted_file(host, path).write(found.wanted)


def _differing(
    host: Host, profile: ReadyProfile, facts: Mapping[str, int]
) -> list[TuningFinding]:  # fmt: skip
    """Return what differs and would be written; what a person's files set would not be."""
    found = [each for each in verify(host, profile, facts)
             if each.state is SettingState.DIFFERS and each.write is not None]  # fmt: skip
    persons = set_by_administrator(host) if found else {}
    return [each for each in found
            if each.overwrite or persons.get(each.target, ("",))[0] != each.actual]  # fmt: skip


def _values(body: str, path: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(body, type=dict[str, str]) if body else {}
    except ValueError as error:
        raise OSError(f"{path} is no record of accepted settings: {error}") from error


def _body(values: Mapping[str, str]) -> str:
    return msgspec.json.encode(dict(sorted(values.items()))).decode()
