"""What the shells offer behind flags that take one of a few values."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.shell_completion import BashComplete, ZshComplete

from fairlead.api.kubernetes.core import Namespace
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import JOBS, NAMESPACES
from fairlead.cli import kubectl_plugin
from fairlead.cli.app import cli
from fairlead.testing.builders import make_job


def offered(line: str, shell: type[BashComplete | ZshComplete] = BashComplete) -> list[str]:
    *arguments, incomplete = line.split(" ")
    complete = shell(cli, {}, "fairlead", "_FAIRLEAD_COMPLETE")
    return [item.value for item in complete.get_completions(arguments, incomplete)]


def test_the_name_of_a_command_is_completed_without_importing_one() -> None:
    script = """
import sys
from click.shell_completion import BashComplete
from fairlead.cli.app import cli
found = BashComplete(cli, {}, "fairlead", "").get_completions([], "s")
print(*[each.value for each in found])
print(sum(each.startswith("fairlead.cli.commands.") for each in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"submit sweep shell sessions ssh-config ssh-proxy slurm status sim\n0\n"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["exe"], ["exec\tRun a command beside a member of a job.", ":4"]),
        (["ps", "-o", "j"], ["json", ":4"]),
        (["up", "--profile", "./x"], [":0"]),
        (["nothing", "of", "the"], [":4"]),
    ],
    ids=["command", "value", "file", "unknown"],
)
def test_kubectl_gets_answers_as_cobra_writes_them(words: list[str], lines: list[str]) -> None:
    assert [line for line in kubectl_plugin.answers(words) if line] == [
        each for each in lines if each
    ]


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ps -o ", ["table", "wide", "json", "yaml", "name"]),
        ("ps -o j", ["json"]),
        ("wait a --for s", ["started", "succeeded"]),
        ("history --state ", ["Succeeded", "Failed", "Cancelled"]),
        ("up --profile ", ["default", "flaky", "instant", "training"]),
        ("doctor -o h", ["html"]),
        ("top --by ", ["user", "team"]),
        ("top -o c", ["csv"]),
    ],
)
def test_flags_offer_the_values_that_they_accept(
    line: str, words: list[str], shell: type[BashComplete | ZshComplete]
) -> None:
    assert offered(line, shell) == words


def test_names_come_from_the_cluster_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        def __init__(self, *_: object, **__: object) -> None: ...

        def list(self, resource: object, *, namespace: str = "") -> list[object]:
            names = ("team-a", "team-b", "kube-system")
            if resource == NAMESPACES:
                return [Namespace(ObjectMeta(name=name)) for name in names]
            assert (resource, namespace) == (JOBS, "team-a")
            return [make_job("train-1"), make_job("other")]

    monkeypatch.setattr("fairlead.cli.connection.completers.find_connection", lambda *_: None)
    monkeypatch.setattr("fairlead.cli.connection.transport.Api", Api)
    assert offered("why -n team-a tr") == ["train-1"]
    monkeypatch.setattr(
        "fairlead.cli.connection.completers.find_connection",
        lambda *_: type("C", (), {"namespace": "x"})(),
    )
    assert offered("ps -n team") == ["team-a", "team-b"]
