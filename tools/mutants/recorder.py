"""A plugin of pytest that records which lines of the source each test runs, and for how long.

`python -m pytest -p tools.mutants.recorder` with RECORD_FOLDER writes a file of each test module
there. Under pytest-xdist every worker records what it runs; whole modules have to go to one worker.
Tests that do not pass are left out: they would notice every bug.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

import pytest
from coverage import Coverage

FOLDER = "FAIRLEAD_RECORD_FOLDER"
#: Whose lines are recorded: what decides, and what acts on it.
PARTS = tuple(
    f"src/fairlead/{part}" for part in ("api", "model", "decide", "runtime", "controllers")
)


def file_name(root: Path, module: str) -> str:
    """Return the name of the record of a test module as it is."""
    digest = hashlib.sha256((root / module).read_bytes()).hexdigest()[:16]
    return f"{module.replace('/', '.')}.{digest}.json"


#: By file: the numbers of tests, and the lines that they run and no others of their module.
_Lines = defaultdict[str, dict[tuple[int, ...], list[int]]]


class Recorder:
    """Records the tests of one process."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._unfit: set[str] = set()
        source = [str(root / part) for part in PARTS]
        self._coverage = Coverage(data_file=None, source=source, config_file=False)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let what runs count for this test."""
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended, and what it took."""
        self._seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self._unfit.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the records."""
        self._coverage.stop()
        data = self._coverage.get_data()
        modules: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for test in self._seconds:
            tests = modules[test.partition("::")[0]]
            if test not in self._unfit:
                tests[test] = len(tests)
        lines = {module: _Lines(dict) for module in modules}
        for file in sorted(data.measured_files()):
            name = Path(file).relative_to(self._root).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for module, numbers in _by_module(contexts, modules).items():
                    lines[module][name].setdefault(numbers, []).append(line)
        for module, tests in modules.items():
            record = {
                "tests": [[test, round(self._seconds[test], 4)] for test in tests],
                "lines": {name: list(found.items()) for name, found in lines[module].items()},
            }
            target = self._folder / file_name(self._root, module)
            partial = target.with_suffix(".partial")
            partial.write_text(json.dumps(record, separators=(",", ":")))
            partial.rename(target)


def _by_module(
    tests: Iterable[str], modules: Mapping[str, Mapping[str, int]]
) -> dict[str, tuple[int, ...]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for test in tests:
        module = test.partition("::")[0]
        if (number := modules.get(module, {}).get(test)) is not None:
            found[module].append(number)
    return {module: tuple(sorted(numbers)) for module, numbers in found.items()}


def pytest_configure(config: pytest.Config) -> None:
    """Record in this process, unless it only hands tests to workers."""
    is_controller = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    if (folder := os.environ.get(FOLDER)) and not is_controller:
        config.pluginmanager.register(Recorder(config.rootpath, Path(folder)))
