"""Tests wait for what happens, with the one patience, and never for a port by chance; and none is
left out unseen.

A machine of CI is several times slower than ours and shares its cores: what comes at once here may
take many seconds there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.tidy.sources import ROOT

TESTS = ROOT / "tests"
#: Where time is real. Deadlines of virtual time say what is promised.
REAL = ("conformance", "e2e", "unit/member", "unit/node", "unit/tools")
#: A bound of seconds that is written out, in a wait for another task, thread or process. What is
#: expected not to come is waited for in less than a second.
LITERAL = re.compile(
    r"asyncio\.timeout\([1-9][\d.]*\)"
    r"|\.(?:wait|join|communicate|settimeout)\((?:timeout=)?[1-9][\d.]*\)"
)
#: A port that is free now, and anybody's when the socket is closed.
CHANCE = re.compile(
    r"with socket\.(?:socket|create_server)\(.*\) as (\w+):\n(?:.*\n){0,2}?"
    r" +return .*\b\1\.getsockname\(\)\[1\]"
)

#: What a file says that needs a real control plane.
MARKED = r"^pytestmark = (\[[^\]]*)?pytest\.mark\.kubernetes\b"


def found(pattern: re.Pattern[str], *below: str) -> Iterator[str]:
    """Yield where a pattern is in the tests, as FILE: TEXT."""
    for folder in below:
        for path in sorted((TESTS / folder).rglob("*.py")):
            for each in pattern.finditer(path.read_text()):
                yield f"{path.relative_to(ROOT)}: {each[0]}"


def test_deadlines_in_real_time_are_the_one_patience() -> None:
    assert list(found(LITERAL, *REAL)) == [], "use PATIENCE_SECONDS of tests/patience.py"


def test_no_port_is_handed_out_after_its_socket_is_closed() -> None:
    assert list(found(CHANCE, ".")) == [], "use free_port of tests/ports.py"


def test_every_file_that_make_test_does_not_read_is_for_a_real_control_plane() -> None:
    unmarked = [
        path.name
        for path in (TESTS / "kubernetes").rglob("test_*.py")
        if not re.search(MARKED, path.read_text(), re.MULTILINE)
    ]
    assert unmarked == [], "make test has --ignore tests/kubernetes: mark all of the file"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (LITERAL, "async with asyncio.timeout(5):"),
        (LITERAL, "assert process.wait(10) == 0"),
        (LITERAL, "process.communicate(timeout=30)"),
        (CHANCE, 'with socket.socket() as s:\n    s.bind(("", 0))\n    return s.getsockname()[1]'),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)
