"""Settings of the egress controller: see `controller_settings.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.api.cluster.node_report import CLASS_NAME_MAX
from fairlead.api.values.bounds import NAME_MAX
from fairlead.api.values.egress import TEAM_BITS_MIN, TrafficDirection, egress_bits
from fairlead.api.values.sections import Section

if TYPE_CHECKING:
    from fairlead.decide.network import DestinationLimit, EgressPolicy

#: As many as agents know classes beside those that cannot be destinations.
DESTINATIONS_MAX = 6
#: What is inside is never limited, and the internet has budgets of teams.
_NO_DESTINATIONS = ("internal", "internet")


class DestinationSettings(Section, frozen=True):
    """What all pods of the cluster together may exchange with a class of addresses."""

    name: Annotated[
        str, Meta(max_length=CLASS_NAME_MAX, pattern="^[a-z][a-z0-9-]*$",
                  description="A class of the agents' traffic.lists, or storage or peered."),
    ]  # fmt: skip
    egress: Annotated[
        str, Meta(max_length=NAME_MAX,
                  description="Bits per second that they send, such as 5G; empty: any."),
    ] = ""  # fmt: skip
    ingress: Annotated[
        str, Meta(max_length=NAME_MAX, description="The same of what they receive."),
    ] = ""  # fmt: skip

    def limits(self) -> Iterator[tuple[TrafficDirection, str]]:
        """Yield the budgets that are set."""
        for direction in TrafficDirection:
            if text := self.egress if direction is TrafficDirection.EGRESS else self.ingress:
                yield direction, text


class ClusterTrafficSettings(Section, frozen=True):
    """Budgets of traffic over the whole cluster."""

    destinations: Annotated[
        tuple[DestinationSettings, ...],
        Meta(max_length=DESTINATIONS_MAX, description="Budgets of destinations, which all teams "
             "share: `name`, a class of the agents' `traffic.lists`, with `egress` and `ingress` "
             "in bits per second."),
    ] = ()  # fmt: skip

    def policy(self) -> EgressPolicy:
        """Return the controller's policy."""
        from fairlead.decide.network import DestinationLimit, EgressPolicy

        found: list[DestinationLimit] = [
            DestinationLimit(each.name, direction, egress_bits(text, least=TEAM_BITS_MIN))
            for each in self.destinations
            for direction, text in each.limits()
        ]
        return EgressPolicy(destinations=tuple(found))


def conflicts_of_traffic(settings: ClusterTrafficSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of fields that cannot be, or do not go together."""
    names = Counter(each.name for each in settings.destinations)
    for i, each in enumerate(settings.destinations):
        at = f"traffic.destinations[{i}]"
        if each.name in _NO_DESTINATIONS:
            yield f"{at}.name", f"'{each.name}' cannot have a budget of its own"
        elif names[each.name] > 1:
            yield f"{at}.name", f"there are {names[each.name]} destinations {each.name}"
        given = list(each.limits())
        if not given:
            yield at, "neither egress nor ingress is set"
        for direction, text in given:
            try:
                egress_bits(text, least=TEAM_BITS_MIN)
            except ValueError as error:
                yield f"{at}.{direction.value}", str(error)
