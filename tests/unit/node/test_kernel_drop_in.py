"""Arguments of the kernel: in a drop-in of GRUB and its menu, before a reboot alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.unit.node.host_tree import BOOT, NEXT_BOOT, changed
from tests.unit.node.tuned_node import MENU, Node, at_each_line, line, profile_of

from fairlead.api.cluster.node_report import AgentAnswer, SettingState, TuningMode
from fairlead.cli.app import run
from fairlead.node.registry import load_settings
from fairlead.node.running.host import Absent
from fairlead.node.sources.tuning import restart_setter
from fairlead.node.tuning import DropIns
from fairlead.node.tuning.drop_ins.grub import FORMER, difference, find_grub
from fairlead.node.tuning.drop_ins.kernel import ARGUMENTS

OTHER_BOOT = "5e5a1d4e-0000-4000-8000-000000000003"


def argument(name: str, value: str, **more: str) -> str:
    return line(name, value, kind="KernelArgument", **more)


WANTED = (argument("iommu", "pt"), argument("transparent_hugepage", "madvise"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.grub()
    made.profile.write_text(profile_of(*WANTED))
    return made


def menu(node: Node) -> str:
    return (node.tree.root / MENU).read_text()


def drift(node: Node) -> str:
    faults = node.looks().look()
    return next((each.evidence for each in faults if each.identity.check == "tuning-drift"), "")


def test_it_is_asked_for_written_before_the_reboot_and_verified_after_it(node: Node) -> None:
    before = menu(node)
    looks = node.looks()
    faults = {each.identity.check: each for each in looks.look()}
    assert faults["tuning-restart"].identity.component == "kernel"
    assert faults["tuning-restart"].evidence == (
        "counts from the machine's next start: iommu, transparent_hugepage"
    )
    assert (node.grub_file.exists(), menu(node)) == (False, before)
    answer = node.is_asked("kernel")
    assert (answer.answer, answer.message) == (
        AgentAnswer.ACCEPTED, "the machine was asked to start again",
    )  # fmt: skip
    assert menu(node) == before.replace("quiet", "quiet iommu=pt transparent_hugepage=madvise")
    assert (node.tree.root / "boot/grub" / FORMER).read_text() == before
    assert "tuning-restart" in node.faults(), "it has not started again"
    node.starts_again(NEXT_BOOT)
    assert node.tree.host().text("proc/cmdline").endswith("iommu=pt transparent_hugepage=madvise")
    assert node.faults() == []
    assert node.set("kernel") == ("", "")
    assert node.faults() == [], "nothing is done twice"


def test_entries_for_recovery_start_without_them(node: Node) -> None:
    node.set()
    entries = [each for each in menu(node).splitlines() if "\tlinux" in each]
    assert [("iommu=pt" in each, "single" in each) for each in entries] == [
        (True, False), (False, True), (True, False), (False, True),
    ]  # fmt: skip


def test_a_machine_that_starts_without_them_is_drift_and_not_asked_again(node: Node) -> None:
    node.set()
    node.tree.boots(NEXT_BOOT, 900)  # by another entry, or another boot loader
    assert node.faults() == ["tuning-drift"]


def test_another_profile_and_none_take_them_back_as_they_came(node: Node) -> None:
    first = menu(node)
    node.set()
    node.starts_again(NEXT_BOOT)
    node.profile.write_text(profile_of(argument("iommu", "pt"), argument("psi", "1")))
    assert "tuning-restart" in node.faults()
    node.set()
    assert menu(node) == first.replace("quiet", "quiet iommu=pt psi=1")
    node.starts_again(OTHER_BOOT)
    assert node.faults() == []
    node.settings = changed(node.settings, "tuning", profile="")
    assert node.faults() == ["tuning-restart"]
    node.set()
    assert (menu(node), node.grub_file.exists()) == (first, False)
    node.starts_again(BOOT)
    assert node.faults() == []


def test_removed_by_hand_the_menu_is_what_it_was(node: Node) -> None:
    first = menu(node)
    node.set()
    removed = list(DropIns(node.host(), node.settings.tuning, is_dry=True).remove())
    assert [each.value for each in removed] == ["kernel"]
    assert (menu(node), node.grub_file.exists()) == (first, False)
    assert list(DropIns(node.host(), node.settings.tuning, is_dry=True).remove()) == []


def test_what_a_person_gave_stays_unless_the_line_says_so(node: Node) -> None:
    node.grub('GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=off"')
    iommu = node.differences()["KernelArgument iommu"]
    assert (iommu.state, iommu.actual) == (SettingState.SET_BY_HAND, "off")
    assert "other settings of the boot loader give it" in iommu.why
    node.set()
    assert "iommu=pt" not in menu(node)
    node.profile.write_text(profile_of(argument("iommu", "pt", overwrite="true")))
    node.set()
    assert "iommu=off iommu=pt" in menu(node), "the last one counts"
    node.starts_again(NEXT_BOOT)
    assert node.faults() == []


def test_a_menu_that_would_change_in_other_ways_is_left_alone_and_not_tried_again(
    node: Node,
) -> None:
    edited = menu(node).replace("timeout=5", "timeout=50")
    (node.tree.root / MENU).write_text(edited)
    done, wrong = node.set()
    assert "/boot/grub/grub.cfg would change in other ways, first in line 1" in wrong
    assert (done, menu(node), node.grub_file.exists()) == ("", edited, False)
    assert node.faults() == ["tuning-drift"], "no machine starts again and again for it"
    assert "would change in other ways" in drift(node)
    assert node.set() == ("", "")
    assert menu(node) == edited


def test_an_edit_of_which_no_menu_was_made_does_not_take_effect_by_the_way(node: Node) -> None:
    first = menu(node)
    node.tree.write("etc/default/grub", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet init=/bin/sh"')
    assert "would change in other ways" in node.set()[1]
    assert menu(node) == first


def test_a_program_that_fails_leaves_the_menu_and_says_why(node: Node) -> None:
    first = menu(node)
    node.tree.write("broken", "")
    assert node.set()[1] == "kernel: grub-mkconfig failed: sh: a syntax error"
    assert (menu(node), node.grub_file.exists()) == (first, False)
    assert sorted(each.name for each in (node.tree.root / "boot/grub").iterdir()) == ["grub.cfg"]
    assert "grub-mkconfig failed" in drift(node)


def test_a_later_file_that_drops_them_is_found_before_the_reboot(node: Node) -> None:
    first = menu(node)
    node.tree.write("etc/default/grub.d/zz.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"')
    assert "the first entry of /boot/grub/grub.cfg would not have iommu=pt" in node.set()[1]
    assert menu(node) == first


@pytest.mark.parametrize(
    ("sign", "why"),
    [
        ("run/ostree-booted", "rpm-ostree kargs"),
        ("boot/loader/entries/a.conf", "grubby edits in place"),
        ("etc/kernel/cmdline", "all arguments are in one file"),
    ],
)
def test_other_boot_loaders_are_refused_in_words(sign: str, why: str, node: Node) -> None:
    node.tree.write(sign, "")
    first = menu(node)
    assert why in node.set()[1]
    assert (menu(node), node.grub_file.exists()) == (first, False)
    assert node.faults() == ["tuning-drift"], "it is not known, so nothing is asked for"
    assert why in node.unreadable()


def test_a_mkconfig_that_reads_no_drop_ins_and_a_menu_of_blscfg_are_refused(node: Node) -> None:
    (node.tree.root / MENU).write_text("insmod blscfg\nblscfg\n")
    with pytest.raises(Absent, match="takes its entries from /boot/loader/entries"):
        find_grub(node.host())
    node.program("grub-mkconfig", "#!/bin/sh\n. /etc/default/grub\n")
    with pytest.raises(Absent, match=r"grub-mkconfig does not read /etc/default/grub\.d"):
        find_grub(node.host())
    (node.tree.root / MENU).unlink()
    with pytest.raises(Absent, match="no menu of GRUB is there"):
        find_grub(node.host())


def test_an_agent_in_a_container_starts_no_program_of_the_host(node: Node) -> None:
    with pytest.raises(Absent, match="the agent runs in a container"):
        find_grub(node.tree.host())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("init", "/bin/sh"), ("root", "/dev/vdb"), ("mitigations", "off"), ("selinux", "0"),
        ("intel_iommu", "off"), ("modprobe.blacklist", "nvme"), ("module.sig_enforce", "0"),
        ("isolcpus", "1 init=/bin/sh"), ("pci", 'realloc"; touch /tmp/x; "'), ("psi", "$(id)"),
        ("systemd.unit", "rescue.target"), ("hugepages", "100000"), ("panic", "1\\n2"),
    ],
)  # fmt: skip
def test_what_opens_the_machine_or_keeps_it_from_starting_is_never_given(
    name: str, value: str, node: Node
) -> None:
    text = argument(name, "v").replace("'v'", "'" + value.replace("'", "''") + "'")
    node.profile.write_text(profile_of(text, *WANTED))
    node.set()
    (found,) = re.findall(r'DEFAULT (.*)"$', node.grub_file.read_text(), re.MULTILINE)
    assert found == "iommu=pt transparent_hugepage=madvise"
    assert "no agent gives" in node.differences()[f"KernelArgument {name}"].why


def test_no_value_that_is_given_means_anything_to_a_shell_or_to_grub() -> None:
    odd = set("$`'\"\\;&|<>{}()#!~ \n")
    for pattern in ARGUMENTS.values():
        for character in odd:
            for text in (character, f"1{character}", f"pt{character}", f"on{character}1"):
                assert re.fullmatch(pattern, text) is None


def test_a_shell_makes_of_the_drop_in_what_the_agent_wrote(node: Node) -> None:
    names = {name: _value_of(pattern) for name, pattern in ARGUMENTS.items()}
    node.profile.write_text(profile_of(*(argument(*each) for each in names.items())))
    assert node.set() == ("", "")
    script = (
        f'GRUB_CMDLINE_LINUX_DEFAULT=quiet; . {node.grub_file}; echo "$GRUB_CMDLINE_LINUX_DEFAULT"'
    )
    said = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True)
    words = [name if value == "given" else f"{name}={value}" for name, value in names.items()]
    assert said.stdout.split() == ["quiet", *words]


def _value_of(pattern: str) -> str:
    choices = ("given", "on", "active", "tsc", "performance", "1", "pt", "0-3,7", "nouveau", "0",
               "enable", "realloc", "off", "none", "always", "reliable", "cache")  # fmt: skip
    return next(each for each in choices if re.fullmatch(pattern, each))


@pytest.mark.parametrize("odd", ["link", "directory", "huge"])
def test_odd_files_in_its_place_are_said_and_never_followed(odd: str, node: Node) -> None:
    target = node.folder / "secret"
    target.write_text("kept")
    first = menu(node)
    match odd:
        case "link":
            node.grub_file.symlink_to(target)
        case "directory":
            node.grub_file.mkdir()
        case _:
            node.grub_file.write_bytes(b"x" * 100_000)
    assert node.set()[1].startswith("kernel: ")
    assert (target.read_text(), menu(node)) == ("kept", first)


def test_verify_and_settings_without_the_right_write_nothing(node: Node, tmp_path: Path) -> None:
    first = menu(node)
    for fields in ({"mode": TuningMode.VERIFY}, {"kernel_arguments": False}):
        node.settings = changed(node.settings, "tuning", **fields)
        assert node.set() == ("", "")
        assert (node.grub_file.exists(), menu(node)) == (False, first)
        assert node.faults() == ["tuning-drift"]
    file = tmp_path / "agent.yaml"
    file.write_text("tuning: {kernelArguments: true}")
    with pytest.raises(Exception, match=r"it takes repairs\.reboots"):
        load_settings(str(file))


def test_a_dry_run_says_what_would_count_and_writes_nothing(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    config = node.folder / "agent.yaml"
    config.write_text(
        "tuning: {kernelArguments: true}\nrepairs: {reboots: true, requests: r, pods: p}\n"
    )
    flags = ["--root", str(node.tree.root), "--config", str(config)]
    assert run(["agent", "tune", "--profile", str(node.profile), *flags]) == 1
    said = capsys.readouterr().err
    assert "kernel: the agent runs in a container" in said
    assert not node.grub_file.exists()


def test_killed_at_any_line_the_machine_starts_and_the_next_run_ends_the_work(node: Node) -> None:
    first, lines, menus = menu(node), 0, set[str]()
    states = list[tuple[bytes | None, str]]()

    def seen() -> None:
        menus.add(menu(node))
        file = node.grub_file.read_bytes() if node.grub_file.exists() else None
        if (file, menu(node)) not in states:
            states.append((file, menu(node)))

    profiles = (profile_of(*WANTED), profile_of(argument("psi", "1")), profile_of())
    ends = list[str]()
    for profile in profiles:
        node.profile.write_text(profile)
        lines += at_each_line(node.set, seen)
        ends.append(menu(node))
    assert lines > 200
    assert menus == {first, *ends}, "the old menu or the new one"
    assert ends[2] == first
    assert len(states) >= 6
    for file, text in states:
        for profile, end in zip(profiles, ends, strict=True):
            node.grub_file.unlink(missing_ok=True)
            if file is not None:
                node.grub_file.write_bytes(file)
            (node.tree.root / MENU).write_text(text)
            node.profile.write_text(profile)
            node.set()
            assert menu(node) == end, (file, text)
            assert node.grub_file.exists() is (profile != profile_of())


def test_the_difference_of_two_menus_is_by_their_words() -> None:
    old = b"a\n\tlinux\t/k ro  quiet\n\tlinux\t/k ro single\n"
    new = b"a\n\tlinux\t/k ro  quiet psi=1 $vt_handoff\n\tlinux\t/k ro single\n"
    shown = b"a\n\tlinux\t/k ro  quiet $vt_handoff\n\tlinux\t/k ro single\n"
    given, none = ("psi=1",), ()
    assert difference(shown, new, words=given, former=none) == ""
    assert difference(new, shown, words=none, former=given) == ""
    assert "in line 2" in difference(old, new, words=given, former=none)
    assert "in line 3" in difference(shown, new + b"b\n", words=given, former=none).replace(
        "4", "3"
    )
    assert "would not have psi=1" in difference(old, old, words=given, former=none)
    assert difference(old, old, words=none, former=given) == ""


def test_what_health_takes_back_leaves_the_arguments_of_the_earlier_start(node: Node) -> None:
    node.set()
    node.starts_again(NEXT_BOOT)
    earlier, booted = menu(node), node.boot_line()
    node.profile.write_text(profile_of(*WANTED, argument("nosoftlockup", "given")))
    node.set()
    node.starts_again(OTHER_BOOT)
    assert node.boot_line() != booted
    request = node.request("kernel", boot_id=OTHER_BOOT, takes_back=True)
    assert restart_setter(node.host(), node.settings)(request) == ("", "")
    assert menu(node) == earlier
    node.starts_again("a later boot")
    assert "tuning-restart" not in node.faults()
    node.set()
    assert (menu(node), node.boot_line()) == (earlier, booted)
