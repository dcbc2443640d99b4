"""What a list or watch selects by labels and fields at once, and names that the server makes."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from tests.unit.embedded.test_service import EPOCH, create, make, names, pod_spec

from fairlead.embedded.builtins import CONFIG_MAPS, NODES, PODS
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import ListOptions, WatchOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run

#: Every kind of pod that the selectors tell apart: (team, node, host network).
PODS_OF_ALL_KINDS = tuple(product(("", "a", "b"), ("", "n1", "n2"), ("false", "true")))


def _pod(team: str, node: str, host: str) -> dict[str, Any]:
    spec = pod_spec(**({"nodeName": node} if node else {}))
    if host == "true":
        spec["hostNetwork"] = True
    return {"metadata": {"labels": {"team": team} if team else {}}, "spec": spec}


def _holds(text: str, values: dict[str, str]) -> bool:
    """Return what a conjunction of `key=value` and `key!=value` says; a missing key is ""."""
    for term in text.split(",") if text else ():
        key, operator, value = term.partition("!=" if "!=" in term else "=")
        if (values[key] == value) is (operator == "!="):
            return False
    return True


@pytest.mark.parametrize("labels", ["", "team=a", "team!=a"])
@pytest.mark.parametrize(
    "fields",
    [
        "", "spec.nodeName=n1", "spec.nodeName!=n1", "spec.nodeName=",
        "spec.hostNetwork=false", "spec.hostNetwork!=false,spec.nodeName=n1",
    ],
)  # fmt: skip
def test_lists_and_watches_select_what_all_labels_and_fields_select(
    labels: str, fields: str
) -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        wanted: set[str] = set()
        for i, (team, node, host) in enumerate(PODS_OF_ALL_KINDS):
            await create(service, PODS, f"p{i}", **_pod(team, node, host))
            values = {"team": team, "spec.nodeName": node, "spec.hostNetwork": host}
            if _holds(labels, values) and _holds(fields, values):
                wanted.add(f"p{i}")
        assert wanted
        listed = service.list(
            PODS, "default", ListOptions(label_selector=labels, field_selector=fields)
        )
        assert {record.name for record in listed.records} == wanted
        for version in ("", "1"):  # from the state, and from the events
            start = service.watch_start(
                PODS, "default",
                WatchOptions(
                    label_selector=labels, field_selector=fields, resource_version=version
                ),
            )  # fmt: skip
            assert {record.name for _, record in start.initial} == wanted

    run(main())


def test_a_node_that_does_not_say_so_is_selected_as_schedulable() -> None:
    async def main() -> None:
        service = make(Store.open(None))
        await service.bootstrap()
        await create(service, NODES, "n1")
        await create(service, NODES, "n2", spec={"unschedulable": True})
        found = service.list(NODES, "", ListOptions(field_selector="spec.unschedulable=false"))
        assert [record.name for record in found.records] == ["n1"]

    run(main())


def test_a_generated_name_that_is_taken_is_drawn_again() -> None:
    async def main() -> None:
        store = Store.open(None)
        for i in range(3):  # services that draw the same names one after the other
            service = ApiService(
                store, Registry.with_builtins(), LoopClock(EPOCH),
                ids=lambda: f"uid-{store.version}", rng=random.Random(3),
            )  # fmt: skip
            await service.bootstrap()
            body = {"metadata": {"generateName": "m-"}}
            await service.create(CONFIG_MAPS, "default", body, WriteOptions())
            assert len(names(service, CONFIG_MAPS, "default")) == i + 1

    run(main())
