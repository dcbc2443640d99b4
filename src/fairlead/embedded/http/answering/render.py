"""From stored records to bytes on the wire, in each form that a client may ask for.

Plain objects are spliced: the kind's prefix and the stored bytes, never decoded. Metadata-only
forms splice the stored metadata likewise. Tables decode each object once to compute its cells. A
`Rendering` is made per request (or per group of watchers) and holds no state but its constants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import msgspec

from fairlead.embedded.http.answering.columns import custom_printer
from fairlead.embedded.http.answering.negotiate import Accepted, Form
from fairlead.embedded.printing import GENERIC, Printer, printers
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Record
from fairlead.embedded.verbs.options import ListPage
from fairlead.runtime.clock import Clock

#: Pieces of a list are sent when they have grown to this.
PIECE_BYTES = 128 * 1024
#: Records rendered between two looks at the piece's size.
TABLE_ROWS_PER_PIECE = 200

_encode = msgspec.json.encode


class IncludeObject(Enum):
    """What a table row carries beside its cells."""

    NONE = "None"
    METADATA = "Metadata"
    OBJECT = "Object"


class _Head(msgspec.Struct, gc=False):
    metadata: msgspec.Raw


_HEAD = msgspec.json.Decoder(_Head)
_PLAIN = msgspec.json.Decoder(dict[str, Any])


def whole(info: ResourceInfo, record: Record) -> bytes:
    """Return the object's JSON with kind and apiVersion; only another version is decoded for it."""
    if info.version_names is None:
        return info.prefix + record.data[1:]
    return info.prefix + _encode(info.served(_PLAIN.decode(record.data)), order="sorted")[1:]


def _metadata_bytes(record: Record) -> bytes:
    return bytes(_HEAD.decode(record.data).metadata)


def _list_meta(page: ListPage) -> bytes:
    meta: dict[str, Any] = {"resourceVersion": page.resource_version}
    if page.continue_:
        meta["continue"] = page.continue_
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    return _encode(meta)


class Rendering(ABC):
    """How objects, lists and bookmarks of one kind are written."""

    __slots__ = ()

    @abstractmethod
    def one(self, record: Record) -> bytes:
        """Return a single object, as it is answered or put into a watch event."""

    @abstractmethod
    def head(self, page: ListPage) -> bytes:
        """Return what comes before the items of a list."""

    def item(self, record: Record) -> bytes:
        """Return one item; items are joined by commas, and `]}` closes the list."""
        return self.one(record)

    @abstractmethod
    def bookmark(self, version: int, annotations: str) -> bytes:
        """Return the object of a BOOKMARK event; `annotations` is JSON, "" for none."""

    def after_first(self) -> Rendering:
        """Return how a stream goes on after its first event."""
        return self


def _bookmark_meta(version: int, annotations: str) -> str:
    extra = f',"annotations":{annotations}' if annotations else ""
    return f'"metadata":{{"resourceVersion":"{version}"{extra}}}'


@dataclass(frozen=True, slots=True)
class PlainRendering(Rendering):
    """Objects as they are. Items of built-in lists carry no kind, as upstream."""

    info: ResourceInfo

    def one(self, record: Record) -> bytes:
        """Splice."""
        return whole(self.info, record)

    def head(self, page: ListPage) -> bytes:
        """Return the list's kind and metadata."""
        kind = _encode(self.info.list_kind).decode()
        version = _encode(self.info.api_version).decode()
        head = f'{{"kind":{kind},"apiVersion":{version},"metadata":'.encode()
        return head + _list_meta(page) + b',"items":['

    def item(self, record: Record) -> bytes:
        """Give the stored bytes themselves for a built-in kind."""
        return record.data if self.info.is_builtin else whole(self.info, record)

    def bookmark(self, version: int, annotations: str) -> bytes:
        """Return an empty object of the kind with the version."""
        return self.info.prefix + _bookmark_meta(version, annotations).encode() + b"}"


@dataclass(frozen=True, slots=True)
class MetadataRendering(Rendering):
    """PartialObjectMetadata: for clients that only watch names, labels and owners."""

    version: str

    def _prefix(self, kind: str) -> bytes:
        return f'{{"kind":"{kind}","apiVersion":"meta.k8s.io/{self.version}","metadata":'.encode()

    def one(self, record: Record) -> bytes:
        """Splice the metadata."""
        return self._prefix("PartialObjectMetadata") + _metadata_bytes(record) + b"}"

    def head(self, page: ListPage) -> bytes:
        """Return the list's kind and metadata."""
        return self._prefix("PartialObjectMetadataList") + _list_meta(page) + b',"items":['

    def bookmark(self, version: int, annotations: str) -> bytes:
        """Return metadata with only the version."""
        meta = _bookmark_meta(version, annotations).removeprefix('"metadata":')
        return self._prefix("PartialObjectMetadata") + meta.encode() + b"}"


@dataclass(frozen=True, slots=True)
class TableRendering(Rendering):
    """meta.k8s.io Table, for kubectl. Of a stream, the first event alone has the columns."""

    info: ResourceInfo
    version: str
    include: IncludeObject
    printer: Printer
    definitions: bytes
    clock: Clock

    def _open(self, meta: bytes) -> bytes:
        return b"".join(
            (
                f'{{"kind":"Table","apiVersion":"meta.k8s.io/{self.version}","metadata":'.encode(),
                meta,
                b',"columnDefinitions":',
                self.definitions,
                b',"rows":[',
            )
        )

    def one(self, record: Record) -> bytes:
        """Return a table of one row."""
        meta = _encode({"resourceVersion": str(record.version)})
        return self._open(meta) + self.item(record) + b"]}"

    def head(self, page: ListPage) -> bytes:
        """Return the columns."""
        return self._open(_list_meta(page))

    def item(self, record: Record) -> bytes:
        """Return one row."""
        shown = self.info.served(_PLAIN.decode(record.data))
        cells = _encode(self.printer.cells(shown, self.clock.now()))
        if self.include is IncludeObject.NONE:
            # Upstream writes the null of its raw field.
            return b'{"cells":' + cells + b',"object":null}'
        if self.include is IncludeObject.OBJECT:
            obj = whole(self.info, record)
        else:
            obj = MetadataRendering(self.version).one(record)
        return b'{"cells":' + cells + b',"object":' + obj + b"}"

    def bookmark(self, version: int, annotations: str) -> bytes:
        """Return a table with one row, of an object that has these metadata alone."""
        meta = {"resourceVersion": str(version)}
        about = meta | ({"annotations": msgspec.Raw(annotations.encode())} if annotations else {})
        cells = _encode(self.printer.cells({"metadata": meta}, self.clock.now()))
        if self.include is IncludeObject.OBJECT:
            obj = self.info.prefix + _encode({"metadata": about})[1:]
        else:
            prefix = f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{self.version}"'
            obj = prefix.encode() + b"," + _encode({"metadata": about})[1:]
        return self._open(_encode(meta)) + b'{"cells":' + cells + b',"object":' + obj + b"}]}"

    def after_first(self) -> Rendering:
        """Return tables without columns (apiserver `handlers/response.go`, NoHeaders)."""
        return replace(self, definitions=b"null")


def printer_for(info: ResourceInfo) -> Printer:
    """Return the kind's printer; Name and Age when nothing better is known."""
    if not info.is_builtin or info.printer_columns:
        return custom_printer(info.printer_columns)
    return printers().get(info.name, GENERIC)


def rendering(
    info: ResourceInfo, accepted: Accepted, include: IncludeObject, clock: Clock
) -> Rendering:
    """Return how this kind is written in the accepted form."""
    if accepted.form is Form.TABLE:
        printer = printer_for(info)
        definitions = _encode(printer.definitions())
        return TableRendering(info, accepted.version, include, printer, definitions, clock)
    if accepted.form in (Form.METADATA, Form.METADATA_LIST):
        return MetadataRendering(accepted.version)
    return PlainRendering(info)


def list_pieces(render: Rendering, page: ListPage) -> Iterator[bytes]:
    """Yield the JSON of a list in pieces of about PIECE_BYTES: others get a turn between."""
    pending: list[bytes] = [render.head(page)]
    size, first = len(pending[0]), True
    for record in page.records:
        item = render.item(record)
        if not first:
            pending.append(b",")
        pending.append(item)
        first = False
        size += len(item) + 1
        if size >= PIECE_BYTES or len(pending) >= 2 * TABLE_ROWS_PER_PIECE:
            yield b"".join(pending)
            pending, size = [], 0
    pending.append(b"]}")
    yield b"".join(pending)


def event_line(type_: str, obj: bytes) -> bytes:
    """Return one line of a watch stream."""
    return b'{"type":"' + type_.encode() + b'","object":' + obj + b"}\n"


def status_line(status: bytes) -> bytes:
    """Return the ERROR line that ends a watch stream."""
    return event_line("ERROR", status)


def chunk(payload: bytes) -> bytes:
    """Return one chunk of HTTP/1.1 chunked transfer coding (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def collection(info: ResourceInfo, records: Sequence[Record], version: str) -> bytes:
    """Return the plain list of these records, as delete-collection answers it."""
    return b"".join(list_pieces(PlainRendering(info), ListPage(records, version)))
