"""Why a job has no priority, as a verdict."""

from __future__ import annotations

from typing import assert_never

from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.priorities import MissingClass, ReservedClass, Unresolved


def priority_verdict(unresolved: Unresolved) -> Verdict:
    """Return the verdict on a job whose PriorityClass cannot be used."""
    facts = {"priority_class": unresolved.name}
    match unresolved:
        case MissingClass():
            return Verdict(Reason.PRIORITY_CLASS_MISSING, facts)
        case ReservedClass():
            return Verdict(Reason.PRIORITY_CLASS_RESERVED, facts)
        case _:
            assert_never(unresolved)
