"""What goes into and comes out of the verbs of `fairlead.embedded.verbs.service`: options and
results.

Texts (selectors, versions, tokens) stay texts here, as they came over the wire; the verbs parse
them and answer 400 for what they cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.embedded.storage.records import Record
from fairlead.embedded.verbs.watch_filter import WatchFilter
from fairlead.runtime.client import EventType, Propagation


def no_warning(_text: str) -> None:
    """Drop what belongs into `Warning:` headers."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Query of a list. `limit` 0: all; `resource_version` "": latest, "0": any, else a number."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_: str = ""
    resource_version: str = ""
    resource_version_match: str = ""  # "", "Exact" or "NotOlderThan"


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Query of a watch; `resource_version` "" or "0" starts with the current state."""

    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_seconds: int | None = None
    allow_bookmarks: bool = False
    send_initial_events: bool | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of create, replace, patch and apply.

    `field_manager` is who the client says it is; `user_agent` names the owner of what it changes
    when it says nothing. `force` lets an apply take fields from other managers.
    With `keeps_managers` the body carries its `managedFields` as they are to be stored; `part`
    names the sub-resource that owners are of where it is not the one that is written.
    `field_validation` is "Ignore", "Warn" or "Strict": what to do about fields that a custom
    resource's schema does not know. `warn` receives what belongs into `Warning:` headers.
    `is_draft` stops before the object is checked, and gives it as the webhooks are to see it.
    With `reads_model` the caller asks the answer for its read model, so that stays decoded.
    """

    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""
    user_agent: str = ""
    force: bool = False
    keeps_managers: bool = False
    part: str = ""
    warn: Callable[[str], None] = no_warning
    is_draft: bool = False
    reads_model: bool = False


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a delete. None means: as the kind has it."""

    grace_period_seconds: int | None = None
    propagation: Propagation | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False
    warn: Callable[[str], None] = no_warning


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """`record` is the object's last state. `removed` False: it waits for finalizers or its node."""

    record: Record
    removed: bool


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a list, in (namespace, name) order; `continue_` is "" on the last page.

    `remaining` is None when it is not known (a selector is set) or nothing remains.
    """

    records: Sequence[Record]
    resource_version: str
    continue_: str = ""
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class WatchStart:
    """Where a watch begins: send `initial` (filtered), then what comes after `from_version`.

    The caller subscribes to the store in the same step of the loop (no await between), so that
    nothing is missed or doubled: later store events all have versions above `from_version`.
    """

    initial: Sequence[tuple[EventType, Record]]
    from_version: int
    filter: WatchFilter
