"""Operators and clients in Python that others wrote, unmodified, against the embedded API: kopf's
handlers, kr8s' objects and lightkube's apply.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import kopf
import kr8s
import pytest
from kr8s.asyncio.objects import CustomResourceDefinition, new_class
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap
from tests.conformance.embedded import embedded_target
from tests.conformance.http_server import TOKEN
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

GROUP = "example.com"
WIDGETS: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": f"widgets.{GROUP}"},
    "spec": {
        "group": GROUP, "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [{
            "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True,
            }},
        }],
    },
}  # fmt: skip


def kubeconfig(path: Path, url: str) -> Path:
    """Write a file that all three clients read."""
    named = {
        "clusters": [{"name": "a", "cluster": {"server": url}}],
        "users": [{"name": "a", "user": {"token": TOKEN}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    }
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "a", **named,
    }))  # fmt: skip
    return path


class Calls:
    """The calls of an operator's handlers, in order."""

    def __init__(self) -> None:
        self._all: list[tuple[str, str]] = []
        self._changed = asyncio.Condition()

    async def note(self, handler: str, said: str) -> None:
        async with self._changed:
            self._all.append((handler, said))
            self._changed.notify_all()

    async def until(self, *call: str) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: call in self._all)

    def of_changes(self) -> list[tuple[str, str]]:
        return [call for call in self._all if call[0] != "timer"]


def operator_of(url: str, calls: Calls) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=url, token=TOKEN)

    @kopf.on.create(GROUP, "v1", "widgets", id="created", registry=registry)
    async def created(spec: Any, patch: Any, **_: Any) -> dict[str, int]:
        await calls.note("create", str(spec["size"]))
        patch.status["phase"] = "made"
        return {"size": spec["size"]}

    @kopf.on.update(GROUP, "v1", "widgets", registry=registry)
    async def updated(old: Any, new: Any, **_: Any) -> None:
        await calls.note("update", f"{old['spec']['size']} to {new['spec']['size']}")

    @kopf.on.delete(GROUP, "v1", "widgets", registry=registry)
    async def deleted(name: str, **_: Any) -> None:
        await calls.note("delete", name)

    @kopf.timer(GROUP, "v1", "widgets", interval=0.2, registry=registry)
    async def timed(name: str, **_: Any) -> None:
        await calls.note("timer", name)

    return registry


async def test_an_operator_of_kopf_sees_what_kr8s_creates_changes_and_deletes(
    tmp_path: Path,
) -> None:
    calls, ready, stop = Calls(), asyncio.Event(), asyncio.Event()
    async with embedded_target() as target, asyncio.TaskGroup() as group:
        api = await kr8s.asyncio.api(kubeconfig=str(kubeconfig(tmp_path / "config", target.url)))
        definition = await CustomResourceDefinition(WIDGETS, api=api)
        await definition.create()
        await definition.wait("condition=Established", timeout=PATIENCE_SECONDS)
        group.create_task(
            kopf.operator(
                registry=operator_of(target.url, calls), namespaces=["default"], standalone=True,
                ready_flag=ready, stop_flag=stop,
            )
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ready.wait()
        kind = new_class("Widget", version=f"{GROUP}/v1", namespaced=True, asyncio=True)
        named = {"name": "a", "namespace": "default"}
        widget = await kind({"metadata": named, "spec": {"size": 1}}, api=api)
        await widget.create()
        await calls.until("timer", "a")
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for _, each in api.watch(kind, namespace="default"):
                if each.raw.get("status") == {"created": {"size": 1}, "phase": "made"}:
                    break
        await widget.refresh()
        assert widget.metadata.finalizers == ["kopf.zalando.org/KopfFinalizerMarker"]
        await widget.patch({"spec": {"size": 2}})
        await calls.until("update", "1 to 2")
        await widget.delete()
        await widget.wait("delete", timeout=PATIENCE_SECONDS)
        stop.set()
    assert calls.of_changes() == [("create", "1"), ("update", "1 to 2"), ("delete", "a")]


async def test_an_apply_of_lightkube_owns_its_fields_until_another_takes_them(
    tmp_path: Path,
) -> None:
    async with embedded_target() as target:
        config = KubeConfig.from_file(kubeconfig(tmp_path / "config", target.url))
        mine = AsyncClient(config=config, field_manager="mine")
        other = AsyncClient(config=config, field_manager="other")
        wanted = ConfigMap(metadata=ObjectMeta(name="a", namespace="default"), data={"k": "1"})
        assert (await mine.apply(wanted)).data == {"k": "1"}
        wanted.data = {"k": "2"}
        with pytest.raises(ApiError, match=r'conflict with "mine": \.data\.k'):
            await other.apply(wanted)
        assert (await other.apply(wanted, force=True)).data == {"k": "2"}
        stored = await mine.get(ConfigMap, "a", namespace="default")
        assert stored.metadata is not None
        managers = [each.manager for each in stored.metadata.managedFields or ()]
        assert managers == ["other"]
