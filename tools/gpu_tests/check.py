"""What each step of `make test-gpu` is to find, and whether it did (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.api.cluster.machine_result import Figure, MachineFinding, SuiteResult
from fairlead.api.cluster.node_suites import Better, machine_tests
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.model.health.judgement import PEERS_MIN, PeerFigures, is_beyond, judged

#: Exit codes: as expected, not so, and the one of tools that skip their tests (automake).
AS_EXPECTED, UNEXPECTED, NO_GPU = 0, 1, 77

#: Dense operations per second that the vendor states for an architecture, by the name of the device
#: and the figure. The floor is a share of it: products of this size are far from the peak, and each
#: is compared. NVIDIA data sheets: H200 (2024), H100 SXM (2023), A100 80 GB (2021), L40S (2023).
_H100 = {"bf16FlopsPerSecond": 989e12, "fp16FlopsPerSecond": 989e12, "fp32FlopsPerSecond": 67e12}
_A100 = {"bf16FlopsPerSecond": 312e12, "fp16FlopsPerSecond": 312e12, "fp32FlopsPerSecond": 19.5e12}
_L40S = {"bf16FlopsPerSecond": 362e12, "fp16FlopsPerSecond": 362e12, "fp32FlopsPerSecond": 91.6e12}
PEAKS = {"H200": _H100, "H100": _H100, "A100": _A100, "L40S": _L40S}
#: An estimate, which no measurement stands behind: it finds a GPU that runs at a fraction.
PEAK_SHARE_MIN = 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a test. `wanted`: the outcomes of a machine, and of a test, that work."""

    title: str
    found: MachineFinding
    wanted: tuple[MachineOutcome, ...] = (MachineOutcome.PASSED,)

    @property
    def is_as_wanted(self) -> bool:
        """True when it found what it was to find."""
        return self.found.outcome in self.wanted


def with_floors(found: MachineFinding, device: str) -> MachineFinding:
    """Return what was found, judged by the floors of the device: of the suites, and of its peaks.

    A device whose architecture is not known has none.
    """
    (by_table,) = judged(SuiteResult("gpu", (found,), devices=(device,)), PeerFigures())
    peaks = next((each for name, each in PEAKS.items() if name in device), {})
    return _against(
        by_table, {name: PEAK_SHARE_MIN * peak for name, peak in peaks.items()}, "of the peak"
    )


def _against(found: MachineFinding, floors: Mapping[str, float], of: str) -> MachineFinding:
    figures, misses = list[Figure](), list[str]()
    for each in found.figures:
        floor = floors.get(each.name)
        if floor is None or found.test != "gpu-matmul":
            figures.append(each)
            continue
        figures.append(Figure(each.name, each.value, each.worst, floor))
        if is_beyond(Better.HIGHER, each.value, floor):
            misses.append(f"{each.name} {each.value:.3g} is less than {floor:.3g} {of}")
    if not misses or found.outcome is not MachineOutcome.PASSED:
        return MachineFinding(
            found.test, found.outcome, found.message, found.seconds, tuple(figures)
        )
    return MachineFinding(
        found.test, MachineOutcome.FAILED, "; ".join(misses), found.seconds, tuple(figures)
    )


def against_itself(found: MachineFinding, before: MachineFinding) -> MachineFinding:
    """Return what was found, judged by a fleet of machines that all are as this one was before."""
    fleet = PeerFigures({f"machine-{number}": (before,) for number in range(PEERS_MIN)})
    (out,) = judged(SuiteResult("gpu", (found,)), fleet)
    return out


def lines(step: Step) -> list[str]:
    """Return a step as lines of text: what it found, and its figures beside their thresholds."""
    found = step.found
    mark = "ok" if step.is_as_wanted else "NOT AS EXPECTED"
    wanted = " or ".join(each.value for each in step.wanted)
    why = f": {found.message}" if found.message else ""
    head = f"{mark:16}{step.title}: {found.outcome.value} (wanted {wanted}), {found.seconds:.1f} s"
    return [head + why, *(_line(found.test, each) for each in found.figures)]


def _line(test: str, figure: Figure) -> str:
    kind = machine_tests()[test].kind_of(figure.name)
    worst = "" if figure.worst is None else f", worst {figure.worst:.4g}"
    limit = "no threshold" if figure.limit is None else f"threshold {figure.limit:.4g}"
    return f"{'':16}  {figure.name:28} {figure.value:>12.4g} {kind.unit:4} {limit}{worst}"


def exit_code(steps: Sequence[Step]) -> int:
    """Return the exit code of a run."""
    return AS_EXPECTED if steps and all(each.is_as_wanted for each in steps) else UNEXPECTED
