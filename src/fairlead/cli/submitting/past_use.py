"""What past jobs of a name used, looked up for a new one of it.

It is a help, and no reason to refuse or to delay: what cannot be read is left out. Two kinds of
requests: the latest jobs of the user, and for those of the name what their members used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import MemberUse
from fairlead.api.status import ApiError
from fairlead.app.queries.messages import CUT_PREFIX, Book
from fairlead.cli.cluster.archive import Archive, NoArchive
from fairlead.cli.connection.transport import Api
from fairlead.decide.use.overasked import RUNS_MAX, OverAsk, PastRun, over_asks
from fairlead.input.errors import CliError

#: Jobs of the user that are looked through; of a larger gang only the first members are read.
_JOBS_MAX = 50
_MEMBERS_MAX = 128
_SECONDS_MAX = 90 * 86_400


class _Ended(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    name: str
    document: msgspec.Raw
    use: tuple[msgspec.Raw, ...] = ()


class _Used(msgspec.Struct, frozen=True):
    task: str
    attempt: int
    use: MemberUse


def past_over_asks(api: Api, job: Job, base: str, now: float) -> tuple[OverAsk, ...]:
    """Return what the job asks for in excess, by those of its user that are called `base`, or
    `base` and a number.
    """
    try:
        return over_asks(job, list(_runs(api, job, base, now)))
    except (NoArchive, ApiError, CliError, ValueError, OSError):
        return ()


def _runs(api: Api, job: Job, base: str, now: float) -> Iterator[PastRun]:
    """Yield the latest of them whose use is known, the latest end first."""
    meta = job.metadata
    query = {
        "namespace": meta.namespace, "user": meta.annotations.get(names.SUBMITTED_BY, ""),
        "since": f"{max(0.0, now - _SECONDS_MAX):.0f}", "limit": str(_JOBS_MAX),
    }  # fmt: skip
    alike = re.compile(rf"{re.escape(base)}(-[0-9]+)?")
    count = 0
    for text in _lines(api, Book.JOBS, query):
        ended = msgspec.json.decode(text, type=_Ended)
        if not ended.use or not alike.fullmatch(ended.name):
            continue
        past = msgspec.json.decode(ended.document, type=Job)
        asked = {"namespace": meta.namespace, "uid": ended.uid, "limit": str(_MEMBERS_MAX),
                 "attempt": str(past.status.attempt)}  # fmt: skip
        lines = (msgspec.json.decode(each, type=_Used) for each in _lines(api, Book.USE, asked))
        yield PastRun(past, {each.task: each.use for each in lines})
        count += 1
        if count == RUNS_MAX:
            return


def _lines(api: Api, book: Book, query: dict[str, str]) -> list[bytes]:
    lines = Archive(api).read(f"/fairlead/v1/{book.value}", query).splitlines()
    return [each for each in lines if not each.startswith(CUT_PREFIX)]
