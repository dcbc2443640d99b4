"""How an object on a cluster stands to its manifest, by what the server answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from fairlead.app.configuration.controller_settings import ControllerSettings
from fairlead.decide.health.settings import HealthSettings
from fairlead.install.installer import (
    APPLY,
    MERGE,
    ObjectState,
    apply,
    look,
    needs,
    stop_conversion,
)
from fairlead.install.manifests import Install, manifests
from fairlead.install.values import Crds, NodeAgentValues, Values
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


def test_a_definition_is_taken_back_by_one_write_before_it_is_applied() -> None:
    sent: list[tuple[str, str, Any]] = []
    beta = Install(values=Values(crds=Crds(v1beta1=True)))
    plain, wanted = (
        next(each for each in manifests(install) if each["kind"] == "CustomResourceDefinition")
        for install in (Install(), beta)
    )
    found = {**wanted, "metadata": {**wanted["metadata"], "uid": "u", "resourceVersion": "1"}}

    def request(method: str, _path: str, **more: Any) -> Any:
        sent.append((method, more.get("content_type", ""), more.get("body")))
        return SimpleNamespace(body=msgspec.json.encode(found))

    api = cast("BlockingClient", SimpleNamespace(request=request))
    assert look(api, plain).state is ObjectState.DIFFERS
    assert [method for method, *_ in sent] == ["GET"]
    sent.clear()
    apply(api, plain)
    assert [each[:2] for each in sent] == [("GET", ""), ("PATCH", MERGE), ("PATCH", APPLY)]
    assert sent[1][2] == {
        "metadata": {"uid": "u", "resourceVersion": "1"},
        "spec": {
            "versions": plain["spec"]["versions"],
            "conversion": {"strategy": "None", "webhook": None},
        },
    }
    sent.clear()
    apply(api, wanted)
    assert [each[1] for each in sent] == ["", APPLY]
    assert not stop_conversion(api, plain)


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
