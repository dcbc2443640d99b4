"""What a running page leaves behind so that `fairlead web` finds it: a private file.

It has the address, and a key with which a new one-time link is asked for: who can read the file is
the user who started the page, or root. As in `app/run_file.py`, start time and boot tell the
process from a later one of its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fairlead.app.run_file import ProcessRecord, live_record, write_private


class WebRecord(ProcessRecord, frozen=True, rename="camel"):
    """The process that serves a page, where, and the key to ask it for links."""

    url: str
    key: str


def record_path(environment: Mapping[str, str], server: str, namespace: str) -> Path:
    """Return where the page of a cluster, and of a namespace of it ("": all), leaves its record:
    below $XDG_RUNTIME_DIR, else $XDG_STATE_HOME, else ~/.local/state.
    """
    bases = (environment.get("XDG_RUNTIME_DIR"), environment.get("XDG_STATE_HOME"))
    home = Path(environment.get("HOME") or Path.home())
    base = next((Path(b) for b in bases if b and b.startswith("/")), home / ".local" / "state")
    name = hashlib.sha256(f"{server}\n{namespace}".encode()).hexdigest()[:16]
    return base / "fairlead" / f"web-{name}.json"


def read_record(path: Path) -> WebRecord | None:
    """Return the record of a page that is being served now by a process of this user, or None."""
    return live_record(path, WebRecord)


def leave_record(path: Path, record: WebRecord) -> None:
    """Write the record, whole or not at all; OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, msgspec.json.encode(record))


def clear_record(path: Path, pid: int) -> None:
    """Remove the record of that process; another process's record stays."""
    record = read_record(path)
    if record is not None and record.pid == pid:
        path.unlink(missing_ok=True)
