"""Records and events: one version of one object, and one committed write.

A record keeps the stored bytes and the few fields that the store and watches select by. What else
readers need is decoded on demand and cached, so that all readers of one version share it.

A spec is the largest part of most objects and the one that changes least. So a write that leaves
it alone neither reads it (`Record.around_spec`) nor decodes it again (`Known`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from fairlead.api.meta import ObjectMeta, OnlyMetadata
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.runtime.client import EventType

T = TypeVar("T")

#: (namespace, name); the namespace of cluster-scoped objects is empty.
Key = tuple[str, str]


class _OwnerUid(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What a record keeps of its metadata, for replay."""

    uid: str = ""
    labels: dict[str, str] | None = None
    owner_references: tuple[_OwnerUid, ...] | None = None
    finalizers: tuple[str, ...] | None = None
    deletion_timestamp: str | None = None


class _Head(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata


class _AroundSpec(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An object of the usual three parts, with its spec as it is stored."""

    metadata: dict[str, Any]
    spec: msgspec.Raw
    status: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


_HEAD = msgspec.json.Decoder(_Head)
_METADATA = msgspec.json.Decoder(OnlyMetadata)
_AROUND_SPEC = msgspec.json.Decoder(_AroundSpec)
_THREE_PARTS = {"metadata", "spec", "status"}
KINDS_CACHED_MAX = 1024
#: Specs that are kept to be shared, and what one has as JSON at most.
SPECS_CACHED_MAX, SPEC_BYTES_MAX = 256, 16_384
_PLAIN = msgspec.json.Decoder(dict[str, Any])
_NO_LABELS: dict[str, str] = {}
#: Of zlib: what a higher one saves of texts that repeat each other is not worth its time.
PACK_LEVEL = 1


class _Block(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The texts of some past versions, one after the other, compressed."""

    packed: bytes


@lru_cache(maxsize=1)  # versions are read in the order in which they were packed
def _texts_of(block: _Block) -> bytes:
    return zlib.decompress(block.packed)


def pack(records: Sequence[Record]) -> None:
    """Compress the texts of past versions together: they differ in a few words each."""
    texts = [record.data for record in records]
    block = _Block(zlib.compress(b"".join(texts), PACK_LEVEL))
    end = 0
    for record, text in zip(records, texts, strict=True):
        record.set_packed(block, end, end := end + len(text))


class Record(msgspec.Struct, gc=False, eq=False):
    """One version of one object. Shared by all readers: never changed, but for its caches."""

    key: Key
    version: int
    uid: str
    _text: bytes
    labels: Mapping[str, str]
    owners: tuple[str, ...]  # uids
    has_finalizers: bool
    is_deleting: bool
    #: True when the spec of the read model is made of parts that other objects share.
    has_shared_spec: bool = False
    _typed: Any = None
    _fields: tuple[ResourceInfo, Mapping[str, str]] | None = None
    _is_past: bool = False
    #: Where the text is instead, and from where to where in there.
    _place: tuple[_Block, int, int] | None = None

    @property
    def data(self) -> bytes:
        """The canonical JSON without kind and apiVersion (`info.prefix + data[1:]` is whole)."""
        if self._place is None:
            return self._text
        block, start, end = self._place
        return _texts_of(block)[start:end]

    @property
    def size(self) -> int:
        """The length of `data`."""
        return len(self._text) if self._place is None else self._place[2] - self._place[1]

    def set_packed(self, block: _Block, start: int, end: int) -> None:
        """Have the text in a block; see `pack`."""
        self._place, self._text = (block, start, end), b""

    def set_data(self, data: bytes) -> None:
        """Be of another text, as an answer to a write that stored nothing."""
        self._text = data
        self.drop_caches()

    @property
    def namespace(self) -> str:
        """Empty for cluster-scoped objects."""
        return self.key[0]

    @property
    def name(self) -> str:
        """The object's name."""
        return self.key[1]

    def typed(self, type_: type[T]) -> T:
        """Return the object as `type_`, decoded once and shared; only one type is cached.

        What is no read model but metadata, alone or with a part of the spec, takes no other type's
        place there, and of a past version nothing is.
        """
        if issubclass(type_, OnlyMetadata):
            if type_ is OnlyMetadata and self._typed is not None:
                return cast("T", OnlyMetadata(self.metadata()))
            return msgspec.json.decode(self.data, type=type_)
        value = self._typed
        if type(value) is not type_:
            value = msgspec.json.decode(self.data, type=type_)
            if not self._is_past:
                self._typed = value
        return value

    def metadata(self) -> ObjectMeta:
        """Return the metadata, from the read model where that is there."""
        known = getattr(self._typed, "metadata", None)
        return known if type(known) is ObjectMeta else _METADATA.decode(self.data).metadata

    def is_decoded(self, type_: type[Any]) -> bool:
        """True when `typed` has its answer ready."""
        return type(self._typed) is type_

    def known(self, type_: type[Any], old: dict[str, Any], new: dict[str, Any]) -> Known | None:
        """Return the parts of the read model that `new` shares with `old`, the plain form of this.

        None where `typed` has no read model ready, or the two have not even the spec in common.
        """
        if new.get("spec") is not old.get("spec"):
            return None
        if type(self._typed) is not type_ or not has_three_parts(type_):
            return None
        is_same = new.get("status") is old.get("status")
        return Known(self._typed.spec, self._typed.status if is_same else None)

    def plain(self) -> dict[str, Any]:
        """Return a new plain JSON value, without kind and apiVersion; the caller may change it."""
        return _PLAIN.decode(self.data)

    def around_spec(self) -> dict[str, Any]:
        """Return `plain` with the spec as raw JSON where that can be; it encodes to the same."""
        try:
            parts = _AROUND_SPEC.decode(self.data)
        except msgspec.ValidationError:
            return self.plain()
        out: dict[str, Any] = {"metadata": parts.metadata, "spec": parts.spec}
        if parts.status is not msgspec.UNSET:
            out["status"] = parts.status
        return out

    def drop_caches(self) -> None:
        """Forget what was decoded."""
        self._typed = self._fields = None

    def follow(self, previous: Record) -> None:
        """Share what is equal with the version before: history holds both for long."""
        self.key = previous.key
        if self.uid == previous.uid:
            self.uid = previous.uid
        if self.labels == previous.labels:
            self.labels = previous.labels
        if self.owners == previous.owners:
            self.owners = previous.owners
        metadata = getattr(self._typed, "metadata", None)
        if type(metadata) is ObjectMeta:
            force_setattr(metadata, "name", self.key[1])
            if metadata.labels:
                force_setattr(metadata, "labels", self.labels)
            force_setattr(metadata, "uid", self.uid)

    def retire(self) -> None:
        """Forget what was decoded, and keep no more: history holds a past version for long."""
        self.drop_caches()
        self._is_past = True

    def fields(self, info: ResourceInfo) -> Mapping[str, str]:
        """Return the values of the kind's selectable fields."""
        cached = self._fields
        if cached is None or cached[0] is not info:
            cached = (info, info.fields.read(self.data))
            if not self._is_past:
                self._fields = cached
        return cached[1]


def record_of(key: Key, version: int, data: bytes) -> Record:
    """Return the record of stored bytes; only the metadata is decoded."""
    metadata = _HEAD.decode(data).metadata
    return Record(
        key, version, metadata.uid, data, metadata.labels or _NO_LABELS,
        tuple(o.uid for o in metadata.owner_references or ()),
        bool(metadata.finalizers), metadata.deletion_timestamp is not None,
    )  # fmt: skip


class Known(msgspec.Struct, frozen=True, gc=False):
    """Parts of an object's read model that need not be decoded: others have them already.

    `status` is None where only the spec is known.
    """

    spec: Any
    status: Any = None


def record_typed(
    info: ResourceInfo, key: Key, version: int, obj: dict[str, Any], *, known: Known | None = None
) -> Record:
    """Return the record of a plain object; its metadata.resourceVersion is set to `version`.

    The read model is decoded too, which proves that all readers can. Raises
    msgspec.ValidationError when they can't. What is `known` of it already is taken as it is; the
    type must then be one of `has_three_parts`.
    """
    obj["metadata"]["resourceVersion"] = str(version)
    data = msgspec.json.encode(obj, order="sorted")
    spec = _shared_spec(info.type, obj) if known is None else known.spec
    if spec is None:
        typed = msgspec.json.decode(data, type=info.type)
    elif known is None or known.status is None:
        rest = _rest(info.type)(data)
        typed = info.type(metadata=rest.metadata, spec=spec, status=rest.status)
    else:
        own = msgspec.convert(obj["metadata"], ObjectMeta)
        typed = info.type(metadata=own, spec=known.spec, status=known.status)
    metadata: ObjectMeta = typed.metadata
    owners = metadata.owner_references
    return Record(
        key, version, metadata.uid, data, metadata.labels or _NO_LABELS,
        tuple([owner.uid for owner in owners]) if owners else (),
        bool(metadata.finalizers), metadata.deletion_timestamp is not None,
        known is not None, typed,
    )  # fmt: skip


def _shared_spec(type_: type[Any], obj: dict[str, Any]) -> Any:
    """Return the read model of a spec, one for all objects with the same; None where that is not
    looked for or cannot be read. Jobs of one script differ in their names alone.
    """
    if not has_three_parts(type_) or "spec" not in obj:
        return None
    text = msgspec.json.encode(obj["spec"], order="sorted")
    try:
        return _spec_of(type_, text) if len(text) <= SPEC_BYTES_MAX else None
    except msgspec.ValidationError:  # the whole object has the path of what is wrong
        return None


@lru_cache(maxsize=SPECS_CACHED_MAX)
def _spec_of(type_: type[Any], text: bytes) -> Any:
    return _spec_decoder(type_)(text)


@lru_cache(maxsize=KINDS_CACHED_MAX)
def _spec_decoder(type_: type[Any]) -> Callable[[bytes], Any]:
    """Return the decoding of a spec, kept: to find its type takes longer than to decode one."""
    part = next(each for each in msgspec.structs.fields(type_) if each.name == "spec")
    return msgspec.json.Decoder(part.type).decode


@lru_cache(maxsize=KINDS_CACHED_MAX)
def has_three_parts(type_: type[Any]) -> bool:
    """True when a read model is metadata, spec and status, and nothing else."""
    return set(type_.__struct_fields__) == _THREE_PARTS


@lru_cache(maxsize=KINDS_CACHED_MAX)
def _rest(type_: type[Any]) -> Callable[[bytes], Any]:
    """Return the decoding of a read model without its spec."""
    fields = [
        (each.name, each.type, each.default)
        if each.default_factory is msgspec.NODEFAULT
        else (each.name, each.type, msgspec.field(default_factory=each.default_factory))
        for each in msgspec.structs.fields(type_)
        if each.name != "spec"
    ]
    rest = msgspec.defstruct(f"{type_.__name__}Rest", fields, gc=False, kw_only=True)
    return msgspec.json.Decoder(rest).decode


def draft_of(key: Key, obj: dict[str, Any]) -> Record:
    """Return the record of an object that is not checked yet: only `plain` may be asked of it."""
    data = msgspec.json.encode(obj, order="sorted")
    return Record(key, 0, "", data, _NO_LABELS, (), has_finalizers=False, is_deleting=False)


class StoreEvent(msgspec.Struct, gc=False, eq=False):
    """One committed write. DELETED carries the last state under the deletion's own version."""

    type: EventType
    info: ResourceInfo
    record: Record
    previous: Record | None
    version: int
    _left: Record | None = None

    def left(self) -> Record:
        """Return the previous content under the new version, for a watch that it has left."""
        if self._left is None:
            assert self.previous is not None
            old = self.previous
            self._left = record_typed(self.info, old.key, self.version, old.plain())
        return self._left
