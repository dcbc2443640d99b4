"""Admission webhooks against a caller that answers in the process: what is asked, what becomes."""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from fairlead.api.kubernetes.webhooks import WebhookClientConfig
from fairlead.api.status import ApiError, BadRequest, Conflict, Forbidden, InternalError, Invalid
from fairlead.embedded.builtins import (
    CONFIG_MAPS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    VALIDATING_WEBHOOKS,
)
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Record, record_typed
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import DeleteOptions, ListOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.webhooks.registry import CallFailed
from fairlead.embedded.webhooks.review import ReviewUser
from fairlead.runtime.client import PatchType
from fairlead.runtime.clock import LoopClock
from fairlead.sim.loop import run

EPOCH = 1_700_000_000.0
CREATE = ["CREATE"]
Response = dict[str, Any]
#: What a webhook answers to a request, given the AdmissionReview's `request`.
Answerer = Callable[[Mapping[str, Any]], Response | Awaitable[Response]]


class Caller:
    """Answers by the path of the URL; keeps all requests in the order of the calls."""

    def __init__(self, **answers: Answerer) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def call(
        self, client: WebhookClientConfig, body: bytes, *, timeout_seconds: int
    ) -> bytes:
        path = (client.url or "").rpartition("/")[2]
        request = msgspec.json.decode(body)["request"]
        self.asked.append((path, request))
        answer = self.answers[path](request)
        response = await answer if isinstance(answer, Awaitable) else answer
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return msgspec.json.encode({**review, "response": {"uid": request["uid"], **response}})

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def allow(_request: Mapping[str, Any]) -> Response:
    return {"allowed": True}


def patches(*operations: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Response]:
    encoded = base64.b64encode(msgspec.json.encode(operations)).decode()
    return lambda _: {"allowed": True, "patch": encoded, "patchType": "JSONPatch"}


def label(name: str) -> Callable[[Mapping[str, Any]], Response]:
    return patches({"op": "add", "path": "/metadata/labels", "value": {name: "yes"}})


def fail(_request: Mapping[str, Any]) -> Response:
    raise CallFailed("connection refused")


def webhook(path: str, **more: Any) -> dict[str, Any]:
    rule = {
        "operations": more.pop("operations", CREATE),
        "apiGroups": more.pop("groups", [""]),
        "apiVersions": ["v1"],
        "resources": more.pop("resources", ["configmaps"]),
    }
    return {
        "name": f"{path}.example.dev",
        "clientConfig": {"url": f"https://hooks.test/{path}"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }


async def configure(service: ApiService, info: ResourceInfo, name: str, *hooks: Any) -> Record:
    body = {"metadata": {"name": name}, "webhooks": list(hooks)}
    return await service.create(info, "", body, WriteOptions())


async def cluster(caller: Caller | None) -> ApiService:
    numbers = itertools.count(1)
    service = ApiService(
        Store.open(None), Registry.with_builtins(), LoopClock(EPOCH),
        ids=lambda: f"uid-{next(numbers)}", rng=random.Random(3),
    )  # fmt: skip
    await service.bootstrap()
    if caller is not None:
        service.webhooks.attach(caller, ReviewUser("tester", ("testers",)))
    return service


async def make(
    service: ApiService, name: str = "one", options: WriteOptions | None = None, **body: Any
) -> dict[str, Any]:
    obj = {"metadata": {"name": name}, **body}
    record = await service.create(CONFIG_MAPS, "default", obj, options or WriteOptions())
    return record.plain()


def stored(service: ApiService, name: str = "one") -> dict[str, Any] | None:
    record = service.store.latest(CONFIG_MAPS.name, ("default", name))
    return None if record is None else record.plain()


def test_63_what_a_mutating_webhook_patches_is_stored_and_seen_by_the_validating_ones() -> None:
    async def main() -> None:
        caller = Caller(change=label("touched"), look=allow)
        service = await cluster(caller)
        await configure(service, VALIDATING_WEBHOOKS, "v", webhook("look"))
        await configure(service, MUTATING_WEBHOOKS, "m", webhook("change"))
        made = await make(service, options=WriteOptions(field_manager="me"))
        assert made["metadata"]["labels"] == {"touched": "yes"}
        assert stored(service) == made
        (_, first), (_, second) = caller.asked
        assert "uid" not in first["object"]["metadata"]
        assert second["object"]["metadata"]["uid"] == made["metadata"]["uid"]
        assert second["object"]["metadata"]["labels"] == {"touched": "yes"}
        kind = {"group": "", "version": "v1", "kind": "ConfigMap"}
        assert first["kind"] == first["requestKind"] == kind
        assert first["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
        assert (first["name"], first["namespace"], first["operation"], first["dryRun"]) == (
            "one", "default", "CREATE", False,
        )  # fmt: skip
        assert first["userInfo"] == {"username": "tester", "groups": ["testers"]}
        assert first["oldObject"] is None
        assert first["options"]["fieldManager"] == "me"
        assert first["uid"] != second["uid"]

    run(main())


def test_63_an_apply_goes_to_webhooks_and_nobody_owns_what_they_change() -> None:
    async def main() -> None:
        caller = Caller(change=label("touched"), look=allow)
        service = await cluster(caller)
        await configure(
            service, VALIDATING_WEBHOOKS, "v", webhook("look", operations=["CREATE", "UPDATE"])
        )
        await configure(service, MUTATING_WEBHOOKS, "m", webhook("change", operations=["*"]))
        options = WriteOptions(field_manager="me")
        config = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "one"}}
        for data, operation, is_new in (("1", "CREATE", True), ("2", "UPDATE", False)):
            config["data"] = {"k": data}
            caller.asked.clear()
            record, was_new = await service.apply(CONFIG_MAPS, ("default", "one"), config, options)
            assert was_new is is_new
            assert [review["operation"] for _, review in caller.asked] == [operation] * 2
            made = record.plain()
            assert made["metadata"]["labels"] == {"touched": "yes"}
            (entry,) = made["metadata"]["managedFields"]
            assert entry["fieldsV1"] == {"f:data": {"f:k": {}}}

    run(main())


def test_63_webhooks_are_called_by_name_of_the_configuration_and_then_in_their_order() -> None:
    async def main() -> None:
        caller = Caller(a=allow, b=allow, c=allow)
        service = await cluster(caller)
        await configure(service, MUTATING_WEBHOOKS, "z", webhook("a"), webhook("b"))
        await configure(service, MUTATING_WEBHOOKS, "y", webhook("c"))
        await make(service)
        assert caller.paths == ["c", "a", "b"]

    run(main())


def test_63_a_webhook_is_called_again_when_a_later_one_changed_the_object() -> None:
    async def main() -> None:
        def count(request: Mapping[str, Any]) -> Response:
            seen = int((request["object"].get("data") or {}).get("seen", "0"))
            return patches({"op": "add", "path": "/data", "value": {"seen": str(seen + 1)}})(
                request
            )

        caller = Caller(count=count, change=label("late"), once=allow)
        service = await cluster(caller)
        again = webhook("count", reinvocationPolicy="IfNeeded")
        await configure(service, MUTATING_WEBHOOKS, "m", again, webhook("once"), webhook("change"))
        made = await make(service)
        assert caller.paths == ["count", "once", "change", "count"]
        assert made["data"] == {"seen": "2"}

    run(main())


def test_63_a_refusal_has_the_code_and_words_of_the_webhook_and_nothing_is_stored() -> None:
    async def main() -> None:
        status = {"code": 403, "message": "not today", "reason": "Forbidden"}
        caller = Caller(
            no=lambda _: {"allowed": False, "status": status, "warnings": ["think again"]},
            bare=lambda _: {"allowed": False},
        )
        service = await cluster(caller)
        await configure(service, VALIDATING_WEBHOOKS, "v", webhook("no"))
        warnings: list[str] = []
        with pytest.raises(Forbidden) as caught:
            await make(service, options=WriteOptions(warn=warnings.append))
        text = 'admission webhook "no.example.dev" denied the request'
        assert caught.value.message == f"{text}: not today"
        assert warnings == ["think again"]
        assert stored(service) is None
        await service.delete(VALIDATING_WEBHOOKS, ("", "v"), DeleteOptions())
        await configure(service, MUTATING_WEBHOOKS, "m", webhook("bare"))
        with pytest.raises(ApiError) as caught_bare:
            await make(service)
        assert caught_bare.value.status.code == 400
        assert caught_bare.value.message == f"{text} without explanation".replace("no.", "bare.")

    run(main())


def test_63_a_failed_call_refuses_the_request_unless_the_policy_is_to_ignore_it() -> None:
    async def main() -> None:
        def wrong_uid(_request: Mapping[str, Any]) -> Response:
            return {"allowed": False, "uid": "another"}

        for answer, why in ((fail, "connection refused"), (wrong_uid, "expected response.uid=")):
            service = await cluster(Caller(hook=answer))
            await configure(service, VALIDATING_WEBHOOKS, "v", webhook("hook"))
            with pytest.raises(InternalError, match='failed calling webhook "hook') as caught:
                await make(service)
            assert why in caught.value.message
            assert stored(service) is None
            await service.delete(VALIDATING_WEBHOOKS, ("", "v"), DeleteOptions())
            open_ = webhook("hook", failurePolicy="Ignore")
            await configure(service, VALIDATING_WEBHOOKS, "v", open_)
            await make(service)
            assert stored(service) is not None

    run(main())


def test_63_rules_and_selectors_decide_which_requests_are_sent() -> None:
    async def main() -> None:
        names = ("sub", "all", "other", "space", "object", "cluster")
        caller = Caller(**dict.fromkeys(names, allow))
        service = await cluster(caller)
        labels = {"matchLabels": {"watched": "yes"}}
        cluster_only = webhook("cluster", resources=["*"])
        cluster_only["rules"][0]["scope"] = "Cluster"
        everything = webhook("all", groups=["*"], resources=["*/*"], operations=["*"])
        await configure(
            service, VALIDATING_WEBHOOKS, "v",
            webhook("sub", resources=["pods/binding"]),
            everything,
            webhook("other", groups=["apps"]),
            webhook("space", resources=["*"], namespaceSelector=labels),
            webhook("object", operations=["*"], objectSelector=labels),
            cluster_only,
        )  # fmt: skip
        await make(service)
        assert caller.paths == ["all"]
        caller.asked.clear()
        body: dict[str, Any] = {"metadata": {"name": "team", "labels": {"watched": "yes"}}}
        await service.create(NAMESPACES, "", body, WriteOptions())
        assert caller.paths == ["all", "space", "cluster"]
        assert caller.asked[0][1]["namespace"] == "team"
        caller.asked.clear()
        watched = {"metadata": {"name": "two", "labels": {"watched": "yes"}}}
        await service.create(CONFIG_MAPS, "team", watched, WriteOptions())
        assert caller.paths == ["all", "space", "object"]
        caller.asked.clear()
        # The old object's labels count too.
        await service.patch(
            CONFIG_MAPS, ("team", "two"), {"metadata": {"labels": None}}, WriteOptions(),
            patch_type=PatchType.MERGE,
        )  # fmt: skip
        assert caller.paths == ["all", "object"]
        caller.asked.clear()
        await configure(service, MUTATING_WEBHOOKS, "another", everything)
        assert caller.paths == []

    run(main())


def test_63_updates_and_deletions_carry_the_old_object_and_only_updates_can_be_changed() -> None:
    async def main() -> None:
        caller = Caller(m=label("new"), v=allow)
        service = await cluster(caller)
        made = await make(service, data={"key": "1"})
        await configure(
            service, MUTATING_WEBHOOKS, "m", webhook("m", operations=["UPDATE", "DELETE"])
        )
        await configure(service, VALIDATING_WEBHOOKS, "v", webhook("v", operations=["*"]))
        key = ("default", "one")
        await service.patch(
            CONFIG_MAPS, key, {"data": {"key": "2"}}, WriteOptions(), patch_type=PatchType.MERGE
        )
        for _, request in caller.asked:
            assert request["operation"] == "UPDATE"
            assert request["oldObject"]["data"] == {"key": "1"}
            assert request["object"]["data"] == {"key": "2"}
            assert request["options"]["kind"] == "UpdateOptions"
        assert stored(service)["metadata"]["labels"] == {"new": "yes"}  # type: ignore[index] # it is there
        caller.asked.clear()
        with pytest.raises(InternalError, match="attempted to modify the object"):
            await service.delete(CONFIG_MAPS, key, DeleteOptions())
        caller.answers["m"] = allow
        await service.delete_collection(
            CONFIG_MAPS, "default", ListOptions(), DeleteOptions(grace_period_seconds=0)
        )
        assert stored(service) is None
        _, last = caller.asked[-1]
        assert last["object"] is None
        assert last["oldObject"]["metadata"]["uid"] == made["metadata"]["uid"]
        assert last["options"]["gracePeriodSeconds"] == 0

    run(main())


def test_63_a_patch_is_done_again_when_another_write_came_while_a_webhook_was_asked() -> None:
    async def main() -> None:
        waiting, go_on = asyncio.Event(), asyncio.Event()

        async def slow(request: Mapping[str, Any]) -> Response:
            if not go_on.is_set():
                waiting.set()
                await go_on.wait()
            return {"allowed": True}

        service = await cluster(Caller(slow=slow))
        await make(service, data={"a": "1"})
        hook = webhook("slow", operations=["UPDATE"], objectSelector={"matchLabels": {"x": "y"}})
        await configure(service, VALIDATING_WEBHOOKS, "v", hook)
        key = ("default", "one")

        async def change(patch: Mapping[str, Any]) -> None:
            await service.patch(CONFIG_MAPS, key, patch, WriteOptions(), patch_type=PatchType.MERGE)

        seen = stored(service)
        assert seen is not None
        version = seen["metadata"]["resourceVersion"]
        labelled = {"metadata": {"labels": {"x": "y"}}}
        guarded = {"metadata": {"labels": {"x": "y"}, "resourceVersion": version}}
        async with asyncio.TaskGroup() as group:
            free = group.create_task(change(labelled))
            await waiting.wait()
            waiting.clear()
            bound = group.create_task(_caught(change(guarded)))
            await waiting.wait()
            await change({"data": {"b": "2"}})  # nothing selects it: it is through at once
            go_on.set()
            await free
            assert isinstance(await bound, Conflict)
        now = stored(service)
        assert now is not None
        assert now["data"] == {"a": "1", "b": "2"}
        assert now["metadata"]["labels"] == {"x": "y"}

    async def _caught(call: Awaitable[None]) -> ApiError | None:
        try:
            await call
        except ApiError as error:
            return error
        return None

    run(main())


def test_63_a_dry_run_is_sent_as_one_and_refused_by_a_webhook_with_side_effects() -> None:
    async def main() -> None:
        caller = Caller(m=label("dry"))
        service = await cluster(caller)
        await configure(service, MUTATING_WEBHOOKS, "m", webhook("m", sideEffects="NoneOnDryRun"))
        made = await make(service, options=WriteOptions(dry_run=True))
        assert made["metadata"]["labels"] == {"dry": "yes"}
        assert stored(service) is None
        assert caller.asked[0][1]["dryRun"] is True
        # What an older server stored: its rules allowed side effects.
        record = service.store.latest(MUTATING_WEBHOOKS.name, ("", "m"))
        assert record is not None
        old = record.plain()
        old["webhooks"][0]["sideEffects"] = "Some"
        version = service.store.next_version
        service.store.put(
            MUTATING_WEBHOOKS, record_typed(MUTATING_WEBHOOKS, record.key, version, old)
        )
        caller.asked.clear()
        with pytest.raises(BadRequest, match="does not support dry run"):
            await make(service, options=WriteOptions(dry_run=True))
        assert caller.asked == []

    run(main())


def test_63_what_a_webhook_makes_invalid_is_refused_by_the_rules() -> None:
    async def main() -> None:
        bad = patches({"op": "add", "path": "/data", "value": {"no/key": "x"}})
        caller = Caller(m=bad, v=allow)
        service = await cluster(caller)
        await configure(service, MUTATING_WEBHOOKS, "m", webhook("m"))
        await configure(service, VALIDATING_WEBHOOKS, "v", webhook("v"))
        with pytest.raises(Invalid, match=r"data\[no/key\]|no/key"):
            await make(service)
        caller.answers["m"] = patches({"op": "test", "path": "/a", "value": 1})
        with pytest.raises(InternalError, match="Internal error occurred"):
            await make(service)

    run(main())


def test_63_bindings_leases_and_generated_names_go_through_webhooks_too() -> None:
    async def main() -> None:
        caller = Caller(v=allow, m=label("seen"))
        service = await cluster(caller)
        pods = ["pods/binding", "pods", "configmaps"]
        await configure(service, VALIDATING_WEBHOOKS, "v", webhook("v", resources=pods))
        leases = webhook("m", groups=["coordination.k8s.io"], resources=["leases"])
        await configure(service, MUTATING_WEBHOOKS, "m", leases)
        body: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
        await service.create(PODS, "default", body, WriteOptions())
        assert caller.asked[-1][1]["object"]["spec"]["restartPolicy"] == "Always"
        await service.bind(("default", "p"), {"target": {"name": "n"}}, WriteOptions())
        _, asked = caller.asked[-1]
        assert (asked["kind"]["kind"], asked["subResource"]) == ("Binding", "binding")
        assert asked["object"]["target"] == {"name": "n"}
        lease: dict[str, Any] = {"metadata": {"name": "l", "resourceVersion": ""}, "spec": {}}
        made = await service.replace(LEASES, ("default", "l"), lease, WriteOptions())
        assert made.labels == {"seen": "yes"}
        generated: dict[str, Any] = {"metadata": {"generateName": "g-"}}
        record = await service.create(CONFIG_MAPS, "default", generated, WriteOptions())
        _, asked = caller.asked[-1]
        assert "name" not in asked
        assert asked["object"]["metadata"]["name"] == record.name

    run(main())


def test_63_without_a_caller_configurations_are_refused_and_nothing_is_asked() -> None:
    async def main() -> None:
        service = await cluster(None)
        with pytest.raises(Invalid, match="no API server is running"):
            await configure(service, MUTATING_WEBHOOKS, "m", webhook("m"))
        caller = Caller(m=label("x"))
        service.webhooks.attach(caller, ReviewUser("tester", ()))
        await configure(service, MUTATING_WEBHOOKS, "m", webhook("m"))
        service.webhooks.detach()
        assert not service.webhooks.is_active
        assert "labels" not in (await make(service))["metadata"]

    run(main())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "short.name"}, "webhooks[0].name"),
        ({"sideEffects": "Some"}, "webhooks[0].sideEffects"),
        ({"timeoutSeconds": 31}, "webhooks[0].timeoutSeconds"),
        ({"failurePolicy": "Perhaps"}, "webhooks[0].failurePolicy"),
        ({"admissionReviewVersions": []}, "webhooks[0].admissionReviewVersions"),
        ({"clientConfig": {}}, "webhooks[0].clientConfig"),
        ({"clientConfig": {"url": "http://127.0.0.1:80/"}}, "webhooks[0].clientConfig.url"),
        ({"clientConfig": {"url": "https://x/?a=b"}}, "webhooks[0].clientConfig.url"),
        ({"matchConditions": [{"name": "a", "expression": "true"}]}, "webhooks[0].matchConditions"),
        ({"objectSelector": {"matchExpressions": [{"key": "a", "operator": "Eq"}]}},
         "webhooks[0].objectSelector.matchExpressions[0].operator"),
        ({"resources": ["*/*", "pods"]}, "webhooks[0].rules[0].resources"),
        ({"operations": ["CREATE", "*"]}, "webhooks[0].rules[0].operations"),
        ({"operations": ["MAKE"]}, "webhooks[0].rules[0].operations[0]"),
    ],
)  # fmt: skip
def test_63_a_configuration_that_is_wrong_is_refused_with_the_field(
    change: dict[str, Any], field: str
) -> None:
    async def main() -> None:
        service = await cluster(Caller())
        with pytest.raises(Invalid) as caught:
            await configure(service, MUTATING_WEBHOOKS, "m", webhook("m", **change))
        details = caught.value.status.details
        assert details is not None
        assert [cause.field for cause in details.causes] == [field]

    run(main())


@pytest.mark.parametrize(
    "change",
    [
        {"rules": [None]},
        {"groups": [None]},
        {"timeoutSeconds": "soon"},
        {"clientConfig": {"url": "https://x/", "caBundle": "not base64"}},
        {"clientConfig": {"url": "https://x/", "caBundle": "é"}},
    ],
)
def test_63_a_configuration_that_does_not_decode_is_a_bad_request(change: dict[str, Any]) -> None:
    async def main() -> None:
        service = await cluster(Caller())
        with pytest.raises(BadRequest, match="cannot be handled as a MutatingWebhookConfiguration"):
            await configure(service, MUTATING_WEBHOOKS, "m", webhook("m", **change))

    run(main())


def test_63_webhooks_that_a_store_holds_are_called_after_a_restart() -> None:
    async def main() -> None:
        service = await cluster(Caller(m=label("x")))
        await configure(service, MUTATING_WEBHOOKS, "m", webhook("m"))
        numbers = itertools.count(100)
        again = ApiService(
            service.store, Registry.with_builtins(), LoopClock(EPOCH),
            ids=lambda: f"uid-{next(numbers)}", rng=random.Random(4),
        )  # fmt: skip
        again.webhooks.attach(Caller(m=label("again")), ReviewUser("tester", ()))
        assert (await make(again))["metadata"]["labels"] == {"again": "yes"}

    run(main())
