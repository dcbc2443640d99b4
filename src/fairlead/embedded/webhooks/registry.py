"""Admission webhooks: which are configured, and calling those that a request concerns.

`Webhooks` follows the stored configurations. Mutating webhooks are called one after the other, by
name of the configuration and then by index, and once more where a later one changed what an earlier
one with reinvocationPolicy IfNeeded has seen; validating ones all at once. How a webhook is reached
is the `WebhookCaller`'s business, which the HTTP server attaches; without one nothing is called.
Source: apiserver `pkg/admission/plugin/webhook/{mutating,validating}/dispatcher.go`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fairlead.api.kubernetes.webhooks import WebhookClientConfig
from fairlead.api.status import ApiError, BadRequest
from fairlead.embedded import builtins
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import StoreEvent
from fairlead.embedded.storage.store import Store
from fairlead.embedded.webhooks.match import (
    AskedOperation,
    Attributes,
    Hook,
    Invocation,
    Operation,
    find_version,
    hooks_of,
    labels_of,
    selects,
)
from fairlead.embedded.webhooks.review import (
    BadAnswer,
    ReviewAnswer,
    ReviewUser,
    call_failed,
    converted,
    denial,
    in_version,
    patched,
    read_answer,
    request_body,
)

Obj = dict[str, Any]
Warn = Callable[[str], None]


class CallFailed(Exception):
    """A webhook could not be reached or did not answer in time; the message says why."""


class WebhookCaller(Protocol):
    """Brings a review to a webhook and its answer back."""

    async def call(
        self, client: WebhookClientConfig, body: bytes, *, timeout_seconds: int
    ) -> bytes:
        """Return the body of the answer; CallFailed when there is none within the time."""
        ...


class Webhooks:
    """The configured webhooks of one store."""

    def __init__(self, store: Store, registry: Registry, *, ids: Callable[[], str]) -> None:
        """Follow `store`. `ids` gives the uid of each review."""
        self._store = store
        self._registry = registry
        self._ids = ids
        self._caller: WebhookCaller | None = None
        self._user = ReviewUser("", ())  # in whose name the caller calls
        self._mutating: tuple[Hook, ...] = ()
        self._validating: tuple[Hook, ...] = ()
        self._revision = -1
        self._versions: dict[str, tuple[ResourceInfo, ...]] = {}
        #: False as long as no request needs to ask any further: the price of having no webhooks.
        self.is_active = False
        self._read()
        store.subscribe(self._note)

    @property
    def can_call(self) -> bool:
        """True while a caller is attached."""
        return self._caller is not None

    def attach(self, caller: WebhookCaller, user: ReviewUser) -> None:
        """Call webhooks through `caller` from now on, in the name of `user`."""
        self._caller, self._user = caller, user
        self._arm()

    def detach(self) -> None:
        """Call no webhook from now on."""
        self._caller = None
        self._arm()

    def _note(self, events: Sequence[StoreEvent]) -> None:
        mutating, validating = builtins.WEBHOOK_KINDS
        for event in events:  # every write of the cluster passes here: two comparisons each
            if event.info is mutating or event.info is validating:
                self._read()
                return

    def _read(self) -> None:
        self._mutating, self._validating = (
            tuple(
                hook
                for record in sorted(self._store.records(info.name), key=lambda r: r.name)
                for hook in hooks_of(info, record)
            )
            for info in builtins.WEBHOOK_KINDS
        )
        self._arm()

    def _arm(self) -> None:
        self.is_active = self._caller is not None and bool(self._mutating or self._validating)

    def concern(self, asked: AskedOperation) -> bool:
        """True when the rules of some webhook select the request; selectors may still exempt it.

        The kinds of webhook configurations themselves are never sent to webhooks.
        """
        if not self.is_active or asked.info in builtins.WEBHOOK_KINDS:
            return False
        hooks = (*self._mutating, *self._validating)
        return any(self._version(hook, asked) is not None for hook in hooks)

    def _version(self, hook: Hook, asked: AskedOperation) -> ResourceInfo | None:
        return find_version(hook, asked, self._served(asked.info.name))

    def _served(self, name: str) -> tuple[ResourceInfo, ...]:
        """The served versions of a kind, looked up once per change of what is served."""
        if self._revision != self._registry.revision:
            self._revision = self._registry.revision
            self._versions.clear()
        versions = self._versions.get(name)
        if versions is None:
            versions = self._versions[name] = self._registry.versions(name)
        return versions

    def _invocation(self, hook: Hook, attributes: Attributes) -> Invocation | None:
        info = self._version(hook, attributes.asked)
        if info is None or not selects(hook, attributes, self._namespace_labels(attributes)):
            return None
        return Invocation(hook, info)

    def _namespace_labels(self, attributes: Attributes) -> Mapping[str, str] | None:
        asked = attributes.asked
        if asked.info is builtins.NAMESPACES and not asked.subresource:
            obj = attributes.object if asked.operation is not Operation.DELETE else None
            if obj is not None:
                return labels_of(obj)
        if not attributes.namespace:
            return None
        record = self._store.latest(builtins.NAMESPACES.name, ("", attributes.namespace))
        return {} if record is None else record.labels

    # Calling ---------------------------------------------------------------------------------

    async def mutate(
        self, attributes: Attributes, *, settle: Callable[[Obj], Obj], warn: Warn
    ) -> Obj | None:
        """Return the request's object as the mutating webhooks want it.

        `settle` defaults an object that a webhook has changed. ApiError when one refuses the
        request, or fails and its failurePolicy is Fail.
        """
        called: list[Hook] = []  # since the last change, of those that are called again
        to_reinvoke: list[Hook] = []  # what they have seen was changed after them
        for number in (0, 1):
            for hook in self._mutating:
                if number and hook not in to_reinvoke:
                    continue
                invocation = self._invocation(hook, attributes)
                if invocation is None:
                    continue
                obj = await self._changed(invocation, attributes, warn)
                if obj is not None:
                    attributes = replace(attributes, object=settle(obj))
                    to_reinvoke += called
                    called.clear()
                if hook.is_reinvoked:
                    called.append(hook)
        return attributes.object

    async def _changed(
        self, invocation: Invocation, attributes: Attributes, warn: Warn
    ) -> Obj | None:
        """Return what one mutating webhook makes of the object, None when it leaves it alone."""
        hook = invocation.hook
        answer = await self._ask(invocation, attributes, is_mutating=True)
        if answer is None:
            return None
        self._heed(hook, answer, warn)
        if not answer.patch:
            return None
        before, info = in_version(attributes.object, attributes, invocation.info), invocation.info
        after = patched(hook.webhook.name, before, answer.patch)
        if after == before:
            return None
        is_other = before is not attributes.object and after.get("apiVersion") == info.api_version
        return converted(after, info, attributes.asked.info) if is_other else after

    async def validate(self, attributes: Attributes, *, warn: Warn) -> None:
        """Ask all validating webhooks at once. ApiError of the first, in order, that refuses."""
        found = [self._invocation(hook, attributes) for hook in self._validating]
        invocations = [each for each in found if each is not None]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._refusal(each, attributes, warn)) for each in invocations
            ]
        for task in tasks:
            if (error := task.result()) is not None:
                raise error

    async def _refusal(
        self, invocation: Invocation, attributes: Attributes, warn: Warn
    ) -> ApiError | None:
        try:
            answer = await self._ask(invocation, attributes, is_mutating=False)
            if answer is not None:
                self._heed(invocation.hook, answer, warn)
        except ApiError as error:
            return error
        return None

    def _heed(self, hook: Hook, answer: ReviewAnswer, warn: Warn) -> None:
        for warning in answer.warnings:
            warn(warning)
        if not answer.is_allowed:
            error = denial(hook.webhook.name, answer.status)
            error.warnings = answer.warnings
            raise error

    async def _ask(
        self, invocation: Invocation, attributes: Attributes, *, is_mutating: bool
    ) -> ReviewAnswer | None:
        """Return a webhook's answer; None when the call failed and it is failing open."""
        hook, caller = invocation.hook, self._caller
        webhook = hook.webhook
        if attributes.is_dry_run and webhook.side_effects not in ("None", "NoneOnDryRun"):
            text = f'admission webhook "{webhook.name}" does not support dry run'
            raise BadRequest(text)
        if caller is None:  # the server has stopped since the request came
            if hook.is_failing_open:
                return None
            raise call_failed(webhook.name, "the API server is stopping")
        uid = self._ids()
        body = request_body(uid, invocation, attributes, self._user)
        try:
            raw = await caller.call(
                webhook.client_config, body, timeout_seconds=webhook.timeout_seconds or 1
            )
            return read_answer(uid, raw, is_mutating=is_mutating)
        except CallFailed as error:
            why = f"failed to call webhook: {error}"
        except BadAnswer as error:
            why = f"received invalid webhook response: {error}"
        if hook.is_failing_open:
            return None
        raise call_failed(webhook.name, why)
