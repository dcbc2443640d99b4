"""Reads lines into a tally with the compiled scan; what it does not accept, `LineReader` reads.

The scan needs the package numba (`fairlead[fast]`). Both paths give the same tally: the scan takes
only lines of which every byte is of the usual form, and what a URI or a caller means is worked out
by the same functions.
"""

from __future__ import annotations

import secrets
import zlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from fairlead.doctor.audit.event import AuditCaller, CallerIdentity, caller_of, seconds_of
from fairlead.doctor.audit.files import LineBatch
from fairlead.doctor.audit.lines import LineReader
from fairlead.doctor.audit.request import AuditRequest, parse_uri
from fairlead.doctor.audit.scan import row_scan as places
from fairlead.doctor.audit.scan.event_scan import (
    ADDRESS,
    AGENT,
    CODE,
    NODE,
    POD,
    SPANS,
    URI,
    USER,
    VERB,
)
from fairlead.doctor.audit.scan.json_scan import U
from fairlead.doctor.audit.scan.row_scan import Stop, insert, is_fresh, scan_rows
from fairlead.doctor.audit.scan.uri_scan import KEYS, hash_of
from fairlead.doctor.audit.tally import CLOCK_STEPS, DUPLICATE, RowTemplate, Tally, template_of

#: A batch adds at most 25,000 of each (5 MiB of lines of 200 bytes); the tables have room for that.
IDENTITIES_MAX, KINDS_MAX, FORMS_MAX = 100_000, 30_000, 30_000
#: The table of CRC-32, from the CRC of each byte alone.
_CRC = np.array([zlib.crc32(bytes([n ^ 255])) ^ 0xFF000000 for n in range(256)], np.int64)
_REASONS = {
    places.STEPPED: CLOCK_STEPS, places.DUPLICATES: DUPLICATE,
    places.EARLY: "stage RequestReceived", places.BEGUN: "stage ResponseStarted",
}  # fmt: skip


class CompiledReader:
    """Reads batches of lines into a tally. `flush` at the end."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._memory = np.zeros(places.PLACES, np.int64)
        self._address = self._memory.ctypes.data
        keys = [secrets.randbits(64) | 1 for _ in range(2)]
        self._memory[KEYS : KEYS + 2] = np.array(keys, np.uint64).view(np.int64)
        self._memory[places.CRC : places.CRC + 256] = _CRC
        self._slow = LineReader(tally, self._fresh)
        self._numbers = _Numbers()
        self._batch = LineBatch(bytearray(), 0)
        self._start = 0

    def flush(self) -> None:
        """Add up what was read."""
        memory, tally = self._memory, self.tally
        self._take_out()
        for row, template in enumerate(self._numbers.templates):
            requests = int(memory[places.REQUESTS + row])
            if not requests:
                continue
            cost = tally.cost(template.key)
            cost.requests += requests
            cost.codes[template.code] += requests
            cost.seconds += int(memory[places.MICROS + row]) / 1e6
            cost.seconds_max = max(cost.seconds_max, int(memory[places.LONGEST + row]) / 1e6)
        memory[places.REQUESTS : places.CRC] = 0
        tally.events += int(memory[places.ROWS])
        for place, reason in _REASONS.items():
            if memory[place]:
                tally.skipped[reason] += int(memory[place])
        if memory[places.LAST]:
            tally.see(int(memory[places.FIRST]), int(memory[places.LAST]))
        memory[places.ROWS : places.GENERATION] = 0
        self._slow.flush()

    def read(self, batch: LineBatch) -> None:
        """Read whole lines."""
        self._bound()
        self._batch = batch
        at = self._start = np.frombuffer(batch.buffer, np.uint8).ctypes.data
        end = at + batch.end
        slow: list[bytes] = []
        why = Stop.FULL
        while why is not Stop.END:
            at = scan_rows(at, end, self._address)
            why = Stop(int(self._memory[places.WHY]))
            if why is Stop.NEW_URI:
                self._new_uri()
            elif why is Stop.NEW_IDENTITY:
                self._new_identity()
            elif why is Stop.NEW_ROW:
                self._new_row()
            else:
                self._take_lines(slow)
                if why is Stop.FULL:
                    self._take_out()
        if slow:
            self._slow.read(LineBatch.of(b"\n".join(slow)))

    def _bound(self) -> None:
        """Drop what was looked up when it has become too much."""
        numbers = self._numbers
        if (
            len(numbers.nodes) > IDENTITIES_MAX or len(numbers.templates) > KINDS_MAX
            or numbers.forms > FORMS_MAX
        ):  # fmt: skip
            self.flush()
            self._memory[places.RECENT : places.AUDIT_IDS] = 0
            self._numbers = _Numbers()

    def _fresh(self, audit_ids: list[str]) -> list[bool]:
        """Return which ids of lines that the decoder read are new; those without an id are."""
        return [not each or self._is_fresh(each.encode("utf-8", "replace")) for each in audit_ids]

    def _is_fresh(self, audit_id: bytes) -> bool:
        room = np.zeros(len(audit_id) + 8, np.uint8)
        room[: len(audit_id)] = np.frombuffer(audit_id, np.uint8)
        at = room.ctypes.data
        return is_fresh(hash_of(at, at + len(audit_id), self._address) | U(1), self._address)

    def _texts(self, *wanted: int) -> list[bytes]:
        """Return texts of the line at which the scan stopped."""
        spans: list[int] = self._memory[places.LINE : places.LINE + SPANS].tolist()
        return [
            self._batch.cut(spans[place] - self._start, spans[place + 1] - self._start)
            if spans[place] else b"" for place in wanted
        ]  # fmt: skip

    def _insert(self, table: int, bits: int, number: int) -> None:
        """Give the hash at which the scan stopped its number."""
        insert(self._address, table, bits, number)

    def _new_uri(self) -> None:
        (text,) = self._texts(URI)
        uri: str = msgspec.json.decode(b'"' + text + b'"')
        target = parse_uri(uri)
        if target.name:
            self.tally.see_name(target.request, target.namespace, target.name)
        request = self._numbers.request(target.request)
        self._insert(places.FORMS, places.FORM_BITS, request)
        self._numbers.forms += 1

    def _new_identity(self) -> None:
        texts = self._texts(USER, AGENT, ADDRESS, NODE, POD)
        caller = caller_of(CallerIdentity(*(each.decode() for each in texts)))
        self.tally.note(caller)
        number = self._numbers.caller(caller._replace(node="", has_node=False))
        identity = number << places.OWN_BITS | len(self._numbers.nodes)
        self._numbers.nodes.append(caller.node)
        self._insert(places.IDENTITIES, places.IDENTITY_BITS, identity)

    def _new_row(self) -> None:
        memory, numbers = self._memory, self._numbers
        caller = numbers.callers[memory[places.IDENTITY]]
        request = numbers.requests[memory[places.REQUEST]]
        code = int(memory[places.LINE + CODE])
        (verb,) = self._texts(VERB)
        template = template_of(caller, verb.decode(), request, code)
        row = len(numbers.templates)
        numbers.templates.append(template)
        is_list = template.key.verb == "list"
        memory[places.MARKS + row] = places.LONG * template.is_long + places.LIST * is_list
        self._insert(places.ROWS_TABLE, places.ROW_BITS, row)

    def _take_lines(self, slow: list[bytes]) -> None:
        """Take what is put out of the present batch: lines for the decoder, times of waiting."""
        for at, end in self._out(places.LINES_OUT).tolist():
            slow.append(self._batch.cut(at - self._start, end - self._start))
        for row, at in self._out(places.WAITS_OUT).tolist():
            text = self._batch.cut(at - self._start, at - self._start + 40).partition(b'"')[0]
            cost = self.tally.cost(self._numbers.templates[row].key)
            cost.queue_seconds += seconds_of(text.decode(errors="replace"))
        self._memory[[places.LINES_OUT, places.WAITS_OUT]] = 0

    def _take_out(self) -> None:
        """Take the names of objects, the nodes of callers and the seconds of LISTs."""
        tally, numbers = self.tally, self._numbers
        for row, identity in self._out(places.PAIRS_OUT).tolist():
            if numbers.nodes[identity]:
                tally.cost(numbers.templates[row].key).nodes.add(numbers.nodes[identity])
        seconds = self._out(places.LISTS_OUT)[:, 0]
        tally.count_lists(*np.unique(seconds, return_counts=True))
        names = self._out(places.NAMES_OUT)
        for request in np.unique(names[:, 0]).tolist():
            tally.see_values(numbers.requests[request], names[names[:, 0] == request, 1])
        self._memory[[places.PAIRS_OUT, places.LISTS_OUT, places.NAMES_OUT]] = 0

    def _out(self, kind: int) -> NDArray[np.int64]:
        """Return what the scan put out of a kind, two numbers each."""
        first = places.OUT + (kind - places.NAMES_OUT) * 2 * places.OUT_ROWS
        count = int(self._memory[kind])
        return self._memory[first : first + 2 * count].reshape(count, 2)


class _Numbers:
    """What the numbers in the tables of the scan mean."""

    def __init__(self) -> None:
        self.requests: list[AuditRequest] = []
        self.callers: list[AuditCaller] = []
        self.nodes: list[str] = []
        self.templates: list[RowTemplate] = []
        self.forms = 0
        self._requests: dict[AuditRequest, int] = {}
        self._callers: dict[AuditCaller, int] = {}

    def request(self, request: AuditRequest) -> int:
        """Return the number of a request."""
        number = self._requests.setdefault(request, len(self.requests))
        if number == len(self.requests):
            self.requests.append(request)
        return number

    def caller(self, caller: AuditCaller) -> int:
        """Return the number of a caller."""
        number = self._callers.setdefault(caller, len(self.callers))
        if number == len(self.callers):
            self.callers.append(caller)
        return number
