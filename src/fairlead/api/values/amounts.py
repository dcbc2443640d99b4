"""Quantities that are added up and written as the API server writes them.

A quantity keeps the kind of suffix that it was read with: what was binary stays binary. The
canonical form has the largest suffix without a fraction (apimachinery `pkg/api/resource`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from fairlead.api.values.quantity import QuantityError, parse

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_NANO = Fraction(1, 10**9)


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity; a sum is written as its first part was."""

    value: Fraction
    is_binary: bool = False

    def __add__(self, other: Amount) -> Amount:
        kept = self if self.value else other
        return Amount(self.value + other.value, kept.is_binary)

    def __lt__(self, other: Amount) -> bool:
        return self.value < other.value

    def less(self, other: Amount | None) -> Amount:
        """Return what is left of it, at least nothing."""
        gone = other.value if other is not None else Fraction(0)
        return Amount(max(self.value - gone, Fraction(0)), self.is_binary)

    def __str__(self) -> str:
        value = self.value
        if self.is_binary and abs(value) >= 1024:
            whole, power = -(-value.numerator // value.denominator), 0
            while whole % 1024 == 0 and power < len(_BINARY) - 1:
                whole, power = whole // 1024, power + 1
            return f"{whole}{_BINARY[power]}"
        nanos = -(-value // _NANO)
        if not nanos:
            return "0"
        power = 0
        while nanos % 1000 == 0 and power < len(_DECIMAL) - 1:
            nanos, power = nanos // 1000, power + 1
        return f"{nanos}{_DECIMAL[power]}"


Amounts: TypeAlias = dict[str, Amount]
ONE = Amount(Fraction(1))


def read(text: Any) -> Amount | None:
    """Return the quantity that a text or number says; None where it is none."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        return Amount(parse(text), str(text).rstrip().endswith("i"))
    except QuantityError:
        return None


def read_all(quantities: Any) -> Amounts:
    """Return the quantities of a resource list; what is none is left out."""
    given: Mapping[str, Any] = quantities if isinstance(quantities, dict) else {}
    found = {name: read(text) for name, text in given.items()}
    return {name: amount for name, amount in found.items() if amount is not None}


def added(parts: Iterable[Amounts]) -> Amounts:
    """Return the sum of each resource."""
    out: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            out[name] = out[name] + amount if name in out else amount
    return out


def largest(parts: Iterable[Amounts]) -> Amounts:
    """Return the largest amount of each resource."""
    out: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            if name not in out or out[name] < amount:
                out[name] = amount
    return out


def written(amounts: Amounts) -> dict[str, str]:
    """Return a resource list."""
    return {name: str(amounts[name]) for name in sorted(amounts)}
