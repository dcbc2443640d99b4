"""What counts from an empty node: from a start of the kubelet, of containerd and of the kernel, or
at once.

Each has a drop-in of its own (`kubelet`, `containerd`, `kernel`, `ecc`, `accepted`); here they are
looked at, taken back, set and removed together, each on its own: one that cannot be set holds up no
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Self, assert_never

import msgspec

from fairlead.api.cluster.node_report import SettingState, TuningMode
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import TuningSettings
from fairlead.node.tuning.drop_ins.accepted import accepted_drop_in, accepted_file, set_accepted
from fairlead.node.tuning.drop_ins.choice import ChosenLines, DropIn
from fairlead.node.tuning.drop_ins.containerd import (
    containerd_drop_in,
    containerd_file,
    is_containerd_down,
    set_containerd,
)
from fairlead.node.tuning.drop_ins.ecc import ecc_drop_in, ecc_file, set_ecc, take_back_ecc
from fairlead.node.tuning.drop_ins.kernel import (
    kernel_drop_in,
    refuse_kernel,
    remove_kernel,
    set_kernel,
)
from fairlead.node.tuning.drop_ins.kubelet import (
    is_kubelet_down,
    kubelet_drop_in,
    kubelet_file,
    set_kubelet,
)
from fairlead.node.tuning.profile import LineKind, ReadyProfile
from fairlead.node.tuning.verify import TuningFinding

#: Looks in a row at which a daemon is down until its drop-in is taken back.
_LOOKS_DOWN = 2


class StartPart(Enum):
    """What has a drop-in, in the order in which they are set: a kubelet needs its containerd.

    `kind` of its lines; None: all that take effect at once. `done` is what was done where the
    machine need not start for it, "" where it has to.
    """

    _value_: str
    kind: LineKind | None
    start: str
    done: str

    def __new__(cls, value: str, kind: LineKind | None, start: str, done: str = "") -> Self:
        """Make a member."""
        part = object.__new__(cls)
        part._value_, part.kind, part.start, part.done = value, kind, start, done
        return part

    SETTINGS = "settings", None, "the next time that the node is empty", "settings were set"
    CONTAINERD = (
        "containerd", LineKind.CONTAINERD, "containerd's next start",
        "containerd was started again",
    )  # fmt: skip
    KUBELET = "kubelet", LineKind.KUBELET, "the kubelet's next start"
    ECC = "gpu", LineKind.GPU, "the machine's next start"
    KERNEL = "kernel", LineKind.KERNEL_ARGUMENT, "the machine's next start"

    def title(self, name: str) -> str:
        """Return the title of the line of a setting that its drop-in gives."""
        return name if self.kind is None else f"{self.kind.value} {name}"


@dataclass(frozen=True, slots=True)
class NextStart:
    """How the drop-in of a part is; None: `why` it is not known. `left` is by the title of a line.

    `left`: lines that differ and that it does not give, with the reason.
    """

    part: StartPart
    drop_in: DropIn | None = None
    why: str = ""
    left: Mapping[str, tuple[SettingState, str]] = field(
        default_factory=dict[str, tuple[SettingState, str]]
    )

    @property
    def needs_restart(self) -> bool:
        """True when its part should start again for it."""
        return self.drop_in is not None and self.drop_in.needs_restart

    @property
    def words(self) -> str:
        """What is the matter with it, "" for nothing."""
        if self.drop_in is None:
            return f"{self.part.value}: {self.why}"
        if self.drop_in.is_refused:
            return f"{self.part.value}: the drop-in was taken back: {self.drop_in.why}"
        if not self.drop_in.needs_restart:
            return ""
        names = ", ".join(self.drop_in.settings)
        return f"counts from {self.part.start}: {names}" if names else (
            f"what an earlier profile had set goes with {self.part.start}"
        )  # fmt: skip


class DropIns:
    """The drop-ins that the settings name; none in mode `verify` but for a dry run."""

    def __init__(self, host: Host, settings: TuningSettings, *, is_dry: bool = False) -> None:
        """`is_dry`: whatever the mode, what they would be is asked for, and nothing is written."""
        self._host = host
        self._settings = settings
        self._looks_down = dict.fromkeys(StartPart, 0)
        self._parts = tuple(self._named() if is_dry or settings.mode is TuningMode.APPLY else ())

    def _named(self) -> Iterator[StartPart]:
        if self._settings.accepted_file:
            yield StartPart.SETTINGS
        if self._settings.containerd_directory:
            yield StartPart.CONTAINERD
        if self._settings.kubelet_directory:
            yield StartPart.KUBELET
        if self._settings.ecc_file:
            yield StartPart.ECC
        if self._settings.kernel_arguments:
            yield StartPart.KERNEL

    def look(self, profile: ReadyProfile, facts: Mapping[str, int]) -> tuple[NextStart, ...]:
        """Return how each is; none is written."""
        return tuple(self._look_at(part, profile, facts) for part in self._parts)

    def _look_at(
        self, part: StartPart, profile: ReadyProfile, facts: Mapping[str, int]
    ) -> NextStart:
        try:
            drop_in, chosen = self._read(part, profile, facts)
            return NextStart(part, drop_in, left=chosen.left)
        except (Absent, OSError) as error:
            return NextStart(part, why=str(error))

    def _read(
        self, part: StartPart, profile: ReadyProfile, facts: Mapping[str, int]
    ) -> tuple[DropIn, ChosenLines]:
        match part:
            case StartPart.SETTINGS:
                return accepted_drop_in(self._host, self._settings.accepted_file, profile, facts)
            case StartPart.CONTAINERD:
                directory = self._settings.containerd_directory
                return containerd_drop_in(self._host, directory, profile, facts)
            case StartPart.KUBELET:
                directory = self._settings.kubelet_directory
                return kubelet_drop_in(self._host, directory, profile, facts)
            case StartPart.ECC:
                return ecc_drop_in(self._host, self._settings.ecc_file, profile, facts)
            case StartPart.KERNEL:
                return kernel_drop_in(self._host, profile, facts)
            case _:
                assert_never(part)

    def take_back(self) -> None:
        """Take a drop-in back from a daemon that is down at two looks in a row; OSError.

        A kubelet whose containerd is down is not to blame: it cannot run without.
        """
        host, settings = self._host, self._settings
        if StartPart.CONTAINERD in self._parts:
            is_down = is_containerd_down(host, settings.containerd_directory)
            if self._counts_down(StartPart.CONTAINERD, is_down=is_down):
                containerd_file(host, settings.containerd_directory).take_back()
            if is_down:
                return
        if StartPart.KUBELET in self._parts and self._counts_down(
            StartPart.KUBELET, is_down=is_kubelet_down(host)
        ):
            kubelet_file(host, settings.kubelet_directory).take_back()

    def refuse(self, why: str) -> str:
        """Take all back, for the next start, and keep them as refused; return what went wrong."""
        wrong = list[str]()
        for part in self._parts:
            try:
                self._refuse(part, why)
            except (Absent, OSError) as error:
                wrong.append(f"{part.value}: {error}")
        return "; ".join(wrong)

    def _refuse(self, part: StartPart, why: str) -> None:
        settings = self._settings
        match part:
            case StartPart.SETTINGS:
                accepted_file(self._host, settings.accepted_file).take_back(why)
            case StartPart.CONTAINERD:
                containerd_file(self._host, settings.containerd_directory).take_back(why)
            case StartPart.KUBELET:
                kubelet_file(self._host, settings.kubelet_directory).take_back(why)
            case StartPart.ECC:
                take_back_ecc(self._host, settings.ecc_file, why)
            case StartPart.KERNEL:
                refuse_kernel(self._host, why)
            case _:
                assert_never(part)

    def _counts_down(self, part: StartPart, *, is_down: bool) -> bool:
        """Return whether it has been down for long; what comes back then is given as long."""
        down = self._looks_down[part] + 1 if is_down else 0
        self._looks_down[part] = down % _LOOKS_DOWN
        return down == _LOOKS_DOWN

    def set(
        self, profile: ReadyProfile, facts: Mapping[str, int], asked: Sequence[str]
    ) -> tuple[str, str]:
        """Set them all before a restart for the components `asked`; return what went wrong second.

        Where only parts are asked for that need no start of the machine, and no other waits for
        it, the machine need not start: the first text says how it went instead.
        """
        instead, wrong, waits = dict[str, str](), list[str](), False
        for found in self.look(profile, facts):
            part, drop_in = found.part, found.drop_in
            if drop_in is None:
                wrong.append(found.words)
                continue
            said = part.done
            try:
                self._set(part, drop_in)
            except (Absent, OSError) as error:
                said = f"{part.value}: {error}"
                wrong.append(said)
            if part.done and drop_in.needs_restart:
                instead[part.value] = said
            waits |= not part.done and drop_in.needs_restart
        is_enough = bool(asked) and set(asked) <= instead.keys() and not waits
        return "; ".join(instead.values()) if is_enough else "", "; ".join(wrong)

    def _set(self, part: StartPart, drop_in: DropIn) -> None:
        settings = self._settings
        match part:
            case StartPart.SETTINGS:
                set_accepted(self._host, settings.accepted_file, drop_in)
            case StartPart.CONTAINERD:
                set_containerd(
                    self._host, settings.containerd_directory, drop_in,
                    settings.containerd_restart_command,
                )  # fmt: skip
            case StartPart.KUBELET:
                set_kubelet(self._host, settings.kubelet_directory, drop_in)
            case StartPart.ECC:
                set_ecc(self._host, settings.ecc_file, drop_in)
            case StartPart.KERNEL:
                set_kernel(self._host, drop_in)
            case _:
                assert_never(part)

    def remove(self) -> Iterator[StartPart]:
        """Remove each at once and yield it, for the next start of its part; Absent, OSError."""
        settings = self._settings
        for part in self._parts:
            match part:
                case StartPart.SETTINGS:
                    is_gone = accepted_file(self._host, settings.accepted_file).remove()
                case StartPart.CONTAINERD:
                    is_gone = containerd_file(self._host, settings.containerd_directory).remove()
                case StartPart.KUBELET:
                    is_gone = kubelet_file(self._host, settings.kubelet_directory).remove()
                case StartPart.ECC:
                    take_back_ecc(self._host, settings.ecc_file, "")
                    is_gone = ecc_file(self._host, settings.ecc_file).remove()
                case StartPart.KERNEL:
                    is_gone = remove_kernel(self._host)
                case _:
                    assert_never(part)
            if is_gone:
                yield part


def explained(
    findings: Iterable[TuningFinding], starts: Iterable[NextStart]
) -> tuple[TuningFinding, ...]:  # fmt: skip
    """Return the findings, those of lines that count from a start with what becomes of them."""
    said: dict[str, tuple[SettingState, str]] = {}
    for start in starts:
        said |= start.left
        if start.drop_in is not None and start.words:
            for name in start.drop_in.settings:
                is_refused = start.drop_in.is_refused
                state = SettingState.REFUSED if is_refused else SettingState.DIFFERS
                said[start.part.title(name)] = state, start.words
    return tuple(
        msgspec.structs.replace(each, state=said[each.setting][0], why=said[each.setting][1])
        if each.state is SettingState.DIFFERS and each.setting in said else each
        for each in findings
    )  # fmt: skip
