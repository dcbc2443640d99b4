"""How far a job is: what its members append to a file, as it reaches the controllers.

    {"step": 1200, "checkpoint": true}
    {"step": 1250, "checkpointStep": 1200}
    {"step": 1300, "work": {"seconds": 0.41, "steps": 300, "spanSeconds": 320}}

The file is the container's termination message. A kubelet makes it, writable for every user, and
copies its last 4 KiB into the pod's status when the container ends: that costs no agent, no right
of the pod's user and no request of its own. The embedded node follows the file while the container
runs, and writes what is new to an annotation of the pod. What a member records of its run
(`fairlead.run`) is in the same file.

A member writes these lines, so they prove nothing: what cannot be read is ignored, and the latest
such line is reported as ignored. What is returned can be written on a job: steps are 64-bit
integers, instants are instants.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Progress
from fairlead.api.kubernetes.core import Container, Pod
from fairlead.api.values.bounds import STEP_MAX
from fairlead.api.values.times import parse_time
from fairlead.decide.jobs.following.own_work import OwnWork, decode_work, work_of
from fairlead.run import RunFold

#: What a node writes has some hundred characters; this many cannot be nested too deep to decode.
_ANNOTATION_LENGTH_MAX = 500
LINE_BYTES_MAX = 4096
#: Characters of an ignored line that are kept; escaped, they fit into the annotation.
IGNORED_LENGTH_MAX = 60
#: What Kubernetes sets where a template says nothing.
TERMINATION_LOG = "/dev/termination-log"


class ProgressLine(msgspec.Struct, frozen=True, rename="camel"):
    """One line: `checkpoint` when a restart can go on from `step`, else where it can; `work` is the
    member's own in the latest steps.
    """

    step: int
    checkpoint: bool = False
    checkpoint_step: int | None = None
    work: object = None


def progress_file(container: Container) -> str:
    """Return the path in the container that its member appends lines to."""
    return container.termination_message_path or TERMINATION_LOG


def decode_line(raw: bytes) -> ProgressLine | None:
    """Return what a line says, None when it says nothing that can be reported."""
    if len(raw) > LINE_BYTES_MAX:
        return None
    try:
        line = msgspec.json.decode(raw, type=ProgressLine)
    except (ValueError, RecursionError):
        return None
    saved = line.checkpoint_step or 0
    return line if min(line.step, saved) >= 0 and max(line.step, saved) <= STEP_MAX else None


def is_fact(line: Mapping[str, object] | None) -> bool:
    """True for a line that `RunFold.take` took in and that is no report of progress as well."""
    return line is not None and ("step" not in line or "metric" in line)


def after_line(latest: Progress | None, line: ProgressLine, at: str | None) -> Progress:
    """Return the progress once a line was read at an instant; a checkpoint stays until a later."""
    kept = latest.checkpoint_step if latest is not None else None
    saved = line.step if line.checkpoint else line.checkpoint_step
    return Progress(
        step=line.step,
        checkpoint_step=kept if saved is None else saved,
        reported_at=at,
        ignored_line=latest.ignored_line if latest is not None else "",
    )


def after_ignored(latest: Progress | None, raw: bytes) -> Progress:
    """Return the progress once a line was met that cannot be read."""
    return replace(latest or Progress(), ignored_line=_printable(raw.decode(errors="replace")))


def _printable(text: str) -> str:
    kept = text.strip()[:IGNORED_LENGTH_MAX]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in kept)


def read_progress(pod: Pod) -> Progress | None:
    """Return what is known of this pod's progress; None when nothing, or nothing readable."""
    found = _annotated(pod.metadata.annotations.get(names.PROGRESS))
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        ended = status.state.terminated
        is_test = status.name == names.PREFLIGHT_CONTAINER
        if ended is not None and ended.message and not is_test:
            found = fold_progress(found, _last_words(ended.message, ended.finished_at))
    return found


def _annotated(text: str | None) -> Progress | None:
    if not text or len(text) > _ANNOTATION_LENGTH_MAX:
        return None
    try:
        found = msgspec.json.decode(text, type=Progress)
    except ValueError:
        return None
    saved = found.checkpoint_step
    return Progress(
        step=_clamped(found.step),
        checkpoint_step=None if saved is None else _clamped(saved),
        reported_at=_instant(found.reported_at),
        ignored_line=_printable(found.ignored_line),
    )


def _last_words(message: str, ended_at: str | None) -> Progress | None:
    """Return what the lines of a termination message say, the first of which may be cut off.

    Such a message may be any text, so only what begins as a report counts as one that is ignored.
    """
    found: Progress | None = None
    for text in message.splitlines():
        raw = text.encode(errors="replace")
        if is_fact(RunFold().take(raw)):
            continue
        line = decode_line(raw)
        if line is not None:
            found = after_line(found, line, _instant(ended_at))
        elif raw.startswith(b"{"):
            found = after_ignored(found, raw)
    return found


def read_work(pod: Pod) -> OwnWork | None:
    """Return the own work that this pod's member reported last; None when none, or none readable.

    It is asked for at each event of a pod, so messages without the word are not decoded.
    """
    found = None
    if text := pod.metadata.annotations.get(names.WORK):
        found = decode_work(text)
    for status in pod.status.container_statuses:
        ended = status.state.terminated
        if ended is None or '"work"' not in ended.message:
            continue
        for line in ended.message.splitlines():
            read = decode_line(line.encode(errors="replace"))
            found = (work_of(read.work) if read is not None else None) or found
    return found


def _clamped(step: int) -> int:
    return max(0, min(step, STEP_MAX))


def _instant(text: str | None) -> str | None:
    """Return the instant if it is one."""
    if text is None:
        return None
    try:
        parse_time(text)
    except ValueError:
        return None
    return text


def fold_progress(old: Progress | None, new: Progress | None) -> Progress | None:
    """Return the further of both, step and checkpoint each for itself: progress never goes back."""
    if new is None or old is None:
        return old or new
    checkpoints = [c for c in (old.checkpoint_step, new.checkpoint_step) if c is not None]
    step, checkpoint = max(old.step, new.step), max(checkpoints, default=None)
    ignored, is_saved = new.ignored_line or old.ignored_line, checkpoint != old.checkpoint_step
    if step == old.step and not is_saved:
        return old if ignored == old.ignored_line else replace(old, ignored_line=ignored)
    if not is_saved:
        kept = (old.checkpointed_at, old.checkpoint_seconds)
        return Progress(step, checkpoint, new.reported_at, ignored, *kept)
    seconds = old.checkpoint_seconds
    if old.saved_at and new.saved_at:
        seconds = max(0, round(parse_time(new.saved_at) - parse_time(old.saved_at)))
    return Progress(step, checkpoint, new.reported_at, ignored, new.saved_at, seconds)
