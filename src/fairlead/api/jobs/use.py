"""What a member of a job used, as its node measured it: JSON in an annotation of its pod.

What was not measured is absent, never 0. Its size is bounded: amounts, and series of at most
`SERIES_MAX` steps, whose length in seconds grows with the member's time.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.api.meta import Instant, Wire
from fairlead.api.values.bounds import doc

#: Steps of a series, and bytes of the JSON: two members fit into a page of SQLite.
SERIES_MAX = 60
USE_BYTES_MAX = 1_600


class MemberUse(Wire, frozen=True):
    """Use of one member, all of its containers and their restarts together.

    `cpu` is in thousandths of a CPU, the mean of each step; `memory` in MiB, the largest look of
    each step, rounded up. A step without a look is None. `is_partial`: for some of its time no look
    was taken, so peak and processor time may have been higher.

    Of GPUs: `gpu_milliseconds` is the time over which they were looked at, of all of them together,
    `gpu_busy_milliseconds` the part of it in which they computed; power and SM occupancy
    (thousandths) are the mean of one GPU, `gpu` the mean use of each step in percent.
    """

    milliseconds: int
    cpu_milliseconds: int | None = None
    memory_peak_bytes: int | None = None
    memory_mean_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    is_partial: bool = False
    step_seconds: int = 0
    cpu: tuple[int | None, ...] = ()
    memory: tuple[int | None, ...] = ()
    gpu_milliseconds: int | None = None
    gpu_busy_milliseconds: int | None = None
    gpu_memory_peak_bytes: int | None = None
    gpu_power_milliwatts: int | None = None
    gpu_occupancy_permille: int | None = None
    gpu: tuple[int | None, ...] = ()

    def with_gpus_of(self, other: MemberUse) -> MemberUse:
        """Return this use with what another source knows of its GPUs, where this one knows nothing.

        Series have steps of one length: those of the other one are left out where it differs.
        """
        if self.gpu_milliseconds is not None or other.gpu_milliseconds is None:
            return self
        series = other.gpu if other.step_seconds == self.step_seconds else ()
        return msgspec.structs.replace(
            self, gpu=series, gpu_milliseconds=other.gpu_milliseconds,
            gpu_busy_milliseconds=other.gpu_busy_milliseconds,
            gpu_memory_peak_bytes=other.gpu_memory_peak_bytes,
            gpu_power_milliwatts=other.gpu_power_milliwatts,
            gpu_occupancy_permille=other.gpu_occupancy_permille,
        )  # fmt: skip


class AttemptUse(Wire, frozen=True):
    """Use of the members of one attempt together: of how many of them it is known, and how much.

    `milliseconds` is the sum of their times. `memory_peak_bytes` is that of the largest member,
    `memory_total_bytes` the sum of all peaks, and `memory_mean_bytes` the mean of a member.
    """

    attempt: int
    members: int
    milliseconds: int
    cpu_members: int = 0
    cpu_milliseconds: int | None = None
    memory_members: int = 0
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_mean_bytes: int | None = None
    is_partial: bool = False


class ClassTraffic(Wire, frozen=True):
    """Bytes that members of a job have exchanged with a class of addresses, and how many did."""

    traffic_class: str
    members: int
    sent: int
    received: int


class JobTraffic(Wire, frozen=True):
    """What nodes counted of the members of a job, in all attempts; of how many members."""

    members: int
    classes: tuple[ClassTraffic, ...] = ()


class IdleRecord(Wire, frozen=True):
    """That a running job uses almost nothing of what it holds, as its owner was warned."""

    attempt: Annotated[int, doc("The attempt that is idle.")]
    since: Annotated[Instant, doc("Since when it has been idle.")]
    warnings: Annotated[int, doc("Warnings so far, 1 or 2.")]
    message: Annotated[str, doc("The evidence, as of the latest warning.")]
    ends_at: Annotated[
        Instant | None,
        doc("When the idle policy ends the job unless it is used. Absent: it does not."),
    ] = None


_AMOUNT_MAX = 2**53


def encode_use(use: MemberUse) -> str:
    """Return the annotation's text, of at most `USE_BYTES_MAX` bytes: longer ones lose the
    series.
    """
    text = msgspec.json.encode(use)
    if len(text) > USE_BYTES_MAX:
        bare = msgspec.structs.replace(use, step_seconds=0, cpu=(), memory=(), gpu=())
        text = msgspec.json.encode(bare)
    return text.decode()


def decode_use(text: str | None) -> MemberUse | None:
    """Return what an annotation says; None without one, or when no node writes such a text.

    A user who may change the pod may write it: amounts that no database holds are none.
    """
    if not text or len(text) > USE_BYTES_MAX:
        return None
    try:
        use = msgspec.json.decode(text, type=MemberUse)
    except (ValueError, RecursionError):
        return None
    amounts = (
        use.milliseconds, use.cpu_milliseconds, use.memory_peak_bytes, use.memory_mean_bytes,
        use.read_bytes, use.written_bytes, use.step_seconds, *use.cpu, *use.memory,
        use.gpu_milliseconds, use.gpu_busy_milliseconds, use.gpu_memory_peak_bytes,
        use.gpu_power_milliwatts, use.gpu_occupancy_permille, *use.gpu,
    )  # fmt: skip
    is_sound = all(amount is None or 0 <= amount <= _AMOUNT_MAX for amount in amounts)
    is_short = max(len(use.cpu), len(use.memory), len(use.gpu)) <= SERIES_MAX
    return use if is_sound and is_short else None
