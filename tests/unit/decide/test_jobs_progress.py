"""Progress of a member: from lines in its file, or an annotation, to what a job can carry."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fairlead.api import names
from fairlead.api.jobs.job import Progress
from fairlead.api.kubernetes.core import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
)
from fairlead.api.values.bounds import STEP_MAX
from fairlead.api.values.times import format_time
from fairlead.decide.jobs.following.pods import JobPods
from fairlead.decide.jobs.following.progress import (
    IGNORED_LENGTH_MAX,
    after_ignored,
    fold_progress,
    read_progress,
)
from fairlead.member import progress as member
from fairlead.testing.builders import EPOCH, make_pod

AT = "2026-01-01T00:00:00Z"


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


def ended(pod: Pod, *messages: str) -> Pod:
    statuses = tuple(
        ContainerStatus(
            f"c{number}",
            state=ContainerState(
                terminated=ContainerStateTerminated(message=message, finished_at=AT)
            ),
        )
        for number, message in enumerate(messages)
    )
    status = msgspec.structs.replace(pod.status, container_statuses=statuses)
    return msgspec.structs.replace(pod, status=status)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('{"step": 3, "checkpoint": true}\n{"step": 5}\n', Progress(5, 3, AT)),
        ('ckpoint": true}\n{"step": 5, "checkpointStep": 4}\n', Progress(5, 4, AT)),
        ('{"step": 3, "checkpoint": true}\nout of luck', Progress(3, 3, AT)),
        ('{"step": 0, "checkpoint": true}', Progress(0, 0, AT)),
        (
            '{"step": 5, "checkpointStep": -1}\n{"step": 4}',
            Progress(4, None, AT, '{"step": 5, "checkpointStep": -1}'),
        ),
        ("cannot open the data set", None),
        ("[" * 4096, None),
    ],
)
def test_a_container_leaves_its_progress_in_its_termination_message(
    message: str, expected: Progress | None
) -> None:
    assert read_progress(ended(make_pod("p"), message)) == expected


def test_the_furthest_of_annotation_and_containers_counts() -> None:
    pod = ended(
        reporting('{"step": 7, "checkpointStep": 2}'),
        '{"step": 6, "checkpoint": true}',
        '{"step": 4}',
    )
    assert read_progress(pod) == Progress(7, 6, AT, checkpointed_at=AT)


def test_what_a_pod_reported_at_its_end_stays_when_the_pod_is_gone() -> None:
    pods, pod = JobPods(), make_pod("p", labels={names.ATTEMPT: "2"})
    pods.put(pod)
    pods.put(ended(pod, '{"step": 3, "checkpoint": true}'))
    pods.drop(pod)
    assert pods.progress == Progress(3, 3, AT)


def test_a_checkpoint_is_still_known_from_the_last_bytes_of_a_long_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "termination-log"
    file.write_text("a word of the program's own\n")
    monkeypatch.setenv("FAIRLEAD_PROGRESS_FILE", str(file))
    member.report(1)
    assert json.loads(file.read_text().splitlines()[-1]) == {"step": 1, "checkpoint": False}
    member.report(2, checkpoint=True)
    for step in range(3, 500):
        member.report(step)
    assert file.stat().st_size > 3 * member.KEPT_BYTES
    kept = file.read_bytes()[-member.KEPT_BYTES :].decode()
    assert read_progress(ended(make_pod("p"), kept)) == Progress(499, 2, AT)
    member.report(500, checkpoint=True)
    member.report(501)
    kept = file.read_bytes()[-member.KEPT_BYTES :].decode()
    assert read_progress(ended(make_pod("p"), kept)) == Progress(501, 500, AT)


def test_the_latest_line_that_cannot_be_read_is_kept_beside_the_progress() -> None:
    lines = ('{"step": 5, "checkpoint": true}', "Traceback: no report", '{"steps": 7}')
    found = read_progress(ended(reporting("{}"), "\n".join(lines)))
    assert found is not None
    assert (found.step, found.checkpoint_step) == (5, 5)
    assert found.ignored_line == '{"steps": 7}'
    later = Progress(step=6, reported_at=AT)
    folded = fold_progress(found, later)
    assert folded is not None
    assert (folded.step, folded.ignored_line) == (6, '{"steps": 7}')
    only = fold_progress(later, after_ignored(None, b"\x00" + b"x" * 500))
    assert only is not None
    assert (only.step, len(only.ignored_line)) == (6, IGNORED_LENGTH_MAX)
    assert only.ignored_line.isprintable() or "\N{REPLACEMENT CHARACTER}" in only.ignored_line


def test_the_time_between_two_checkpoints_is_kept() -> None:
    def report(step: int, saved: int, seconds: int) -> Progress:
        return Progress(step, saved, format_time(EPOCH + seconds))

    first = fold_progress(None, report(10, 10, 100))
    assert first is not None
    assert first.checkpoint_seconds is None
    second = fold_progress(first, report(20, 20, 400))
    assert second is not None
    assert (second.checkpoint_seconds, second.saved_at) == (300, format_time(EPOCH + 400))
    step = fold_progress(second, report(25, 20, 900))
    assert step is not None
    assert (step.checkpoint_seconds, step.saved_at) == (300, format_time(EPOCH + 400))
    third = fold_progress(step, report(30, 30, 1000))
    assert third is not None
    assert third.checkpoint_seconds == 600
