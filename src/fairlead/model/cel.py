"""CEL by cel-python, as far as it says what cel-go does, with the values that devices have.

Only `device_selectors.py` uses it, and imports it when the first expression is compiled. cel-python
has no types before it evaluates, and names of its own beside the language. So the parts
of an expression are compared with what is known to mean the same; an error is an error in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from celpy import celtypes, evaluation
from celpy.celparser import CELParseError, CELParser
from celpy.evaluation import CELEvalError, CELSyntaxError, CELUnsupportedError

from fairlead.api.values.quantity import QuantityError, parse
from fairlead.model.claimed.device_selectors import ExpressionError, Read

#: Steps of one evaluation, which take 0.1 to 0.25 ms each; levels of an expression, each of which
#: takes up to 6 frames of the stack (an operator 1 or 2 of them, a bracket 10).
STEPS_MAX, LEVELS_MAX, MACROS_MAX = 200, 120, 2

_NODES = frozenset((
    "expr", "conditionalor", "conditionaland", "relation", "relation_lt", "relation_le",
    "relation_gt", "relation_ge", "relation_eq", "relation_ne", "relation_in", "addition",
    "addition_add", "addition_sub", "multiplication", "multiplication_mul", "unary", "unary_not",
    "unary_neg", "member", "member_dot", "member_dot_arg", "member_index", "primary", "literal",
    "ident_arg", "paren_expr", "list_lit", "ident", "exprlist",
))  # fmt: skip
_METHODS = frozenset((
    "startsWith", "endsWith", "contains", "matches", "exists", "all", "compareTo", "isGreaterThan",
    "isLessThan", "major", "minor", "patch",
))  # fmt: skip
_MACROS = frozenset(("exists", "all"))


_FAILURES = (
    CELEvalError, CELSyntaxError, CELUnsupportedError, ValueError, TypeError, KeyError, IndexError,
    ArithmeticError, AttributeError, RecursionError,
)  # fmt: skip
#: Not celpy.Environment, which changes the recursion limit of the process.
_parser = CELParser()


def compile_expression(expression: str) -> CompiledExpression:
    """Return a program; ExpressionError for what does not compile or is not understood."""
    try:
        tree: Any = _parser.parse(expression)
    except CELParseError as error:
        at = f" at line {error.line}, column {error.column}" if error.line else ""
        raise ExpressionError(f"does not compile{at}") from error
    except RecursionError as error:
        raise ExpressionError("does not compile: it is nested too deeply") from error
    _check(tree)
    return CompiledExpression(tree)


class CompiledExpression:
    """See `device_selectors.CompiledProgram`."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self.steps_taken = 0

    def evaluate(self, read: Read) -> bool:
        """Return what it says of the device that `read` reads; ExpressionError."""
        device = celtypes.MapType({
            celtypes.StringType("driver"): _value(read(("driver",))),
            celtypes.StringType("allowMultipleAllocations"): celtypes.BoolType(False),
            celtypes.StringType("attributes"): _Domains("attributes", read),
            celtypes.StringType("capacity"): _Domains("capacity", read),
        })  # fmt: skip
        steps = [0]
        activation = evaluation.Activation(functions=_FUNCTIONS)
        evaluator = _Evaluator(self._tree, activation, steps)
        try:
            found: Any = evaluator.evaluate({"device": device})
        except _FAILURES as error:
            said = str(error.args[0] if error.args else type(error).__name__)
            if "no matching overload" in said:
                said = "no such overload for the types of its values"
            raise ExpressionError(f"fails: {said[:200]}") from error
        finally:
            self.steps_taken += steps[0]
        if not isinstance(found, celtypes.BoolType):
            raise ExpressionError("is neither true nor false")
        return bool(found)


class _Evaluator(evaluation.Evaluator):
    """Gives up after `STEPS_MAX` steps."""

    def __init__(self, ast: Any, activation: Any, steps: list[int]) -> None:
        super().__init__(ast, activation=activation)
        self._steps = steps

    def sub_evaluator(self, ast: Any) -> _Evaluator:
        return _Evaluator(ast, self.activation, self._steps)

    def visit(self, tree: Any) -> Any:
        self._steps[0] += 1
        if self._steps[0] > STEPS_MAX:
            raise ValueError(f"it takes more than {STEPS_MAX} steps")
        return super().visit(tree)


def _check(whole: Any) -> None:
    """Raise ExpressionError for what is not known to mean the same in cel-go."""
    rest: list[tuple[Any, int, int]] = [(whole, 1, 0)]
    while rest:  # no recursion, as any expression comes here
        tree, level, macros = rest.pop()
        if tree.data not in _NODES:
            raise ExpressionError(f"is not understood: {str(tree.data).replace('_', ' ')}")
        name, known = "", _METHODS
        if tree.data == "member_dot_arg":
            name = str(tree.children[1])
        elif tree.data == "ident_arg":
            name, known = str(tree.children[0]), frozenset((*_FUNCTIONS, "has")) - _METHODS
        if name and name not in known:
            raise ExpressionError(f"is not understood: the function {name}")
        macros += name in _MACROS
        if level > LEVELS_MAX or macros > MACROS_MAX:
            raise ExpressionError("is not understood: it is nested too deeply")
        within = [child for child in tree.children if hasattr(child, "data")]
        rest += [(child, level + 1, macros) for child in reversed(within)]


class _Quantity:
    __slots__ = ("value",)

    def __init__(self, text: Any) -> None:
        try:
            self.value = parse(text)
        except QuantityError as error:
            raise ValueError(str(error)) from error

    def __eq__(self, other: object) -> bool:
        return cast("bool", celtypes.BoolType(self.value == _same(other, _Quantity).value))

    __hash__ = None  # type: ignore[assignment] # as of all that compares with its own kind alone


class _Version:
    __slots__ = ("value",)

    def __init__(self, text: str) -> None:
        self.value = version_order(text)

    def __eq__(self, other: object) -> bool:
        return cast("bool", celtypes.BoolType(self.value == _same(other, _Version).value))

    __hash__ = None  # type: ignore[assignment] # as above


class _Lookup(celtypes.MapType):
    """A map that is asked for one key at a time; any other use is an error."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("which keys there are is not understood; name one")

    get = keys = items = values = __iter__ = __len__ = __eq__ = __contains__ = _refuse  # type: ignore[assignment] # whatever it is asked
    __hash__ = None  # type: ignore[assignment] # as above


class _Domains(_Lookup):
    """The attributes or the capacity of a device, by domain; unknown domains are empty."""

    def __init__(self, kind: str, read: Read) -> None:
        super().__init__()
        self._kind, self._read = kind, read

    def __getitem__(self, key: Any) -> Any:
        return _Named(self._kind, str(_same(key, str)), self._read)


class _Named(_Lookup):
    """The attributes or the capacity of one domain, each read when it is asked for."""

    def __init__(self, kind: str, domain: str, read: Read) -> None:
        super().__init__()
        self._kind, self._domain, self._read = kind, domain, read

    def __getitem__(self, key: Any) -> Any:
        found = self._read((self._kind, self._domain, str(_same(key, str))))
        if found is None:
            raise KeyError(str(key))
        return _value(found)


def _value(found: Any) -> Any:
    match found:
        case ("string", text):
            return celtypes.StringType(text)
        case ("int", number):
            return celtypes.IntType(number)
        case ("bool", is_set):
            return celtypes.BoolType(is_set)
        case ("version", text):
            return _Version(text)
        case ("quantity", amount):
            return _Quantity(amount)
        case _:
            raise TypeError("an attribute of a type that is not known")


def _compare(one: Any, other: Any) -> int:
    left: Any = _same(one, (_Quantity, _Version)).value
    right: Any = _same(other, type(one)).value
    return (left > right) - (left < right)


def _size(value: Any) -> Any:
    return celtypes.IntType(len(_same(value, (str, list))))


def _part(place: int) -> Callable[[Any], Any]:
    return lambda version: celtypes.IntType(_same(version, _Version).value[place])


def _quantity(text: Any) -> Any:
    return _Quantity(str(_same(text, str)))


def _version(text: Any) -> Any:
    return _Version(str(_same(text, str)))


def _compare_to(one: Any, other: Any) -> Any:
    return celtypes.IntType(_compare(one, other))


def _is_greater(one: Any, other: Any) -> Any:
    return celtypes.BoolType(_compare(one, other) > 0)


def _is_less(one: Any, other: Any) -> Any:
    return celtypes.BoolType(_compare(one, other) < 0)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "semver": _version,
    "size": _size,
    "compareTo": _compare_to,
    "isGreaterThan": _is_greater,
    "isLessThan": _is_less,
    "major": _part(0),
    "minor": _part(1),
    "patch": _part(2),
}


def _same(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"no such overload for {type(value).__name__}")
    return value


def version_order(text: str) -> tuple[Any, ...]:
    """Return what a semantic version is compared by (semver.org 2.0.0); ValueError."""
    core, _, pre = text.partition("+")[0].partition("-")
    parts = core.split(".")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() and str(int(p)) == p for p in parts):
        raise ValueError(f"'{text[:40]}' is not a semantic version")
    names = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split(".")] if pre else []
    return (*map(int, parts), not names, names)
