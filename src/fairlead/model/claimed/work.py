"""Work that is done a part at a time: a generator that yields how much it has done since before.

One unit takes some microseconds (`WORK_PER_...` say what costs how many). What is counted follows
from the objects alone, never from a clock or from what a process has remembered, so that it is the
same in each run. What a generator returns is its result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: Yields units of work, and returns a result.
Work: TypeAlias = Generator[int, None, T]

#: A step of an evaluation of CEL (0.1 to 0.25 ms), and a character of an expression to compile.
WORK_PER_STEP, WORK_PER_CHARACTER = 30, 2


@dataclass(frozen=True, slots=True)
class Matched:
    """How many units of work were done, and whether `follow` has more to take in."""

    units: int
    has_news: bool


def advance(work: Work[None], units: int) -> tuple[int, bool]:
    """Do so many units of work, and what the last part has beyond; return how many that was, and
    whether all is done.
    """
    done = 0
    while done < units:
        try:
            done += next(work)
        except StopIteration:
            return done, True
    return done, False


def all_of(works: Iterable[Work[T]]) -> Work[list[T]]:
    """Do several, one after the other, and return their results."""
    found: list[T] = []
    for work in works:
        result = yield from work
        found.append(result)
    return found


def complete(work: Work[T]) -> T:
    """Do all work, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
