"""Imports point down the layers: the contract of pyproject.toml, checked by import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tidy.sources import ROOT


def test_the_import_contracts_hold() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
