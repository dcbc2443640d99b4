"""What a pod says of itself: labels and progress are read within bounds, or not at all."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.bounds import STEP_MAX
from fairlead.api.core import Pod
from fairlead.api.job import Progress
from fairlead.api.meta import label_number
from fairlead.decide.jobs.pods import read_member, read_progress
from fairlead.testing.builders import make_pod


def reporting(text: str) -> Pod:
    pod = make_pod("p")
    annotations = {names.PROGRESS: text}
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
    return msgspec.structs.replace(pod, metadata=metadata)


def test_progress_is_what_the_node_reported() -> None:
    text = '{"step": 3, "checkpointStep": 2, "reportedAt": "2026-01-01T00:00:00Z"}'
    assert read_progress(reporting(text)) == Progress(3, 2, "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "text",
    [
        '{"x":' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"step":1,"x":' + '{"a":' * 3_000 + "1" + "}" * 3_000 + "}",
        "[" * 400,
        '{"step":' + "9" * 5_000 + "}",
        '{"step":1}' + " " * 1_000_000,
        '{"step": 1.5}',
        "\ud800",
        "null",
    ],
)
def test_progress_that_is_none_is_as_good_as_no_progress(text: str) -> None:
    assert read_progress(reporting(text)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{{"step": {10**30}}}', Progress(step=STEP_MAX)),
        ('{"step": -5, "checkpointStep": -1}', Progress(step=0, checkpoint_step=0)),
        (f'{{"step": 1, "checkpointStep": {2**63}}}', Progress(1, STEP_MAX)),
        ('{"step": 1, "reportedAt": "99999-01-01T00:00:00Z"}', Progress(1)),
    ],
)
def test_progress_can_always_be_written_on_a_job(text: str, expected: Progress) -> None:
    assert read_progress(reporting(text)) == expected


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 63, "-1", "²", "٣", "", "1e3"])
def test_a_label_that_is_no_number_of_ours_reads_as_none(text: str) -> None:
    assert label_number(text) is None
    member = read_member(make_pod("p", labels={names.INDEX: text, names.ATTEMPT: text}))
    assert (member.index, member.attempt) == (-1, 0)
