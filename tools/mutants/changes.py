"""Small changes of a module's code that are bugs: the mutants that `sample.py` draws from.

The operators are mutmut's, on libcst's concrete syntax trees, so that all else of a file stays as
it is. Four of our own are bugs that people write here and mutmut has not: the other extreme (min
for max), the other quantifier (any for all), a call whose result nobody reads left out, and a
condition that always or never holds. Only bodies of functions change: what is evaluated when a
module is imported fails at once or nowhere. Annotations, decorators and default values are left
alone, and so are assertions, which check our own code, what `cast` and `TypeVar` are given, and the
None that a dictionary holds which is an ordered set. Of mutmut's three changes to a text one is
enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

_Operator = Callable[[Any], Iterable[cst.CSTNode]]

_LEFT_ALONE = (
    cst.Annotation, cst.Decorator, cst.Parameters, cst.Assert, cst.Import, cst.ImportFrom,
)  # fmt: skip
#: Calls that are there for the type checker.
_FOR_TYPES = ("cast", "TypeVar", "assert_never", "assert_type")
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Change:
    """One bug: `line` is where what changes begins, `lines` those of its whole statement."""

    line: int
    lines: range
    operator: str
    _module: cst.Module
    _old: cst.CSTNode
    _new: cst.CSTNode

    def apply(self) -> str:
        """Return the text of the module with the bug."""
        changed = self._module.deep_replace(self._old, self._new)
        assert isinstance(changed, cst.Module)
        return changed.code


def changes_of(text: str) -> list[Change]:
    """Return the bugs that can be planted in a module, in order of their lines."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)  # no node is shared
    finder = _Finder(wrapper.module)
    wrapper.visit(finder)
    return sorted(finder.found, key=lambda change: change.line)


def _swapped(call: cst.Call) -> Iterator[cst.CSTNode]:
    if isinstance(call.func, cst.Name) and call.func.value in _SWAPPED:
        yield call.with_changes(func=cst.Name(_SWAPPED[call.func.value]))


def _left_out(statement: cst.Expr) -> Iterator[cst.CSTNode]:
    if isinstance(statement.value, cst.Call | cst.Await) and not _is_for_types(statement.value):
        yield cst.Pass()


def _decided(condition: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    values = ("True", "False") if isinstance(condition, cst.If) else ("False",)
    for value in values:
        # The space: `if(a or b)` is followed by none.
        yield condition.with_changes(test=cst.Name(value, lpar=_OPEN, rpar=_CLOSE))


_OPEN, _CLOSE = (cst.LeftParen(),), (cst.RightParen(),)


def _one_of_a_text(text: cst.BaseString) -> Iterator[cst.CSTNode]:
    return islice(iter(operator_string(text)), 1)


_OPERATORS: list[tuple[type[cst.CSTNode], str, _Operator]] = [
    *(
        (kind, operator.__name__.removeprefix("operator_"), operator)
        for kind, operator in mutation_operators
        if operator is not operator_string
    ),
    (cst.BaseString, "string", _one_of_a_text),
    (cst.Call, "swapped", _swapped),
    (cst.Expr, "left_out", _left_out),
    (cst.If, "decided", _decided),
    (cst.While, "decided", _decided),
]


class _Finder(cst.CSTVisitor):
    """Visits a module, and finds its changes."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.found: list[Change] = []
        self._module = module
        self._functions = 0
        self._statements: list[range] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Note what can change of a node; False for nodes that are left alone."""
        if _is_left_alone(node):
            return False
        if lines := self._lines_of(node):
            self._statements.append(lines)
        if self._functions:
            self._note(node)
        self._functions += isinstance(node, cst.FunctionDef)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Go back to the statement around a node."""
        if _is_left_alone(original_node):
            return
        self._functions -= isinstance(original_node, cst.FunctionDef)
        if self._lines_of(original_node):
            self._statements.pop()

    def _lines_of(self, node: cst.CSTNode) -> range | None:
        """Return the lines of a statement, of a compound one those of its head; else None."""
        if isinstance(node, cst.SimpleStatementLine):
            where = self._where(node)
            return range(where.start.line, where.end.line + 1)
        if isinstance(node, cst.BaseCompoundStatement):
            body = node.body if not isinstance(node, cst.Match) else node.cases[0]
            start = self._where(node).start.line
            return range(start, max(start, self._where(body).start.line - 1) + 1)
        return None

    def _note(self, node: cst.CSTNode) -> None:
        for kind, name, operator in _OPERATORS:
            if isinstance(node, kind):
                for new in operator(node) if not _keeps_a_key(node) else ():
                    # Operators and the like have no place of their own.
                    where = self.get_metadata(PositionProvider, node, None)
                    statement = self._statements[-1]
                    line = where.start.line if where is not None else statement.start
                    self.found.append(Change(line, statement, name, self._module, node, new))

    def _where(self, node: cst.CSTNode) -> CodeRange:
        where = self.get_metadata(PositionProvider, node)
        assert isinstance(where, CodeRange)
        return where


def _keeps_a_key(node: cst.CSTNode) -> bool:
    """True for `keys[key] = None`: dictionaries are ordered sets here, whose values none reads."""
    return (
        isinstance(node, cst.Assign)
        and isinstance(node.targets[0].target, cst.Subscript)
        and isinstance(node.value, cst.Name)
        and node.value.value == "None"
    )


def _is_left_alone(node: cst.CSTNode) -> bool:
    is_of_enum = isinstance(node, cst.FunctionDef) and node.name.value == "__new__"  # on import
    return is_of_enum or isinstance(node, _LEFT_ALONE) or _is_for_types(node)


def _is_for_types(node: cst.CSTNode) -> bool:
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Name)
        and node.func.value in _FOR_TYPES
    )
