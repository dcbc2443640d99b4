"""Keep members of different attempts of a job from working on one checkpoint directory.

When a node is lost, the gang starts again elsewhere, although members on that node may still run:
a frozen kubelet or a cut network stops no process. They share one thing with the new attempt, the
checkpoint directory, so the lock is there:

    .fairlead/<job uid>/current     the number of the latest attempt that has begun
    .fairlead/<job uid>/member-A-R  rank R of attempt A; what it holds changes every RENEW_SECONDS

A member writes its attempt into `current` and waits until no member of an earlier attempt is left,
which is one that has removed its file or has not renewed it for LEASE_SECONDS, by this member's
clock. A member that reads a later attempt in `current` ends at once. Files are opened to be read,
never only listed or looked at: that is what network file systems keep consistent.

docs/design/jobs.md, "The lock of an attempt", says what this guarantees, and what it cannot.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: This member was stopped because another one ended (EX_TEMPFAIL of sysexits.h).
EXIT_STOPPED = 75
RENEW_SECONDS = 2.0
LEASE_SECONDS = 10.0
POLL_SECONDS = 0.2
#: Set for the programs of a member whose lock is held for them.
HELD = "FAIRLEAD_LOCK_HELD"


class Superseded(Exception):
    """A later attempt has begun: this member must not go on."""


class AttemptLock:
    """The lock of one member of an attempt on a directory; instants are of any steady clock."""

    def __init__(self, directory: Path, uid: str, attempt: int, rank: int) -> None:
        self._directory = directory / ".fairlead" / uid
        self._attempt = attempt
        self._own = self._directory / f"member-{attempt}-{rank}"
        self._renewals = 0
        #: What members of earlier attempts hold, and since when.
        self._seen: dict[Path, tuple[bytes, float]] = {}

    @classmethod
    def of_this_member(cls) -> AttemptLock | None:
        """Return the lock of this process's job environment; None without one, or if it is held."""
        environ = os.environ
        needed = ("FAIRLEAD_CHECKPOINT_DIR", "FAIRLEAD_JOB_UID", "FAIRLEAD_ATTEMPT", "RANK")
        if HELD in environ or not all(environ.get(name) for name in needed):
            return None
        directory, uid, attempt, rank = (environ[name] for name in needed)
        return cls(Path(directory), uid, int(attempt), int(rank))

    def begin(self) -> None:
        """Say that this attempt has begun; Superseded if a later one has, OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._directory / "current", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            latest = _number(os.pread(descriptor, 32, 0))
            if latest > self._attempt:
                raise Superseded
            if latest < self._attempt:
                os.pwrite(descriptor, b"%-20d\n" % self._attempt, 0)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.renew()

    def renew(self) -> None:
        """Show that this member is alive; Superseded if a later attempt has begun, OSError."""
        if _number((self._directory / "current").read_bytes()) > self._attempt:
            raise Superseded
        self._renewals += 1
        self._own.write_text(f"{os.getpid()} {self._renewals}")

    def has_earlier_members(self, now: float) -> bool:
        """True while a member of an earlier attempt may be alive; OSError."""
        found: dict[Path, tuple[bytes, float]] = {}
        for path in self._directory.glob("member-*-*"):
            attempt = _number(path.name.split("-")[1].encode())
            if attempt >= self._attempt:
                continue
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            before = self._seen.get(path)
            is_same = before is not None and before[0] == content
            found[path] = before if is_same and before is not None else (content, now)
        self._seen = found
        for path, (_, since) in found.items():
            if now - since >= LEASE_SECONDS:
                path.unlink(missing_ok=True)
        return any(now - since < LEASE_SECONDS for _, since in found.values())

    def end(self) -> None:
        """Show that this member has ended."""
        try:
            self._own.unlink(missing_ok=True)
        except OSError:
            return


def _number(text: bytes) -> int:
    stripped = text.strip()
    return int(stripped) if stripped.isdigit() else 0


def acquire(lock: AttemptLock, superseded: Callable[[], None]) -> None:
    """Begin the attempt, wait for members of earlier ones, and renew the lock in a thread.

    `superseded` is called, in that thread, when a later attempt begins; Superseded is raised when
    one has begun already. A directory that cannot be written to locks nothing: a word on standard
    error says so, since a training run does not fail over it.
    """
    try:
        lock.begin()
        has_waited = False
        while lock.has_earlier_members(time.monotonic()):
            if not has_waited:
                sys.stderr.write("fairlead: waiting for the end of an earlier attempt's members\n")
            has_waited = True
            time.sleep(POLL_SECONDS)
            lock.renew()
    except OSError as error:
        sys.stderr.write(f"fairlead: the checkpoint directory is not locked: {error}\n")
        return
    threading.Thread(target=_renew, args=(lock, superseded), daemon=True).start()


def _renew(lock: AttemptLock, superseded: Callable[[], None]) -> None:
    while True:
        time.sleep(RENEW_SECONDS)
        try:
            lock.renew()
        except Superseded:
            superseded()
            return
        except OSError:
            continue
