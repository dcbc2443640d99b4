"""Golden texts, compared byte for byte with data/; FAIRLEAD_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


def check(name: str, text: str) -> None:
    """Assert that `text` is what the golden file says, or write the file when asked to."""
    path = DATA / name
    if os.environ.get("FAIRLEAD_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != expected:
        lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), lineterm="")
        told = "\n".join(lines)
        pytest.fail(f"{path} differs; if meant, run with FAIRLEAD_UPDATE_GOLDEN=1\n{told}")
