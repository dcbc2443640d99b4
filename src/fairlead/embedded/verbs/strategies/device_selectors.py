"""What is wrong with the expressions of a claim for devices, of a template or of a class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairlead.model.claimed.device_selectors import ExpressionError, device_expression


def selector_problems(value: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, expression and fault of each expression of CEL that does not compile."""
    match value:
        case {"cel": {"expression": str(expression)}}:
            try:
                device_expression(expression)
            except ExpressionError as error:
                yield f"{path}.cel.expression", expression[:200], str(error)
        case dict():
            for key, each in value.items():
                yield from selector_problems(each, f"{path}.{key}")
        case list() | tuple():
            for i, each in enumerate(value):
                yield from selector_problems(each, f"{path}[{i}]")
        case _:
            pass
