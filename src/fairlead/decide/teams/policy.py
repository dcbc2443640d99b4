"""Options of the teams controller, read once and passed in."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.names import OWN_NAMESPACE
from fairlead.decide.admission.pod_gates import GateRules, system_with
from fairlead.decide.teams.settings import TeamsSettings

#: Settings say what the fields of their names are for, and have the defaults.
_SETTINGS = TeamsSettings()


@dataclass(frozen=True, slots=True)
class TeamsPolicy:
    """How fast nodes change hands, and what is kept together."""

    changes_max: int = _SETTINGS.changes_max
    interval_seconds: float = 1.0
    exchange_seconds: float = _SETTINGS.exchange_seconds
    block_key: str = _SETTINGS.block_key
    #: With fewer healthy nodes than this part of all nodes no node changes hands: that so many are
    #: out at once is more likely a fault of what reports their health.
    healthy_part_min: float = 0.5
    #: What a team uses, borrows and lends is written at most this often.
    use_seconds: float = 10.0
    #: The sums of the fair share and of the budget are written at most this often, and only once
    #: one has changed by this part: a new process follows them from there at the rate it sees.
    sums_seconds: float = 300.0
    sums_part: float = 0.01
    #: A pod that may not be on a team's node is reported after so long, and one that was there
    #: before the node came to the team after so long from then.
    intruder_seconds: float = 60.0
    leftover_seconds: float = 3600.0
    #: One that is evicted has at most so long to end, whatever it asks for.
    grace_period_seconds_max: int = 300
    #: A pod that was bound less than this after a node came to the team counts as there before:
    #: the clocks of those who wrote the two instants may differ.
    clock_seconds: float = 60.0
    #: All pods are looked at anew, since nodes or Teams changed, at most this often.
    look_seconds: float = 10.0
    #: So long after the Teams changed, and after a start, nothing is evicted.
    doubt_seconds: float = 300.0
    #: Pods that are evicted per `eviction_seconds`; each is tried again after `retry_seconds`.
    evictions_max: int = 10
    eviction_seconds: float = 60.0
    retry_seconds: float = 300.0
    system_namespaces: tuple[str, ...] = _SETTINGS.system_namespaces
    own_namespace: str = OWN_NAMESPACE
    #: The teams are published for an API server that has admission policies, and again this often:
    #: what others have taken away comes back.
    publishes: bool = False
    publish_seconds: float = 300.0

    @property
    def rules(self) -> GateRules:
        """What admission knows of this installation."""
        return GateRules(self.own_namespace, system_namespaces=system_with(self.system_namespaces))
