"""`fairlead network`: budgets and their use, and why a pod sends no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.unit.cli.fake_api import FakeApi, serve
from tests.unit.doctor.loopback import Answer, loopback

from fairlead.api.cluster.node_report import (
    DestinationShare,
    EgressShare,
    NodeReportSpec,
    NodeReportStatus,
    ReportedDestination,
    ReportedFlow,
    ReportedPodEgress,
    ReportedShaping,
    ReportedTeamEgress,
    ReportedTraffic,
)
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODE_REPORTS, NODES, PODS, TEAMS
from fairlead.api.status import NotFound
from fairlead.api.values.egress import TrafficDirection
from fairlead.cli.main import guarded
from fairlead.input.errors import Exit
from fairlead.testing.builders import make_node, make_pod, make_team

M, G = 10**6, 10**9
Cli = Callable[..., tuple[int, str, str]]


def report(name: str, sent: int, *pods: ReportedPodEgress) -> dict[str, object]:
    line = ReportedTeamEgress("vision", 600 * M, sent, 2 * sent, dropped=7, pods=len(pods))
    egress = TrafficDirection.EGRESS
    to = ReportedDestination("datasets", egress, 300 * M, 250 * M, G, dropped=3, pods=2)
    shaping = ReportedShaping("limit", "eth0 has several transmit queues", teams=(line,), pods=pods,
                              destinations=(to,))  # fmt: skip
    share = EgressShare("vision", ("default",), 600 * M, 100 * M)
    shared = DestinationShare("datasets", egress, 300 * M, 100 * M, 2 * G)
    flows = (
        ReportedFlow("internet", "default", "", "train-7", 3 << 30, 1 << 30, sent, 2 * M),
        ReportedFlow("internet", "default", "", "", 1 << 30, 0, 10 * M, 0),
        ReportedFlow("internal", "other", "", "", 1 << 20, 1 << 20, M, M),
        ReportedFlow("internal", sent=1 << 10),
    )
    return {
        "metadata": {"name": name},
        "spec": to_wire(NodeReportSpec((share,), destinations=(shared,))),
        "status": to_wire(NodeReportStatus(shaping=shaping, traffic=ReportedTraffic(flows=flows))),
    }


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    api = FakeApi()
    for name in ("n1", "n2", "n3", "n4"):
        api.create(NODES.raw, to_wire(make_node(name)))
    team = to_wire(make_team("vision", namespaces=["default"], network={"internetEgress": "1G"}))
    api.create(TEAMS.raw, team)
    api.create(TEAMS.raw, to_wire(make_team("audio")))
    pods = {"loader": ("n1", "200M"), "other": ("n2", None), "odd": ("n1", "fast"),
            "bare": ("n3", None), "new": ("", None)}  # fmt: skip
    for name, (node, limit) in pods.items():
        notes = {"fairlead.dev/internet-egress": limit} if limit else {}
        notes |= {"kubernetes.io/ingress-bandwidth": "2G"} if name == "odd" else {}
        labels = {"fairlead.dev/job-name": "train-7"} if name == "loader" else {}
        spec = to_wire(make_pod(name, node=node).spec)
        meta = {"name": name, "namespace": "default", "annotations": notes, "labels": labels}
        api.create(PODS.raw, {"metadata": meta, "spec": spec}, namespace="default")

    async def write() -> None:
        loader = ReportedPodEgress("default", "loader", "vision", 200 * M, 190 * M, 7, 3600)
        other = ReportedPodEgress("default", "other", "vision", 0, 400 * M, 0)
        await api.client.create(NODE_REPORTS, report("n1", 190 * M, loader))
        await api.client.create(NODE_REPORTS, report("n2", 400 * M, other))
        flows = (ReportedFlow("datasets", "default", sent_rate=M),)
        status = to_wire(NodeReportStatus(traffic=ReportedTraffic(flows=flows)))
        await api.client.create(NODE_REPORTS, {"metadata": {"name": "n3"}, "status": status})

    asyncio.run(write())
    serve(monkeypatch, api)
    gone = NotFound("404 page not found")
    api.logs = [[], [gone], [gone]]  # the history has no such job; then it cannot be read

    def run(*words: str) -> tuple[int, str, str]:
        code = guarded(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_budgets_are_shown_with_their_use_and_with_nodes_that_limit_nothing(cli: Cli) -> None:
    code, out, err = cli("network", "show")
    assert code == Exit.OK
    lines = [line.split() for line in out.splitlines()]
    assert ["vision", "egress", "1G", "590M", "1.2G", "1.18G", "2", "2", "1"] in lines
    assert not any(line[:1] == ["audio"] for line in lines)
    assert ["default", "other", "vision", "-", "400M", "0", "n2"] in lines
    assert "n3: their agents keep no limits" in err + out
    assert ["datasets", "egress", "2G", "500M", "600M", "2G", "4", "2", "1"] in lines
    assert "destination datasets: egress is not limited on n3" in err


def test_traffic_is_added_up_by_team_namespace_and_job_with_what_is_not_counted(cli: Cli) -> None:
    code, out, err = cli("network", "traffic")
    assert code == Exit.OK
    lines = [line.split() for line in out.splitlines()]
    assert lines[1] == ["vision", "internet", "610M", "4M", "8Gi", "2Gi", "2"]
    assert ["-", "internal", "2M", "2M", "2Mi", "2Mi", "2"] in lines
    assert "no agent reports of n4" in err
    _, out, _ = cli("network", "traffic", "--by", "namespace")
    assert ["-", "(node)", "internal", "0", "0", "2Ki", "0B", "2"] in [
        line.split() for line in out.splitlines()
    ]
    of_job = ("network", "traffic", "--job", "train-7", "--class", "internet", "-o", "json")
    for said in ("", "whether a job of this name has ended is not known"):
        _, out, err = cli(*of_job)
        (line,) = json.loads(out)["traffic"]
        assert (line["job"], line["sends"], line["sent"], line["nodes"]) == (
            "train-7", 590 * M, 6 << 30, 2,
        )  # fmt: skip
        assert bool(said) == ("not known" in err)
        assert said in err
    _, out, err = cli("network", "traffic", "--team", "audio")
    assert (out, "no traffic is reported" in err) == ("", True)


def test_pods_are_chosen_by_job_and_team(cli: Cli) -> None:
    _, out, _ = cli("network", "show", "--job", "train-7", "-o", "json")
    assert [each["line"]["name"] for each in json.loads(out)["pods"]] == ["loader"]
    _, out, _ = cli("network", "show", "--team", "audio", "-o", "json")
    assert json.loads(out) == {"teams": [], "destinations": [], "pods": []}


@pytest.mark.parametrize(("pod", "said"), [
    ("loader", ["Its own limit is 200Mbit/s.", "Team vision may send 600Mbit/s from this node, of "
                "1Gbit/s.", "It sends 190Mbit/s; 7 packets were dropped",
                "It has been held back for 1h.",
                "Over 2 nodes it sends 590Mbit/s and wants 1.18Gbit/s.",
                "All pods of this node together may send 300Mbit/s to datasets, of 2Gbit/s. Over 2 "
                "nodes 500Mbit/s are sent, and 2Gbit/s are wanted.", "default/other on n2",
                "eth0 has several transmit queues"]),
    ("odd", ["Its own limit counts for nothing: 'fast' is no rate", "It is not among the pods",
             "All that it receives is to be at most 2Gbit/s (kubernetes.io/ingress-bandwidth)"]),
    ("bare", ["The agent of node n3 keeps no limits"]),
    ("new", ["It is on no node yet."]),
])  # fmt: skip
def test_why_says_which_limits_a_pod_has_and_who_uses_the_budget(
    cli: Cli, pod: str, said: list[str]
) -> None:
    code, out, _ = cli("network", "why", pod)
    assert code == Exit.OK
    for each in said:
        assert each in out


def test_a_pod_that_is_not_there_is_an_error(cli: Cli) -> None:
    code, _, err = cli("network", "why", "none")
    assert code == Exit.NOT_FOUND
    assert "no pod 'none'" in err


def range_answer(path: str, _: bytes) -> Answer:
    """Answer a range query for what a team sends: 2 Gbit/s, and 8 in the last step but one."""
    asked = parse_qs(urlsplit(path).query)
    query = asked["query"][0]
    start, end, step = (int(float(asked[name][0])) for name in ("start", "end", "step"))
    usual, busy = next(
        figures for name, figures in {
            "bool": (0.0, 0.5), "clamp_min": (0.0, 3e9), "max_over_time": (2e9, 12e9),
            "avg_over_time": (2e9, 8e9),
        }.items() if name in query
    )  # fmt: skip
    values = [[at, str(busy if at == end - step else usual)] for at in range(start, end + 1, step)]
    result = [{"metric": {}, "values": values}] if 'direction="out"' in query else []
    return Answer(json.dumps({"status": "success", "data": {
        "resultType": "matrix", "result": result,
    }}).encode())  # fmt: skip


def test_a_dry_run_says_what_a_budget_would_have_held_back(cli: Cli) -> None:
    with loopback(range_answer) as server:
        flags = ("--prometheus", server.url, "--since", "1d")
        code, out, _ = cli("network", "dry-run", "vision", "--egress", "5G", *flags)
        assert code == Exit.OK
        assert "2.03Gbit/s on average, 12Gbit/s at most" in out
        assert "A budget of 5Gbit/s would have held it back for 3m" in out
        assert "8Gbit/s, 3Gbit/s beyond it" in out
        assert "There is a budget of 1G now" in out
        _, out, _ = cli("network", "dry-run", "--destination", "datasets", "--egress", "5G", *flags)
        assert "all teams sent to datasets" in out
        assert "A budget of 5Gbit/s would have held it back for 3m" in out
        assert "There is a budget of 2G now" in out
        assert "class%3D%22datasets%22" in server.seen[-1][1]
        _, out, _ = cli("network", "dry-run", "vision", "--ingress", "5G", *flags)
        assert "Prometheus has nothing of what team vision received" in out
        _, out, _ = cli("network", "dry-run", "vision", "--egress", "5G", *flags, "-o", "json")
        (run,) = json.loads(out)
        assert run["beyondBytes"] == 3e9 * run["heldBackSeconds"] * 2 / 8
        assert "team%3D%22vision%22" in server.seen[0][1]


@pytest.mark.parametrize(("words", "code", "said"), [
    (("vision",), Exit.USAGE, "no budget to try"),
    (("--egress", "5G"), Exit.USAGE, "a budget is of a TEAM or of a --destination"),
    (("vision", "--destination", "datasets", "--egress", "5G"), Exit.USAGE, "a budget is of"),
    (("vision", "--egress", "fast"), Exit.USAGE, "--egress: 'fast' is no rate"),
    (("visio", "--egress", "5G"), Exit.USAGE, "there is no team 'visio'"),
    (("vision", "--egress", "5G"), 3, "127.0.0.1"),
])  # fmt: skip
def test_a_dry_run_that_cannot_be_made_says_why(
    cli: Cli, words: tuple[str, ...], code: int, said: str
) -> None:
    found, _, err = cli("network", "dry-run", *words, "--prometheus", "http://127.0.0.1:1")
    assert (found, said in err) == (code, True)
