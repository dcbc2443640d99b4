"""What keeps a program from starting on this machine, found before it is queued.

A job of this machine runs with the directory, the PATH and the interpreter that are known at
submission, so what is missing now would fail every attempt. Programs in containers are not judged.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from fairlead.api.jobs.job import Job
from fairlead.cli.job_request.jobspec import Origin, Program, Script, interpreter
from fairlead.cli.job_request.request import JobRequest, Target
from fairlead.cli.script.slurm import srun_line
from fairlead.input.errors import Code, Problem

#: Suffixes of scripts that /bin/sh cannot run, with the interpreter that is meant.
_INTERPRETERS = {".py": "python3", ".pl": "perl", ".rb": "ruby", ".jl": "julia", ".r": "Rscript"}
#: What a shell would read in a word.
_SHELL = re.compile(r"[\s;|&<>$()*]")
_MANIFESTS = (".yaml", ".yml", ".json")
_ENV = "/usr/bin/env"


def script_problems(script: Script, path: str) -> Iterator[Problem]:
    """Yield what is wrong with a script wherever it runs: one of Python, say, without `#!`."""
    if not script.text.strip():
        yield Problem(Code.SCRIPT_UNREADABLE, f"script '{path}' is empty")
        return
    suffix = Path(script.name).suffix.lower()
    meant = _INTERPRETERS.get(suffix)
    if script.text.startswith("#!") or (meant is None and suffix not in _MANIFESTS):
        return
    help_ = (
        f"write #!/usr/bin/env {meant} as its first line, or: fairlead run -- {meant} {path}"
        if meant else f"a manifest: fairlead submit -f {path}"
    )  # fmt: skip
    message = f"script '{path}' has no #! line, so the shell would run it"
    yield Problem(Code.NOT_STARTABLE, message, help=(help_,))


def image_problem(job: Job) -> Problem | None:
    """Return the problem of a job for a Kubernetes cluster with a container without an image."""
    for role in job.spec.roles:
        for container in (*role.template.spec.init_containers, *role.template.spec.containers):
            if not container.image:
                return Problem(
                    Code.NOT_STARTABLE,
                    "a job on a Kubernetes cluster needs the image of a container",
                    help=("--image IMAGE",),
                )
    return None


def local_problems(request: JobRequest, program: Program, origin: Origin) -> Iterator[Problem]:
    """Yield what this machine lacks: the directory, the interpreter, the program."""
    if request.target not in (Target.LOCAL, Target.ANY):
        return
    directory = Path(request.chdir or origin.directory)
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        yield Problem(Code.NOT_STARTABLE, f"--chdir: {directory} {what}")
        return
    for mount in request.mounts:
        if mount.host_path and not Path(mount.host_path).is_dir():
            yield Problem(
                Code.NOT_STARTABLE, f"--mount: {mount.host_path} is not a directory of this machine"
            )
            return
    search = dict(request.env).get("PATH", origin.environment.get("PATH", os.defpath))
    if program.script is None:
        word = program.arguments[0]
        if not _is_found(word, directory, search):
            shell = f"a line for the shell: fairlead run -- sh -c {shlex.quote(word)}"
            yield Problem(
                Code.NOT_STARTABLE, f"there is no program '{word}'",
                detail=(_looked(word, directory),), help=(shell,) if _SHELL.search(word) else (),
            )  # fmt: skip
        return
    word, *argument = interpreter(program.script.text)
    if word == _ENV and argument:
        word = argument[0].removeprefix("-S ").split()[0]
    if "=" not in word and not _is_found(word, directory, search):
        yield Problem(
            Code.NOT_STARTABLE,
            f"the interpreter '{word}' of script '{program.script.name}' does not exist",
            detail=(_looked(word, directory),), help=("correct its #! line",),
        )  # fmt: skip
    line = srun_line(program.script.text)
    if request.batch is None and line is not None and not _is_found("srun", directory, search):
        yield Problem(
            Code.NOT_STARTABLE, f"line {line} of script '{program.script.name}' calls srun, which "
            "does not exist here", help=("remove srun: the script runs in every member, as srun "
                                         "would run it; one with #SBATCH lines runs once, and "
                                         "has srun",),
        )  # fmt: skip


def mount_notes(request: JobRequest) -> Iterator[str]:
    """Yield in what mounts differ on this machine, whose processes all see one file system."""
    moved = [each.path for each in request.mounts if each.path != each.host_path]
    if request.target not in (Target.LOCAL, Target.ANY) or not request.mounts:
        return
    if moved:
        yield (
            f"on this machine arguments and variables that begin with {' or '.join(moved)} lead to "
            "the volume; the text of a script is not changed"
        )
    if any(each.read_only for each in request.mounts):
        yield "on this machine nothing keeps a program from writing to a mount with :ro"


def _is_found(word: str, directory: Path, search: str) -> bool:
    if "/" in word:
        path = directory / word
        return path.is_file() and os.access(path, os.X_OK)
    import shutil  # loads what unpacks archives

    return shutil.which(word, path=search) is not None


def _looked(word: str, directory: Path) -> str:
    where = f"from {directory}" if "/" in word else "in the directories of PATH"
    return f"looked for an executable file {where}"
