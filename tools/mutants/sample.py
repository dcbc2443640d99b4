"""Draws mutants by a seed, and reports those that no test notices: `make mutants SEED=n`.

    python -m tools.mutants.sample --seed 7 --count 100

The table of `run.py` is known to the tests; what is drawn here is not. A seed gives the same bugs
for the same source, and a larger count more of them. A line is drawn from all that can change,
then one of its changes (`changes.py`), which is planted in a copy of the tree. The tests that run
the line (`covering.py`) run up to the first failure, the quickest first. A bug on a line that no
test runs survives. What was found is kept in `.cache/mutants`: a run that was interrupted goes on,
and one after new tests repeats only what had survived.

`explained.toml` lists changes that change nothing, each with the reason. They are keyed by
the text of their lines: when a line changes, its explanation ends. They are not counted.

Exit codes: 0 when few enough survive, 1 when too many do, 2 when a mutant could not be judged.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import queue
import random
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tools.mutants.covering import CACHE, FOLDERS, Covering, TimedTest, covering
from tools.mutants.recorder import PARTS
from tools.mutants.trees import (
    FAILED,
    HUNG,
    PASSED,
    copied_tree,
    end_all,
    planted,
    run_tests,
)

if TYPE_CHECKING:
    from tools.mutants.changes import Change

EXPLAINED = Path(__file__).with_name("explained.toml")
#: Of a hundred mutants, this many may survive.
SURVIVORS_PERCENT_MAX = 3
#: The quickest tests run first by themselves: most bugs need no more.
_FIRST_TESTS = 40
#: Tests hang that take this many times as long as when they were recorded, and this much more.
_SLOWER_MAX, _MORE_SECONDS_MAX = 3, 60


class Outcome(Enum):
    """How a mutant ends."""

    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "SURVIVED"
    NOT_RUN = "NOT RUN"  # by any test
    EXPLAINED = "explained"
    UNUSABLE = "UNUSABLE"


LIVE = (Outcome.SURVIVED, Outcome.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one change, and its text without and with it."""

    file: str
    change: Change
    sound: str
    text: str

    @property
    def where(self) -> str:
        """Return the file and the line."""
        return f"{self.file}:{self.change.line}"

    @property
    def diff(self) -> str:
        """Return what differs from the file, without context."""
        return diff_of(self.sound, self.text)


@dataclass(frozen=True, slots=True)
class Explained:
    """A change of a file that changes nothing: the lines that go and those that come, as a diff."""

    file: str
    diff: str
    why: str


def diff_of(sound: str, planted: str) -> str:
    """Return the lines that go and those that come, without context."""
    found = difflib.unified_diff(sound.splitlines(), planted.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in list(found)[2:] if not line.startswith("@@"))


def explained() -> dict[tuple[str, str], Explained]:
    """Return the explained changes by their file and diff."""
    entries = tomllib.loads(EXPLAINED.read_text()).get("explained", [])
    found = [Explained(**entry) for entry in entries]
    return {(entry.file, key_of(entry.diff)): entry for entry in found}


def key_of(diff: str) -> str:
    """Return a diff without the indentation of its lines, which may move."""
    lines = (line for line in diff.splitlines() if line.strip())
    return "\n".join(f"{line[0]}{line[1:].strip()}" for line in lines)


# What is drawn


def draw(tree: Path, seed: int, count: int, words: Sequence[str] = ()) -> list[Mutant]:
    """Return mutants of a tree: the same of a seed, those of a smaller count first.

    `words` restricts them to files whose path contains one of them.
    """
    rng = random.Random(seed)
    paths = (path for part in PARTS for path in sorted((tree / part).rglob("*.py")))
    names = (path.relative_to(tree).as_posix() for path in paths)
    files = [name for name in names if not words or any(word in name for word in words)]
    texts = {file: (tree / file).read_text() for file in files}
    weights = [len(_lines_of_functions(text)) for text in texts.values()]
    drawn: dict[tuple[str, str], Mutant] = {}
    while len(drawn) < count:
        (file,) = rng.choices(files, weights)
        if changes := _changes(texts[file]):
            line = rng.choice(sorted({change.line for change in changes}))
            change = rng.choice([change for change in changes if change.line == line])
            mutant = Mutant(file, change, texts[file], change.apply())
            drawn.setdefault((file, mutant.text), mutant)
    return list(drawn.values())


@cache
def _changes(text: str) -> list[Change]:
    from tools.mutants.changes import changes_of  # libcst and mutmut take half a second

    return changes_of(text)


def _lines_of_functions(text: str) -> set[int]:
    """Return the lines on which something of a function begins."""
    functions = (
        node for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )  # fmt: skip
    return {
        node.lineno
        for function in functions
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.expr | ast.stmt)
    }


# What is found


class Results:
    """What mutants came to, in a file that outlives an interrupted run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._known = {entry["key"]: entry for entry in map(json.loads, lines)}

    def known(self, mutant: Mutant, tests: Sequence[TimedTest]) -> Outcome | None:
        """Return what a mutant came to: a survivor of other tests is judged again."""
        entry = self._known.get(_digest(mutant.file, mutant.text))
        if entry is None or entry["outcome"] == Outcome.UNUSABLE.name:
            return None
        outcome = Outcome[entry["outcome"]]
        return None if outcome in LIVE and entry["tests"] != _names(tests) else outcome

    def add(self, mutant: Mutant, tests: Sequence[TimedTest], outcome: Outcome) -> None:
        """Keep what a mutant came to."""
        key = _digest(mutant.file, mutant.text)
        entry = {"key": key, "tests": _names(tests), "outcome": outcome.name}
        self._known[key] = entry
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def _names(tests: Sequence[TimedTest]) -> str:
    return _digest(*sorted(test.id for test in tests))


def judge(mutant: Mutant, tests: Sequence[TimedTest], tree: Path) -> tuple[Outcome, str]:
    """Run the tests on a copy of the tree with the mutant; return the outcome, and what failed."""
    if not tests:
        return Outcome.NOT_RUN, ""
    for group in (tests[:_FIRST_TESTS], tests[_FIRST_TESTS:]):
        if not group:
            continue
        names = [test.id for test in group]
        seconds = _SLOWER_MAX * sum(test.seconds for test in group) + _MORE_SECONDS_MAX
        with planted(tree / mutant.file, mutant.text):
            code, output = run_tests(tree, names, seconds_max=seconds)
        if code == HUNG:
            return Outcome.HUNG, output
        if code not in (PASSED, FAILED):  # the bug keeps the tests from being collected, or we do
            code, output = run_tests(tree, names, seconds_max=seconds)
            return (Outcome.KILLED, "") if code == PASSED else (Outcome.UNUSABLE, output[-2000:])
        if code == FAILED:
            failed = [line for line in output.splitlines() if line.startswith("FAILED")]
            return Outcome.KILLED, failed[0][7:] if failed else ""
    return Outcome.SURVIVED, ""


def judge_all(
    tree: Path, mutants: Sequence[Mutant], known: Covering, processes: int, seconds_max: float
) -> list[Outcome]:
    """Judge mutants of a tree beside each other; return their outcomes in the same order."""
    reasons = explained()
    results = Results(CACHE / "outcomes.jsonl")
    trees: queue.SimpleQueue[Path] = queue.SimpleQueue()

    def one(mutant: Mutant) -> Outcome:
        if (mutant.file, key_of(mutant.diff)) in reasons:
            return Outcome.EXPLAINED
        tests = _within(known, mutant, seconds_max)
        if (outcome := results.known(mutant, tests)) is not None:
            return _report(mutant, outcome, tests, "as before")
        copy = trees.get()
        try:
            outcome, note = judge(mutant, tests, copy)
        finally:
            trees.put(copy)
        results.add(mutant, tests, outcome)
        return _report(mutant, outcome, tests, note)

    with ExitStack() as stack:
        for _ in range(processes):
            trees.put(stack.enter_context(copied_tree(tree)))
        pool = ThreadPoolExecutor(processes)
        try:
            return list(pool.map(one, mutants))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
        finally:
            pool.shutdown()


def _within(known: Covering, mutant: Mutant, seconds_max: float) -> list[TimedTest]:
    """Return the quickest tests that run the lines of a mutant, those of so many seconds."""
    tests, seconds = list[TimedTest](), 0.0
    for test in known.of(mutant.file, mutant.change.lines):
        seconds += test.seconds
        if tests and seconds > seconds_max:
            break
        tests.append(test)
    return tests


def _report(mutant: Mutant, outcome: Outcome, tests: Sequence[TimedTest], note: str) -> Outcome:
    """Print one line of a mutant, and the diff of one that is not noticed."""
    lines = [f"{outcome.value:9}  {mutant.where}  {mutant.change.operator}  {note}"]
    if outcome not in (Outcome.KILLED, Outcome.HUNG):
        lines[0] += f" ({len(tests)} tests)"
        lines += [f"    {line}" for line in mutant.diff.splitlines()]
    print("\n".join(line.rstrip() for line in lines), flush=True)
    return outcome


def summary(outcomes: Sequence[Outcome]) -> tuple[str, int]:
    """Return the last line that is printed, and the exit code."""
    count = Counter(outcomes)
    judged = len(outcomes) - count[Outcome.EXPLAINED] - count[Outcome.UNUSABLE]
    live = sum(count[outcome] for outcome in LIVE)
    text = (
        f"{judged} mutants judged: {live} survived ({live / max(judged, 1):.1%}), of them "
        f"{count[Outcome.NOT_RUN]} on lines that no test runs; {count[Outcome.HUNG]} hung; "
        f"{count[Outcome.EXPLAINED]} more change nothing, as explained"
    )
    if count[Outcome.UNUSABLE]:
        return f"{text}; {count[Outcome.UNUSABLE]} could not be judged", 2
    return text, int(live * 100 > SURVIVORS_PERCENT_MAX * judged)


def main(arguments: list[str]) -> int:
    """Draw, judge, and say what survived."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.sample", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=120.0, help="of tests for one mutant")
    parser.add_argument("--tests", nargs="+", default=FOLDERS, help="folders whose tests run")
    parser.add_argument("word", nargs="*", help="draw from files whose path contains one of these")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what runs is ended
    with copied_tree() as tree:  # what is changed meanwhile is not in it
        mutants = draw(tree, given.seed, given.count, given.word)
        known = covering(tree, given.processes, given.tests)
        outcomes = judge_all(tree, mutants, known, given.processes, given.seconds)
    text, code = summary(outcomes)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
