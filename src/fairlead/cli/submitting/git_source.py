"""The git repository that a job is submitted from: its commit, and what differs from it.

git is asked, read-only, with a time limit, and without programs that the repository's configuration
names for that (fsmonitor, external diffs, text conversion). Recorded are the commit, the branch,
and the names of followed files that were changed; what was changed in them only where that is asked
for. Never recorded: files that git does not follow or ignores, remotes (their URLs may hold
passwords), the configuration, and files by whose names keys and passwords are kept.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from fairlead.api.jobs.run_facts import DIFF_BYTES_MAX, FILES_MAX, RunSource
from fairlead.cli.job_request.flag_groups.run_flags import GitRecord

SECONDS_MAX = 5.0
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
_DIFF = ("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color")
#: Names of files that hold secrets, as git's patterns.
_SECRET = (
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", ".env", ".env.*", "*.env",
    ".netrc", ".npmrc", ".pypirc", ".htpasswd", "id_rsa*", "id_ed25519*", "id_ecdsa*",
    "*credential*", "*secret*", "*password*", "*token*", "kubeconfig*",
)  # fmt: skip


def git_source(directory: str, record: GitRecord, note: Callable[[str], None]) -> RunSource | None:
    """Return the code of a directory; None where nothing is asked, git is absent, or it is no
    repository with a commit. `note` is given what could not be recorded.
    """
    if record is GitRecord.OFF:
        return None
    head = _asked(directory, "rev-parse", "--verify", "--quiet", "HEAD")
    if not head:
        if record is GitRecord.DIFF:
            note("note: no commit is recorded: there is no git repository with one here")
        return None
    branch = _asked(directory, "symbolic-ref", "--quiet", "--short", "HEAD") or b""
    listed = _asked(directory, "diff", "HEAD", "--name-only", "-z", "--no-ext-diff")
    if listed is None:
        note("note: git did not say in time which files were changed; only the commit is recorded")
    files = [_text(each) for each in (listed or b"").split(b"\0") if each]
    diff = b""
    if record is GitRecord.DIFF and files:
        hidden = [f":(top,exclude,icase,glob)**/{pattern}" for pattern in _SECRET]
        diff = _asked(directory, *_DIFF, "--", ":(top)", *hidden) or b""
        if len(diff) > DIFF_BYTES_MAX:
            note(f"note: the difference to the commit has {len(diff):,} bytes and is not recorded; "
                 f"at most {DIFF_BYTES_MAX:,} are")  # fmt: skip
            diff = b""
    return RunSource(
        _text(head).strip()[:64], _text(branch).strip()[:200],
        tuple(each[:200] for each in files[:FILES_MAX]), _text(diff),
    )  # fmt: skip


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _asked(directory: str, *words: str) -> bytes | None:
    """Return what git answers; None where it is absent, fails, or takes too long."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            [*_GIT, *words], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
