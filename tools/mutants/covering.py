"""Which tests run a line of the source, the quickest first.

Recorded once by `recorder.py`, module by module, and kept in `.cache/mutants/lines`. A record holds
for as long as its test module, the source and what the tests share are the same: a changed test
module is recorded again by itself, a change of the source records all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.mutants.recorder import FOLDER, file_name
from tools.mutants.trees import HUNG, ROOT, copied_tree, run_tests

CACHE = ROOT / ".cache" / "mutants"
#: Tests in the process of pytest: what runs in processes of its own is not seen.
FOLDERS = ("tests/unit", "tests/golden", "tests/property", "tests/simulation")
#: Of test modules that are recorded together: an interrupted run loses no more.
_MODULES_AT_ONCE = 40
_SECONDS_MAX = 3600


@dataclass(frozen=True, slots=True)
class TimedTest:
    """A test and how long it takes, with the cost of recording it."""

    id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Covering:
    """The tests that are known, and which of them run a line."""

    #: By file and line; lines that the same tests of a module run share the tuple.
    _tests: dict[str, dict[int, list[tuple[TimedTest, ...]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, record: bytes) -> None:
        """Add what is known of a test module."""
        found = json.loads(record)
        tests = [TimedTest(name, seconds) for name, seconds in found["tests"]]
        for file, groups in found["lines"].items():
            for numbers, lines in groups:
                group = tuple(tests[number] for number in numbers)
                for line in lines:
                    self._tests[file][line].append(group)

    def of(self, file: str, lines: Iterable[int]) -> list[TimedTest]:
        """Return the tests that run any of these lines, the quickest first."""
        known = self._tests[file]
        found = {test for line in lines for group in known.get(line, ()) for test in group}
        return sorted(found, key=lambda test: (test.seconds, test.id))


def covering(tree: Path, processes: int, folders: Sequence[str] = FOLDERS) -> Covering:
    """Return what the tests of a tree cover; record the test modules that are not known."""
    folder = CACHE / "lines" / _digest(tree)
    folder.mkdir(parents=True, exist_ok=True)
    modules = (path.relative_to(tree).as_posix() for path in (tree / "tests").rglob("test_*.py"))
    wanted = sorted(module for module in modules if module.startswith(tuple(folders)))
    records = {module: folder / file_name(tree, module) for module in wanted}
    missing = [module for module, record in records.items() if not record.exists()]
    for at in range(0, len(missing), _MODULES_AT_ONCE):
        print(f"recording what tests run: module {at + 1} of {len(missing)}", flush=True)
        _record(tree, missing[at : at + _MODULES_AT_ONCE], folder, processes)
    known = Covering()
    for record in records.values():
        known.add(record.read_bytes())
    return known


def _record(tree: Path, modules: Sequence[str], folder: Path, processes: int) -> None:
    options = ["--maxfail=1000000", "-p", "tools.mutants.recorder", "-n", str(processes)]
    with copied_tree(tree) as copy:  # tests may leave something behind
        code, output = run_tests(
            copy, modules, seconds_max=_SECONDS_MAX, options=[*options, "--dist", "loadfile"],
            more={FOLDER: str(folder)},
        )  # fmt: skip
    lost = [module for module in modules if not (folder / file_name(tree, module)).exists()]
    if code == HUNG or lost:
        raise SystemExit(f"tests were not recorded: {lost or modules}\n{output[-4000:]}")


def _digest(tree: Path) -> str:
    """Return the digest of the source and of what tests share."""
    digest = hashlib.sha256()
    files = [tree / "pyproject.toml", tree / "requirements" / "dev.lock"]
    files += (path for path in (tree / "src").rglob("*.py"))
    files += (path for path in (tree / "tests").rglob("*.py") if path.name[:5] != "test_")
    for path in sorted(files):
        digest.update(path.relative_to(tree).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
