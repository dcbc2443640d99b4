"""The jobs that `ps` shows by default, of a list in which thousands may have ended.

Of each only what chooses is read: its metadata and its end. Those that have not ended, and those
that may be among the last, are decoded whole: a third of the time, where most have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import nlargest
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.resources import JOBS, Resource
from fairlead.cli.connection.transport import Api
from fairlead.kube.decoding import Decoders


class _End(Wire, frozen=True):
    type: str = ""
    status: str = ""


class _EndStatus(Wire, frozen=True):
    conditions: tuple[_End, ...] = ()
    finished_at: str | None = None


class _Glance(Wire, frozen=True):
    """What chooses a job: the rest of its text is passed over."""

    metadata: ObjectMeta = ObjectMeta()
    status: _EndStatus = _EndStatus()


_TEXTS: Resource[Any] = replace(JOBS, type=msgspec.Raw)
_GLANCE: Resource[Any] = replace(JOBS, type=_Glance)
_ENDS = (_End(names.SUCCEEDED, "True"), _End(names.FAILED, "True"))


def recent_jobs(
    api: Api, namespace: str, includes: Callable[[ObjectMeta], bool], ended_max: int
) -> list[Job]:
    """Return the jobs that are included and have not ended, and at least so many of those that
    ended last; InternalError when one of these cannot be decoded.
    """
    glances, jobs = Decoders(_GLANCE), Decoders(JOBS)
    shown: list[msgspec.Raw] = []
    ended: list[tuple[str, msgspec.Raw]] = []
    for text in api.list(_TEXTS, namespace=namespace):
        seen: _Glance = glances.object(text)
        if not includes(seen.metadata):
            continue
        if any(each in seen.status.conditions for each in _ENDS):
            ended.append((seen.status.finished_at or "", text))
        else:
            shown.append(text)
    last = nlargest(ended_max, (at for at, _ in ended))
    shown += [text for at, text in ended if at >= last[-1]]
    return [jobs.object(text) for text in shown]
