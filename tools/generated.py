"""Writes the files that are generated from the source, or checks that they are up to date."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_or_check(files: Mapping[Path, str], command: str, arguments: Sequence[str]) -> int:
    """Write the files; with `--check` among the arguments name those that differ, and return 1."""
    stale = [path for path, text in files.items() if not _has(path, text)]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path} is not up to date; run: {command}\n")
        return int(bool(stale))
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    return 0


def _has(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text
