"""Plants the bugs of `table.toml` one at a time and reports which the tests do not notice.

Each bug is planted in a copy of the tree, so an interrupted run leaves the working tree as it was.
The tests must pass on the copy before the first bug: one that fails anyway notices nothing.
A bug counts as noticed when its tests fail. Tests that hang notice it, too, but are shown apart: a
slow machine looks the same. Exit codes: 0 when they notice enough of them, 1 when too many survive,
2 when an entry or its tests cannot be used.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tools.mutants.trees import FAILED, HUNG, PASSED, copied_tree, planted, run_tests

TABLE = Path(__file__).with_name("table.toml")
#: Of a hundred planted bugs, this many may survive.
SURVIVORS_PERCENT_MAX = 5
#: Tests hang that take this many times as long as without a bug, and at least so many seconds more.
_SLOWER_MAX, _MORE_SECONDS_MAX = 3, 60
#: What the tests of one entry may take without a bug.
_BASELINE_SECONDS_MAX = 600


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
    #: Worlds of the simulator are to notice it, too (`simulated.py`).
    serious: bool = False

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
    seconds_max = _SLOWER_MAX * usual_seconds + _MORE_SECONDS_MAX
    with planted(tree / mutant.file, mutant.planted(tree)):
        code, _ = run_tests(tree, mutant.tests.split(), seconds_max=seconds_max)
    outcomes = {PASSED: Outcome.SURVIVED, FAILED: Outcome.KILLED, HUNG: Outcome.HUNG}
    if code not in outcomes:
        raise UnusableEntryError(f"pytest {mutant.tests} ended with code {code}")
    return outcomes[code]


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
    with copied_tree() as tree:
        usual_seconds: dict[str, float] = {}
        for tests in dict.fromkeys(mutant.tests for mutant in mutants):
            began_at = time.monotonic()
            code, output = run_tests(tree, tests.split(), seconds_max=_BASELINE_SECONDS_MAX)
            usual_seconds[tests] = time.monotonic() - began_at
            if code != PASSED:
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
