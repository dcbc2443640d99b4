"""Admission of our kinds of the whole cluster: Teams, NodePools and the Fleet.

The embedded API and the webhook call this. The controllers repeat it, so a webhook that does not
answer refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.resources import FLEETS, NODE_POOLS, TEAMS
from fairlead.api.status import StatusCause
from fairlead.api.validation.validate_pool import validate_fleet, validate_pool
from fairlead.api.validation.validate_team import validate_team

#: By the name of the resource: returns the rules that an object as plain JSON breaks.
RULES: Mapping[str, Callable[[Mapping[str, Any]], list[StatusCause]]] = {
    TEAMS.name: validate_team,
    NODE_POOLS.name: validate_pool,
    FLEETS.name: validate_fleet,
}


def judge_cluster_object(
    resource: str, new: Mapping[str, Any], old: Mapping[str, Any] | None = None
) -> list[StatusCause]:
    """Return what is wrong with an object that is created or changed; [] when it may be stored."""
    if old is not None and new.get("spec") == old.get("spec"):
        return []
    return RULES[resource](new)
