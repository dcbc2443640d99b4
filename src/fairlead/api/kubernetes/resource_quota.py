"""ResourceQuota (v1), as far as Fairlead reads it: what a namespace may use, and what it uses."""

from __future__ import annotations

import msgspec

from fairlead.api.meta import Amount, ObjectMeta, Wire


class ScopeRequirement(Wire, frozen=True):
    """One scope that a pod must have, or its values."""

    scope_name: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class ScopeSelector(Wire, frozen=True):
    """All of these must hold."""

    match_expressions: tuple[ScopeRequirement, ...] = ()


class ResourceQuotaSpec(Wire, frozen=True):
    """The limits, and which pods they concern."""

    hard: dict[str, Amount] = msgspec.field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: ScopeSelector | None = None


class ResourceQuotaStatus(Wire, frozen=True):
    """The limits in force and what is used of them; empty until the server has counted."""

    hard: dict[str, Amount] = msgspec.field(default_factory=dict)
    used: dict[str, Amount] = msgspec.field(default_factory=dict)


class ResourceQuota(Wire, frozen=True):
    """A bound on what the objects of a namespace use together."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()
