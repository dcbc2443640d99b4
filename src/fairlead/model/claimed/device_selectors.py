"""Expressions that choose devices: CEL of resource.k8s.io/v1, for kube-scheduler's answers.

    device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "h100"

cel-python parses and evaluates. Only what means the same there as in cel-go is accepted
(`model/cel.py`); all else is an error with its place, so nothing is answered wrongly.

An evaluation takes a millisecond, and a cluster has 60,000 devices. So an expression remembers what
it read of a device, and what followed: a tree of answers, in which devices that are alike in what
the expression reads end at one leaf. Only a device that comes to no leaf is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Protocol, TypeAlias

from msgspec import Struct

from fairlead.api.kubernetes.devices import Device, DeviceClassSpec
from fairlead.model.claimed.device_asks import DeviceKind

#: Length of an expression, a fifth of what the API server takes: to parse it holds up all else; and
#: steps of all evaluations of one, for devices that differ in what it reads.
EXPRESSION_MAX, STEPS_IN_ALL_MAX = 2 * 1024, 6_000

#: What is read: ("driver",), or ("attributes" or "capacity", domain, name).
Path: TypeAlias = tuple[str, ...]
#: Returns the type and the value that a device has at a path; None for nothing.
Read: TypeAlias = Callable[[Path], Hashable]


class CompiledProgram(Protocol):
    """A compiled expression."""

    @property
    def steps_taken(self) -> int:
        """How many steps its evaluations have taken."""
        ...

    def evaluate(self, read: Read) -> bool:
        """Return what it says of the device that `read` reads; ExpressionError."""
        ...


class ExpressionError(ValueError):
    """An expression that does not compile, is not understood, or fails for a device."""


class DeviceExpression:
    """An expression, and what it has answered."""

    def __init__(self, expression: str) -> None:
        """ExpressionError for one that does not compile."""
        if len(expression) > EXPRESSION_MAX:
            raise ExpressionError(f"is longer than {EXPRESSION_MAX} characters")
        self._program = _compiler()(expression)
        self._answers: _Read | _Answer | None = None

    @property
    def steps_taken(self) -> int:
        """How many steps of evaluations it has taken."""
        return self._program.steps_taken

    def matches(self, driver: str, device: Device) -> bool:
        """Return whether a device of a driver will do; ExpressionError where that has no answer."""
        at = self._answers
        while isinstance(at, _Read):
            at = at.then.get(look(at.path, driver, device))
        if at is None:
            at = self._evaluate(driver, device)
        if at.error:
            raise ExpressionError(at.error)
        return at.matches

    def _evaluate(self, driver: str, device: Device) -> _Answer:
        if self._program.steps_taken >= STEPS_IN_ALL_MAX:
            raise ExpressionError(f"takes more than {STEPS_IN_ALL_MAX} steps for all devices")
        reads: dict[Path, Hashable] = {}

        def read(path: Path) -> Hashable:
            reads[path] = found = look(path, driver, device)
            return found

        try:
            answer = _Answer(matches=self._program.evaluate(read))
        except ExpressionError as error:
            answer = _Answer(error=str(error))
        self._remember(tuple(reads.items()), answer)
        return answer

    def _remember(self, reads: tuple[tuple[Path, Hashable], ...], answer: _Answer) -> None:
        """Note what was read, in order: an evaluation reads next what follows from what it read."""
        if not reads:
            self._answers = answer
            return
        if self._answers is None:
            self._answers = _Read(reads[0][0])
        at = self._answers
        for (_, value), (path, _) in pairwise(reads):
            assert isinstance(at, _Read), "the same was read before"
            at = at.then.setdefault(value, _Read(path))
        assert isinstance(at, _Read), "the same was read before"
        at.then[reads[-1][1]] = answer


@dataclass(frozen=True, slots=True)
class MatchedKind:
    """A kind whose devices are told apart by a bit of their masks, and what its class is; None for
    a class that does not exist.
    """

    bit: int
    device_class: DeviceClassSpec | None

    def texts(self, kind: DeviceKind) -> list[str]:
        """Return the expressions that choose its devices; ExpressionError."""
        if self.device_class is None:
            raise ExpressionError("there is no such class")
        given = self.device_class.selectors
        of_class = [each.cel.expression for each in given if each.cel is not None]
        if len(of_class) < len(given):
            raise ExpressionError("of the class is not in CEL")
        return [*of_class, *kind.selectors]


class _Answer:
    """What an expression says of devices."""

    __slots__ = ("error", "matches")

    def __init__(self, *, matches: bool = False, error: str = "") -> None:
        self.matches, self.error = matches, error


class _Read:
    """What an expression reads next, and what it does then, by the value."""

    __slots__ = ("path", "then")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.then: dict[Hashable, _Read | _Answer] = {}


#: Expressions are few, and the same ones are asked for again and again.
_SELECTORS_MAX = 512
_selectors: dict[str, DeviceExpression | ExpressionError] = {}


def device_expression(expression: str) -> DeviceExpression:
    """Return an expression, compiled once; ExpressionError."""
    found = _selectors.get(expression)
    if found is None:
        if len(_selectors) >= _SELECTORS_MAX:
            _selectors.clear()
        try:
            found = DeviceExpression(expression)
        except ExpressionError as error:
            found = error
        _selectors[expression] = found
    if isinstance(found, ExpressionError):
        raise ExpressionError(str(found))
    return found


def will_do(
    kind: DeviceKind, selectors: Sequence[DeviceExpression], driver: str, device: Device
) -> bool:
    """Return whether a device is of a kind with these selectors; ExpressionError.

    Selectors come first: one that fails for a device leaves out a node (`selectorsMatch`).
    """
    if not is_chosen(selectors, driver, device):
        return False
    if device.taints and not kind.tolerates(device.taints):
        return False
    return not kind.alike or None not in alike(kind, driver, device)


def is_chosen(selectors: Sequence[DeviceExpression], driver: str, device: Device) -> bool:
    """Return whether selectors choose a device, had or not; ExpressionError."""
    for each in selectors:  # noqa: SIM110 # no generator, as it is asked of each device
        if not each.matches(driver, device):
            return False
    return True


def may_choose(
    selectors: Sequence[DeviceExpression], driver: str, devices: Iterable[Device]
) -> bool:
    """Return whether selectors choose some of these devices, or fail for one."""
    try:
        return any(is_chosen(selectors, driver, device) for device in devices)
    except ExpressionError:
        return True


def bundles_of(kind: DeviceKind, counts: Mapping[Hashable, Sequence[int]]) -> int:
    """Return how many bundles there are of devices that are alike; `counts` are by what they are
    alike in how many there are of each kind in a bundle.

    Of devices that differ as many as there are whichever are taken: once none is left, devices of
    fewer values than a bundle has are, at best those with the most; and a bundle has of all others
    as many as it has devices, and one of each value.
    """
    if kind.differ:
        size = kind.together[0].count
        rest = sorted((sum(found) for found in counts.values()), reverse=True)[size - 1 :]
        return max(-(-sum(rest) // size), rest[0]) if rest else 0
    of_one = (zip(found, kind.together, strict=True) for found in counts.values())
    return sum(min(n // each.count for n, each in found) for found in of_one)


def broken_by(kind: DeviceKind, counts: Mapping[Hashable, Sequence[int]]) -> int:
    """Return how many bundles are less at most without these devices, whatever others are gone."""
    if kind.differ:
        of_values = [sum(found) for found in counts.values()]
        size = kind.together[0].count
        return max(-(-sum(of_values) // size), *of_values) if of_values else 0
    of_one = (zip(found, kind.together, strict=True) for found in counts.values())
    return sum(max(-(-n // each.count) for n, each in found) for found in of_one)


def alike(kind: DeviceKind, driver: str, device: Device) -> tuple[Hashable, ...]:
    """Return what a device has of the attributes in which those of a kind are alike; None for what
    it lacks, or has of a type that is not known.
    """
    found = (look(("attributes", *name.split("/", 1)), driver, device) for name in kind.alike)
    return tuple(None if isinstance(each, _Unknown) else each for each in found)


class _Unknown(Struct, frozen=True):
    """A value of a type that is not known."""

    key: str


def look(path: Path, driver: str, device: Device) -> Hashable:
    """Return what a device has at a path, with its type; None for nothing."""
    if len(path) == 1:
        return ("string", driver)
    kind, domain, name = path
    keys = (name, f"{domain}/{name}") if domain == driver else (f"{domain}/{name}",)
    for key in keys:
        if kind == "attributes" and key in device.attributes:
            return device.attributes[key].value or _Unknown(key)
        if kind == "capacity" and key in device.capacity:
            return ("quantity", device.capacity[key].value)
    return None


@cache
def _compiler() -> Callable[[str], CompiledProgram]:
    """Return what compiles, imported with the first expression: cel-python takes 0.1 s, 19 MB."""
    compile_: Callable[[str], CompiledProgram] = import_module(
        "fairlead.model.cel"
    ).compile_expression
    return compile_
