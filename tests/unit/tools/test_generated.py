"""Generated files are written, and a check names those that differ without touching them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.generated import write_or_check


def test_a_check_names_what_is_missing_or_old_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, old, missing = (tmp_path / name for name in ("same", "old", "below/missing"))
    same.write_text("a\n")
    old.write_text("b\n")
    files = {same: "a\n", old: "new\n", missing: "c\n"}
    assert write_or_check(files, "make docs", ["--check"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [f"{each} is not up to date; run: make docs" for each in (old, missing)]
    assert (old.read_text(), missing.exists()) == ("b\n", False)
    assert write_or_check(files, "make docs", []) == 0
    assert (old.read_text(), missing.read_text()) == ("new\n", "c\n")
    assert write_or_check(files, "make docs", ["--check"]) == 0
