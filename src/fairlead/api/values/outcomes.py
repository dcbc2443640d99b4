"""How a test of a machine ends."""

from __future__ import annotations

from enum import Enum
from typing import Self


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
