"""Bodies of pods: one read per generation of a job, and never a template of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS
from fairlead.api.status import Conflict, NotFound, Unavailable
from fairlead.controllers.pods.pod_renderer import PodRenderer
from fairlead.controllers.pods.stored_templates import STORED_JOBS, StoredJob, StoredTemplates
from fairlead.decide.attempts.seats import seats
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.rendering.members import PodFactory
from fairlead.decide.pinning import Binding, pinned_node
from fairlead.sim.loop import run
from fairlead.testing.builders import make_placement
from fairlead.testing.fake_client import FakeClient

SPEC = {"containers": [{"name": "main", "image": "a"}], "dnsPolicy": "None"}
ROLE = {"name": "worker", "count": 3, "template": {"spec": SPEC}}


async def _submit(
    client: FakeClient, name: str = "train", *, spec: dict[str, Any] | None = None
) -> Job:
    role = ROLE if spec is None else {**ROLE, "template": {"spec": spec}}
    body = {"metadata": {"name": name}, "spec": {"roles": [role]}, "status": {"attempt": 1}}
    return await client.create(JOBS, body, namespace="default")


def _pods(job: Job) -> list[Pod]:
    placement = make_placement([f"n{i}" for i in range(job.member_count)])
    factory = PodFactory(job, JobsPolicy(), resume_step=None)
    return [factory.make(seat) for seat in seats(job, placement)]


def _play(play: Callable[[FakeClient, PodRenderer], Awaitable[None]]) -> None:
    client = FakeClient(latency_seconds=0.01)
    run(play(client, PodRenderer(StoredTemplates(client))))


def test_all_pods_of_a_generation_share_one_read() -> None:
    async def play(client: FakeClient, bodies: PodRenderer) -> None:
        job = await _submit(client)
        made = to_wire(await asyncio.gather(*[bodies.body(job, pod) for pod in _pods(job)]))
        assert client.count("get") == 1
        assert [b["spec"]["nodeName"] for b in made] == ["n0", "n1", "n2"]
        assert {b["spec"]["dnsPolicy"] for b in made} == {"None"}
        ranks = [v["value"] for b in made for v in b["spec"]["containers"][0]["env"]
                 if v["name"] == "RANK"]  # fmt: skip
        assert ranks == ["0", "1", "2"]
        other: dict[str, Any] = {"spec": {"suspend": True}}
        job = await client.patch(JOBS, "train", other, namespace="default")
        for pod in _pods(job):
            await bodies.body(job, pod)
        assert client.count("get") == 2

    _play(play)


def test_a_job_that_was_made_by_this_process_is_not_read_until_it_changes() -> None:
    async def play(client: FakeClient, _bodies: PodRenderer) -> None:
        stored = StoredTemplates(client)
        body = {"metadata": {"name": "train"}, "spec": {"roles": [ROLE]}, "status": {"attempt": 1}}
        stored.keep(await client.create(STORED_JOBS, body, namespace="default"))
        job = await client.get(JOBS, "train", namespace="default")
        bodies = PodRenderer(stored)
        made = [await bodies.body(job, pod) for pod in _pods(job)]
        assert {b["spec"]["dnsPolicy"] for b in made} == {"None"}
        assert client.count("get") == 1  # the one above
        changed = {"spec": {"roles": [{**ROLE, "template": {"spec": {**SPEC, "dnsPolicy": "x"}}}]}}
        job = await client.patch(JOBS, "train", changed, namespace="default")
        assert (await bodies.body(job, _pods(job)[0]))["spec"]["dnsPolicy"] == "x"
        assert client.count("get") == 2

    _play(play)


def test_a_pod_decided_on_another_generation_is_not_made() -> None:
    async def play(client: FakeClient, bodies: PodRenderer) -> None:
        old = await _submit(client)
        changed = {"spec": {"roles": [{**ROLE, "template": {"spec": {**SPEC, "dnsPolicy": "x"}}}]}}
        new = await client.patch(JOBS, "train", changed, namespace="default")
        pod = _pods(old)[0]
        with pytest.raises(Conflict, match="decided on generation 1, stored is 2"):
            await bodies.body(old, pod)
        assert (await bodies.body(new, pod))["spec"]["dnsPolicy"] == "x"
        with pytest.raises(Conflict):
            await bodies.body(old, pod)
        ahead = replace(new, metadata=replace(new.metadata, uid="another"))
        with pytest.raises(Conflict):
            await bodies.body(ahead, pod)
        changed = {"spec": {"roles": [{**ROLE, "template": {"spec": {**SPEC, "dnsPolicy": "y"}}}]}}
        newer = await client.patch(JOBS, "train", changed, namespace="default")
        assert (await bodies.body(newer, pod))["spec"]["dnsPolicy"] == "y"

    _play(play)


def test_a_failed_read_is_repeated_and_a_missing_job_is_not_found() -> None:
    async def play(client: FakeClient, bodies: PodRenderer) -> None:
        job = await _submit(client)
        pod = _pods(job)[0]
        client.fail_next("get", Unavailable("cut"))
        with pytest.raises(Unavailable):
            await bodies.body(job, pod)
        assert (await bodies.body(job, pod))["spec"]["dnsPolicy"] == "None"
        await client.delete(JOBS, "train", namespace="default")
        bodies.forget(job.metadata.uid)
        with pytest.raises(NotFound):
            await bodies.body(job, pod)

    _play(play)


def test_no_more_templates_are_kept_than_the_bound() -> None:
    async def play(client: FakeClient, _bodies: PodRenderer) -> None:
        stored = StoredTemplates(client, templates_max=2)
        bodies = PodRenderer(stored)
        for i in range(5):
            job = await _submit(client, f"job-{i}")
            await bodies.body(job, _pods(job)[0])
            assert stored.count <= 2
        assert client.count("get") == 5

    _play(play)


def test_large_templates_are_kept_up_to_their_bytes_and_read_again() -> None:
    large = {"containers": [{"name": "main", "image": "a", "args": ["x" * 10_000]}]}

    async def play(client: FakeClient, _bodies: PodRenderer) -> None:
        stored = StoredTemplates(client, bytes_max=35_000)
        bodies = PodRenderer(stored, decoded_bytes_max=25_000)
        jobs = [await _submit(client, f"job-{i}", spec=large) for i in range(8)]
        made = [await bodies.body(job, _pods(job)[0]) for job in jobs]
        assert (stored.count, len(vars(bodies)["_decoded"])) == (3, 2)
        assert client.count("get") == 8
        assert [await bodies.body(job, _pods(job)[0]) for job in jobs] == made
        assert client.count("get") == 16
        huge = await _submit(client, "huge", spec={"containers": large["containers"] * 9})
        for _ in range(2):  # more than the bound by itself: kept while it is used
            await bodies.body(huge, _pods(huge)[0])
        assert client.count("get") == 17

    _play(play)


def test_templates_that_are_forgotten_or_read_again_take_no_room_of_others() -> None:
    large = {"containers": [{"name": "main", "image": "a", "args": ["x" * 10_000]}]}

    async def play(client: FakeClient, _bodies: PodRenderer) -> None:
        stored = StoredTemplates(client, bytes_max=35_000)
        bodies = PodRenderer(stored)
        jobs = [await _submit(client, f"job-{i}", spec=large) for i in range(4)]
        for job in jobs[:3]:
            await bodies.body(job, _pods(job)[0])
        for turn in range(3):
            bodies.forget(jobs[0].metadata.uid)
            await bodies.body(jobs[0], _pods(jobs[0])[0])
            changed = await client.patch(
                JOBS, "job-1", {"spec": {"suspend": turn % 2 == 0}}, namespace="default"
            )
            await bodies.body(changed, _pods(changed)[0])
        assert (stored.count, client.count("get")) == (3, 9)
        await bodies.body(jobs[2], _pods(jobs[2])[0])
        assert client.count("get") == 9

    _play(play)


def test_what_is_not_kept_decoded_is_decoded_again_and_not_read() -> None:
    async def play(client: FakeClient, _bodies: PodRenderer) -> None:
        bodies = PodRenderer(StoredTemplates(client), decoded_max=1)
        jobs = [await _submit(client, f"job-{i}") for i in range(3)]
        made = [await bodies.body(job, _pods(job)[1]) for job in jobs * 2]
        assert made[:3] == made[3:]
        assert client.count("get") == 3

    _play(play)


@pytest.mark.parametrize(
    ("managers", "may"),
    [
        ([], False),
        ([{"manager": "kubectl", "operation": "Update"}], True),
        ([{"operation": "Update"}, {"manager": "argo", "operation": "Apply"}], False),
    ],
)
def test_who_applies_by_the_servers_side_stays_tracked(
    managers: list[dict[str, str]], may: bool
) -> None:
    async def play(client: FakeClient, bodies: PodRenderer) -> None:
        job = await _submit(client)
        get = client.get

        async def tracked(*args: Any, **kwargs: Any) -> Any:
            stored = await get(*args, **kwargs)
            wire = to_wire(stored)
            wire["metadata"]["managedFields"] = managers
            return msgspec.convert(wire, StoredJob)

        client.get = tracked
        assert await bodies.can_drop_managed_fields(job) is may
        labelled = {"metadata": {"labels": {"a": "b"}}}
        later = await client.patch(JOBS, "train", labelled, namespace="default")
        assert not await bodies.can_drop_managed_fields(later), (
            "somebody may have applied it meanwhile"
        )
        await bodies.body(job, _pods(job)[0])
        assert client.count("get") == 1

    _play(play)


#: The user's own wish for nodes, with a part that the read model does not know.
WISH = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
                {"matchExpressions": [{"key": "b", "operator": "In", "values": ["1", "2"]}]},
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
    },
    "podAffinity": {},
}


@pytest.mark.parametrize("affinity", [None, WISH])
@pytest.mark.parametrize("binding", Binding)
@pytest.mark.parametrize("naming", PeerNaming)
def test_a_later_pods_body_is_what_it_would_be_as_the_first(
    naming: PeerNaming, binding: Binding, affinity: dict[str, Any] | None
) -> None:
    async def play(client: FakeClient, bodies: PodRenderer) -> None:
        spec = SPEC if affinity is None else {**SPEC, "affinity": affinity}
        job = await _submit(client, spec=spec)
        placement = make_placement(["n0", "n1", "n2"])
        factory = PodFactory(job, JobsPolicy(peer_naming=naming), resume_step=7)
        for seat in seats(job, placement):
            pod = factory.make(seat, binding)
            body = to_wire(await bodies.body(job, pod))
            assert body == to_wire(await PodRenderer(StoredTemplates(client)).body(job, pod))
            assert msgspec.convert(body, Pod) == pod
            assert (pod.spec.node_name or pinned_node(pod.spec)) == seat.node
            if affinity is not None:
                nodes = body["spec"]["affinity"]["nodeAffinity"]
                assert nodes["preferredDuringSchedulingIgnoredDuringExecution"]
                assert body["spec"]["affinity"]["podAffinity"] == {}
            # Out of the ordinary: the long way, and the same words of the user's.
            odd = replace(pod, spec=replace(pod.spec, subdomain="other"))
            body = to_wire(await bodies.body(job, odd))
            assert msgspec.convert(body, Pod) == odd
            assert body["spec"]["dnsPolicy"] == "None"

    _play(play)
