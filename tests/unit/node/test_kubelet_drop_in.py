"""The kubelet's drop-in: written before a reboot alone, taken back from a kubelet that is down."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.node.host_tree import NEXT_BOOT, changed, named
from tests.unit.node.tuned_node import DIRECTORY, PROFILE, Node, at_each_line, line

from fairlead.api.cluster.node_report import Action, AgentAnswer, SettingState, TuningMode
from fairlead.cli.app import run
from fairlead.decide.health.need import urgency_of
from fairlead.decide.health.policy import HealthPolicy
from fairlead.input.errors import CliError
from fairlead.node.registry import load_settings
from fairlead.node.reports.node_report import report_status
from fairlead.node.reports.report import report_of
from fairlead.node.sources.tuning import restart_setter
from fairlead.node.tuning.drop_ins.kubelet import FIELDS, NAME

OTHER_BOOT = "5e5a1d4e-0000-4000-8000-000000000003"
REFUSED = f"{NAME}.refused"
WANTED = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
    "imageMaximumGCAge": "48h", "registryPullQPS": 0,
}  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_counts_from_a_start_asks_for_a_reboot_and_changes_nothing_before(node: Node) -> None:
    looks = node.looks()
    restart, drift = looks.look()
    assert named([drift, restart]) == [
        ("tuning-drift", "tested", ()), ("tuning-restart", "kubelet", ()),
    ]  # fmt: skip
    assert restart.evidence == (
        "counts from the kubelet's next start: imageMaximumGCAge, registryPullQPS"
    )
    assert not node.file.exists()
    status = report_status(
        report_of(looks.watch, looks.host.now()), node_uid="u", now=looks.host.now().time
    )
    (fault,) = (each for each in status.faults if each.check == "tuning-restart")
    urgency = urgency_of(fault)
    assert (fault.action, urgency is not None) == (Action.REBOOT, True)
    assert not HealthPolicy(enabled=True).acts_on(fault.check), "by default it is only recorded"


def test_a_reboot_that_health_asks_for_writes_it_first_and_ends_the_fault(node: Node) -> None:
    assert node.is_asked().answer is AgentAnswer.ACCEPTED
    assert (node.folder / "at-reboot").read_text() == node.file.read_text()
    assert node.body == WANTED, "neither what a person set, nor what opens the kubelet"
    assert "tuning-restart" in node.faults(), "the machine has not started again"
    node.tree.boots(NEXT_BOOT, 900)
    assert node.faults() == ["tuning-drift"]
    node.set()
    assert node.body == WANTED


def test_a_reboot_goes_on_where_the_profile_is_wrong_and_leaves_the_drop_in(node: Node) -> None:
    node.set()
    before = node.file.read_text()
    node.profile.write_text("name: [")
    with pytest.raises(CliError):
        restart_setter(node.tree.host(), node.settings)
    node.profile.write_text(PROFILE)
    setter = restart_setter(node.tree.host(), node.settings)
    node.profile.write_text("name: [")
    with pytest.raises(OSError, match="the profile: "):
        setter(node.request())
    assert node.file.read_text() == before


def test_what_a_person_set_is_overwritten_only_where_the_line_says_so(node: Node) -> None:
    node.profile.write_text(
        "name: tested\nlines:\n" + line("maxParallelImagePulls", "9", overwrite="true")
    )
    node.set()
    assert node.body["maxParallelImagePulls"] == 9
    node.tree.boots(NEXT_BOOT, 900)
    assert node.faults() == []
    node.profile.write_text("name: tested\nlines: []")
    assert node.faults() == ["tuning-restart"], "it goes as it came"
    assert node.file.exists()
    node.set()
    assert not node.file.exists()
    assert node.faults() == []


def test_a_profile_that_is_removed_takes_the_drop_in_away_by_a_reboot_or_at_once_by_hand(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.set()
    node.tree.boots(NEXT_BOOT, 900)
    node.settings = changed(node.settings, "tuning", profile="")
    assert node.faults() == ["tuning-restart"]
    config = node.folder / "agent.yaml"
    config.write_text(
        f"tuning: {{kubeletDirectory: {DIRECTORY}, record: {node.folder}/record}}\n"
        "repairs: {reboots: true, requests: r, pods: p}\n"
    )
    flags = ["--restore", "--root", str(node.tree.root), "--config", str(config)]
    assert run(["agent", "tune", *flags]) == 0
    assert "the drop-in of kubelet is removed" in capsys.readouterr().err
    assert not node.file.exists()
    assert node.faults() == []


@pytest.mark.parametrize("how", ["down", "again and again"])
def test_a_kubelet_that_does_not_run_with_it_has_it_taken_back_and_it_stays_so(
    how: str, node: Node
) -> None:
    node.set()
    node.tree.boots(NEXT_BOOT, 900)
    looks = node.looks()
    for _ in range(2):
        looks.look(300)
        assert node.file.exists()
        if how == "down":
            node.no_kubelet()
        else:
            node.kubelet(began=node.tree.uptime + 290)
    looks.look(300)
    refused = node.file.with_name(REFUSED)
    assert (node.file.exists(), refused.exists()) == (False, True)
    node.kubelet(began=node.tree.uptime - 100)
    (drift,) = node.looks().look()
    assert "the kubelet did not run with it" in drift.evidence
    node.set()
    assert not node.file.exists(), "the same is not tried again"
    node.profile.write_text(PROFILE.replace("48h", "72h"))
    assert "tuning-restart" in node.faults()
    node.set()
    assert node.body["imageMaximumGCAge"] == "72h", "another content is"


def test_a_kubelet_that_starts_with_the_machine_is_not_down(node: Node) -> None:
    node.set()
    node.tree.boots(NEXT_BOOT, 20)
    node.no_kubelet()
    looks = node.looks()
    looks.looks(3, 60)
    assert node.file.exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--config-dir=/other",), "reads /other, and not /etc/kubelet.d"),
        (("-v=2",), "reads no directory, and not /etc/kubelet.d"),
    ],
)
def test_a_kubelet_that_reads_another_directory_gets_nothing(
    flags: tuple[str, ...], why: str, node: Node
) -> None:
    node.kubelet(*flags)
    assert "tuning-restart" not in node.faults()
    done, wrong = node.set()
    assert (done, why in wrong) == ("", True)
    assert not node.file.exists()


@pytest.mark.parametrize("odd", ["link", "directory", "binary", "huge"])
def test_odd_files_in_its_place_are_replaced_or_said(odd: str, node: Node) -> None:
    target = node.folder / "secret"
    target.write_text("kept")
    match odd:
        case "link":
            node.file.symlink_to(target)
        case "directory":
            node.file.mkdir()
        case "binary":
            node.file.write_bytes(bytes(range(256)))
        case _:
            node.file.write_bytes(b"x" * 100_000)
    if odd == "binary":
        node.set()
        assert node.body == WANTED
    else:
        assert node.set()[1].startswith("kubelet: ")
        assert "tuning-restart" not in node.faults()
    assert target.read_text() == "kept"


def test_verify_and_a_profile_without_the_directory_write_nothing(node: Node) -> None:
    for fields in ({"mode": TuningMode.VERIFY}, {"kubelet_directory": ""}):
        node.settings = changed(node.settings, "tuning", **fields)
        node.set()
        assert (node.file.exists(), "tuning-restart" in node.faults()) == (False, False)


def test_settings_that_could_not_be_carried_out_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"tuning: {{kubeletDirectory: {DIRECTORY}}}")
    with pytest.raises(CliError, match=r"it takes repairs\.reboots"):
        load_settings(str(file))


def test_no_field_opens_the_kubelet_or_names_what_it_runs() -> None:
    opens = (
        "auth",
        "tls",
        "port",
        "path",
        "url",
        "endpoint",
        "dir",
        "cgroup",
        "cluster",
        "address",
    )
    assert not [name for name in FIELDS for each in opens if each in name.lower()]


def test_killed_at_any_line_the_kubelet_finds_the_old_file_or_the_new_one(node: Node) -> None:
    folder, lines = node.file.parent, 0
    left: set[tuple[str, ...]] = set()

    def texts() -> tuple[str, ...]:
        return tuple(path.read_text() for path in sorted(folder.glob("*.conf")))

    after = list[tuple[str, ...]]()
    for profile in (PROFILE, PROFILE.replace("48h", "72h"), "name: tested"):
        node.profile.write_text(profile)
        lines += at_each_line(node.set, lambda: left.add(texts()))
        after.append(texts())
    assert lines > 100
    assert left == set(after)
    assert len(left) == 3


@pytest.mark.parametrize("by_health", [True, False])
def test_what_is_taken_back_is_what_it_was_earlier_and_the_next_reboot_keeps_it(
    node: Node, *, by_health: bool
) -> None:
    node.set()
    earlier = node.file.read_text()
    node.tree.boots(NEXT_BOOT, 900)
    node.profile.write_text(PROFILE.replace("48h", "72h"))
    node.set()
    assert node.body["imageMaximumGCAge"] == "72h"
    node.tree.boots(OTHER_BOOT, 900)
    node.no_kubelet()
    looks = node.looks()
    for _ in range(0 if by_health else 3):
        looks.look(300)
    if by_health:
        request = node.request("kubelet", boot_id=OTHER_BOOT, takes_back=True)
        assert restart_setter(node.host(), node.settings)(request) == ("", "")
    assert node.file.read_text() == earlier
    node.kubelet()
    assert "tuning-restart" not in node.faults()
    node.set()
    assert node.file.read_text() == earlier
    assert node.differences()["KubeletConfig imageMaximumGCAge"].state is SettingState.REFUSED
    request = node.request("kubelet", boot_id=OTHER_BOOT, takes_back=True)
    assert restart_setter(node.host(), node.settings)(request) == ("", "")
    assert not node.file.exists(), "it is no earlier one of itself"
