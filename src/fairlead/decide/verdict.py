"""Verdict and Decision: what a decision says, next to what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from fairlead.decide.reasons import Outcome, Reason, render

#: (namespace, name)
ObjectKey: TypeAlias = tuple[str, str]
Fact: TypeAlias = int | float | str | bool
#: One controller's closed set of actions.
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True)
class Verdict:
    """The judgement on one job: a reason, the numbers behind it, and who stands in the way.

    Jobs that ask for the same share one, which renders its message once.
    """

    reason: Reason
    facts: Mapping[str, Fact] = field(default_factory=dict)
    blockers: tuple[ObjectKey, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Follows from the reason."""
        return self.reason.outcome

    @cached_property
    def message(self) -> str:
        """The reason's template with the facts filled in, amounts in units that people read."""
        return render(self.reason, self.facts)


class Decision(msgspec.Struct, Generic[A_co], frozen=True):
    """What to do, in order; what was judged; and when time alone could change the answer.

    `wake_at` is in seconds since the epoch; None when only a change can matter.
    """

    actions: tuple[A_co, ...] = ()
    verdicts: Mapping[ObjectKey, Verdict] = msgspec.field(default_factory=dict)
    wake_at: float | None = None
    #: What deciding about an object raised; the object is left out of the rest.
    faults: Mapping[ObjectKey, Exception] = msgspec.field(default_factory=dict)


NOTHING: Decision[Any] = Decision()


def earliest(*instants: float | None) -> float | None:
    """Return the earliest instant that there is."""
    return min((at for at in instants if at is not None), default=None)
