"""Which webhooks a request is sent to: rules, selectors and the matching of equivalent versions.

A request is described by its `Attributes`; a webhook of a configuration by its `Hook`, whose
selectors are compiled once. Source: apiserver `pkg/admission/plugin/webhook/predicates` and
`generic/webhook.go`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from fairlead.api.kubernetes import webhooks as types
from fairlead.api.kubernetes.selectors import Selector, selector_of
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Record

Obj = dict[str, Any]


class Operation(Enum):
    """What a request does. CONNECT is for streams to pods, of which none are served."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class AskedOperation:
    """What the request names: a kind, a sub-resource of it or "", and an operation."""

    info: ResourceInfo
    subresource: str
    operation: Operation


@dataclass(frozen=True, slots=True)
class KindName:
    """Group, version and kind of what a request carries."""

    group: str
    version: str
    kind: str


@dataclass(frozen=True, slots=True)
class Attributes:
    """A request to be admitted. Objects are whole: with kind and apiVersion.

    `name` is "" where the server is to make it up, and for the deletion of a collection.
    `namespace` of a request about a namespace is that namespace's name.
    """

    asked: AskedOperation
    kind: KindName
    namespace: str
    name: str
    object: Obj | None
    old_object: Obj | None
    options: Obj
    is_dry_run: bool


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook of a configuration."""

    configuration: str
    index: int
    webhook: types.ValidatingWebhook
    namespace_selector: Selector
    object_selector: Selector

    @property
    def is_failing_open(self) -> bool:
        """True when a call that fails lets the request pass."""
        return self.webhook.failure_policy == "Ignore"

    @property
    def is_reinvoked(self) -> bool:
        """True when it wants to see what later webhooks changed."""
        webhook = self.webhook
        return isinstance(webhook, types.MutatingWebhook) and (
            webhook.reinvocation_policy == "IfNeeded"
        )


@dataclass(frozen=True, slots=True)
class Invocation:
    """A webhook and the version of the kind that it is to get."""

    hook: Hook
    info: ResourceInfo


def hooks_of(info: ResourceInfo, record: Record) -> tuple[Hook, ...]:
    """Return the webhooks of a stored configuration, in its order."""
    cls = (
        types.MutatingWebhookConfiguration
        if info is builtins.MUTATING_WEBHOOKS
        else types.ValidatingWebhookConfiguration
    )
    webhooks = msgspec.json.decode(record.data, type=cls).webhooks
    return tuple(
        Hook(record.name, i, each, selector_of(each.namespace_selector),
             selector_of(each.object_selector))
        for i, each in enumerate(webhooks)
    )  # fmt: skip


def find_version(
    hook: Hook, asked: AskedOperation, versions: Sequence[ResourceInfo]
) -> ResourceInfo | None:
    """Return the version of the kind that the webhook's rules select, None when they do not.

    The request's own version goes first; with matchPolicy Equivalent any other of `versions`, the
    served versions of the same kind, in the order of the rules.
    """
    rules = hook.webhook.rules
    if any(_rule_matches(rule, asked, asked.info) for rule in rules):
        return asked.info
    if hook.webhook.match_policy == "Exact":
        return None
    for rule in rules:
        for other in versions:
            if other is not asked.info and _rule_matches(rule, asked, other):
                return other
    return None


def _rule_matches(
    rule: types.RuleWithOperations, asked: AskedOperation, info: ResourceInfo
) -> bool:
    return (
        _has(rule.operations, asked.operation.value)
        and _has(rule.api_groups, info.group)
        and _has(rule.api_versions, info.version)
        and _scope_matches(rule.scope, info)
        and any(_resource_matches(text, info.plural, asked.subresource) for text in rule.resources)
    )


def _has(values: tuple[str, ...], value: str) -> bool:
    return value in values or "*" in values


def _scope_matches(scope: str, info: ResourceInfo) -> bool:
    if scope == "Namespaced":
        return info.namespaced
    return scope != "Cluster" or not info.namespaced


def _resource_matches(text: str, plural: str, subresource: str) -> bool:
    resource, _, sub = text.partition("/")
    return resource in ("*", plural) and sub in ("*", subresource)


def selects(hook: Hook, attributes: Attributes, namespace_labels: Mapping[str, str] | None) -> bool:
    """True when both selectors select the request.

    `namespace_labels` are those of the request's namespace, None for what has none: a cluster-
    scoped object is never exempted by the namespace selector.
    """
    if namespace_labels is not None and not hook.namespace_selector.matches(namespace_labels):
        return False
    if not hook.object_selector:
        return True
    objects = (attributes.object, attributes.old_object)
    return any(obj is not None and hook.object_selector.matches(labels_of(obj)) for obj in objects)


def labels_of(obj: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of a plain object."""
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    return metadata.get("labels") or {}
