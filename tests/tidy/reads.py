"""What the code reads that somebody else writes: keys of labels and annotations, and fields.

Keys are found in the source: constants of `api/names.py` that are used, and texts of the form
`domain/name`, also where an f-string puts them together, or where a label or an annotation is
looked up. Fields are those of the structs that objects of namespaces are decoded into.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.sources import SOURCE, modules, name, nodes, tree

from fairlead.api import names, resources
from fairlead.sim.tenants.moves.mutations import fields_of

#: What decides, admits, acts and keeps. What only shows (the CLI, reports) moves nothing.
_PARTS = (
    "model/", "decide/", "controllers/", "webhook/", "runtime/", "app/", "history/",
    "node/shaping/",
)  # fmt: skip
#: The last part of a domain begins with a letter; of an address with its prefix it is a number.
_KEY = re.compile(r"([a-z0-9-]+\.)+[a-z][a-z0-9-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"v\d+((alpha|beta)\d+)?")


@cache
def keys() -> dict[str, str]:
    """Return every key that the code reads, and the first module that does, sorted by key."""
    found: dict[str, str] = {}
    by_constant = {
        constant: value for constant, value in vars(names).items()
        if isinstance(value, str) and _is_key(value)
    }  # fmt: skip
    for path in modules():
        if not name(path).startswith(_PARTS):
            continue
        for key in (*_texts(path), *_constants(path, by_constant), *_looked_up(path)):
            found.setdefault(key, name(path))
    return dict(sorted(found.items()))


def _constants(path: Path, by_constant: dict[str, str]) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "names" and node.attr in by_constant:
                yield by_constant[node.attr]
        elif isinstance(node, ast.ImportFrom) and node.module == "fairlead.api.names":
            yield from (by_constant[a.name] for a in node.names if a.name in by_constant)


def _is_key(text: str) -> bool:
    return bool(_KEY.fullmatch(text)) and not _VERSION.fullmatch(text.rpartition("/")[2])


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts that are keys; one is put together with constants of its own function."""
    documented = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    functions = [n for n in nodes(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in (tree(path), *functions):
        prefixes = dict(_assigned(scope))
        for node in ast.walk(scope):
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = "" if id(node) in documented else node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(_part(each, prefixes) for each in node.values)
            if _is_key(text):
                yield text


def _assigned(scope: ast.AST) -> Iterator[tuple[str, str]]:
    body: list[ast.stmt] = getattr(scope, "body", [])
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            target = node.targets[0]
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                yield target.id, node.value.value


def _part(node: ast.expr, prefixes: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.FormattedValue):
        inner = node.value
        if isinstance(inner, ast.Name):
            return prefixes.get(inner.id, names.GROUP if inner.id == "GROUP" else " ")
        if isinstance(inner, ast.Attribute) and inner.attr == "GROUP":
            return names.GROUP
    return " "


def _looked_up(path: Path) -> Iterator[str]:
    """Yield texts that are looked up in labels or annotations."""
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            of, key = node.func.value, node.args[0]
            if node.func.attr != "get":
                continue
        elif isinstance(node, ast.Subscript):
            of, key = node.value, node.slice
        else:
            continue
        is_map = isinstance(of, ast.Attribute) and of.attr in ("labels", "annotations")
        if is_map and isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def fields() -> dict[str, tuple[str, ...]]:
    """Return the fields of each namespaced kind that the code decodes, as `spec.roles[].name`."""
    kinds = [each for each in resources.ALL if each.namespaced]
    kinds.append(resources.RESOURCE_QUOTAS)
    return {
        resource.plural: tuple(
            dict.fromkeys(
                ".".join(path).replace(".0", "[]") for path, _ in fields_of(resource.type)
            )
        )
        for resource in kinds
    }


def fields_of_tools() -> tuple[str, ...]:
    """Return the fields that are read of objects of other tools, by name."""
    path = SOURCE / "decide" / "adoption" / "sources.py"
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Call):
            named = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
            if named or (isinstance(node.func, ast.Name) and node.func.id == "_child"):
                arguments = node.args[:1] if named else node.args  # of `get` the other is a default
                texts = [arg.value for arg in arguments if isinstance(arg, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and text.isalpha()}
    return tuple(sorted(found - {"metadata", "spec", "status", "template"}))
