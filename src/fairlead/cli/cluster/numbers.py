"""Jobs named by their numbers: `36`, `36_7`, `36_[3-9]`.

The label of a job finds it with one request; what counts is the number in its status, which only
Fairlead writes. A job without the label, or with a false one, is found in the list of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.status import NotFound
from fairlead.cli.cluster.lookup import list_arrays
from fairlead.cli.connection.transport import Api

_NUMBER = re.compile(r"(\d{1,9})(?:_(\d{1,9})|_?\[([^\[\]]*)\])?", re.ASCII)
W = TypeVar("W", Job, JobArray)


@dataclass(frozen=True, slots=True)
class Numbered:
    """The number of a job or of an array, and perhaps the indices of elements."""

    number: int
    indices: str | None = None


def parse_number(text: str) -> Numbered | None:
    """Return what was written; None for what is no number."""
    match = _NUMBER.fullmatch(text)
    return None if match is None else Numbered(int(match[1]), match[2] or match[3])


def find_numbered(api: Api, namespace: str, number: int) -> Job | JobArray | None:
    """Return the job or the array of this number; None where none is there (any more)."""
    selector = f"{names.JOB_NUMBER}={number}"
    found = _with_number(api.list(JOBS, namespace=namespace, label_selector=selector), number)
    if found is None:
        arrays = (msgspec.convert(each, JobArray) for each in list_arrays(api, namespace))
        array = _with_number(arrays, number)
        if array is not None:
            return array
        found = _with_number(api.list(JOBS, namespace=namespace), number)
    return found


def _with_number(found: Iterable[W], number: int) -> W | None:
    return next((each for each in found if each.status.number == number), None)


def name_of(api: Api, namespace: str, text: str) -> str:
    """Return how Fairlead's commands name what was written: a name stays, a number becomes one.

    A job whose name is this number goes first. What no job has stays as it was written.
    """
    numbered = parse_number(text)
    if numbered is None or (numbered.indices is None and _is_name(api, namespace, text)):
        return text
    found = find_numbered(api, namespace, numbered.number)
    if found is None:
        return text
    name = found.metadata.name
    return name if numbered.indices is None else f"{name}[{numbered.indices}]"


def _is_name(api: Api, namespace: str, text: str) -> bool:
    for resource in (JOBS, JOB_ARRAYS):
        try:
            api.get(resource.only_metadata, text, namespace=namespace)
        except NotFound:
            continue
        return True
    return False
