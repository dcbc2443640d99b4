"""The tests of machines and their suites as data, read from `node_suites.toml`.

The programs read their options here, and the judge directions and floors of their figures.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, lru_cache
from importlib import resources
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from fairlead.api.cluster.machine_result import MachineOutcome
from fairlead.api.cluster.node_report import Action

Option: TypeAlias = int | float | str | list[str]
#: The check of faults that tests find; the component is the test.
TESTED = "node-test"
#: Of the program of test pods: a test of the administrator's, as JSON.
OWN_TEST = "--own-test"
_THOROUGH = "full"
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
    """A test: what it catches, what a failure recommends, what it measures.

    An administrator's own one has a `command` in the place of a program of ours, and says itself in
    which suites it is.
    """

    name: str
    catches: str
    action: Action
    late: MachineOutcome
    timeout_seconds: float
    options: dict[str, Option] = {}
    proves: tuple[str, ...] = ()
    figure: tuple[FigureKind, ...] = ()
    command: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()

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
    #: Tests of the administrator's among them.
    own: tuple[MachineTest, ...] = ()

    def kinds(self) -> Iterator[MachineTest]:
        """Yield its tests, with its own options and time-outs."""
        known = machine_tests(self.own)
        for name in self.tests:
            kind = known[name]
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
    pair: Suite


def machine_tests(own: Iterable[MachineTest] = ()) -> Mapping[str, MachineTest]:
    """Return every test by name, with the administrator's own ones."""
    own = tuple(own)
    return _tests() if not own else {**_tests(), **{each.name: each for each in own}}


@cache
def suites() -> Mapping[str, Suite]:
    """Return every suite by name."""
    return MappingProxyType({each.name: each for each in _file().suite})


def suite_of(
    name: str, retests: Collection[str] = (), own: Iterable[MachineTest] = ()
) -> Suite | None:
    """Return a suite with the administrator's tests that belong to it, and with tests for faults
    that a node had; None: there is no such suite.

    The latter run as the suite `full` has them where that is the longer one, also where the suite
    itself has none of the name, and have their own time beyond it.
    """
    suite, thorough = suites().get(name), suites()[_THOROUGH]
    if suite is not None and (mine := tuple(each for each in own if name in each.suites)):
        suite = msgspec.structs.replace(
            suite, own=mine, tests=(*suite.tests, *(each.name for each in mine)),
            seconds=suite.seconds + sum(each.timeout_seconds for each in mine),
        )  # fmt: skip
    if suite is None or not retests:
        return suite
    is_longer = suite.seconds < thorough.seconds
    source = thorough if is_longer else suite
    kinds = [each for each in source.kinds() if each.name in retests]
    more = tuple(each.name for each in kinds if each.name not in suite.tests)
    options = {each.name: source.options.get(each.name, {}) for each in kinds}
    seconds = suite.seconds + sum(each.timeout_seconds for each in kinds if is_longer)
    return msgspec.structs.replace(
        suite, seconds=seconds, tests=(*suite.tests, *more), options={**suite.options, **options}
    )


def proofs_of(check: str, component: str) -> tuple[str, ...]:
    """Return the tests that would find a fault of a check again; of a test, itself."""
    if check == TESTED:
        return (component,) if component in machine_tests() else ()
    return _proofs_of_check(check)


@lru_cache(maxsize=256)  # thousands of nodes have faults of few checks
def _proofs_of_check(check: str) -> tuple[str, ...]:
    return tuple(each.name for each in machine_tests().values() if check in each.proves)


def gang_suite() -> Suite:
    """Return the tests that run in the pods of a gang before its program starts."""
    return _file().gang


def pair_suite() -> Suite:
    """Return what the test pods of two nodes measure between them."""
    return _file().pair


def device_floor(device: str, test: str, figure: str) -> float | None:
    """Return the floor of a figure on a device of this name; None: the table has none."""
    for floor in _file().floor:
        if floor.device in device:
            return floor.figures.get(f"{test}.{figure}")
    return None


@cache
def _tests() -> Mapping[str, MachineTest]:
    return MappingProxyType({each.name: each for each in _file().test})


@cache
def _file() -> _File:
    file = resources.files("fairlead.api.cluster").joinpath("node_suites.toml")
    text = file.read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _File)
