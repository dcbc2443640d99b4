"""What is known of a job as a run: what its program reports, and what its submission says.

The program's facts (`fairlead.run`) are in the status of the job. A submission says tags, a note
and the state of its code in annotations of the job, which its owner may change at any time, and
parameters in variables of its members that begin with `PARAMETER_PREFIX`. Anybody who may write
the job may write these, so what cannot be read is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from fairlead.api import names
from fairlead.api.kubernetes.core import Container
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.values.bounds import doc

#: Bytes of the facts of a program as JSON, in the status of its job.
FACTS_BYTES_MAX = 4_000
TAG = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
TAGS_MAX = 16
NOTE_LENGTH_MAX = 1_000
#: A parameter of a submission is a variable of its members.
PARAMETER_PREFIX = "FAIRLEAD_PARAM_"
PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
PARAMETER_LENGTH_MAX = 1_000
PARAMETERS_MAX = 64
#: Of the difference between the code that was submitted and its commit.
DIFF_BYTES_MAX = 16 << 10
FILES_MAX = 50
#: In a list of runs.
LISTED_MAX = 24
LISTED_LENGTH_MAX = 60
_SOURCE_BYTES_MAX = 4 * DIFF_BYTES_MAX


class RunMetric(Wire, frozen=True):
    """One metric, as the latest attempt that has it reported it."""

    last: Annotated[float | None, doc("Latest value. Absent where it was no finite number.")] = None
    step: Annotated[int | None, doc("Step of the latest value, where one was given.")] = None
    count: Annotated[int, doc("Values that were reported.")] = 0
    min: Annotated[float | None, doc("Least value.")] = None
    max: Annotated[float | None, doc("Largest value.")] = None
    steps: Annotated[
        tuple[int, ...], doc("Steps of some values, or how many there were by then.")
    ] = ()
    values: Annotated[tuple[float, ...], doc("The values at these steps, at most 32.")] = ()


class RunFacts(Wire, frozen=True):
    """What the program of a job reported of its run, at most 4,000 bytes."""

    params: Annotated[dict[str, str], doc("Parameters, at most 64.")] = {}
    metrics: Annotated[dict[str, RunMetric], doc("Metrics, at most 64.")] = {}
    note: Annotated[str, doc("Latest note.")] = ""
    is_partial: Annotated[
        bool, doc("True: more was reported than is kept here, or than was seen.")
    ] = False


class RunSource(Wire, frozen=True):
    """The code of a submission: its commit, and what differs from it.

    `files` are those that git follows and that were changed; `diff` is what changed in them, where
    that was asked for and is no more than `DIFF_BYTES_MAX`.
    """

    commit: str = ""
    branch: str = ""
    files: tuple[str, ...] = ()
    diff: str = ""


class ListedMetric(Wire, frozen=True):
    """A metric in a list of runs."""

    last: float | None = None
    min: float | None = None
    max: float | None = None


class RunSummary(Wire, frozen=True):
    """What lists show of a run: of parameters and metrics the first `LISTED_MAX`."""

    tags: tuple[str, ...] = ()
    params: dict[str, str] = {}
    metrics: dict[str, ListedMetric] = {}
    note: str = ""
    commit: str = ""
    #: Of a job that has ended: what its attempts held, and what that cost; None where not known.
    gpu_hours: float | None = None
    cost: float | None = None


def tags_of(metadata: ObjectMeta) -> tuple[str, ...]:
    """Return the tags of a job, in their order; what is no tag is left out."""
    listed = metadata.annotations.get(names.RUN_TAGS, "")[: 64 * TAGS_MAX].split(",")
    return tuple(dict.fromkeys(each for each in listed if TAG.fullmatch(each)))[:TAGS_MAX]


def note_of(metadata: ObjectMeta) -> str:
    """Return the note of a submission; "" for none."""
    return metadata.annotations.get(names.RUN_NOTE, "")[:NOTE_LENGTH_MAX]


def source_of(metadata: ObjectMeta) -> RunSource | None:
    """Return the code of a submission; None where it is not known."""
    text = metadata.annotations.get(names.RUN_SOURCE, "")
    if not text or len(text) > _SOURCE_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(text, type=RunSource)
    except (ValueError, RecursionError):
        return None


def parameters_of(containers: Iterable[Container]) -> dict[str, str]:
    """Return the parameters of a submission by name, of the variables of its containers."""
    found = {
        name: each.value[:PARAMETER_LENGTH_MAX].replace("$$", "$")
        for container in containers
        for each in container.env
        if each.name.startswith(PARAMETER_PREFIX)
        and PARAMETER_NAME.fullmatch(name := each.name.removeprefix(PARAMETER_PREFIX))
    }
    return dict(list(found.items())[:PARAMETERS_MAX])
