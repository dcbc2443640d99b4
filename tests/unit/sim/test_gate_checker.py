"""A gate opens onto the place that its member has, or had when the release may have been sent."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Adopts
from fairlead.api.kubernetes.core import SchedulingGate
from fairlead.decide.pinning import pinned_affinity
from fairlead.sim.actors.training_operator import SPACE, GateChecker
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.testing.builders import make_job, make_placement, make_pod


@pytest.mark.parametrize(
    ("node", "now", "is_allowed"),
    [
        ("new", 100.0, True),
        ("old", 200.0, True),  # a late write of an earlier release
        ("old", 300.0, False),
        ("other", 200.0, False),
    ],
)
def test_a_release_may_come_late_but_goes_to_no_place_that_its_member_never_had(
    node: str, now: float, is_allowed: bool
) -> None:
    checker, adopts = GateChecker(), Adopts(kind="PyTorchJob", name="group")
    job = make_job(
        "group", namespace=SPACE, placement=make_placement(["old"]), spec={"adopts": adopts}
    )
    checker.job(job, job.metadata.key, 0.0)
    moved = replace(job, status=replace(job.status, placement=make_placement(["new"])))
    checker.job(moved, job.metadata.key, 100.0)

    labels = {
        "training.kubeflow.org/job-name": "group", names.JOB_NAME: "group", names.INDEX: "0",
        names.JOB_UID: job.metadata.uid, names.ROLE: "worker",
    }  # fmt: skip
    pod = make_pod("group-worker-0", namespace=SPACE, labels=labels)
    gated = replace(pod.spec, scheduling_gates=(SchedulingGate(name=names.GANG_GATE),))
    checker.pod(replace(pod, spec=gated), pod.metadata.key, now)
    released = replace(pod, spec=replace(pod.spec, affinity=pinned_affinity(None, node)))
    if is_allowed:
        checker.pod(released, pod.metadata.key, now)
        assert checker.releases == {job.metadata.uid: 1}
    else:
        with pytest.raises(PromiseBroken, match="onto another node than its place"):
            checker.pod(released, pod.metadata.key, now)
