"""Which process runs what, when several share the suite: real nodes in one, the rest by file."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

_HERE = Path(__file__).parent
_NODES = _HERE / "nodes"


class _NodesInOne(LoadFileScheduling):
    """Files go to the next free process; those of real nodes share one, and with it the nodes."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return str(_NODES) if (self.config.rootpath / file).is_relative_to(_NODES) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return _NodesInOne(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest; the short files of the conformance suite fill the end."""
    places = {
        path: (not path.is_relative_to(_NODES), not path.is_relative_to(_HERE))
        for path in {item.path for item in items}
    }
    items.sort(key=lambda item: places[item.path])
