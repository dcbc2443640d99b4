"""`--mount`, `--checkpoint` and `--node-selector`: read, refused, and what a job has of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.api.jobs.job import Checkpoint, Job
from fairlead.api.jobs.job_mounts import EmptyDir, JobMount
from fairlead.api.meta import to_wire
from fairlead.api.validation.validate import validate_job
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, FlagValues, merge
from fairlead.cli.job_request.jobspec import Origin, Program, Script, build_job
from fairlead.cli.job_request.mounts import MountError, parse_mount
from fairlead.cli.job_request.request import JobRequest, Target, parse_request
from fairlead.cli.script.header import parse_header
from fairlead.cli.submitting.program_check import local_problems, mount_notes
from fairlead.testing.builders import EPOCH

ORIGIN = Origin("/home/ana", "ana", {})


def given(**flags: str | list[str]) -> FlagValues:
    return {
        Flag(name.replace("_", "-")): tuple(
            FlagValue(each, f"--{name}".replace("_", "-"))
            for each in (text if isinstance(text, list) else [text])
        )
        for name, text in flags.items()
    }


def read(**flags: str | list[str]) -> JobRequest:
    request, problems = parse_request(given(**flags), {}, now=EPOCH)
    assert problems == ()
    return request


def refused(**flags: str | list[str]) -> list[tuple[str, tuple[str, ...]]]:
    _, problems = parse_request(given(**flags), {}, now=EPOCH)
    return [(problem.message, problem.help) for problem in problems]


def job_of(request: JobRequest) -> Job:
    job = build_job("train-1", request, Program((), Script("t.sh", "true\n")), ORIGIN)
    assert validate_job(job) == []
    return job


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("claim:data:/data", JobMount(path="/data", claim="data")),
        ("claim:data/a/b:/data:ro",
         JobMount(path="/data", claim="data", sub_path="a/b", read_only=True)),
        ("configmap:conf:/conf", JobMount(path="/conf", config_map="conf")),
        ("secret:keys/wandb:/keys/wandb",
         JobMount(path="/keys/wandb", secret="keys", sub_path="wandb")),
        ("emptydir:/tmp/x", JobMount(path="/tmp/x", empty_dir=EmptyDir.DISK)),
        ("memory:/dev/shm", JobMount(path="/dev/shm", empty_dir=EmptyDir.MEMORY)),
        ("/nfs", JobMount(path="/nfs", host_path="/nfs")),
        ("/nfs:ro", JobMount(path="/nfs", host_path="/nfs", read_only=True)),
        ("/nfs:/data:ro", JobMount(path="/data", host_path="/nfs", read_only=True)),
    ],
)  # fmt: skip
def test_a_mount_is_read_in_the_order_of_docker(text: str, mount: JobMount) -> None:
    assert parse_mount(text) == mount


@pytest.mark.parametrize(
    ("text", "help_"),
    [
        ("pvc:data:/d", "--mount claim:data:/d"),
        ("Secret:s:/s", "--mount secret:s:/s"),
        ("tmpfs:/dev/shm", "--mount memory:/dev/shm"),
        ("claim:data", "--mount claim:NAME:PATH[:ro]"),
        ("claim:data:data", "--mount claim:NAME:PATH[:ro]"),
        ("claim:data:/d:rw", "--mount claim:NAME:PATH[:ro]"),
        ("claim:data/../other:/d", "--mount claim:NAME:PATH[:ro]"),
        ("claim::/d", "--mount claim:NAME:PATH[:ro]"),
        ("/a/../etc", "--mount /DIRECTORY:PATH[:ro]"),
        ("/", "--mount /DIRECTORY:PATH[:ro]"),
        ("emptydir:/x:ro", "--mount emptydir:PATH"),
        ("./x:/x", "--mount claim:NAME:PATH, or /DIRECTORY:PATH for a directory of each node"),
        ("type=bind,src=/x,dst=/x", "--mount claim:NAME:PATH, or /DIRECTORY:PATH"),
    ],
)
def test_a_mount_that_is_none_is_refused_with_what_to_write(text: str, help_: str) -> None:
    with pytest.raises(MountError) as caught:
        parse_mount(text)
    assert caught.value.help == help_


def test_a_job_has_the_volumes_the_checkpoints_and_the_nodes_that_were_asked_for() -> None:
    request = read(
        mount=["claim:data:/data:ro", "memory:/dev/shm", "/nfs"], checkpoint="runs",
        node_selector=["gpu=a100", "zone=a"],
    )  # fmt: skip
    spec = to_wire(job_of(request).spec)
    assert spec["checkpoint"] == {"claimName": "runs"}
    pod = spec["roles"][0]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "a100", "zone": "a"}
    assert list(pod["volumes"]) == [
        {"name": "mount-1", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "mount-2", "emptyDir": {"medium": "Memory"}},
        {"name": "mount-3", "hostPath": {"path": "/nfs", "type": "Directory"}},
        {"name": "script", "configMap": {"name": "train-1-script"}},
    ]
    assert list(pod["containers"][0]["volumeMounts"])[:3] == [
        {"name": "mount-1", "mountPath": "/data", "readOnly": True},
        {"name": "mount-2", "mountPath": "/dev/shm"},
        {"name": "mount-3", "mountPath": "/nfs"},
    ]
    assert job_of(read(checkpoint="/nfs/runs")).spec.checkpoint == Checkpoint(path="/nfs/runs")


def test_the_header_of_a_script_asks_for_them_too_and_the_command_line_wins() -> None:
    header = parse_header(
        "#FAIRLEAD --mount claim:data:/data --mount claim:code:/code\n"
        "#FAIRLEAD --checkpoint runs --node-selector gpu=a100\n",
        file="t.sh",
    )
    assert header.problems == ()
    over = given(mount="claim:other:/data/", node_selector="gpu=h100")
    request, problems = parse_request(merge(over, header.givens), {}, now=EPOCH)
    assert problems == ()
    assert [(each.claim, each.path) for each in request.mounts] == [
        ("other", "/data/"), ("code", "/code")
    ]  # fmt: skip
    assert request.node_selector == (("gpu", "h100"),)
    assert request.checkpoint == Checkpoint(claim_name="runs")


def test_mistakes_are_reported_with_their_place_all_at_once() -> None:
    header = parse_header("#FAIRLEAD --mount pvc:a:/a --checkpoint A_b\n", file="t.sh")
    _, problems = parse_request(
        merge(given(node_selector=["gpu", "a b=c"]), header.givens), {}, now=EPOCH
    )
    assert [(each.where, each.message.partition(" must")[0]) for each in problems] == [
        ("", "--node-selector: 'a b=c'"),
        ("t.sh:1:1", "'pvc'"),
        ("t.sh:1:1", "'A_b' is neither the name of a claim nor an absolute directory"),
    ]


def test_on_this_machine_a_directory_must_exist_and_what_differs_is_noted(tmp_path: Path) -> None:
    origin = Origin(str(tmp_path), "ana", {"PATH": "/bin:/usr/bin"})
    program = Program((), Script("t.sh", "true\n"))
    request = read(mount=[str(tmp_path), "/nowhere:/data"], on="local")
    assert [each.message for each in local_problems(request, program, origin)] == [
        "--mount: /nowhere is not a directory of this machine"
    ]
    request = read(mount=[str(tmp_path), "claim:data:/data:ro"], on="local")
    assert list(local_problems(request, program, origin)) == []
    assert list(mount_notes(request)) == [
        "on this machine arguments and variables that begin with /data lead to the volume; the "
        "text of a script is not changed",
        "on this machine nothing keeps a program from writing to a mount with :ro",
    ]
    assert list(mount_notes(read(mount=str(tmp_path), on="local"))) == []
    assert list(mount_notes(read(mount="claim:data:/data:ro", on="virtual"))) == []
    assert request.target is Target.LOCAL
