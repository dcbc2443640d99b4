"""What commands print and exit with, on an API in a dictionary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api.jobs.job import Attempt, Job, MemberCounts
from fairlead.api.meta import Condition, OwnerReference, to_wire
from fairlead.api.names import FAILED
from fairlead.api.resources import NODES
from fairlead.api.status import NotFound, Unavailable
from fairlead.app import operator_process
from fairlead.app.operator import OperatorSettings
from fairlead.cli.app import run
from fairlead.cli.commands.uninstall import _refuse
from fairlead.cli.connection.common import Common, Format
from fairlead.cli.records.follow import follow_job
from fairlead.input.errors import CliError
from fairlead.install.remover import InstalledInventory, UninstallOptions
from fairlead.kube.http1 import HttpResponse
from fairlead.kube.kubeconfig import write_kubeconfig
from fairlead.runtime.client import EventType, WatchEvent
from fairlead.testing.builders import make_job, make_node


def failed(name: str, code: int) -> Job:
    """Return a job whose program ended with a code."""
    condition = Condition(type=FAILED, status="True", reason="ExitCode")
    status = {"state": "Failed", "attempts": (Attempt(1, exit_code=code),)}
    return make_job(name, conditions=[condition], status=status)


def test_wait_exits_with_the_code_of_the_first_job_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve(monkeypatch, FakeApi(failed("a", 3), failed("b", 4)))
    assert run(["wait", "a", "b"]) == 3
    assert run(["wait", "b", "a"]) == 4


def test_of_several_jobs_the_changed_ones_are_a_list_however_many_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(monkeypatch, FakeApi(failed("ended", 1), make_job("live")))
    assert run(["hold", "ended", "live", "-o", "json"]) == 4
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["metadata"]["name"], item["spec"]["suspend"]) == ("live", True)


def test_a_priority_moves_jobs_that_have_not_ended_and_no_element_of_an_array(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    array = OwnerReference("fairlead.dev/v1alpha1", "JobArray", "sweep", "u", controller=True)
    element = make_job("sweep-3")
    element = replace(element, metadata=replace(element.metadata, owner_references=(array,)))
    api = FakeApi(make_job("train"), failed("ended", 1), element)
    serve(monkeypatch, api)
    assert run(["priority", "train", "ended", "sweep-3", "high"]) == 4
    said = capsys.readouterr()
    assert said.out == "train moved to priority class high\n"
    assert "job 'ended' has ended (Failed); there is nothing to move" in said.err
    assert "'sweep-3' is of array 'sweep', whose elements have its priority" in said.err
    assert "fairlead priority sweep is for all of them" in said.err
    assert run(["priority", "train", "high"]) == 0
    assert "train has priority class high already" in capsys.readouterr().err


def test_logs_that_break_off_are_not_printed_again(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    api = FakeApi(make_job("train"), is_embedded=True)
    serve(monkeypatch, api)
    api.logs = [[Unavailable("not there yet")], [b"one\n", Unavailable("broke")], [b"one\n"]]
    assert run(["logs", "-f", "train"]) != 0
    assert capfdbinary.readouterr().out == b"one\n"


def test_the_directory_of_a_job_is_where_the_flag_leads_from_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    api = FakeApi()
    api.create(NODES.raw, to_wire(make_node("n")))
    serve(monkeypatch, api)
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("#!/bin/sh\n")
    flags = ["--image", "i", "--chdir", "work", "--dry-run", "-o", "json"]
    assert run(["submit", "train.sh", *flags]) == 0
    job = json.loads(capsys.readouterr().out)["items"][1]
    (container,) = job["spec"]["roles"][0]["template"]["spec"]["containers"]
    assert container["workingDir"] == str(tmp_path / "work")


def test_a_replica_in_a_pod_works_in_the_namespace_of_the_pod_and_leaves_slowly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[OperatorSettings] = []
    monkeypatch.setattr(
        operator_process, "run_operator", lambda settings, *_, **__: started.append(settings)
    )
    write_kubeconfig(tmp_path / "config", "http://chosen", "t", "c", namespace="team")
    for name, value in (
        ("KUBECONFIG", str(tmp_path / "config")), ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("POD_NAMESPACE", "ours"), ("POD_NAME", "one"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert run(["controller", "--webhook-listen", "127.0.0.1:0"]) == 0
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert run(["controller", "--webhook-listen", "127.0.0.1:0", "-n", "asked"]) == 0
    assert [each.replica.leader.namespace for each in started] == ["ours", "asked"]
    assert [each.webhook.linger_seconds for each in started if each.webhook] == [5.0, 0.0]


def test_jobs_that_have_ended_are_not_deleted_unasked_either() -> None:
    inventory = InstalledInventory(
        (), jobs=(to_wire(failed("a", 1)),), group_jobs=(), pools=(), gated=()
    )
    with pytest.raises(CliError, match="1 jobs are there, 0 of them have not ended"):
        _refuse(inventory, UninstallOptions("fairlead-system"), is_deleting=False)
    _refuse(inventory, UninstallOptions("fairlead-system"), is_deleting=True)


class _Starting(FakeApi):
    """The member runs when the job is looked at again, and has then ended."""

    looks_count = 0

    def __init__(self, *logs: list[bytes | Exception]) -> None:
        super().__init__(is_embedded=True)
        self.logs = [[NotFound("no log yet")]]
        self._later = list(logs)

    def get(self, resource: Any, name: str, *, namespace: str = "") -> Any:
        self.looks_count += 1
        return make_job("train") if self.looks_count == 1 else failed("train", 3)

    def watch_one(self, *_: Any, **__: Any) -> Iterator[WatchEvent[Any]]:
        running = make_job("train", status={"members": MemberCounts(total=1, running=1)})
        self.logs = self._later
        yield WatchEvent(EventType.MODIFIED, running, "2")


def test_the_output_of_a_job_is_read_once_a_member_runs(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    common_ = Common(Format.TABLE, "", False, "", "", True, False, False, 0)
    assert follow_job(common_, _Starting([b"hello\n"]), ("default", "train")) == 3
    assert capfdbinary.readouterr().out == b"hello\n"


def test_output_that_is_shown_again_from_its_start_is_announced(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    common_ = Common(Format.TABLE, "", False, "", "", True, False, False, 0)
    lost, absent = Unavailable("broke"), Unavailable("not there yet")
    api = _Starting([absent], [b"one\n", lost], [absent], [b"one\n", b"two\n"])
    assert follow_job(common_, api, ("default", "train")) == 3
    seen = capfd.readouterr()
    assert seen.out == "one\none\ntwo\n"
    assert seen.err.count("the connection was lost; the log is shown again from its start") == 1


def test_a_dry_run_of_an_installation_over_helm_s_is_refused_as_the_installation_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Helm(FakeApi):
        """Has all that is asked for, from a release."""

        def request(self, method: str, path: str, **_: Any) -> HttpResponse:
            labels = {"app.kubernetes.io/managed-by": "Helm"}
            annotations = {"meta.helm.sh/release-name": "mine"}
            found = {"metadata": {"labels": labels, "annotations": annotations}}
            return HttpResponse(200, "OK", {}, json.dumps(found).encode())

    serve(monkeypatch, Helm())
    for flags in (["--dry-run"], []):
        assert run(["install", *flags]) == 5
        assert "Helm installed Fairlead here, as release 'mine'" in capsys.readouterr().err
