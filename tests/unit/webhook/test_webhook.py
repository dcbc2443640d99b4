"""The webhook without its sockets: answers, configurations, and the certificate's keeper.

The API is the embedded cluster's, under virtual time, which calls the answers in this process.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.cluster.team import JobLimits, Subjects
from fairlead.api.kubernetes.webhooks import WebhookClientConfig
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.resources import NAMESPACES, PODS, SECRETS
from fairlead.api.status import Forbidden, NotFound, Unavailable
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.webhooks.registry import CallFailed
from fairlead.embedded.webhooks.review import ReviewUser
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.teams import TeamTable
from fairlead.model.holdings.submitted import JobOutline, SubmittedTable
from fairlead.runtime.backoff import BackoffOptions
from fairlead.runtime.client import ClientWrapper, Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.logs import SilentLogger
from fairlead.sim.loop import run
from fairlead.testing.builders import make_priority_class, make_team
from fairlead.webhook.answers import AdmissionAnswers, Path, RequestOutcome, path_of
from fairlead.webhook.certificates import BadCertificate, Pair, Times, from_secret, validity_of
from fairlead.webhook.configuration import INJECT, MUTATING, VALIDATING, configurations
from fairlead.webhook.keeper import CertificateKeeper, CertificateKeeperOptions

EPOCH = 1_800_000_000.0
CLOCK = LoopClock(EPOCH)
HOUR = 3600.0
DAY = 24 * HOUR
#: Slower than the defaults, so that a year is a few thousand looks.
TIMES = Times(overlap_seconds=DAY)
OPTIONS = CertificateKeeperOptions(
    namespace="default", hosts=("fairlead-webhook.default.svc",), times=TIMES,
    look_seconds=6 * HOUR, retries=BackoffOptions(60.0, HOUR),
)  # fmt: skip
ENABLED = {names.GANG_SCHEDULING: "enabled"}
Main = Callable[["World"], Coroutine[Any, Any, None]]


class Caller:
    """Calls answers in the process, as an API server calls them over HTTPS."""

    def __init__(self) -> None:
        self.answers = AdmissionAnswers(GateRules(own_namespace="default"))
        self.count = 0

    async def call(
        self, client: WebhookClientConfig, body: bytes, *, timeout_seconds: int
    ) -> bytes:
        self.count += 1
        path = "/" + (client.url or "").split("/", 3)[3]
        answer = self.answers.answer(path_of(path), body)
        if answer.status != 200:
            raise CallFailed(answer.body.decode())
        return answer.body


class World:
    """An embedded API with our configurations."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.caller = Caller()
        self.service = ApiService(
            Store.open(None), Registry.with_builtins(), CLOCK,
            ids=lambda: f"uid-{next(numbers)}", rng=random.Random(3),
        )  # fmt: skip
        self.client = InProcessClient(self.service)
        self.down: set[str] = set()
        self.served: dict[str, list[Pair]] = {}

    async def begin(self, **annotations: str) -> None:
        await self.service.bootstrap()
        self.service.webhooks.attach(self.caller, ReviewUser("tester", ("testers",)))
        for resource, manifest in zip(
            (MUTATING, VALIDATING), configurations("default", "fairlead-webhook", ""), strict=True
        ):
            # The embedded cluster evaluates no CEL, and only CEL says who claims a team.
            manifest["webhooks"] = [
                each for each in manifest["webhooks"] if not each["name"].startswith("claims.")
            ]
            for each in manifest["webhooks"]:
                path = each["clientConfig"].pop("service")["path"]
                each["clientConfig"]["url"] = f"https://webhook.example{path}"
                del each["matchConditions"]
            manifest["metadata"]["annotations"] = annotations
            await self.client.create(resource, manifest)

    def keeper(self, name: str = "one") -> CertificateKeeper:
        served = self.served.setdefault(name, [])
        return CertificateKeeper(
            Line(self, name), OPTIONS, served.append, clock=CLOCK, rng=random.Random(1)
        )

    async def secret(self) -> dict[str, str]:
        return (await self.client.get(SECRETS, OPTIONS.secret, namespace="default")).data

    async def bundles(self) -> list[str]:
        """The different bundles that API servers have."""
        found: set[str] = set()
        for resource in (MUTATING, VALIDATING):
            webhooks = (await self.client.get(resource, "fairlead")).webhooks
            found |= {webhook.client_config.ca_bundle for webhook in webhooks}
        return sorted(found)


class Line(ClientWrapper):
    """One replica's client; fails while the replica is cut off."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.client)
        self._world = world
        self._name = name

    async def call(self, request: Request[Any]) -> Any:
        await asyncio.sleep(0.01)
        if self._name in self._world.down:
            raise Unavailable("cut off")
        return await super().call(request)


def in_world(main: Main, **annotations: str) -> World:
    world = World()

    async def begin() -> None:
        await world.begin(**annotations)
        await main(world)

    run(begin())
    return world


# Answers


def test_an_api_server_gates_by_the_answers_and_asks_only_about_those_who_opted_in() -> None:
    async def main(world: World) -> None:
        await world.client.create(NAMESPACES, {"metadata": {"name": "team", "labels": ENABLED}})
        await world.client.create(NAMESPACES, {"metadata": {"name": "other"}})

        async def gated(namespace: str, name: str, **metadata: Any) -> bool:
            body = {
                "metadata": {"name": name, **metadata},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }
            made = await world.client.create(PODS, body, namespace=namespace)
            has_gate = names.GANG_GATE in [gate.name for gate in made.spec.scheduling_gates]
            assert has_gate == (made.metadata.labels.get(names.GANG_SCHEDULING) == "enabled")
            return has_gate

        assert await gated("team", "a")
        assert await gated("other", "b", labels=ENABLED)
        assert world.caller.count == 2
        assert not await gated("team", "c", labels={names.GANG_SCHEDULING: "disabled"})
        assert not await gated("other", "d")
        assert world.caller.count == 2

    in_world(main)


def review(resource: str = "pods", **request: Any) -> bytes:
    asked = {
        "uid": "u", "operation": "CREATE", "namespace": "n",
        "resource": {"group": "", "version": "v1", "resource": resource}, **request,
    }  # fmt: skip
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    return msgspec.json.encode(body)


def answer(path: Path, body: bytes) -> tuple[RequestOutcome, int, dict[str, Any]]:
    given = AdmissionAnswers(GateRules()).answer(path, body)
    decoded = msgspec.json.decode(given.body)["response"] if given.status == 200 else {}
    return given.outcome, given.status, decoded


def test_what_asked_is_told_by_the_path() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {}}
    outcome, _, response = answer(Path.PODS_OF_NAMESPACES, review(object=pod))
    assert (outcome, response["uid"], response["allowed"]) == (RequestOutcome.GATED, "u", True)
    patch = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert {each["path"] for each in patch} == {"/spec/schedulingGates", "/metadata/labels"}
    outcome, _, response = answer(Path.PODS, review(object=pod))
    assert (outcome, response) == (RequestOutcome.LEFT_ALONE, {"uid": "u", "allowed": True})
    update = review(object=pod, oldObject=pod, operation="UPDATE")
    assert answer(Path.PODS_OF_NAMESPACES, update)[2] == {"uid": "u", "allowed": True}


def test_a_job_is_given_the_priority_of_its_class_and_refused_any_other() -> None:
    known = PriorityTable([make_priority_class("high", 1000)])
    container = {"name": "c", "image": "i"}
    role = {"name": "worker", "template": {"spec": {"containers": [container]}}}

    def ask(
        path: Path, table: PriorityTable | None, old: dict[str, Any] | None = None, **spec: Any
    ) -> tuple[RequestOutcome, Any]:
        job = {"metadata": {"name": "j"}, "spec": {"roles": [role], **spec}}
        update = {"operation": "UPDATE", "oldObject": {"spec": {"roles": [role], **(old or {})}}}
        body = review("jobs", object=job, **(update if old else {}))
        given = AdmissionAnswers(GateRules(), classes=lambda: table).answer(path, body)
        response = msgspec.json.decode(given.body)["response"]
        patch = response.get("patch")
        return given.outcome, msgspec.json.decode(base64.b64decode(patch)) if patch else None

    by_class: dict[str, Any] = {"priorityClassName": "high"}
    patch = [{"op": "add", "path": "/spec/priority", "value": 1000}]
    assert ask(Path.JOB_DEFAULTS, known, **by_class) == (RequestOutcome.DEFAULTED, patch)
    assert ask(Path.JOB_DEFAULTS, known) == (RequestOutcome.LEFT_ALONE, None)
    now = {"priority": 7, **by_class}
    assert ask(Path.JOB_DEFAULTS, known, {"priority": 7}, **now) == (
        RequestOutcome.DEFAULTED,
        patch,
    )
    assert ask(Path.JOB_DEFAULTS, None, **by_class) == (RequestOutcome.LEFT_ALONE, None)
    assert ask(Path.JOBS, known, **by_class, priority=1000) == (RequestOutcome.ALLOWED, None)
    assert ask(Path.JOBS, known, **by_class, priority=1001) == (RequestOutcome.REFUSED, None)
    assert ask(Path.JOBS, None, **by_class, priority=1001) == (RequestOutcome.ALLOWED, None)


def test_a_pod_gets_its_teams_tolerations_and_a_foreign_claim_is_refused() -> None:
    teams = TeamTable([make_team("vision"), make_team("speech")])
    answers = AdmissionAnswers(GateRules(), teams=lambda: teams)
    claim = {"key": names.TEAM, "value": "speech", "effect": "NoSchedule"}

    def asked(user: str, space: str, *tolerations: dict[str, str], **more: Any) -> Any:
        pod = {"metadata": {"name": "p"}, "spec": {"tolerations": tolerations, **more}}
        info = {"username": user, "groups": more.pop("groups", [])}
        body = review(object=pod, namespace=space, userInfo=info)
        given = answers.answer(Path.POD_TEAMS, body)
        return given.outcome, msgspec.json.decode(given.body)["response"]

    outcome, response = asked("ann", "vision", priority=5)
    assert outcome is RequestOutcome.DEFAULTED
    assert msgspec.json.decode(base64.b64decode(response["patch"])) == [
        {"op": "add", "path": "/spec/tolerations",
         "value": [{"key": names.TEAM, "value": "vision", "effect": "NoSchedule"}]}
    ]  # fmt: skip
    outcome, response = asked("ann", "vision", claim)
    assert (outcome, response["allowed"]) == (RequestOutcome.REFUSED, False)
    assert response["status"]["message"].endswith("open to namespace vision: vision")
    assert asked("system:serviceaccount:fairlead-system:c", "vision", claim)[1]["allowed"]
    daemons = "system:serviceaccount:kube-system:daemon-set-controller"
    assert asked(daemons, "monitoring", claim)[1]["allowed"]
    assert not asked(daemons, "vision", claim)[1]["allowed"]
    body = review(object={"spec": {"tolerations": [claim]}}, namespace="vision")
    assert (
        AdmissionAnswers(GateRules()).answer(Path.POD_TEAMS, body).outcome
        is RequestOutcome.LEFT_ALONE
    )


def test_an_added_toleration_and_a_named_node_of_a_foreign_team_are_refused() -> None:
    teams = TeamTable([make_team("vision"), make_team("speech")])
    owners = {"n1": "speech", "n2": "vision"}
    answers = AdmissionAnswers(
        GateRules(), teams=lambda: teams, node_team=lambda name: owners.get(name, "")
    )
    claim = {"key": names.TEAM, "value": "speech", "effect": "NoSchedule"}

    def asked(operation: str, old: Any = None, user: str = "ann", **spec: Any) -> RequestOutcome:
        body = review(
            object={"metadata": {"name": "p"}, "spec": {"priority": 5, **spec}}, oldObject=old,
            operation=operation, namespace="vision", userInfo={"username": user},
        )  # fmt: skip
        return answers.answer(Path.POD_TEAMS, body).outcome

    waiting, bound = {"spec": {"tolerations": []}}, {"spec": {"nodeName": "n1"}}
    assert asked("UPDATE", waiting, tolerations=[claim]) is RequestOutcome.REFUSED
    assert asked("UPDATE", bound, tolerations=[claim]) is RequestOutcome.LEFT_ALONE
    assert asked("UPDATE", {"spec": {"tolerations": [claim]}}, tolerations=[claim]) is (
        RequestOutcome.LEFT_ALONE
    )
    ours = "system:serviceaccount:fairlead-system:c"
    assert asked("UPDATE", waiting, ours, tolerations=[claim]) is RequestOutcome.LEFT_ALONE
    assert asked("UPDATE", None, tolerations=[claim]) is RequestOutcome.LEFT_ALONE
    assert asked("CREATE", nodeName="n1") is RequestOutcome.REFUSED
    assert asked("CREATE", nodeName="n2") is RequestOutcome.LEFT_ALONE
    assert asked("CREATE", nodeName="unknown") is RequestOutcome.LEFT_ALONE
    assert asked("DELETE", nodeName="n1") is RequestOutcome.LEFT_ALONE


def test_a_job_gets_the_name_of_who_sends_it_and_one_too_many_is_refused() -> None:
    teams = TeamTable([make_team("vision", user_limits=JobLimits(submitted=1))])
    submitted = SubmittedTable()
    answers = AdmissionAnswers(GateRules(), teams=lambda: teams, submitted=lambda: submitted)
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    job: dict[str, Any] = {
        "metadata": {"name": "job", "annotations": {SUBMITTED_BY: "eve", "more": "1"}},
        "spec": {"team": "vision", "roles": [{"name": "worker", "template": template}]},
    }
    asked: dict[str, Any] = {
        "namespace": "vision",
        "userInfo": {"username": "ann"},
        "operation": "CREATE",
    }
    given = answers.answer(Path.JOB_DEFAULTS, review("jobs", object=job, **asked))
    response = msgspec.json.decode(given.body)["response"]
    assert msgspec.json.decode(base64.b64decode(response["patch"])) == [
        {"op": "add", "path": "/metadata/annotations/fairlead.dev~1submitted-by", "value": "ann"}
    ]
    job["metadata"]["annotations"] = {SUBMITTED_BY: "ann"}
    body = review("jobs", object=job, **asked)
    assert answers.answer(Path.JOBS, body).outcome is RequestOutcome.ALLOWED
    submitted.put(msgspec.convert({**job, "metadata": {**job["metadata"], "namespace": "vision"}},
                                  JobOutline))  # fmt: skip
    refused = answers.answer(Path.JOBS, body)
    assert refused.outcome is RequestOutcome.REFUSED
    assert b"user ann of team vision has 1 unfinished job, of at most 1" in refused.body


def test_the_template_of_an_array_is_judged_with_the_rights_of_its_author() -> None:
    teams = TeamTable([make_team("vision", members=Subjects(users=("ann",)))])
    answers = AdmissionAnswers(GateRules(), teams=lambda: teams)
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    spec = {"roles": [{"name": "worker", "template": template}]}
    array: dict[str, Any] = {
        "metadata": {"name": "sweep"},
        "spec": {"indices": "0-9", "template": {**spec, "team": "vision"}},
    }

    def ask(
        path: Path, user: str, new: dict[str, Any] = array
    ) -> tuple[RequestOutcome, dict[str, Any]]:
        body = review(
            "jobarrays", object=new, namespace="vision", operation="CREATE",
            userInfo={"username": user},
        )  # fmt: skip
        answer = answers.answer(path, body)
        return answer.outcome, msgspec.json.decode(answer.body)["response"]

    assert ask(Path.ARRAYS, "ann")[0] is RequestOutcome.ALLOWED
    outcome, refused = ask(Path.ARRAYS, "eve")
    assert outcome is RequestOutcome.REFUSED
    [cause] = refused["status"]["details"]["causes"]
    assert cause["field"] == "spec.template.team"
    forged = {**array, "metadata": {"name": "sweep", "annotations": {SUBMITTED_BY: "ann"}}}
    assert ask(Path.ARRAYS, "eve", forged)[0] is RequestOutcome.REFUSED
    adopting = {**spec, "adopts": {"kind": "StatefulSet", "name": "web"}}
    other = {**array, "spec": {"indices": "0-9", "template": adopting}}
    fields = {
        each["field"] for each in ask(Path.ARRAYS, "ann", other)[1]["status"]["details"]["causes"]
    }
    assert "spec.template.adopts" in fields
    outcome, filled = ask(
        Path.ARRAY_DEFAULTS, "ann", {**array, "spec": {"indices": "0-9", "template": spec}}
    )
    assert outcome is RequestOutcome.DEFAULTED
    patch = {
        each["path"]: each["value"]
        for each in msgspec.json.decode(base64.b64decode(filled["patch"]))
    }
    assert patch["/spec/template"]["team"] == "vision"
    assert patch["/metadata/annotations"] == {SUBMITTED_BY: "ann"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (Path.OTHER, b"", 404),
        (Path.PODS, b"", 400),
        (Path.PODS, b"{}", 400),
        (Path.PODS, b"[" * 100_000, 400),
        (Path.PODS, b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}', 400),
        (Path.PODS, b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', 400),
        (Path.PODS, review("nodes", object={}), 400),
        (Path.PODS, review(object={}, subResource="binding"), 400),
        (Path.PODS, review(object={"spec": {"nodeName": 7}}), 400),
        (Path.JOBS, review("jobs", object=[]), 400),
        (Path.JOBS, review("pods", object={}), 400),
    ],
)
def test_what_is_no_review_of_ours_fails_the_call_and_never_the_server(
    path: Path, body: bytes, status: int
) -> None:
    outcome, got, _ = answer(path, body)
    assert (outcome, got) == (RequestOutcome.MALFORMED, status)


def test_a_deeply_nested_job_is_an_answer_too() -> None:
    deep = b'{"spec":' * 400 + b"1" + b"}" * 400
    body = review("jobs", object="DEEP").replace(b'"DEEP"', deep)
    assert answer(Path.JOBS, body)[0] in (RequestOutcome.REFUSED, RequestOutcome.MALFORMED)


ROLE = {
    "name": "worker", "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}},
}  # fmt: skip


def test_a_refused_job_names_its_fields_in_a_status() -> None:
    job = {"metadata": {"name": "j"}, "spec": {"roles": [ROLE], "after": [{"job": ""}]}}
    outcome, _, response = answer(Path.JOBS, review("jobs", name="j", object=job))
    assert (outcome, response["allowed"]) == (RequestOutcome.REFUSED, False)
    status = response["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in status["details"]["causes"]] == ["spec.after[0].job"]
    assert status["message"] == (
        'Job.fairlead.dev "j" is invalid: spec.after[0].job: Required value: the name of a job'
    )


POOL = {"provider": {"type": "Exec"}, "template": {"resources": {"cpu": "8"}}, "max": 1, "min": 2}
OVERRIDE = {"name": "o", "nodes": ["n"], "expiresAt": "soon", "by": "b", "reason": "r"}


@pytest.mark.parametrize(
    ("path", "plural", "spec", "fields"),
    [
        (Path.TEAMS, "teams", {"weight": 0}, ["spec.weight"]),
        (Path.NODE_POOLS, "nodepools", POOL, ["spec.min", "spec.provider.reference"]),
        (Path.FLEETS, "fleets", {"overrides": [OVERRIDE]}, ["spec.overrides[0].expiresAt"]),
    ],
)
def test_kinds_of_the_cluster_are_judged_as_the_embedded_api_judges_them(
    path: Path, plural: str, spec: dict[str, Any], fields: list[str]
) -> None:
    obj = {"metadata": {"name": "fleet"}, "spec": spec}
    outcome, _, response = answer(path, review(plural, name="fleet", object=obj))
    assert outcome is RequestOutcome.REFUSED
    assert [cause["field"] for cause in response["status"]["details"]["causes"]] == fields
    same = review(plural, name="fleet", object=obj, oldObject=obj, operation="UPDATE")
    assert answer(path, same)[0] is RequestOutcome.ALLOWED, "what is stored can be labelled"
    for odd in (7, [], "x", {"x": 7}, {"shares": 7, "provider": [], "overrides": "x"}):
        for metadata in ({"name": "fleet"}, [], 7, None):
            body = review(plural, name="fleet", object={"metadata": metadata, "spec": odd})
            assert answer(path, body)[0] in (RequestOutcome.REFUSED, RequestOutcome.ALLOWED), (
                odd,
                metadata,
            )


class Lines(SilentLogger):
    """Keeps what is logged for people who run it."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))

    warning = error = info


def test_each_refusal_is_one_line_that_says_whose_and_why_and_nothing_else_is_logged() -> None:
    log = Lines()
    answers = AdmissionAnswers(GateRules(), log=log)
    good = {"metadata": {"name": "j"}, "spec": {"roles": [ROLE]}}
    bad = {"metadata": {"name": "j"}, "spec": {"roles": [ROLE], "after": [{"job": ""}]}}
    for job in (good, bad):
        answers.answer(Path.JOBS, review("jobs", name="j", object=job, dryRun=True))
    answers.answer(Path.PODS, review(object={"metadata": {"labels": ENABLED}}))
    assert log.lines == [
        ("Refused job", {"namespace": "n", "job": "j", "operation": "CREATE", "dry_run": True,
                         "fields": ["spec.after[0].job"], "mistakes": 1}),
    ]  # fmt: skip
    answers.answer(Path.PODS, b"{}")
    assert log.lines[-1][0] == "Review not understood"


# The keeper


def test_the_first_replica_makes_the_certificate_and_the_others_serve_the_same() -> None:
    async def main(world: World) -> None:
        keepers = [world.keeper(name) for name in ("one", "two", "three")]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keeper.run()) for keeper in keepers]
            await asyncio.sleep(5.0)
            for task in tasks:
                task.cancel()
        assert sum(keeper.steps_count for keeper in keepers) == 1
        assert len({tuple(pairs) for pairs in world.served.values()}) == 1
        secret = await world.secret()
        assert await world.bundles() == [secret["ca.crt"]]

    in_world(main)


async def keep_up(world: World, keepers: list[CertificateKeeper], *, seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keeper.run()) for keeper in keepers]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()


def test_over_a_year_every_certificate_shown_is_in_date_and_trusted_with_a_replica_cut_off() -> (
    None
):
    async def main(world: World) -> None:
        from cryptography import x509

        keepers = [world.keeper("one"), world.keeper("two")]

        async def watch() -> None:
            day = 0
            while True:
                await asyncio.sleep(6.1 * HOUR)
                day += 1
                world.down = {"two"} if day % 40 == 3 else set()
                (bundle,) = await world.bundles()
                known = x509.load_pem_x509_certificates(base64.b64decode(bundle))
                for pairs in world.served.values():
                    leaf = x509.load_pem_x509_certificate(pairs[-1].certificate)
                    assert leaf.issuer in [authority.subject for authority in known]
                    life = validity_of(pairs[-1])
                    part = (CLOCK.now() - life.began_at) / (life.ends_at - life.began_at)
                    assert part < 2 / 3 or world.down

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            await keep_up(world, keepers, seconds=400 * DAY)
            watching.cancel()
        turns = len({pair.certificate for pair in world.served["one"]})
        assert 6 <= turns <= 9, turns
        assert len(world.served["one"]) == turns, "a pair was served twice"

    in_world(main)


def test_the_next_pair_waits_until_both_configurations_have_its_authority() -> None:
    async def main(world: World) -> None:
        keeper = world.keeper()
        await keep_up(world, [keeper], seconds=5.0)
        refuses = True
        call = world.client.call

        async def refusing(request: Request[Any]) -> Any:
            if request.verb is RequestVerb.PATCH and request.resource == VALIDATING and refuses:
                raise Forbidden("no")
            return await call(request)

        world.client.call = refusing  # type: ignore[method-assign] # refuses one kind
        await asyncio.sleep(TIMES.life_seconds * 0.61)
        await keep_up(world, [keeper], seconds=10 * TIMES.overlap_seconds)
        assert len(world.served["one"]) == 1
        assert "next.crt" in await world.secret()
        refuses = False
        await keep_up(world, [keeper], seconds=10 * TIMES.overlap_seconds)
        assert len(world.served["one"]) == 2
        assert "next.crt" not in await world.secret()
        assert len(await world.bundles()) == 1

    in_world(main)


def test_replicas_that_renew_at_the_same_time_serve_the_one_pair_that_was_stored() -> None:
    async def main(world: World) -> None:
        keepers = [world.keeper("one"), world.keeper("two")]
        await keep_up(world, keepers, seconds=5.0)
        await asyncio.sleep(TIMES.life_seconds + DAY)
        await asyncio.gather(*(keeper.look() for keeper in keepers))
        assert sum(keeper.steps_count for keeper in keepers) == 2, "one step each time"
        stored = from_secret(await world.secret()).serving
        assert [pair for pairs in world.served.values() for pair in pairs[1:]] == [stored]

    in_world(main)


def test_a_replica_that_sees_a_new_bundle_late_counts_from_then() -> None:
    async def main(world: World) -> None:
        one, two = world.keeper("one"), world.keeper("two")
        await keep_up(world, [one, two], seconds=5.0)
        await asyncio.sleep(TIMES.life_seconds * 0.61)
        await one.look()
        await two.look()
        assert (one.steps_count, two.steps_count) == (2, 0)
        assert "next.crt" in await world.secret()

    in_world(main)


def test_with_cert_manager_it_reads_and_writes_nothing() -> None:
    made = World()

    async def make() -> None:
        await made.begin()
        await keep_up(made, [made.keeper()], seconds=5.0)

    run(make())

    async def main(world: World) -> None:
        keeper = world.keeper()
        await keep_up(world, [keeper], seconds=5.0)
        assert world.served["one"] == []
        assert await keeper.look() == OPTIONS.soon_seconds
        with pytest.raises(NotFound):
            await world.secret()
        data = run_secret["data"]
        await world.client.create(
            SECRETS, {"metadata": {"name": OPTIONS.secret}, "data": data}, namespace="default"
        )
        await keep_up(world, [keeper], seconds=5.0)
        assert len(world.served["one"]) == 1
        assert await world.bundles() == [""], "cert-manager fills them in"
        await asyncio.sleep(TIMES.life_seconds * 0.9)
        await keep_up(world, [keeper], seconds=DAY)
        assert await world.secret() == data
        assert keeper.steps_count == 0

    run_secret = {"data": made_secret(made)}
    in_world(main, **{INJECT: "default/fairlead-webhook"})


def test_a_given_pair_that_cannot_be_served_is_logged_once_and_looked_at_soon() -> None:
    def refuse(_pair: Pair) -> None:
        raise BadCertificate("too weak")

    async def main(world: World) -> None:
        log = Lines()
        keeper = CertificateKeeper(
            world.client, OPTIONS, refuse, clock=CLOCK, rng=random.Random(1), log=log
        )
        data = {"tls.crt": "QQ==", "tls.key": "QQ=="}
        await world.client.create(
            SECRETS, {"metadata": {"name": OPTIONS.secret}, "data": data}, namespace="default"
        )
        assert [await keeper.look() for _ in range(3)] == [OPTIONS.soon_seconds] * 3
        assert [name for name, _ in log.lines] == ["Webhook certificate cannot be used"]

    in_world(main, **{INJECT: "default/fairlead-webhook"})


def made_secret(world: World) -> dict[str, str]:
    """The Secret's data after the world has ended."""
    record = world.service.store.latest("secrets", ("default", OPTIONS.secret))
    assert record is not None
    data: dict[str, str] = record.plain()["data"]
    return data


def test_without_configurations_nothing_is_made_and_nobody_waits_for_it() -> None:
    async def main(world: World) -> None:
        for resource in (MUTATING, VALIDATING):
            await world.client.delete(resource, "fairlead")
        keeper = world.keeper()
        await keep_up(world, [keeper], seconds=5.0)
        assert not keeper.is_asked
        with pytest.raises(NotFound):
            await world.secret()

    in_world(main)


# Configurations


def test_pods_are_asked_about_with_fail_only_where_the_namespace_opted_in() -> None:
    mutating, validating = configurations("ours", "svc", "QQ==")
    of_namespaces, of_pods, of_teams, of_claims, *_ = mutating["webhooks"]
    assert (of_namespaces["failurePolicy"], of_pods["failurePolicy"]) == ("Fail", "Ignore")
    assert (of_teams["failurePolicy"], of_claims["failurePolicy"]) == ("Ignore", "Ignore")
    assert [each["rules"][0]["operations"] for each in (of_pods, of_teams, of_claims)] == [
        ["CREATE"], ["CREATE", "UPDATE"], ["CREATE", "UPDATE"],
    ]  # fmt: skip
    for each in (of_namespaces, of_pods):
        (kept_out,) = [
            term["values"]
            for term in each["namespaceSelector"]["matchExpressions"]
            if term["key"] == "kubernetes.io/metadata.name"
        ]
        assert kept_out == ["kube-system", "ours"]
    for each in (*mutating["webhooks"], *validating["webhooks"]):
        assert each["sideEffects"] == "None"
        assert each["timeoutSeconds"] <= 5
        assert each["clientConfig"]["caBundle"] == "QQ=="
        assert path_of(each["clientConfig"]["service"]["path"]) is not Path.OTHER
    of_users, of_administrators = validating["webhooks"][:2]
    assert {each["failurePolicy"] for each in (of_users, of_administrators)} == {"Fail"}
    users, administrators = (
        each["matchConditions"][-1]["expression"] for each in (of_users, of_administrators)
    )
    assert users == f"!{administrators}", "each request is judged once"
    bare, _ = configurations("ours", "svc", "")
    assert "caBundle" not in bare["webhooks"][0]["clientConfig"], "it would be taken away again"
