"""What cannot be written is a typed error with its place and a remedy, never a fault of ours."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.app.run_file import CLUSTER_FILE, LOG_FILE, STORE_DIRECTORY, last_error
from fairlead.cli.app import run
from fairlead.cli.commands import sim
from fairlead.testing.builders import make_job


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/proc/nowhere", "'/proc/nowhere' cannot be written: No such file or directory"),
        ("taken", "cannot be written: File exists\n  help: a file of this name exists"),
        ("taken/below", "cannot be written: Not a directory\n  help: a part of the path is a file"),
    ],
)
@pytest.mark.parametrize("command", [["sim", "run", "--nodes", "2", "--out"], ["sim", "record"]])
def test_a_directory_for_results_is_tried_before_the_work(
    command: list[str], target: str, said: str, *, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def execute(_run: object) -> None:
        raise AssertionError("simulated before the directory was tried")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sim, "_execute", execute)
    Path("taken").write_text("")
    assert run([*command, target]) == 5
    error = capsys.readouterr().err
    assert error.startswith("error[E703]")
    assert said in error


@pytest.mark.parametrize("form", ["table", "json", "name"])
def test_a_full_disk_behind_stdout_is_an_error_with_a_remedy(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(monkeypatch, FakeApi(make_job("a")))
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert run(["ps", "-o", form]) == 5
        monkeypatch.undo()
        monkeypatch.setattr(full, "close", lambda: None, raising=False)
    assert capsys.readouterr().err == (
        "error[E703]: standard output cannot be written: No space left on device\n"
        "  help: write to a file on a disk that has room\n"
    )


def test_a_start_that_cannot_be_leaves_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, path = tmp_path / "settings.yaml", tmp_path / "new"
    settings.write_text("nosuch: 1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for flags, code in (
            (["--listen", "192.0.2.1:8080"], "E707"), (["--listen", "192.0.2.1:0"], "E707"),
            (["--listen", f"127.0.0.1:{port}"], "E700"), (["--settings", str(settings)], "E102"),
            (["--profile", "nosuch"], "E"),
        ):  # fmt: skip
            assert run(["up", "--detach", "--data", str(path), *flags]) != 0
            assert f"error[{code}" in capsys.readouterr().err
            assert not path.exists()


def data(tmp_path: Path, *log: str) -> Path:
    (tmp_path / STORE_DIRECTORY).mkdir()
    (tmp_path / CLUSTER_FILE).write_text("{}")
    (tmp_path / LOG_FILE).parent.mkdir()
    (tmp_path / LOG_FILE).write_text("".join(f"{line}\n" for line in log))
    return tmp_path


ENDED = ('{"time":"now","message":"Started"}', "error[E704]: the disk of /d is full",
         "  nothing that was acknowledged is lost", "  help: free some space")  # fmt: skip


def test_a_stopped_cluster_says_why_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data(tmp_path, *ENDED)
    (path / "kubeconfig").write_text("{}")
    for command in (["status", "--data", str(path)],
                    ["ps", "--kubeconfig", str(path / "kubeconfig")]):  # fmt: skip
        assert run(command) == 6
        assert "  it ended: error[E704]: the disk of /d is full\n" in capsys.readouterr().err


def test_the_reason_is_that_of_the_last_start(tmp_path: Path) -> None:
    path = data(tmp_path, *ENDED)
    os.utime(path / LOG_FILE, (1, 1))
    assert last_error(path) == ""
    (path / LOG_FILE).write_text("\n".join([*ENDED, '{"time":"later","message":"Stopped"}']))
    assert last_error(path) == ""
    (path / LOG_FILE).unlink()
    assert last_error(path) == ""


@pytest.mark.parametrize("command", [["snapshot"], ["metrics"]])
def test_a_prometheus_that_is_not_there_is_an_error_in_our_words(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", *command, "http://127.0.0.1:1"]) == 3
    error = capsys.readouterr().err
    assert "error[E600]: http://127.0.0.1:1 could not be read: Connection refused\n" in error
    assert "curl http://127.0.0.1:1/" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["logs", "a", "b"], "error[E004]: fairlead logs takes JOB: 'b' is too much\n"),
        (["status", "a"], "fairlead status takes no argument: 'a' is too much\n"),
        (["teams", "plan"], "error[E003]: fairlead teams plan needs -f FILE\n"),
    ],
)
def test_arguments_are_named_as_the_help_names_them(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("group", ["network", "sim", "node"])
def test_a_group_of_commands_alone_says_its_help_as_the_program_itself_does(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([group]) == 0
    alone = capsys.readouterr()
    assert run([group, "--help"]) == 0
    assert alone.out == capsys.readouterr().out
    assert alone.out.startswith(f"Usage: fairlead {group} ")
    assert not alone.err
