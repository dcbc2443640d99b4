"""Steps of heterogeneous jobs: which component has which tasks; real processes of one machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.unit.member.test_batch import run

from fairlead.member.het_groups import components, cpus_of_nodes, environment_of, groups
from fairlead.member.srun import PlacedStep
from fairlead.member.srun_options import parse_step
from fairlead.member.step_layout import StepError

#: One node with one task, then two nodes with two tasks each.
HET = {
    "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST": "127.0.0.1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2(x2)",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "127.0.0.1",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "127.0.0.[2-3]",
    "SLURM_CPUS_ON_NODE": "1", "SLURM_CPUS_ON_NODE_HET_GROUP_0": "1",
    "SLURM_CPUS_ON_NODE_HET_GROUP_1": "4",
    "SLURM_MEM_PER_NODE": "64", "SLURM_MEM_PER_NODE_HET_GROUP_0": "64",
    "SLURM_CPUS_PER_TASK_HET_GROUP_1": "2",
}  # fmt: skip
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def of(*words: str) -> PlacedStep:
    """Return the step of a command line in a script on the three nodes."""
    environment = {**HET, "SLURM_TASKS_PER_NODE": "1"}
    return PlacedStep.of(parse_step(words, environment), components(environment, HOSTS))


def test_steps_are_on_one_component_or_on_several_with_one_count_of_tasks(tmp_path: Path) -> None:
    (tmp_path / "show").write_text(
        "#!/bin/sh\necho $1 $SLURM_PROCID/$SLURM_NTASKS $RANK/$WORLD_SIZE node $SLURM_NODEID of "
        "$SLURM_NNODES local $SLURM_LOCALID at $FAIRLEAD_INDEX nodes $SLURM_JOB_NODELIST "
        "mem ${SLURM_MEM_PER_NODE-none} cpus $SLURM_CPUS_PER_TASK/$SLURM_CPUS_ON_NODE "
        "master $MASTER_ADDR step $SLURM_STEP_ID\nexit ${2:-0}\n"
    )
    (tmp_path / "show").chmod(0o755)
    script = (
        "srun ./show a\n"
        "srun --het-group=1 ./show b\n"
        "srun -l ./show c : -n2 ./show d 3 2>/dev/null; echo code $?\n"
        "srun -n1 : -n1 true; echo one program $?\n"
        "srun --pack-group=0,1 -n1 ./show e\n"
        "srun --het-group=1 -N1 -n2 --gpus-per-task=1 sh -c 'echo gpu $CUDA_VISIBLE_DEVICES'\n"
    )
    codes, lines, errors = run(
        tmp_path, script, nodes=3, tasks="1", SLURM_GPUS_ON_NODE="2", **HET
    )  # fmt: skip
    assert (codes, errors) == ([0, 0, 0], "")
    one = "nodes 127.0.0.1 mem 64 cpus 1/1 master 127.0.0.1"
    both = "nodes 127.0.0.1,127.0.0.[2-3]"
    two = "mem none cpus 2/4 master"
    of_two = f"nodes 127.0.0.[2-3] {two} 127.0.0.2"
    assert lines == [
        f"0: c 0/3 0/3 node 0 of 3 local 0 at 0 {both} mem 64 cpus 1/1 master 127.0.0.1 step 2",
        f"1: d 1/3 1/3 node 1 of 3 local 0 at 1 {both} {two} 127.0.0.1 step 2",
        f"2: d 2/3 2/3 node 2 of 3 local 0 at 2 {both} {two} 127.0.0.1 step 2",
        f"a 0/1 0/1 node 0 of 1 local 0 at 0 {one} step 0",
        f"b 0/4 0/4 node 0 of 2 local 0 at 1 {of_two} step 1",
        f"b 1/4 1/4 node 0 of 2 local 1 at 1 {of_two} step 1",
        f"b 2/4 2/4 node 1 of 2 local 0 at 2 {of_two} step 1",
        f"b 3/4 3/4 node 1 of 2 local 1 at 2 {of_two} step 1",
        "code 3",
        f"e 0/2 0/2 node 0 of 2 local 0 at 0 {both} mem 64 cpus 1/1 master 127.0.0.1 step 4",
        f"e 1/2 1/2 node 1 of 2 local 0 at 1 {both} {two} 127.0.0.1 step 4",
        "gpu 0",
        "gpu 1",
        "one program 0",
    ]


def test_programs_of_two_components_are_one_communicator(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(
        "import sys\nfrom mpi4py import MPI\n"
        "print(sys.argv[1], MPI.COMM_WORLD.allgather(sys.argv[1] + str(MPI.COMM_WORLD.rank)))\n"
    )
    started = f"{sys.executable} -m fairlead.member.mpirun -- {sys.executable} ranks.py"
    two = {**HET, "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1"}
    codes, lines, _ = run(tmp_path, f"srun {started} a : {started} b", nodes=2, tasks="1", **two)
    assert codes == [0, 0]
    assert lines == ["a ['a0', 'b1']", "b ['a0', 'b1']"]


def test_each_node_has_the_cpus_and_each_part_the_options_of_its_component() -> None:
    assert cpus_of_nodes({**HET, "SLURM_TASKS_PER_NODE": "1"}, 3) == [1, 4, 4]
    assert cpus_of_nodes({"SLURM_CPUS_ON_NODE": "2"}, 3) == [2, 2, 2]
    first, second = of("-l", "-K", "-o", "o.%t", "a", ":", "-n3", "-c1", "b").request({})["parts"]
    assert {node: len(tasks) for node, tasks in first["tasks"].items()} == {"0": 1}
    assert {node: len(tasks) for node, tasks in second["tasks"].items()} == {"1": 2, "2": 1}
    step = of("-l", "-K", "-o", "o.%t", "-N1", "a", ":", "-n3", "b")
    assert {(each.labels, each.kills_on_bad_exit, each.output) for each in step.options} == {
        (True, True, "o.%t")
    }
    assert [part.asked.options.cpus for part in step.parts] == [1, 2]
    assert [part.asked.options.command for part in of("-n1", ":", "-n1", "b").parts] == [("b",)] * 2
    turned = of("--het-group=1", "b", ":", "--het-group=0", "a")
    assert [part.asked.options.command for part in turned.parts] == [("a",), ("b",)]


def test_torchrun_in_a_step_finds_the_nodes_of_the_step_and_not_those_of_the_gang() -> None:
    gang = {"PET_NNODES": "3", "PET_MASTER_ADDR": "127.0.0.1", "MASTER_ADDR": "127.0.0.1"}
    names = ("PET_NNODES", "PET_MASTER_ADDR", "PET_NODE_RANK", "NODE_RANK", "GROUP_RANK")

    def seen(*words: str) -> list[list[str]]:
        parts = of(*words).request({**HET, **gang, "SLURM_TASKS_PER_NODE": "1"})["parts"]
        return [
            [{**part["environment"], **task["variables"]}[name] for name in names]
            for part in parts for tasks in part["tasks"].values() for task in tasks
        ]  # fmt: skip

    assert seen("--het-group=1", "-N2", "-n2", "torchrun") == [
        ["2", "127.0.0.2", "0", "0", "0"], ["2", "127.0.0.2", "1", "1", "1"],
    ]  # fmt: skip
    assert seen("--het-group=0", "torchrun") == [["1", "127.0.0.1", "0", "0", "0"]]
    assert seen("--het-group=0-1", "-n1", "torchrun") == [
        ["2", "127.0.0.1", "0", "0", "0"], ["2", "127.0.0.1", "1", "1", "1"],
    ]  # fmt: skip
    assert [each[2:4] for each in seen("--het-group=1", "torchrun")] == [
        ["0", "0"], ["1", "0"], ["2", "1"], ["3", "1"],
    ]  # fmt: skip


def test_gpus_of_a_task_are_counted_on_its_own_node() -> None:
    tasks = of("--het-group=1", "--gpus-per-task=2", "a").request({})["parts"][0]["tasks"]
    assert [task["gpus"] for task in tasks["2"]] == [[0, 2], [2, 2]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", ":", "b", ":", "c"], "het group value of 2, but the job allocation has maximum"),
        (["--het-group=0", "a", ":", "--het-group=0", "b"], "two parts of the step are for"),
        (["--het-group=1-0", "a"], "'1-0' is not a list of components such as 0,2-3"),
        (["--het-group=", "a"], "'' is not a list of components"),
        (["--multi-prog", "f", ":", "b"], "--multi-prog is for one component"),
        (["a", ":", "--pty", "b"], "--input and --pty are of the whole step"),
        (["a", ":"], "no program is given"),
        ([":", "-w127.0.0.1", "b"], "'127.0.0.1' is no node of this job"),
    ],
)
def test_what_no_step_can_be_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(StepError, match=said):
        of(*words)


def test_variables_of_a_job_that_contradict_each_other_are_refused() -> None:
    assert groups("3-4, 0") == (0, 3, 4)
    assert environment_of({"A": "1", "B_HET_GROUP_0": "2", "B": "3"}, 1) == {
        "A": "1", "B_HET_GROUP_0": "2",
    }  # fmt: skip
    for wrong in ({"SLURM_HET_SIZE": "two"}, {"SLURM_HET_SIZE": "3"}, {}):
        with pytest.raises(StepError):
            components({**HET, "SLURM_TASKS_PER_NODE": "1", **wrong}, HOSTS[: 2 + bool(wrong)])
