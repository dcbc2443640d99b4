"""The catalogue of what hurt large clusters: each entry is a check, or the design says why not."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fairlead.doctor.facts import Source
from fairlead.doctor.readers.nodefile import parse_node_facts
from fairlead.doctor.registry import BY_ID, CHECKS

ROOT = Path(__file__).parents[3]
DESIGN = ROOT / "docs" / "design" / "doctor.md"
HOWTO = ROOT / "docs" / "howto" / "doctor.md"
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


def test_the_facts_that_checks_read_are_those_that_the_script_writes() -> None:
    checks = ROOT / "src" / "fairlead" / "doctor" / "checks"
    code = "".join((checks / f"{name}.py").read_text() for name in ("nodes", "network", "runtime"))
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
    done = subprocess.run(["sh", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    facts = parse_node_facts(done.stdout)
    assert int(facts["fairlead.tcp_sent"]) >= int(facts["fairlead.tcp_retransmitted"])
    own = [key for key in facts if key.startswith("fairlead.")]
    assert all(re.fullmatch(r"fairlead\.[a-z_.]+", key) for key in own)


def test_facts_of_a_runtime_come_from_the_section_of_kubernetes(tmp_path: Path) -> None:
    containerd = tmp_path / "containerd"
    containerd.write_text(
        "#!/bin/sh\ncat <<'END'\nroot = '/'\n[plugins]\n"
        "  [plugins.'io.containerd.transfer.v1.local']\n    max_concurrent_downloads = 7\n"
        "  [plugins.'io.containerd.cri.v1.images']\n    max_concurrent_downloads = 3\n"
        "    image_pull_progress_timeout = '5m0s'\nEND\n"
    )
    containerd.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", SCRIPT], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin"},
    )  # fmt: skip
    facts = parse_node_facts(done.stdout)
    assert facts["fairlead.containerd.max_concurrent_downloads"] == "3"
    assert facts["fairlead.containerd.image_pull_progress_timeout"] == "5m0s"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_the_first_source_of_a_check_over_metrics_is_that_of_its_metric(check: object) -> None:
    source = getattr(check.measure, "source", None)  # type: ignore[attr-defined]
    assert source in (None, check.needs[0])  # type: ignore[attr-defined]
    assert source is not Source.RECORDED
