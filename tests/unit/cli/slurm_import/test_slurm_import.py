"""A site of Slurm, read from its files: what becomes of it here, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.kubernetes.core import Node, NodeCondition, NodeStatus
from fairlead.api.meta import Amount, ObjectMeta
from fairlead.app.configuration.controller_settings import ControllerSettings
from fairlead.cli.connection.common import Format, dump
from fairlead.cli.slurm_import.accounts import read_associations, read_qos, read_records
from fairlead.cli.slurm_import.conf import Findings, read_conf
from fairlead.cli.slurm_import.fleet import gres_of, read_fleet
from fairlead.cli.slurm_import.manifests import ImportedSite, SlurmSite, imported
from fairlead.cli.slurm_import.nodes_check import KnownBySlurm, differences
from fairlead.cli.slurm_import.options import read_options
from fairlead.cli.submitting.manifest import parse_manifest
from fairlead.input.errors import CliError, Code, Problem

CONF = r"""# a site
ClusterName=demo
SlurmctldHost=ctl1
PreemptType=preempt/qos
PriorityType=priority/multifactor PriorityDecayHalfLife=14-0
SchedulerType=sched/builtin
NodeName=DEFAULT Sockets=2 CoresPerSocket=32 \
   ThreadsPerCore=1 RealMemory=512000
NodeName=cpu[001-010] Feature=ib
nodename=gpu[1-8] Gres=gpu:a100:8(S:0-1),nic:2 RealMemory=1024000 Features=a100,ib Weight=10
NodeName=cloud[1-4] State=CLOUD CPUs=8 RealMemory=16000
NodeSet=ibnodes Feature=ib
PartitionName=DEFAULT MaxTime=7-00:00:00 State=UP
PartitionName=cpu Nodes=cpu[001-010] Default=YES DefaultTime=1:00:00
PartitionName=gpu Nodes=gpu[1-8] AllowAccounts=ml,vision
PartitionName=debug Nodes=ibnodes MaxTime=30
PartitionName=burst Nodes=cloud[1-4]
"""
DUMP = """# dump
Cluster - 'demo':Fairshare=1:QOS='normal'
Parent - 'root'
User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1
Account - 'ml':Description='machine: learning':Fairshare=30:GrpTRES=cpu=1000,gres/gpu=64:MaxJobs=10M
Account - 'chem':Fairshare=10:QOS='normal,high':MaxWallDurationPerJob=1440
Parent - 'ml'
Account - 'Vision_Lab':Fairshare=2:GrpJobs=20
User - 'ana':DefaultAccount='ml':Fairshare=1:Coordinator='Vision_Lab'
Parent - 'Vision_Lab'
User - 'bo':DefaultAccount='Vision_Lab':Fairshare=1
User - 'cy':DefaultAccount='Vision_Lab':Fairshare=1:MaxJobs=3
Parent - 'chem'
User - 'di':DefaultAccount='chem'
""".replace("=10M", "=10:GrpTRESMins=gres/gpu=60000")
QOS = """Name|Priority|Preempt|MaxWall
normal|0||
high|1000|normal|1-00:00:00
"""
RESERVATIONS = """ReservationName=course StartTime=2026-12-01T08:00:00 EndTime=2026-12-01T12:00:00
   Nodes=gpu[1-2] NodeCnt=2 Users=(null) Accounts=Vision_Lab Licenses=(null) State=INACTIVE

ReservationName=upgrade StartTime=2026-12-02T08:00:00 EndTime=2026-12-02T12:00:00 Nodes=ALL
   Users=root Accounts=(null) Flags=MAINT
"""


def no_file(path: str) -> str:
    raise CliError(Problem(Code.MANIFEST_UNREADABLE, f"'{path}' cannot be read"))


def site_of(
    conf: str, dump_: str = "", qos: str = "", reservations: str = ""
) -> tuple[ImportedSite, Findings]:
    """Return what becomes of the texts of a site's files, with what was found."""
    found = Findings()

    def read(path: str) -> str:
        return conf if path == "slurm.conf" else no_file(path)

    lines = read_conf("slurm.conf", read, found)
    accounts, classes = read_associations("dump", dump_, found)
    records = tuple(read_records("res", reservations, "reservationname"))
    by_name = {each.name: each for each in [*classes, *read_qos("qos", qos, found)]}
    site = SlurmSite(
        read_fleet(lines, found), read_options(lines, found), accounts, list(by_name.values()),
        records,
    )  # fmt: skip
    return imported(site, found), found


def by_name(site: ImportedSite, kind: str) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in site.objects if each["kind"] == kind}


def problems_of(site: ImportedSite) -> list[str]:
    """Return what our own reader of manifests and of settings says against what was made."""
    objects = {"apiVersion": "v1", "kind": "List", "items": list(site.objects)}
    _, problems = parse_manifest(dump(objects, Format.YAML).encode(), "objects.yaml")
    msgspec.convert(site.settings, ControllerSettings)
    return [problem.message for problem in problems] if site.objects else []


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()


def test_accounts_with_users_are_teams_with_their_limits_weights_and_coordinators() -> None:
    site, found = site_of(CONF, DUMP, QOS, RESERVATIONS)
    assert found.problems == []
    assert problems_of(site) == []
    teams = {name: team["spec"] for name, team in by_name(site, "Team").items()}
    assert set(teams) == {"ml", "vision-lab", "chem"}
    assert teams["ml"]["members"] == {"users": ["ana"]}
    assert teams["ml"]["limits"] == {"gpus": 64}
    assert teams["ml"]["userLimits"] == {"running": 10}
    assert teams["ml"]["budget"] == {"gpuHours": 1_000, "halfLifeDays": 14}
    assert teams["vision-lab"]["limits"] == {"running": 20}
    assert teams["vision-lab"]["admins"] == {"users": ["ana"]}
    assert teams["chem"]["jobMaxima"] == {"timeLimitSeconds": 86_400}
    # 3/4 of all is shared 2 to 1 by Vision_Lab and the users of ml, 1/4 is of chem.
    assert {name: spec["weight"] for name, spec in teams.items()} == {
        "ml": 500, "vision-lab": 1_000, "chem": 500,
    }  # fmt: skip
    [course] = teams["vision-lab"]["reservations"]
    assert course == {"name": "course", "startTime": "2026-12-01T08:00:00Z",
                      "endTime": "2026-12-01T12:00:00Z", "nodeNames": ["gpu1", "gpu2"]}  # fmt: skip


def test_partitions_are_pools_of_their_name_or_labels_that_the_settings_name() -> None:
    site, _ = site_of(CONF)
    pools = by_name(site, "NodePool")
    assert {name: pool["spec"]["max"] for name, pool in pools.items()} == {
        "cpu": 10, "gpu": 8, "burst": 4,
    }  # fmt: skip
    gpu = pools["gpu"]["spec"]["template"]
    assert gpu["resources"] == {"cpu": "64", "memory": "1024000Mi", "pods": "110",
                                "nvidia.com/gpu": "8"}  # fmt: skip
    debug = {"partition.fairlead.dev/debug": "true"}
    assert gpu["labels"] == {
        **debug, "feature.fairlead.dev/a100": "true", "feature.fairlead.dev/ib": "true",
        "feature.fairlead.dev/gpu-type": "a100",
    }  # fmt: skip
    assert site.settings["slurm"]["partitions"] == {"debug": debug}, "the others are pools"
    assert [(p["spec"]["min"], p["spec"]["provider"]["type"]) for p in pools.values()] == [
        (10, "Static"), (8, "Static"), (0, "Exec"),
    ]  # fmt: skip
    assert {p["spec"]["mode"] for p in pools.values()} == {"DryRun"}
    assert site.settings["jobMaxima"] == {"timeLimitSeconds": 7 * 86_400}
    assert site.settings["jobDefaults"] == {"timeLimitSeconds": 3_600}
    assert site.settings["placement"] == {"starvationSeconds": 0, "backfills": False}
    assert [line.split()[4] for line in site.labels] == ["cpu001", "gpu1"]
    assert all("fairlead.dev/pool=" in line for line in site.labels)


@pytest.mark.parametrize("name", ["a;reboot", "$(reboot)", "`reboot`", "a&b"])
def test_no_name_of_a_node_is_a_command_of_the_script(name: str) -> None:
    _, found = site_of(f"NodeName={name} CPUs=1\nPartitionName=p Nodes={name}\n")
    with pytest.raises(CliError):
        found.check()


def test_qualities_of_service_are_priority_classes_that_preempt_where_slurm_did() -> None:
    site, found = site_of(CONF, DUMP, QOS)
    assert {name: each["value"] for name, each in by_name(site, "PriorityClass").items()} == {
        "normal": 0, "high": 1_000,
    }  # fmt: skip
    assert not any("preemptionPolicy" in each for each in site.objects)
    assert site.settings["slurm"]["qos"] == {"normal": "normal", "high": "high"}
    assert "qos:3: QOS high: limits are of Teams: preempt, maxwall" in found.notes
    quiet, _ = site_of("NodeName=a\n", qos=QOS)
    assert {each["preemptionPolicy"] for each in by_name(quiet, "PriorityClass").values()} == {
        "Never"
    }


def test_each_line_without_a_counterpart_is_named_with_its_place() -> None:
    _, found = site_of(CONF, DUMP, QOS, RESERVATIONS)
    places = {note.partition(": ")[0] for note in found.notes}
    assert places == {
        "slurm.conf:3", "slurm.conf:5", "slurm.conf:10", "slurm.conf:15", "slurm.conf:16",
        "dump:4", "dump:5", "dump:12", "qos:3", "res:4",
    }  # fmt: skip
    said = "\n".join(found.notes)
    assert "slurm.conf:3: SlurmctldHost: is of Slurm's own daemons" in said
    assert "slurm.conf:15: gpu: without a counterpart: AllowAccounts=ml,vision" in said
    assert "res:4: reservation upgrade has no account that is a Team" in said


def test_mistakes_are_named_all_at_once_with_file_and_line() -> None:
    _, found = site_of(
        "NodeName=n[1-\nNodeName=a CPUs=many\nPartitionName=p Nodes=gone\nnonsense\n"
        "PartitionName=q Nodes=a MaxTime=soon\nNodeName=a\n",
        "Acount - 'x'\nParent - 'none'\n", "Title|X\n",
    )  # fmt: skip
    assert [problem.where for problem in found.problems] == [
        "slurm.conf:4", "dump:1", "dump:2", "qos:1", "slurm.conf:1", "slurm.conf:2",
        "slurm.conf:6", "slurm.conf:3", "slurm.conf:5",
    ]  # fmt: skip
    with pytest.raises(CliError):
        found.check()


def test_continued_lines_comments_quotes_and_includes_are_those_of_slurm(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "slurm.conf").write_text(
        'ClusterName=c1\nINCLUDE sub/nodes-%c.conf # nodes\nepilog="/a b" prolog = /c\\#d\n'
    )
    (tmp_path / "sub/nodes-c1.conf").write_text("Include more.conf\nNodeName=a \\\n  CPUs=2\n")
    (tmp_path / "sub/more.conf").write_text("NodeName=b\n")
    found = Findings()
    lines = read_conf(str(tmp_path / "slurm.conf"), lambda path: Path(path).read_text(), found)
    assert [(Path(line.file).name, line.line, line.key, line.name) for line in lines] == [
        ("slurm.conf", 1, "clustername", "c1"), ("more.conf", 1, "nodename", "b"),
        ("nodes-c1.conf", 2, "nodename", "a"), ("slurm.conf", 3, "epilog", "/a b"),
        ("slurm.conf", 3, "prolog", "/c#d"),
    ]  # fmt: skip
    assert found.problems == []
    (tmp_path / "sub/more.conf").write_text("Include more.conf\nInclude gone.conf\n")
    read_conf(str(tmp_path / "slurm.conf"), lambda path: (
        Path(path).read_text() if Path(path).exists() else no_file(path)), found)  # fmt: skip
    assert [problem.where.rpartition("/")[2] for problem in found.problems] == [
        "more.conf:1", "more.conf:2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "devices", "kind"),
    [
        ("gpu:4", {"nvidia.com/gpu": 4}, ""),
        ("gpu:a100:8(S:0-1),nic:2", {"nvidia.com/gpu": 8}, "a100"),
        ("gpu:a100:no_consume:2", {"nvidia.com/gpu": 2}, "a100"),
        ("gpu:nvidia_h100_80gb_hbm3_3g.40gb:2", {"nvidia.com/mig-3g.40gb": 2}, ""),
        ("gpu,gpu:h100:3", {"nvidia.com/gpu": 4}, "h100"),
        ("(null)", {}, ""),
    ],
)
def test_generic_resources_are_those_of_device_plugins(
    text: str, devices: dict[str, int], kind: str
) -> None:
    assert gres_of(text) == (devices, kind)


_WORDS = st.one_of(
    st.sampled_from([
        "NodeName=", "PartitionName=", "NodeSet=", "DEFAULT", "Nodes=", "ALL", "a[1-3]", "b[01-",
        "Gres=gpu:", "CPUs=", "Feature=x", "MaxTime=", "1-00", "\\\n", "\n", "#", " ", '"', "=",
        "Include ", "slurm.conf", "State=CLOUD", "x" * 70, "Ä", "Account - 'a'", "User - 'u'",
        "Parent - 'a'", ":", "Fairshare=", "9" * 20, "GrpTRES=gres/gpu=", "QOS='a,b'", "|",
        "Name|Priority", "ReservationName=", "StartTime=", "Accounts=a", "Parent - 'root'",
    ]),
    st.text(max_size=8),
)  # fmt: skip
_TEXTS = st.lists(_WORDS, max_size=30).map("".join)


@settings(max_examples=300, deadline=None)
@given(_TEXTS, _TEXTS, _TEXTS, _TEXTS)
def test_any_text_is_a_site_that_our_own_readers_take_or_mistakes_with_a_place(
    conf: str, dump_: str, qos: str, reservations: str
) -> None:
    site, found = site_of(conf, dump_, qos, reservations)
    assert all(":" in problem.where for problem in found.problems)
    if not found.problems:
        assert problems_of(site) == []


def node(name: str, cpus: int, memory: str, gpus: int = 0, **labels: str) -> Node:
    amounts: dict[str, Amount] = {"cpu": str(cpus), "memory": memory, "nvidia.com/gpu": str(gpus)}
    shown = {"kubernetes.io/hostname": name, **{f"fairlead.dev/{k}": v for k, v in labels.items()}}
    ready = (NodeCondition("Ready", "True"),)
    return Node(ObjectMeta(name=name, labels=shown),
                status=NodeStatus(allocatable=amounts, conditions=ready))  # fmt: skip


NODES = """NodeName=n1 Arch=x86_64 CPUTot=8 CPULoad=0.1
   AvailableFeatures=a100,ib Gres=gpu:a100:4(S:0) RealMemory=1000 State=IDLE Partitions=gpu,all
NodeName=n2 CPUTot=8 Gres=(null) RealMemory=1000 State=IDLE+DRAIN Partitions=gpu
NodeName=n3 CPUTot=8 Gres=(null) RealMemory=1000 State=MIXED
"""


def test_what_a_slurm_says_of_its_nodes_is_compared_with_those_of_the_cluster() -> None:
    found, known = Findings(), KnownBySlurm()
    known.take_nodes("nodes", NODES, found)
    known.take_sinfo("sinfo", "PARTITION NODES STATE NODELIST\ngpu* 2 idle n[1-2]\n", found)
    assert found.problems == []
    cluster = {
        "n1": node("n1", 6, "2000Mi", 4, pool="gpu", ib="true", gpu="NVIDIA-A100-SXM4"),
        "n2": node("n2", 8, "900Mi", pool="other"), "n4": node("n4", 1, "1Gi"),
    }  # fmt: skip
    assert differences(known, cluster, {"all": {"fairlead.dev/ib": "true"}}) == [
        ("n1", "CPUs", "8", "6"),
        ("n2", "memory", "1000Mi", "900Mi"),
        ("n2", "partition", "gpu", "neither slurm.partitions nor its pool"),
        ("n3", "node", "known", "missing"),
        ("n4", "node", "missing", "known"),
    ]
    known.take_nodes("nodes", NODES, found)
    [*_, state] = [row for row in differences(known, cluster, {}) if row[1] == "state"]
    assert state == ("n2", "state", "takes none", "takes jobs")


def test_a_file_that_is_no_output_of_slurm_is_refused_with_the_command_that_makes_one() -> None:
    found, known = Findings(), KnownBySlurm()
    known.take_nodes("empty", "", found)
    known.take_sinfo("short", "NODELIST STATE\nn1\n", found)
    known.take_sinfo("none", "what\n", found)
    assert [(problem.where, bool(problem.help)) for problem in found.problems] == [
        ("empty", True), ("short:2", True), ("none", True),
    ]  # fmt: skip
