"""The part of CEL that match conditions and admission policies of ours are written in, as closures.

An API server asks a webhook only where its conditions hold, so a tenant meets no more admission
than they leave. What is not known here is refused when the expression is compiled: a condition that
is written in more of CEL than this cannot count as one that holds.

Source: github.com/google/cel-spec, "Language Definition".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Scope: TypeAlias = Mapping[str, Any]
Term: TypeAlias = Callable[[Scope], Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'[^']*'|\"[^\"]*\")|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[!?:.,()\[\]<>+]))"
)
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
}
_LITERALS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_METHODS: Mapping[str, Callable[..., Any]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
    "split": str.split,
    "size": len,
}
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {"size": len, "int": int}
_MACROS: Mapping[str, Callable[[Sequence[Any], Callable[[Any], Any]], Any]] = {
    "exists": lambda items, holds: any(map(holds, items)),
    "all": lambda items, holds: all(map(holds, items)),
    "filter": lambda items, holds: [item for item in items if holds(item)],
    "map": lambda items, made: [made(item) for item in items],
}


class UnknownExpression(Exception):
    """The expression uses more of the language than is known here."""


class EvaluationError(Exception):
    """The expression has no value for these objects: a field that it reads is not there."""


def compiled(expression: str) -> Term:
    """Return the expression as a function of its variables; EvaluationError where it has no value.

    UnknownExpression when it cannot be read.
    """
    term = _Parser(expression).whole()

    def value(scope: Scope) -> Any:
        try:
            return term(scope)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise EvaluationError(f"{type(error).__name__}: {error}") from error

    return value


class _Parser:
    """Recursive descent, one method for each level of binding."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = self._read(expression.rstrip())
        self._at = 0

    def _read(self, text: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._unknown(f"at {text[at:][:20]!r}")
            found.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            at = match.end()
        return found

    def _unknown(self, why: str) -> UnknownExpression:
        return UnknownExpression(f"{why} in {self._expression}")

    def whole(self) -> Term:
        term = self._choice()
        if self._at < len(self._tokens):
            raise self._unknown(f"{self._tokens[self._at][1]} is left over")
        return term

    def _takes(self, *texts: str) -> str:
        """Return the next token and pass it, if it is one of these; else ""."""
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if kind in ("sign", "name") and text in texts:
            self._at += 1
            return text
        return ""

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise self._unknown(f"{text} is missing")

    def _name(self) -> str:
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if kind != "name":
            raise self._unknown("a name is missing")
        self._at += 1
        return text

    def _choice(self) -> Term:
        condition = self._or()
        if not self._takes("?"):
            return condition
        there = self._choice()
        self._expect(":")
        other = self._choice()
        return lambda scope: there(scope) if condition(scope) else other(scope)

    def _or(self) -> Term:
        terms = [self._and()]
        while self._takes("||"):
            terms.append(self._and())
        return terms[0] if len(terms) == 1 else lambda scope: any(t(scope) for t in terms)

    def _and(self) -> Term:
        terms = [self._compared()]
        while self._takes("&&"):
            terms.append(self._compared())
        return terms[0] if len(terms) == 1 else lambda scope: all(t(scope) for t in terms)

    def _compared(self) -> Term:
        left = self._sum()
        sign = self._takes(*_COMPARED)
        if not sign:
            return left
        right, compare = self._sum(), _COMPARED[sign]
        return lambda scope: compare(left(scope), right(scope))

    def _sum(self) -> Term:
        terms = [self._unary()]
        while self._takes("+"):
            terms.append(self._unary())
        if len(terms) == 1:
            return terms[0]

        def value(scope: Scope) -> Any:
            total = terms[0](scope)
            for term in terms[1:]:
                total = total + term(scope)
            return total

        return value

    def _unary(self) -> Term:
        if self._takes("!"):
            term = self._unary()
            return lambda scope: not term(scope)
        return self._member()

    def _member(self) -> Term:
        term = self._primary()
        while True:
            if self._takes("."):
                term = self._dotted(term, self._name())
            elif self._takes("["):
                term = _item(term, self._choice())
                self._expect("]")
            else:
                return term

    def _dotted(self, of: Term, name: str) -> Term:
        if not self._takes("("):
            return _Field(of, name)
        if name in _MACROS:
            variable = self._name()
            self._expect(",")
            body, macro = self._choice(), _MACROS[name]
            self._expect(")")
            return lambda scope: macro(of(scope), lambda item: body({**scope, variable: item}))
        arguments = self._arguments()
        if name in _METHODS:
            method = _METHODS[name]
            return lambda scope: method(of(scope), *(argument(scope) for argument in arguments))
        # of the authorizer, the only object here that is no value
        return lambda scope: getattr(of(scope), name)(*(argument(scope) for argument in arguments))

    def _arguments(self) -> list[Term]:
        found: list[Term] = []
        while not self._takes(")"):
            found.append(self._choice())
            self._takes(",")
        return found

    def _primary(self) -> Term:
        if self._at >= len(self._tokens):
            raise self._unknown("the end is missing")
        kind, text = self._tokens[self._at]
        self._at += 1
        if kind == "text":
            return _constant(text[1:-1])
        if kind == "number":
            return _constant(int(text))
        if text == "(":
            term = self._choice()
            self._expect(")")
            return term
        if text == "[":
            return self._list()
        if kind != "name":
            raise self._unknown(f"{text} is not expected")
        if text in _LITERALS:
            return _constant(_LITERALS[text])
        if text == "has" and self._takes("("):
            return self._has()
        if text in _FUNCTIONS and self._takes("("):
            (argument,), function = self._arguments(), _FUNCTIONS[text]
            return lambda scope: function(argument(scope))
        return lambda scope: scope[text]

    def _list(self) -> Term:
        items: list[Term] = []
        while not self._takes("]"):
            items.append(self._choice())
            self._takes(",")
        return lambda scope: [item(scope) for item in items]

    def _has(self) -> Term:
        """`has(a.b)`: true where a field is set."""
        term = self._member()
        self._expect(")")
        if not isinstance(term, _Field):
            raise self._unknown("has() asks for a field")
        return term.is_set


class _Field:
    """A field of an object."""

    def __init__(self, of: Term, name: str) -> None:
        self._of = of
        self._name = name

    def __call__(self, scope: Scope) -> Any:
        return self._of(scope)[self._name]

    def is_set(self, scope: Scope) -> bool:
        """True where the object, which must be there, has the field."""
        return self._of(scope).get(self._name) is not None


def _constant(value: Any) -> Term:
    return lambda _: value


def _item(of: Term, key: Term) -> Term:
    return lambda scope: of(scope)[key(scope)]
