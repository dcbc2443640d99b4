"""Bodies of wrong types, and jobs whose pods would be refused: told when they are written."""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.resources import CONFIG_MAPS, CRDS, JOBS, PODS, PRIORITY_CLASSES
from fairlead.api.schema import crd
from fairlead.api.status import BadRequest, Invalid
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run

WRONG: list[tuple[str, Any]] = [
    *((field, value) for field in ("labels", "annotations") for value in ([], 0, False, "", "x")),
    *((field, value) for field in ("finalizers", "ownerReferences") for value in ({}, 0, "", "x")),
    *(
        (field, value)
        for field in ("name", "generateName", "namespace", "uid", "resourceVersion", "selfLink")
        for value in (0, 5, False, [], {})
    ),
    *((field, value) for field in ("creationTimestamp", "deletionTimestamp") for value in (0, "")),
    ("generation", "1"), ("generation", False), ("managedFields", {}),
]  # fmt: skip


def cluster(play: Callable[[InProcessClient], Awaitable[None]]) -> None:
    async def main() -> None:
        numbers = itertools.count(1)
        service = ApiService(
            Store.open(None), Registry.with_builtins(), LoopClock(1e9),
            ids=lambda: f"uid-{next(numbers)}", rng=random.Random(1),
        )  # fmt: skip
        await service.bootstrap()
        client = InProcessClient(service)
        for manifest in crd.manifests():
            await client.create(CRDS, manifest)
        await play(client)

    run(main())


def job(name: str = "j", pod: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    containers = {"containers": [{"name": "main", "image": "i"}]}
    role = {"name": "worker", "template": {"spec": containers | (pod or {})}}
    return {"metadata": {"name": name}, "spec": {"roles": [role], **spec}}


@pytest.mark.parametrize("resource", [CONFIG_MAPS, JOBS], ids=lambda r: r.name)
def test_metadata_of_a_wrong_type_is_refused_even_if_it_is_empty_or_not_for_clients(
    resource: Any,
) -> None:
    async def play(client: InProcessClient) -> None:
        body: dict[str, Any] = job() if resource is JOBS else {}
        taken: list[tuple[str, Any]] = []
        for field, value in WRONG:
            metadata = {"name": "j", field: value}
            try:
                await client.create(resource, {**body, "metadata": metadata}, namespace="default")
            except BadRequest as error:
                if field in error.message or "time" in error.message:
                    continue
            taken.append((field, value))
        assert taken == []
        nothing = {"labels": {}, "annotations": None, "finalizers": [], "ownerReferences": None}
        whole = {**body, "metadata": {"name": "j", "uid": "mine", **nothing}}
        made = await client.create(resource, whole, namespace="default")
        assert made.metadata.uid.startswith("uid-")
        for field, value in (("labels", []), ("finalizers", {}), ("uid", 5)):
            with pytest.raises(BadRequest, match=field):
                await client.patch(resource, "j", {"metadata": {field: value}}, namespace="default")

    cluster(play)


def test_a_pod_spec_that_is_no_object_is_refused_as_such() -> None:
    async def play(client: InProcessClient) -> None:
        for spec in ([], 0, False, ""):
            body = {"metadata": {"name": "p"}, "spec": spec}
            with pytest.raises(BadRequest, match="spec"):
                await client.create(PODS, body, namespace="default")

    cluster(play)


def causes(error: Invalid) -> list[str]:
    assert error.status.details is not None
    return [cause.field for cause in error.status.details.causes]


def test_a_job_whose_pods_no_server_would_take_is_refused_when_it_is_submitted() -> None:
    pod = "spec.roles[0].template.spec"

    async def play(client: InProcessClient) -> None:
        for given, field in (
            (
                {"tolerations": [{"key": "a", "operator": "Maybe"}]},
                f"{pod}.tolerations[0].operator",
            ),
            ({"tolerations": [{"key": "a", "effect": "Never"}]}, f"{pod}.tolerations[0].effect"),
            ({"priorityClassName": "none"}, f"{pod}.priorityClassName"),
            ({"priority": 7}, f"{pod}.priority"),
            ({"restartPolicy": "OnFailure"}, f"{pod}.restartPolicy"),
        ):
            with pytest.raises(Invalid) as caught:
                await client.create(JOBS, job(pod=given), namespace="default")
            assert causes(caught.value) == [field]
        with pytest.raises(Invalid) as caught:
            await client.create(JOBS, job(priorityClassName="none"), namespace="default")
        assert causes(caught.value) == ["spec.priorityClassName"]

    cluster(play)


def test_a_job_gets_the_priority_of_its_class_and_outlives_the_class() -> None:
    async def play(client: InProcessClient) -> None:
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000})
        body = job(priorityClassName="high", pod={"priority": 1000})
        made: Job = await client.create(JOBS, body, namespace="default")
        assert made.spec.priority == 1000
        await client.delete(PRIORITY_CLASSES, "high")
        patch = {"spec": {"cancel": True}}
        assert (await client.patch(JOBS, "j", patch, namespace="default")).spec.cancel
        other = {"spec": {"priorityClassName": "other"}}
        with pytest.raises(Invalid) as caught:
            await client.patch(JOBS, "j", other, namespace="default")
        assert causes(caught.value) == ["spec.priorityClassName"]

    cluster(play)
