"""Formulas of facts: whole numbers, names, `+ - * //`, parentheses, `min` and `max`.

A formula is parsed by Python's own grammar, and every node that is not one of these is refused: it
can call nothing, read nothing, and not grow beyond its 200 characters.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

FORMULA_MAX = 200
#: The largest value of a setting of the kernel.
VALUE_MAX = (1 << 63) - 1
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.FloorDiv: int.__floordiv__,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max}
_GRAMMAR = "accepted: whole numbers, facts, + - * //, parentheses, min and max"


class FormulaError(ValueError):
    """A text is no formula, or has no value; the message says why."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula that can be evaluated. `names` are the facts that it needs, sorted."""

    text: str
    names: tuple[str, ...]
    _body: ast.expr

    def value(self, facts: Mapping[str, int]) -> int:
        """Return its value, 0 to VALUE_MAX; FormulaError. All of `names` are in `facts`."""
        try:
            value = _value(self._body, facts)
        except ZeroDivisionError as error:
            raise FormulaError(f"'{self.text}' divides by 0 with {self.inputs(facts)}") from error
        if not 0 <= value <= VALUE_MAX:
            inputs = self.inputs(facts)
            raise FormulaError(f"'{self.text}' is not from 0 to 2^63 - 1 with {inputs}")
        return value

    def inputs(self, facts: Mapping[str, int]) -> str:
        """Return its facts with their values, "" for a formula without any."""
        return ", ".join(f"{name} = {facts[name]:,}" for name in self.names)


def parse_formula(text: str | int) -> Formula:
    """Return the formula that a text or a number is; FormulaError."""
    text = str(text).strip()
    if len(text) > FORMULA_MAX:
        raise FormulaError(f"longer than {FORMULA_MAX} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of `1if`, which is no formula anyway
            body = ast.parse(text, mode="eval").body
        names: set[str] = set()
        _check(body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        message = str(error) if isinstance(error, FormulaError) else f"'{text}' is no formula"
        raise FormulaError(f"{message}; {_GRAMMAR}") from error
    return Formula(text, tuple(sorted(names)), body)


def _check(node: ast.expr, names: set[str]) -> None:
    """Note the names in a node; FormulaError for what no formula has."""
    match node:
        case ast.Constant(value=bool()):
            raise FormulaError(f"'{node.value}' is no number")
        case ast.Constant(value=int()):
            pass
        case ast.Name(id=name):
            names.add(name)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            _check(left, names)
            _check(right, names)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments, keywords=[]) if (
            name in _FUNCTIONS
        ):
            for each in arguments:
                _check(each, names)
        case _:
            raise FormulaError(f"'{ast.unparse(node)}' is not allowed")


def _value(node: ast.expr, facts: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return facts[name]
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATORS[type(operator)](_value(left, facts), _value(right, facts))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            found = [_value(each, facts) for each in arguments]
            return _FUNCTIONS[name](found)
        case _:
            raise AssertionError(ast.dump(node))
