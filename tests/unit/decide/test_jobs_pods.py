"""What a pod says of itself: labels are read within bounds, or not at all."""

from __future__ import annotations

import pytest

from fairlead.api import names
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import label_number
from fairlead.decide.jobs.following.pods import JobPods, read_member
from fairlead.testing.builders import make_job, make_pod


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 63, "-1", "²", "٣", "", "1e3"])
def test_a_label_that_is_no_number_of_ours_reads_as_none(text: str) -> None:
    assert label_number(text) is None
    member = read_member(make_pod("p", labels={names.INDEX: text, names.ATTEMPT: text}))
    assert (member.index, member.attempt) == (-1, 0)


def test_a_member_whose_labels_change_is_counted_under_them_only() -> None:
    job = make_job("job")

    def member(attempt: str) -> Pod:
        labels = {names.ROLE: "worker", names.INDEX: "0", names.ATTEMPT: attempt}
        return make_pod("job-1-worker-0", node="n0", labels=labels, owner=job)

    pods = JobPods.of([member("1")])
    assert (list(pods.attempts), pods.nodes) == ([1], {"n0": 1})
    for text in ("9" * 20, "2", ""):
        pods.put(member(text))
        assert (list(pods.attempts), pods.count, pods.nodes) == ([0], 1, {"n0": 1})
    pods.drop(member("1"))
    assert (pods.attempts, pods.nodes) == ({}, {})
