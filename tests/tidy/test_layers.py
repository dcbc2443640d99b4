"""Imports point down the layers: the contract of pyproject.toml, checked by import-linter."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
from tests.tidy.sources import ROOT, SOURCE, tree

FOLDER = "fairlead.controllers"
#: Runs as well, and is a part of a controller: `UseKeeper` asks it.
PART = f"{FOLDER}.records.use_samples"


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


def importers_of(graph: grimp.ImportGraph, package: str) -> set[str]:
    """Return the modules outside a package that import one of it."""
    inside = {package, *graph.find_descendants(package)}
    return {
        importer
        for module in inside
        for importer in graph.find_modules_that_directly_import(module) - inside
    }


def test_nothing_imports_the_scan_of_audit_lines_which_is_an_extra() -> None:
    graph = grimp.build_graph("fairlead", cache_dir=None)
    scan = "fairlead.doctor.audit.scan"
    assert len(graph.find_descendants(scan)) == 5
    assert importers_of(graph, scan) == set()
    graph.add_import(importer="fairlead.doctor.audit.parallel", imported=f"{scan}.compiled")
    assert importers_of(graph, scan) == {"fairlead.doctor.audit.parallel"}, "a planted one is found"


def has_running_class(module: str) -> bool:
    """True for a module with a class that acts (`perform`) or runs beside others (`run`)."""
    found = tree(SOURCE.parent / f"{module.replace('.', '/')}.py").body
    classes = [each for each in found if isinstance(each, ast.ClassDef)]
    methods = {each.name for one in classes for each in one.body
               if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}  # fmt: skip
    return not methods.isdisjoint(("perform", "run"))


def controllers_of(graph: grimp.ImportGraph) -> list[str]:
    """Return the controllers: what runs, and is put together by the modules of `app`."""
    return [
        module
        for module in sorted(graph.find_descendants(FOLDER) - {PART})
        if any(each.startswith("fairlead.app.")
               for each in graph.find_modules_that_directly_import(module))
        and has_running_class(module)
    ]  # fmt: skip


def meetings(graph: grimp.ImportGraph) -> list[tuple[str, str]]:
    """Return which controllers reach which others through imports."""
    all_of = controllers_of(graph)
    return [
        (importer, imported)
        for importer in all_of
        for imported in all_of
        if importer != imported and graph.chain_exists(importer, imported)
    ]


def test_controllers_meet_only_through_api_objects() -> None:
    graph = grimp.build_graph("fairlead", cache_dir=None)
    names = {module.rpartition(".")[2] for module in controllers_of(graph)}
    assert {"scheduler", "jobs", "balloons", "idle", "logs", "unreachable_nodes"} <= names
    assert meetings(graph) == []
    used, planted = f"{FOLDER}.pods.job_writer", f"{FOLDER}.records.idle"
    graph.add_import(importer=used, imported=planted)
    assert (f"{FOLDER}.placing.scheduler", planted) in meetings(graph), "a planted way is found"
