"""Kubernetes quantities as integers in base units: milli-CPU, bytes, whole devices.

Grammar and suffixes: apimachinery `pkg/api/resource/quantity.go`. Arithmetic is exact (integers
and fractions of ten); a value finer than the base unit is rounded away from zero, as there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
GPU = "nvidia.com/gpu"
#: A slice of a GPU at the end of a type, as Slurm's NVML plugin names it: h100_3g.40gb, 1g.10gb+me.
_SLICE = re.compile(r"(?:(.*)_)?(\d{1,2}g\.\d{1,4}gb)([+.]me)?", re.IGNORECASE)
EPHEMERAL_STORAGE = "ephemeral-storage"
#: First characters of what counts devices that claims ask for; no resource has such a name.
CLAIMED = "claim:"
#: First characters of what counts volumes that a driver attaches to a node; the same.
ATTACHED = "volumes:"
#: Before a resource of containers, after `CLAIMED`: devices that take its place on nodes without.
SERVING = "for "

_SUFFIX: dict[str, Fraction] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
#: The text of a quantity: number, then an exponent or a suffix.
PATTERN = r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)"
_PATTERN = re.compile(PATTERN, re.ASCII)
_LENGTH_MAX = 64
_CACHED_MAX = 4096
AMOUNT_MAX = 2**63 - 1


class QuantityError(ValueError):
    """The text is no quantity; the message names it and gives accepted forms."""


def is_quantity(text: str) -> bool:
    """True for the text of a quantity."""
    return len(text) <= _LENGTH_MAX and _PATTERN.fullmatch(text) is not None


def parse(text: str | float) -> Fraction:
    """Return the exact value of "500m", "1.5Gi", "2e3" or a bare number; QuantityError if none."""
    return _parse_text(text) if type(text) is str else _parse(text)


@lru_cache(maxsize=_CACHED_MAX)
def _parse_text(text: str) -> Fraction:
    """Pods by the thousand ask for the same amounts."""
    return _parse(text)


def _parse(text: str | float) -> Fraction:
    if isinstance(text, int) and abs(text) > AMOUNT_MAX:
        return Fraction(text)
    raw = str(text)
    match = _PATTERN.fullmatch(raw) if len(raw) <= _LENGTH_MAX else None
    if match is None:
        raise QuantityError(f"'{raw[:_LENGTH_MAX]}' is not a quantity such as 500m, 8, 16Gi or 2e3")
    value = Fraction(match[1])
    if match[2]:
        return value * Fraction(10) ** int(match[2][1:])
    return value * _SUFFIX[match[3] or ""]


def to_base(resource: str, text: str | float) -> int:
    """Return `text` in the base unit of `resource`: milli-CPU for cpu, else bytes or a count.

    Rounded away from zero, and cut off at ±AMOUNT_MAX: the API server keeps 64-bit integers too.
    """
    if type(text) is int:  # as most GPUs are written
        amount = text * 1000 if resource == CPU else text
        return max(min(amount, AMOUNT_MAX), -AMOUNT_MAX)
    return _text_to_base(resource, text) if type(text) is str else _to_base(resource, text)


@lru_cache(maxsize=_CACHED_MAX)
def _text_to_base(resource: str, text: str) -> int:
    return _to_base(resource, text)


def _to_base(resource: str, text: str | float) -> int:
    value = parse(text)
    if resource == CPU:
        value *= 1000
    magnitude = -(-abs(value.numerator) // value.denominator)
    return min(magnitude, AMOUNT_MAX) * (1 if value >= 0 else -1)


def resources_to_base(resources: Mapping[str, str | int | float]) -> dict[str, int]:
    """Return each resource in its base unit, zero amounts left out, keys sorted."""
    amounts = {name: to_base(name, resources[name]) for name in sorted(resources)}
    return {name: amount for name, amount in amounts.items() if amount}


def format_base(resource: str, amount: int) -> str:
    """Return the canonical text of an amount in base units: "1500m", "4", "16Gi"."""
    if resource == CPU:
        return f"{amount // 1000}" if amount % 1000 == 0 else f"{amount}m"
    if resource in (MEMORY, EPHEMERAL_STORAGE) and amount:
        for suffix, power in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
            if amount % (1 << power) == 0:
                return f"{amount >> power}{suffix}"
    return str(amount)


def is_gpu(resource: str) -> bool:
    """True for GPUs of any vendor: nvidia.com/gpu, amd.com/gpu and the like."""
    return resource.endswith("/gpu")


def gpu_resource(kind: str) -> tuple[str, str]:
    """Return the resource that a type of GPUs is counted by, and the type of the whole GPU.

    A slice of a GPU (MIG) is a resource of its own, as NVIDIA's device plugin names it with the
    strategy `mixed`; "" for a type that is not named.
    """
    match = _SLICE.fullmatch(kind)
    if match is None:
        return GPU, kind
    return f"nvidia.com/mig-{match[2].lower()}{'.me' if match[3] else ''}", match[1] or ""


def humanize(resource: str, amount: int) -> str:
    """Return a short text for people, rounded: "1.5 cpu" → "1.5", "900.2Gi", "8"."""
    if resource == CPU:
        return f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if resource in (MEMORY, EPHEMERAL_STORAGE):
        for suffix, power in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
            if abs(amount) >= 1 << power:
                return f"{amount / (1 << power):.1f}".rstrip("0").rstrip(".") + suffix
    return str(amount)
