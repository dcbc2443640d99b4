"""The idle policy in a whole cluster under virtual time: warnings, notices, ends, exceptions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace
from tests.simulation.embedded_world import SIMULATE_SECONDS, EmbeddedWorld, embedded_world
from tests.simulation.test_notices import Receivers

from fairlead.api import names
from fairlead.api.meta import find_condition
from fairlead.api.resources import EVENTS, JOBS, NODES, PODS
from fairlead.api.status import Unavailable
from fairlead.api.values.times import parse_time
from fairlead.app.configuration.policies import Policies
from fairlead.decide.use.idle import IdleMode, IdlePolicy
from fairlead.embedded.http.metrics import MeasuredUse
from fairlead.embedded.virtual.profile import UseSpec, load_profile
from fairlead.runtime.client import Request
from fairlead.sim.loop import run

POLICY = IdlePolicy(IdleMode.ENFORCE, except_names=("kept-*",))
IDLE = replace(load_profile("instant"), use=UseSpec(gpu_share=0.02))
NOTIFY = [{"on": ["Idle", "End"], "url": "https://hooks.example/"}]
EVIDENCE = "ended by the idle policy: GPU use at most 2% over 2h"


async def events(world: EmbeddedWorld, name: str, prefix: str = "Idle") -> list[str]:
    found = await world.client.list(EVENTS, namespace="default")
    return [
        each.reason for each in found.items
        if each.involved_object.name == name and each.reason.startswith(prefix)
    ]  # fmt: skip


def test_idle_jobs_end_after_two_warnings_and_excepted_ones_go_on() -> None:
    receivers = Receivers()

    async def main() -> None:
        policies = Policies(idle=POLICY)
        async with embedded_world(3, policies, profile=IDLE, notices=receivers) as world:
            await world.submit("idle", 2, notify=NOTIFY)
            await world.submit("kept-one", 1)
            await world.runs("idle")
            await asyncio.sleep(3_900)
            job = await world.job("idle")
            assert job.status.idle is not None
            assert (job.status.idle.warnings, job.status.idle.attempt) == (1, 1)
            report = world.controllers._metrics.use._source
            assert report is not None
            assert dict(report().gpus) == {"": 24}
            await world.until("idle", lambda job: job.is_finished, 7_200)
            job = await world.job("idle")
            assert job.status.state == "Cancelled"
            failed = find_condition(job.status.conditions, names.FAILED)
            assert failed is not None
            assert failed.message == EVIDENCE
            assert job.status.idle is not None
            assert job.status.idle.warnings == 2
            assert (await world.job("kept-one")).status.state == "Running"
            await asyncio.sleep(600)

    run(main())
    assert receivers.taken == ["idle Idle 1", "idle End 1"]


def test_a_tenant_who_forges_members_and_figures_ends_no_job_of_others() -> None:
    """Pods that claim to be members, their annotations, and an owner that they do not have."""

    shown = set[str]()

    async def main() -> None:
        busy = replace(IDLE, use=UseSpec(gpu_share=0.1))
        async with embedded_world(3, Policies(idle=POLICY), profile=busy) as world:
            await world.submit("victim", 1)
            job = await world.runs("victim")
            uid, taken = job.metadata.uid, (await world.pods("victim"))[0].spec.node_name
            found = (await world.client.list(NODES)).items
            free = next(n.metadata.name for n in found if n.metadata.name != taken)
            owner = {"apiVersion": names.API_VERSION, "kind": "Job", "name": "victim",
                     "uid": uid, "controller": True}  # fmt: skip
            labels = {names.JOB_NAME: "victim", names.JOB_UID: uid, names.ROLE: "worker",
                      names.INDEX: "0", names.ATTEMPT: "1"}  # fmt: skip
            use = '{"milliseconds":9000000,"gpuMilliseconds":1,"gpuBusyMilliseconds":0}'
            notes = {names.USE: use, SIMULATE_SECONDS: "86400"}
            for name in ("victim-1-worker-00", "forged", "owned"):
                owners = [owner] if name == "owned" else []  # the jobs controller deletes that one
                meta = {"name": name, "labels": labels, "annotations": notes,
                        "ownerReferences": owners}  # fmt: skip
                spec = {"containers": [{"name": "main", "image": "x"}], "nodeName": free}
                await world.client.create(PODS, {"metadata": meta, "spec": spec},
                                          namespace="default")  # fmt: skip
            assert world.nodes is not None
            measure = world.nodes.measured_pods

            def measured() -> Iterator[MeasuredUse]:
                """Forged pods hold a thousand times the GPUs, and compute nothing."""
                for each in measure():
                    used = each.so_far
                    if each.name != "victim-1-worker-0" and used is not None:
                        forged = replace(used, gpu_milliseconds=8_000 * used.milliseconds,
                                         gpu_busy_milliseconds=0)  # fmt: skip
                        each = dataclasses.replace(each, so_far=forged)
                        shown.add(each.name)
                    yield each

            world.nodes.measured_pods = measured
            noted = {"metadata": {"annotations": {names.USE: use}}}
            await world.client.patch(PODS, "victim-1-worker-0", noted, namespace="default")
            idle = {"attempt": 1, "since": "2020-01-01T00:00:00Z", "warnings": 2, "message": "x",
                    "endsAt": "2020-01-01T02:00:00Z"}  # fmt: skip
            await world.client.patch(
                JOBS, "victim", {"status": {"idle": idle}}, namespace="default",
                subresource="status",
            )  # fmt: skip
            await asyncio.sleep(3 * 3_600)
            job = await world.job("victim")
            assert job.status.state == "Running"
            assert job.status.idle is None, "the controller looked at it"
            assert await events(world, "victim") == []
            assert shown == {"forged", "victim-1-worker-00"}

    run(main())


def test_in_shadow_the_policy_reports_and_ends_nothing() -> None:
    async def main() -> None:
        shadow = dataclasses.replace(POLICY, mode=IdleMode.SHADOW)
        async with embedded_world(1, Policies(idle=shadow), profile=IDLE) as world:
            await world.submit("idle", 1, notify=NOTIFY)
            await world.runs("idle")
            await asyncio.sleep(3 * 3_600)
            job = await world.job("idle")
            assert (job.status.state, job.status.idle) == ("Running", None)
            assert set(await events(world, "idle")) == {"IdleReported"}

    run(main())


def test_a_warning_that_was_not_written_does_not_count() -> None:
    """The API refuses the first warning for half an hour: the end comes as much later."""

    async def main() -> None:
        async with embedded_world(1, Policies(idle=POLICY), profile=IDLE) as world:
            await world.submit("idle", 1)
            await world.runs("idle")
            began, call, refused = world.clock.now(), world.client.call, 0

            async def failing(request: Request[Any]) -> Any:
                nonlocal refused
                is_job = request.resource.plural == JOBS.plural
                is_warning = is_job and "'idle'" in str(request.body)
                if is_warning and world.clock.now() < began + 5_400:
                    refused += 1
                    raise Unavailable("injected")
                return await call(request)

            world.client.call = failing
            await asyncio.sleep(7_500)
            assert refused > 1
            job = await world.job("idle")
            assert job.status.state == "Running"
            assert job.status.idle is not None
            assert await events(world, "idle") == ["Idle"]
            job = await world.until("idle", lambda job: job.is_finished, 3_600)
            earliest = began + 5_400 + 3_600 - 2 * POLICY.step_seconds
            assert parse_time(job.status.finished_at or "") >= earliest
            assert job.status.idle is not None
            assert job.status.idle.warnings == 2
            assert {"Idle", "IdleEnded"} == set(await events(world, "idle"))

    run(main())
