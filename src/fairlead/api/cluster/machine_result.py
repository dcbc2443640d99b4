"""What a run of a suite says of a machine: outcomes and figures, as its program leaves them.

A test pod leaves a `SuiteResult` as the message with which its container ends, so it is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Self

import msgspec

from fairlead.api.cluster.node_report import WHY_MAX
from fairlead.api.meta import Wire
from fairlead.api.values.bounds import doc

#: A kubelet keeps so much of a termination message (kubelet `pkg/kubelet/container/helpers.go`).
RESULT_BYTES_MAX = 4096
MEASURED_MAX = 32
FIGURES_MAX = 16
TEST_MAX = 63


class MachineOutcome(Enum):
    """How a test ended; the worst of its tests, by `rank`, is that of a suite."""

    _value_: str
    rank: int

    def __new__(cls, value: str, rank: int) -> Self:
        """Make a member."""
        outcome = object.__new__(cls)
        outcome._value_, outcome.rank = value, rank
        return outcome

    SKIPPED = "Skipped", 0  # the machine lacks the thing, or nothing is expected of it
    PASSED = "Passed", 1
    ERROR = "Error", 2  # of the harness: it says nothing about the machine
    FAILED = "Failed", 3  # alone says that something is wrong with the machine


class Figure(Wire, frozen=True):
    """A number that a test measured; its name has the quantity and the unit."""

    name: Annotated[str, doc("What was measured.", maxLength=TEST_MAX)]
    value: Annotated[float, doc("The best measurement.")]
    worst: Annotated[float | None, doc("The worst one, where there were several.")] = None
    limit: Annotated[
        float | None, doc("The least that is good, or the most; absent: not judged.")
    ] = None


class MachineFinding(Wire, frozen=True):
    """What one test found."""

    test: Annotated[str, doc("Name of the test.", maxLength=TEST_MAX)]
    outcome: Annotated[MachineOutcome, doc("How it ended.")]
    message: Annotated[str, doc("Why it did not pass.", maxLength=WHY_MAX)] = ""
    seconds: Annotated[float, doc("How long it took.")] = 0.0
    figures: Annotated[tuple[Figure, ...], doc("What was measured.", maxItems=FIGURES_MAX)] = ()


class SuiteResult(Wire, frozen=True):
    """What a run of a suite says, as its program writes it."""

    suite: str
    measured: tuple[MachineFinding, ...]
    boot_id: str = ""
    machine_id: str = ""
    devices: tuple[str, ...] = ()
    versions: dict[str, str] = {}


def worst_outcome(measured: Iterable[MachineFinding]) -> MachineOutcome:
    """Return the worst outcome; Skipped where there is none."""
    outcomes = (each.outcome for each in measured)
    return max(outcomes, key=lambda each: each.rank, default=MachineOutcome.SKIPPED)


class UnreadableResult(ValueError):
    """What a container left is no result; the message says why."""


def encode_result(result: SuiteResult) -> bytes:
    """Return a result as a termination message; texts are cut where it would be too long.

    UnreadableResult for figures that do not fit: nothing is left out in silence.
    """
    for length in (WHY_MAX, 60, 0):
        short = tuple(
            msgspec.structs.replace(each, message=each.message[:length]) for each in result.measured
        )
        data = msgspec.json.encode(msgspec.structs.replace(result, measured=short))
        if len(data) <= RESULT_BYTES_MAX:
            return data
    raise UnreadableResult(f"it has {len(data):,} bytes; {RESULT_BYTES_MAX:,} are kept")


def decode_result(text: str) -> SuiteResult:
    """Return what a container left; UnreadableResult for what is none, or has figures that no
    measurement gives.
    """
    try:
        result = msgspec.json.decode(text, type=SuiteResult)
    except (ValueError, RecursionError) as error:
        raise UnreadableResult(f"it is no result of a test: {error}"[:WHY_MAX]) from error
    names = [each.test for each in result.measured]
    if len(names) > MEASURED_MAX or len(set(names)) < len(names):
        raise UnreadableResult("it names a test twice, or too many")
    for each in result.measured:
        if len(each.test) > TEST_MAX or len(each.figures) > FIGURES_MAX:
            raise UnreadableResult(f"test {each.test[:TEST_MAX]!r} has too many figures")
        for figure in each.figures:
            numbers = (figure.value, 0.0 if figure.worst is None else figure.worst)
            if not all(math.isfinite(number) for number in numbers) or figure.limit is not None:
                raise UnreadableResult(f"{each.test}.{figure.name[:TEST_MAX]} is no measurement")
    return result
