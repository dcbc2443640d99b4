"""The API as an editor of one namespace meets it: his rights, the webhook's answers, his quota.

The embedded API has one user, its administrator. Here a second one is added in front of it: what
his role does not grant is refused; what it grants passes the webhook configurations that a cluster
installs, rules, selectors and match conditions included, and the functions that the webhook answers
with. While the webhook is down its failure policies hold, and the admission policies do always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from fairlead.api.cluster.fleet import FLEET_NAME
from fairlead.api.kubernetes.core import Node
from fairlead.api.kubernetes.selectors import selector_of
from fairlead.api.kubernetes.webhooks import (
    MutatingWebhookConfiguration,
    ValidatingWebhook,
    ValidatingWebhookConfiguration,
    WebhookClientConfig,
)
from fairlead.api.names import GROUP
from fairlead.api.resources import FLEETS, JOBS, NODES, TEAMS
from fairlead.api.status import ApiError, BadRequest, Forbidden
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.patch import apply_json_patch, apply_merge_patch
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Record
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.context import Digest
from fairlead.embedded.verbs.options import DeleteOptions, WriteOptions
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.webhooks.admitted import Admitted
from fairlead.embedded.webhooks.match import AskedOperation, Attributes, Hook, Invocation, Operation
from fairlead.embedded.webhooks.registry import CallFailed, Warn, Webhooks
from fairlead.embedded.webhooks.review import ReviewUser
from fairlead.model.asks.teams import TeamTable
from fairlead.runtime.client import PatchType
from fairlead.runtime.leading.leader import LeaderOptions
from fairlead.sim.promises.team_model import team_taints
from fairlead.sim.tenants.admission_policies import InstalledPolicies
from fairlead.sim.tenants.calls import EDITED, TENANT, Call, Verb, resolved
from fairlead.sim.tenants.cel import EvaluationError, Scope, compiled
from fairlead.webhook.answers import AdmissionAnswers, path_of
from fairlead.webhook.configuration import SERVICE, configurations

_USER = ReviewUser(TENANT, ("system:authenticated",))
_WRITE = WriteOptions(field_validation="Ignore", field_manager="kubectl")


class _Authorizer:
    """What CEL asks of the rights of the one who sends a request: of ours, only jobs/status."""

    def __init__(self) -> None:
        self._asked: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        def narrowed(value: str) -> _Authorizer:
            self._asked[name] = value
            return self

        return narrowed

    def allowed(self) -> bool:
        """True where the role `edit` of his namespace grants it."""
        asked = self._asked
        is_own = asked.get("namespace", "") == TENANT and not asked.get("subresource")
        return is_own and asked.get("group") == GROUP and asked.get("resource") == JOBS.plural


class _Hooks(Webhooks):
    """The webhooks that an installation configures, with their match conditions."""

    def __init__(
        self, store: Store, registry: Registry, *, ids: Any, answers: AdmissionAnswers
    ) -> None:
        self.is_down = False
        self._answers = answers
        mutating, validating = configurations(LeaderOptions().namespace, SERVICE, "")
        first = msgspec.convert(mutating, MutatingWebhookConfiguration)
        second = msgspec.convert(validating, ValidatingWebhookConfiguration)
        self._own = (_hooks(first.webhooks), _hooks(second.webhooks))
        self._conditions = {
            (hook.configuration, hook.index): [
                compiled(each.expression) for each in hook.webhook.match_conditions
            ]
            for hooks in self._own
            for hook in hooks
        }
        self._policies = InstalledPolicies()
        super().__init__(store, registry, ids=ids)
        self.attach(self, _USER)

    def _read(self) -> None:
        self._mutating, self._validating = self._own
        self._arm()

    def _invocation(self, hook: Hook, attributes: Attributes) -> Invocation | None:
        found = super()._invocation(hook, attributes)
        if found is None:
            return None
        scope = _scope(attributes)
        try:
            conditions = self._conditions[hook.configuration, hook.index]
            return found if all(holds(scope) for holds in conditions) else None
        except EvaluationError as error:
            if hook.is_failing_open:
                return None
            raise Forbidden(f"{hook.webhook.name}: {error}") from error

    async def validate(self, attributes: Attributes, *, warn: Warn) -> None:
        """Ask the webhooks, and hold the policies, which need nobody to be asked."""
        await super().validate(attributes, warn=warn)
        info = attributes.asked.info
        fleet = self._store.latest(FLEETS.name, ("", FLEET_NAME))
        scope = {**_scope(attributes), "params": {} if fleet is None else fleet.plain()}
        labels = self._namespace_labels(attributes) or {}
        self._policies.check(info.group, info.plural, scope, labels)

    async def call(
        self, client: WebhookClientConfig, body: bytes, *, timeout_seconds: int
    ) -> bytes:
        """Return the answer of the webhook, which is in this process; CallFailed while it is down.

        It takes no time, so `timeout_seconds` never passes.
        """
        if self.is_down or client.service is None or timeout_seconds < 1:
            raise CallFailed("connection refused")
        answer = self._answers.answer(path_of(client.service.path or ""), body)
        if answer.status != 200:
            raise CallFailed(answer.body.decode())
        return answer.body


def _scope(attributes: Attributes) -> Scope:
    """Return what the expressions of a request are about."""
    user = {"username": TENANT, "groups": list(_USER.groups)}
    return {
        "object": attributes.object, "oldObject": attributes.old_object,
        "request": {
            "operation": attributes.asked.operation.value, "namespace": attributes.namespace,
            "name": attributes.name, "userInfo": user,
        },
        "authorizer": _Authorizer(),
    }  # fmt: skip


def _hooks(webhooks: Sequence[ValidatingWebhook]) -> tuple[Hook, ...]:
    return tuple(
        Hook(type(each).__name__, i, each, selector_of(each.namespace_selector),
             selector_of(each.object_selector))
        for i, each in enumerate(webhooks)
    )  # fmt: skip


class TenantApi:
    """Sends the tenant's calls."""

    def __init__(self, service: ApiService, made: Callable[[str, Record], None]) -> None:
        """Stand in front of the service. What it knows of teams is the webhook's knowledge.

        `made` is called with the resource and the record of each object that he has created.
        """
        self._service = service
        self._made = made
        self._store = service.store
        context = service.context
        answers = AdmissionAnswers(
            GateRules(own_namespace=LeaderOptions().namespace),
            classes=lambda: context.priorities.of(context.store)[0],
            teams=lambda: context.teams.of(context.store),
            node_team=self._team_of,
        )
        self._hooks = _Hooks(context.store, service.registry, ids=context.ids, answers=answers)
        # A real API server knows no teams: their rules are the webhook's alone.
        plain = replace(context, teams=Digest(TEAMS.name, lambda _: TeamTable(())))
        self._admitted = Admitted(plain, self._hooks)

    async def send(self, call: Call) -> str:
        """Carry a call out; return what became of it: "ok", or the reason of the refusal."""
        match call.verb:
            case Verb.DOWN | Verb.UP:
                self._hooks.is_down = call.verb is Verb.DOWN
                return "ok"
            case Verb.WAIT:
                return "ok"
            case _:
                pass
        resource = EDITED.get(call.kind)
        if resource is None:
            return "Forbidden: his role"
        try:
            info = self._service.registry.of(resource)
            assert info is not None, f"{resource.name} is not served"
            await self._carry_out(call, info, resolved(call.body, self._uid, self._node))
        except ApiError as error:
            return f"{type(error).__name__}: {_where(error)}"
        return "ok"

    def restore(self) -> None:
        """Bring the webhook back, if it is away."""
        self._hooks.is_down = False

    def _uid(self, namespace: str, kind: str, name: str) -> str:
        resource = EDITED.get(kind)
        record = resource and self._store.latest(resource.name, (namespace, name))
        return record.uid if record else "00000000-0000-0000-0000-000000000000"

    def _team_of(self, node: str) -> str:
        record = self._store.latest(NODES.name, ("", node))
        return (team_taints(record and record.typed(Node)) or [""])[0]

    def _node(self, team: str) -> str:
        for record in self._store.records(NODES.name):
            if (team_taints(record.typed(NODES.type)) or [""])[0] == team:
                return record.name
        return "none"

    async def _carry_out(self, call: Call, info: ResourceInfo, body: Any) -> None:
        key = (TENANT, call.name)
        match call.verb:
            case Verb.CREATE:
                await self._create(info, body)
            case Verb.PATCH:
                await self._patch(info, key, body)
            case Verb.EVICT:
                await self._service.evict(key, DeleteOptions())
            case _:
                options = DeleteOptions(grace_period_seconds=body.get("gracePeriodSeconds"))
                await self._service.delete(info, key, options)

    async def _create(self, info: ResourceInfo, body: Any) -> None:
        if not isinstance(body, dict):
            raise BadRequest("no object")
        if not self._hooks.concern(AskedOperation(info, "", Operation.CREATE)):
            self._made(info.name, await self._service.create(info, TENANT, body, _WRITE))
            return
        record = await self._admitted.create(info, TENANT, body, _WRITE)
        self._made(info.name, record)
        await self._committed(record)

    async def _patch(self, info: ResourceInfo, key: ObjectKey, patch: Any) -> None:
        kind = PatchType.JSON if isinstance(patch, list) else PatchType.MERGE
        asked = AskedOperation(info, "", Operation.UPDATE)
        if not self._hooks.concern(asked):
            await self._service.patch(info, key, patch, _WRITE, patch_type=kind)
            return
        apply = apply_json_patch if kind is PatchType.JSON else apply_merge_patch
        await self._committed(
            await self._admitted.patch(asked, key, lambda obj: apply(obj, patch), _WRITE)
        )

    async def _committed(self, record: Record) -> None:
        if record.version > self._store.version:
            await self._store.committed(record.version)


def _where(error: ApiError) -> str:
    details = error.status.details
    causes = details.causes if details is not None else ()
    if causes:
        return ",".join(sorted({cause.field for cause in causes})[:3])
    return error.message[:60]
