"""gpud and DCGM's exporter as sources: what they say, and what a stranger on their port can do."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.host_tree import HostTree, Looks, changed, named
from tests.unit.node.metadata_server import Answers, serving

from fairlead.model.health.faults import Action, Ending, Severity
from fairlead.node.registry import conflicts, sources
from fairlead.node.settings import AgentSettings
from fairlead.node.source import SourceState
from fairlead.node.sources import dcgm, gpud
from fairlead.webhook.certificates import Times, make

SETTINGS = AgentSettings()
XIDS = "accelerator-nvidia-error-xid"
#: As `curl -kL https://localhost:15132/v1/states` prints it (gpud, docs/INTEGRATION.md).
STATES = Path(__file__).parent / "data" / "gpud-states.json"
#: As `curl http://127.0.0.1:9400/metrics` prints it (dcgm-exporter 4, two GPUs).
METRICS = Path(__file__).parent / "data" / "dcgm-metrics.txt"
GPU, OTHER = "0000:53:00", "0000:64:00"


class Monitored:
    """A machine beside a monitor that answers what the test gives it."""

    def __init__(self, root: Path, answers: Answers, url: str, source: str) -> None:
        self.tree, self._answers, self._path = HostTree(root), answers, f"/{source}"
        settings = changed(SETTINGS, "monitors", **{source: f"{url}/{source}"})
        self.looks = Looks(self.tree, source, settings=changed(settings, "nvml", gpus=2))

    def says(self, page: str) -> None:
        self._answers.pages[self._path] = page.encode()


@pytest.fixture
def monitored(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    with serving() as (answers, url):
        yield Monitored(tmp_path, answers, url, request.param)


of_gpud = pytest.mark.parametrize("monitored", [gpud.SOURCE], indirect=True)
of_dcgm = pytest.mark.parametrize("monitored", [dcgm.SOURCE], indirect=True)


def states(health: str, *actions: str, reason: str = "why") -> str:
    """Return gpud's answer with one component that is so."""
    found = json.loads(STATES.read_text())
    (state,) = next(each for each in found if each["component"] == XIDS)["states"]
    state |= {"health": health, "reason": reason}
    if actions:
        state["suggested_actions"] = {"description": "d", "repair_actions": list(actions)}
    return json.dumps(found)


@of_gpud
def test_a_component_that_gpud_calls_unhealthy_is_a_fault_until_it_is_healthy_again(
    monitored: Monitored,
) -> None:
    monitored.says(STATES.read_text())
    assert monitored.looks.look() == ()
    monitored.says(states("Unhealthy", "REBOOT_SYSTEM", reason="XID 79 detected on GPU-1"))
    (fault,) = monitored.looks.look(60)
    assert named([fault]) == [(gpud.CHECK, XIDS, ())]
    assert (fault.verdict.severity, fault.verdict.action) == (Severity.CRITICAL, Action.REBOOT)
    assert fault.evidence == "Unhealthy: XID 79 detected on GPU-1"
    monitored.says(states("Initializing"))
    assert monitored.looks.looks(3, 60), "one that begins again is not good yet"
    monitored.says(states("Healthy"))
    assert monitored.looks.looks(3, 60) == ()
    assert monitored.looks.ended[-1].ending is Ending.STABLE_TIME


@pytest.mark.parametrize(
    ("health", "advice", "severity", "action"),
    [
        ("Unhealthy", (), Severity.WARNING, Action.WATCH),
        ("Unhealthy", ("IGNORE_NO_ACTION_REQUIRED",), Severity.INFO, Action.NONE),
        ("Unhealthy", ("CHECK_USER_APP_AND_GPU",), Severity.WARNING, Action.WATCH),
        ("Unhealthy", ("REBOOT_SYSTEM", "HARDWARE_INSPECTION"), Severity.CRITICAL,
         Action.ASK_PERSON),
        ("Unhealthy", ("A_WORD_OF_LATER",), Severity.CRITICAL, Action.ASK_PERSON),
        ("Degraded", ("REBOOT_SYSTEM",), Severity.WARNING, Action.REBOOT),
        ("Degraded", (), Severity.WARNING, Action.WATCH),
    ],
)  # fmt: skip
@of_gpud
def test_gpuds_advice_is_the_action(
    monitored: Monitored, health: str, advice: tuple[str, ...], severity: Severity, action: Action
) -> None:
    monitored.says(states(health, *advice))
    (fault,) = monitored.looks.look()
    assert (fault.verdict.severity, fault.verdict.action) == (severity, action)


@pytest.mark.parametrize("page", ["", "{}", "[1]", '[{"component": 7}]', "[" * 9000, "\0",
                                  json.dumps([{"component": "c", "states": None}] * 300),
                                  "x" * (gpud.PAGE_BYTES_MAX + 1)])  # fmt: skip
@of_gpud
def test_what_gpud_never_says_is_blind_and_ends_no_fault(monitored: Monitored, page: str) -> None:
    monitored.says(states("Unhealthy", "REBOOT_SYSTEM"))
    before = monitored.looks.look()
    monitored.says(page)
    assert monitored.looks.looks(3, 60) == before
    assert monitored.looks.health().state is SourceState.BLIND


@of_gpud
def test_a_state_of_another_version_is_not_known_and_texts_are_bounded(
    monitored: Monitored,
) -> None:
    monitored.says(states("Excellent"))
    assert monitored.looks.look() == ()
    assert monitored.looks.health().unreadable == (f"{XIDS}: a state is not known",)
    monitored.says(states("Unhealthy", reason="x" * 100_000))
    (fault,) = monitored.looks.look(60)
    assert len(fault.evidence) == 240


@pytest.mark.parametrize("source", [gpud.SOURCE, dcgm.SOURCE])
def test_where_no_monitor_has_ever_answered_it_is_skipped_and_one_that_ended_is_blind(
    tmp_path: Path, source: str
) -> None:
    with serving() as (answers, url):
        machine = Monitored(tmp_path, answers, url, source)
    assert machine.looks.look() == ()
    health = machine.looks.health()
    assert (health.state, health.why) == (SourceState.SKIPPED, f"nothing answers at {url}/{source}")
    with serving() as (answers, url):
        machine = Monitored(tmp_path, answers, url, source)
        machine.says("[]" if source == gpud.SOURCE else METRICS.read_text())
        machine.looks.look()
        assert machine.looks.health().state is SourceState.OK
    machine.looks.look(60)
    assert machine.looks.health().state is SourceState.BLIND


def test_gpud_is_read_by_https_with_the_certificate_that_it_made_for_itself(tmp_path: Path) -> None:
    _, pair = make(["localhost"], now=time.time(), times=Times(), name="gpud")
    file = tmp_path / "pair.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with serving(context) as (answers, url):
        machine = Monitored(tmp_path / "host", answers, url, gpud.SOURCE)
        machine.says(states("Unhealthy", "REBOOT_SYSTEM"))
        assert named(machine.looks.look()) == [(gpud.CHECK, XIDS, ())]


def test_monitors_are_read_only_where_they_are_named_on_the_loopback(tmp_path: Path) -> None:
    host = HostTree(tmp_path).host()
    assert not {gpud.SOURCE, dcgm.SOURCE} & {each.name for each in sources(host, SETTINGS)}
    both = changed(SETTINGS, "monitors", gpud="https://127.0.0.1:1/", dcgm="http://[::1]:1/")
    assert {gpud.SOURCE, dcgm.SOURCE} <= {each.name for each in sources(host, both)}
    assert not list(conflicts(both))
    far = changed(SETTINGS, "monitors", gpud="https://10.0.0.1:15132/v1/states", dcgm="file:///x")
    assert [path for path, _ in conflicts(far)] == ["monitors.gpud", "monitors.dcgm"]


# DCGM's exporter


def page(change: Callable[[str], str] = str) -> str:
    return change(METRICS.read_text())


def sample(name: str, value: object, *, gpu: int = 0, more: str = "") -> str:
    """Return a line of the exporter's page for a GPU."""
    address = ("00000000:53:00.0", "00000000:64:00.0")[gpu]
    return (
        f'{name}{{gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="{address}",device="nvidia{gpu}",'
        f'modelName="NVIDIA H100 80GB HBM3",Hostname="n"{more}}} {value}\n'
    )


def with_value(name: str, value: object, *, gpu: int = 0) -> str:
    """Return the page with another value of a metric of a GPU."""
    lines = METRICS.read_text().splitlines(keepends=True)
    kept = [e for e in lines if not e.startswith(f'{name}{{gpu="{gpu}"')]
    assert len(kept) < len(lines), name
    return "".join(kept) + sample(name, value, gpu=gpu)


@of_dcgm
def test_good_gpus_have_no_fault_by_dcgms_exporter(monitored: Monitored) -> None:
    monitored.says(page())
    assert monitored.looks.looks(4, 60) == ()
    health = monitored.looks.health()
    assert (health.state, health.unreadable) == (SourceState.OK, ())


@pytest.mark.parametrize(
    ("metric", "value", "check", "action"),
    [
        ("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", 1, "dcgm-recovery", Action.RESET_GPU),
        ("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", 2, "dcgm-recovery", Action.REBOOT),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 3, "dcgm-ecc", Action.RESET_GPU),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "dcgm-rows", Action.REPLACE),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "dcgm-rows", Action.RESET_GPU),
        ("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", 2, "dcgm-nvlink",
         Action.RESET_GPU),
    ],
)  # fmt: skip
@of_dcgm
def test_values_of_the_exporter_are_judged_as_those_of_the_driver(
    monitored: Monitored, metric: str, value: int, check: str, action: Action
) -> None:
    monitored.says(with_value(metric, value, gpu=1))
    (fault,) = monitored.looks.look()
    assert (fault.identity.check, fault.identity.component) == (check, OTHER)
    assert fault.verdict.action is action
    monitored.says(page())
    assert monitored.looks.looks(3, 60) == ()


@of_dcgm
def test_clocks_that_heat_holds_down_count_after_three_looks_and_a_power_cap_never(
    monitored: Monitored,
) -> None:
    monitored.says(with_value("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x4))
    assert monitored.looks.looks(5, 60) == ()
    monitored.says(with_value("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x40))
    assert monitored.looks.looks(2, 60) == ()
    (fault,) = monitored.looks.look(60)
    assert (fault.identity.check, fault.verdict.action) == ("dcgm-slowdown", Action.WATCH)


@of_dcgm
def test_the_last_xid_counts_when_it_changes_and_its_old_value_never(monitored: Monitored) -> None:
    monitored.says(with_value("DCGM_FI_DEV_XID_ERRORS", 48))
    assert monitored.looks.looks(3, 60) == (), "it may be of days ago: the gauge never falls"
    monitored.says(with_value("DCGM_FI_DEV_XID_ERRORS", 79))
    (fault,) = monitored.looks.look(60)
    assert named([fault]) == [(dcgm.XID, GPU, ("79",))]
    monitored.looks.looks(5, 60)
    monitored.looks.restart()
    (fault,) = monitored.looks.looks(2, 60)
    assert fault.count == 1, "what stands there is one event, also for the next process"


@of_dcgm
def test_a_second_equal_xid_counts_where_the_exporter_counts_them(monitored: Monitored) -> None:
    def counted(count: int) -> str:
        more = f',window_size_in_ms="300000",xid="{79 if count else 0}"'
        return page() + sample("DCGM_EXP_XID_ERRORS_COUNT", count, more=more)

    for count, seen in ((0, []), (1, [1]), (1, [1]), (2, [2]), (1, [2]), (2, [3])):
        monitored.says(counted(count))
        assert [each.count for each in monitored.looks.look(60)] == seen


@of_dcgm
def test_xid_45_of_the_exporter_follows_another_code_and_asks_for_nothing(
    monitored: Monitored,
) -> None:
    monitored.says(page())
    monitored.looks.look()
    monitored.says(with_value("DCGM_FI_DEV_XID_ERRORS", 45))
    (fault,) = monitored.looks.look(60)
    assert (fault.verdict.severity, fault.verdict.action) == (Severity.INFO, Action.NONE)


@of_dcgm
def test_a_field_that_is_blank_after_xid_31_is_unknown_and_not_0(monitored: Monitored) -> None:
    monitored.says(with_value("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 3))
    before = monitored.looks.look()
    monitored.says(with_value("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "NaN"))
    assert monitored.looks.looks(3, 60) == before
    skipped = {each.check: each.why for each in monitored.looks.watch.skipped()}
    assert skipped == {"dcgm-ecc": "a GPU does not say it"}


@of_dcgm
def test_a_gpu_that_is_missing_from_the_page_is_one_where_so_many_are_expected(
    monitored: Monitored,
) -> None:
    lines = METRICS.read_text().splitlines(keepends=True)
    monitored.says("".join(each for each in lines if 'gpu="1"' not in each))
    (fault,) = monitored.looks.look()
    assert (fault.identity.check, fault.evidence) == ("dcgm-count", "1 of 2 GPUs")


@pytest.mark.parametrize("page", [
    'DCGM_FI_DEV_XID_ERRORS{gpu="0"\n', "x" * (dcgm.PAGE_BYTES_MAX + 1),
    "".join(f'DCGM_FI_DEV_XID_ERRORS{{gpu="{n}"}} 0\n' for n in range(100)),
    'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 1\n' * 5000,
])  # fmt: skip
@of_dcgm
def test_a_page_of_a_stranger_is_blind(monitored: Monitored, page: str) -> None:
    monitored.says(page)
    assert monitored.looks.look() == ()
    assert monitored.looks.health().state is SourceState.BLIND


@of_dcgm
def test_values_that_no_driver_has_are_left_out(monitored: Monitored) -> None:
    codes = "".join(
        sample("DCGM_EXP_XID_ERRORS_COUNT", 1, more=f',xid="{code}"') for code in range(1, 200)
    )
    strange = "".join(
        f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{labels}}} {value}\n"
        for labels, value in (('gpu="x"', 1), ('gpu="0"', -1), ('gpu="0"', 1e300), ("", 1))
    )
    monitored.says(page() + codes + strange)
    assert len(monitored.looks.look()) == dcgm.CODES_MAX
