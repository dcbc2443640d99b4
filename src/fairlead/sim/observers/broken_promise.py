"""A promise that a simulated world has broken: what every checker raises."""

from __future__ import annotations


class PromiseBroken(AssertionError):
    """A promise of the design does not hold; the message says which, where and when."""


def unwrap_broken(group: BaseExceptionGroup[BaseException]) -> PromiseBroken:
    """Return the broken promise in a task group's errors; raises the group when there is none."""
    broken: BaseException | None = group.subgroup(PromiseBroken)
    while isinstance(broken, BaseExceptionGroup):
        broken = broken.exceptions[0]
    if not isinstance(broken, PromiseBroken):
        raise group
    return broken
