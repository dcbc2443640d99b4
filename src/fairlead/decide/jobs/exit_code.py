"""The exit code of the program whose end ended an attempt."""

from __future__ import annotations

from fairlead.decide.jobs.failure_cause import Failure, first_failed_container


def exit_code_of(failure: Failure | None) -> int | None:
    """Return it, 128 + N for signal N; None when no program's end was the cause."""
    if failure is None or failure.member is None:
        return None
    ended = first_failed_container(failure.member.pod)
    if ended is None:
        return None
    return 128 + ended.signal if ended.signal else ended.exit_code
