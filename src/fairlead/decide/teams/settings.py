"""Settings of the shares of teams: `app/configuration` reads their file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fairlead.api.names import ZONE
from fairlead.api.values.sections import YEAR, Section, within


class TeamsSettings(Section, frozen=True):
    """Shares of teams: how fast nodes change hands, and what is kept together."""

    changes_max: Annotated[int, within(1, 1000, "Nodes that change hands per second.")] = 50
    exchange_seconds: Annotated[
        int,
        within(0, YEAR, "A job that has kept nodes of other teams for so long gets them for its "
                        "team, in exchange for nodes of the team that it does not use."),
    ] = 3600  # fmt: skip
    block_key: Annotated[
        str,
        Meta(max_length=317, description="Node label of the block in which the nodes of a team are "
             "kept together."),
    ] = ZONE  # fmt: skip
    system_namespaces: Annotated[
        tuple[Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")], ...],
        Meta(max_length=64, description="Namespaces of the cluster's own components beside "
             "kube-system, such as calico-system: their pods may be on nodes of every team."),
    ] = ()  # fmt: skip
