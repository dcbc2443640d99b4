"""API calls of a tenant as data: drawn, sent, shrunk, printed, and sent to a real API server.

Texts in a body may name what is known only when the call is sent:

    ${uid:pods/x}          the uid of an object of his own namespace
    ${uid:rich:jobs/x}     the same of another namespace: a uid is no secret
    ${node:rich}           a node of a team; of "" one that no team has
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import (
    CONFIG_MAPS,
    EVENTS,
    JOB_ARRAYS,
    JOBS,
    LEASES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SECRETS,
    SERVICES,
    Resource,
)
from fairlead.sim.actors.training_operator import OWNERS

#: The namespace of the tenant, and his name.
TENANT = "mallory"

BUDGETS: Resource[Any] = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", dict
)
CLAIMS: Resource[Any] = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", dict)
ACCOUNTS: Resource[Any] = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict)

#: What the role `edit` lets its holder write, of the kinds that a simulated cluster serves. The
#: kind of another tool is among them, as its own chart grants it.
EDITED: dict[str, Resource[Any]] = {
    resource.plural: resource
    for resource in (
        JOB_ARRAYS, JOBS, PODS, CONFIG_MAPS, SECRETS, SERVICES, EVENTS, LEASES, BUDGETS, CLAIMS,
        ACCOUNTS, OWNERS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES,
    )
}  # fmt: skip

_BLANK = re.compile(r"\$\{(uid|node):([^}]*)\}")


class Verb(StrEnum):
    """What a call does. DOWN and UP are no calls: the webhook's process is away in between."""

    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"
    EVICT = "evict"
    WAIT = "wait"
    DOWN = "webhook-down"
    UP = "webhook-up"


@dataclass(frozen=True, slots=True)
class Call:
    """One call; `wait` seconds pass before it.

    `body`: of a create the object, of a patch a merge patch (JSON patch: a list), of a delete its
    options.
    """

    verb: Verb
    kind: str = ""
    name: str = ""
    body: Any = field(default_factory=dict[str, Any])
    wait: float = 0.0

    def __str__(self) -> str:
        """Return it as one line; large values are cut."""
        text = msgspec.json.encode(self.body).decode() if self.body else ""
        shown = text if len(text) <= 400 else f"{text[:300]}... ({len(text)} bytes)"
        pause = f"after {self.wait:g} s: " if self.wait else ""
        return f"{pause}{self.verb} {self.kind}/{self.name} {shown}".strip(" /")


def resolved(value: Any, uid: Callable[[str, str, str], str], node: Callable[[str], str]) -> Any:
    """Return a body with its blanks filled in: `uid(namespace, kind, name)`, `node(team)`."""
    match value:
        case dict():
            return {
                str(resolved(key, uid, node)): resolved(item, uid, node)
                for key, item in value.items()  # pyright: ignore[reportUnknownVariableType] # JSON
            }
        case list():
            return [resolved(item, uid, node) for item in value]  # pyright: ignore[reportUnknownVariableType] # JSON
        case str() if "${" in value:

            def fill(found: re.Match[str]) -> str:
                what, text = found.groups()
                if what == "node":
                    return node(text)
                space, _, path = text.rpartition(":")
                kind, _, name = path.partition("/")
                return uid(space or TENANT, kind, name)

            return _BLANK.sub(fill, value)
        case _:
            return value


def decoded_pod(body: Any) -> Pod:
    """Return the body of a pod as the controllers read it."""
    meta = {"namespace": TENANT, **body.get("metadata", {})}
    return msgspec.convert({**body, "metadata": meta}, Pod, strict=False)
