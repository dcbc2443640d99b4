"""Turns the lines of an audit log into rows: a typed, partial decode of each line, then look-ups.

What follows from a URI or from a caller is worked out on first sight and then looked up by a keyed
64-bit hash, so that names and addresses need no memory. Lines that cannot be used are counted by
their reason; nothing that a line contains raises. Rows are collected in columns and added to a
tally many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from fairlead.doctor.audit.event import DECODER, AuditEvent, CallerIdentity, caller_of, seconds_of
from fairlead.doctor.audit.files import LineBatch
from fairlead.doctor.audit.request import AuditRequest, parse_uri
from fairlead.doctor.audit.tally import (
    CLOCK_STEPS,
    DUPLICATE,
    SEPARATOR,
    RowTemplate,
    Tally,
    micros,
    stamps_are_clean,
    template_of,
)

ROWS_MAX = 40_000
TEMPLATES_MAX = 50_000
_NO_ID = hash("")

#: Returns which of the audit ids were not seen before; None when all are new.
Fresh = Callable[[list[str]], Sequence[bool] | None]


class SeenIds:
    """The audit ids of this and the previous flush, as hashes."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def fresh(self, audit_ids: list[str]) -> Sequence[bool] | None:
        """Return which ids are new; those without an id are."""
        hashes = list(map(hash, audit_ids))
        current = set(hashes)
        previous, self._seen = self._seen, current
        if len(current) == len(hashes) and previous.isdisjoint(current):
            return None
        fresh: list[bool] = []
        for each in hashes:
            fresh.append(each == _NO_ID or each not in previous)
            previous.add(each)
        return fresh


class Columns:
    """Rows that are not added up yet, and the templates that they refer to."""

    def __init__(self, tally: Tally, fresh: Fresh) -> None:
        self.tally = tally
        self._fresh = fresh
        self.templates: list[RowTemplate] = []
        self.numbers: dict[RowTemplate, int] = {}
        self._ids: list[int] = []
        self._stamps: list[bytes] = []
        self._waits: dict[int, float] = {}
        self._audit_ids: list[str] = []

    def number_of(self, template: RowTemplate) -> int:
        """Return the number of a template."""
        found = self.numbers.get(template)
        if found is None:
            found = self.numbers[template] = len(self.templates)
            self.templates.append(template)
            self.tally.note(template)
        return found

    @property
    def is_full(self) -> bool:
        """True when the templates should be dropped: `clear` then."""
        return len(self.templates) > TEMPLATES_MAX

    def wait(self, number: int, seconds: float) -> None:
        """Note that a request waited for a seat."""
        self._waits[number] = self._waits.get(number, 0.0) + seconds

    def add(self, ids: list[int], stamps: bytes, audit_ids: list[str]) -> None:
        """Take rows; `stamps` are joined and clean."""
        self._ids += ids
        self._stamps.append(stamps)
        self._audit_ids += audit_ids
        if len(self._ids) >= ROWS_MAX:
            self.flush()

    def clear(self) -> None:
        """Add up what there is and drop the templates; numbers are new from here on."""
        self.flush()
        self.templates.clear()
        self.numbers.clear()

    def flush(self) -> None:
        """Add all rows up."""
        for number, seconds in self._waits.items():
            self.tally.cost(self.templates[number].key).queue_seconds += seconds
        self._waits.clear()
        if not self._ids:
            return
        rows = len(self._ids)
        ids = np.array(self._ids, np.int64)
        joined = b"".join(self._stamps)
        start, end = micros(joined, rows, 0), micros(joined, rows, 47)
        fresh = self._fresh(self._audit_ids)
        if fresh is not None and not all(fresh):
            kept = np.array(fresh, np.bool_)
            self.tally.skipped[DUPLICATE] += int((~kept).sum())
            ids, start, end = ids[kept], start[kept], end[kept]
        self._ids, self._stamps, self._audit_ids = [], [], []
        if len(ids):
            self._add_up(ids, start, end)

    def _add_up(
        self,
        ids: np.ndarray[tuple[int], np.dtype[np.int64]],
        start: np.ndarray[tuple[int], np.dtype[np.int64]],
        end: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> None:
        tally = self.tally
        seconds = (end - start) / 1e6
        stepped = (seconds < 0) | (start <= 0)
        count = int(stepped.sum())
        if count:
            tally.skipped[CLOCK_STEPS] += count
            seconds = np.where(stepped, 0.0, seconds)
        used, inverse = np.unique(ids, return_inverse=True)
        counts = np.bincount(inverse)
        sums = np.bincount(inverse, weights=seconds)
        largest = np.zeros(len(used))
        np.maximum.at(largest, inverse, seconds)
        is_list = np.zeros(len(used), np.bool_)
        for row, number in enumerate(used.tolist()):
            template = self.templates[number]
            cost = tally.cost(template.key)
            requests = int(counts[row])
            cost.requests += requests
            cost.codes[template.code] += requests
            if template.node:
                cost.nodes.add(template.node)
            if not template.is_long:
                cost.seconds += float(sums[row])
                cost.seconds_max = max(cost.seconds_max, float(largest[row]))
            is_list[row] = template.key.verb == "list"
        moments = start[is_list[inverse]] // 1_000_000
        tally.count_lists(*np.unique(moments, return_counts=True))
        tally.events += len(ids)
        written = end[end > 0]  # a line is written when its request ends
        if len(written):
            tally.see(int(written.min()), int(written.max()))


COMBINATIONS_MAX = 100_000
URIS_MAX = 200_000
REQUESTS_MAX = 20_000
_SEPARATOR = SEPARATOR.decode()


class LineReader:
    """Reads batches of lines into a tally. `flush` at the end."""

    def __init__(self, tally: Tally, fresh: Fresh | None = None) -> None:
        self.tally = tally
        self._columns = Columns(tally, fresh or SeenIds().fresh)
        #: Numbers of templates by what decides them, numbers of requests by URI: both by hash.
        self._templates: dict[int, int] = {}
        self._uris: dict[int, int] = {}
        self._forms: dict[int, int] = {}
        self._requests: list[AuditRequest] = []
        self._numbers: dict[AuditRequest, int] = {}

    def flush(self) -> None:
        """Add up what was read."""
        self._columns.flush()

    def read(self, batch: LineBatch) -> None:
        """Read whole lines."""
        self._bound()
        ids: list[int] = []
        stamps: list[str] = []
        audit_ids: list[str] = []
        decode = DECODER.decode
        uris, templates = self._uris, self._templates
        for line in batch.cut(0, batch.end).split(b"\n"):
            try:
                event = decode(line)
            except (ValueError, RecursionError) as error:
                self._unusable(line, error)
                continue
            user = event.user
            if event.stage != "ResponseComplete" or user is None or not event.request_uri:
                self._other(event)
                continue
            uri = hash(event.request_uri)
            request = uris.get(uri)
            if request is None:
                request = uris[uri] = self._request_number(event.request_uri)
            status, extra, addresses = event.response_status, user.extra, event.source_ips
            identity = (
                user.username, event.user_agent, addresses[-1] if addresses else "",
                extra.node_name[0] if extra and extra.node_name else "",
                extra.pod_name[0] if extra and extra.pod_name else "",
            )  # fmt: skip
            code = status.code if status else 0
            known = hash((request, event.verb, code, identity))
            number = templates.get(known)
            if number is None:
                caller = caller_of(CallerIdentity(*identity))
                template = template_of(caller, event.verb, self._requests[request], code)
                number = templates[known] = self._columns.number_of(template)
            ids.append(number)
            stamps.append(event.request_received_timestamp + _SEPARATOR + event.stage_timestamp)
            audit_ids.append(event.audit_id)
            if event.annotations is not None and event.annotations.queue_wait:
                self._columns.wait(number, seconds_of(event.annotations.queue_wait))
        joined = "".join(stamps).encode("utf-8", "replace")
        if not stamps_are_clean(joined, len(ids)):
            ids, stamps, audit_ids = self._usable(ids, stamps, audit_ids)
            joined = "".join(stamps).encode()
        self._columns.add(ids, joined, audit_ids)

    def _bound(self) -> None:
        """Drop what was looked up when it has become too much."""
        if self._columns.is_full or len(self._templates) > COMBINATIONS_MAX:
            self._columns.clear()
            self._templates.clear()
        if len(self._uris) > URIS_MAX:
            self._uris.clear()
            self._forms.clear()
        if len(self._requests) > REQUESTS_MAX:
            self._columns.clear()
            for each in (self._templates, self._uris, self._forms, self._requests, self._numbers):
                each.clear()

    def _request_number(self, uri: str) -> int:
        """Return the number of what a URI asks for.

        URIs of the usual form, `/api/v1/namespaces/NAMESPACE/RESOURCE/NAME...`, differ in two
        names only; the rest is looked up.
        """
        path, _, query = uri.partition("?")
        parts = path.split("/")
        at = 5 if parts[1:2] == ["api"] else 6
        rest = len(parts) - at
        form = 0
        if (
            rest in (2, 3) and parts[at - 2] == "namespaces" and parts[at + 1] and "%" not in path
            and parts[at] not in ("status", "finalize")
        ):  # fmt: skip
            last = parts[-1] if rest > 2 else ""
            form = hash((parts[1], parts[2], parts[at - 3], parts[at], last, query))
            known = self._forms.get(form)
            if known is not None:
                self.tally.see_name(self._requests[known], parts[at - 1], parts[at + 1])
                return known
        target = parse_uri(uri)
        if target.name:
            self.tally.see_name(target.request, target.namespace, target.name)
        number = self._numbers.get(target.request)
        if number is None:
            number = self._numbers[target.request] = len(self._requests)
            self._requests.append(target.request)
        if form:
            self._forms[form] = number
        return number

    def _unusable(self, line: bytes, error: Exception) -> None:
        if not line.strip():
            return
        is_typed = isinstance(error, msgspec.ValidationError)
        self.tally.skipped[
            "fields of another type" if is_typed else "not JSON (cut, interleaved or damaged)"
        ] += 1

    def _other(self, event: AuditEvent) -> None:
        if event.stage == "Panic":
            self.tally.panics += 1
        elif event.stage in ("RequestReceived", "ResponseStarted"):
            self.tally.skipped[f"stage {event.stage}"] += 1
        elif event.stage == "ResponseComplete":
            self.tally.skipped["no user or URI"] += 1
        else:
            self.tally.skipped["not an audit event"] += 1

    def _usable(
        self, ids: list[int], stamps: list[str], audit_ids: list[str]
    ) -> tuple[list[int], list[str], list[str]]:
        """Return the rows that have times, in the form of stamps; count the others."""
        rows = [
            (number, stamp, audit_id)
            for number, given, audit_id in zip(ids, stamps, audit_ids, strict=True)
            if stamps_are_clean((stamp := _stamp(given)).encode("utf-8", "replace"), 1)
        ]
        if len(rows) < len(ids):
            self.tally.skipped["no time"] += len(ids) - len(rows)
        return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]


def _stamp(given: str) -> str:
    """Return two times with six digits of fraction each, as kube-apiserver writes them."""
    received, _, ended = given.partition(_SEPARATOR)
    return _time(received) + _SEPARATOR + _time(ended)


def _time(text: str) -> str:
    head, _, fraction = text.removesuffix("Z").partition(".")
    return f"{head}.{fraction[:6]:0<6}Z"
