"""Slurm's commands, flags and variables are answered with what does it here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from fairlead.api.status import NotFound, StatusDetails
from fairlead.cli.app import ENTRIES, cli
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.jobspec import Origin, Program, Script, to_manifest
from fairlead.cli.job_request.request import ArrayRequest, JobRequest, Target, parse_request
from fairlead.cli.main import guarded
from fairlead.cli.script.header import SubmissionContext, parse_header
from fairlead.cli.script.slurm import COMMANDS, flag_help, module_note, srun_line, variable_notes
from fairlead.cli.submitting.program_check import local_problems
from fairlead.cli.submitting.submission import Naming, Submission, check
from fairlead.input.errors import CliError
from fairlead.kube.kubeconfig import Connection
from fairlead.runtime.client import Request
from fairlead.testing.builders import EPOCH, make_job


@pytest.mark.parametrize(
    ("command", "flag", "words"),
    [
        ("submit", "-J", "--name here"),
        ("submit", "-N", "--nodes, on as many distinct nodes here"),
        ("submit", "--gres", "--gpus [TYPE:]N, of each node here"),
        ("submit", "--dependency", "--after here"),
        ("submit", "--test-only", "--dry-run checks everything"),
        ("submit", "--parsable", "leave it out"),
        ("submit", "--container-mounts", "--mount SOURCE:PATH"),
        ("run", "--volume", "--mount SOURCE:PATH"),
        ("submit", "--mail-type", "--notify"),
        ("submit", "-a", "sbatch's --array is --array here"),
        ("run", "--nodelist", "--node-selector"),
        ("ps", "-t", "--state STATE"),
        ("ps", "--start", "fairlead why JOB"),
        ("cancel", "-t", "--state STATE"),
        ("nodes", "--list-reasons", "-R, or --reasons"),
        ("history", "-S", "--since"),
        ("update", "--members", "why JOB --if nodes=N"),
        ("update", "--priority", "fairlead priority JOB CLASS"),
    ],
)
def test_a_flag_of_slurm_is_answered_with_ours(
    command: str, flag: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in flag_help(command, flag)
    assert guarded([command, flag, "x"]) == 2
    assert words in capsys.readouterr().err


def test_a_flag_of_nobody_gets_no_answer() -> None:
    assert [flag_help(command, "--zzz") for command in (*ENTRIES, "nosuch")] == [""] * (
        len(ENTRIES) + 1
    )


def test_what_is_answered_exists() -> None:
    """Every command and flag of ours in an answer is one."""
    from fairlead.cli.script import slurm

    answers = [*COMMANDS.values(), *slurm._SUBMIT.values()]  # pyright: ignore[reportPrivateUsage]
    for texts in slurm._FLAGS.values():  # pyright: ignore[reportPrivateUsage]
        answers += texts.values()
    for answer in answers:
        for name, flags in re.findall(r"fairlead ([a-z]+)((?: --?[a-z]+)*)", answer):
            assert name in ENTRIES, answer
            command = cli.get_command(click.Context(cli), name)
            assert command is not None
            known = {flag for parameter in command.params for flag in parameter.opts}
            assert set(flags.split()) <= known, answer


def test_variables_of_slurm_that_nothing_sets_are_noted_once_with_ours() -> None:
    text = (
        "#!/bin/bash\n# not $SLURM_NODELIST\nexport SLURM_TMPDIR=/tmp\n"
        "cd $SLURM_TMPDIR && echo ${SLURM_JOB_ID:-none} $SLURM_JOB_ID\n"
        "python a.py --rank $SLURM_PROCID --of $SLURM_PROCID --task $SLURM_ARRAY_TASK_ID "
        "$SLURM_MEM\n"
    )
    notes = list(variable_notes(text, file="a.sh", given={"SLURM_ARRAY_TASK_ID"}))
    assert notes == [
        "a.sh:5: $SLURM_PROCID is not set: $RANK has it here",
        "a.sh:5: $SLURM_MEM is not set: --env SLURM_MEM=VALUE sets it",
    ]
    of_batch = list(variable_notes("srun true\necho $SLURM_PROCID", file="a.sh", given=(),
                                   unset={"RANK"}))  # fmt: skip
    assert of_batch == [
        "a.sh:2: $SLURM_PROCID is not set: srun sets it, for each task that it starts"
    ]


def test_the_variables_that_are_named_instead_are_those_of_members() -> None:
    from fairlead.cli.script import slurm

    page = (Path(__file__).parents[4] / "docs/reference/variables.md").read_text()
    own = set(slurm._VARIABLES.values()) - {"PWD"}  # pyright: ignore[reportPrivateUsage]
    assert [name for name in sorted(own) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#!/bin/sh\nsrun hostname\n", 2),
        ("#!/bin/sh\ntrue\n  exec srun -n 2 python a.py\n", 3),
        ("#!/bin/sh\n# srun hostname\necho srun\n", None),
        ('#!/bin/sh\nsrun() { "$@"; }\nsrun hostname\n', None),
    ],
)
def test_a_call_of_srun_is_found(text: str, line: int | None) -> None:
    assert srun_line(text) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#!/bin/bash\n#SBATCH -n 1\nmodule load cuda/12.4\npython a.py\n", 3),
        ("#!/bin/bash\n  ml gcc/13.2 openmpi\n", 2),
        ("#!/bin/bash\nmodule purge\nmodule load cuda\n", 2),
        ("#!/bin/bash -l\nmodule load cuda\n", None),
        ("#!/bin/bash\nsource /etc/profile.d/modules.sh\nmodule load cuda\n", None),
        ("#!/bin/bash\n. /usr/share/lmod/lmod/init/bash\nmodule load cuda\n", None),
        ("#!/bin/bash\n# module load cuda\npython -m module load\nml = 3\n", None),
    ],
)
def test_modules_of_a_site_that_an_image_does_not_have_are_noted(
    text: str, line: int | None
) -> None:
    found = module_note(text, file="a.sh")
    assert found.startswith(f"a.sh:{line}: module is a command") if line else found == ""


def test_a_script_that_calls_srun_is_refused_where_there_is_none(tmp_path: Path) -> None:
    script = Script("a.sh", "#!/bin/sh\nsrun hostname\n")
    origin = Origin(str(tmp_path), "ana", {"PATH": f"{tmp_path}:/usr/bin:/bin"})

    def problems(target: Target) -> list[str]:
        found = local_problems(JobRequest(target=target), Program((), script), origin)
        return [problem.message for problem in found]

    assert problems(Target.LOCAL) == [
        "line 2 of script 'a.sh' calls srun, which does not exist here"
    ]
    assert problems(Target.VIRTUAL) == []
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    assert problems(Target.LOCAL) == []


def manifest_of(name: str) -> dict[str, Any]:
    return to_manifest(make_job(name))


class NoNamespace(Api):
    """Has no namespace."""

    def call(self, request: Request[Any]) -> Any:
        """NotFound."""
        raise NotFound("no such namespace", details=StatusDetails(name="2", kind="namespaces"))


@pytest.mark.parametrize(("namespace", "help_"), [("2", "--nodes 2"), ("ml", "kubectl create")])
def test_a_number_of_tasks_is_not_taken_for_a_namespace(namespace: str, help_: str) -> None:
    api = NoNamespace(Connection(server="http://127.0.0.1:1", source="a test"))
    submission = Submission(namespace, Naming(None, "a"), manifest_of)
    with pytest.raises(CliError) as caught:
        check(api, submission, "a-1")
    assert help_ in caught.value.problems[0].help[0]


def test_the_array_of_a_header_is_submitted_as_one_unless_this_is_one_task_of_it() -> None:
    text = "#!/bin/sh\n#SBATCH --array=0-9%2\necho $SLURM_ARRAY_TASK_ID\n"
    header = parse_header(text, file="a.sh")
    assert header.problems == ()
    request, problems = parse_request(header.givens, {}, now=EPOCH)
    assert problems == ()
    assert request.array == ArrayRequest("0-9", 2)
    one = parse_header(text, file="a.sh", beside=SubmissionContext(has_array_index=True))
    assert parse_request(one.givens, {}, now=EPOCH)[0].array is None


def test_the_page_for_people_who_know_slurm_has_every_command() -> None:
    page = (Path(__file__).parents[4] / "docs" / "howto" / "coming-from-slurm.md").read_text()
    _, _, table = page.partition("## Commands")
    rows = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"[a-z]+", row.split("|")[1])}
    assert set(COMMANDS) - named == set()
