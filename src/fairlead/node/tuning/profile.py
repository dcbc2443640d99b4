"""A tuning profile: the settings that a machine should have, each with its reason and its source.

A profile is a YAML file. Those of known shapes are shipped in `profiles/`; a cluster's own one has
the same form. A file is refused as a whole, with every mistake and its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Self

from msgspec import Meta

from fairlead.api.cluster.node_report import FACTS_MAX
from fairlead.api.values.sections import Section, about
from fairlead.input.errors import Code, fail
from fairlead.input.sections import parse, read_text
from fairlead.input.suggest import nearest
from fairlead.node.settings import Facts
from fairlead.node.tuning.facts import FACT_NAMES
from fairlead.node.tuning.formula import FORMULA_MAX, Formula, FormulaError, parse_formula

LINES_MAX = 256
TEXT_MAX = 400
SHIPPED = Path(__file__).parent / "profiles"
_SYSCTL = re.compile(r"[a-z0-9_]+(?:[./][A-Za-z0-9_:@-]+(?:\.[0-9]+)?)+")
#: An argument of the kernel; a field of KubeletConfiguration, or of containerd, with / between
#: levels.
_ARGUMENT = re.compile(r"[A-Za-z0-9_.:-]+")
_FIELD = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*")
_OF_CONTAINERD = "plugins/io.containerd.cri.v1.images/max_concurrent_downloads"
PROFILE_NAME = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_WORD = re.compile(r"[A-Za-z0-9_-]+")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
#: Settings that name a program which the kernel runs as root, or that register one.
_PROGRAMS = re.compile(
    r"kernel\.(?:core_pattern|core_pipe_limit|modprobe|hotplug|poweroff_cmd|usermodehelper\..*)"
    r"|fs\.binfmt_misc\..*"
)


class LineKind(Enum):
    """What a line sets, `is_set_at_once`: by a write that takes effect and can be taken back.

    What is not is only verified; `remedy` says what a person does. `names` are those that there
    are, empty for a kind of many, or of one.
    """

    _value_: str
    is_set_at_once: bool
    names: tuple[str, ...]
    remedy: str

    def __new__(cls, value: str, names: tuple[str, ...], remedy: str) -> Self:
        """Make a member."""
        kind = object.__new__(cls)
        kind._value_, kind.names, kind.remedy = value, names, remedy
        kind.is_set_at_once = not remedy
        return kind

    SYSCTL = "Sysctl", (), ""
    TRANSPARENT_HUGEPAGES = "TransparentHugepages", ("enabled", "defrag", "shmem_enabled"), ""
    CPU_GOVERNOR = "CpuGovernor", ("all",), ""
    MODULE = "Module", (), "load it at boot: a line in /etc/modules-load.d"
    RUNTIME_LIMIT = (
        "RuntimeLimit",
        ("memlock", "nofile", "nproc"),
        "Limit{0}= in a drop-in of the container runtime's unit, then restart the runtime",
    )
    KERNEL_ARGUMENT = "KernelArgument", (), "change it in the boot loader, drain the node, reboot"
    KUBELET = (
        "KubeletConfig",
        (),
        "change the kubelet's configuration, drain the node, restart it",
    )
    GPU = "Gpu", ("persistence", "ecc"), ""
    CONTAINERD = (
        "ContainerdConfig",
        (),
        "change containerd's configuration, drain the node, restart containerd",
    )


_FROM_START = (LineKind.KERNEL_ARGUMENT, LineKind.KUBELET, LineKind.CONTAINERD)


class ProfileLine(Section, frozen=True):
    """One setting. It has one of `value`, `atLeast` and `oneOf`."""

    kind: Annotated[
        LineKind,
        about(
            "Sysctl, TransparentHugepages, CpuGovernor, Module, RuntimeLimit, KernelArgument, "
            "KubeletConfig, ContainerdConfig, Gpu."
        ),
    ]
    name: Annotated[str, Meta(min_length=1, max_length=128, description="Which one of the kind.")]
    reason: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, description="Why.")]
    source: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, description="Who says so.")]
    value: Annotated[int | str, about("The value that it has.")] = ""
    at_least: Annotated[int | str, about("A number or a formula; a larger value is good, too.")] = (
        ""
    )
    one_of: Annotated[
        tuple[int | str, ...],
        Meta(max_length=8, description="Values that are good; the first one is set."),
    ] = ()
    when: Annotated[
        str,
        Meta(max_length=FORMULA_MAX, description="A formula; the line counts where it is not 0."),
    ] = ""
    required: Annotated[bool, about("A machine that lacks the setting differs.")] = False
    overwrite: Annotated[bool, about("What a person has set by hand is overwritten.")] = False

    @property
    def counts_from_start(self) -> bool:
        """True for what counts from the next start of the machine, or of a daemon on it."""
        return self.kind in _FROM_START or self._is_ecc

    @property
    def is_set_at_once(self) -> bool:
        """True for what takes effect with one write, and is taken back by another."""
        return self.kind.is_set_at_once and not self._is_ecc

    @property
    def remedy(self) -> str:
        """What a person does about it; "" for what is set at once."""
        if self._is_ecc:
            return "nvidia-smi -e 1 or 0, drain the node, reset its GPUs or reboot"
        return self.kind.remedy.format(self.name.upper())

    @property
    def _is_ecc(self) -> bool:
        return self.kind is LineKind.GPU and self.name == "ecc"

    @property
    def title(self) -> str:
        """The setting in a word."""
        return self.name if self.kind is LineKind.SYSCTL else f"{self.kind.value} {self.name}"

    @property
    def accepted(self) -> tuple[str, ...]:
        """The texts that are good; none for `atLeast`."""
        given = self.one_of or ((self.value,) if self.value != "" else ())
        return tuple(normal(str(each)) for each in given)


class MachineProfile(Section, frozen=True):
    """What the machines of one shape should be like."""

    name: Annotated[str, Meta(pattern=f"^{PROFILE_NAME.pattern}$", description="Name.")]
    about: Annotated[str, Meta(max_length=TEXT_MAX, description="For which machines it is.")] = ""
    facts: Annotated[
        Facts, Meta(max_length=FACTS_MAX, description="Facts, where none are given.")
    ] = {}
    lines: Annotated[
        tuple[ProfileLine, ...], Meta(max_length=LINES_MAX, description="Settings.")
    ] = ()


@dataclass(frozen=True, slots=True)
class WantedLine:
    """A line that is ready to be judged: its formulas are parsed."""

    line: ProfileLine
    at_least: Formula | None
    when: Formula | None

    @property
    def needed(self) -> tuple[str, ...]:
        """The facts that its formulas need, sorted."""
        names = {name for each in (self.when, self.at_least) if each for name in each.names}
        return tuple(sorted(names))


@dataclass(frozen=True, slots=True)
class ReadyProfile:
    """A profile whose formulas are parsed."""

    profile: MachineProfile
    wants: tuple[WantedLine, ...]


def normal(text: str) -> str:
    """Return a value with single spaces: the kernel shows several numbers with tabs."""
    return " ".join(text.split())


def ready(profile: MachineProfile) -> ReadyProfile:
    """Return a profile without conflicts, its formulas parsed once."""
    return ReadyProfile(profile, tuple(
        WantedLine(line, parse_formula(line.at_least) if line.at_least != "" else None,
             parse_formula(line.when) if line.when else None)
        for line in profile.lines
    ))  # fmt: skip


NO_PROFILE = ready(MachineProfile(name="none"))


def shipped_names() -> tuple[str, ...]:
    """Return the names of the profiles that come with Fairlead."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def profile_path(name: str) -> Path:
    """Return the file of a shipped profile, or the one that a path names; CliError."""
    if "/" in name or "." in name:
        return Path(name)
    names = shipped_names()
    if name in names:
        return SHIPPED / f"{name}.yaml"
    near = nearest(name, names)
    help_ = f"did you mean {near}?" if near else f"shipped are {', '.join(names)}"
    raise fail(Code.BAD_VALUE, f"no profile '{name}' is shipped", help=(
        help_, "a profile in a file is named by its path, such as ./profile.yaml"))  # fmt: skip


def load_profile(name: str) -> ReadyProfile:
    """Return a shipped profile, or that of a file; CliError with all mistakes."""
    path = profile_path(name)
    return parse_profile(read_text(path), str(path))


def parse_profile(text: str, source: str) -> ReadyProfile:
    """Return the profile in a text that problems call `source`; CliError with all mistakes."""
    return ready(parse(text, MachineProfile, conflicts, source=source))


def conflicts(profile: MachineProfile) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of what cannot be, or does not go together."""
    yield from unknown_facts(profile.facts, "facts")
    seen: dict[str, int] = {}
    for i, line in enumerate(profile.lines):
        path = f"lines[{i}]"
        yield from _name_conflicts(line, path)
        yield from _value_conflicts(line, path)
        if line.title in seen:
            first = seen[line.title]
            yield f"{path}.name", f"{line.title} is also in lines[{first}]; it is set once"
        seen.setdefault(line.title, i)


def unknown_facts(given: Facts, path: str) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of the facts that do not exist."""
    for name in given:
        if name not in FACT_NAMES:
            yield f"{path}.{name}", f"no fact '{name}'; there are {', '.join(FACT_NAMES)}"


def _name_conflicts(line: ProfileLine, path: str) -> Iterator[tuple[str, str]]:
    place, name = f"{path}.name", line.name
    if line.kind.names and name not in line.kind.names:
        yield place, f"'{name}' is none of {', '.join(line.kind.names)}"
    if line.kind is LineKind.MODULE and not _WORD.fullmatch(name):
        yield place, f"'{name}' is not the name of a module"
    if line.kind is LineKind.KERNEL_ARGUMENT and not _ARGUMENT.fullmatch(name):
        yield place, f"'{name}' is not the name of an argument of the kernel such as iommu"
    if line.kind is LineKind.KUBELET and not _FIELD.fullmatch(name):
        yield place, f"'{name}' is not a field of KubeletConfiguration such as serializeImagePulls"
    if line.kind is LineKind.CONTAINERD and not _FIELD.fullmatch(name):
        yield place, f"'{name}' is not a setting of containerd such as {_OF_CONTAINERD}"
    if line.kind is LineKind.SYSCTL and not _SYSCTL.fullmatch(name):
        yield place, f"'{name}' is not the name of a setting such as net.core.somaxconn"
    elif line.kind is LineKind.SYSCTL and _PROGRAMS.fullmatch(name.replace("/", ".")):
        yield place, f"{name} names a program that the kernel runs as root; no profile sets it"


def _value_conflicts(line: ProfileLine, path: str) -> Iterator[tuple[str, str]]:
    given = [name for name, value in (("value", line.value), ("atLeast", line.at_least),
                                      ("oneOf", line.one_of)) if value not in ("", ())]  # fmt: skip
    if len(given) != 1:
        found = f"it has {' and '.join(given)}" if given else "it has none"
        yield path, f"a line has one of value, atLeast and oneOf; {found}"
    if line.kind is LineKind.MODULE and line.value != "loaded":
        yield f"{path}.value", "a module has the value loaded"
    if line.kind is LineKind.GPU and not (line.accepted and {*line.accepted} <= {"on", "off"}):
        yield path, "a mode of GPUs is on or off"
    for text in (*line.one_of, line.value):
        if text != "" and not (len(str(text)) <= FORMULA_MAX and _PRINTABLE.fullmatch(str(text))):
            yield path, f"{text!r} is not one line of {FORMULA_MAX} printable characters"
    for field, formula in (("atLeast", line.at_least), ("when", line.when)):
        if formula != "":
            yield from _formula_conflicts(formula, f"{path}.{field}")


def _formula_conflicts(text: str | int, path: str) -> Iterator[tuple[str, str]]:
    try:
        formula = parse_formula(text)
        if not formula.names:
            formula.value({})
    except FormulaError as error:
        yield path, str(error)
        return
    for name in formula.names:
        if name not in FACT_NAMES:
            near = nearest(name, FACT_NAMES)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(FACT_NAMES)}"
            yield path, f"no fact '{name}'; {hint}"
