"""Rates of traffic to the internet, in bits per second, as people write them."""

from __future__ import annotations

from enum import Enum

from fairlead.api.values import quantity
from fairlead.api.values.quantity import QuantityError


class TrafficDirection(Enum):
    """Which way traffic goes, as the pod sees it."""

    EGRESS = "egress"
    INGRESS = "ingress"


#: A team's budget is divided over thousands of nodes.
TEAM_BITS_MIN = 10**7
#: Less would cut a pod off, more is no network's.
POD_BITS_MIN, BITS_MAX = 64_000, 10**13


def egress_bits(text: str, *, least: int = POD_BITS_MIN) -> int:
    """Return bits per second of a quantity such as 200M (10**6) or 1Gi (2**30); ValueError."""
    try:
        value = quantity.parse(text)
    except QuantityError as error:
        raise ValueError(f"'{text[:40]}' is no rate in bits per second such as 200M") from error
    if not least <= value <= BITS_MAX:
        raise ValueError(f"{text[:40]} must be from {rate_text(least)} to {rate_text(BITS_MAX)}")
    return int(value)


def rate_text(bits: int) -> str:
    """Return a rate for people and for `egress_bits`, rounded: "1.5G", "200M", "64k"."""
    for suffix, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if bits >= size:
            return f"{bits / size:.3g}{suffix}" if bits < 1000 * size else f"{bits // size}{suffix}"
    return str(bits)
