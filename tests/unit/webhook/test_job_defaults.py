"""Defaults of teams and of the cluster: the embedded API and the webhook store the same job."""

from __future__ import annotations

import base64
import itertools
import random
from typing import Any

import msgspec
import pytest

from fairlead.api.jobs.job_defaults import JobDefaults, JobMaxima, JobTerms
from fairlead.api.jobs.job_mounts import JobMount
from fairlead.api.meta import to_wire
from fairlead.api.names import DEFAULTS
from fairlead.api.resources import CRDS, JOBS, NAMESPACES, TEAMS
from fairlead.api.schema import crd
from fairlead.api.status import Invalid
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.patch import apply_json_patch
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.model.asks.teams import TeamTable
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run
from fairlead.testing.builders import make_team
from fairlead.webhook.answers import AdmissionAnswers, Path, RequestOutcome

DAY = 86_400
TERMS = JobTerms(
    JobDefaults(
        env={"TZ": "UTC"}, mounts=(JobMount(path="/nfs", host_path="/nfs"),),
        time_limit_seconds=DAY,
    ),
    JobMaxima(7 * DAY),
)  # fmt: skip
TEAM = make_team(
    "vision",
    job_defaults=JobDefaults(image="registry/torch:1", node_selector={"gpu": "a100"},
                             mounts=(JobMount(path="/data", claim="data"),)),
    job_maxima=JobMaxima(2 * DAY),
)  # fmt: skip


def job(**spec: Any) -> dict[str, Any]:
    container = {"name": "main", "command": ["true"]}
    role = {"name": "worker", "template": {"spec": {"containers": [container]}}}
    return {"metadata": {"name": "j"}, "spec": {"roles": [role], **spec}}


async def embedded() -> InProcessClient:
    numbers = itertools.count(1)
    service = ApiService(
        Store.open(None), Registry.with_builtins(), LoopClock(1.8e9),
        ids=lambda: f"uid-{next(numbers)}", rng=random.Random(3), terms=TERMS,
    )  # fmt: skip
    await service.bootstrap()
    client = InProcessClient(service)
    for manifest in crd.manifests():
        await client.create(CRDS, manifest)
    await client.create(NAMESPACES, {"metadata": {"name": "vision"}})
    await client.create(TEAMS, {"metadata": {"name": "vision"}, "spec": to_wire(TEAM)["spec"]})
    return client


def webhook(path: Path, new: dict[str, Any]) -> tuple[RequestOutcome, dict[str, Any]]:
    """Return the outcome, and the object with the patch of the answer."""
    answers = AdmissionAnswers(GateRules(), teams=lambda: TeamTable([TEAM]), terms=TERMS)
    asked = {"uid": "u", "operation": "CREATE", "namespace": "vision", "object": new,
             "resource": {"group": "fairlead.dev", "version": "v1alpha1", "resource": "jobs"},
             "userInfo": {"username": "system:serviceaccount:kube-system:x"}}  # fmt: skip
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    answer = answers.answer(path, msgspec.json.encode(body))
    response = msgspec.json.decode(answer.body)["response"]
    patch = msgspec.json.decode(base64.b64decode(response.get("patch", b"W10=")))
    return answer.outcome, apply_json_patch(new, patch)


def test_both_fill_in_the_same_and_say_what() -> None:
    async def main() -> None:
        client = await embedded()
        stored = await client.create(JOBS.raw, job(), namespace="vision")
        outcome, patched = webhook(Path.JOB_DEFAULTS, job())
        assert outcome is RequestOutcome.DEFAULTED
        for field in ("team", "timeLimitSeconds"):
            assert patched["spec"][field] == stored["spec"][field]
        of_both = [each["spec"]["roles"][0]["template"]["spec"] for each in (patched, stored)]
        assert of_both[0] == of_both[1]
        assert of_both[0]["nodeSelector"] == {"gpu": "a100"}
        notes = [each["metadata"]["annotations"][DEFAULTS] for each in (patched, stored)]
        assert notes == 2 * [
            "image=team/vision,nodeSelector=team/vision,mounts=team/vision,env=cluster,"
            "mounts=cluster,timeLimitSeconds=cluster"
        ]
        assert webhook(Path.JOBS, patched)[0] is RequestOutcome.ALLOWED

    run(main())


def test_both_refuse_more_than_the_maximum() -> None:
    async def main() -> None:
        client = await embedded()
        with pytest.raises(Invalid, match="team vision allows at most 2d"):
            await client.create(JOBS, job(timeLimitSeconds=3 * DAY), namespace="vision")
        assert webhook(Path.JOBS, job(timeLimitSeconds=3 * DAY))[0] is RequestOutcome.REFUSED
        assert webhook(Path.JOBS, job())[0] is RequestOutcome.REFUSED, "the defaults were not asked"
        with pytest.raises(Invalid, match="the cluster allows at most 7d"):
            await client.create(JOBS, job(timeLimitSeconds=8 * DAY), namespace="default")

    run(main())


def test_a_manifest_that_is_applied_twice_stays_as_it_is() -> None:
    async def main() -> None:
        client = await embedded()
        stored = await client.create(JOBS.raw, job(), namespace="vision")
        again = {"spec": {"roles": job()["spec"]["roles"]}}  # what kubectl apply sends
        after = await client.patch(JOBS.raw, "j", again, namespace="vision")
        assert after["spec"] == stored["spec"]

    run(main())


def test_a_team_whose_defaults_name_a_directory_of_the_nodes_is_refused() -> None:
    async def main() -> None:
        client = await embedded()
        patch = {"spec": {"jobDefaults": {"mounts": [{"path": "/x", "hostPath": "/etc"}]}}}
        with pytest.raises(Invalid, match="only the settings of the cluster may name a directory"):
            await client.patch(TEAMS, "vision", patch)

    run(main())
