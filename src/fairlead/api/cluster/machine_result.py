"""What a run of a suite says of a machine: outcomes and figures, as its program leaves them.

A test pod leaves a `SuiteResult` as the message with which its container ends, so it is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

import msgspec

from fairlead.api.cluster.node_report import WHY_MAX, Action
from fairlead.api.meta import Wire
from fairlead.api.values.bounds import doc
from fairlead.api.values.outcomes import MachineOutcome

#: A kubelet keeps so much of a termination message (kubelet `pkg/kubelet/container/helpers.go`).
RESULT_BYTES_MAX = 4096
MEASURED_MAX = 32
PAIRS_MAX = 8
FIGURES_MAX = 16
TEST_MAX = 63


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
    action: Annotated[
        Action | None, doc("What a failure of an administrator's own test recommends.")
    ] = None


class PairMeasure(Wire, frozen=True):
    """What two members of a gang measured between them; an `error` is none of the hardware.

    `loses_full_packets`: small packets arrive and those of full size do not.
    """

    peer: int
    bytes_per_second: float = 0.0
    round_trip_seconds: float = 0.0
    is_wrong: bool = False
    error: str = ""
    loses_full_packets: bool = False


class SuiteResult(Wire, frozen=True):
    """What a run of a suite says, as its program writes it; `pairs` of a gang's member only."""

    suite: str
    measured: tuple[MachineFinding, ...]
    boot_id: str = ""
    machine_id: str = ""
    devices: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    pairs: tuple[PairMeasure, ...] = ()


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
        pairs = tuple(
            msgspec.structs.replace(each, error=each.error[:length]) for each in result.pairs
        )
        cut = msgspec.structs.replace(result, measured=short, pairs=pairs)
        data = msgspec.json.encode(cut)
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
    if len(result.pairs) > PAIRS_MAX:
        raise UnreadableResult("it has too many pairs")
    for pair in result.pairs:
        if not all(map(math.isfinite, (pair.bytes_per_second, pair.round_trip_seconds))):
            raise UnreadableResult(f"the pair with {pair.peer} is no measurement")
    for each in result.measured:
        if len(each.test) > TEST_MAX or len(each.figures) > FIGURES_MAX:
            raise UnreadableResult(f"test {each.test[:TEST_MAX]!r} has too many figures")
        for figure in each.figures:
            numbers = (figure.value, 0.0 if figure.worst is None else figure.worst)
            if not all(math.isfinite(number) for number in numbers) or figure.limit is not None:
                raise UnreadableResult(f"{each.test}.{figure.name[:TEST_MAX]} is no measurement")
    return result
