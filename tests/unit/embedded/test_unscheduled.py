"""The event of plain pods that nothing places."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from fairlead.api.resources import PODS
from fairlead.embedded.own_controllers.unscheduled import MESSAGE, report_unscheduled
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def record(
        self, _resource: Any, metadata: Any, kind: Any, *, reason: str, message: str
    ) -> None:
        assert message == MESSAGE
        self.seen.append((metadata.name, kind.value, reason))


def test_a_plain_pod_is_told_once_and_pods_that_something_places_never() -> None:
    async def main() -> None:
        client, events = FakeClient(), Events()
        mirror = Mirror(client, PODS, clock=LoopClock(0.0), rng=random.Random(1))
        report_unscheduled(mirror, events, MirrorReader())
        container = {"name": "main", "image": "x"}

        async def make(name: str, **spec: Any) -> None:
            body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
            await client.create(PODS, body, namespace="default")

        async with asyncio.TaskGroup() as group:
            task = group.create_task(mirror.run())
            await make("early")
            await asyncio.sleep(1)
            await make("bound", nodeName="n1")
            await make("other", schedulerName="mine")
            await make("gated", schedulingGates=[{"name": "example.dev/gate"}])
            await make("named", schedulerName="default-scheduler")
            await asyncio.sleep(1)
            found = [("early", "Warning", "FailedScheduling")]
            assert events.seen == [*found, ("named", "Warning", "FailedScheduling")]
            await client.patch(
                PODS, "early", {"metadata": {"labels": {"a": "b"}}}, namespace="default"
            )
            await client.patch(
                PODS, "gated", {"spec": {"schedulingGates": None}}, namespace="default"
            )
            await asyncio.sleep(1)
            assert events.seen[2:] == [("gated", "Warning", "FailedScheduling")]
            task.cancel()

    run(main())
