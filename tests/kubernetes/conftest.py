"""What runs first, when several processes share the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_NODES = _HERE / "nodes"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest; the short files of the conformance suite fill the end."""
    places = {
        path: (not path.is_relative_to(_NODES), not path.is_relative_to(_HERE))
        for path in {item.path for item in items}
    }
    items.sort(key=lambda item: places[item.path])
