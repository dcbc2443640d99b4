"""What gpud says of the machine: a component that is not healthy is a fault, with its advice.

A cluster that has gpud keeps it: its states are read on the loopback, as JSON of its own API
(leptonai/gpud, api/v1/types.go), and nothing is sent. What it has judged is not judged again.
Where nothing has ever answered, there is no gpud.
"""

from __future__ import annotations

from functools import partial

import msgspec

from fairlead.model.health.faults import (
    Action,
    FaultVerdict,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.exports import fetch_page
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, Nothing, SignalSource

SOURCE = CHECK = "gpud"
#: It checks most of its components once a minute.
_PERIOD_SECONDS = 60
PAGE_BYTES_MAX = 4 << 20
COMPONENTS_MAX = 256
_HEALTHY, _DEGRADED, _UNHEALTHY = "Healthy", "Degraded", "Unhealthy"
#: A word that is not known asks a person.
_ACTIONS = {
    "IGNORE_NO_ACTION_REQUIRED": Action.NONE,
    "CHECK_USER_APP_AND_GPU": Action.WATCH,
    "REBOOT_SYSTEM": Action.REBOOT,
    "HARDWARE_INSPECTION": Action.ASK_PERSON,
}


class GpudAdvice(msgspec.Struct, frozen=True):
    """What it suggests."""

    repair_actions: tuple[str, ...] | None = None


class GpudState(msgspec.Struct, frozen=True):
    """How a part of a component does."""

    health: str = ""
    reason: str = ""
    suggested_actions: GpudAdvice | None = None

    @property
    def verdict(self) -> tuple[Severity, Action]:
        """What is to be thought of it: what is degraded does not affect work, by its own words."""
        words = self.suggested_actions.repair_actions if self.suggested_actions else None
        found = [_ACTIONS.get(word, Action.ASK_PERSON) for word in words or ()]
        action = max(found, key=lambda each: each.rank, default=Action.WATCH)
        if action is Action.NONE:
            return Severity.INFO, action
        is_critical = self.health == _UNHEALTHY and action.asks
        return (Severity.CRITICAL if is_critical else Severity.WARNING), action


class GpudComponent(msgspec.Struct, frozen=True):
    """A component with the states of its parts."""

    component: str
    states: tuple[GpudState, ...] | None = None


def parse_states(page: bytes) -> tuple[GpudComponent, ...]:
    """Return the components of an answer; OSError for what is none."""
    try:
        found = msgspec.json.decode(page, type=tuple[GpudComponent, ...])
    except ValueError as error:
        raise OSError(f"it does not answer as gpud does: {str(error)[:120]}") from error
    if len(found) > COMPONENTS_MAX:
        raise OSError(f"it has {len(found):,} components; at most: {COMPONENTS_MAX}")
    return found


class LoopbackPage:
    """A page of a monitor that may not be there. Used by one thread."""

    def __init__(self, url: str, bytes_max: int) -> None:
        self._url, self._bytes_max = url, bytes_max
        self._has_answered = False

    def read(self) -> bytes:
        """Return the page; Absent where nothing has ever listened there, OSError."""
        try:
            page = fetch_page(self._url, bytes_max=self._bytes_max)
        except ConnectionRefusedError as error:
            if self._has_answered:
                raise
            raise Absent(f"nothing answers at {self._url}") from error
        self._has_answered = True
        return page


def read(page: LoopbackPage) -> tuple[GpudComponent, ...]:
    """Return the components; Absent, OSError."""
    return parse_states(page.read())


def judge(
    facts: tuple[GpudComponent, ...], memory: Nothing, at: Moment, *, settings: AgentSettings
) -> Judged[Nothing]:
    """Give a fault for each component that is not healthy; one that is starting is not known."""
    looked: set[str] = set()
    observations: list[Observation] = []
    unreadable: list[str] = []
    for component in facts:
        of = identity(CHECK, component.component)
        states = component.states or ()
        known = [e for e in states if e.health in (_HEALTHY, _DEGRADED, _UNHEALTHY)]
        if len(known) < len(states):
            unreadable.append(f"{of.component}: a state is not known")
        else:
            looked.add(of.component)
        sick = [each for each in known if each.health != _HEALTHY]
        if sick:
            worst = max(sick, key=lambda each: _rank(each.verdict))
            verdict = steady(*worst.verdict, settings.stable_seconds)
            text = f"{worst.health}: {worst.reason}"
            observations.append(observed(of, verdict, text, at))
    return Judged(memory, tuple(observations), frozenset(looked), unreadable=tuple(unreadable))


def _rank(verdict: tuple[Severity, Action]) -> tuple[int, int]:
    return FaultVerdict(*verdict, verdict[1].recovery).rank


def source(
    _host: Host, settings: AgentSettings
) -> SignalSource[tuple[GpudComponent, ...], Nothing] | None:
    """Return the source of gpud; None where its page is not named."""
    url = settings.monitors.gpud
    if not url:
        return None
    return SignalSource(
        SOURCE, (CHECK,), Nothing, partial(read, LoopbackPage(url, PAGE_BYTES_MAX)),
        partial(judge, settings=settings), period_seconds=_PERIOD_SECONDS,
    )  # fmt: skip
