"""`fairlead agent tune`: what it shows, sets and refuses, and its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden.cli_golden import check
from tests.unit.node.host_tree import HostTree

from fairlead.cli.main import guarded
from fairlead.input.errors import Exit
from fairlead.node.tuning import parse_profile

PAGE = Path(__file__).parents[4] / "docs" / "howto" / "tuning.md"
SOMAXCONN = "proc/sys/net/core/somaxconn"
Tune = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    made = HostTree(tmp_path / "host")
    made.write(SOMAXCONN, 4096)
    for version in ("ipv4", "ipv6"):
        for number, value in ((1, 128), (2, 512), (3, 1024)):
            made.write(f"proc/sys/net/{version}/neigh/default/gc_thresh{number}", value)
    made.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
    made.write("sys/devices/system/cpu/online", "0-127")
    made.write("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "powersave")
    made.write("sys/devices/system/cpu/cpufreq/policy1/scaling_governor", "powersave")
    made.write("proc/sys/kernel/pid_max", 4_194_304)
    return made


@pytest.fixture
def tune(tree: HostTree, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tune:
    def run(*flags: str) -> tuple[int, str, str]:
        record = ["--record", str(tmp_path / "record.json")]
        code = guarded(["agent", "tune", "--root", str(tree.root), *record, *flags])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_differences_with_their_formulas(tune: Tune) -> None:
    code, out, err = tune("--profile", "ml-node", "--fact", "nodes=2500", "--fact", "pods=60000")
    assert code == Exit.FAILED
    check("tables/agent-tune.txt", out + err)


def test_what_the_page_shows(tune: Tune, tree: HostTree, tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    page = PAGE.read_text()
    (text,) = re.findall(r"```yaml\n(name:.*?)```", page, re.DOTALL)
    assert len(parse_profile(text, "page").wants) == 3
    (tmp_path / "profile.yaml").write_text(text)
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (settings,) = (each for each in blocks if "kernelArguments" in each)
    own = settings.replace("/etc/fairlead/profile.yaml", "./profile.yaml")
    (tmp_path / "agent.yaml").write_text(own)
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^\$ fairlead agent tune (.*?)(?:#.*)?$", page, re.MULTILINE)
    codes = [tune(*shlex.split(each))[0] for each in shown]
    assert codes == [Exit.FAILED] * 3 + [Exit.OK] * 2 + [Exit.FAILED]
    assert tree.host().text(SOMAXCONN) == "4096"


def test_apply_sets_and_restore_takes_back(tune: Tune, tree: HostTree) -> None:
    given = ("--profile", "ml-node", "--fact", "nodes=9000", "--fact", "pods=9000")
    code, _, err = tune(*given, "--apply", "-q")
    assert (code, err) == (Exit.OK, "")
    assert tree.host().text(SOMAXCONN) == "16384"
    assert tree.host().number("proc/sys/net/ipv6/neigh/default/gc_thresh3") == 36_000
    code, out, _ = tune(*given, "-o", "json")
    assert code == Exit.OK
    assert {each["state"] for each in json.loads(out)["findings"]} >= {"AsWanted", "Absent"}
    code, out, err = tune("--restore")
    assert (code, out) == (Exit.OK, "")
    assert "net.core.somaxconn: restored to 4096" in err.splitlines()
    assert tree.host().text(SOMAXCONN) == "4096"


def test_facts_profile_and_record_come_from_the_agents_settings(
    tune: Tune, tree: HostTree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "node.yaml"
    record = tmp_path / "own.json"
    config.write_text(
        f"tuning: {{profile: ml-node, facts: {{nodes: 9000, pods: 2}}, record: {record}}}"
    )
    assert guarded(["agent", "tune", "--root", str(tree.root), "--config", str(config)]) == 1
    capsys.readouterr()
    code, out, _ = tune("--config", str(config), "--fact", "pods=1000", "-o", "json")
    assert code == Exit.FAILED
    assert json.loads(out)["findings"][0]["wanted"] == "at least 10000"
    guarded(["agent", "tune", "--root", str(tree.root), "--config", str(config), "--apply"])
    assert record.exists()
    assert not (tmp_path / "record.json").exists()
    config.write_text("tuning: {facts: {node: 1}}")
    code, _, err = tune("--config", str(config))
    assert code == Exit.USAGE
    assert "no fact 'node'; there are nodes" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "name a file, or one of ml-node, rdma-node"),
        (["--profile", "ml-nod"], "did you mean ml-node?"),
        (["--profile", "ml-node", "--fact", "node=1"], "--fact nodes"),
        (["--profile", "ml-node", "--fact", "nodes=-1"], "'nodes=-1' is not NAME=NUMBER"),
        (["--profile", "ml-node", "--fact", "nodes"], "'nodes' is not NAME=NUMBER"),
        (["--profile", "ml-node", "--restore"], "neither --apply nor --profile"),
        (["--profile", "ml-node", "--root", "/dev"], "--root:"),
        (["--profile", "ml-node", "--apply", "--record", "/dev/null/record"], "nothing is set"),
    ],
)
def test_what_is_refused_says_what_to_do(tune: Tune, flags: list[str], said: str) -> None:
    code, _, err = tune(*flags)
    assert code in (Exit.USAGE, Exit.REFUSED)
    assert said in err
