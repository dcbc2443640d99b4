"""Creating pods as fast as the server takes them: bodies ready made, answers read and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tests.kubernetes.controlplane import ControlPlane

from bench.exchange import PODS as PODS_PATH
from bench.exchange import Exchange, Plan, Target, whole_request
from bench.objects import encoded
from bench.real.ground import CONNECTIONS, Ground
from fairlead.api.resources import CONFIG_MAPS

_KEPT = ("name", "namespace", "labels", "annotations")
#: Defaults that the server adds, and that no client sends.
_ADDED = {
    "dnsPolicy", "schedulerName", "terminationGracePeriodSeconds", "enableServiceLinks",
    "preemptionPolicy", "priority", "tolerations",
}  # fmt: skip
_ADDED_TO_CONTAINER = {"imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"}


async def as_sent(ground: Ground, job: str) -> list[dict[str, Any]]:
    """Return the pods of a gang as they were sent, but for an owner that stays.

    The job goes, and the server would collect what it owns.
    """
    path = f"{PODS_PATH}?labelSelector=fairlead.dev/job-name={job}"
    raw = await ground.client.request("GET", path)
    items = msgspec.json.decode(raw)["items"]
    body = {"metadata": {"name": f"{job}-stays"}}
    made = await ground.client.create(CONFIG_MAPS, body, namespace="default")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": body["metadata"]["name"]}
    return [_as_sent(item, {**owner, "uid": made.metadata.uid}) for item in items]


def _as_sent(pod: dict[str, Any], owner: dict[str, str]) -> dict[str, Any]:
    spec = {key: value for key, value in pod["spec"].items() if key not in _ADDED}
    spec["containers"] = [
        {key: value for key, value in each.items() if key not in _ADDED_TO_CONTAINER}
        for each in spec["containers"]
    ]
    metadata = {key: pod["metadata"][key] for key in _KEPT if key in pod["metadata"]}
    metadata["ownerReferences"] = [{**pod["metadata"]["ownerReferences"][0], **owner}]
    return {"metadata": metadata, "spec": spec}


async def ready_to_create(
    plane: ControlPlane, pods: list[dict[str, Any]]
) -> Callable[[], Awaitable[None]]:
    """Return what creates them over 64 connections that are open already.

    AssertionError when one is refused.
    """
    port = urlsplit(plane.url).port
    assert port is not None
    target = Target(port, plane.token, str(plane.ca_file))
    plan = Plan("create-pod", target, len(pods), CONNECTIONS)
    bodies = (encoded(pod, kind="Pod") for pod in pods)
    requests = iter([whole_request(plan, "POST", PODS_PATH, body=body) for body in bodies])
    loop, context = asyncio.get_running_loop(), target.context
    made = [
        await loop.create_connection(lambda: Exchange(requests), "127.0.0.1", port, ssl=context)
        for _ in range(CONNECTIONS)
    ]
    exchanges = [protocol for _, protocol in made]

    async def create() -> None:
        for exchange in exchanges:
            exchange.begin()
        await asyncio.gather(*(exchange.done for exchange in exchanges))
        for exchange in exchanges:
            exchange.close()
        refused = [exchange.first_refusal for exchange in exchanges if exchange.wrong]
        assert not refused, refused[0]

    return create
