"""Heterogeneous jobs: which component has which option, and what becomes of them."""

from __future__ import annotations

import pytest

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.values.quantity import CPU, GPU, MEMORY
from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue
from fairlead.cli.job_request.jobspec import Origin, Program, Script, build_job, runs_once
from fairlead.cli.job_request.request import Target
from fairlead.cli.script.header import Header, SubmissionContext, parse_header, request_of
from fairlead.cli.script.het_components import COMPONENTS_MAX, separated
from fairlead.testing.builders import EPOCH

TWO = "#SBATCH -n1 --mem=8G\n#SBATCH hetjob\n#SBATCH -N2 --gres=gpu:4 -c 8 --mem=64G"


def header_of(text: str, *words: str, **environment: str) -> Header:
    options = tuple(separated(list(words))) if words else None
    beside = SubmissionContext(options=options, environment=environment)
    return parse_header(f"#!/bin/sh\n{text}\nsrun true\n", file="t.sh", beside=beside)


def job_of(text: str, *words: str, **environment: str) -> Job:
    header = header_of(text, *words, **environment)
    request, wrong = request_of(header, {}, {}, now=EPOCH)
    assert (*header.problems, *wrong) == ()
    assert request.member_count == sum(each.members for each in request.components)
    script = Script("t.sh", "#!/bin/sh\nsrun true\n")
    assert runs_once(request, script)
    return build_job("t-1", request, Program((), script), Origin("/d", "ana", {}))


def env_of(job: Job, role: int) -> dict[str, str]:
    return {each.name: each.value for each in job.spec.roles[role].template.spec.containers[0].env}


def said(text: str, *words: str) -> list[str]:
    found = header_of(text, *words).problems
    return [f"{each.where} {each.message}".strip() for each in found]


def test_each_component_is_a_role_of_one_gang_with_nodes_and_amounts_of_its_own() -> None:
    job = job_of(TWO)
    shape: list[tuple[object, ...]] = []
    for role in job.spec.roles:
        asked = role.template.spec.containers[0].resources.requests
        notes = role.template.metadata.annotations
        shape.append((
            role.name, role.count, asked[CPU], asked[MEMORY], asked.get(GPU),
            notes[names.SLURM_TASKS], notes[names.MPI],
        ))  # fmt: skip
    assert shape == [
        ("het0", 1, "1", "8Gi", None, "1/1", "true"), ("het1", 2, "8", "64Gi", "4", "1", "true")
    ]  # fmt: skip
    first, second = (env_of(job, role) for role in (0, 1))
    assert (first["SLURM_MEM_PER_NODE"], second["SLURM_MEM_PER_NODE"]) == ("8192", "65536")
    assert first["SLURM_CPUS_PER_TASK_HET_GROUP_1"] == "8"
    assert first["SLURM_MEM_PER_NODE_HET_GROUP_0"] == "8192"
    assert not [name for name in second if "HET_GROUP" in name]
    rules = job.spec.roles[1].template.spec.affinity
    assert rules is not None
    assert rules.pod_anti_affinity is not None
    (term,) = rules.pod_anti_affinity.required
    assert term.match_label_keys == (names.JOB_UID, names.ROLE), "of its own component alone"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TWO, ()),
        (TWO.replace("hetjob", "packjob"), ()),
        ("", ("-n1", "--mem=8G", ":", "-N2", "--gres=gpu:4", "-c8", "--mem=64G")),
        (TWO, (":", "-N2")),
        (TWO.replace("-N2", "-N9"), ("--mem=8G", ":", "--nodes=2")),
        ("#SBATCH -n1 --mem=8G hetjob -N2 --gres=gpu:4 -c 8 --mem=64G", ()),
    ],
)
def test_a_script_and_a_command_line_are_merged_component_by_component(
    text: str, words: tuple[str, ...]
) -> None:
    assert job_of(text, *words).spec == job_of(TWO).spec


def test_a_component_has_what_the_one_before_carries_over_and_its_own_of_the_rest() -> None:
    header = header_of(
        "#SBATCH -t 60 -J x -n4 -c2 --mem=1G -x n7 -p a -A lab\n#SBATCH hetjob\n"
        "#SBATCH -n2\n#SBATCH hetjob\n#SBATCH --mem-per-cpu=3G -x n8 --time=60"
    )
    found = [header.givens, *(each.givens for each in header.further)]
    assert header.problems == ()
    shown = [
        {flag.value: given[-1].value for flag, given in each.items()
         if flag in (Flag.TIME, Flag.NAME, Flag.CPUS, Flag.MEMORY, Flag.NODE_SELECTOR,
                     Flag.PARTITION)}
        for each in found
    ]  # fmt: skip
    whole = {"time": "3600s", "name": "x"}
    hosts = "kubernetes.io/hostname notin ({})"
    assert shown == [
        {**whole, "cpus": "8", "memory": "1Gi", "node-selector": hosts.format("n7"),
         "partition": "a"},
        {**whole, "cpus": "2", "memory": "1Gi", "node-selector": hosts.format("n7")},
        {**whole, "memory": "3Gi", "node-selector": hosts.format("n8")},
    ]  # fmt: skip
    accounts = [dict(each.batch.variables).get("SLURM_JOB_ACCOUNT") for each in header.further]
    assert accounts == ["lab", "lab"]


def test_variables_of_the_shell_are_for_every_component() -> None:
    job = job_of(TWO.replace("--mem=8G", "").replace("--mem=64G", ""), SBATCH_MEM_PER_NODE="2G")
    memory = [r.template.spec.containers[0].resources.requests[MEMORY] for r in job.spec.roles]
    assert memory == ["2Gi", "2Gi"]


def test_what_the_job_has_once_is_refused_or_noted_in_a_later_component_all_together() -> None:
    text = (
        "#SBATCH --time=10\n#SBATCH hetjob\n#SBATCH --time=20 --output=b.log\n"
        "#SBATCH --hold --mem=1G --mem-per-cpu=1G\n#SBATCH --job-name=y"
    )
    assert sorted(said(text)) == [
        "t.sh:4:1 --time=20 is not that of the first component, 10",
        "t.sh:5:1 --hold is not that of the first component",
        "t.sh:5:1 --mem-per-cpu: --mem and --mem-per-cpu contradict each other",
    ]
    notes = header_of(text).notes
    where = "has no effect in a later component: the job has that of the first one"
    assert [note for note in notes if "component" in note] == [
        f"t.sh:4: --output {where}", f"t.sh:6: --job-name {where}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "later", "problem"),
    [
        ("60", "1:00:00", ""),
        ("1-12", "36:00:00", ""),
        ("UNLIMITED", "0", ""),
        ("60", "59", "--time=59 is not that of the first component, 60"),
        ("UNLIMITED", "1", "--time=1 is not that of the first component, UNLIMITED"),
        ("10", "never", "--time=never is not that of the first component, 10"),
    ],
)
def test_limits_of_components_are_compared_as_amounts(first: str, later: str, problem: str) -> None:
    text = f"#SBATCH --time={first}\n#SBATCH hetjob\n#SBATCH --time={later}\n"
    assert [each.partition(" ")[2] for each in said(text)] == ([problem] if problem else [])


def test_an_array_of_heterogeneous_jobs_is_refused_wherever_it_is_asked_for() -> None:
    why = "--array: an array of heterogeneous jobs has no equal, in Slurm neither"
    assert said(f"#SBATCH -a 0-3\n{TWO}") == [f"t.sh:2:1 {why}"]
    assert said(f"{TWO}\n#SBATCH -a 0-3") == [f"t.sh:5:1 {why}"]
    assert said("", "-a0-3", ":", "-n1") == [why]
    assert said(f"#FAIRLEAD --array 0-3\n{TWO}") == [f"t.sh:2:1 {why}"]


def test_flags_that_do_not_say_which_component_they_mean_are_refused() -> None:
    flags = {Flag.GPUS: (FlagValue("1", "--gpus"),), Flag.IMAGE: (FlagValue("a:1", "--image"),)}
    header = header_of(f"#FAIRLEAD --nodes 3\n{TWO}")
    request, wrong = request_of(header, flags, {}, now=EPOCH)
    messages = [each.message for each in (*header.problems, *wrong)]
    which = "does not say which component of the script it is for"
    assert messages == [f"--nodes {which}", f"--gpus {which}"]
    assert [each.image for each in request.components] == ["a:1", "a:1"]
    assert request.of_each(target=Target.LOCAL).further[0].target is Target.LOCAL


def test_a_component_that_begins_after_the_first_command_is_noted() -> None:
    header = parse_header("#!/bin/sh\n# SBATCH hetjob\ntrue\n#SBATCH hetjob\n", file="t.sh")
    assert header.notes == (
        "t.sh:2: '# SBATCH' is not read; write #SBATCH",
        "t.sh:4: #SBATCH after the first command is not read",
    )


def test_more_components_than_slurm_allows_are_refused() -> None:
    lines = "\n".join(["#SBATCH hetjob"] * COMPONENTS_MAX)
    assert said(lines) == [f"there are {COMPONENTS_MAX + 1} components; a job may have 128"]
    assert said(lines.partition("\n")[2]) == []
