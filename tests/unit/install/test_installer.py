"""How an object on a cluster stands to its manifest, by what the server answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from fairlead.app.controller_settings import ControllerSettings
from fairlead.decide.health.settings import HealthSettings
from fairlead.install.installer import ObjectState, look, needs
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import NodeAgentValues, Values
from fairlead.kube.blocking import BlockingClient

AGENTS = Install(
    values=Values(
        settings=ControllerSettings(health=HealthSettings(enabled=True)),
        node_agent=NodeAgentValues(enabled=True),
    )
)


def server(found: dict[str, Any]) -> BlockingClient:
    """Return a server that has one object, which applying does not change."""
    answer = SimpleNamespace(body=msgspec.json.encode(found))
    return cast("BlockingClient", SimpleNamespace(request=lambda *_, **__: answer))


@pytest.mark.parametrize(
    ("status", "note"),
    [
        ({"desiredNumberScheduled": 3, "numberReady": 3}, ""),
        ({"desiredNumberScheduled": 3, "numberReady": 2}, "2 of 3 nodes have a pod that is ready"),
        ({"desiredNumberScheduled": 3}, "0 of 3 nodes have a pod that is ready"),
        ({}, ""),
    ],
)
def test_agents_that_do_not_run_are_named(status: dict[str, int], note: str) -> None:
    (manifest,) = (each for each in manifests(AGENTS) if each["kind"] == "DaemonSet")
    found = look(server({**manifest, "status": status}), manifest)
    assert (found.state, found.note) == (ObjectState.SAME, note)
    assert found.is_well is not bool(note)


def test_the_priority_class_of_the_agents_is_looked_for() -> None:
    assert [each.label for each in needs(Install())] == []
    assert [each.label for each in needs(AGENTS)] == ["PriorityClass system-node-critical"]
