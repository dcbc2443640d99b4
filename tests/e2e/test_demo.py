"""`make demo` as a new user meets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.disaster_world import kill, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("demo")]

DEMO = Path(__file__).resolve().parents[2] / "tools" / "demo.py"
ANSWER_SECONDS_MAX = 300.0


def test_the_demo_shows_the_whole_story_and_leaves_nothing_running(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD", "KUBE"))}
    try:
        done = subprocess.run(
            [sys.executable, DEMO], env={**environment, "TMPDIR": str(tmp_path)}, text=True,
            capture_output=True, timeout=ANSWER_SECONDS_MAX, check=False,
        )  # fmt: skip
        left = processes_of(tmp_path)
    finally:
        kill(processes_of(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert left == []
    assert done.stderr == ""
    story = [
        "submitted", "placed: 4 members", "running as attempt 1", "cause: Infrastructure",
        "restarted as attempt 2 from step ", "succeeded", "Result:  accuracy 0.9",
    ]  # fmt: skip
    shown = done.stdout[done.stdout.index("Timeline of digits") :]
    assert re.search(".*".join(map(re.escape, story)), shown, re.DOTALL), shown
    logs = re.search(r"^Logs: +(\S+)$", done.stdout, re.MULTILINE)
    assert logs is not None
    assert any(Path(logs[1]).rglob("*.log")), "the logs are kept after the end"
