"""#FAIRLEAD and #SBATCH lines: what is honoured, noted and refused."""

from __future__ import annotations

import pytest

from fairlead.cli.job_request.flag_groups.flags import Flag, FlagValue, merge
from fairlead.cli.job_request.request import parse_request
from fairlead.cli.script.header import Header, SubmissionContext, parse_header
from fairlead.cli.script.slurm_options import LONG, OPTIONS, SHORT, Option, OptionTreatment
from fairlead.testing.builders import EPOCH

NOTHING = SubmissionContext()


def read(*lines: str, beside: SubmissionContext = NOTHING) -> Header:
    text = "\n".join(("#!/bin/bash", *lines, "", "python train.py", "#SBATCH --nodes=99"))
    return parse_header(text, file="train.sh", beside=beside)


def values(header: Header) -> dict[str, list[str]]:
    return {flag.value: [g.value for g in given] for flag, given in header.givens.items()}


def test_fairlead_lines_carry_the_flags_of_submit() -> None:
    header = read("#FAIRLEAD --nodes 4 --gpus=8", "#FAIRLEAD --env A=1 --env B=2 --hold")
    assert values(header) == {"nodes": ["4"], "gpus": ["8"], "env": ["A=1", "B=2"],
                              "hold": ["true"]}  # fmt: skip
    assert header.givens[Flag.GPUS][0].origin == "train.sh:2"
    assert header.problems == ()


def test_members_is_another_name_of_nodes_and_the_last_of_both_counts() -> None:
    header = read("#FAIRLEAD --nodes 4", "#FAIRLEAD --members=2-8")
    assert header.givens == {Flag.NODES: (FlagValue("2-8", "train.sh:3"),)}
    assert not header.problems


def test_a_space_that_a_formatter_put_in_takes_no_request_away() -> None:
    assert values(read("# FAIRLEAD --nodes 4", "#  FAIRLEAD --gpus 8")) == {
        "nodes": ["4"], "gpus": ["8"]
    }  # fmt: skip
    for comment in ("# FAIRLEAD runs this", "##FAIRLEAD --gpus 1", "# for FAIRLEAD --gpus 1",
                    "# SBATCH --nodes=2", "# FAIRLEADER --gpus 1"):  # fmt: skip
        assert values(read(comment)) == {}


def test_lines_after_the_first_command_do_not_count() -> None:
    assert read("#SBATCH --nodes=2").givens[Flag.NODES] == (FlagValue("2", "train.sh:2"),)
    assert read("#SBATCH -N 2-4").givens[Flag.NODES] == (FlagValue("2-4", "train.sh:2"),)


def test_honoured_sbatch_options_become_our_flags() -> None:
    header = read(
        "#SBATCH -J prep -N4 --cpus-per-task=16 --mem=64G",
        "#SBATCH --gres=gpu:a100:8 -t 1-12:00:00",
        "#SBATCH --dependency=afterok:a-1:b-2,afterany:c-3",
        "#SBATCH --export=LR=0.1 -H --no-requeue --ntasks-per-node=2",
    )
    assert header.problems == ()
    assert values(header) == {
        "name": ["prep"], "nodes": ["4"], "one-per-node": ["true"], "cpus": ["32"],
        "memory": ["64Gi"], "gpus": ["a100:8"], "time": ["129600s"],
        "after": ["ok:a-1", "ok:b-2", "any:c-3"], "env": ["LR=0.1"],
        "hold": ["true"], "no-restart": ["true"],
    }  # fmt: skip
    assert header.batch is not None
    assert (header.batch.tasks_per_node, header.batch.tasks) == (2, None)
    assert not header.batch.exports_all


def test_dependencies_on_arrays_and_on_their_elements_are_read_as_sbatch_reads_them() -> None:
    header = read("#SBATCH --dependency=afterok:a_4:a_8:b,afternotok:c_0,aftercorr:d")
    assert header.problems == ()
    assert values(header)["after"] == ["ok:a[4,8]", "ok:b", "failed:c[0]", "each:d"]


def test_a_start_with_a_delay_and_alternatives_are_read_as_sbatch_reads_them() -> None:
    header = read("#SBATCH --dependency=after:a+5:b,afterok:c+5")
    assert header.problems == ()
    assert values(header)["after"] == ["started:a+5m", "started:b", "ok:c"]
    header = read("#SBATCH --dependency=afterok:a:b?afternotok:c")
    assert header.problems == ()
    assert values(header)["after"] == ["ok?:a", "ok?:b", "failed?:c"]
    for mixed in ("afterok:a?afterok:b,afterok:c", "afterok:a?singleton"):
        (problem,) = read(f"#SBATCH --dependency={mixed}").problems
        assert "'?' (any)" in problem.message


def test_a_plain_slurm_memory_is_in_mebibytes() -> None:
    assert values(read("#SBATCH --mem=4096"))["memory"] == ["4Gi"]


def test_harmless_options_are_noted() -> None:
    header = read("#SBATCH --nice", "#SBATCH -A lab")
    assert header.problems == ()
    assert header.givens == {}
    assert any("--nice has no effect" in note for note in header.notes)
    assert any("--account has no effect" in note for note in header.notes)


def _of(treatment: OptionTreatment) -> list[Option]:
    return [option for option in OPTIONS if option.treatment is treatment]


@pytest.mark.parametrize("option", _of(OptionTreatment.REFUSED), ids=lambda option: option.name)
def test_options_that_would_change_the_result_are_refused_with_an_equivalent(
    option: Option,
) -> None:
    header = read(f"#SBATCH {option.shown}=ALL")
    (problem,) = header.problems
    assert problem.where == "train.sh:2:1"
    assert option.name in problem.message
    assert problem.help == (option.words,)


@pytest.mark.parametrize("option", _of(OptionTreatment.NOTED), ids=lambda option: option.name)
def test_options_that_name_a_place_or_a_wish_are_noted(option: Option) -> None:
    header = read(f"#SBATCH {option.shown}=1", "#SBATCH --mem=1G")
    assert header.problems == ()
    assert header.notes[0] == (f"train.sh:2: #SBATCH {option.shown} has no effect: {option.words}")
    assert values(header) == {"memory": ["1Gi"]}


def test_an_unknown_option_suggests_the_nearest_one() -> None:
    (problem,) = read("#SBATCH --job-nmae=x").problems
    assert problem.help == ("did you mean --job-name?",)


def test_unknown_options_can_be_ignored_and_are_then_noted() -> None:
    header = read("#SBATCH --frobnicate=3", beside=SubmissionContext(ignores_unknown=True))
    assert header.problems == ()
    assert any("frobnicate" in note for note in header.notes)


def test_every_problem_of_a_header_is_reported() -> None:
    header = read("#SBATCH --input=a", "#SBATCH --nodes=2-4:2", "#SBATCH --mem=lots",
                  "#SBATCH --dependency=expand:3", "#FAIRLEAD --gpu 8",
                  "#SBATCH --constraint")  # fmt: skip
    assert sorted(problem.where for problem in header.problems) == [
        f"train.sh:{line}:1" for line in range(2, 8)
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["--mem=4G", "--mem-per-cpu=1G"], "--mem and --mem-per-cpu contradict each other"),
        (["--gres=gpu:4", "--gpus-per-node=8"], "--gpus-per-node=8 contradicts --gres=gpu:4"),
        (["--gres=gpu:a100:4", "--gpus-per-node=h100:4"], "contradicts --gres=gpu:a100:4"),
        (["--nodes=2", "--ntasks-per-node=2", "--ntasks=8"], "--ntasks=8 is more than --nodes=2"),
        (["--gpus=3", "--nodes=2"], "--gpus=3 cannot be the same on each of the 2 nodes"),
        (["--cpus-per-task=2", "--cpus-per-gpu=2", "--gpus=1"], "contradicts --cpus-per-task"),
        (["--cpus-per-gpu=2"], "--cpus-per-gpu needs a number of GPUs"),
        (["--mem-per-gpu=2G"], "--mem-per-gpu needs a number of GPUs"),
        (["--nodes=3", "--nodelist=a,b"], "--nodelist names 2 nodes of 3"),
        (["--gres=gpu:a100:1,gpu:v100:1"], "only GPUs are counted, of one type"),
        (["--gres=lustre:1"], "only GPUs are counted, of one type"),
        (["--nodelist=n[1-"], "the brackets of 'n[1-' do not match"),
        (["--container-image=/images/a.sqsh"], "nodes pull images from a registry"),
        (["--time= 10:00"], "--time needs a value"),
        (["--nodes = 2"], "--nodes: '=' is neither a whole number"),
        (["--ntasks=<tasks>"], "--ntasks: '<tasks>' is not a whole number"),
        (["--comment 'no end"], "the line has a quotation without an end"),
    ],
)  # fmt: skip
def test_lines_that_contradict_each_other_or_say_nothing_are_refused(
    lines: list[str], words: str
) -> None:
    problems = read(*(f"#SBATCH {line}" for line in lines)).problems
    assert any(words in problem.message for problem in problems)
    assert all(problem.where and problem.help for problem in problems)


def test_a_line_counts_from_the_first_column_with_or_without_a_blank() -> None:
    assert values(read("#SBATCH--mem=1G"))["memory"] == ["1Gi"]
    header = read("  #SBATCH --mem=1G", "#SBATCHES --mem=2G")
    assert values(header) == {}
    assert header.batch is None
    assert header.notes[0] == "train.sh:2: #SBATCH is read in the first column only"


def test_the_command_line_beats_variables_and_these_the_lines_of_a_script() -> None:
    environment = {"SBATCH_PARTITION": "b", "SBATCH_TIMELIMIT": "60", "SBATCH_ACCOUNT": "lab"}
    lines = ("#SBATCH -p a", "#SBATCH -t 30", "#SBATCH -N 2 -n 16")
    header = read(*lines, beside=SubmissionContext(environment=environment, nodes="4"))
    assert values(header) == {
        "partition": ["b"], "time": ["3600s"], "nodes": ["4"], "one-per-node": ["true"],
        "cpus": ["4"],
    }  # fmt: skip
    assert header.givens[Flag.PARTITION][0].origin == "$SBATCH_PARTITION"
    assert any(note.startswith("$SBATCH_ACCOUNT has no effect") for note in header.notes)
    assert values(
        read("#FAIRLEAD --cpus 2", beside=SubmissionContext(environment=environment))
    ) == {"cpus": ["2"]}


def test_a_flag_of_ours_in_the_script_beats_what_slurms_lines_come_to() -> None:
    found = values(read("#SBATCH -N 2 --ntasks-per-node=8", "#FAIRLEAD --cpus 3 --nodes 5"))
    assert (found["cpus"], found["nodes"]) == (["3"], ["5"])


LATE = "train.sh:{}: #SBATCH after the first command is not read"


def test_lines_that_are_not_read_are_noted() -> None:
    assert read("#FAIRLEAD --nodes 4").notes == (LATE.format(5),)
    notes = read("#SBTACH --nodes=2", "#FAIRLAED --gpus 8", "# SBATCH -N 2", "# a comment").notes
    assert notes == (
        "train.sh:2: '#SBTACH' is not read; write #SBATCH",
        "train.sh:3: '#FAIRLAED' is not read; write #FAIRLEAD",
        "train.sh:4: '# SBATCH' is not read; write #SBATCH",
    )
    many = parse_header("true\n" + "#SBATCH -N 2\n" * 9, file="a.sh").notes
    assert len(many) == 3


def test_options_without_effect_are_noted_together_by_the_reason() -> None:
    notes = read("#SBATCH -A a", "#SBATCH --wckey b", "#SBATCH --mail-type=STAGE_OUT").notes
    assert notes[:-1] == (
        "train.sh:2, 3: #SBATCH --account, --wckey have no effect: nothing is charged by it; the "
        "team of a job follows from its namespace",
        "train.sh:4: --mail-type=STAGE_OUT has no effect",
    )


def test_all_mistakes_of_a_line_are_reported() -> None:
    problems = read("#FAIRLEAD --ndoes 2 --gpu 4 --time 1h").problems
    assert [each.help for each in problems] == [
        ("did you mean --nodes?",), ("did you mean --gpus?",)
    ]  # fmt: skip


def test_a_wrong_time_of_slurm_is_answered_with_times_of_slurm() -> None:
    (problem,) = read("#SBATCH --time=12hours").problems
    assert problem.help == ("--time=12:00:00, or --time=90 for minutes",)


def test_variables_of_export_come_along_where_they_are_set_and_its_words_are_read_in_any_case() -> (
    None
):
    for value, exports_all, names_ in (
        ("HOME_OF_DATA,UNSET,LR=0.1", False, {"HOME_OF_DATA", "UNSET"}),
        ("all", True, set[str]()), ("None", False, set[str]()), ("ALL,UNSET", True, {"UNSET"}),
    ):  # fmt: skip
        found = parse_header(f"#!/bin/sh\n#SBATCH --export={value}\ntrue\n", file="t.sh")
        assert found.batch is not None
        assert (found.batch.exports_all, found.batch.exports) == (exports_all, names_)
        shell = {"HOME_OF_DATA": "/data"}
        request, problems = parse_request(found.givens, shell, found.batch, now=EPOCH)
        assert problems == ()
        assert "UNSET" not in dict(request.env)
    refused = parse_request({Flag.ENV: (FlagValue("UNSET", "--env"),)}, {}, now=EPOCH)[1]
    assert "'UNSET' is not set here" in refused[0].message


def test_each_option_is_there_once() -> None:
    named = [name for option in OPTIONS for name in (option.name, option.alias) if name]
    assert len(named) == len(set(named)) == len(LONG)
    letters = [option.letter for option in OPTIONS if option.letter]
    assert len(letters) == len(set(letters)) == len(SHORT)
    variables = [option.variable for option in OPTIONS if option.variable]
    assert len(variables) == len(set(variables))


def test_a_flag_beats_the_script_and_lists_add_up() -> None:
    flags = {Flag.NODES: (FlagValue("8", "--nodes"),), Flag.ENV: (FlagValue("B=2", "--env"),)}
    script = {Flag.NODES: (FlagValue("4", "s:1"),), Flag.ENV: (FlagValue("A=1", "s:1"),)}
    merged = merge(flags, script)
    assert [g.value for g in merged[Flag.NODES]] == ["8"]
    assert [g.value for g in merged[Flag.ENV]] == ["A=1", "B=2"]
