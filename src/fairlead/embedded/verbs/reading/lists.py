"""The reading verbs: get, list in consistent pages, and where a watch begins.

A continue token names the snapshot's version and the last key seen. The snapshot is rebuilt
from the store's history window; once it has left the window the token is answered with 410 and
a new token that goes on from the latest state (apiserver `pkg/storage/continue.go`).
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from fairlead.api.kubernetes.selectors import Selector, SelectorError, parse_fields, parse_labels
from fairlead.api.status import BadRequest
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Key, Record
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import FieldProblem, ProblemType
from fairlead.embedded.verbs.options import ListOptions, ListPage, WatchOptions, WatchStart
from fairlead.embedded.verbs.watch_filter import WatchFilter
from fairlead.runtime.client import EventType

_LATEST = -1  # the version in a token that goes on from the latest state
_TOO_OLD = "the continue token is too old for a consistent list: its snapshot is gone"


class _Token(msgspec.Struct, frozen=True):
    v: str
    rv: int
    start: str


def selection(
    info: ResourceInfo, namespace: str, label_selector: str, field_selector: str
) -> WatchFilter:
    """Parse selectors; BadRequest names the term that is wrong or the field that is not known."""
    try:
        labels = parse_labels(label_selector)
        fields = parse_fields(field_selector)
    except SelectorError as error:
        raise BadRequest(str(error)) from None
    for requirement in fields.requirements:
        if requirement.key not in info.selectable:
            known = ", ".join(sorted(info.selectable))
            raise BadRequest(
                f'Unable to find "{info.api_version}, Resource={info.plural}" that match '
                f'label selector "{label_selector}", field selector "{field_selector}": '
                f"field label not supported: {requirement.key} (supported: {known})"
            )
    return WatchFilter(info, namespace if info.namespaced else "", labels, fields)


def get(context: Context, info: ResourceInfo, namespace: str, name: str) -> Record:
    """Return the object; NotFound."""
    record = context.store.get(info.name, (namespace if info.namespaced else "", name))
    if record is None:
        raise errors.not_found(info, name)
    return record


def list_page(
    context: Context, info: ResourceInfo, namespace: str, options: ListOptions
) -> ListPage:
    """Return one page in (namespace, name) order.

    BadRequest and Invalid for options that are wrong or don't go together, Expired for a snapshot
    that is forgotten, Timeout for a version that does not exist yet.
    """
    wanted = selection(info, namespace, options.label_selector, options.field_selector)
    _check_match(options)
    after: Key | None = None
    if options.continue_:
        version, after = _parse_token(options)
    else:
        version = _snapshot_version(context, options)
    if version == _LATEST:
        version = context.store.version
        records = _candidates(context, wanted)
    else:
        found = context.store.snapshot(info.name, version, wanted.namespace)
        if found is None:
            if after is None:
                raise errors.expired(f"The provided resource version is too old: {version}")
            raise errors.expired(_TOO_OLD, _format_token(_LATEST, after))
        records = found
    start = bisect_right(records, after, key=_key) if after is not None else 0
    return _page(wanted, records, start, limit=max(0, options.limit), version=version)


def _key(record: Record) -> Key:
    return record.key


def _candidates(context: Context, wanted: WatchFilter) -> Sequence[Record]:
    """The namespace's objects, or only the one that a field selector names."""
    name = _exact(wanted.fields, "metadata.name")
    namespace = wanted.namespace or _exact(wanted.fields, "metadata.namespace")
    if name is not None and (namespace or not wanted.info.namespaced):
        record = context.store.get(wanted.info.name, (namespace or "", name))
        return [record] if record else []
    return context.store.records(wanted.info.name, namespace or "")


def _exact(fields: Selector, key: str) -> str | None:
    for requirement in fields.requirements:
        if requirement.key == key and requirement.operator.value == "in":
            return requirement.values[0]
    return None


def _page(
    wanted: WatchFilter, records: Sequence[Record], start: int, *, limit: int, version: int
) -> ListPage:
    filtered = wanted.has_selector
    if not limit:
        rest = records[start:] if start else records
        chosen = [r for r in rest if wanted.selects(r)] if filtered else rest
        return ListPage(chosen, str(version))
    page: list[Record] = []
    for i in range(start, len(records)):
        if filtered and not wanted.selects(records[i]):
            continue
        if len(page) == limit:
            remaining = None if filtered else len(records) - i
            return ListPage(page, str(version), _format_token(version, page[-1].key), remaining)
        page.append(records[i])
    return ListPage(page, str(version))


def _parse_token(options: ListOptions) -> tuple[int, Key]:
    if options.resource_version not in ("", "0"):
        raise BadRequest("specifying resource version is not allowed when using continue")
    try:
        padding = "=" * (-len(options.continue_) % 4)
        raw = base64.b64decode(options.continue_ + padding, altchars=b"-_", validate=True)
        token = msgspec.json.decode(raw, type=_Token)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"continue key is not valid: {error}") from None
    namespace, slash, name = token.start.partition("/")
    if token.v != "meta.k8s.io/v1" or not slash or token.rv < _LATEST:
        raise BadRequest("continue key is not valid: not a token of this server")
    return token.rv, (namespace, name)


def _format_token(version: int, after: Key) -> str:
    token = _Token("meta.k8s.io/v1", version, f"{after[0]}/{after[1]}")
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).rstrip(b"=").decode()


def parse_version(text: str) -> int:
    """Return the number of a resourceVersion; BadRequest when it is none."""
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadRequest(f'resourceVersion: Invalid value: "{text}": must be a number')
    return int(text)


def _snapshot_version(context: Context, options: ListOptions) -> int:
    if options.resource_version in ("", "0"):
        return _LATEST
    asked = parse_version(options.resource_version)
    if asked > context.store.version:
        raise errors.version_in_future(asked, context.store.version)
    match = options.resource_version_match
    # Without a match, a version with a limit means exactly that version (API concepts).
    exact = match == "Exact" or (not match and options.limit > 0)
    return asked if exact else _LATEST


def _check_match(options: ListOptions) -> None:
    match = options.resource_version_match
    if not match:
        return
    field, forbidden = "resourceVersionMatch", ProblemType.FORBIDDEN
    found: list[FieldProblem] = []
    if not options.resource_version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        found.append(FieldProblem(field, forbidden, why))
    if options.continue_:
        why = "resourceVersionMatch is forbidden when continue is provided"
        found.append(FieldProblem(field, forbidden, why))
    if found:
        raise errors.invalid_options("ListOptions", *found)
    if match not in ("Exact", "NotOlderThan"):
        why = 'supported values: "Exact", "NotOlderThan"'
        raise errors.invalid_options(
            "ListOptions", FieldProblem(field, ProblemType.NOT_SUPPORTED, why, match)
        )
    if match == "Exact" and options.resource_version == "0":
        why = 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
        raise errors.invalid_options("ListOptions", FieldProblem(field, forbidden, why))


def _check_initial_events(options: WatchOptions) -> None:
    """KEP-3157: the parameter goes with resourceVersionMatch=NotOlderThan, and only with that."""
    field, forbidden = "resourceVersionMatch", ProblemType.FORBIDDEN
    match = options.resource_version_match
    if options.send_initial_events is None:
        if match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise errors.invalid_options("ListOptions", FieldProblem(field, forbidden, why))
    elif not match:
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise errors.invalid_options("ListOptions", FieldProblem(field, forbidden, why))
    elif match != "NotOlderThan":
        why = 'supported values: "NotOlderThan"'
        raise errors.invalid_options(
            "ListOptions", FieldProblem(field, ProblemType.NOT_SUPPORTED, why, match)
        )


def watch_start(
    context: Context, info: ResourceInfo, namespace: str, options: WatchOptions
) -> WatchStart:
    """Return where a watch begins; Expired when its version has left the history window."""
    wanted = selection(info, namespace, options.label_selector, options.field_selector)
    _check_initial_events(options)
    current = context.store.version
    starts_now = options.resource_version in ("", "0")
    if options.send_initial_events is False and starts_now:
        return WatchStart((), current, wanted)
    asked = 0 if starts_now else parse_version(options.resource_version)
    if asked > current:
        raise errors.version_in_future(asked, current)
    if starts_now or options.send_initial_events:
        records = _candidates(context, wanted)
        chosen = records if wanted.selects_all else filter(wanted.selects, records)
        initial = [(EventType.ADDED, record) for record in chosen]
        return WatchStart(initial, current, wanted)
    events = context.store.history(info.name, asked)
    if events is None:
        raise errors.expired(f"too old resource version: {asked} ({current})")
    seen = [item for event in events if (item := wanted.transform(event)) is not None]
    return WatchStart(seen, current, wanted)
