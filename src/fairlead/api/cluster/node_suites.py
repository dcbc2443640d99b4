"""The tests of machines and their suites as data, read from `node_suites.toml`.

The programs read their options here, and the judge directions and floors of their figures.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from importlib import resources
from typing import TypeAlias

import msgspec

from fairlead.api.cluster.machine_result import MachineOutcome
from fairlead.api.cluster.node_report import Action

Option: TypeAlias = int | float | str | list[str]
_TIMEOUT = "timeout_seconds"


class Better(Enum):
    """Which figures are good."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = ""


class FigureKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure that a test measures."""

    name: str
    unit: str
    better: Better


class MachineTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test: what it catches, what a failure recommends, what it measures."""

    name: str
    catches: str
    action: Action
    late: MachineOutcome
    timeout_seconds: float
    options: dict[str, Option] = {}
    figure: tuple[FigureKind, ...] = ()

    def kind_of(self, figure: str) -> FigureKind:
        """Return what is known of a figure; of one that is not listed, that it is not judged."""
        unknown = FigureKind(figure, "", Better.NEITHER)
        return next((each for each in self.figure if each.name == figure), unknown)


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least of figures, by "test.figure", on devices whose name has the text."""

    device: str
    figures: dict[str, float]


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tests that run one after another within `seconds`."""

    name: str
    seconds: float
    tests: tuple[str, ...]
    options: dict[str, dict[str, Option]] = {}

    def kinds(self) -> Iterator[MachineTest]:
        """Yield its tests, with its own options and time-outs."""
        for name in self.tests:
            kind = machine_tests()[name]
            own = dict(self.options.get(name, {}))
            seconds = own.pop(_TIMEOUT, kind.timeout_seconds)
            assert isinstance(seconds, int | float)
            yield msgspec.structs.replace(
                kind, options={**kind.options, **own}, timeout_seconds=float(seconds)
            )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    test: tuple[MachineTest, ...]
    floor: tuple[Floor, ...]
    suite: tuple[Suite, ...]
    gang: Suite


def machine_tests() -> Mapping[str, MachineTest]:
    """Return every test by name."""
    return {each.name: each for each in _file().test}


def suites() -> Mapping[str, Suite]:
    """Return every suite by name."""
    return {each.name: each for each in _file().suite}


def gang_suite() -> Suite:
    """Return the tests that run in the pods of a gang before its program starts."""
    return _file().gang


def device_floor(device: str, test: str, figure: str) -> float | None:
    """Return the floor of a figure on a device of this name; None: the table has none."""
    for floor in _file().floor:
        if floor.device in device:
            return floor.figures.get(f"{test}.{figure}")
    return None


@cache
def _file() -> _File:
    file = resources.files("fairlead.api.cluster").joinpath("node_suites.toml")
    text = file.read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File)
