"""Records of what was taken, each with the digest of the one before it: a chain.

A record is written before the act (`audit_book.py`). Who changes, removes or reorders records
breaks the chain. Who cuts its end off leaves a chain that is whole, so its head (the number and the
digest of the latest record) is also in the log of the process and at all targets of the export.

The digest is SHA-256 over a JSON array that any language writes alike: no spaces, keys in order, no
fractions. Numbers count from 1 and have no gaps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from fairlead.api.values.times import format_time
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Fact

#: The digest before the first record.
NO_DIGEST = "0" * 64
#: Kinds that are about the chain or a taking in it, and take nothing.
NOT_DONE, PRUNED = "NotDone", "Pruned"
_TEXT_LENGTH_MAX = 512
_MESSAGE_LENGTH_MAX = 1_024
_FACTS_MAX = 32
_FAULTS_MAX = 100


@dataclass(frozen=True, slots=True)
class Draft:
    """A record without its place in the chain. `facts` is a JSON object; instants are milliseconds
    of the epoch.
    """

    at_ms: int
    #: The process that took, or was about to.
    writer: str
    id: str
    kind: str
    object: str
    uid: str
    reason: str
    message: str
    facts: str


@dataclass(frozen=True, slots=True)
class AuditRecord(Draft):
    """One link of the chain."""

    number: int
    previous: str
    digest: str


class Head(NamedTuple):
    """The end of a chain; 0 and `NO_DIGEST`: an empty one."""

    number: int = 0
    digest: str = NO_DIGEST

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which records: those after a number, in order, at most `limit`; with `last`, the latest ones.

    Empty fields match all; `since` is in seconds since the epoch.
    """

    after: int = 0
    kind: str = ""
    since: float | None = None
    limit: int = 100
    last: bool = False


def draft_of(taking: Taking, *, writer: str, now: float) -> Draft:
    """Return what is recorded of a taking; long texts are cut."""
    return Draft(
        round(now * 1000), _text(writer), _text(taking.id), taking.kind.value,
        _text(taking.object), _text(taking.uid), _text(taking.reason),
        _text(taking.message, _MESSAGE_LENGTH_MAX), facts_text(taking.facts),
    )  # fmt: skip


def facts_text(facts: Mapping[str, Fact]) -> str:
    """Return facts as JSON; fractions become texts, as languages write them differently."""
    few = list(facts.items())[:_FACTS_MAX]
    return _json({_text(key): _plain(value) for key, value in few})


def linked(head: Head, drafts: Iterable[Draft]) -> list[AuditRecord]:
    """Return the drafts as the records that come after the head of a chain."""
    records: list[AuditRecord] = []
    for draft in drafts:
        number = head.number + 1
        bare = AuditRecord(**asdict(draft), number=number, previous=head.digest, digest="")
        records.append(replace(bare, digest=digest_of(bare)))
        head = Head(number, records[-1].digest)
    return records


def digest_of(record: AuditRecord) -> str:
    """Return what the digest of a record must be. ValueError: its facts are no JSON."""
    fields = [
        record.number, record.at_ms, record.writer, record.id, record.kind, record.object,
        record.uid, record.reason, record.message, json.loads(record.facts), record.previous,
    ]  # fmt: skip
    return hashlib.sha256(_json(fields).encode()).hexdigest()


def audit_line(record: AuditRecord) -> bytes:
    """Return a record as JSON lines have it, in ASCII, without the end of the line."""
    line = {
        "number": record.number, "at": format_time(record.at_ms / 1000), "atMs": record.at_ms,
        "writer": record.writer, "id": record.id, "kind": record.kind, "object": record.object,
        "uid": record.uid, "reason": record.reason, "message": record.message,
        "facts": json.loads(record.facts), "previous": record.previous, "digest": record.digest,
    }  # fmt: skip
    return json.dumps(line, separators=(",", ":")).encode()


def record_of_line(line: bytes) -> AuditRecord:
    """Return the record of a JSON line; ValueError: it is none."""
    try:
        each = json.loads(line)
        return AuditRecord(
            each["atMs"], each["writer"], each["id"], each["kind"], each["object"], each["uid"],
            each["reason"], each["message"], _json(each["facts"]), each["number"],
            each["previous"], each["digest"],
        )  # fmt: skip
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no audit record: {error}") from error


def pruned(record: AuditRecord, *, writer: str, now: float) -> Draft:
    """Return the draft that says that the records up to this one are dropped, for their age."""
    facts: dict[str, Fact] = {"number": record.number, "digest": record.digest}
    text = f"the records up to {record.number} were dropped: the store keeps the latest ones"
    return Draft(round(now * 1000), _text(writer), f"pruned/{record.number}", PRUNED, "", "",
                 "Bound", text, facts_text(facts))  # fmt: skip


class Appended(NamedTuple):
    """What was added to a chain. `is_broken`: records that this process had written were gone."""

    records: tuple[AuditRecord, ...]
    is_broken: bool


@dataclass(slots=True)
class ChainCheck:
    """Follows a chain record by record, and collects what is wrong with it."""

    count: int = 0
    head: Head = field(default_factory=Head)
    faults: list[str] = field(default_factory=list[str])
    #: What the first record follows, where that is not the beginning, until a record explains it.
    _unexplained: Head | None = None

    def add(self, record: AuditRecord) -> None:
        """Take the next record in."""
        if not self.count and record.number > 1:
            self._unexplained = Head(record.number - 1, record.previous)
        elif record.number != self.head.number + 1:
            self._fault(f"record {record.number} follows {self.head.number}: "
                        "records are missing, or in another order")  # fmt: skip
        elif record.previous != self.head.digest:
            self._fault(f"record {record.number} does not follow the record {self.head.number} "
                        "that is there")  # fmt: skip
        try:
            is_sound = digest_of(record) == record.digest
        except ValueError:
            is_sound = False
        if not is_sound:
            self._fault(f"record {record.number} was changed")
        elif record.kind == PRUNED and self._unexplained is not None:
            facts = json.loads(record.facts)
            found = facts.get("number"), facts.get("digest")
            if found == (self._unexplained.number, self._unexplained.digest):
                self._unexplained = None
        self.count += 1
        self.head = Head(record.number, record.digest)

    def end(self) -> list[str]:
        """Return what is wrong; nothing: the chain is whole from its first record to its last."""
        if self._unexplained is not None:
            number = self._unexplained.number
            self._fault(f"the records up to {number} are missing, and no record says that they "
                        "were dropped")  # fmt: skip
            self._unexplained = None
        return self.faults

    def _fault(self, text: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(text)


def is_broken_off(own: Head, stored: str | None, first: int) -> bool:
    """True where a store has lost what this process wrote to it last: its digest there, if any.

    Records before `first` were dropped for their age.
    """
    return bool(own.number) and own.number >= first and stored != own.digest


def continued(own: Head, stored: Head) -> Head:
    """Return what the next record follows in a store that has lost records: the break stays."""
    return Head(max(own.number, stored.number), own.digest)


def first_kept(first: int, last: int, records_max: int) -> int:
    """Return the number of the first record that is kept: a full store loses an eighth."""
    is_full = last - first + 1 > records_max
    return last - records_max * 7 // 8 + 1 if is_full else first


def _plain(value: Fact) -> Fact:
    if isinstance(value, float):
        return str(value)
    return _text(value) if isinstance(value, str) else value


def _text(text: str, length_max: int = _TEXT_LENGTH_MAX) -> str:
    """Return a text that every store keeps as it is: without NUL, and not too long."""
    clean = text.replace("\x00", "").encode("utf-8", "replace").decode()
    return clean if len(clean) <= length_max else clean[: length_max - 3] + "..."


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
