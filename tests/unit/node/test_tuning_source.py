"""The agent and a profile: one fault for drift, what is set, what is restored, what stops it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.node.host_tree import BOOT, HostTree, Looks, changed, named

from fairlead.api.cluster.node_report import ReportedSetting, SettingState, TuningMode
from fairlead.decide.health.need import urgency_of
from fairlead.input.errors import CliError
from fairlead.model.health.faults import Severity
from fairlead.node.registry import without_changes
from fairlead.node.reports.node_report import report_status
from fairlead.node.reports.report import Report, report_of
from fairlead.node.settings import AgentSettings
from fairlead.node.source import SourceState

SOMAXCONN, PID_MAX = "proc/sys/net/core/somaxconn", "proc/sys/kernel/pid_max"
PROFILE = """
name: tested
lines:
- {kind: Sysctl, name: net.core.somaxconn, atLeast: 2 * nodes, reason: r, source: s}
- {kind: Sysctl, name: kernel.pid_max, value: 65536, reason: r, source: s}
"""


class Tuned:
    """A machine, a profile in a file, and an agent's looks."""

    def __init__(self, folder: Path) -> None:
        self.tree = HostTree(folder / "host")
        self.tree.write(SOMAXCONN, 4096)
        self.tree.write(PID_MAX, 65536)
        self.file, self.record = folder / "profile.yaml", folder / "record.json"
        self.file.write_text(PROFILE)

    def settings(self, mode: TuningMode = TuningMode.VERIFY, **fields: object) -> AgentSettings:
        given = {"profile": str(self.file), "mode": mode, "facts": {"nodes": 5000},
                 "record": str(self.record)} | fields  # fmt: skip
        return changed(AgentSettings(), "tuning", **given)

    def looks(self, mode: TuningMode = TuningMode.VERIFY, **fields: object) -> Looks:
        return Looks(self.tree, "tuning", settings=self.settings(mode, **fields))

    @property
    def somaxconn(self) -> int:
        return self.tree.host().number(SOMAXCONN)


@pytest.fixture
def tuned(tmp_path: Path) -> Tuned:
    return Tuned(tmp_path)


def reported(looks: Looks) -> Report:
    return report_of(looks.watch, looks.host.now())


def test_drift_is_one_fault_that_lists_what_differs_until_it_does_not(tuned: Tuned) -> None:
    tuned.tree.write(PID_MAX, 32768)
    looks = tuned.looks()
    (fault,) = looks.look()
    assert named([fault]) == [("tuning-drift", "tested", ())]
    assert fault.evidence == ("2 of 2: net.core.somaxconn is 4096, not at least 10000; "
                              "kernel.pid_max is 32768, not 65536")  # fmt: skip
    tuned.tree.write(PID_MAX, 65536)
    (fault,) = looks.look(300)
    assert fault.count == 1
    assert fault.evidence.startswith("1 of 2: net.core")
    tuned.tree.write(SOMAXCONN, 10_000)
    assert looks.looks(2, 300) == ()


def test_drift_that_a_person_makes_is_found_at_the_next_look_within_ten_minutes(
    tuned: Tuned,
) -> None:
    looks = tuned.looks(TuningMode.APPLY)
    assert looks.look() == ()
    assert looks.sources[0].period_seconds <= 600
    tuned.tree.write(SOMAXCONN, 128)
    (fault,) = looks.look(looks.sources[0].period_seconds)
    assert "net.core.somaxconn is 128" in fault.evidence
    assert tuned.somaxconn == 128, "a person's"
    (found,) = reported(looks).tuning.differences  # type: ignore[union-attr]
    assert found.state.value == "SetByHand"


def test_the_fault_makes_no_node_sick_and_asks_for_nothing(tuned: Tuned) -> None:
    looks = tuned.looks()
    looks.look()
    assert looks.watch.is_healthy
    status = report_status(reported(looks), node_uid="u", now=looks.host.now().time)
    (fault,) = status.faults
    assert fault.severity is Severity.INFO
    assert urgency_of(fault) is None, "whatever health acts on"
    assert status.tuning is not None
    assert status.tuning.facts["nodes"] == 5000
    assert status.tuning.values == {"net.core.somaxconn": "4096", "kernel.pid_max": "65536"}
    (difference,) = status.tuning.differences
    assert difference == ReportedSetting(
        "net.core.somaxconn", SettingState.DIFFERS, "4096", "at least 10000",
        "2 * nodes with nodes = 5,000",
    )  # fmt: skip
    assert (
        Looks(tuned.tree, "tuning", settings=tuned.settings(severity=Severity.WARNING))
        .look()[0]
        .is_sick
    )


def test_verify_changes_nothing_and_apply_sets(tuned: Tuned) -> None:
    tuned.looks().look()
    assert (tuned.somaxconn, tuned.record.exists()) == (4096, False)
    looks = tuned.looks(TuningMode.APPLY)
    assert looks.look() == ()
    assert tuned.somaxconn == 10_000
    report = reported(looks).tuning
    assert report is not None
    assert (report.profile, report.mode, report.differences) == ("tested", TuningMode.APPLY, ())


def test_one_look_of_a_person_changes_nothing(tuned: Tuned) -> None:
    settings = without_changes(tuned.settings(TuningMode.APPLY))
    assert Looks(tuned.tree, "tuning", settings=settings).look() != ()
    assert tuned.somaxconn == 4096
    tuned.looks(TuningMode.APPLY).look()
    assert "tuning" in without_changes(tuned.settings(profile="")).disabled


@pytest.mark.parametrize("mode", TuningMode)
def test_without_the_profile_the_old_values_are_back(tuned: Tuned, mode: TuningMode) -> None:
    tuned.looks(TuningMode.APPLY).look()
    looks = tuned.looks(mode, profile="")
    assert looks.look() == ()
    assert tuned.somaxconn == 4096
    assert looks.health().why == "tuning.profile is not set"
    assert reported(looks).tuning is None


def test_verify_leaves_what_apply_had_set(tuned: Tuned) -> None:
    tuned.looks(TuningMode.APPLY).look()
    tuned.looks(TuningMode.VERIFY).look()
    assert tuned.somaxconn == 10_000


def test_without_a_profile_and_a_record_there_is_no_source(tuned: Tuned) -> None:
    assert tuned.looks(profile="").sources == ()


def test_a_profile_that_changes_is_read_again_and_one_that_is_wrong_changes_nothing(
    tuned: Tuned,
) -> None:
    looks = tuned.looks(TuningMode.APPLY)
    looks.look()
    tuned.file.write_text("name: tested\nlines: [what]")
    looks.look(300)
    assert looks.health().state is SourceState.BLIND
    assert "profile.yaml:2" in looks.health().why
    tuned.file.unlink()
    looks.look(300)
    assert "cannot be read" in looks.health().why
    assert tuned.somaxconn == 10_000, "a file that is gone is no wish"
    tuned.file.write_text(PROFILE.replace("2 * nodes", "3 * nodes"))
    looks.look(300)
    assert (looks.health().state, tuned.somaxconn) == (SourceState.OK, 15_000)
    tuned.file.write_text("name: tested")
    looks.look(300)
    assert tuned.somaxconn == 4096


def test_a_profile_that_is_wrong_at_the_start_is_refused(tuned: Tuned) -> None:
    tuned.file.write_text("lines: []")
    with pytest.raises(CliError, match="name is missing"):
        tuned.looks()


def test_a_record_that_cannot_be_used_is_told_and_nothing_is_set(tuned: Tuned) -> None:
    tuned.record.write_text("what")
    looks = tuned.looks(TuningMode.APPLY)
    looks.look()
    assert looks.health().state is SourceState.BLIND
    assert "is no record of settings" in looks.health().why
    assert tuned.somaxconn == 4096


def test_what_cannot_be_read_leaves_the_rest_judged_and_all_of_it_blind(tuned: Tuned) -> None:
    tuned.tree.write(SOMAXCONN, "what")
    tuned.tree.write(PID_MAX, 1)
    looks = tuned.looks()
    (fault,) = looks.look()
    assert fault.evidence == "1 of 2: kernel.pid_max is 1, not 65536"
    assert looks.health().unreadable == ("net.core.somaxconn: 'what' is no number",)
    tuned.tree.remove(PID_MAX)
    (tuned.tree.root / PID_MAX).mkdir()
    looks.looks(3, 300)
    assert looks.health().state is SourceState.BLIND
    assert looks.watch.faults, "what is not seen is not over"


def test_lines_whose_facts_are_unknown_are_in_the_report(tuned: Tuned) -> None:
    looks = tuned.looks(facts={})
    assert looks.look() == ()
    report = reported(looks).tuning
    assert report is not None
    assert report.not_judged == ("net.core.somaxconn: not known: nodes",)


def held(tuned: Tuned) -> Looks:
    """Looks of an agent that sets what it has accepted."""
    (tuned.tree.root / "var/lib").mkdir(parents=True, exist_ok=True)
    return tuned.looks(TuningMode.APPLY, accepted_file="/var/lib/accepted.json")


def test_a_new_machine_accepts_its_profile_and_a_later_value_waits_for_an_empty_node(
    tuned: Tuned,
) -> None:
    tuned.tree.boots(BOOT, 100)
    assert held(tuned).look() == ()
    assert tuned.somaxconn == 10_000
    tuned.file.write_text(PROFILE.replace("2 * nodes", "3 * nodes"))
    faults = {each.identity.check: each for each in held(tuned).look()}
    assert faults["tuning-restart"].evidence == (
        "counts from the next time that the node is empty: net.core.somaxconn"
    )
    assert "net.core.somaxconn is 10000, not at least 15000" in faults["tuning-drift"].evidence
    assert tuned.somaxconn == 10_000
    tuned.file.write_text("name: tested")
    assert held(tuned).look() == ()
    assert tuned.somaxconn == 4096, "what is no longer wanted goes at once"


def test_a_machine_that_runs_already_accepts_nothing_by_itself(tuned: Tuned) -> None:
    tuned.tree.boots(BOOT, 901)
    assert [each.identity.check for each in held(tuned).look()] == [
        "tuning-restart", "tuning-drift",
    ]  # fmt: skip
    assert tuned.somaxconn == 4096


def test_no_node_is_emptied_for_what_a_person_s_file_sets(tuned: Tuned) -> None:
    tuned.tree.write("etc/sysctl.d/90-own.conf", "net.core.somaxconn = 4096")
    tuned.tree.boots(BOOT, 901)
    assert [each.identity.check for each in held(tuned).look()] == ["tuning-drift"]


def test_an_accepted_file_that_cannot_be_read_sets_nothing_and_says_so(tuned: Tuned) -> None:
    tuned.tree.write("var/lib/accepted.json", "{")
    looks = held(tuned)
    looks.look()
    assert looks.health().state is SourceState.BLIND
    assert "/var/lib/accepted.json is no record of accepted settings" in looks.health().why
    assert tuned.somaxconn == 4096


def test_the_label_of_a_node_chooses_the_profile_of_its_pool(tuned: Tuned) -> None:
    folder, chosen = tuned.file.parent / "profiles", tuned.file.parent / "chosen"
    folder.mkdir()
    for name, value in (("small", 5000), ("large", 6000)):
        (folder / f"{name}.yaml").write_text(
            f"name: {name}\nlines:\n"
            f"- {{kind: Sysctl, name: net.core.somaxconn, value: {value}, reason: r, source: s}}"
        )
    looks = tuned.looks(TuningMode.APPLY, chosen_file=str(chosen), profiles=str(folder))
    looks.look()
    assert looks.health().state is SourceState.BLIND, "nothing is changed before it is known"
    assert tuned.somaxconn == 4096
    for label, wanted in (("small\n", 5000), ("large\n", 6000), ("\n", 10_000)):
        chosen.write_text(label)
        assert looks.look(300) == ()
        assert tuned.somaxconn == wanted
    for label in ("../profile", "/etc/passwd", "none-such", "x" * 300):
        chosen.write_text(label)
        looks.look(300)
        assert looks.health().state is SourceState.BLIND, label
        assert tuned.somaxconn == 10_000, "what was set stays"
