"""Every error text that people meet, byte for byte, with its exit code."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.golden.cli_golden import check
from tests.golden.cli_world import NOW, WorldApi

from fairlead.api.status import (
    AlreadyExists,
    Conflict,
    Forbidden,
    InternalError,
    Invalid,
    StatusCause,
    StatusDetails,
    Unauthorized,
)
from fairlead.app.configuration.settings import Settings
from fairlead.app.local.datadir import foreign, unusable
from fairlead.app.local.embedded import StartFailed, StoreLost
from fairlead.app.local.embedded_process import explain
from fairlead.app.local.listen_address import ListenFailed
from fairlead.cli.cluster.lookup import find_job, missing_job
from fairlead.cli.connection.refusals import from_api
from fairlead.cli.job_request.jobspec import Origin, Program, build_job
from fairlead.cli.job_request.request import JobRequest, Target
from fairlead.cli.main import guarded
from fairlead.cli.submitting.fit import check_fit
from fairlead.cli.submitting.manifest import parse_manifest
from fairlead.cli.submitting.program_check import image_problem
from fairlead.cli.submitting.submission import Naming, pick_name
from fairlead.embedded.storage.wal import DamagedData, DirectoryInUse, WrongFormat
from fairlead.input.errors import CliError, Code, Exit, Problem, render_error
from fairlead.runtime.kept.history import OtherSchema

MANIFESTS = Path(__file__).parent / "data" / "manifests"
DATA = Path("/nowhere/fairlead")


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster, no kubeconfig, an empty working directory."""
    for name in ("KUBECONFIG", "FAIRLEAD_KUBECONFIG", "FAIRLEAD_DATA", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nowhere/home")
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("#!/bin/bash\n#SBATCH --array=0-9%0\n#SBATCH --input=a\n")
    Path("ok.sh").write_text("#!/bin/bash\ntrue\n")
    Path("big.sh").write_text("#" * (513 * 1024))
    Path("binary").write_bytes(b"\x7fELF\xff\xfe")
    Path("dead.yaml").write_text(
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n"
    )
    Path("broken.yaml").write_text("clusters: [\n")
    Path("train.py").write_text("import torch\n")
    Path("pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
        "spec: {containers: [{name: a, image: a}]}\n"
    )
    Path("settings.yaml").write_text(
        "placement:\n  starvationSecond: 60\n  repairHoldSeconds: 5m\njobs:\n"
        "  infrastructureLimitMax: -1\nadoption: [1]\nqueue: {}\n"
    )
    Path("open").mkdir()
    Path("open").chmod(0o777)


COMMANDS: dict[str, tuple[list[str], Exit]] = {
    "no-flag": (["submit", "ok.sh", "--gpu", "8"], Exit.USAGE),
    "no-flag-unlike-any": (["ps", "--zzz"], Exit.USAGE),
    "no-command": (["cancle", "train-1"], Exit.USAGE),
    "slurm-command": (["squeue"], Exit.USAGE),
    "slurm-flag": (["cancel", "-t", "PENDING"], Exit.USAGE),
    "slurm-flag-of-submit": (["submit", "--test-only", "ok.sh"], Exit.USAGE),
    "no-state": (["ps", "--state", "PENDING"], Exit.USAGE),
    "flag-before-command": (["--kubeconfig", "dead.yaml", "ps"], Exit.USAGE),
    "flag-of-the-script": (["submit", "ok.sh", "--learning-rate", "0.1"], Exit.USAGE),
    "python-without-interpreter": (["submit", "train.py"], Exit.USAGE),
    "another-kind": (["submit", "-f", "pod.yaml"], Exit.USAGE),
    "no-argument": (["cancel"], Exit.USAGE),
    "no-value": (["submit", "--gpus"], Exit.USAGE),
    "no-script": (["submit", "absent.sh"], Exit.USAGE),
    "nothing-to-submit": (["submit"], Exit.USAGE),
    "script-and-manifest": (["submit", "ok.sh", "-f", "job.yaml"], Exit.USAGE),
    "script-too-large": (["submit", "big.sh"], Exit.USAGE),
    "script-is-a-program": (["submit", "binary"], Exit.USAGE),
    "script-header": (["submit", "train.sh"], Exit.USAGE),
    "all-values-wrong": (
        ["submit", "ok.sh", "--nodes", "0", "--gpus", "8x", "--cpus", "many", "--memory", "900GB",
         "--time", "90", "--name", "My Job", "--after", "ok", "--env", "1=2", "--on", "mars"],
        Exit.USAGE,
    ),
    "no-manifest": (["submit", "-f", "absent.yaml"], Exit.USAGE),
    "output-format": (["nodes", "-o", "jsn"], Exit.USAGE),
    "wait-for": (["wait", "train-1", "--for", "success"], Exit.USAGE),
    "shell": (["completion", "bsh"], Exit.USAGE),
    "previous-and-follow": (["logs", "train-1", "-f", "--previous"], Exit.USAGE),
    "no-cluster": (["ps"], Exit.UNREACHABLE),
    "dead-cluster": (["ps", "--kubeconfig", "dead.yaml"], Exit.UNREACHABLE),
    "no-kubeconfig": (["ps", "--kubeconfig", "absent.yaml"], Exit.USAGE),
    "broken-kubeconfig": (["ps", "--kubeconfig", "broken.yaml"], Exit.USAGE),
    "no-context": (["ps", "--kubeconfig", "dead.yaml", "--context", "b"], Exit.USAGE),
    "not-running": (["status", "--data", "/nowhere/fairlead"], Exit.UNREACHABLE),
    "listen-address": (["up", "--listen", "example:80"], Exit.USAGE),
    "listen-port": (["up", "--listen", "127.0.0.1:99999"], Exit.USAGE),
    "nodes": (["up", "--nodes", "-1"], Exit.USAGE),
    "data-is-a-file": (["up", "--data", "ok.sh"], Exit.REFUSED),
    "data-writable-by-others": (["up", "--data", "open"], Exit.REFUSED),
    "profile": (["up", "--data", "d", "--profile", "trainin"], Exit.USAGE),
    "settings": (["controller", "--settings", "settings.yaml"], Exit.USAGE),
    "no-settings": (["up", "--data", "d", "--settings", "absent.yaml"], Exit.USAGE),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments, code = COMMANDS[name]
    assert guarded(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    check(f"errors/{name}.txt", captured.err.replace(str(tmp_path), "/work-here"))


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_bad_manifest(path: Path) -> None:
    documents, problems = parse_manifest(path.read_bytes(), path.name)
    assert problems, "every file in this folder is wrong somewhere"
    assert all(problem.where.startswith(path.name) for problem in problems)
    check(f"manifests/{path.stem}.txt", render_error(CliError(problems)))
    assert documents == () or len(documents) < path.read_text(errors="replace").count("kind:")


def _job(**asked: object) -> Callable[[], object]:
    request = JobRequest(**{"target": Target.VIRTUAL, **asked})  # type: ignore[arg-type]
    job = build_job("x", request, Program(("true",)), Origin("/", "ana", {}))
    return lambda: check_fit(WorldApi(), job, NOW).text


def _find(name: str) -> Callable[[], object]:
    return lambda: find_job(WorldApi(), "default", name)


def _raise(error: BaseException) -> Callable[[], object]:
    def call() -> None:
        raise error

    return call


def no_image() -> Problem:
    """Return the problem of a command without an image on a Kubernetes cluster."""
    request = JobRequest()
    problem = image_problem(build_job("x", request, Program(("true",)), Origin("/", "", {})))
    assert problem is not None
    return problem


SETTINGS = Settings(DATA, 0, 8, "", "127.0.0.1", 7443, True)
INVALID = Invalid(
    "Job is invalid",
    details=StatusDetails(name="a", kind="jobs", causes=(
        StatusCause("FieldValueInvalid", "must be greater than 0", "spec.roles[0].count"),
        StatusCause("FieldValueRequired", "Required value", "spec.roles[1].name"),
    )),
)  # fmt: skip

CALLS: dict[str, tuple[Callable[[], object], Exit]] = {
    "gpus-per-node": (_job(gpus=16, members=2), Exit.REFUSED),
    "gpus-on-this-machine": (_job(gpus=2, target=Target.LOCAL), Exit.REFUSED),
    "memory-per-node": (_job(memory_bytes=2 << 40), Exit.REFUSED),
    "gang-too-large": (_job(gpus=8, members=30), Exit.REFUSED),
    "no-matching-node": (lambda: _unmatched(), Exit.REFUSED),
    "only-tainted-nodes": (lambda: _unmatched(target=None), Exit.REFUSED),
    "no-job-but-a-near-one": (_find("tarin-1"), Exit.NOT_FOUND),
    "no-job": (_find("zzz"), Exit.NOT_FOUND),
    "no-dependency": (
        _raise(CliError(missing_job(WorldApi(), "default", "prepar-1",
                                    code=Code.NO_SUCH_DEPENDENCY))), Exit.NOT_FOUND),
    "name-in-use": (
        lambda: pick_name(Naming("train-1", "train"), frozenset(("train-1", "train-7"))),
        Exit.CONFLICT),
    "api-invalid": (_raise(from_api(INVALID)), Exit.REFUSED),
    "api-conflict": (_raise(from_api(Conflict("the object has been modified"))), Exit.CONFLICT),
    "api-exists": (_raise(from_api(AlreadyExists('jobs "a" already exists'))), Exit.CONFLICT),
    "api-forbidden": (_raise(from_api(Forbidden("namespace is terminating"))), Exit.REFUSED),
    "api-webhook-unreachable": (_raise(from_api(InternalError(
        'Internal error occurred: failed calling webhook "jobs.fairlead.dev": failed to call '
        'webhook: Post "https://fairlead-controller.fairlead-system.svc:443/admit?timeout=5s": '
        "context deadline exceeded"))), Exit.UNREACHABLE),
    "no-image": (_raise(CliError(no_image())), Exit.USAGE),
    "api-unauthorized": (_raise(from_api(Unauthorized("Unauthorized"))), Exit.REFUSED),
    "port-in-use": (_raise(explain(SETTINGS, ListenFailed(
        "127.0.0.1", 7443, OSError(errno.EADDRINUSE, "Address already in use")))), Exit.CONFLICT),
    "address-not-ours": (_raise(explain(SETTINGS, ListenFailed(
        "10.9.8.7", 80, OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")))),
        Exit.USAGE),
    "data-in-use": (_raise(explain(SETTINGS, DirectoryInUse(DATA, 4711))), Exit.CONFLICT),
    "data-of-another-version": (_raise(explain(SETTINGS, WrongFormat(DATA, "format 9"))),
                                Exit.CONFLICT),
    "history-of-another-version": (_raise(explain(SETTINGS, OtherSchema(
        "the history /nowhere/fairlead/history.db has schema version 9, this Fairlead reads "
        "version 1; use the Fairlead that wrote it, or move the file away"))), Exit.CONFLICT),
    "data-damaged": (_raise(explain(SETTINGS, DamagedData(DATA / "store/1.log", 77))),
                     Exit.CONFLICT),
    "data-not-writable": (_raise(unusable(DATA, OSError(errno.EACCES, "Permission denied"))),
                          Exit.REFUSED),
    "data-of-another-user": (_raise(foreign(DATA, DATA / "token", 4_242_424)), Exit.REFUSED),
    "disk-full": (_raise(explain(SETTINGS, StoreLost(OSError(errno.ENOSPC, "No space left")))),
                  Exit.REFUSED),
    "file-size-limit": (_raise(explain(SETTINGS, StoreLost(OSError(errno.EFBIG, "Too large")))),
                        Exit.REFUSED),
    "disk-error": (_raise(explain(SETTINGS, StoreLost(OSError(errno.EIO, "I/O error")))),
                   Exit.REFUSED),
    "start-failed": (_raise(explain(SETTINGS, StartFailed("jobs", "KeyError: 'x'"))), Exit.FAILED),
}  # fmt: skip


def _unmatched(target: Target | None = Target.VIRTUAL) -> object:
    api = WorldApi()
    job = build_job("x", JobRequest(target=target), Program(("true",)),
                    Origin("/", "", {}))  # fmt: skip
    api.objects["nodes"] = [n for n in api.objects["nodes"] if n.metadata.name == "laptop"]
    return check_fit(api, job, NOW).text


@pytest.mark.parametrize("name", CALLS)
def test_answer(name: str) -> None:
    call, code = CALLS[name]
    with pytest.raises(CliError) as caught:
        call()
    assert caught.value.exit == code
    check(f"errors/{name}.txt", render_error(caught.value))


def test_every_code_has_an_entry_and_a_number_of_its_own() -> None:
    assert all(code.meaning for code in Code)
    assert len(Code.__members__) == len(Code)


def test_verbose_errors_name_their_place_in_the_documentation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    guarded(["nodes", "-v", "-o", "jsn"])
    assert "see docs/reference/cli.md#e004" in capsys.readouterr().err
