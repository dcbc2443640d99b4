"""What is simulated is called simulated: in ps, in why, and by the rule behind both."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.simulated import is_simulated
from fairlead.api.kubernetes.core import Toleration
from fairlead.api.meta import Condition
from fairlead.cli.job_request.jobspec import Origin, Program, build_job
from fairlead.cli.job_request.request import JobRequest, Target
from fairlead.cli.views.jobs import job_rows
from fairlead.cli.views.why import why_text
from fairlead.testing.builders import EPOCH, make_job, make_placement


@pytest.mark.parametrize(
    ("target", "expected"),
    [(Target.LOCAL, False), (Target.ANY, False), (Target.VIRTUAL, True), (None, True)],
)
def test_a_job_that_may_not_run_on_this_machine_is_simulated(
    target: Target | None, *, expected: bool
) -> None:
    job = build_job("x", JobRequest(target=target), Program(("true",)), Origin("/", "", {}))
    assert is_simulated(job) is expected


def test_a_manifest_that_tolerates_everything_may_be_real() -> None:
    assert is_simulated(make_job("x"))
    assert not is_simulated(make_job("x", tolerations=[Toleration(operator="Exists")]))


def test_ps_and_why_say_it_on_a_cluster_of_up_and_nowhere_else() -> None:
    placed = make_job("x", placement=make_placement(["v00000"]))
    over = (Condition(type="Succeeded", status="True"),)
    ended = make_job("y", conditions=over, status={"state": "Succeeded"})

    def where(job: Job, *, is_up: bool) -> str:
        return job_rows([job], EPOCH, is_up=is_up)[0][-1]

    assert where(placed, is_up=True) == "v00000 (simulated)"
    assert where(ended, is_up=True) == "1 attempt (simulated)"
    assert where(placed, is_up=False) == "v00000"
    assert where(replace(placed, status=replace(placed.status, placement=None)), is_up=True) == (
        "PendingEvaluation: not evaluated yet"
    )
    assert "virtual nodes run no programs" in why_text(ended, None, EPOCH, is_up=True)
    assert "simulated" not in why_text(ended, None, EPOCH)
