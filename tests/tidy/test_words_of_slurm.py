"""Each row of the words on the page for people who know Slurm is shown by a test that is named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/howto/coming-from-slurm.md"
SHOWN = {
    "node of a job": (
        "e2e/test_slurm_scripts.py::"
        "test_srun_starts_the_tasks_of_a_batch_script_on_all_its_nodes"
    ),
    "task": (
        "unit/member/test_batch.py::test_tasks_are_in_blocks_and_each_step_has_a_number"
    ),
    "account, association": (
        "e2e/test_slurm_tools.py::test_sshare_shows_the_weights_of_teams_and_what_they_use"
    ),
    "partition": (
        "e2e/test_slurm_site.py::"
        "test_partitions_are_those_of_the_settings_and_a_job_of_a_list_shows_the_one_it_is_in"
    ),
    "feature, type of GPU": (
        "unit/cli/script/test_sbatch_corpus.py::"
        "test_a_header_is_taken_whole_and_means_what_it_says"
    ),
    "QOS": (
        "e2e/test_slurm_site.py::"
        "test_scripts_for_the_partitions_and_qualities_of_the_site_run_as_they_are"
    ),
    "DefaultTime, MaxTime": (
        "unit/decide/test_admission_job_defaults.py::"
        "test_a_job_without_a_time_limit_gets_the_default_within_the_smallest_maximum"
    ),
    "`--signal=B:USR1@60`": (
        "e2e/test_slurm_calls.py::"
        "test_a_signal_before_the_end_is_for_the_batch_shell_and_a_second_run_has_the_same_id"
    ),
    "requeue after a node failure": (
        "unit/decide/test_jobs_elastic.py::"
        "test_after_a_lost_node_the_next_attempt_is_smaller_and_a_later_one_larger"
    ),
    "PD, R, CG, CD, F, CA": (
        "e2e/test_slurm_tools.py::"
        "test_squeue_shows_states_reasons_and_nodes_and_forgets_what_ended"
    ),
}  # fmt: skip


def test_each_word_of_the_page_has_a_test() -> None:
    part = PAGE.read_text().partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    assert [row.split("|")[1].strip() for row in rows] == list(SHOWN)


@pytest.mark.parametrize("where", SHOWN.values(), ids=SHOWN)
def test_the_test_of_a_word_is_there(where: str) -> None:
    file, _, name = where.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
