"""Limits of what pods send to the internet, which this read keeps in step with the pods.

What is judged is the shaping itself. Annotations that are no rate are in the report, and no fault:
a tenant writes them, and must not make a node look sick.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import Host
from fairlead.node.settings import AgentSettings
from fairlead.node.shaping import Shaping, ShapingFacts, ShapingOptions
from fairlead.node.source import Judged, Nothing, SignalSource
from fairlead.node.sources.traffic import own_lists
from fairlead.node.traffic import PodArrivals, PodSource

SHAPING = "traffic-shaping"
PERIOD_SECONDS = 5


def conflicts(settings: AgentSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of what does not go together."""
    if settings.shaping.enabled and not settings.traffic.pods:
        yield "shaping.enabled", "needs traffic.pods: pods are shaped by their addresses"
    if settings.shaping.bandwidth_annotations and not settings.shaping.enabled:
        yield "shaping.bandwidthAnnotations", "needs shaping.enabled: nothing else keeps limits"


def judge(
    facts: ShapingFacts, memory: Nothing, at: Moment, *, settings: AgentSettings
) -> Judged[Nothing]:
    """Nothing that was set had to be taken back."""
    verdict = steady(Severity.WARNING, Action.ASK_PERSON, settings.stable_seconds)
    found: list[Observation] = []
    if facts.taken_back:
        text = f"classes of traffic were taken back: {facts.taken_back}"
        found.append(observed(identity(SHAPING, "classes"), verdict, text, at))
    return Judged(memory, tuple(found), unreadable=facts.unreadable)


def source(host: Host, settings: AgentSettings) -> SignalSource[ShapingFacts, Nothing] | None:
    """Return the source of limits; None where they are off."""
    given, traffic = settings.shaping, settings.traffic
    if not given.enabled:
        return None
    options = ShapingOptions(
        given.mechanism, given.pod_megabits_max * 10**6, given.rates, given.bandwidth_annotations
    )
    pods = PodSource(traffic.pods, traffic.token_file, traffic.ca_file)
    shaping = Shaping(pods, host.now, own_lists(traffic), options)
    return SignalSource("shaping", (SHAPING,), Nothing, shaping.read,
                        partial(judge, settings=settings), period_seconds=PERIOD_SECONDS,
                        is_early=PodArrivals(host.now).is_early,
                        usage=shaping.last_usage)  # fmt: skip
