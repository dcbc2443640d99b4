"""What `submit` and `run` answer to words that are not theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cli.fake_api import FakeApi, serve

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job, Progress
from fairlead.api.jobs.topology import Topology
from fairlead.api.meta import Condition, to_wire
from fairlead.api.names import PLACED
from fairlead.api.resources import EVENTS, JOBS, NODES, PRIORITY_CLASSES
from fairlead.api.status import AlreadyExists, Forbidden, Invalid, StatusCause, StatusDetails
from fairlead.api.values.times import format_time
from fairlead.cli.app import run
from fairlead.cli.cluster.image_outlook import image_outlook
from fairlead.cli.connection.identity import local_user
from fairlead.cli.submitting.fit import JobStart, StartKind, check_fit
from fairlead.input.errors import CliError, render_error
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_node,
    make_nodes,
    make_placement,
    make_priority_class,
)

MANIFEST = """
apiVersion: fairlead.dev/v1alpha1
kind: Job
metadata: {name: fit}
spec:
  roles:
  - {name: worker, template: {spec: {containers: [{name: main, command: [sleep, "9"]}]}}}
"""

GANG = """
apiVersion: fairlead.dev/v1alpha1
kind: Job
metadata: {name: gang}
spec:
  roles:
  - name: worker
    count: 3
    template:
      spec:
        containers:
        - name: main
          image: r.example/torch:1
          command: [train]
          resources: {limits: {nvidia.com/gpu: 8}}
        nodeSelector: {images: "yes"}
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    """A cluster of `fairlead up` with two nodes, and a script and a manifest beside."""
    api = FakeApi(is_embedded=True)
    for node in make_nodes(2):
        api.create(NODES.raw, to_wire(node))
    serve(monkeypatch, api)
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text("#!/bin/sh\n#SBATCH --account=a\ntrue\n")
    Path("fit.yaml").write_text(MANIFEST)
    return api


def test_the_next_commands_have_the_flags_of_this_one(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["submit", "train.sh", "--name", "a", "-n", "vision", "--on", "any"]) == 0
    assert "fairlead logs -f a -n vision    fairlead why a -n vision" in capsys.readouterr().err
    flags = ["--context", "lab", "--kubeconfig", "my config"]
    assert run(["submit", "train.sh", "--name", "b", "--hold", "--on", "any", *flags]) == 0
    said = capsys.readouterr().err
    assert "fairlead release b --kubeconfig 'my config' --context lab\n" in said
    assert "every member" not in said  # it has one


def test_a_manifests_job_has_its_user(cluster: FakeApi) -> None:
    assert run(["submit", "-f", "fit.yaml"]) == 0
    job = cluster.get(JOBS, "fit", namespace="default")
    assert job.metadata.annotations[names.SUBMITTED_BY] == local_user()


def test_a_name_in_use_has_a_remedy(cluster: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.client.fail_next("create", AlreadyExists('jobs.fairlead.dev "fit" already exists'))
    assert run(["submit", "-f", "fit.yaml", "-n", "vision"]) == 4
    assert (
        "help: give it another metadata.name, or remove what exists: "
        "kubectl delete jobs.fairlead.dev fit -n vision\n" in capsys.readouterr().err
    )


def test_a_numbered_name_that_is_taken_during_the_dry_run_is_replaced(cluster: FakeApi) -> None:
    """As programs do it that submit several scripts of one name at once."""
    cluster.client.fail_next("create", AlreadyExists('jobs.fairlead.dev "train" already exists'))
    assert run(["submit", "train.sh", "--on", "any"]) == 0
    assert len(cluster.list(JOBS)) == 1


def test_refusals_name_the_flag_and_what_there_is(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create(PRIORITY_CLASSES.raw, to_wire(make_priority_class("urgent", 10)))
    cause = StatusCause("x", 'Invalid value: "high": there is no such PriorityClass',
                        "spec.priorityClassName")  # fmt: skip
    cluster.client.fail_next("create", Invalid("no", details=StatusDetails(causes=(cause,))))
    assert run(["submit", "train.sh", "--priority", "high", "--on", "any"]) == 5
    assert capsys.readouterr().err.endswith(
        'error[E422]: --priority: "high": there is no such PriorityClass\n'
        "  help: there are: urgent\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "-it", "--", "sh"], "help: --pty gives the command this terminal"),
        (["run", "--interactive", "--", "sh"], "help: --pty gives the command this terminal"),
        (["run", "--", "echo a; echo b"], "help: a line for the shell: fairlead run -- sh -c "
         "'echo a; echo b'"),
        (["submit", "train.sh", "-o", "out.log"], "help: -o is the form of this command's output"),
        (["submit", "-A", "nlp", "train.sh"], "-A is for all namespaces, and a job has one"),
        (["run", "-A", "--", "true"], "help: -n NAMESPACE: that decides the team"),
        (["delete", "a"], "help: fairlead cancel JOB; kubectl delete fj JOB"),
        (["edit", "a"], "help: fairlead update JOB --time DURATION"),
        (["cancel"], "help: if $(fairlead ps ...) was given, it found no job"),
    ],
)  # fmt: skip
def test_words_of_other_tools_are_answered(
    arguments: list[str], said: str, cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_level_that_does_not_exist_is_answered_with_those_that_do(cluster: FakeApi) -> None:
    for key, said in (("rak", "did you mean --topology rack?"),
                      ("nothing", "levels: zone, block, rack, host")):  # fmt: skip
        job = make_job("a", count=2, topology=Topology(key=key, required=True))
        with pytest.raises(CliError) as caught:
            check_fit(cluster, job, 0.0)
        assert said in render_error(caught.value)


def test_a_preferred_level_that_never_fits_is_said_at_submission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = FakeApi()
    for rack in range(2):
        labels = {"topology.kubernetes.io/rack": f"r{rack}", names.RACK: f"r{rack}"}
        for node in make_nodes(2, prefix=f"r{rack}", labels=labels):
            api.create(NODES.raw, to_wire(node))
    asked = Topology(key="rack", required=False, preferred_seconds=600)
    text = check_fit(api, make_job("a", count=3, gpus=8, topology=asked), 0.0).text
    words = "no rack could ever hold its 3 members (the largest holds 2), so it waits for none"
    assert text == f"Place    fits now, on 3 nodes; {words}"
    text = check_fit(api, make_job("a", count=2, gpus=8, topology=asked), 0.0).text
    assert text == "Place    fits now, on 2 nodes"


def test_a_required_level_that_never_fits_is_answered_with_what_would(cluster: FakeApi) -> None:
    for rack in range(4):
        labels = {names.RACK: f"r{rack}", names.BLOCK: f"b{rack // 2}"}
        for node in make_nodes(2, prefix=f"r{rack}", labels=labels):
            cluster.create(NODES.raw, to_wire(node))
    for count, help_ in (
        (4, ("--topology rack:preferred", "--topology block")), (5, ("--topology rack:preferred",)),
    ):  # fmt: skip
        job = make_job("a", count=count, gpus=8, topology=Topology(key="rack", required=True))
        with pytest.raises(CliError) as caught:
            check_fit(cluster, job, 0.0)
        [problem] = caught.value.problems
        assert problem.message.startswith(
            f"needs room for {count} members in one rack; the largest"
        )
        assert problem.help == help_


def running(name: str, node: str, *, since: float, **more: Any) -> Job:
    began = Attempt(1, started_at=format_time(since))
    placement = replace(make_placement([node]), placed_at=format_time(since))
    return make_job(name, placement=placement, status={"attempts": (began,)}, **more)


def busy(*jobs: Job) -> FakeApi:
    api = FakeApi(*jobs)
    for node in make_nodes(len(jobs)):
        api.create(NODES.raw, to_wire(node))
    api.create(PRIORITY_CLASSES.raw, to_wire(make_priority_class("urgent", 100)))
    return api


@pytest.mark.parametrize(
    ("ran_seconds", "said"),
    [
        (3600.0, "starts by preempting low, in about 30s"),
        (20.0, "starts by preempting low, in about 1m10s, unless there is room before"),
    ],
)
def test_a_job_that_preempts_is_told_which_jobs_and_when(ran_seconds: float, said: str) -> None:
    api = busy(running("low", "node-0000", since=EPOCH - ran_seconds))
    high = make_job("high", spec={"priority_class_name": "urgent"})
    assert check_fit(api, high, EPOCH).text == f"Place    {said}"


def test_starts_can_be_compared_and_those_at_once_are_equal_whenever_they_are_asked_for() -> None:
    high = make_job("high", spec={"priority_class_name": "urgent"})
    free = busy(running("low", "node-0000", since=EPOCH))
    free.create(NODES.raw, to_wire(make_nodes(2)[1]))
    now = check_fit(free, high, EPOCH).start
    assert now == check_fit(free, high, EPOCH + 5).start
    low = busy(running("low", "node-0000", since=EPOCH - 3600))
    assert now < check_fit(low, high, EPOCH).start == by(30)


def by(seconds: float) -> JobStart:
    return JobStart(StartKind.BY_INSTANT, EPOCH + seconds)


def test_a_victim_that_may_save_a_checkpoint_first_leaves_the_time_open() -> None:
    low = running("low", "node-0000", since=EPOCH - 3600)
    low = replace(low, status=replace(low.status, progress=Progress(checkpoint_step=5)))
    high = make_job("high", spec={"priority_class_name": "urgent"})
    assert check_fit(busy(low), high, EPOCH).text == "Place    starts by preempting low"


def test_a_job_that_waits_is_told_by_when_it_starts() -> None:
    api = busy(running("a", "node-0000", since=EPOCH, time_limit_seconds=3600))
    assert check_fit(api, make_job("b"), EPOCH).text == (
        "Place    waits: needs 8 GPUs, 0 of 8 are free: 8 short; starts within 1h if the jobs "
        "ahead use their whole time limits"
    )
    assert check_fit(api, make_job("b"), EPOCH).start == by(3630), "with its grace period"
    endless = busy(running("a", "node-0000", since=EPOCH))
    assert check_fit(endless, make_job("b"), EPOCH).start == JobStart(StartKind.UNKNOWN)
    said = "Place    waits: needs 8 GPUs, 0 of 8 are free: 8 short"
    assert check_fit(endless, make_job("b"), EPOCH).text == said


def test_a_job_that_fits_but_for_an_earlier_one_does_not_fit_now() -> None:
    api = busy(running("a", "node-0000", since=EPOCH - 9, time_limit_seconds=3600))
    waits = Condition(PLACED, "False", last_transition_time=format_time(EPOCH - 3600))
    first = make_job("first", count=2, created=EPOCH - 3600, time_limit_seconds=60,
                     conditions=(waits,))  # fmt: skip
    api.create(JOBS.raw, to_wire(first), namespace="default")
    api.create(NODES.raw, to_wire(make_nodes(2)[1]))
    said = check_fit(api, make_job("b"), EPOCH).text
    assert said.startswith("Place    waits: fits now, but the room is kept for job default/first")


def test_a_dry_run_says_what_is_left_to_pull_and_when_the_gang_starts_for_it(
    cluster: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    image = "r.example/torch:1"
    labels = {"images": "yes"}
    for i, sizes in enumerate([{image: 17 * 10**9}, {"pause": 1}, {"pause": 1}]):
        node = make_node(f"gpu-{i}", images=sizes, labels=labels)
        cluster.create(NODES.raw, to_wire(node))
    words = (
        f'Successfully pulled image "{image}" in 8s (8s including waiting). '
        "Image size: 8800000000 bytes."
    )
    event = {"metadata": {"name": "e", "namespace": "default"}, "reason": "Pulled",
             "source": {"component": "kubelet", "host": "gpu-0"}, "message": words}  # fmt: skip
    cluster.create(EVENTS.raw, event, namespace="default")
    Path("gang.yaml").write_text(GANG)
    assert run(["submit", "-f", "gang.yaml", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert (
        "Place    fits now, on 3 nodes\n"
        "Images   r.example/torch:1, 17 GB: on 1 of 3 nodes, the rest in about 15s at 1.1 GB/s, "
        "as measured\n"
        "         the gang starts with its slowest node: gpu-1 has its images last, in about 15s\n"
    ) in said
    assert run(["submit", "-f", "gang.yaml"]) == 0
    assert "Images" not in capsys.readouterr().err, "nodes are read for a dry run alone"


def test_who_may_not_see_nodes_is_said_nothing_of_images() -> None:
    class Hidden(FakeApi):
        def call(self, request: Any) -> Any:
            if request.resource.name == NODES.name:
                raise Forbidden("nodes is forbidden")
            return super().call(request)

    place = make_placement(["gpu-1"])
    assert not image_outlook(Hidden(), make_job("j"), place)
    seen = FakeApi()
    for name, images in (("gpu-1", {"pause": 1}), ("gpu-2", {"train:1": 5})):
        seen.create(NODES.raw, to_wire(make_node(name, images=images)))
    assert image_outlook(seen, make_job("j"), place)
