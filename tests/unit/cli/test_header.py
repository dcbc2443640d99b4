"""#FAIRLEAD and #SBATCH lines: what is honoured, noted and refused."""

from __future__ import annotations

import pytest

from fairlead.cli.flags import Flag, FlagValue, merge
from fairlead.cli.header import (
    SBATCH_HARMLESS,
    SBATCH_HONOURED,
    SBATCH_REFUSED,
    SBATCH_SHORT,
    SBATCH_SPECIAL,
    Header,
    parse_header,
)


def read(*lines: str, ignore_unknown: bool = False) -> Header:
    text = "\n".join(("#!/bin/bash", *lines, "", "python train.py", "#SBATCH --nodes=99"))
    return parse_header(text, file="train.sh", ignore_unknown=ignore_unknown)


def values(header: Header) -> dict[str, list[str]]:
    return {flag.value: [g.value for g in given] for flag, given in header.givens.items()}


def test_fairlead_lines_carry_the_flags_of_submit() -> None:
    header = read("#FAIRLEAD --nodes 4 --gpus=8", "#FAIRLEAD --env A=1 --env B=2 --hold")
    assert values(header) == {"nodes": ["4"], "gpus": ["8"], "env": ["A=1", "B=2"],
                              "hold": ["true"]}  # fmt: skip
    assert header.givens[Flag.GPUS][0].origin == "train.sh:2"
    assert header.problems == ()


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
        "#SBATCH --export=LR=0.1 --hold --no-requeue --ntasks-per-node=1",
    )
    assert header.problems == ()
    assert values(header) == {
        "name": ["prep"], "nodes": ["4"], "cpus": ["16"], "memory": ["64Gi"], "gpus": ["8"],
        "time": ["129600s"], "after": ["ok:a-1", "ok:b-2", "any:c-3"], "env": ["LR=0.1"],
        "hold": ["true"], "no-restart": ["true"],
    }  # fmt: skip


def test_a_plain_slurm_memory_is_in_mebibytes() -> None:
    assert values(read("#SBATCH --mem=4096"))["memory"] == ["4096Mi"]


def test_harmless_options_are_noted() -> None:
    header = read("#SBATCH --mail-user=me@example.org", "#SBATCH -o out.txt")
    assert header.problems == ()
    assert header.givens == {}
    assert any("--mail-user has no effect" in note for note in header.notes)
    assert any("fairlead logs" in note for note in header.notes)


@pytest.mark.parametrize("option", sorted(SBATCH_REFUSED))
def test_options_that_would_change_the_result_are_refused_with_an_equivalent(option: str) -> None:
    header = read(f"#SBATCH --{option}=ALL")
    (problem,) = header.problems
    assert problem.where == "train.sh:2:1"
    assert option in problem.message
    assert problem.help


def test_an_unknown_option_suggests_the_nearest_one() -> None:
    (problem,) = read("#SBATCH --job-nam=x").problems
    assert problem.help == ("did you mean --job-name?",)


def test_unknown_options_can_be_ignored_and_are_then_noted() -> None:
    header = read("#SBATCH --frobnicate=3", ignore_unknown=True)
    assert header.problems == ()
    assert any("frobnicate" in note for note in header.notes)


def test_every_problem_of_a_header_is_reported() -> None:
    header = read("#SBATCH --begin=now", "#SBATCH --nodes=2-4:2", "#SBATCH --mem=0",
                  "#SBATCH --dependency=singleton", "#FAIRLEAD --gpu 8")  # fmt: skip
    assert [problem.where for problem in header.problems] == [
        f"train.sh:{line}:1" for line in range(2, 7)
    ]


def test_two_lines_that_contradict_each_other_are_refused() -> None:
    (problem,) = read("#SBATCH --nodes=4", "#SBATCH --ntasks=32").problems
    assert "contradicts --nodes=4" in problem.message


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


def test_that_sbatch_runs_a_script_once_is_known_of_scripts_with_its_lines() -> None:
    assert read("#SBATCH -N 4").has_sbatch
    assert not read("#FAIRLEAD --nodes 4").has_sbatch


def test_options_without_effect_are_noted_together_by_the_reason() -> None:
    notes = read("#SBATCH -o out", "#SBATCH -e err", "#SBATCH --mail-type=END").notes
    assert notes[:-1] == (
        "train.sh:2, 3: #SBATCH --output, --error have no effect: logs are kept by the cluster: "
        "fairlead logs JOB",
        "train.sh:4: #SBATCH --mail-type has no effect: no mail is sent",
    )


def test_all_mistakes_of_a_line_are_reported() -> None:
    problems = read("#FAIRLEAD --ndoes 2 --gpu 4 --time 1h").problems
    assert [each.help for each in problems] == [
        ("did you mean --nodes?",), ("did you mean --gpus?",)
    ]  # fmt: skip


def test_a_wrong_time_of_slurm_is_answered_with_times_of_slurm() -> None:
    (problem,) = read("#SBATCH --time=12hours").problems
    assert problem.help == ("#SBATCH --time=12:00:00, or --time=90 for minutes",)


def test_each_option_is_in_one_table_and_short_forms_lead_to_one() -> None:
    tables = [set(SBATCH_HONOURED), set(SBATCH_HARMLESS), set(SBATCH_REFUSED), set(SBATCH_SPECIAL)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert set(SBATCH_SHORT.values()) <= set().union(*tables)


def test_a_flag_beats_the_script_and_lists_add_up() -> None:
    flags = {Flag.NODES: (FlagValue("8", "--nodes"),), Flag.ENV: (FlagValue("B=2", "--env"),)}
    script = {Flag.NODES: (FlagValue("4", "s:1"),), Flag.ENV: (FlagValue("A=1", "s:1"),)}
    merged = merge(flags, script)
    assert [g.value for g in merged[Flag.NODES]] == ["8"]
    assert [g.value for g in merged[Flag.ENV]] == ["A=1", "B=2"]
