"""What every test says: figures, or why there are none, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from fairlead.api.cluster.machine_result import Figure, MachineFinding, MachineOutcome
from fairlead.api.cluster.node_report import WHY_MAX
from fairlead.node.running.host import Absent

#: Of each measurement: the best one is judged, as bandwidths of good machines flutter.
REPEATS = 3
_DIGITS = 6


class Broken(Exception):
    """The machine does wrong; with what was measured meanwhile."""

    def __init__(self, message: str, figures: Iterable[Figure] = ()) -> None:
        super().__init__(message)
        self.figures = tuple(figures)


def higher(name: str, values: Sequence[float]) -> Figure:
    """Return a figure of which more is better, from at least one measurement."""
    return _figure(name, max(values), min(values))


def lower(name: str, values: Sequence[float]) -> Figure:
    """Return a figure of which less is better, from at least one measurement."""
    return _figure(name, min(values), max(values))


def number(name: str, value: float) -> Figure:
    """Return a figure that was measured once."""
    return Figure(name, value if isinstance(value, int) else _rounded(value))


def _figure(name: str, best: float, worst: float) -> Figure:
    return Figure(name, _rounded(best), None if best == worst else _rounded(worst))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def measured(test: str, measure: Callable[[], Iterable[Figure]]) -> MachineFinding:
    """Return what a measurement found: its figures, or why there are none."""
    started, message, figures = perf_counter(), "", tuple[Figure, ...]()
    try:
        outcome, figures = MachineOutcome.PASSED, tuple(measure())
    except Absent as error:
        outcome, message = MachineOutcome.SKIPPED, str(error)
    except Broken as error:
        outcome, message, figures = MachineOutcome.FAILED, str(error), error.figures
    except Exception as error:  # noqa: BLE001 # ours or the system's: it says nothing of the machine
        outcome, message = MachineOutcome.ERROR, f"{type(error).__name__}: {error}"
    seconds = round(perf_counter() - started, 3)
    return MachineFinding(test, outcome, message[:WHY_MAX], seconds, figures)
