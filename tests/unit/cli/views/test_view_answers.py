"""Small questions that views answer: in which order, how many, whose, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import STATUS, FakeApi, serve

from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import Condition, ObjectMeta, to_wire
from fairlead.api.names import FAILED
from fairlead.api.resources import NAMESPACES, NODES, TEAMS
from fairlead.app.local import launch
from fairlead.cli.app import run
from fairlead.cli.commands import cluster
from fairlead.cli.connection.common import Common
from fairlead.cli.formats.text import natural, wrapped
from fairlead.cli.views.fleet import plan_text
from fairlead.cli.views.jobs import JobChoice, choose_jobs, ending
from fairlead.cli.views.teams import quota_text
from fairlead.cli.views.why import why_text
from fairlead.decide.answers.explanation import HOLDERS_MAX, Explanation, Holder
from fairlead.decide.reasons import Reason, singular
from fairlead.decide.verdict import Verdict
from fairlead.testing.builders import make_job, make_nodes, make_placement, make_team

GPU = "nvidia.com/gpu"


def test_names_with_numbers_are_in_the_order_of_the_numbers() -> None:
    jobs = [make_job(f"sweep-{n}", created=1.0) for n in (10, 9, 2)]
    assert [job.metadata.name for job in choose_jobs(jobs, JobChoice())] == [
        "sweep-2", "sweep-9", "sweep-10",
    ]  # fmt: skip
    assert sorted(["b1", "a", "a10b", "a9c", "10", ""], key=natural) == [
        "", "10", "a", "a9c", "a10b", "b1",
    ]  # fmt: skip


def test_ps_of_a_namespace_that_does_not_exist_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi()
    api.create(NAMESPACES.raw, {"metadata": {"name": "vision"}})
    serve(monkeypatch, api)
    assert run(["ps", "-n", "vison"]) == 3
    error = capsys.readouterr().err
    assert "error[E303]: namespace 'vison' does not exist\n  help: -n vision\n" in error
    assert run(["ps", "-n", "vision"]) == 0
    assert "no jobs in namespace vision" in capsys.readouterr().err


@pytest.mark.parametrize(("slurm", "ours"), [("PENDING", "Waiting"), ("cd", "Succeeded")])
def test_states_of_slurm_are_answered_with_ours(
    slurm: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ps", "--state", slurm]) == 2
    assert f"help: {slurm.upper()} of Slurm is {ours}: --state {ours}\n" in capsys.readouterr().err


def waits(reason: Reason, **facts: int | str) -> Explanation:
    """What the planner says of a job that waits."""
    holders = tuple(Holder(("default", f"sweep-{n}"), GPU, 8, 1, None) for n in range(11, 1, -1))
    verdict = Verdict(reason, facts)
    return Explanation(
        ("default", "a"), verdict, None, holders=holders[: HOLDERS_MAX if "short" in facts else 0]
    )


def test_of_many_holders_it_says_that_there_may_be_more() -> None:
    facts = {"asked": 8, "resource": GPU, "free": 0, "total": 80, "short": 8}
    text = why_text(make_job("a"), waits(Reason.INSUFFICIENT_CAPACITY, **facts), 0.0)
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if "holders" in line)
    assert lines[first].startswith("  holders    sweep-2 ")
    assert lines[first + 9].strip().startswith("sweep-11 ")
    assert lines[first + 10].strip() == "these are the 10 largest; there may be more"


def test_a_held_job_is_not_told_of_pools() -> None:
    from fairlead.cli.views.fleet import Buying

    text = why_text(make_job("a"), waits(Reason.HELD), 0.0,
                    buying=Buying("none are being bought", may_help=False))  # fmt: skip
    assert "waits until it is released" in text
    assert "being bought" not in text


def test_why_of_several_jobs_answers_for_those_that_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Condition(type=FAILED, status="True", reason="ExitCode")
    serve(monkeypatch, FakeApi(*(make_job(name, conditions=[done]) for name in "ab")))
    assert run(["why", "a", "nosuch", "b"]) == 3
    out, err = capsys.readouterr()
    assert "Job a has ended" in out
    assert "Job b has ended" in out
    assert "job 'nosuch' does not exist" in err


@pytest.mark.parametrize(
    ("code", "words"), [(127, " (127: command not found)"), (126, " (126: a file that cannot be "
                                                             "run)"), (1, "")]
)  # fmt: skip
def test_exit_codes_of_a_shell_are_explained(code: int, words: str) -> None:
    condition = Condition(type=FAILED, status="True", reason="ExitCode", message=f"exited {code}")
    job = make_job("a", conditions=[condition], status={"attempts": (Attempt(1, exit_code=code),)})
    assert ending(job) == f"ExitCode: exited {code}{words}"


def test_a_quota_counts_the_jobs_that_there_are() -> None:
    team = make_team("vision", nodes=1, namespaces=("vision",))
    jobs: list[Job] = [
        make_job("a", namespace="vision", placement=replace(make_placement(["n1"]), team="vision")),
        make_job("b", namespace="vision", attempt=1),
        make_job("c", namespace="vision", attempt=0, suspend=True),
    ]
    assert "  jobs        1 with nodes, 1 waiting, 1 outside of the queue\n" in quota_text(
        team, jobs, {}
    )
    assert "  jobs        0 with nodes, 0 waiting\n" in quota_text(team, (), {})


def test_a_plan_of_teams_reads_a_file_that_has_other_objects_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi()
    serve(monkeypatch, api)
    api.create(NODES.raw, to_wire(make_nodes(1)[0]))
    api.create(TEAMS.raw, to_wire(make_team("speech", nodes=1)))
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: vision}\n"
    team = ("---\napiVersion: fairlead.dev/v1alpha1\nkind: Team\nmetadata: {name: vision}\n"
            "spec: {namespaces: [vision], shares: [{nodes: 1}]}\n")  # fmt: skip
    file = tmp_path / "teams.yaml"
    file.write_text(namespace + team)
    assert run(["teams", "plan", "-f", str(file)]) == 0
    assert "Team vision would be new" in capsys.readouterr().out
    file.write_text(namespace)
    assert run(["teams", "plan", "-f", str(file)]) == 2
    error = capsys.readouterr().err
    assert "the file has no Team; its first object is Namespace vision" in error
    assert f"--> {file}:1:1" in error


def test_a_pool_that_waits_for_machines_does_not_say_that_it_has_them() -> None:
    pool = NodePool(
        ObjectMeta(name="h100"),
        NodePoolSpec(Provider(ProviderType.AWS), NodeTemplate({"cpu": "96"}), max=64,
                     mode=PoolMode.ACTIVE),
        NodePoolStatus(nodes=0, wanted=46, launching=46),
    )  # fmt: skip
    from fairlead.api.cluster.fleet import Fleet

    assert (
        plan_text([pool], Fleet(), (), 0.0) == "h100: waits for 46 of the 46 nodes that it wants\n"
    )


def test_one_is_not_a_plural() -> None:
    assert singular("a budget of 1 GPU-hours; 1 pods; 11 pods") == (
        "a budget of 1 GPU-hour; 1 pod; 11 pods"
    )


def test_long_lines_are_wrapped_at_words_under_their_texts() -> None:
    text = (
        "Job a\n\n  asks       eight GPUs; none of many are free\n    deeper and much longer too\n"
    )
    assert wrapped(text, 30, 13) == (
        "Job a\n\n  asks       eight GPUs; none\n             of many are free\n"
        "    deeper and much longer too\n"
    )
    assert wrapped(text, 0, 13) == text


def test_stopping_a_cluster_says_what_becomes_of_its_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import dataclass

    import msgspec

    @dataclass
    class Running:
        pid: int = 1

    monkeypatch.setattr(cluster, "read_running", lambda _: Running())
    monkeypatch.setattr(cluster, "find_connection", lambda *_: FakeApi().connection)
    monkeypatch.setattr(launch, "stop", lambda _: None)
    for jobs, said in (
        ({"Running": 1, "Waiting": 3}, "1 job stopped. It goes on at the next start"),
        ({"Running": 2}, "2 jobs stopped. They go on"),
        ({}, ""),
    ):
        status = msgspec.structs.replace(STATUS, jobs=jobs)
        monkeypatch.setattr("fairlead.cli.cluster.embedded.read_status", lambda _api, s=status: s)
        assert run(["down", "--data", str(tmp_path)]) == 0
        error = capsys.readouterr().err
        assert said in error
        assert "stopped. " not in error or said


def test_an_interrupt_of_wait_says_that_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    serve(monkeypatch, FakeApi(make_job("a")))
    monkeypatch.setattr("fairlead.cli.commands.wait.job_changes", interrupt)
    assert run(["wait", "a", "-n", "default"]) == 130
    assert "Job a goes on.    fairlead wait a -n default\n" in capsys.readouterr().err


def test_the_doctor_says_what_a_cluster_of_up_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_embedded in (True, False):
        api = FakeApi(is_embedded=is_embedded)
        monkeypatch.setattr(Common, "connect", lambda _, api=api, **__: api)
        run(["doctor"])
        assert ("this is a cluster of fairlead up" in capsys.readouterr().err) is is_embedded


def test_defrag_says_that_the_setting_is_off_also_where_nothing_would_move(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi(make_job("a", count=2, gpus=8))
    serve(monkeypatch, api)
    api.create(NODES.raw, to_wire(make_nodes(1)[0]))
    assert run(["defrag", "a", "--apply"]) == 1
    out, err = capsys.readouterr()
    assert "no moves free such a block" in out
    assert "placement.defragmentsOnRequest is not set, so nothing moves" in err
