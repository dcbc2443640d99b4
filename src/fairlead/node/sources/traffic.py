"""What the pods of the node send where: counted by the kernel, in a table of our own.

The read keeps the kernel's table in step with the pods, so it is the one source that changes
something. What is judged is the counting itself: a part that is not seen is a fault, never a zero.
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
from fairlead.node.settings import AgentSettings, TrafficSettings
from fairlead.node.source import Judged, Nothing, SignalSource, SkippedCheck
from fairlead.node.traffic import (
    Counting,
    PodArrivals,
    PodSource,
    PrefixConflict,
    PrefixList,
    TrafficFacts,
    parse_lists,
    plan_of,
)

COVERAGE, REMOVED = "traffic-coverage", "traffic-removed"
PERIOD_SECONDS = 5


def own_lists(settings: TrafficSettings) -> tuple[PrefixList, ...]:
    """Return an administrator's lists, which `conflicts` has found right."""
    return parse_lists((each.traffic_class, each.prefixes) for each in settings.lists)[0]


def conflicts(settings: TrafficSettings) -> Iterator[tuple[str, str]]:
    """Yield (path, message) of each class and prefix that is wrong."""
    found, wrong = parse_lists((each.traffic_class, each.prefixes) for each in settings.lists)
    for i, j, message in wrong:
        yield f"traffic.lists[{i}]" + (".class" if j is None else f".prefixes[{j}]"), message
    try:
        plan_of(found)
    except PrefixConflict as error:
        yield "traffic.lists", str(error)


def judge(
    facts: TrafficFacts, memory: Nothing, at: Moment, *, settings: AgentSettings
) -> Judged[Nothing]:
    """Most of what pods' devices carry is counted, and nobody else removes our table."""
    least, part = settings.traffic.coverage_percent_min, facts.usage.coverage_permille
    verdict = steady(Severity.WARNING, Action.ASK_PERSON, settings.stable_seconds)
    observations: list[Observation] = []
    skipped: tuple[SkippedCheck, ...] = ()
    if not least:
        skipped = (SkippedCheck(COVERAGE, "no least coverage is set"),)
    elif part is None:
        skipped = (SkippedCheck(COVERAGE, "too little traffic to judge", is_unset=False),)
    elif part < 10 * least:
        text = (
            f"{part / 10:.0f} % of the bytes of pods' devices were counted, at least {least} % are "
            "expected: the network plugin passes the host's netfilter by, or bridges without it"
        )
        observations.append(observed(identity(COVERAGE, "pods"), verdict, text, at))
    if facts.was_removed:
        text = "another program removed the table inet fairlead; what it had counted is lost"
        observations.append(observed(identity(REMOVED, "table"), verdict, text, at))
    return Judged(memory, tuple(observations), skipped=skipped, unreadable=facts.unreadable)


def source(host: Host, settings: AgentSettings) -> SignalSource[TrafficFacts, Nothing] | None:
    """Return the source of pods' traffic; None where no pods are named."""
    given = settings.traffic
    if not given.pods:
        return None
    pods = PodSource(given.pods, given.token_file, given.ca_file)
    counting = Counting(host, pods, own_lists(given))
    return SignalSource("traffic", (COVERAGE, REMOVED), Nothing, counting.read,
                  partial(judge, settings=settings), period_seconds=PERIOD_SECONDS,
                  is_early=PodArrivals(host.now).is_early, usage=counting.last_usage)  # fmt: skip
