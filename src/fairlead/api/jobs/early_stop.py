"""The rule by which elements of an array stop that do worse than the others: field and status."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.meta import Wire
from fairlead.api.values.bounds import Positive, doc

#: Steps at which elements are compared, and elements whose values are kept of each.
RUNGS_MAX = 12
SAMPLE_MAX = 64
FACTOR_MAX = 16
METRIC_NAME_LENGTH_MAX = 64


class EarlyStopRule(Enum):
    """How an element is compared with the others at a step."""

    MEDIAN = "Median"  # its best value so far with the median of their means so far
    HALVING = "SuccessiveHalving"  # the best part of those that got there goes on


class MetricGoal(Enum):
    """Which values are better."""

    MINIMIZE = "Minimize"
    MAXIMIZE = "Maximize"


class EarlyStop(Wire, frozen=True):
    """When elements stop that do worse than the others."""

    metric: Annotated[
        str,
        doc("The metric of the run that is compared, as programs report it.",
            minLength=1, maxLength=METRIC_NAME_LENGTH_MAX),
    ]  # fmt: skip
    rule: Annotated[
        EarlyStopRule,
        doc(
            "Median: stop where the best value is worse than the median of the others' means. "
            "SuccessiveHalving: of those that got to a step the best 1/factor go on. Default "
            "Median."
        ),
    ] = EarlyStopRule.MEDIAN
    goal: Annotated[MetricGoal, doc("Which values are better. Default Minimize.")] = (
        MetricGoal.MINIMIZE
    )
    first_step: Annotated[
        Positive, doc("Step at which elements are compared first; before it none stops. Default 1.")
    ] = 1
    factor: Annotated[
        int,
        doc("Each next step of comparison is this many times the one before. Default 3.",
            ge=2, maximum=FACTOR_MAX),
    ] = 3  # fmt: skip
    elements_min: Annotated[
        Positive, doc("None stops before so many others got to the step. Default 3.")
    ] = 3


class EarlyStopRung(Wire, frozen=True):
    """What ended elements had at one step: a sample of them, in the order of their indices."""

    step: Annotated[int, doc("The step.")]
    indices: Annotated[tuple[int, ...], doc("Indices of elements of the sample, at most 64.")] = ()
    values: Annotated[tuple[float, ...], doc("What the rule compares, of each of these.")] = ()
