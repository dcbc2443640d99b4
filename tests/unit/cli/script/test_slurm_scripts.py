"""Scripts of Slurm at submission: where their nodes are, and what comes along."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api import names
from fairlead.api.jobs.after import After, AfterState
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import EnvVar
from fairlead.api.meta import Condition, to_wire
from fairlead.api.resources import JOBS, NODES
from fairlead.api.values.times import parse_time
from fairlead.app.configuration.client_settings import SlurmSettings
from fairlead.cli.app import run
from fairlead.cli.cluster import known_nodes
from fairlead.testing.builders import make_job, make_node, make_placement

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}


def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *jobs: Job) -> FakeApi:
    """A Kubernetes cluster with two nodes of each of two types of 8 GPUs, and a job on one."""
    api = FakeApi(*jobs)
    for i, labels in enumerate((A100, A100, H100, H100)):
        hostname = {names.HOSTNAME: f"n{i}"}
        api.create(NODES.raw, to_wire(make_node(f"n{i}", labels={**labels, **hostname})))
    serve(monkeypatch, api)
    monkeypatch.chdir(tmp_path)
    return api


def submitted(header: str, *more: str) -> int:
    Path("t.sh").write_text(f"#!/bin/sh\n{header}\ntrue\n")
    return run(["submit", "t.sh", "--image", "a:1", *more])


def spec_of(api: FakeApi) -> Any:
    return api.get(JOBS, "t-1", namespace="default").spec


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    return made(monkeypatch, tmp_path)


def test_nodes_are_distinct_although_one_would_hold_all(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted("#SBATCH -N 2 --gres=gpu:4") == 0
    said = capsys.readouterr().err
    assert "Plan     2 members x 4 GPUs, 1 CPU" in said
    assert "Place    fits now, on 2 nodes" in said
    assert submitted("#FAIRLEAD --nodes 2 --gpus 4") == 0
    assert "Place    fits now, on 1 node\n" in capsys.readouterr().err


def test_nodes_are_distinct_within_a_component_and_each_has_a_kind_of_its_own(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    second = "#SBATCH hetjob\n#SBATCH -N2 --gres=gpu:h100:4 --mem=1G"
    assert submitted(f"#SBATCH -N4 --time=60\n{second}") == 0
    said = capsys.readouterr().err
    assert "Place    fits now, on 4 nodes" in said, "two components may be on one node"
    first, other = spec_of(cluster).roles
    affinity = other.template.spec.affinity
    (term,) = affinity.node_affinity.required.node_selector_terms
    assert term.match_expressions[0].values == ("NVIDIA-H100-80GB-HBM3",)
    assert first.template.spec.affinity.node_affinity is None
    assert submitted(second.replace("N2", "N3")) == 0
    assert "allow only 3 of 4 members" in capsys.readouterr().err, "two nodes are of that type"


def test_more_nodes_than_there_are_is_refused(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted("#SBATCH -N 5") != 0
    assert "error[" in capsys.readouterr().err
    assert submitted("#SBATCH -N 4") == 0


def test_a_type_of_gpu_leaves_the_nodes_that_have_it(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted("#SBATCH -N 3 --gres=gpu:h100:8") != 0
    assert "error[" in capsys.readouterr().err
    assert submitted("#SBATCH -N 2 --gres=gpu:h100:8") == 0
    assert "on 2 nodes" in capsys.readouterr().err
    assert submitted("#SBATCH --gres=gpu:v100:8") == 2
    assert capsys.readouterr().err == (
        "error[E012]: --gpus: no node has GPUs of the type 'v100'\n  --> t.sh:2:1\n"
        "  help: there are: NVIDIA-A100-SXM4-80GB, NVIDIA-H100-80GB-HBM3\n"
    )
    assert run(["run", "--gpus", "v100:8", "--image", "a:1", "--", "true"]) == 2
    assert "error[E004]: --gpus: no node has GPUs of the type" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "placed"),
    [
        ("#SBATCH --nodelist=n0 --gres=gpu:4", "fits now"),
        ("#SBATCH --nodelist=n0 --gres=gpu:4 --exclusive", "waits"),
        ("#SBATCH --nodelist=n0 --gres=gpu:4 --mem=0", "waits"),
        ("#SBATCH --exclude=n[1-3] --exclusive", "waits"),
        ("#SBATCH --exclude=n0 --exclusive -N 3", "fits now, on 3 nodes"),
    ],
)  # fmt: skip
def test_an_exclusive_job_shares_no_node(
    header: str, placed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    other = make_job("other", gpus=1, namespace="else", placement=make_placement(["n0"]))
    api = made(monkeypatch, tmp_path, other)
    assert submitted(header) == 0
    assert f"Place    {placed}" in capsys.readouterr().err
    rules = spec_of(api).roles[0].template.spec.affinity
    assert (rules is None) == (placed == "fits now")


def test_a_partition_that_nobody_knows_is_noted_and_takes_no_node_away(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted("#SBATCH -p standard") == 0
    said = capsys.readouterr().err
    assert (
        "note: t.sh:2: --partition=standard has no effect: neither the settings nor a node pool "
        "has the name standard, so any node may be used\n"
    ) in said
    assert spec_of(cluster).roles[0].template.spec.affinity is None


def test_a_singleton_waits_for_the_jobs_of_its_name_that_have_not_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = make_job("vae-2", conditions=(Condition(type=names.SUCCEEDED, status="True"),))
    api = made(monkeypatch, tmp_path, make_job("vae"), ended, make_job("vae-3"), make_job("va"))
    assert submitted("#SBATCH -J vae --dependency=singleton") == 0
    after = api.get(JOBS, "vae-4", namespace="default").spec.after
    assert after == tuple(After(job, AfterState.FINISHED) for job in ("vae", "vae-3"))


def test_on_one_machine_nodes_share_it_and_everything_that_the_shell_exports_comes_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi(is_embedded=True)
    node = make_node("here", labels={names.NODE_TYPE: "local"})
    api.create(NODES.raw, to_wire(node))
    serve(monkeypatch, api)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("FAIRLEAD_NAMESPACE", "default")
    assert submitted("#SBATCH -N 2") == 0
    assert "note: this is one machine: the 2 members share it\n" in capsys.readouterr().err
    template = spec_of(api).roles[0].template.spec
    assert template.affinity is None
    given = {each.name: each.value for each in template.containers[0].env}
    assert given["WANDB_MODE"] == "offline"
    assert "SLURM_JOB_ID" not in given
    assert given["FAIRLEAD_NAMESPACE"] == "default", "so sbatch in the script asks the same cluster"
    assert submitted("#SBATCH -o %j.out -e e\n#SBATCH --open-mode=append", "--name", "out") == 0
    command = api.get(JOBS, "out", namespace="default").spec.roles[0].template.spec.containers[0]
    assert " ".join(command.command[1:9]) == (
        "-m fairlead.member.batch --output %j.out --error e --open-mode append"
    )
    assert EnvVar("SLURM_OPEN_MODE", "a") in command.env, "so srun appends as well"
    assert submitted("#SBATCH --export=NONE", "--name", "none") == 0
    job = api.get(JOBS, "none", namespace="default")
    assert "WANDB_MODE" not in {
        each.name for each in job.spec.roles[0].template.spec.containers[0].env
    }


@pytest.mark.parametrize(
    ("script", "said", "command"),
    [
        ("#SBATCH -N 2\nsrun sh -c 'echo $SLURM_PROCID $SLURM_JOB_ID'", "", "batch"),
        ("#SBATCH -N 2\ntrue", "the first of the 2 nodes runs the script", "batch"),
        ("#SBATCH -N 2\npython -m fairlead.member.mpirun -- a", "runs in every member", "plain"),
        ("#SBATCH -N 2\nsrun python -m fairlead.member.mpirun -- a", "", "batch"),
        ("#SBATCH --mem=1G\ntrue", "", "plain"),
        ("#SBATCH --mem=1G\nsrun true", "", "batch"),
        ("#SBATCH --mem=1G\n./my-srun.sh", "", "plain"),
        ("#SBATCH --signal=B:SIGUSR1@90 -t 10\ntrue", "", "batch"),
        ("#FAIRLEAD --nodes 2\ntrue", "", "plain"),
    ],
)
def test_a_batch_script_runs_once_and_any_other_in_every_member(
    script: str, said: str, command: str, cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted(script) == 0
    err = capsys.readouterr().err
    assert said in err
    assert ("the script" in err) == bool(said)
    assert "is not set" not in err
    template = spec_of(cluster).roles[0].template
    words = list(template.spec.containers[0].command)
    start = ["python3", "-m", "fairlead.member.batch"]
    if command == "plain":
        assert words == ["/bin/sh", "/etc/fairlead-script/t.sh"]
        return
    signal = ["--signal", "B:USR1@90", "--time", "600"] if "--signal" in script else []
    assert words == [*start, *signal, "--", "/bin/sh", "/etc/fairlead-script/t.sh"]
    assert template.metadata.annotations[names.MPI] == "true"


def test_files_of_a_container_are_noted(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted("#SBATCH -o %j.out") == 0
    assert "--output and --error have no effect: logs are kept" in capsys.readouterr().err
    words = spec_of(cluster).roles[0].template.spec.containers[0].command
    assert tuple(words) == ("/bin/sh", "/etc/fairlead-script/t.sh")


@pytest.mark.parametrize(
    ("line", "signal", "grace"),
    [
        ("--signal=USR1", "USR1@60", 90),
        ("--signal=B:SIGTERM@10", "B:TERM@10", 40),
        ("--signal=INT@3000", "INT@3000", 300),
    ],
)
def test_a_signal_before_an_end_needs_no_time_limit_and_a_longer_grace_period(
    cluster: FakeApi, line: str, signal: str, grace: int
) -> None:
    assert submitted(f"#SBATCH {line}") == 0
    spec = spec_of(cluster).roles[0].template.spec
    assert tuple(spec.containers[0].command[3:6]) == ("--signal", signal, "--")
    assert spec.termination_grace_period_seconds == grace


def test_a_wrong_signal_is_refused(cluster: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert submitted("#SBATCH -c 1") == 0
    assert spec_of(cluster).roles[0].template.spec.termination_grace_period_seconds is None
    assert submitted("#SBATCH --signal=NONE@10 -t 10") == 2
    assert "'NONE@10' is not [B:]SIGNAL[@SECONDS]" in capsys.readouterr().err


def test_a_job_starts_no_earlier_than_begin_and_is_cancelled_after_its_deadline(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "#SBATCH --begin=2031-01-02T08:00:00 --deadline=2031-01-03 -t 2:00:00"
    assert submitted(asked) == 0
    spec = spec_of(cluster)
    assert spec.not_before is not None
    assert spec.deadline is not None
    assert parse_time(spec.not_before) == time.mktime((2031, 1, 2, 8, 0, 0, 0, 0, -1))
    assert parse_time(spec.deadline) == time.mktime((2031, 1, 3, 0, 0, 0, 0, 0, -1))
    assert "has no effect" not in capsys.readouterr().err
    assert submitted("#SBATCH --begin=soon") == 2
    assert "'soon' is not a time such as" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "class_", "said"),
    [
        ("#SBATCH --qos=high", "urgent", ""),
        ("#SBATCH --qos=high\n#FAIRLEAD --priority low", "low", ""),
        ("#SBATCH --qos=normal", "", "--qos=normal has no effect: slurm.qos"),
    ],
)
def test_a_quality_of_service_is_the_class_that_the_settings_have_for_it(
    lines: str, class_: str, said: str, cluster: FakeApi, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def settings(_common: object, _api: object) -> SlurmSettings:
        return SlurmSettings(qos={"high": "urgent"})

    monkeypatch.setattr(known_nodes, "slurm_settings", settings)
    assert submitted(lines) == 0
    assert spec_of(cluster).priority_class_name == class_
    assert said in capsys.readouterr().err


def test_a_slice_of_a_gpu_is_a_resource_of_its_own_on_nodes_of_the_type(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    slices = make_node("mig", gpus=0, labels=H100, extra={"nvidia.com/mig-3g.40gb": 2})
    cluster.create(NODES.raw, to_wire(slices))
    assert submitted("#SBATCH --gres=gpu:nvidia_h100_80gb_hbm3_3g.40gb:1") == 0
    assert "fits now" in capsys.readouterr().err
    spec = spec_of(cluster).roles[0].template.spec
    assert spec.containers[0].resources.limits == {"nvidia.com/mig-3g.40gb": "1"}
    [term] = spec.affinity.node_affinity.required.node_selector_terms
    assert term.match_expressions[0].values == ("NVIDIA-H100-80GB-HBM3",)
    assert submitted("#SBATCH --gpus-per-node=3g.40gb:3") != 0
    assert "nvidia.com/mig-3g.40gb" in capsys.readouterr().err
    assert submitted("#SBATCH --gres=gpu:a100_3g.40gb") != 0
    assert submitted("#SBATCH --gres=gpu:1g.10gb+me:1") != 0
    assert "nvidia.com/mig-1g.10gb.me" in capsys.readouterr().err


def test_of_several_partitions_any_may_be_used_and_the_first_ones_rather(
    cluster: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def settings(_common: object, _api: object) -> SlurmSettings:
        return SlurmSettings(partitions={"new": H100, "old": A100})

    monkeypatch.setattr(known_nodes, "slurm_settings", settings)
    assert submitted("#SBATCH -p new,gone,old -x n3 --gpus-per-node=8") == 0
    nodes = spec_of(cluster).roles[0].template.spec.affinity.node_affinity
    asked = [
        [(each.key, each.operator, each.values) for each in term.match_expressions]
        for term in nodes.required.node_selector_terms
    ]
    without = (names.HOSTNAME, "NotIn", ("n3",))
    (key, new), (_, old) = *H100.items(), *A100.items()
    assert asked == [[without, (key, "In", (new,))], [without, (key, "In", (old,))]]
    ranks = [each.weight for each in nodes.preferred]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == 2
    assert submitted("#SBATCH -N 4 -p new,old") == 0
    assert submitted("#SBATCH -N 4 -p new,gone") != 0
