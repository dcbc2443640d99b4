"""Every parser of strangers' bytes is among those that `tests/property/test_parsers.py` feeds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.property.fuzz_targets import NO_PARSERS, TARGETS
from tests.tidy.sources import modules, name, tree

_PARSER = re.compile(r"(parse|decode|expand|compile|read)(_\w+)?")
_TAKES = {"feed", "take", "event", "answer", "read"}
_BYTES = {"bytes", "Iterable[bytes]"}
_TEXT = {"str", "bytes", "str | bytes", "str | float", "str | int", "str | None", *_BYTES}
#: First parameters that name where a text is.
_PLACES = {"path", "file", "name", "directory", "device"}


def parsers(module: ast.Module) -> Iterator[str]:
    """Yield the names of what reads text or bytes in a module."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and _PARSER.fullmatch(node.name):
            if takes(node.args.args, _TEXT):
                yield node.name
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            for each in methods:
                if each.name in _TAKES and takes(each.args.args[1:], _BYTES):
                    yield f"{node.name}.{each.name}"


def takes(parameters: list[ast.arg], types: set[str]) -> bool:
    """Return whether the first parameter has one of these types, and is no place."""
    if not parameters or parameters[0].annotation is None or parameters[0].arg in _PLACES:
        return False
    return ast.unparse(parameters[0].annotation) in types


def test_every_parser_is_fuzzed() -> None:
    found = {
        f"{name(path).removesuffix('.py').replace('/', '.')}:{parser}"
        for path in modules()
        for parser in parsers(tree(path))
    }
    fuzzed = {target.name for target in TARGETS}
    assert len(found) > 70
    assert found - fuzzed - set(NO_PARSERS) == set(), "parsers without a target"
    assert set(NO_PARSERS) - found == set(), "exceptions of no parser"
