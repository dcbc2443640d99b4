"""The page about the variables of members names exactly those that members get."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from fairlead.api.jobs.job_array import JobArray
from fairlead.api.values.indices import parse_indices
from fairlead.cli.job_request.batch import SUBMITTED
from fairlead.cli.job_request.environment import LOCAL_ENVIRONMENT
from fairlead.decide.arrays.environment import element_environment
from fairlead.decide.jobs.following.pods import AttemptPods
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering.members import USER_MAY_SET, missing_pods
from fairlead.decide.jobs.rendering.slurm_variables import SLURM_VARIABLES
from fairlead.testing.builders import make_job, make_placement

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "variables.md").read_text()
TABLE, _, AFTER = PAGE.partition("\nA job of this machine")
CELLS = re.findall(r"^\| (`.*?) \|", TABLE, re.MULTILINE)
NAME = re.compile(r"`([A-Z_]+)`(\\\*)?")


def test_the_page_names_the_variables_of_a_member_and_marks_those_that_users_may_set() -> None:
    job = make_job("train", placement=make_placement(["n1"]))
    job = replace(job, status=replace(job.status, number=7))
    policy = JobsPolicy(checkpoint_root="/checkpoints")
    (pod,) = missing_pods(job, policy, AttemptPods(), resume_step=7)
    (container,) = pod.spec.containers
    named = [found for cell in CELLS for found in NAME.findall(cell)]
    of_elements = [name for name, _ in element_environment(JobArray(), parse_indices("0-3"), 2)]
    given = [*(each.name for each in container.env), *of_elements]
    of_slurm = [*SLURM_VARIABLES, *SUBMITTED]
    assert sorted(name for name, _ in named) == sorted([*given, *of_slurm])
    assert {name for name, star in named if star} == USER_MAY_SET


def test_the_page_names_what_a_local_job_takes_along() -> None:
    assert {name for name, _ in NAME.findall(AFTER)} == set(LOCAL_ENVIRONMENT)
