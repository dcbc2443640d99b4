"""What `fairlead slurm import` makes of a site, applied to a cluster of real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.e2e.slurm_world import SLEEP, Tools
from tests.e2e.test_pages import run_page

from fairlead.api.resources import PRIORITY_CLASSES, TEAMS
from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.cli.connection.transport import Api

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("slurm-tools")]

REPOSITORY = Path(__file__).parents[2]
CONF = """ClusterName=demo
SlurmctldHost=ctl
NodeName={host} CPUs={cpus} RealMemory=1000 Feature=fast
NodeName=old[1-2] CPUs=2 RealMemory=1000
PartitionName=here Nodes={host}
PartitionName=quick Nodes={host},old1 Default=YES
"""
DUMP = """Cluster - 'demo':QOS='urgent'
Parent - 'root'
Account - 'vision':Fairshare=3:GrpJobs=7
Parent - 'vision'
User - 'ana':DefaultAccount='vision'
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    """A cluster with the settings that the import of a site has written."""
    shell = Shell(tmp_path_factory.mktemp("slurm-site"))
    conf = CONF.format(host=os.uname().nodename, cpus=os.cpu_count())
    (shell.root / "slurm.conf").write_text(conf)
    (shell.root / "dump").write_text(DUMP)
    (shell.root / "qos").write_text("Name|Priority\nurgent|50\n")
    shell.run("slurm", "import", "--conf", "slurm.conf", "--associations", "dump", "--qos", "qos",
              "--out", "site")  # fmt: skip
    shell.up("--nodes", "1", "--listen", "127.0.0.1:0",
             "--settings", str(shell.root / "site/settings.yaml"))  # fmt: skip
    try:
        tools = Tools(shell)
        _apply(shell)
        yield tools
    finally:
        shell.down()
        kill(processes_of(shell.data))


def _apply(shell: Shell) -> None:
    """Apply the objects as kubectl would, and give this machine the labels of labels.sh."""
    api = Api(find_connection(Choice(str(shell.data / "kubeconfig")), {}))
    items = json.loads(
        shell.run("slurm", "import", "--conf", "slurm.conf", "--associations", "dump", "--qos",
                  "qos", "-o", "json").out)["objects"]["items"]  # fmt: skip
    for item in items:
        for resource in (PRIORITY_CLASSES, TEAMS):
            if item["kind"] == resource.kind:
                api.create(resource.raw, item)
    host = os.uname().nodename
    line = next(each for each in (shell.root / "site/labels.sh").read_text().splitlines()
                if f" {host} " in each)  # fmt: skip
    labels = dict(re.findall(r"(\S+)=(\S+)", line))
    shell.patch(f"/api/v1/nodes/{host}", {"metadata": {"labels": labels}})


def test_scripts_for_the_partitions_and_qualities_of_the_site_run_as_they_are(site: Tools) -> None:
    for partition in ("here", "quick"):
        number = site.submit(SLEEP, "-p", partition, "-C", "fast", "--qos", "urgent")
        eventually(lambda number=number: site.queue("-j", str(number)), [f"{number} R"])
        [line] = site.queue("-j", str(number), form="%B %q")
        assert line == f"{os.uname().nodename} urgent"
        site.run("scancel", str(number))
    team = json.loads(site.shell.run("teams", "-o", "json").out)["items"][0]
    assert (team["metadata"]["name"], team["spec"]["weight"]) == ("vision", 3)
    assert team["spec"]["limits"] == {"running": 7}


def test_partitions_are_those_of_the_settings_and_a_job_of_a_list_shows_the_one_it_is_in(
    site: Tools,
) -> None:
    host = os.uname().nodename
    table = {line.split()[0]: line.split()[1] for line in site.run(
        "sinfo", "-h", "-o", "%R %N").out.splitlines()}  # fmt: skip
    assert table["quick"] == table["here"] == host
    assert "Partitions=all,quick,here\n" in site.run("scontrol", "show", "node", host).out
    assert "Nodes=" + host in site.run("scontrol", "show", "partition", "quick").out
    waiting = site.submit(SLEEP, "-p", "gone,here,quick", "-H")
    assert site.queue("-j", str(waiting), form="%P") == ["gone,here,quick"]
    site.run("scontrol", "release", str(waiting))
    eventually(lambda: site.queue("-j", str(waiting), form="%t %P"), ["R here"])
    assert site.queue("-p", "here", form="%A") == [str(waiting)]
    assert site.queue("-p", "quick") == []
    site.run("scancel", str(waiting))


def test_the_nodes_of_a_running_slurm_are_compared_with_those_of_the_cluster(site: Tools) -> None:
    ours = site.run("scontrol", "show", "node").out
    nodes = site.shell.root / "nodes"
    nodes.write_text(ours)
    assert site.shell.run("slurm", "check", "--nodes", "nodes").err == "no differences\n"
    nodes.write_text(ours.replace("CPUTot=", "CPUTot=10") + "NodeName=old1 State=IDLE\n")
    (site.shell.root / "sinfo").write_text("PARTITION STATE NODELIST\nquick* idle old1\n")
    told = site.shell.run("slurm", "check", "--nodes", "nodes", "--sinfo", "sinfo", "-o", "json",
                          code=1)  # fmt: skip
    found = {(row["what"], row["nodes"]) for row in json.loads(told.out)}
    assert ("node", "old1") in found
    assert {what for what, _ in found} == {"node", "CPUs"}


def test_mistakes_in_the_files_of_a_site_name_file_and_line(site: Tools) -> None:
    (site.shell.root / "bad.conf").write_text("NodeName=a[1-\nInclude gone.conf\n")
    told = site.shell.run("slurm", "import", "--conf", "bad.conf", code=2)
    assert "error[E803]" in told.err
    assert "--> bad.conf:1" in told.err
    assert "--> bad.conf:2" in told.err
    assert told.out == ""


def test_the_page_on_moving_a_site_works_as_written_with_the_files_of_its_example(
    tmp_path: Path,
) -> None:
    for file in (REPOSITORY / "examples/slurm").iterdir():
        shutil.copy(file, tmp_path)
    commands = run_page((REPOSITORY / "docs/howto/moving-a-slurm-site.md").read_text(),
                        Shell(tmp_path))  # fmt: skip
    assert [command.split()[1:3] for command in commands] == [
        ["slurm", "import"], ["sim", "import"], ["sim", "run"], ["sim", "run"], ["sim", "compare"],
    ]  # fmt: skip
    assert {path.name for path in (tmp_path / "site").iterdir()} == {
        "objects.yaml", "settings.yaml", "labels.sh",
    }  # fmt: skip
