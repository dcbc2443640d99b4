"""The signal that a batch script asks for before its end: `--signal=[B:]SIG@SECONDS` (pure).

It comes SECONDS before the time limit. Where a job is asked to end earlier (preempted, drained,
held, queued again) it comes at once, and SIGTERM after SECONDS, as with Slurm's setting
`PreemptParameters=send_user_signal` (the manual of slurm.conf). So pods of such a script have a
grace period of SECONDS and KILL_SECONDS.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

#: Seconds from SIGTERM to SIGKILL (KillWait of slurm.conf).
KILL_SECONDS = 30
#: Between the signal and SIGTERM at an earlier end: the controllers allow no longer grace period.
LEAD_SECONDS_MAX = 270
#: Where only the signal is named (the manual of sbatch).
_SECONDS_DEFAULT = 60


@dataclass(frozen=True, slots=True)
class EndSignal:
    """A signal: to the script alone or to all tasks, so many seconds before an end."""

    number: int
    before: int
    is_to_script: bool

    @property
    def lead_seconds(self) -> int:
        """Seconds between the signal and SIGTERM at an end that nothing foretold."""
        return min(self.before, LEAD_SECONDS_MAX)

    @property
    def grace_seconds(self) -> int:
        """The grace period of the script's pods."""
        return self.lead_seconds + KILL_SECONDS


def end_signal(text: str) -> EndSignal:
    """Return the signal of [B:]SIG[@SECONDS]; ValueError or KeyError for none."""
    target, _, rest = text.rpartition(":")
    name, _, before = rest.partition("@")
    number = int(name) if name.isdecimal() else signal.Signals[f"SIG{name.removeprefix('SIG')}"]
    return EndSignal(number, int(before or _SECONDS_DEFAULT), "B" in target)
