"""Every parser of strangers' bytes is among those that `tests/property/test_parsers.py` feeds."""

from __future__ import annotations

import ast
import re

from tests.property.fuzz_targets import NO_PARSERS, TARGETS
from tests.tidy.sources import modules, name, tree

_PARSER = re.compile(r"(parse|decode|expand)(_\w+)?")
_TEXT = {"str", "bytes", "str | bytes", "str | float", "str | int", "str | None"}


def test_every_parser_is_fuzzed() -> None:
    found = {
        f"{name(path).removesuffix('.py').replace('/', '.')}:{node.name}"
        for path in modules()
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef) and _PARSER.fullmatch(node.name)
        if node.args.args and node.args.args[0].annotation is not None
        if ast.unparse(node.args.args[0].annotation) in _TEXT
    }
    fuzzed = {target.name for target in TARGETS}
    assert len(found) > 40
    assert found - fuzzed - set(NO_PARSERS) == set(), "parsers without a target"
    assert set(NO_PARSERS) - found == set(), "exceptions of no parser"
