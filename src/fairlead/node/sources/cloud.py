"""What the cloud tells the machine alone: that it is about to stop, reboot or preempt it.

The fleet controller lists the maintenance that a provider's API announces, of machines of its
pools. The metadata service has what that list lacks: preemption of spot machines, Azure's scheduled
events, maintenance of a machine that is of no pool. It is asked at its one address, without
credentials, and nothing is acknowledged: an answer approves the event for all machines in it.

    AWS    IMDSv2: events/maintenance/scheduled, spot/instance-action, events/recommendations
    Azure  metadata/scheduledevents of this machine's name
    GCP    maintenance-event, preempted, upcoming-maintenance
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import TypeVar, assert_never

import msgspec

from fairlead.api.cluster.node_report import CLOUD_MAINTENANCE
from fairlead.api.values.times import format_time, parse_time
from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.exports import PageStatusError, fetch_page
from fairlead.node.running.host import Absent, Host
from fairlead.node.running.probe_settings import CloudProvider
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource

SOURCE = CHECK = CLOUD_MAINTENANCE
#: Preemption is announced 30 s before on Azure and Compute Engine, 2 min on EC2.
_PERIOD_SECONDS = 5
ADDRESS = "http://169.254.169.254"
_BYTES_MAX = 64 << 10
_EVENTS_MAX = 64
_TEXT_MAX = 64
#: IMDSv2's token is asked for again when so much of its time is left.
_TOKEN_SECONDS, _TOKEN_REST_SECONDS = 3600, 300
#: Those that a machine outlives: it stands still for seconds, or moves while it runs.
_HARMLESS = frozenset({"freeze", "migrate"})
#: EC2: the machine may be preempted soon, at a time that is not known.
_DOUBT = "rebalance"
#: The last second of the year 9999.
_LATEST = 253_402_300_799.0
Fetch = Callable[..., bytes]
T = TypeVar("T")


class CloudEvent(msgspec.Struct, frozen=True):
    """What will happen, and when: seconds since the epoch; None: at once, or not known."""

    kind: str
    at: float | None = None


class CloudMemory(msgspec.Struct, frozen=True):
    """When each kind of event was first seen, while it lasts."""

    since: dict[str, float] = {}


class Ec2Event(msgspec.Struct, frozen=True, rename="pascal"):
    """An element of events/maintenance/scheduled."""

    code: str
    not_before: str = ""
    state: str = ""


class Ec2Action(msgspec.Struct, frozen=True):
    """spot/instance-action."""

    action: str
    time: str = ""


class AzureEvent(msgspec.Struct, frozen=True, rename="pascal"):
    """An element of Azure's document; `not_before` is empty once it has started."""

    event_type: str
    event_status: str = ""
    not_before: str = ""
    resources: tuple[str, ...] = ()


class AzureEvents(msgspec.Struct, frozen=True, rename="pascal"):
    """Azure's document."""

    events: tuple[AzureEvent, ...] = ()


class GcpMaintenance(msgspec.Struct, frozen=True):
    """upcoming-maintenance; all is empty where there is none."""

    maintenance_status: str = ""
    window_start_time: str = ""


def parse_answer(page: bytes, kind: type[T]) -> T:
    """Return an answer of a metadata service in JSON; OSError for what is none."""
    try:
        return msgspec.json.decode(page, type=kind)
    except ValueError as error:
        raise OSError(f"the metadata service answers strangely: {str(error)[:120]}") from error


def parse_instant(text: str) -> float | None:
    """Return an instant of RFC 3339 or RFC 5322; None for an empty text, OSError for another."""
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text[:_TEXT_MAX]).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise OSError(f"'{text[:_TEXT_MAX]}' is no time") from error


@dataclass(slots=True)
class MetadataService:
    """Asks one provider's service. Used by one thread."""

    host: Host
    provider: CloudProvider
    fetch: Fetch = fetch_page
    _has_answered: bool = False
    _token: str = ""
    _token_until: float = 0.0
    _name: str = ""

    def read(self) -> tuple[CloudEvent, ...]:
        """Return what will happen; Absent where no service has ever answered, OSError."""
        try:
            found = tuple(self._events())[:_EVENTS_MAX]
        except PageStatusError:
            self._has_answered = True
            raise
        except OSError as error:
            if self._has_answered:
                raise
            raise Absent(f"no metadata service answers: {error}") from error
        self._has_answered = True
        return found

    def _events(self) -> Iterable[CloudEvent]:
        match self.provider:
            case CloudProvider.AWS:
                return self._of_aws()
            case CloudProvider.AZURE:
                return self._of_azure()
            case CloudProvider.GCP:
                return self._of_gcp()
            case _:
                assert_never(self.provider)

    def _page(self, path: str, headers: Mapping[str, str], method: str = "GET") -> bytes:
        """Return an answer; empty where there is none of the kind (404)."""
        try:
            return self.fetch(
                f"{ADDRESS}/{path}", method=method, headers=headers, bytes_max=_BYTES_MAX
            )
        except PageStatusError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return b""

    def _of_aws(self) -> Iterable[CloudEvent]:
        now = self.host.now().uptime_seconds
        if now >= self._token_until - _TOKEN_REST_SECONDS:
            seconds = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
            self._token = _word(self._page("latest/api/token", seconds, "PUT"))
            self._token_until = now + _TOKEN_SECONDS
        headers = {"X-aws-ec2-metadata-token": self._token}
        data = "latest/meta-data"
        try:
            scheduled = self._page(f"{data}/events/maintenance/scheduled", headers)
            spot = self._page(f"{data}/spot/instance-action", headers)
            doubt = self._page(f"{data}/events/recommendations/rebalance", headers)
        except PageStatusError:
            self._token_until = 0.0  # it may be the token that is refused
            raise
        found = parse_answer(scheduled, tuple[Ec2Event, ...]) if scheduled else ()
        events = [
            CloudEvent(each.code, parse_instant(each.not_before))
            for each in found if each.state in ("", "active")
        ]  # fmt: skip
        if spot:
            action = parse_answer(spot, Ec2Action)
            events.append(CloudEvent(f"spot-{action.action}", parse_instant(action.time)))
        return (*events, *([CloudEvent(_DOUBT)] if doubt else []))

    def _of_azure(self) -> Iterable[CloudEvent]:
        headers = {"Metadata": "true"}
        if not self._name:
            path = "metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._name = _word(self._page(path, headers))
        path = "metadata/scheduledevents?api-version=2020-07-01"
        found = parse_answer(self._page(path, headers), AzureEvents).events
        return [
            CloudEvent(each.event_type.lower(), parse_instant(each.not_before))
            for each in found
            if self._name in each.resources and each.event_status in ("Scheduled", "Started")
        ]

    def _of_gcp(self) -> Iterable[CloudEvent]:
        headers, data = {"Metadata-Flavor": "Google"}, "computeMetadata/v1/instance"
        state = self._page(f"{data}/maintenance-event", headers).strip()
        events: list[CloudEvent] = []
        if state == b"MIGRATE_ON_HOST_MAINTENANCE":
            events.append(CloudEvent("migrate"))
        elif state == b"TERMINATE_ON_HOST_MAINTENANCE":
            events.append(CloudEvent("terminate"))
        if self._page(f"{data}/preempted", headers).strip() == b"TRUE":
            events.append(CloudEvent("preempt"))
        ahead = self._page(f"{data}/upcoming-maintenance?alt=json", headers).strip()
        found = parse_answer(ahead, GcpMaintenance) if ahead else GcpMaintenance()
        if found.maintenance_status in ("PENDING", "ONGOING"):
            events.append(CloudEvent("maintenance", parse_instant(found.window_start_time)))
        return events


def _word(page: bytes) -> str:
    """Return a word that goes into a header, or is compared; OSError for what is none."""
    text = page.strip().decode("latin-1")
    if not text or len(text) > 1024 or not text.isascii() or not text.isprintable():
        raise OSError("the metadata service answers strangely: no word")
    return text


def judge(
    facts: tuple[CloudEvent, ...], memory: CloudMemory, at: Moment, *, settings: AgentSettings
) -> Judged[CloudMemory]:
    """Give what will happen: critical where it stops the machine soon, with when that is."""
    earliest: dict[str, CloudEvent] = {}
    for event in facts:
        known = earliest.get(event.kind)
        if known is None or (event.at or 0.0) < (known.at or 0.0):
            earliest[event.kind] = event
    since = {kind: memory.since.get(kind, at.time) for kind in earliest}
    observations: list[Observation] = []
    for kind, event in sorted(earliest.items()):
        due = since[kind] if event.at is None else min(max(event.at, 0.0), _LATEST)
        words = f"{kind} at once" if event.at is None else f"{kind} at {format_time(due)}"
        severity, action = Severity.INFO, Action.NONE
        is_soon = due <= at.time + settings.cloud.lead_seconds
        if kind == _DOUBT:
            severity, action, words = Severity.WARNING, Action.WATCH, "it may be preempted soon"
        elif kind not in _HARMLESS and is_soon:
            severity, action = Severity.CRITICAL, Action.WATCH
        verdict = steady(severity, action, settings.stable_seconds)
        of = identity(CHECK, "machine", (kind,))
        when = due if severity is Severity.CRITICAL else None
        observations.append(observed(of, verdict, f"the cloud announces: {words}", at, due=when))
    return Judged(CloudMemory(since), tuple(observations))


def source(
    host: Host, settings: AgentSettings
) -> SignalSource[tuple[CloudEvent, ...], CloudMemory] | None:
    """Return the source of the cloud's metadata; None where no provider is named."""
    provider = settings.cloud.provider
    if provider is None:
        return None
    return SignalSource(
        SOURCE, (CHECK,), CloudMemory, MetadataService(host, provider).read,
        partial(judge, settings=settings), period_seconds=_PERIOD_SECONDS,
    )  # fmt: skip
