"""Imports point down the layers: the contract of pyproject.toml, checked by import-linter."""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
from tests.tidy.sources import ROOT


def test_the_import_contracts_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def circle_of(graph: grimp.ImportGraph) -> list[str]:
    """Return modules that import each other in a circle, [] when there are none."""
    imports = {m: sorted(graph.find_modules_directly_imported_by(m)) for m in sorted(graph.modules)}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("fairlead", cache_dir=None)
    assert len(graph.modules) > 300
    assert circle_of(graph) == []
    graph.add_import(importer="fairlead.api.names", imported="fairlead.decide.reasons")
    graph.add_import(importer="fairlead.decide.reasons", imported="fairlead.api.names")
    assert len(circle_of(graph)) == 3, "a planted circle is found"
