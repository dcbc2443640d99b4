"""Quantities: exact parsing, base units, and texts that are none."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fairlead.api.values import quantity
from fairlead.api.values.quantity import QuantityError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("8", 8), ("+1", 1), ("-2", -2), ("500m", Fraction(1, 2)), ("1.5Gi", 3 * 2**29),
        (".5", Fraction(1, 2)), ("5.", 5), ("2e3", 2000), ("1E2", 100), ("1E", 10**18),
        ("1Ei", 2**60), ("2e-3", Fraction(1, 500)), ("1k", 1000), ("100n", Fraction(1, 10**7)),
        (0.5, Fraction(1, 2)), (3, 3), (1e-7, Fraction(1, 10**7)), (10**30, 10**30),
    ],
)  # fmt: skip
def test_parse_is_exact(text: str | float, value: Fraction | int) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1\n", "lots", "1Kib", "1ki", "1Mi5", "--1", "1e", "1e+", "e3", "٣", "0x1",
     "1_000", "nan", "inf", "1.2.3", "9" * 65, True],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_with_examples(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a quantity such as 500m, 8, 16Gi or 2e3"):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("cpu", "500m", 500), ("cpu", 2, 2000), ("cpu", "1u", 1), ("cpu", "-1u", -1),
        ("memory", "1Gi", 2**30), ("memory", "1500m", 2), ("memory", "0.1", 1),
        ("nvidia.com/gpu", "8", 8), ("memory", "99E", 2**63 - 1), ("cpu", "-99E", -(2**63 - 1)),
    ],
)  # fmt: skip
def test_base_units_are_integers_rounded_away_from_zero_and_fit_64_bits(
    resource: str, text: str, amount: int
) -> None:
    assert quantity.to_base(resource, text) == amount


@pytest.mark.parametrize("amount", [0, 1, 999, 1000, 1500, 2**20, 2**30 * 3, 2**30 + 1])
@pytest.mark.parametrize("resource", ["cpu", "memory", "nvidia.com/gpu"])
def test_format_is_the_inverse_of_to_base(resource: str, amount: int) -> None:
    assert quantity.to_base(resource, quantity.format_base(resource, amount)) == amount


@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"])
def test_nothing_has_no_unit(resource: str) -> None:
    assert quantity.format_base(resource, 0) == "0"


def test_resources_to_base_leaves_zeros_out_and_sorts() -> None:
    amounts = quantity.resources_to_base({"memory": "1Ki", "cpu": "0", "a": 1})
    assert list(amounts.items()) == [("a", 1), ("memory", 1024)]
    assert quantity.humanize("memory", 2**30 * 3 // 2) == "1.5Gi"
    assert quantity.humanize("cpu", 1500) == "1.5"


@pytest.mark.parametrize("number", [0, 1, -3, 2**63 - 1, 2**63, -(2**70), 10**30])
@pytest.mark.parametrize("resource", ["cpu", "memory", "nvidia.com/gpu"])
def test_a_number_is_the_amount_that_its_text_is(resource: str, number: int) -> None:
    if abs(number) < 2**63:
        assert quantity.to_base(resource, number) == quantity.to_base(resource, str(number))
    else:
        assert abs(quantity.to_base(resource, number)) == 2**63 - 1
