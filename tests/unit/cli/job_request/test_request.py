"""From flags to a typed request, and from a request to a Job."""

from __future__ import annotations

import pytest

from fairlead.api.jobs.after import AfterState
from fairlead.api.jobs.job import MEMBERS_MAX, RestartPolicy
from fairlead.api.jobs.topology import Topology
from fairlead.api.kubernetes.core import Toleration
from fairlead.api.validation.validate import validate_job
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue
from fairlead.cli.job_request.jobspec import (
    Origin,
    Program,
    Script,
    base_name,
    build_job,
    build_script_map,
    interpreter,
    literal,
    next_name,
    to_manifest,
)
from fairlead.cli.job_request.request import RETRIES_MAX, JobRequest, Target, parse_request
from fairlead.cli.submitting.submission import Naming, pick_name
from fairlead.testing.builders import EPOCH

ORIGIN = Origin("/home/ana/vision", "ana", {"PATH": "/venv/bin:/bin", "SECRET": "x"})


def parse(**flags: str | list[str]) -> tuple[JobRequest, list[str]]:
    givens = {
        Flag(name.replace("_", "-")): tuple(
            FlagValue(v, f"--{name}") for v in (value if isinstance(value, list) else [value])
        )
        for name, value in flags.items()
    }
    request, problems = parse_request(givens, {"HOME": "/home/ana"}, now=EPOCH)
    return request, [problem.message for problem in problems]


def test_all_flags_are_read_into_base_units() -> None:
    request, problems = parse(
        name="train", nodes="4", gpus="8", cpus="1500m", memory="64Gi", time="12h", priority="-5",
        env=["A=1", "HOME"], after=["ok:prep-1", "any:x", "failed:y"], simulate="30s",
    )  # fmt: skip
    assert problems == []
    assert (request.members, request.gpus, request.cpu_millis) == (4, 8, 1500)
    assert request.memory_bytes == 64 << 30
    assert request.time_seconds == 43_200
    assert request.priority == -5
    assert request.env == (("A", "1"), ("HOME", "/home/ana"))
    assert [after.state for after in request.after] == [
        AfterState.SUCCEEDED, AfterState.FINISHED, AfterState.FAILED,
    ]  # fmt: skip
    assert request.target is Target.VIRTUAL
    assert request.simulate_seconds == 30


def test_a_range_of_members_is_read_as_sbatch_reads_it() -> None:
    for text, found in (("2-4", (2, 4)), ("4-4", (None, 4)), ("4", (None, 4))):
        request, problems = parse(nodes=text)
        assert (problems, request.members_min, request.members) == ([], *found)
    for text in ("0-4", "4-2", "1-100001", "2-"):
        _, problems = parse(nodes=text)
        assert len(problems) == 1


def test_what_is_started_after_may_be_elements_of_an_array() -> None:
    request, problems = parse(after=["ok:prep[3-9,12]", "any:x", "each:prior"], array="0-9")
    assert problems == []
    assert [(after.job, after.elements) for after in request.after] == [
        ("prep", "3-9,12"), ("x", ""), ("prior", "Same"),
    ]  # fmt: skip
    assert request.after[2].state is AfterState.SUCCEEDED
    _, problems = parse(after=["each:prior", "ok:a[9-3]", "any:a[", "each:a[3]"])
    assert len(problems) == 4
    assert "'each' is for arrays" in problems[0]


def test_every_wrong_value_is_reported_at_once() -> None:
    _, problems = parse(nodes="0", gpus="8x", cpus="many", memory="12parsec", time="soon",
                        name="No_Good", priority="?", env="1A=2", after="train",
                        on="moon")  # fmt: skip
    assert len(problems) == 10


def test_gigabytes_are_not_guessed() -> None:
    _, (problem,) = parse(memory="900GB")
    assert problem == "--memory: '900GB' can mean two sizes: write 900G (= 838.2Gi) or 900Gi"


def test_a_memory_without_a_unit_is_too_small_to_be_meant() -> None:
    _, (problem,) = parse(memory="64")
    assert "less than any program needs" in problem


def test_the_least_memory_that_is_believed_is_one_mebibyte() -> None:
    _, (problem,) = parse(memory="1048575")
    assert "'1048575' is 1048575 bytes, less than any program needs" in problem
    request, problems = parse(memory="1Mi")
    assert (request.memory_bytes, problems) == (1 << 20, [])


def test_a_class_name_is_a_priority_too() -> None:
    request, problems = parse(priority="high")
    assert problems == []
    assert (request.priority, request.priority_class) == (None, "high")


def test_a_simulated_local_job_is_a_contradiction() -> None:
    assert parse(on="local", simulate="10s")[1]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("#!/usr/bin/env python3\nprint()", ("/usr/bin/env", "python3")),
        ("#!/bin/bash -eu -o pipefail\n", ("/bin/bash", "-eu -o pipefail")),
        ("#! /bin/zsh\r\n", ("/bin/zsh",)),
        ("echo hi\n", ("/bin/sh",)),
        ("", ("/bin/sh",)),
    ],
)
def test_the_first_line_of_a_script_names_its_interpreter(
    text: str, command: tuple[str, ...]
) -> None:
    assert interpreter(text) == command


def test_a_script_job_runs_the_copy_and_not_the_file() -> None:
    script = Script("train.sh", "#!/bin/bash\necho hi\n")
    job = build_job("train-1", JobRequest(target=Target.LOCAL), Program(("a b",), script), ORIGIN)
    (container,) = job.spec.roles[0].template.spec.containers
    assert container.command == ("/bin/bash", "/etc/fairlead-script/train.sh", "a b")
    assert container.working_dir == "/home/ana/vision"
    assert [(e.name, e.value) for e in container.env] == [("PATH", "/venv/bin:/bin")]
    config_map = build_script_map("train-1", script)
    (volume,) = job.spec.roles[0].template.spec.volumes
    assert volume.config_map is not None
    assert volume.config_map.name == config_map.metadata.name
    assert config_map.data == {"train.sh": script.text}


def test_a_variable_that_was_asked_for_replaces_that_of_the_shell() -> None:
    request = JobRequest(target=Target.LOCAL, env=(("PATH", "/opt/bin"),))
    job = build_job("a", request, Program(("x",)), ORIGIN)
    (container,) = job.spec.roles[0].template.spec.containers
    assert [(each.name, each.value) for each in container.env] == [("PATH", "/opt/bin")]


def test_a_local_job_may_use_this_machine_and_a_virtual_one_may_not() -> None:
    local = build_job("a", JobRequest(target=Target.LOCAL), Program(("x",)), ORIGIN)
    spec = local.spec.roles[0].template.spec
    assert spec.node_selector == {"fairlead.dev/node-type": "local"}
    assert spec.tolerations == (Toleration(key="fairlead.dev/local", operator="Exists"),)
    request = JobRequest(target=Target.VIRTUAL, simulate_seconds=30)
    virtual = build_job("a", request, Program(("x",)), ORIGIN).spec.roles[0].template
    assert virtual.spec.node_selector == {"fairlead.dev/node-type": "virtual"}
    assert virtual.spec.tolerations == ()
    assert virtual.metadata.annotations == {"fairlead.dev/simulate-seconds": "30"}


def test_what_is_built_is_valid() -> None:
    request, _ = parse(
        nodes="4", gpus="8", memory="64Gi", time="1h", no_restart="true", hold="true"
    )
    job = build_job("train-1", request, Program(("x",)), ORIGIN)
    assert validate_job(to_manifest(job)) == []
    assert job.spec.suspend
    assert job.spec.restart.policy is RestartPolicy.NEVER


@pytest.mark.parametrize("text", ["$$", "$(HOME)", "$$(HOME)", "$HOME", "a$", "$$$", "${X}"])
def test_arguments_survive_the_expansion_of_variables(text: str) -> None:
    from fairlead.embedded.local.containers import expand

    assert expand(literal(text), {"HOME": "/root", "X": "1"}) == text


def test_names_count_up_from_the_highest_in_use() -> None:
    assert next_name("train", []) == "train-1"
    assert next_name("train", ["train-1", "train-9", "trainer-12", "train-x"]) == "train-10"


def test_a_name_in_a_header_is_a_stem_and_one_on_the_command_line_is_exact() -> None:
    def read(value: str, origin: str) -> tuple[str | None, str | None]:
        request, problems = parse_request({Flag.NAME: (FlagValue(value, origin),)}, {}, now=EPOCH)
        assert problems == ()
        return request.name, request.stem

    assert read("resnet50", "--name") == ("resnet50", None)
    assert read("resnet50", "train.sh:2") == (None, "resnet50")
    assert read("Exp_lr0.1", "train.sh:2") == (None, "exp-lr0-1")


def test_a_stem_names_the_first_job_and_numbers_the_later_ones() -> None:
    naming = Naming(None, "resnet50", first_is_bare=True)
    names = [
        pick_name(naming, frozenset(taken))
        for taken in ([], ["resnet50"], ["resnet50", "resnet50-2"], ["resnet50-7"])
    ]
    assert names == ["resnet50", "resnet50-2", "resnet50-3", "resnet50"]


def test_retries_are_restarts_after_failures_of_the_program() -> None:
    job = build_job("x", JobRequest(retries=2), Program(("true",)), ORIGIN)
    assert (job.spec.restart.policy, job.spec.restart.limit) == (RestartPolicy.GANG, 2)
    assert build_job("x", JobRequest(), Program(("true",)), ORIGIN).spec.restart.limit == 0
    _, problems = parse(retries="2", no_restart="true")
    assert problems == ["--retries: does not go together with --no-restart"]


@pytest.mark.parametrize(
    ("name", "base"),
    [("train.sh", "train"), ("My Script_v2.py", "my-script-v2"), ("___", "job"),
     ("x" * 90, "x" * 39)],
)  # fmt: skip
def test_a_scripts_name_becomes_a_jobs_name(name: str, base: str) -> None:
    assert base_name(Program((), Script(name, ""))) == base


def test_every_numbered_name_of_a_long_script_is_one_that_the_api_takes() -> None:
    base = base_name(Program((), Script("x" * 90, "")))
    request = JobRequest(members=MEMBERS_MAX, retries=RETRIES_MAX)
    for name in (next_name(base, []), next_name(base, [f"{base}-99998"])):
        assert validate_job(to_manifest(build_job(name, request, Program(("x",)), ORIGIN))) == []


def test_a_name_on_the_command_line_may_be_as_long_as_the_api_allows_for_this_job() -> None:
    for members, most in ((1, 49), (10, 49), (1_000, 47), (1_001, 46)):
        for length, is_valid in ((most, True), (most + 1, False)):
            request, problems = parse(nodes=str(members), name="x" * length)
            assert problems == []
            job = build_job(request.name or "", request, Program(("x",)), ORIGIN)
            paths = [each.field for each in validate_job(to_manifest(job))]
            assert paths == ([] if is_valid else ["metadata.name"])


def test_levels_of_the_topology_are_read_together_and_every_mistake_is_reported() -> None:
    def read(*values: str):
        givens = {Flag.TOPOLOGY: tuple(FlagValue(value, "--topology") for value in values)}
        return parse_request(givens, {}, now=EPOCH)

    request, problems = read("block", "rack:preferred=10m", "nvlink:slice=8")
    assert (request.topology, problems) == (Topology("block", True, "rack", 600, "nvlink", 8), ())
    request, problems = read("rack:preferred")
    assert (request.topology, problems) == (Topology("rack"), ())
    _, problems = read("a b", "rack:near", "rack:slice=1", "rack", "block", "r:preferred=soon")
    assert [problem.message.removeprefix("--topology: ") for problem in problems][:4] == [
        "'a b' is neither a level nor the key of a node label",
        "'near' must be preferred, preferred=DURATION or slice=K",
        "'1' must be a number of members from 2",
        "'block' is a second level that is required",
    ]
    assert len(problems) == 5
