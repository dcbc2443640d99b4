"""What the jobs controller makes of a refusal by the API."""

from __future__ import annotations

import pytest

from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS
from fairlead.api.status import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    TooLarge,
    Unauthorized,
)
from fairlead.controllers.pods.pod_refusals import PodProbes, PodRefusals, refusal_of
from fairlead.controllers.pods.pod_renderer import PodRenderer
from fairlead.controllers.pods.stored_templates import StoredTemplates
from fairlead.decide.jobs.actions import ProbePods
from fairlead.decide.jobs.view import Refusal
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_member_pod
from fairlead.testing.fake_client import FakeClient

HELD, REJECTED = Refusal.POD_HELD_BACK, Refusal.POD_REJECTED
QUOTA, POLICY = Refusal.QUOTA_EXCEEDED, Refusal.POLICY_REFUSED
_NO_RIGHT = (
    'pods "a" is forbidden: User "system:serviceaccount:x:y" cannot {} resource "pods" in API '
    'group "" in the namespace "default"'
)


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (Forbidden(_NO_RIGHT.format("create")), HELD),
        (Forbidden(_NO_RIGHT.format("get")), HELD),
        (Forbidden('pods "a" is forbidden: exceeded quota: team, requested: pods=1'), QUOTA),
        (Forbidden('error looking up service account default/x: "x" not found'), HELD),
        (Forbidden("unable to create new content in namespace x: it is being terminated"), HELD),
        (Forbidden('violates PodSecurity "restricted": you cannot run as root'), POLICY),
        (Invalid("spec.containers[0].image: Required value"), REJECTED),
        (BadRequest('admission webhook "x" denied the request: no'), POLICY),
        (Invalid("ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no"), POLICY),
        (Forbidden('pods "a" is forbidden: maximum cpu usage per Container is 1'), POLICY),
        (Forbidden("failed quota: team: must specify limits.cpu"), QUOTA),
        (TooLarge("limit is 3145728"), REJECTED),
        (MethodNotAllowed("create is not supported"), HELD),
        (Unauthorized("Unauthorized"), None),
    ],
)
def test_the_words_of_a_refusal_tell_whether_it_would_come_again(
    error: ApiError, refusal: Refusal | None
) -> None:
    assert refusal_of(error) is refusal


def test_the_delays_between_tries_grow_and_a_success_ends_them() -> None:
    book, job, now = PodRefusals(), make_job("a"), EPOCH
    uid, delays = job.metadata.uid, list[float]()
    for _ in range(8):
        book.note(job, HELD, "exceeded quota", now)
        refused = book.get(uid)
        assert refused is not None
        assert refused.since == EPOCH
        delays.append(refused.retry_at - now)
        now = refused.retry_at
    assert delays == [0.25, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    book.clear(uid)
    assert book.get(uid) is None
    book.note(job, HELD, "exceeded quota", now)
    refused = book.get(uid)
    assert refused is not None
    assert refused.since == now


def test_many_refusals_at_once_count_as_one_and_a_final_one_stays() -> None:
    book, job = PodRefusals(), make_job("a")
    for _ in range(1000):
        book.note(job, HELD, "exceeded quota", EPOCH)
    refused = book.get(job.metadata.uid)
    assert refused is not None
    assert refused.retry_at == EPOCH + 0.25
    book.note(job, REJECTED, "image: required", EPOCH + 0.1)
    book.note(job, HELD, "exceeded quota", EPOCH + 1)
    book.clear(job.metadata.uid)
    refused = book.get(job.metadata.uid)
    assert refused is not None
    assert (refused.refusal, refused.message) == (REJECTED, "image: required")


def test_a_job_whose_first_pod_exists_is_still_refused_for_the_others() -> None:
    async def main() -> None:
        client = FakeClient()
        body = {"metadata": {"name": "a"}, "spec": to_wire(make_job("a", count=2).spec)}
        job = await client.create(JOBS, body, namespace="default")
        probes = PodProbes(client, PodRenderer(StoredTemplates(client)), LoopClock(EPOCH))
        quota = Forbidden('pods "a" is forbidden: exceeded quota: team, requested: pods=1')
        client.fail_next("create", AlreadyExists("a-1-worker-0"), quota)
        pods = (make_member_pod(job, 0), make_member_pod(job, 1))
        await probes.ask(ProbePods(job, pods))
        answer = probes.get(job.metadata.uid)
        assert answer is not None
        assert answer.waits_for is QUOTA.value.refused

    run(main())
