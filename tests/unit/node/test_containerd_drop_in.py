"""containerd's drop-in: checked with the program, started with, taken back, and no more changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.unit.node.host_tree import NEXT_BOOT, changed
from tests.unit.node.tuned_node import (
    IMAGES,
    IMPORTED,
    MAIN,
    PROFILE,
    Node,
    at_each_line,
    line,
    profile_of,
)

from fairlead.api.cluster.node_report import AgentAnswer, SettingState, TuningMode
from fairlead.node.sources.tuning import restart_setter
from fairlead.node.tuning import DropIns, load_profile
from fairlead.node.tuning.drop_ins.containerd import FIELDS, NAME, PLUGINS

DOWNLOADS = f"plugins/{IMAGES}/max_concurrent_downloads"
REFUSED = f"{NAME}.refused"


def setting(name: str, value: str, **more: str) -> str:
    return line(name, value, kind="ContainerdConfig", **more)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.containerd()
    made.profile.write_text(profile_of(setting(DOWNLOADS, "10")))
    return made


def starts(node: Node) -> int:
    file = node.folder / "starts"
    return len(file.read_text().split()) if file.exists() else 0


def test_it_is_written_on_an_empty_node_and_containerd_alone_starts_again(node: Node) -> None:
    (restart,) = (each for each in node.looks().look() if each.identity.component == "containerd")
    assert restart.evidence == f"counts from containerd's next start: {DOWNLOADS}"
    assert (node.containerd_file.exists(), starts(node)) == (False, 0)
    answer = node.is_asked("containerd")
    assert (answer.answer, answer.message) == (AgentAnswer.DONE, "containerd was started again")
    assert not (node.folder / "at-reboot").exists()
    assert node.containerd_file.read_text().split("\n", 2)[2] == (
        f'version = 3\n\n[plugins."{IMAGES}"]\nmax_concurrent_downloads = 10\n'
    )
    assert starts(node) == 1
    assert "tuning-restart" not in node.faults()
    assert node.set("containerd") == ("", "")
    assert starts(node) == 1, "nothing is done twice"


def test_a_reboot_for_another_fault_of_containerd_is_one(node: Node) -> None:
    node.set("containerd")
    assert node.is_asked("containerd").answer is AgentAnswer.ACCEPTED
    assert (node.folder / "at-reboot").exists()
    assert starts(node) == 1


def test_pods_on_the_node_keep_it_from_being_written(node: Node) -> None:
    pod = '{"items": [{"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "status": {}}]}'
    (node.folder / "pods").write_text(pod)
    assert node.is_asked("containerd").answer is AgentAnswer.FORBIDDEN
    assert (node.containerd_file.exists(), starts(node)) == (False, 0)


def test_a_reboot_for_more_than_it_goes_on(node: Node) -> None:
    node.settings = changed(node.settings, "tuning", kubelet_directory="/etc/kubelet.d")
    node.profile.write_text(PROFILE + "\n" + setting(DOWNLOADS, "10"))
    answer = node.is_asked("containerd")
    assert answer.answer is AgentAnswer.ACCEPTED
    assert (node.file.exists(), node.containerd_file.exists(), starts(node)) == (True, True, 1)


def test_a_containerd_that_does_not_come_up_has_its_old_file_back(node: Node) -> None:
    node.set("containerd")
    before = node.containerd_file.read_text()
    node.profile.write_text(profile_of(setting(DOWNLOADS, "77")))
    node.starts_containerd(fails_while="= 77")
    answer = node.is_asked("containerd")
    assert answer.answer is AgentAnswer.DONE, "a refusal would have the machine replaced"
    assert "Job for containerd.service failed" in answer.message
    assert (node.containerd_file.read_text(), starts(node)) == (before, 3)
    assert "tuning-restart" not in node.faults(), "the same is not tried again"
    assert node.set("containerd") == ("", "")
    assert node.containerd_file.read_text() == before
    node.profile.write_text(profile_of(setting(DOWNLOADS, "12")))
    assert "tuning-restart" in node.faults(), "another value is"


def test_a_containerd_that_is_down_later_has_it_taken_back_and_the_kubelet_keeps_its_own(
    node: Node,
) -> None:
    node.settings = changed(node.settings, "tuning", kubelet_directory="/etc/kubelet.d")
    node.profile.write_text(PROFILE + "\n" + setting(DOWNLOADS, "10"))
    node.set("containerd")
    node.tree.boots(NEXT_BOOT, 900)
    node.no_containerd()
    node.no_kubelet()
    looks = node.looks()
    looks.look(300)
    assert node.containerd_file.exists()
    looks.look(300)
    assert (node.containerd_file.exists(), node.file.exists()) == (False, True)
    assert node.containerd_file.with_name(REFUSED).exists()


def test_one_that_the_agent_has_just_started_is_not_down_and_one_that_begins_again_is(
    node: Node,
) -> None:
    node.set("containerd")
    looks = node.looks()
    looks.looks(3, 5)
    assert node.containerd_file.exists()
    for _ in range(2):
        node.tree.passes(100)
        node.containerd_runs(node.tree.uptime - 10)
        looks.look()
    assert not node.containerd_file.exists()


def test_a_version_that_replaces_sections_is_refused_before_it_is_written(node: Node) -> None:
    node.containerd(replaces_sections=True)
    done, wrong = node.set("containerd")
    assert f"it would change plugins/{IMAGES}/snapshotter as well" in wrong
    assert done == wrong
    assert (node.containerd_file.exists(), starts(node)) == (False, 0)
    assert "tuning-restart" not in node.faults()


def test_a_version_that_replaces_sections_nobody_else_has_is_fine(node: Node) -> None:
    node.containerd(main=f'version = 3\nimports = ["{IMPORTED}/*.toml"]\n', replaces_sections=True)
    assert node.set("containerd") == ("containerd was started again", "")


def test_what_others_set_stays_unless_the_line_says_so(node: Node) -> None:
    node.tree.write(
        "etc/containerd/conf.d/50-own.toml", f'[plugins."{IMAGES}"]\nmax_concurrent_downloads = 5'
    )
    (found,) = node_differences(node)
    assert found[0] is SettingState.SET_BY_HAND
    assert "/etc/containerd/conf.d/50-own.toml sets it" in found[1]
    node.profile.write_text(profile_of(setting(DOWNLOADS, "10", overwrite="true")))
    assert node.set("containerd") == ("containerd was started again", "")
    node.profile.write_text(profile_of())
    assert "tuning-restart" in node.faults()
    assert node.set("containerd") == ("containerd was started again", "")
    assert not node.containerd_file.exists()


def node_differences(node: Node) -> list[tuple[SettingState, str]]:
    looked = DropIns(node.host(), node.settings.tuning).look(load_profile(str(node.profile)), {})
    return [each for start in looked for each in start.left.values()]


@pytest.mark.parametrize(
    ("main", "why"),
    [
        ("version = 3\n", f"add {IMPORTED}/*.toml to its imports"),
        (MAIN.replace("/conf.d/*", "/*/*"), "a pattern in its last part alone"),
        (MAIN.replace(f'"{IMPORTED}', '"conf.d/*.toml", "' + IMPORTED), "no path from the root"),
        (MAIN + f'x = "{IMPORTED}/*.toml"', "elsewhere as well"),
        ("version = ", "Invalid value"),
    ],
)
def test_a_main_file_with_which_it_cannot_be_is_said(main: str, why: str, node: Node) -> None:
    node.tree.write("etc/containerd/config.toml", main)
    assert why in node.set("containerd")[1]
    assert (node.containerd_file.exists(), starts(node)) == (False, 0)
    assert "tuning-restart" not in node.faults()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"plugins/{IMAGES}/snapshotter", "x"),
        (f"plugins/{IMAGES}/registry/config_path", "/tmp"),
        ("plugins/io.containerd.cri.v1.runtime/enable_unprivileged_ports", "true"),
        ("root", "/tmp"),
        (DOWNLOADS, "10\\nx"),
        (DOWNLOADS, "-1"),
        (f"plugins/{IMAGES}/image_pull_progress_timeout", "1m; 2"),
    ],
)
def test_what_names_what_runs_or_where_it_is_kept_is_never_given(
    name: str, value: str, node: Node
) -> None:
    node.profile.write_text(profile_of(setting(name, value)))
    node.set("containerd")
    assert (node.containerd_file.exists(), starts(node)) == (False, 0)


def test_no_field_names_a_program_a_path_or_a_source() -> None:
    opens = ("path", "dir", "root", "registry", "sandbox", "runtime", "snapshotter", "user", "cni",
             "seccomp", "apparmor", "selinux", "address", "unprivileged", "cdi")  # fmt: skip
    assert not [name for name in FIELDS for each in opens if each in name]
    assert not [name for name in PLUGINS if "runtime" in name]


def test_verify_writes_nothing(node: Node) -> None:
    node.settings = changed(node.settings, "tuning", mode=TuningMode.VERIFY)
    assert node.set("containerd") == ("", "")
    assert (node.containerd_file.exists(), starts(node)) == (False, 0)


def test_copies_of_its_files_are_not_left_and_for_root_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    text = (node.bin / "containerd").read_text()
    check = (
        f"import os, stat\nfor at, names, files in os.walk({str(place)!r}):\n"
        "    for each in [*names, *files]:\n"
        "        assert not os.stat(os.path.join(at, each)).st_mode & 0o77, each\n"
    )
    head, _, rest = text.partition("\n")
    node.program("containerd", f"{head}\n{check}{rest}")
    node.tree.write("etc/containerd/conf.d/50-own.toml", "")
    assert node.set("containerd") == ("containerd was started again", "")
    assert list(place.iterdir()) == []


def test_killed_at_any_line_containerd_finds_the_old_file_or_the_new_one(node: Node) -> None:
    left, ends = set[str](), list[str]()

    def text() -> str:
        file = node.containerd_file
        return file.read_text().split("\n", 2)[2] if file.exists() else ""

    lines = 0
    for value in ("10", "11", ""):
        node.profile.write_text(profile_of(*([setting(DOWNLOADS, value)] if value else [])))
        lines += at_each_line(lambda: node.set("containerd"), lambda: left.add(text()))
        ends.append(text())
    assert lines > 200
    assert left == set(ends)
    assert len(left) == 3


OLDER = f'''version = 2
imports = ["{IMPORTED}/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
snapshotter = "mine"
'''


def test_beside_a_main_file_of_an_older_version_it_is_of_that_of_containerd(node: Node) -> None:
    node.tree.write("etc/containerd/config.toml", OLDER)
    assert node.set("containerd") == ("containerd was started again", "")
    assert "version = 3" in node.containerd_file.read_text()
    node.profile.write_text(profile_of(setting(DOWNLOADS, "12")))
    assert node.set("containerd") == ("containerd was started again", "")
    assert node.set("containerd") == ("", "")


def test_what_a_file_of_an_older_version_sets_by_another_name_stays(node: Node) -> None:
    node.tree.write("etc/containerd/config.toml", f"{OLDER}max_concurrent_downloads = 5\n")
    (found,) = node_differences(node)
    assert found == (
        SettingState.SET_BY_HAND,
        "a file of containerd of a version before 3 sets it; "
        "overwrite: true in the profile sets it all the same",
    )
    assert node.set("containerd") == ("", "")
    assert (node.containerd_file.exists(), starts(node)) == (False, 0)


#: Programs to be asked: the machine's, and one that a person has built (docs/design/testing.md).
CONTAINERDS = sorted(
    filter(None, {shutil.which("containerd"), os.environ.get("FAIRLEAD_CONTAINERD")})
)


@pytest.mark.parametrize("program", CONTAINERDS)
def test_a_real_containerd_is_asked_as_the_agent_asks(program: str, node: Node) -> None:
    """Whatever its version: it takes the drop-in, or would change more, and says so."""
    said = subprocess.run([program, "config", "default"], capture_output=True, check=True)
    default = tomllib.loads(said.stdout.decode())
    plugin = next(
        each for each in PLUGINS if "max_concurrent_downloads" in default["plugins"].get(each, {})
    )
    (node.bin / "containerd").unlink()
    (node.bin / "containerd").symlink_to(program)
    name = f"plugins/{plugin}/max_concurrent_downloads"
    for version in range(2, default["version"] + 1):
        main = f'version = {version}\nimports = ["{IMPORTED}/*.toml"]\n'
        node.tree.write("etc/containerd/config.toml", main)
        for value in ("9", "10"):
            node.profile.write_text(profile_of(setting(name, value)))
            assert node.set("containerd") == ("containerd was started again", "")
            assert node.set("containerd") == ("", "")
        text = node.containerd_file.read_text()
        assert f"version = {default['version']}\n" in text
        assert f'[plugins."{plugin}"]\nmax_concurrent_downloads = 10' in text
        node.profile.write_text(profile_of())
        assert node.set("containerd") == ("containerd was started again", "")
    if default["version"] > 2:
        old = f"{OLDER}max_concurrent_downloads = 5\n".replace("snapshotter", "sandbox_image")
        node.tree.write("etc/containerd/config.toml", old)
        node.profile.write_text(profile_of(setting(name, "9")))
        assert [state for state, _ in node_differences(node)] == [SettingState.SET_BY_HAND]
        node.profile.write_text(profile_of(setting(name, "9", overwrite="true")))
        assert node.set("containerd") == ("containerd was started again", "")


def test_what_health_takes_back_goes_with_the_reboot_and_is_not_written_again(node: Node) -> None:
    node.set("containerd")
    request = node.request("cpu", takes_back=True)
    assert restart_setter(node.host(), node.settings)(request) == ("", "")
    assert (node.containerd_file.exists(), starts(node)) == (False, 1), "the reboot starts it"
    assert "tuning-restart" not in node.faults()
    assert node.set("containerd") == ("", "")
    assert not node.containerd_file.exists()


def test_what_health_takes_back_is_what_it_was_earlier(node: Node) -> None:
    node.set("containerd")
    earlier = node.containerd_file.read_text()
    node.profile.write_text(profile_of(setting(DOWNLOADS, "19")))
    node.set("containerd")
    assert "19" in node.containerd_file.read_text()
    request = node.request("containerd", takes_back=True)
    assert restart_setter(node.host(), node.settings)(request) == ("", "")
    assert node.containerd_file.read_text() == earlier
    node.set("containerd")
    assert node.containerd_file.read_text() == earlier
