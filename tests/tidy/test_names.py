"""A public class has a name of its own, so that a name in a message or a search means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.tidy.sources import modules, name, tree

#: As the whole name each of these words means several things in the glossary, or a picture.
SAYS_TOO_LITTLE = {"beside", "carried", "ends", "freed", "given", "held", "hold", "past", "rails",
                   "recalled", "reserved", "startable"}  # fmt: skip


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name(path))
    assert len(places) > 1000
    assert {each: where for each, where in places.items() if len(where) > 1} == {}


def test_no_class_is_imported_under_another_class_name() -> None:
    """It would be a second name for the same thing."""
    renamed = [
        f"{name(path)}:{node.lineno} {each.name} as {each.asname}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairlead")
        for each in node.names
        if each.asname and each.name[0].isupper() and not each.name.isupper()
    ]
    assert renamed == []


def test_names_say_what_is_held_kept_or_reserved() -> None:
    """A class `Held` or a module `kept` could be four things (docs/glossary.md has the words)."""
    vague: list[str] = []
    for path in modules():
        where = name(path)
        vague += [where for part in where.split("/") if part.removesuffix(".py") in SAYS_TOO_LITTLE]
        vague += [
            f"{where}:{node.lineno} {node.name}"
            for node in tree(path).body
            if isinstance(node, ast.ClassDef) and node.name.lower() in SAYS_TOO_LITTLE
        ]
    assert vague == []
