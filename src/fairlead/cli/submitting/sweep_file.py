"""A sweep: which values of which parameters are tried, and so the elements of an array.

    method: random            # or grid, which is the default: all combinations
    samples: 20
    seed: 7
    parameters:
      lr: {min: 0.0001, max: 0.1, log: true}
      batch: [32, 64, 128]
    earlyStop: {metric: loss, rule: median, firstStep: 100}

The values are drawn here and written into the array: what runs is seen in the object, and the same
file makes the same sweep. Sources: a grid varies its last parameter fastest, as nested loops do;
random values are uniform, or uniform in their logarithm (Bergstra and Bengio, "Random Search for
Hyper-Parameter Optimization", JMLR 13, 2012).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, cast

from msgspec import Meta

from fairlead.api.jobs.early_stop import (
    FACTOR_MAX,
    METRIC_NAME_LENGTH_MAX,
    EarlyStop,
    EarlyStopRule,
    MetricGoal,
)
from fairlead.api.jobs.run_facts import PARAMETER_LENGTH_MAX, PARAMETER_NAME, PARAMETERS_MAX
from fairlead.api.values.bounds import INT32_MAX
from fairlead.api.values.sections import Section, about, within

ELEMENTS_MAX = 10_000
SEED_MAX = 2**53
_RANGE_KEYS = ("min", "max", "log", "steps")


class SweepMethod(Enum):
    """How values are put together."""

    GRID = "grid"
    RANDOM = "random"


class SweepStopRule(Enum):
    """How a run is compared with the others."""

    MEDIAN = "median"
    HALVING = "halving"


class SweepGoal(Enum):
    """Which values of a metric are better."""

    MIN = "min"
    MAX = "max"


class SweepStop(Section, frozen=True):
    """When runs stop that do worse than the others."""

    metric: Annotated[
        str, Meta(max_length=METRIC_NAME_LENGTH_MAX,
                  description="The metric that is compared, as the program reports it."),
    ]  # fmt: skip
    rule: Annotated[SweepStopRule, about("median, or halving.")] = SweepStopRule.MEDIAN
    goal: Annotated[SweepGoal, about("Which values are better.")] = SweepGoal.MIN
    first_step: Annotated[int, within(1, INT32_MAX, "Runs are compared from this step on.")] = 1
    factor: Annotated[int, within(2, FACTOR_MAX, "Each next step is so many times as far.")] = 3
    elements_min: Annotated[int, within(1, INT32_MAX, "So many others must have got there.")] = 3

    def wire(self) -> EarlyStop | None:
        """Return the field of the array; None where no metric is compared."""
        if not self.metric:
            return None
        rules = {SweepStopRule.MEDIAN: EarlyStopRule.MEDIAN,
                 SweepStopRule.HALVING: EarlyStopRule.HALVING}  # fmt: skip
        goals = {SweepGoal.MIN: MetricGoal.MINIMIZE, SweepGoal.MAX: MetricGoal.MAXIMIZE}
        return EarlyStop(self.metric, rules[self.rule], goals[self.goal], self.first_step,
                         self.factor, self.elements_min)  # fmt: skip


class SweepFile(Section, frozen=True):
    """What is tried: of each parameter a list of values, or a range with min and max."""

    parameters: Annotated[
        dict[str, Any], about("By name: a list of values, or {min, max, log, steps}.")
    ]
    method: Annotated[SweepMethod, about("All combinations, or drawn at random.")] = (
        SweepMethod.GRID
    )
    samples: Annotated[
        Annotated[int, within(1, ELEMENTS_MAX, "")] | None,
        about("How many are drawn; of random alone."),
    ] = None
    seed: Annotated[int, within(0, SEED_MAX, "What is drawn depends on it alone.")] = 0
    parallelism: Annotated[
        Annotated[int, within(1, ELEMENTS_MAX, "")] | None,
        about("Most elements at a time. Default: no limit."),
    ] = None
    early_stop: SweepStop = SweepStop(metric="")
    command: Annotated[tuple[str, ...], about("What is run, unless the command line says it.")] = ()


def sweep_conflicts(sweep: SweepFile) -> Iterator[tuple[str, str]]:
    """Yield what the types do not say: (path, what is wrong)."""
    is_grid = sweep.method is SweepMethod.GRID
    if not sweep.parameters:
        yield "parameters", "there is none"
    if len(sweep.parameters) > PARAMETERS_MAX:
        yield "parameters", f"at most {PARAMETERS_MAX}"
    if is_grid and sweep.samples is not None:
        yield "samples", "a grid has all combinations; leave it out, or write method: random"
    if not is_grid and sweep.samples is None:
        yield "method", "random takes samples: how many are drawn"
    wrong = [*_wrong_parameters(sweep)]
    yield from wrong
    if is_grid and not wrong:
        count = math.prod(len(_grid(each)) for each in sweep.parameters.values())
        if count > ELEMENTS_MAX:
            advice = "fewer values, or method: random"
            yield "parameters", f"{count:,} combinations; at most {ELEMENTS_MAX:,}: {advice}"


def _wrong_parameters(sweep: SweepFile) -> Iterator[tuple[str, str]]:
    for name, given in sweep.parameters.items():
        path = f"parameters.{name}"
        if not PARAMETER_NAME.fullmatch(name):
            yield path, "a name has letters, digits and underscores, at most 63, no digit first"
        if isinstance(given, list):
            values = cast("list[Any]", given)
            if not values:
                yield path, "the list is empty"
            for at, value in enumerate(values):
                if not isinstance(value, (str, int, float, bool)):
                    yield f"{path}[{at}]", "must be a text, a number, true or false"
                elif len(_text(value)) > PARAMETER_LENGTH_MAX or "\0" in _text(value):
                    yield f"{path}[{at}]", f"at most {PARAMETER_LENGTH_MAX} characters, and no NUL"
        elif isinstance(given, dict):
            yield from _wrong_range(cast("dict[str, Any]", given), sweep.method, path)
        else:
            yield path, "must be a list of values, or a range {min: ..., max: ...}"


def _wrong_range(
    given: dict[str, Any], method: SweepMethod, path: str
) -> Iterator[tuple[str, str]]:
    for key in given:
        if key not in _RANGE_KEYS:
            yield f"{path}.{key}", f"no such field; accepted: {', '.join(_RANGE_KEYS)}"
    low, high, steps = given.get("min"), given.get("max"), given.get("steps")
    if not (_is_number(low) and _is_number(high)):
        yield path, "a range has two numbers, min and max"
        return
    assert low is not None
    assert high is not None
    if low >= high:
        yield f"{path}.max", "must be larger than min"
    if not isinstance(given.get("log", False), bool):
        yield f"{path}.log", "must be true or false"
    elif given.get("log") and low <= 0:
        yield f"{path}.min", "must be larger than 0 with log: true"
    if method is SweepMethod.RANDOM and steps is not None:
        yield f"{path}.steps", "is of a grid; random values are drawn from all of the range"
    is_count = isinstance(steps, int) and not isinstance(steps, bool)
    if method is SweepMethod.GRID and not (is_count and 2 <= cast("int", steps) <= ELEMENTS_MAX):
        yield path, f"of a grid a range has steps, 2 to {ELEMENTS_MAX:,}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def sweep_values(sweep: SweepFile) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the values of each parameter, one for each element; of a sweep without conflicts."""
    names = list(sweep.parameters)
    if sweep.method is SweepMethod.GRID:
        rows = itertools.product(*(_grid(each) for each in sweep.parameters.values()))
    else:
        # Each element and parameter has a stream of its own: more samples leave the first as is.
        rows = (
            [_drawn(sweep.parameters[name], random.Random(f"{sweep.seed}/{at}/{name}"))  # noqa: S311
             for name in names]
            for at in range(sweep.samples or 0)
        )  # fmt: skip
    columns = zip(*rows, strict=True)
    return tuple(
        (name, tuple(map(_text, column))) for name, column in zip(names, columns, strict=True)
    )


def _grid(given: Any) -> list[Any]:
    if isinstance(given, list):
        return cast("list[Any]", given)
    low, high, last = given["min"], given["max"], given["steps"] - 1
    if given.get("log"):
        inner = [math.exp(math.log(low) + math.log(high / low) * i / last) for i in range(1, last)]
    else:
        inner = [low + (high - low) * i / last for i in range(1, last)]
    if isinstance(low, int) and isinstance(high, int):
        return list(dict.fromkeys([low, *map(round, inner), high]))
    return [low, *inner, high]


def _drawn(given: Any, rng: random.Random) -> Any:
    """Return a value, of `random()` alone: its sequence is the same in each version of Python."""
    if isinstance(given, list):
        values = cast("list[Any]", given)
        return values[int(rng.random() * len(values))]
    low, high, is_log = given["min"], given["max"], given.get("log", False)
    if isinstance(low, int) and isinstance(high, int) and not is_log:
        return low + int(rng.random() * (high - low + 1))
    if is_log:
        value = math.exp(math.log(low) + rng.random() * math.log(high / low))
    else:
        value = low + rng.random() * (high - low)
    if isinstance(low, int) and isinstance(high, int):
        return round(value)
    return min(max(value, low), high)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
