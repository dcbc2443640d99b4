"""Which elements of a sweep stop, since they do worse than the others (pure).

Elements are compared by a metric of their runs at some steps: the first one, and each next one a
factor further. An element is judged at the last of these steps that it has reached, by those that
have reached it, too, whether they run or have ended. More of them come with time, so it is judged
again whenever one does: asynchronous, no element waits for another one.

    Median              its best value up to the step is worse than the median of the others' means
                        up to it. Golovin et al., "Google Vizier: A Service for Black-Box
                        Optimization", KDD 2017, section 3.2.2
    SuccessiveHalving   it is not among the best 1/factor at the step. Li et al., "A System for
                        Massively Parallel Hyperparameter Tuning", MLSys 2020 (ASHA), in the form
                        that stops what is not promoted

Jobs of ended elements go, so what the rule needs of them is in the status: of each step a sample,
those of the lowest hashes, which depends on no order of ends. Values are costs here: the less, the
better.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from statistics import median

from fairlead.api.jobs.early_stop import (
    RUNGS_MAX,
    SAMPLE_MAX,
    EarlyStop,
    EarlyStopRule,
    EarlyStopRung,
    MetricGoal,
)
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.run_facts import RunMetric


def rung_steps(rule: EarlyStop) -> list[int]:
    """Return the steps at which elements are compared, in ascending order."""
    return [rule.first_step * rule.factor**rung for rung in range(RUNGS_MAX)]


def folded(
    rule: EarlyStop, known: Iterable[EarlyStopRung], ended: Mapping[int, Job]
) -> tuple[EarlyStopRung, ...]:
    """Return the samples with elements that ended now, by index; steps that none reached are left
    out. To fold the same elements again changes nothing.
    """
    samples = {each.step: dict(zip(each.indices, each.values, strict=False)) for each in known}
    for step in rung_steps(rule):
        for index, job in ended.items():
            if (cost := _compared(rule, _metric(rule, job), step)) is not None:
                samples.setdefault(step, {})[index] = cost
    return tuple(
        EarlyStopRung(step, tuple(kept), tuple(samples[step][index] for index in kept))
        for step in sorted(samples)
        if (kept := sorted(sorted(samples[step], key=_hash)[:SAMPLE_MAX]))
    )


def worse_than_others(
    rule: EarlyStop, known: Iterable[EarlyStopRung], running: Mapping[int, Job]
) -> list[int]:
    """Return the indices of running elements that stop, in ascending order."""
    ended = {each.step: each.values for each in known}
    metrics = {index: _metric(rule, job) for index, job in running.items()}
    out: list[int] = []
    steps = rung_steps(rule)
    for place, step in enumerate(steps):
        live = {
            index: cost for index, metric in metrics.items()
            if (cost := _compared(rule, metric, step)) is not None
        }  # fmt: skip
        if not live:
            break
        for index in live:
            later = steps[place + 1] if place + 1 < len(steps) else None
            if later is not None and _has_reached(metrics[index], later):
                continue  # it is judged there
            others = [*ended.get(step, ()), *(live[each] for each in live if each != index)]
            best = _best(rule, metrics[index], step)
            if len(others) < rule.elements_min or best is None:
                continue
            if _is_worse(rule, live[index], best, others):
                out.append(index)
    return sorted(out)


def stop_words(rule: EarlyStop, job: Job) -> str:
    """Return what is said of an element that stops."""
    metric = _metric(rule, job)
    found = "" if metric is None or metric.last is None else f" = {metric.last:g}"
    return f"stopped early ({rule.rule.value}): {rule.metric}{found} is behind other elements"


def _is_worse(rule: EarlyStop, own: float, best: float, others: list[float]) -> bool:
    match rule.rule:
        case EarlyStopRule.MEDIAN:
            return best > median(others)
        case EarlyStopRule.HALVING:
            going_on = max((len(others) + 1) // rule.factor, 1)
            return sum(other < own for other in others) >= going_on


def _compared(rule: EarlyStop, metric: RunMetric | None, step: int) -> float | None:
    """Return what others are compared with of an element at a step: the mean up to it, or the value
    there. None: it has not got there, or its course is not known.
    """
    costs = _costs(rule, metric, step)
    if not costs:
        return None
    match rule.rule:
        case EarlyStopRule.MEDIAN:
            mean = math.fsum(costs) / len(costs)
            return mean if math.isfinite(mean) else None
        case EarlyStopRule.HALVING:
            return costs[-1]


def _best(rule: EarlyStop, metric: RunMetric | None, step: int) -> float | None:
    return min(_costs(rule, metric, step), default=None)


def _costs(rule: EarlyStop, metric: RunMetric | None, step: int) -> list[float]:
    """Return the known values up to a step, as costs; [] where it was not reached."""
    if metric is None or not _has_reached(metric, step):
        return []
    sign = 1.0 if rule.goal is MetricGoal.MINIMIZE else -1.0
    pairs = zip(metric.steps, metric.values, strict=False)
    return [sign * value for at, value in pairs if at <= step and math.isfinite(value)]


def _has_reached(metric: RunMetric | None, step: int) -> bool:
    """True once it reported the step, or, where it reports none, so many values."""
    if metric is None:
        return False
    return (metric.count if metric.step is None else metric.step) >= step


def _metric(rule: EarlyStop, job: Job) -> RunMetric | None:
    facts = job.status.run
    return None if facts is None else facts.metrics.get(rule.metric)


def _hash(index: int) -> tuple[int, int]:
    return zlib.crc32(str(index).encode()), index
