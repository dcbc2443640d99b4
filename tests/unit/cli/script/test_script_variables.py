"""A variable that the shell has, the script reads and the job does not get is noted."""

from __future__ import annotations

import pytest

from fairlead.cli.script.script_variables import NOTED_MAX, not_passed_note

HERE = {"WANDB_API_KEY": "x", "LR": "0.1", "PATH": "/bin", "RANK": "3", "SLURM_JOB_ID": "7",
        "PWD": "/", "DATA": "/d"}  # fmt: skip


def note(text: str, *given: str) -> str:
    return not_passed_note(text, file="t.sh", environment=HERE, given=given)


@pytest.mark.parametrize(
    "line",
    [
        'echo "$WANDB_API_KEY"', "wandb login ${WANDB_API_KEY:-none}",
        "python -c 'import os; os.environ[\"WANDB_API_KEY\"]'", "x=$WANDB_API_KEY",
        "WANDB_API_KEY=$WANDB_API_KEY python train.py",
    ],
)  # fmt: skip
def test_a_variable_that_is_read_and_not_passed_is_noted_with_its_line(line: str) -> None:
    assert note(f"#!/bin/bash\n# $LR\n{line}\n") == (
        "t.sh:3: $WANDB_API_KEY is set here but not passed: --env WANDB_API_KEY"
    )


@pytest.mark.parametrize(
    "line",
    [
        "WANDB_API_KEY=abc\necho $WANDB_API_KEY", "echo $PATH $RANK $SLURM_JOB_ID $PWD",
        "echo $UNKNOWN", "export LR=1\necho $LR", "for LR in 1 2; do\necho $LR; done",
        "read -r LR\necho $LR", "# $WANDB_API_KEY", "awk '{print $1}'", "cost=5$",
    ],
)  # fmt: skip
def test_what_the_job_has_or_sets_itself_is_not_noted(line: str) -> None:
    assert note(f"#!/bin/sh\n{line}\n") == ""


def test_what_is_given_by_env_is_not_noted() -> None:
    assert note("echo $LR $DATA\n", "LR") == "t.sh:1: $DATA is set here but not passed: --env DATA"
    assert note("echo $LR $DATA\n", "LR", "DATA") == ""


@pytest.mark.parametrize(
    "words", ['os.environ["LR"]', "os.environ.get('LR', 1)", 'os.getenv( "LR" )', "getenv('LR')"]
)
def test_of_a_program_in_python_the_look_ups_count(words: str) -> None:
    text = f"#!/usr/bin/env python3\n# FAIRLEAD --cpus 1\nprint('$DATA', {words})\n"
    assert note(text) == "t.sh:3: $LR is set here but not passed: --env LR"


def test_many_are_one_note() -> None:
    names = [f"A{i}" for i in range(NOTED_MAX + 2)]
    text = "".join(f"echo ${name}\n" for name in names)
    found = not_passed_note(text, file="t.sh", environment=dict.fromkeys(names, ""), given=())
    assert found == (
        "t.sh:1,2,3,4,5: $A0, $A1, $A2, $A3, $A4 and 2 more are set here but not passed: "
        "--env A0 --env A1 --env A2 --env A3 --env A4"
    )
