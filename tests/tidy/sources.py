"""The project's own Python sources, parsed once."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fairlead"


@cache
def modules() -> tuple[Path, ...]:
    """All modules of the package, sorted."""
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of one module. It stays, so the garbage collector passes over it."""
    gc.disable()
    try:
        return ast.parse(path.read_text(), str(path))
    finally:
        gc.freeze()
        gc.enable()


@cache
def name(path: Path) -> str:
    """`src/fairlead/api/jobs/job.py` -> `api/jobs/job.py`."""
    return path.relative_to(SOURCE).as_posix()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of one module."""
    return tuple(ast.walk(tree(path)))


@cache
def calls(path: Path) -> tuple[tuple[str, int], ...]:
    """Every call of one module as (dotted name, line): `asyncio.create_task`, `print`."""
    found = (node for node in nodes(path) if isinstance(node, ast.Call))
    named = ((_dotted(node.func), node.lineno) for node in found)
    return tuple(each for each in named if each[0])


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value)
        return f"{left}.{node.attr}" if left else node.attr
    return ""
