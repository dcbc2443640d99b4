"""What the metadata services of clouds say, of servers that the test plays, and what follows."""

from __future__ import annotations

import json
from collections.abc import Generator
from email.utils import formatdate
from pathlib import Path

import pytest
from tests.unit.node.host_tree import EPOCH, HostTree, Looks, changed, named
from tests.unit.node.metadata_server import Answers, serving

from fairlead.api.values.times import format_time
from fairlead.model.health.faults import Action, Ending, Fault, Severity
from fairlead.node.exports import fetch_page
from fairlead.node.registry import sources
from fairlead.node.reports.node_report import report_status
from fairlead.node.reports.report import report_of
from fairlead.node.running.probe_settings import CloudProvider
from fairlead.node.settings import AgentSettings
from fairlead.node.source import SourceState
from fairlead.node.sources import cloud

TOKEN = "/latest/api/token"
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
STATE, PREEMPTED, UPCOMING = (
    f"/computeMetadata/v1/instance/{name}"
    for name in ("maintenance-event", "preempted", "upcoming-maintenance?alt=json")
)
#: The machine's first look is an hour after its start.
NOW = EPOCH + 3600


def http_date(instant: float) -> str:
    """Return an instant as EC2 and Azure write it."""
    return formatdate(instant, usegmt=True)


class CloudMachine:
    """A machine of a cloud."""

    def __init__(self, root: Path, answers: Answers, url: str, provider: CloudProvider) -> None:
        def fetch(asked: str, **more: object) -> bytes:
            assert asked.startswith(f"{cloud.ADDRESS}/"), "no other address is asked"
            return fetch_page(asked.replace(cloud.ADDRESS, url), **more)  # type: ignore[arg-type]

        self.tree, self.answers, self.pages = HostTree(root), answers, answers.pages
        self.looks = Looks(self.tree, cloud.SOURCE, settings=settings(provider))
        service = cloud.MetadataService(self.looks.host, provider, fetch)
        (source,) = self.looks.sources
        object.__setattr__(source, "read", service.read)

    def now(self) -> float:
        return self.tree.now()

    def look(self, after: float = 5) -> tuple[Fault, ...]:
        return self.looks.look(after)


def settings(provider: CloudProvider | None) -> AgentSettings:
    return changed(AgentSettings(), "cloud", provider=provider)


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[CloudMachine]:
    with serving() as (answers, url):
        match request.param:
            case CloudProvider.AWS:
                answers.pages[TOKEN] = b"AQAAAExample=="
            case CloudProvider.AZURE:
                answers.headers = {"Metadata": "true"}
                answers.pages[NAME] = b"gpu-vmss_3"
                answers.pages[EVENTS] = b'{"DocumentIncarnation":0,"Events":[]}'
            case _:
                answers.headers = {"Metadata-Flavor": "Google"}
                answers.pages |= {STATE: b"NONE", PREEMPTED: b"FALSE", UPCOMING: b"{}\n"}
        yield CloudMachine(tmp_path, answers, url, request.param)


of_aws, of_azure, of_gcp = (
    pytest.mark.parametrize("machine", [each], indirect=True) for each in CloudProvider
)


def said(faults: tuple[Fault, ...]) -> list[tuple[str, Severity, float | None]]:
    assert {(each.identity.check, each.identity.component) for each in faults} <= {
        (cloud.CHECK, "machine")
    }
    return [(each.identity.codes[0], each.verdict.severity, each.due) for each in faults]


def scheduled(code: str, at: float, state: str = "active") -> bytes:
    return json.dumps([{
        "NotBefore": http_date(at).partition(", ")[2], "Code": code,
        "Description": "scheduled reboot", "EventId": "instance-event-0d59937288b749b32",
        "NotAfter": http_date(at + 7200).partition(", ")[2], "State": state,
    }]).encode()  # fmt: skip


@of_aws
def test_ec2_is_asked_with_a_token_and_tells_of_nothing(machine: CloudMachine) -> None:
    machine.answers.headers = {}
    for _ in range(3):
        assert machine.look() == ()
    assert machine.looks.health().state is SourceState.OK
    asked = [path for method, path in machine.answers.asked if method == "PUT"]
    assert asked == [TOKEN], "one token serves for an hour"
    machine.look(3400)
    assert [path for method, path in machine.answers.asked if method == "PUT"] == [TOKEN] * 2


@of_aws
def test_an_event_of_ec2_is_noted_days_ahead_and_critical_once_it_is_near(
    machine: CloudMachine,
) -> None:
    at = NOW + 7200
    machine.pages[SCHEDULED] = scheduled("system-reboot", at)
    assert said(machine.look()) == [("system-reboot", Severity.INFO, None)]
    assert said(machine.look(6000)) == [("system-reboot", Severity.INFO, None)]
    (fault,) = machine.look(400)
    assert said((fault,)) == [("system-reboot", Severity.CRITICAL, at)]
    assert fault.evidence == f"the cloud announces: system-reboot at {format_time(at)}"
    machine.pages[SCHEDULED] = scheduled("system-reboot", at, state="completed")
    for _ in range(14):
        machine.look()
    assert machine.looks.watch.faults == ()
    assert machine.looks.ended[-1].ending is Ending.STABLE_TIME


@of_aws
def test_a_spot_machine_of_ec2_is_told_two_minutes_before(machine: CloudMachine) -> None:
    machine.pages[REBALANCE] = b'{"noticeTime":"2026-09-01T10:00:00Z"}'
    (doubt,) = machine.look()
    assert (doubt.verdict.severity, doubt.verdict.action) == (Severity.WARNING, Action.WATCH)
    at = machine.now() + 125
    machine.pages[SPOT] = json.dumps({"action": "terminate", "time": format_time(at)}).encode()
    assert said(machine.look())[0] == ("spot-terminate", Severity.CRITICAL, float(int(at)))


def azure(*events: tuple[str, str, str], resources: tuple[str, ...] = ("gpu-vmss_3",)) -> bytes:
    """Return Azure's document of events of (type, status, not before)."""
    return json.dumps({"DocumentIncarnation": 7, "Events": [
        {"EventId": "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E", "EventStatus": status,
         "EventType": kind, "ResourceType": "VirtualMachine", "Resources": resources,
         "NotBefore": at, "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}
        for kind, status, at in events]}).encode()  # fmt: skip


@of_azure
def test_events_of_azure_count_for_this_machine_alone_and_are_never_approved(
    machine: CloudMachine,
) -> None:
    at = NOW + 600
    machine.pages[EVENTS] = azure(
        ("Reboot", "Scheduled", http_date(at)), resources=("gpu-vmss_1", "gpu-vmss_33")
    )
    assert machine.look() == ()
    machine.pages[EVENTS] = azure(
        ("Redeploy", "Scheduled", http_date(at)), ("Freeze", "Scheduled", http_date(at))
    )
    found = said(machine.look())
    assert found == [("redeploy", Severity.CRITICAL, at), ("freeze", Severity.INFO, None)]
    assert {method for method, _ in machine.answers.asked} == {"GET"}


@of_azure
def test_an_event_that_has_begun_is_due_at_its_first_sight_and_stays_so(
    machine: CloudMachine,
) -> None:
    machine.pages[EVENTS] = azure(("Preempt", "Started", ""))
    (first,) = machine.look()
    assert said((first,)) == [("preempt", Severity.CRITICAL, machine.now())]
    (later,) = machine.look(60)
    assert later.due == first.due, "what changes with each look would be written with each"


@of_gcp
def test_compute_engine_tells_of_a_stop_60_seconds_before_and_of_windows_ahead(
    machine: CloudMachine,
) -> None:
    assert machine.look() == ()
    machine.pages[STATE] = b"MIGRATE_ON_HOST_MAINTENANCE\n"
    assert said(machine.look()) == [("migrate", Severity.INFO, None)]
    machine.pages[STATE] = b"TERMINATE_ON_HOST_MAINTENANCE"
    machine.pages[PREEMPTED] = b"TRUE"
    machine.pages[UPCOMING] = json.dumps({
        "can_reschedule": "true", "latest_window_start_time": "2030-12-01T19:00:01Z",
        "maintenance_reasons": ["PLANNED_UPDATE"], "maintenance_status": "PENDING",
        "type": "SCHEDULED", "window_end_time": "2030-12-01T21:00:01Z",
        "window_start_time": "2030-12-01T19:00:01Z",
    }).encode()  # fmt: skip
    found = {kind: severity for kind, severity, _ in said(machine.look())}
    assert found == {"terminate": Severity.CRITICAL, "preempt": Severity.CRITICAL,
                     "migrate": Severity.INFO, "maintenance": Severity.INFO}  # fmt: skip


@pytest.mark.parametrize("machine", list(CloudProvider), indirect=True)
def test_what_a_stranger_answers_is_blind_and_ends_nothing(machine: CloudMachine) -> None:
    soon = machine.now() + 300
    machine.pages[SCHEDULED] = scheduled("instance-stop", soon)
    machine.pages[EVENTS] = azure(("Reboot", "Scheduled", http_date(soon)))
    machine.pages[STATE] = b"TERMINATE_ON_HOST_MAINTENANCE"
    before = machine.look()
    assert [each.verdict.severity for each in before] == [Severity.CRITICAL]
    good = dict(machine.pages)
    late = b'{"maintenance_status":"PENDING","window_start_time":"tomorrow"}'
    of_each = (b'[{"Code":"a","NotBefore":"1"}]', azure(("Reboot", "Scheduled", "tomorrow")), late)
    for bad in (b"x" * (1 << 17), b"{", b'[{"Code":7}]', b"[" * 5000, of_each):
        pages = bad if isinstance(bad, tuple) else (bad,) * 3
        machine.pages |= dict(zip((SCHEDULED, EVENTS, UPCOMING), pages, strict=True))
        machine.look()
        assert named(machine.looks.watch.faults) == named(before)
        assert machine.looks.health().state is SourceState.BLIND, pages
    machine.pages.update(good)
    machine.answers.status = 503
    machine.look()
    assert machine.looks.health().state is SourceState.BLIND
    machine.answers.status = 0
    machine.looks.look(5)
    assert machine.looks.health().state is SourceState.OK


@of_aws
def test_times_and_words_of_a_stranger_are_bounded(machine: CloudMachine) -> None:
    many = [{"Code": f"c{n}" + "x" * 500, "NotBefore": "0001-01-01T00:00:00Z", "State": ""}
            for n in range(90)]  # fmt: skip
    machine.pages[SCHEDULED] = json.dumps(many).encode()
    found = machine.look()
    assert len(found) == 64
    assert all(len(each.identity.codes[0]) <= 64 and each.due == 0.0 for each in found)
    machine.pages[SCHEDULED] = b'[{"Code":"a","NotBefore":"9999-12-31T23:59:59-14:00"}]'
    machine.looks.look(5)
    machine.pages[TOKEN] = b"evil\r\nX-Header: 1"
    machine.look(3600)
    assert machine.looks.health().state is SourceState.BLIND
    assert "no word" in machine.looks.health().why


def test_no_service_is_asked_unless_a_provider_is_named_and_none_there_is_skipped(
    tmp_path: Path,
) -> None:
    assert cloud.SOURCE not in {
        each.name for each in sources(HostTree(tmp_path / "a").host(), settings(None))
    }
    with serving() as (answers, url):
        machine = CloudMachine(tmp_path / "b", answers, url, CloudProvider.AWS)
    assert machine.look() == ()
    assert machine.looks.health().state is SourceState.SKIPPED


@of_azure
def test_when_the_machine_stops_is_in_its_report(machine: CloudMachine) -> None:
    at = NOW + 600
    machine.pages[EVENTS] = azure(("Reboot", "Scheduled", http_date(at)))
    machine.look()
    report = report_of(machine.looks.watch, machine.looks.host.now())
    status = report_status(report, node_uid="u", now=machine.now())
    assert [each.due_time for each in status.faults] == [format_time(at)]
