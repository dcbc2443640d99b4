"""`fairlead tune plan` and `fairlead node tune`: from what the agents of the nodes reported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden.cli_golden import check
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api.cluster.node_report import (
    NodeReportStatus,
    ReportedSetting,
    ReportedTuning,
    SettingState,
    TuningMode,
)
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODE_REPORTS, NODES
from fairlead.cli.main import guarded
from fairlead.input.errors import Exit
from fairlead.testing.builders import make_node

PROFILE = """
name: wanted
lines:
- {kind: Sysctl, name: net.core.somaxconn, atLeast: 2 * nodes, reason: r, source: s}
- {kind: Sysctl, name: kernel.numa_balancing, value: 0, when: gpus, reason: r, source: s}
"""
DIFFERENCE = ReportedSetting("net.core.somaxconn", SettingState.DIFFERS, "4096", "at least 15000",
                             "2 * nodes with nodes = 7,500")  # fmt: skip
Cli = Callable[..., tuple[int, str, str]]


def tuning(somaxconn: int, *differences: ReportedSetting) -> ReportedTuning:
    values = {"net.core.somaxconn": str(somaxconn), "kernel.numa_balancing": "1"}
    return ReportedTuning("ml-node", TuningMode.VERIFY, {"gpus": 8, "nodes": 7500}, values,
                          differences, left_out=1 if differences else 0,
                          not_judged=2 if differences else 0)  # fmt: skip


def report(api: FakeApi, name: str, found: ReportedTuning | None, uid: str) -> None:
    status = to_wire(NodeReportStatus(node_uid=uid, tuning=found))

    async def write() -> None:
        await api.client.create(NODE_REPORTS, {"metadata": {"name": name}, "status": status})

    asyncio.run(write())


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    api: FakeApi,
) -> Cli:  # fmt: skip
    for name in ("n1", "n2", "n3", "n4", "n5"):
        api.create(NODES.raw, to_wire(make_node(name)))
    uids = {each.metadata.name: each.metadata.uid for each in api.list(NODES)}
    report(api, "n1", tuning(4096, DIFFERENCE), uids["n1"])
    report(api, "n2", tuning(4096), uids["n2"])
    report(api, "n3", tuning(32768), uids["n3"])
    report(api, "n4", tuning(4096), "an earlier machine of the name")
    serve(monkeypatch, api)
    (tmp_path / "profile.yaml").write_text(PROFILE)

    def run(*words: str) -> tuple[int, str, str]:
        code = guarded([each.replace("FILE", str(tmp_path / "profile.yaml")) for each in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_plan_says_what_would_change_where(cli: Cli) -> None:
    code, out, err = cli("tune", "plan", "-f", "FILE", "--fact", "nodes=9000", "-o", "wide")
    assert code == Exit.OK
    check("tables/tune-plan.txt", out + err)
    code, out, _ = cli("tune", "plan", "-f", "FILE", "-o", "json")
    found = json.loads(out)
    assert code == Exit.OK
    assert found["unreported"] == ["n4", "n5"]
    assert [each["nodes"] for each in found["changes"]] == [["n1", "n2"], ["n1", "n2", "n3"]]


STARTS = """
name: starts
lines:
- {kind: KernelArgument, name: iommu, value: pt, reason: r, source: s}
- {kind: Sysctl, name: net.core.somaxconn, atLeast: 8192, reason: r, source: s}
"""


def test_a_plan_says_how_many_nodes_start_again_and_what_no_node_tells(
    cli: Cli, api: FakeApi, tmp_path: Path
) -> None:
    (tmp_path / "profile.yaml").write_text(STARTS)
    uids = {each.metadata.name: each.metadata.uid for each in api.list(NODES)}
    found = ReportedTuning("p", TuningMode.VERIFY, {}, {"KernelArgument iommu": "not set"})
    report(api, "n5", found, uids["n5"])
    *_, line, pace = cli("tune", "plan", "-f", "FILE")[2].splitlines()
    assert line == (
        "0 nodes as wanted; 3 with changes, 1 of them by a restart; 1 not judged; "
        "1 report no settings (n4)"
    )
    assert pace == (
        "it takes 15m at least within the budgets for nodes out of service, each 15m when it is "
        "empty; nodes with work are emptied first"
    )
    assert json.loads(cli("tune", "plan", "-f", "FILE", "-o", "json")[1])["leastSeconds"] == 900
    for name in ("n1", "n2", "n3", "n5"):
        api.delete(NODE_REPORTS.raw, name)
    assert "no node reports its settings" in cli("tune", "plan", "-f", "FILE")[2]


def test_a_node_says_what_differs(cli: Cli) -> None:
    code, out, err = cli("node", "tune", "n1")
    assert code == Exit.OK
    check("tables/node-tune.txt", out + err)
    assert json.loads(cli("node", "tune", "n1", "-o", "json")[1])["values"]
    code, out, err = cli("node", "tune", "n3")
    assert (code, out) == (Exit.OK, "")
    assert "nothing differs" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("node", "tune", "n4"), "node 'n4' reports no settings"),
        (("node", "tune", "n5"), "its agent needs a profile"),
        (("node", "tune", "n17"), "there is no node 'n17'"),
        (("tune", "plan", "-f", "ml-nod"), "did you mean ml-node?"),
        (("tune", "plan", "-f", "FILE", "--fact", "node=1"), "--fact nodes"),
    ],
)
def test_what_is_refused_says_what_to_do(cli: Cli, words: tuple[str, ...], message: str) -> None:
    code, _, err = cli(*words)
    assert code == Exit.USAGE
    assert message in err
