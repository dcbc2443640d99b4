"""Verdicts and amounts in words (pure)."""

from __future__ import annotations

from fairlead.api.values import quantity
from fairlead.decide.reasons import singular
from fairlead.decide.verdict import Fact, Verdict
from fairlead.decide.words import resource_word


def amount_text(resource: str, amount: Fact) -> str:
    """Return an amount in base units as people write it."""
    if isinstance(amount, bool) or not isinstance(amount, int):
        return str(amount)
    return quantity.humanize(resource, amount)


def amount_words(resource: str, amount: Fact) -> str:
    """Return e.g. "1 CPU", "8 GPUs", "900Gi memory"."""
    return singular(f"{amount_text(resource, amount)} {resource_word(resource)}")


def reason_words(reason: str, message: str) -> str:
    """Return "REASON: MESSAGE", or the reason alone."""
    return f"{reason}: {message}" if message else reason


def message_of(verdict: Verdict) -> str:
    """Return the verdict's words; the bare facts when it comes from a version with other facts."""
    try:
        return verdict.message
    except (KeyError, ValueError, IndexError):
        return ", ".join(f"{key}={value}" for key, value in sorted(verdict.facts.items()))
