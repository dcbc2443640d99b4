"""The version is written in two places, which must agree."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fairlead import __version__


def test_the_package_says_the_version_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert __version__ == project["version"]
