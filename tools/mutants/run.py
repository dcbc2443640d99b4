"""Plants the bugs of `table.toml` one at a time and reports which the tests do not notice.

Each bug is planted in a copy of the tree, so an interrupted run leaves the working tree as it was.
The tests must pass on the copy before the first bug: one that fails anyway notices nothing.
A bug counts as noticed when its tests fail. Tests that hang notice it, too, but are shown apart: a
slow machine looks the same. Exit codes: 0 when they notice enough of them, 1 when too many survive,
2 when an entry or its tests cannot be used.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("table.toml")
#: Of a hundred planted bugs, this many may survive.
SURVIVORS_PERCENT_MAX = 5
#: Tests hang that take this many times as long as without a bug, and at least so many seconds more.
_SLOWER_MAX, _MORE_SECONDS_MAX = 3, 60
#: What the tests of one entry may take without a bug.
_BASELINE_SECONDS_MAX = 600
_PASSED, _FAILED = 0, 1  # exit codes of pytest
_HUNG = -1


class UnusableEntryError(Exception):
    """An entry no longer applies to the code, or its tests cannot be run."""


class Outcome(Enum):
    """How a planted bug ends."""

    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "SURVIVED"
    UNUSABLE = "UNUSABLE"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: in `file` it replaces `old`, which occurs once, by `new`; `tests` must notice."""

    id: str
    effect: str
    file: str
    old: str
    new: str
    tests: str

    def planted(self, root: Path) -> str:
        """Return the text of the file with the bug; UnusableEntryError when it does not apply."""
        sound = (root / self.file).read_text()
        if sound.count(self.old) != 1:
            raise UnusableEntryError(
                f"old text occurs {sound.count(self.old)} times in {self.file}"
            )
        return sound.replace(self.old, self.new)


def load() -> list[Mutant]:
    """Return the entries in the order of the table."""
    return [Mutant(**entry) for entry in tomllib.loads(TABLE.read_text())["mutant"]]


def plant(mutant: Mutant, tree: Path, *, usual_seconds: float) -> Outcome:
    """Run the mutant's tests in `tree` with its bug, and take the bug out again.

    `usual_seconds` is what they take without it.
    """
    path = tree / mutant.file
    sound = path.read_text()
    planted = mutant.planted(tree)
    try:
        path.write_text(planted)
        seconds_max = _SLOWER_MAX * usual_seconds + _MORE_SECONDS_MAX
        code, _ = _test(tree, mutant.tests, seconds_max=seconds_max)
    finally:
        path.write_text(sound)
    outcomes = {_PASSED: Outcome.SURVIVED, _FAILED: Outcome.KILLED, _HUNG: Outcome.HUNG}
    if code not in outcomes:
        raise UnusableEntryError(f"pytest {mutant.tests} ended with code {code}")
    return outcomes[code]


def _test(tree: Path, tests: str, *, seconds_max: float) -> tuple[int, str]:
    """Run tests of the tree up to the first failure; return pytest's exit code and output.

    The code is _HUNG for tests that take longer than `seconds_max`.
    """
    # Without bytecode: a file of the same size in the same second would be taken for the old one.
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["--hypothesis-profile", "unshrunk"]
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
    try:
        result = subprocess.run(
            [*command, *tests.split()], cwd=tree, env=environment, check=False,
            capture_output=True, timeout=seconds_max, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _HUNG, f"the tests take longer than {seconds_max:g} s"
    return result.returncode, result.stdout


def copy_tree(target: Path) -> None:
    """Copy what git knows or would add, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _report(mutant: Mutant, tree: Path, usual_seconds: float) -> Outcome:
    """Plant one bug and print how it ended."""
    began_at, note = time.monotonic(), ""
    try:
        outcome = plant(mutant, tree, usual_seconds=usual_seconds)
    except UnusableEntryError as error:
        outcome, note = Outcome.UNUSABLE, f": {error}"
    if outcome is Outcome.SURVIVED:
        note = f": {mutant.effect}"
    took = time.monotonic() - began_at
    print(f"{outcome.value:9} {took:5.1f} s  {mutant.id}{note}", flush=True)
    return outcome


def main(arguments: list[str]) -> int:
    """Plant the entries whose id contains one of the words, or all."""
    parser = argparse.ArgumentParser(
        description="Plant known bugs, one at a time, and report which the tests do not notice."
    )
    parser.add_argument("word", nargs="*", help="plant the bugs whose id contains one of these")
    words: list[str] = parser.parse_args(arguments).word
    mutants = [m for m in load() if not words or any(word in m.id for word in words)]
    if not mutants:
        parser.error(f"no bug has an id that contains {' or '.join(words)}")
    with tempfile.TemporaryDirectory(prefix="fairlead-mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        usual_seconds: dict[str, float] = {}
        for tests in dict.fromkeys(mutant.tests for mutant in mutants):
            began_at = time.monotonic()
            code, output = _test(tree, tests, seconds_max=_BASELINE_SECONDS_MAX)
            usual_seconds[tests] = time.monotonic() - began_at
            if code != _PASSED:
                print(f"the tests do not pass without a bug: pytest {tests}\n{output[-4000:]}")
                return 2
        outcomes = [_report(mutant, tree, usual_seconds[mutant.tests]) for mutant in mutants]
    survived, hung = outcomes.count(Outcome.SURVIVED), outcomes.count(Outcome.HUNG)
    print(f"{len(outcomes)} bugs planted, {survived} survived, {hung} hung")
    if Outcome.UNUSABLE in outcomes:
        return 2
    return int(survived * 100 > SURVIVORS_PERCENT_MAX * len(outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
