"""The catalogue of what hurt large clusters: each entry is a check, or the design says why not."""

from __future__ import annotations

import pkgutil
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.doctor import checks
from fairlead.doctor.check import Finding, evaluate
from fairlead.doctor.expressions import reads
from fairlead.doctor.facts import ClusterFacts, MeasuredValue, Source
from fairlead.doctor.metrics import Family, Scrapes
from fairlead.doctor.readers.node_pods import parse_node_facts
from fairlead.doctor.registry import BY_ID, CHECKS

ROOT = Path(__file__).parents[3]
DESIGN = ROOT / "docs" / "design" / "doctor.md"
HOWTO = ROOT / "docs" / "howto" / "doctor.md"
DATA = Path(__file__).parent / "data"
SCRIPT = ROOT / "src" / "fairlead" / "doctor" / "readers" / "node_facts.sh"
#: Entries of the catalogue by subject; what the project added has other numbers or a letter.
ENTRIES = {"ETCD": 20, "API": 30, "AUD": 12, "SCH": 9, "CA": 6, "DNS": 13, "IMG": 12, "KUB": 5,
           "SYS": 10, "NET": 13, "MET": 16}  # fmt: skip


def left_out() -> dict[str, str]:
    """Return the reasons of the design page by entry."""
    section = DESIGN.read_text().partition("## What is no check")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([A-Z]+-\d+) \| .* \| (.+) \|$", section, re.MULTILINE))


def test_each_entry_of_the_catalogue_is_a_check_or_has_its_reason() -> None:
    catalogue = {f"{name}-{n:02d}" for name, count in ENTRIES.items() for n in range(1, count + 1)}
    assert len(catalogue) == 146
    assert {each for each in catalogue if each not in BY_ID} == set(left_out())
    assert len(left_out()) < 15


def test_a_check_is_in_the_module_of_its_prefix() -> None:
    """A prefix is in one module; of the API server those of webhooks and of its log are apart."""
    homes = dict[str, set[str]]()
    for module in pkgutil.iter_modules(checks.__path__):
        found = vars(import_module(f"{checks.__name__}.{module.name}")).get("CHECKS", ())
        for check in found:
            homes.setdefault(check.id.partition("-")[0], set()).add(module.name)
    assert homes.pop("API") == {"apiserver", "webhooks", "audit"}
    assert all(len(modules) == 1 for modules in homes.values()), homes
    assert homes.keys() == ENTRIES.keys() - {"API"}


def test_the_facts_that_checks_read_are_those_that_the_script_writes() -> None:
    folder = ROOT / "src" / "fairlead" / "doctor" / "checks"
    code = "".join(file.read_text() for file in sorted(folder.glob("*.py"))).replace(
        '"fairlead.dev', ""
    )
    code = code.replace('f"{CONTAINERD}', '"fairlead.containerd.')
    read = set(re.findall(r'"fairlead\.([\w.]*\w)"', code))
    script = SCRIPT.read_text().replace("${table}", "arp")
    written = set(re.findall(r"fact ([\w.]+)", script))
    (names,) = re.findall(r"for name in ([^;]*);", script)
    written |= {f"containerd.{name}" for name in names.replace("\\", " ").split()}
    assert {name.replace("ndisc", "arp") for name in read} <= written
    assert len(read) > 15


def test_the_page_shows_the_script() -> None:
    assert SCRIPT.read_text() in HOWTO.read_text()


def test_the_script_writes_facts_of_this_machine() -> None:
    done = subprocess.run(
        ["sh", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stderr == ""
    facts = parse_node_facts(done.stdout)
    assert int(facts["fairlead.tcp_sent"]) >= int(facts["fairlead.tcp_retransmitted"])
    own = [key for key in facts if key.startswith("fairlead.")]
    assert all(re.fullmatch(r"fairlead\.[a-z_.]+", key) for key in own)


#: Both as `containerd config dump` and `ctr images ls` of these versions print them.
DUMPS = {each: (DATA / f"containerd-{each}.toml").read_text() for each in ("1.6.20", "2.4.2")}
SANDBOX = "registry.k8s.io/pause:3.10.2"
IMAGES = f"""\
REF TYPE DIGEST SIZE PLATFORMS LABELS
docker.io/library/pause:other application/vnd.oci.image.manifest.v1+json sha256:7e80 1.4 MiB \
linux/amd64 io.cri-containerd.image=managed
{SANDBOX} application/vnd.oci.image.manifest.v1+json sha256:7e81 1.4 MiB \
linux/amd64 io.cri-containerd.image=managed,io.cri-containerd.pinned=pinned
sha256:91c3 application/vnd.oci.image.manifest.v1+json sha256:7e81 1.4 MiB \
linux/amd64 io.cri-containerd.image=managed,io.cri-containerd.pinned=pinned
"""


def runtime_facts(directory: Path, dump: str) -> dict[str, str]:
    """Return the facts of a node whose containerd has this configuration."""
    for name, text in (("containerd", dump), ("ctr", IMAGES)):
        program = directory / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        env={"PATH": f"{directory}:/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    assert done.stderr == ""
    return parse_node_facts(done.stdout)


def test_facts_of_a_runtime_come_from_real_dumps(tmp_path: Path) -> None:
    new, old = (runtime_facts(tmp_path, DUMPS[each]) for each in ("2.4.2", "1.6.20"))
    prefix = "fairlead.containerd."
    assert {key.removeprefix(prefix): value for key, value in new.items() if prefix in key} == {
        "max_concurrent_downloads": "3", "concurrent_layer_fetch_buffer": "0",
        "image_pull_progress_timeout": "5m0s",
    }  # fmt: skip
    assert new["fairlead.pinned_sandbox_images"] == "1"
    assert {key: value for key, value in old.items() if prefix in key} == {
        f"{prefix}max_concurrent_downloads": "3"
    }, "the others are of 1.7 and 2.2"
    assert old["fairlead.pinned_sandbox_images"] == "0"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The transfer service pulls, with its own settings ...
        ({"service": "10"}, "10"),
        # ... unless one that it does not know makes containerd pull as before.
        ({"cri": "7", "service": "10"}, "7"),
        ({"use_local_image_pull = false": "use_local_image_pull = true", "service": "10"}, "3"),
        ({"discard_unpacked_layers = false": "discard_unpacked_layers = true", "service": "10"},
         "3"),
        ({"image_pull_with_sync_fs = false": "image_pull_with_sync_fs = true", "service": "10"},
         "3"),
    ],
)  # fmt: skip
def test_settings_of_pulls_are_those_of_the_plugin_that_pulls(
    changes: dict[str, str], expected: str, tmp_path: Path
) -> None:
    first, second, rest = DUMPS["2.4.2"].split("max_concurrent_downloads = 3")
    dump = (f"{first}max_concurrent_downloads = {changes.pop('cri', '3')}{second}"
            f"max_concurrent_downloads = {changes.pop('service', '3')}{rest}")  # fmt: skip
    for before, after in changes.items():
        assert before in dump
        dump = dump.replace(before, after)
    facts = runtime_facts(tmp_path, dump)
    assert facts["fairlead.containerd.max_concurrent_downloads"] == expected


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_the_first_source_of_a_check_over_metrics_is_that_of_its_metric(check: object) -> None:
    source = getattr(check.measure, "source", None)  # type: ignore[attr-defined]
    assert source in (None, check.needs[0])  # type: ignore[attr-defined]
    assert source is not Source.RECORDED


def test_a_function_that_does_not_say_which_samples_it_reads_is_found_out() -> None:
    """What no check says that it reads is dropped from the pages, and would be unknown for ever."""

    def forgetful(facts: ClusterFacts) -> Iterator[MeasuredValue]:
        for instance, _ in facts.family(Source.ETCD, "etcd_server_version"):
            yield MeasuredValue(instance, 1.0, "")

    page = Scrapes("etcd-0", {"etcd_server_version": Family({(): 1.0})})
    facts = ClusterFacts(scrapes={Source.ETCD: (page,)})
    other = reads(Source.ETCD, gauges=("etcd_debugging_other",))(forgetful)
    for measure in (forgetful, other):
        check = replace(BY_ID["ETCD-07"], measure=measure)
        with pytest.raises(AssertionError, match="does not say so"):
            evaluate(check, facts)
    said = reads(Source.ETCD, gauges=("etcd_server_version",))(forgetful)
    (finding,) = evaluate(replace(BY_ID["ETCD-07"], measure=said), facts)
    assert isinstance(finding, Finding)
