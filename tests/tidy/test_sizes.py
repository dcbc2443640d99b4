"""Modules, functions and signatures stay small enough to read."""

from __future__ import annotations

import ast
from collections import Counter

from tests.tidy.sources import modules, name, nodes, tree

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
POSITIONAL_MAX = 4
SIBLINGS_MAX = 14
#: Folders of one kind of thing, a module for each: what is searched there is found by its name.
BY_NAME = {
    "cli/commands", "cli/slurm_tools", "cli/views", "member", "node/machine_tests", "node/sources",
    "web/pages",
}  # fmt: skip


def _functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (name(path), node)
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in modules()}
    assert {n: c for n, c in lengths.items() if c > MODULE_LINES_MAX} == {}


def test_no_room_is_larger_than_one_sees_at_once() -> None:
    rooms = Counter(name(path).rpartition("/")[0] for path in modules() if path.stem != "__init__")
    crowded = {room for room, count in rooms.items() if count > SIBLINGS_MAX}
    assert crowded == BY_NAME


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        f"{where}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for where, node in _functions()
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert long == {}


def _is_click_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("click" in ast.unparse(d) or "option" in ast.unparse(d) for d in node.decorator_list)


def test_no_function_takes_more_than_four_positional_arguments() -> None:
    wide: list[str] = []
    for where, node in _functions():
        if _is_click_command(node):  # click passes by keyword
            continue
        positional = [a.arg for a in node.args.posonlyargs + node.args.args]
        if positional[:1] in (["self"], ["cls"]):
            positional = positional[1:]
        if len(positional) > POSITIONAL_MAX:
            wide.append(f"{where}:{node.lineno} {node.name}")
    assert wide == []


def test_every_module_says_what_lives_in_it() -> None:
    assert [name(path) for path in modules() if not ast.get_docstring(tree(path))] == []
