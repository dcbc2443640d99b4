"""What a job of this machine lacks is found before it is queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cli.job_request.jobspec import Origin, Program, Script
from fairlead.cli.job_request.request import JobRequest, Target
from fairlead.cli.submitting.program_check import local_problems, script_problems


def problems(
    directory: Path, program: Program, *, target: Target = Target.LOCAL, chdir: str | None = None
) -> list[str]:
    origin = Origin(str(directory), "ana", {"PATH": f"{directory}/bin:/usr/bin:/bin"})
    request = JobRequest(target=target, chdir=chdir)
    return [problem.message for problem in local_problems(request, program, origin)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "data").write_text("not executable")
    return tmp_path


@pytest.mark.parametrize("word", ["tool", "bin/tool", "sh", "/bin/sh", "./bin/tool"])
def test_a_program_that_exists_is_accepted(directory: Path, word: str) -> None:
    assert problems(directory, Program((word,))) == []


@pytest.mark.parametrize("word", ["tol", "bin/tol", "data", "./data", "/nowhere/sh"])
def test_a_program_that_does_not_exist_is_refused(directory: Path, word: str) -> None:
    assert problems(directory, Program((word,))) == [f"there is no program '{word}'"]


def test_the_path_that_the_job_is_given_is_the_one_that_counts(directory: Path) -> None:
    origin = Origin(str(directory), "ana", {"PATH": "/usr/bin"})
    request = JobRequest(target=Target.LOCAL, env=(("PATH", f"{directory}/bin"),))
    assert list(local_problems(request, Program(("tool",)), origin)) == []


def test_what_another_machine_runs_is_not_judged(directory: Path) -> None:
    program = Program(("nosuch",))
    assert problems(directory, program, target=Target.VIRTUAL, chdir="/nowhere") == []
    assert problems(directory, program, target=Target.ANY) == ["there is no program 'nosuch'"]


def test_a_directory_that_does_not_exist_is_refused(directory: Path) -> None:
    program = Program(("sh",))
    assert problems(directory, program, chdir="/nowhere") == ["--chdir: /nowhere does not exist"]
    file = str(directory / "data")
    assert problems(directory, program, chdir=file) == [f"--chdir: {file} is not a directory"]


@pytest.mark.parametrize(
    ("first", "missing"),
    [
        ("#!/bin/sh", ""),
        ("true", ""),
        ("#!/usr/bin/env tool", ""),
        ("#!/usr/bin/env -S tool -x", ""),
        ("#!/usr/bin/env nosuch", "nosuch"),
        ("#!/opt/nosuch/python", "/opt/nosuch/python"),
    ],
)
def test_the_interpreter_of_a_script_must_exist(directory: Path, first: str, missing: str) -> None:
    found = problems(directory, Program((), Script("a.sh", f"{first}\n")))
    expected = f"the interpreter '{missing}' of script 'a.sh' does not exist"
    assert found == ([expected] if missing else [])


@pytest.mark.parametrize(
    ("name", "text", "help_"),
    [
        ("train.py", "import torch\n", "fairlead run -- python3 src/train.py"),
        ("train.py", "#!/usr/bin/env python3\nimport torch\n", ""),
        ("job.yaml", "kind: Job\n", "fairlead submit -f src/job.yaml"),
        ("job.yml", "#!/usr/bin/env runner\n", ""),
        ("train.sh", "echo\n", ""),
        ("train", "echo\n", ""),
    ],
)
def test_what_the_shell_cannot_run_needs_its_first_line(name: str, text: str, help_: str) -> None:
    found = list(script_problems(Script(name, text), f"src/{name}"))
    assert bool(found) is bool(help_)
    assert all(problem.help[0].endswith(help_) for problem in found)
