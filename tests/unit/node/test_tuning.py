"""Profiles of settings: what is accepted, what differs, what is set and what is restored."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.host_tree import NEXT_BOOT, HostTree

from fairlead.api.cluster.node_report import SettingState as State
from fairlead.input.errors import CliError
from fairlead.node.tuning import (
    ReadyProfile,
    RecordError,
    TuningFinding,
    TuningOutcome,
    load_profile,
    parse_profile,
    read_facts,
    restore,
    shipped_names,
    tune,
    verify,
)
from fairlead.node.tuning.formula import FormulaError, parse_formula
from fairlead.node.tuning.profile import SHIPPED

SOMAXCONN = "proc/sys/net/core/somaxconn"
PID_MAX = "proc/sys/kernel/pid_max"
HUGEPAGES = "sys/kernel/mm/transparent_hugepage/enabled"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    made = HostTree(tmp_path / "host")
    made.write(SOMAXCONN, 4096)
    made.write(PID_MAX, 32768)
    made.write(HUGEPAGES, "always madvise [never]")
    made.write("sys/devices/system/cpu/online", "0-3,8")
    made.write("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 1 kB")
    return made


def line(kind: str = "Sysctl", name: str = "net.core.somaxconn", **fields: Any) -> str:
    rows = {"kind": kind, "name": name, "reason": "r", "source": "s"} | fields
    return "- " + ", ".join(f"{key}: {value}" for key, value in rows.items()).join("{}")


def profile(*lines: str, head: str = "") -> ReadyProfile:
    text = "\n".join(["name: tested", *([head] if head else []), "lines:", *lines])
    return parse_profile(text if lines else "name: tested", "profile.yaml")


FULL = profile(line(atLeast="4 * nodes"), line(name="kernel.pid_max", value=65536),
               line("TransparentHugepages", "enabled", value="madvise"))  # fmt: skip
FACTS = {"nodes": 2500}


def states(findings: tuple[TuningFinding, ...]) -> list[State]:
    return [each.state for each in findings]


def settings_of(tree: HostTree) -> tuple[str, ...]:
    return tuple(tree.host().text(path) for path in (SOMAXCONN, PID_MAX, HUGEPAGES))


# formulas


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("2 * (nodes + 1)", 22), ("max(1, nodes // 3)", 3), ("min(nodes, 4, 9)", 4),
     ("nodes - 10", 0)],
)  # fmt: skip
def test_a_formula_has_a_value(text: str, value: int) -> None:
    assert parse_formula(text).value({"nodes": 10}) == value


@pytest.mark.parametrize(
    "text",
    ["", "2 ** 99", "nodes / 2", "__import__('os')", "nodes.real", "'text'", "1.5", "True",
     "max(*nodes)", "max()", "min(1, key=2)", "[1]", "lambda: 1", "(" * 90, "1" * 201, "a; b",
     "-1", "nodes < 2", "\0"],
)  # fmt: skip
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(FormulaError):
        parse_formula(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [("nodes // (nodes - 10)", "divides by 0 with nodes = 10"), ("1 - nodes", "not from 0 to"),
     ("nodes * 9223372036854775807", "not from 0 to")],
)  # fmt: skip
def test_a_formula_without_a_usable_value_says_with_which_inputs(text: str, why: str) -> None:
    with pytest.raises(FormulaError, match=why):
        parse_formula(text).value({"nodes": 10})


@given(st.text(max_size=60))
def test_no_text_does_anything_but_give_a_number_or_be_refused(text: str) -> None:
    try:
        formula = parse_formula(text)
        value = formula.value(dict.fromkeys(formula.names, 3))
    except FormulaError:
        return
    assert 0 <= value < 1 << 63


# profiles


def test_the_shipped_profiles_are_accepted_and_each_line_has_its_reason_and_source() -> None:
    assert shipped_names() == ("ml-node", "rdma-node")
    for name in shipped_names():
        wants = load_profile(name).wants
        assert wants
        assert all(each.line.reason and each.line.source for each in wants)
        assert load_profile(str(SHIPPED / f"{name}.yaml")).profile.name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line(valeu=1), "no field 'valeu'"),
        (line(), "one of value, atLeast and oneOf; it has none"),
        (line(value=1, atLeast=2), "it has value and atLeast"),
        (line(atLeast="2 * node"), "no fact 'node'; did you mean nodes?"),
        (line(atLeast="2 *"), "is no formula"),
        (line(atLeast=-1), "is not allowed"),
        (line(name="net.core", value=1, kind="Sysctl2"), "Sysctl2"),
        (line(name="../etc/passwd", value=1), "not the name of a setting"),
        (line(name="net/../../etc", value=1), "not the name of a setting"),
        (line(name="kernel.core_pattern", value="'|/bin/sh'"), "a program that the kernel runs"),
        (line(name="kernel/modprobe", value="/tmp/x"), "a program that the kernel runs"),
        (line("TransparentHugepages", "../x", value="never"), "none of enabled, defrag"),
        (line("Module", "nvidia-peermem", value="gone"), "a module has the value loaded"),
        (line("Module", "a/b", value="loaded"), "not the name of a module"),
        (line("KernelArgument", "'a b'", value=1), "not the name of an argument of the kernel"),
        (line("KubeletConfig", "a//b", value=1), "not a field of KubeletConfiguration"),
        (line("ContainerdConfig", "plugins/", value=1), "not a setting of containerd such as"),
        (line(value='"1\\n2"'), "not one line"),
        (line(value=1) + "\n" + line(value=2), "is also in lines[0]"),
        ("- {kind: Sysctl, name: a.b, value: 1, source: s}", "the field reason is missing"),
    ],
)  # fmt: skip
def test_a_wrong_line_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(CliError) as refused:
        profile(text)
    problems = refused.value.problems
    assert any(message in f"{p.message} {p.help}" for p in problems), problems
    assert all(p.where.startswith("profile.yaml:") and "lines" in p.field for p in problems)


def test_an_unknown_fact_and_an_unknown_profile_are_refused() -> None:
    with pytest.raises(CliError, match="no fact 'node'"):
        profile(line(value=1), head="facts: {node: 1}")
    with pytest.raises(CliError, match="no profile 'ml' is shipped"):
        load_profile("ml")
    with pytest.raises(CliError, match="cannot be read"):
        load_profile("./none.yaml")


# facts and findings


def test_facts_of_the_machine_are_read_and_given_ones_replace_them(tree: HostTree) -> None:
    tree.write("sys/class/net/eth0/device/vendor", "0x15b3")
    tree.write("sys/class/net/lo/mtu", 65536)
    tree.write("sys/class/infiniband/mlx5_0/node_type", "1: CA")
    assert read_facts(tree.host(), {"nodes": 9}) == {
        "nodes": 9, "cores": 5, "memory_bytes": 1 << 30, "gpus": 0, "rdma_devices": 1, "nics": 1,
    }  # fmt: skip
    assert read_facts(tree.host(), {"cores": 1})["cores"] == 1
    tree.write("sys/devices/system/cpu/online", "what")
    assert "cores" not in read_facts(tree.host(), {})


def test_what_differs_is_found_with_the_formula_and_its_inputs(tree: HostTree) -> None:
    findings = verify(tree.host(), FULL, FACTS)
    assert states(findings) == [State.DIFFERS] * 3
    assert findings[0].words == "net.core.somaxconn is 4096, not at least 10000"
    assert findings[0].formula == "4 * nodes with nodes = 2,500"
    assert findings[2].words == "TransparentHugepages enabled is never, not madvise"
    tree.write(SOMAXCONN, 10_000)
    tree.write(PID_MAX, 65_536)
    tree.write(HUGEPAGES, "always [madvise] never")
    assert states(verify(tree.host(), FULL, FACTS)) == [State.AS_WANTED] * 3


def test_a_larger_value_is_good_where_a_least_one_is_wanted(tree: HostTree) -> None:
    tree.write(SOMAXCONN, 65_535)
    assert states(verify(tree.host(), profile(line(atLeast=4097)), {})) == [State.AS_WANTED]
    assert states(verify(tree.host(), profile(line(value=4097)), {})) == [State.DIFFERS]
    both = profile(line(oneOf="[1, 65535]"))
    assert states(verify(tree.host(), both, {})) == [State.AS_WANTED]


def test_several_numbers_are_compared_whatever_stands_between_them(tree: HostTree) -> None:
    tree.write("proc/sys/net/ipv4/ip_local_port_range", "10000\t65535")
    wanted = profile(line(name="net.ipv4.ip_local_port_range", value="10000 65535"))
    assert states(verify(tree.host(), wanted, {})) == [State.AS_WANTED]


def test_a_line_that_is_not_for_the_machine_or_whose_facts_are_unknown_is_not_judged(
    tree: HostTree,
) -> None:
    wanted = profile(line(value=1, when="gpus"), line(name="kernel.pid_max", atLeast="2 * pods"))
    known = read_facts(tree.host(), {})
    findings = verify(tree.host(), wanted, known)
    assert states(findings) == [State.NOT_FOR_THIS, State.NOT_JUDGED]
    assert [each.why for each in findings] == ["gpus = 0", "not known: pods"]
    assert verify(tree.host(), wanted, known | {"gpus": 8})[0].state is State.DIFFERS


def test_what_the_machine_lacks_is_absent_and_missing_only_where_it_is_required(
    tree: HostTree,
) -> None:
    lacking = {"name": "net.ipv4.neigh.default.gc_thresh3", "atLeast": 9}
    (found,) = verify(tree.host(), profile(line(**lacking)), {})
    assert found.state is State.ABSENT
    assert "the host's network namespace" in found.why
    (found,) = verify(tree.host(), profile(line(**lacking, required="true")), {})
    assert found.state is State.MISSING
    governors = verify(tree.host(), profile(line("CpuGovernor", "all", value="performance")), {})
    assert states(governors) == [State.ABSENT]


def test_each_policy_of_the_processors_is_a_target(tree: HostTree) -> None:
    for number, text in enumerate(("performance", "powersave")):
        tree.write(f"sys/devices/system/cpu/cpufreq/policy{number}/scaling_governor", text)
    wanted = profile(line("CpuGovernor", "all", value="performance"))
    assert states(verify(tree.host(), wanted, {})) == [State.AS_WANTED, State.DIFFERS]


def test_a_module_and_the_limit_of_the_container_runtime_are_verified_and_never_set(
    tree: HostTree, tmp_path: Path,
) -> None:  # fmt: skip
    wanted = profile(line("Module", "nvidia-peermem", value="loaded"),
                     line("RuntimeLimit", "memlock", value="unlimited"))  # fmt: skip
    tree.write("sys/fs/cgroup/system.slice/containerd.service/cgroup.procs", "812\n90")
    tree.write("proc/90/limits", "Limit  Soft Limit  Hard Limit  Units\n"
               "Max locked memory         65536     65536     bytes")  # fmt: skip
    outcome = tune(tree.host(), wanted, {}, record=tmp_path / "record")
    assert states(outcome.findings) == [State.DIFFERS] * 2
    assert outcome.findings[1].actual == "65536"
    assert "LimitMEMLOCK=" in outcome.findings[1].why
    assert outcome.changed == 0
    tree.write("sys/module/nvidia_peermem/refcnt", 0)
    tree.write("proc/90/limits", "Max locked memory         unlimited unlimited bytes")
    assert states(verify(tree.host(), wanted, {})) == [State.AS_WANTED] * 2
    tree.write("proc/90/limits", "nothing of the kind")
    assert verify(tree.host(), wanted, {})[1].state is State.UNREADABLE


@pytest.mark.parametrize(
    ("booted", "name", "value"),
    [
        ("BOOT_IMAGE=/vmlinuz ro iommu=off iommu=pt", "iommu", "pt"),
        ("root=/dev/sda1 nosmt quiet", "nosmt", "given"),
        ("root=/dev/sda1", "nosmt", "not set"),
        ("transparent-hugepage=never", "transparent_hugepage", "never"),
        ('dyndbg="file a.c +p" iommu=pt', "iommu", "pt"),
        ('broken=" iommu=pt', "iommu", "pt"),
        ("quiet -- iommu=pt", "iommu", "not set"),
    ],
)
def test_an_argument_is_the_one_that_the_kernel_was_booted_with(
    booted: str, name: str, value: str, tree: HostTree, tmp_path: Path,
) -> None:  # fmt: skip
    tree.write("proc/cmdline", booted)
    wanted = profile(line("KernelArgument", name, value=value))
    assert states(verify(tree.host(), wanted, {})) == [State.AS_WANTED]
    other = profile(line("KernelArgument", name, value="another"))
    outcome = tune(tree.host(), other, {}, record=tmp_path / "record")
    (found,) = outcome.findings
    assert (found.state, found.actual, outcome.changed) == (State.DIFFERS, value, 0)
    assert "reboot" in found.why


KUBELET = "sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs"
CONFIG = """
serializeImagePulls: false
maxParallelImagePulls: 5
imageGCHighThresholdPercent: 85
evictionHard: {imagefs.available: 15%}
featureGates: {A: true}
"""


def write_kubelet(tree: HostTree, *arguments: str, config: str = CONFIG) -> None:
    tree.write(KUBELET, "77")
    tree.write("proc/77/cmdline", "\0".join(("/usr/bin/kubelet", *arguments, "")))
    tree.write("var/lib/kubelet/config.yaml", config)


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--config=/var/lib/kubelet/config.yaml"], "serializeImagePulls", "false"),
        (["--config", "/var/lib/kubelet/config.yaml"], "maxParallelImagePulls", "5"),
        (["--config=/var/lib/kubelet/config.yaml"], "evictionHard/imagefs.available", "15%"),
        (["--config=/var/lib/kubelet/config.yaml"], "registryPullQPS", "not set"),
        (["--config=/var/lib/kubelet/config.yaml", "--serialize-image-pulls"],
         "serializeImagePulls", "true"),
        (["--image-gc-high-threshold=70", "--image-gc-high-threshold", "60", "-v=2"],
         "imageGCHighThresholdPercent", "60"),
        (["--cpu-cfs-quota=false"], "cpuCFSQuota", "false"),
        (["--max-pods=9"], "maxPods", "9"),
        (["--config=/var/lib/kubelet/config.yaml", "--config-dir=/etc/kubelet.d"],
         "maxParallelImagePulls", "9"),
        ([], "serializeImagePulls", "not set"),
    ],
)  # fmt: skip
def test_a_setting_of_the_kubelet_is_what_its_flags_and_files_say(
    arguments: list[str], name: str, value: str, tree: HostTree
) -> None:
    write_kubelet(tree, *arguments)
    tree.write("etc/kubelet.d/10-a.conf", "maxParallelImagePulls: 7")
    tree.write("etc/kubelet.d/20-b.conf", "maxParallelImagePulls: 9")
    tree.write("etc/kubelet.d/30-c.yaml", "maxParallelImagePulls: 11")
    (found,) = verify(tree.host(), profile(line("KubeletConfig", name, oneOf=["x"])), {})
    assert (found.state, found.actual, found.write) == (State.DIFFERS, value, None)
    assert "restart" in found.why


def test_a_kubelet_that_cannot_be_read_says_why_and_stops_no_other_line(tree: HostTree) -> None:
    wanted = profile(
        line("KubeletConfig", "evictionHard", value="x"), line("KubeletConfig", "a", atLeast=1),
        line("KernelArgument", "iommu", value="pt"), line(value=4096),
    )  # fmt: skip
    found = verify(tree.host(), wanted, {})
    assert states(found) == [State.ABSENT, State.ABSENT, State.ABSENT, State.AS_WANTED]
    assert found[0].why == "no kubelet runs as a unit of systemd"
    config = "--config=/var/lib/kubelet/config.yaml"
    for text, why in (
        (CONFIG, "evictionHard is no single value"), ("a: [", "/var/lib/kubelet/config.yaml: "),
        ("[1]", ""), ("a: &x [*x]", "/var/lib/kubelet/config.yaml: "),
    ):  # fmt: skip
        write_kubelet(tree, config, config=text)
        found = verify(tree.host(), wanted, {})
        assert found[0].state is (State.UNREADABLE if why else State.DIFFERS), text
        assert found[0].why.startswith(why), text
        assert found[3].state is State.AS_WANTED
    flags = profile(line("KubeletConfig", "evictionHard/imagefs.available", value="15%"))
    write_kubelet(tree, config, "--eviction-hard=imagefs.available<15%")
    (whole,) = verify(tree.host(), flags, {})
    assert whole.why == "the flag --eviction-hard gives all of evictionHard"
    write_kubelet(tree, config)
    (tree.root / "var/lib/kubelet/config.yaml").unlink()
    assert verify(tree.host(), wanted, {})[0].state is State.UNREADABLE
    tree.write(KUBELET, "")
    assert verify(tree.host(), wanted, {})[0].state is State.ABSENT


CONTAINERD = """
version = 3
oom_score = -999
[plugins."io.containerd.cri.v1.images"]
max_concurrent_downloads = 3
use_local_image_pull = false
[plugins."io.containerd.cri.v1.images".registry]
config_path = "/etc/containerd/certs.d"
"""
IMAGES = "plugins/io.containerd.cri.v1.images"


@pytest.mark.parametrize(
    ("name", "state", "seen"),
    [
        (f"{IMAGES}/max_concurrent_downloads", State.DIFFERS, "3"),
        (f"{IMAGES}/use_local_image_pull", State.DIFFERS, "false"),
        (f"{IMAGES}/registry/config_path", State.DIFFERS, "/etc/containerd/certs.d"),
        (f"{IMAGES}/image_pull_with_sync_fs", State.DIFFERS, "not set"),
        (f"{IMAGES}/registry/config_path/deeper", State.DIFFERS, "not set"),
        ("oom_score", State.DIFFERS, "-999"),
        (f"{IMAGES}/registry", State.UNREADABLE, f"{IMAGES}/registry is no single value"),
        ("plugins", State.UNREADABLE, "plugins is no single value"),
        ("plugins/io.containerd.grpc.v1.cri/max_concurrent_downloads", State.ABSENT,
         "this containerd has no plugin io.containerd.grpc.v1.cri"),
    ],
)  # fmt: skip
def test_a_setting_of_containerd_is_what_is_in_effect_whatever_its_file_says(
    name: str, state: State, seen: str, tree: HostTree
) -> None:
    text = f'version = 3\n[plugins."{IMAGES[8:]}".containerd]\nmax_concurrent_downloads = 10\n'
    tree.write("etc/containerd/config.toml", text)
    host = replace(tree.host(), containerd_dump=lambda: CONTAINERD)
    (found,) = verify(host, profile(line("ContainerdConfig", name, oneOf=["x"])), {})
    assert (found.state, found.actual or found.why, found.write) == (state, seen, None)
    assert ("restart containerd" in found.why) is (state is State.DIFFERS)


def test_a_containerd_that_cannot_be_asked_is_no_drift_and_says_why(tree: HostTree) -> None:
    wanted = profile(line("ContainerdConfig", "oom_score", value="-999", required="true"))
    (found,) = verify(tree.host(), wanted, {})
    assert found.state is State.UNREADABLE
    assert found.why.startswith("the agent runs in a container")
    host = replace(tree.host(), containerd_dump=lambda: CONTAINERD)
    (found,) = verify(host, wanted, {})
    assert (found.state, found.why) == (State.MISSING, "no /etc/containerd/config.toml")
    tree.write("etc/containerd/config.toml", "version = 3")
    assert states(verify(host, wanted, {})) == [State.AS_WANTED]
    (found,) = verify(replace(host, containerd_dump=lambda: "= 3"), wanted, {})
    assert found.state is State.UNREADABLE
    assert found.why.startswith("containerd config dump: ")


def test_a_value_that_is_no_number_is_unreadable_and_stops_no_other_line(tree: HostTree) -> None:
    tree.write(SOMAXCONN, "what")
    findings = verify(tree.host(), FULL, FACTS)
    assert states(findings) == [State.UNREADABLE, State.DIFFERS, State.DIFFERS]
    assert findings[0].why == "'what' is no number"
    (tree.root / SOMAXCONN).unlink()
    (tree.root / SOMAXCONN).mkdir()
    assert verify(tree.host(), FULL, FACTS)[0].state is State.UNREADABLE


# setting and restoring


class Tuned:
    """A tree, and a record."""

    def __init__(self, tree: HostTree, folder: Path) -> None:
        self.tree, self.record = tree, folder / "state" / "record.json"

    def tune(self, wanted: ReadyProfile = FULL) -> TuningOutcome:
        return tune(self.tree.host(), wanted, FACTS, record=self.record)

    def restore(self) -> TuningOutcome:
        return restore(self.tree.host(), record=self.record)


@pytest.fixture
def tuned(tree: HostTree, tmp_path: Path) -> Tuned:
    return Tuned(tree, tmp_path)


def test_verification_changes_nothing(tree: HostTree) -> None:
    before = {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}
    assert all(each.state.is_drift for each in verify(tree.host(), FULL, FACTS))
    assert before == {path: path.read_bytes() for path in tree.root.rglob("*") if path.is_file()}


def test_what_differs_is_set_and_without_the_profile_the_old_values_are_back(tuned: Tuned) -> None:
    outcome = tuned.tune()
    assert outcome.changed == 3
    assert states(outcome.findings) == [State.AS_WANTED] * 3
    assert settings_of(tuned.tree) == ("10000", "65536", "madvise")
    assert tuned.tune().changed == 0, "nothing is written twice"
    restored = tuned.restore().restored
    assert [(each.value, each.why) for each in restored] == [("32768", ""), ("4096", ""),
                                                             ("never", "")]  # fmt: skip
    assert settings_of(tuned.tree) == ("4096", "32768", "never")
    assert tuned.restore().restored == ()


def test_a_line_that_is_removed_is_restored_and_the_others_stay(tuned: Tuned) -> None:
    tuned.tune()
    outcome = tuned.tune(profile(line(atLeast="4 * nodes")))
    restored = sorted(each.setting for each in outcome.restored)
    assert restored == ["TransparentHugepages enabled", "kernel.pid_max"]
    assert settings_of(tuned.tree) == ("10000", "32768", "never")


def test_a_line_that_changes_keeps_the_value_from_before_the_first_write(tuned: Tuned) -> None:
    tuned.tune(profile(line(value=1)))
    tuned.tune(profile(line(value=2)))
    assert settings_of(tuned.tree)[0] == "2"
    tuned.restore()
    assert settings_of(tuned.tree)[0] == "4096"


def test_a_line_whose_fact_becomes_unknown_leaves_what_it_had_set(tuned: Tuned) -> None:
    tuned.tune()
    outcome = tune(tuned.tree.host(), FULL, {}, record=tuned.record)
    assert outcome.findings[0].state is State.NOT_JUDGED
    assert outcome.restored == ()
    assert settings_of(tuned.tree)[0] == "10000"


def test_what_a_person_changed_since_is_neither_overwritten_nor_restored(tuned: Tuned) -> None:
    tuned.tune()
    tuned.tree.write(SOMAXCONN, 512)
    for _ in range(2):
        outcome = tuned.tune()
        assert outcome.findings[0].state is State.SET_BY_HAND
        assert outcome.findings[0].why.startswith("changed since it was set to 10000; overwrite")
        assert outcome.changed == 0
    (left,) = [each for each in tuned.restore().restored if each.is_left]
    assert (left.setting, left.why) == ("net.core.somaxconn",
                                        "it is 512 now: somebody changed it since")  # fmt: skip
    assert settings_of(tuned.tree)[0] == "512"


def test_a_person_who_puts_the_old_value_back_is_not_overwritten_either(tuned: Tuned) -> None:
    tuned.tune()
    tuned.tree.write(SOMAXCONN, 4096)
    assert tuned.tune().findings[0].state is State.SET_BY_HAND
    assert settings_of(tuned.tree)[0] == "4096"


def test_the_profile_may_say_that_what_a_person_set_is_overwritten(tuned: Tuned) -> None:
    tuned.tune()
    tuned.tree.write(SOMAXCONN, 512)
    outcome = tuned.tune(profile(line(atLeast="4 * nodes", overwrite="true")))
    assert states(outcome.findings) == [State.AS_WANTED]
    tuned.restore()
    assert settings_of(tuned.tree)[0] == "512", "that is what was there before"


@pytest.mark.parametrize(
    ("file", "text"),
    [("etc/sysctl.d/90-own.conf", "net.core.somaxconn = 4096"),
     ("etc/sysctl.conf", "# ours\n-net/core/somaxconn=4096"),
     ("etc/sysctl.d/1.conf", "net.core.somaxconn=1\nnet.core.somaxconn=4096")],
)  # fmt: skip
def test_what_stands_in_the_administrators_files_is_a_persons(
    tuned: Tuned, file: str, text: str
) -> None:
    tuned.tree.write(file, text)
    outcome = tuned.tune()
    assert states(outcome.findings) == [State.SET_BY_HAND, State.AS_WANTED, State.AS_WANTED]
    assert f"set in /{file}" in outcome.findings[0].why
    assert settings_of(tuned.tree)[0] == "4096"
    overwriting = profile(line(atLeast="4 * nodes", overwrite="true"))
    assert states(tuned.tune(overwriting).findings) == [State.AS_WANTED]


def test_a_file_of_the_administrator_that_no_longer_holds_does_not_count(tuned: Tuned) -> None:
    tuned.tree.write("etc/sysctl.d/90-own.conf", "net.core.somaxconn = 1024")
    tuned.tree.write("etc/sysctl.d/notes.txt", "net.core.somaxconn = 4096")
    assert tuned.tune().changed == 3


def test_a_reboot_ends_the_record_as_it_ends_the_settings(tuned: Tuned) -> None:
    tuned.tune()
    tuned.tree.boots(NEXT_BOOT)
    tuned.tree.write(SOMAXCONN, 1024)  # what this boot began with
    assert tuned.restore().restored == ()
    assert tuned.tune().findings[0].state is State.AS_WANTED
    tuned.restore()
    assert settings_of(tuned.tree)[0] == "1024"


def test_a_write_that_fails_is_told_and_stops_no_other(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = os.open, str(tuned.tree.root / SOMAXCONN)

    def open_(path: Any, flags: int, *rest: int) -> int:
        if str(path) == refused and flags & os.O_WRONLY:
            raise OSError(30, "Read-only file system", refused)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", open_)
    outcome = tuned.tune()
    assert states(outcome.findings) == [State.REFUSED, State.AS_WANTED, State.AS_WANTED]
    assert outcome.findings[0].why == "10000 cannot be written: Read-only file system"
    monkeypatch.undo()
    assert tuned.tune().changed == 1, "what could not be written is no person's"
    monkeypatch.setattr(os, "open", open_)
    (failed,) = [each for each in tuned.restore().restored if each.why]
    assert failed.why == "4096 cannot be written: Read-only file system"
    monkeypatch.undo()
    assert tuned.restore().restored[0].value == "4096"
    assert settings_of(tuned.tree) == ("4096", "32768", "never")


def test_a_value_that_the_kernel_makes_smaller_is_told_once_and_restored(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.node.tuning import apply

    written: list[str] = []

    def clamping(host: Any, target: str, value: str) -> None:
        written.append(value)
        tuned.tree.write(target, min(int(value), 8192))

    monkeypatch.setattr(apply, "write_value", clamping)
    wanted = profile(line(atLeast="4 * nodes"))
    for _ in range(2):
        (found,) = tuned.tune(wanted).findings
        assert (found.state, found.why) == (State.REFUSED, "the kernel makes 8192 of 10000")
    assert written == ["10000"]
    tuned.restore()
    assert settings_of(tuned.tree)[0] == "4096"


@pytest.mark.parametrize("text", ["what", "{}", '{"version": 9, "bootId": "", "entries": {}}'])
def test_nothing_is_set_with_a_record_that_cannot_be_read(tuned: Tuned, text: str) -> None:
    tuned.record.parent.mkdir()
    tuned.record.write_text(text)
    with pytest.raises(RecordError, match=r"record of settings|has version 9"):
        tuned.tune()
    assert settings_of(tuned.tree) == ("4096", "32768", "always madvise [never]")


def test_nothing_is_set_without_a_place_for_the_record(tuned: Tuned) -> None:
    tuned.record.parent.write_text("a file")
    with pytest.raises(RecordError):
        tuned.tune()
    assert settings_of(tuned.tree)[0] == "4096"


# killed at any line


def left_by_kills(call: Callable[[], object], folder: Path, copies: Path) -> tuple[int, list[Path]]:
    """Run a call; return how many lines of the code of tuning it has, and the folder in each state
    in which SIGKILL before one of them leaves it, its end included.

    What the code has not handed to the kernel is not in the copies, as it is lost with a process.
    """
    lines, seen, found = 0, set[tuple[tuple[str, bytes], ...]](), list[Path]()

    def look() -> None:
        paths = [Path(where) / name for where, _, names in os.walk(folder) for name in names]
        state = tuple(sorted((str(path), path.read_bytes()) for path in paths))
        if state not in seen:
            seen.add(state)
            copy = copies / str(len(seen))
            found.append(shutil.copytree(folder, copy, symlinks=True))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        file = frame.f_code.co_filename
        if "/node/tuning/" not in file and not file.endswith("/node/files.py"):
            return None
        if event == "line" and file.endswith(("apply.py", "record.py", "files.py")):
            lines += 1
            look()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    look()
    return lines, found


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder where thousands of records that must be on the disk cost nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.mark.parametrize("step", ["set", "change", "restore"])
def test_killed_at_any_line_the_next_run_ends_as_one_that_was_not(
    in_memory: Path, tree: HostTree, step: str
) -> None:
    changed = profile(line(value=7), line(name="kernel.pid_max", value=65536))
    folder = in_memory / "run"
    shutil.copytree(tree.root, folder / "host", symlinks=True)
    tuned = Tuned(HostTree(folder / "host"), folder)
    calls: dict[str, Callable[[], object]] = {
        "set": tuned.tune, "change": lambda: tuned.tune(changed), "restore": tuned.restore,
    }  # fmt: skip
    if step != "set":
        tuned.tune()
    lines, killed = left_by_kills(calls[step], folder, in_memory)
    assert lines > 50
    assert len(killed) > 5
    for copy in killed:
        after = Tuned(HostTree(copy / "host"), copy)
        outcome = after.tune()
        assert states(outcome.findings) == [State.AS_WANTED] * 3, (copy, outcome)
        assert settings_of(after.tree) == ("10000", "65536", "madvise"), copy
        assert not [each for each in after.restore().restored if each.why], copy
        assert settings_of(after.tree) == ("4096", "32768", "never"), copy
