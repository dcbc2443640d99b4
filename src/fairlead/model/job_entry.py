"""A job as the cluster state keeps it: the object, and what is read of it once per change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.model.asks.priorities import Unresolved
from fairlead.model.asks.teams import UnresolvedTeam
from fairlead.model.claimed.job_claims import NO_CLAIMS, Claims
from fairlead.model.claimed.job_reaches import Unusable
from fairlead.model.claimed.volumes import Reaches
from fairlead.model.gang.gangs import GangRequest, InvalidGang, JobKey
from fairlead.model.gang.phase import Phase


class JobEntry(msgspec.Struct, frozen=True):
    """A job, what its gang asks for, and its priority and team, or why it has none."""

    job: Job
    gang: GangRequest | InvalidGang
    priority: int | Unresolved
    team: str | UnresolvedTeam
    #: How long an attempt may hold its nodes from its start; infinity without a limit.
    hold_seconds: float
    #: When it gives its nodes back at the latest; None when nothing says it.
    ends_at: float | None
    phase: Phase
    #: The user as whose it counts, as admission has recorded it; "" where that is not known.
    user: str
    #: What the gang was read with: the versions of teams and terms, whether there are windows, and
    #: the version of resources that devices serve.
    version: tuple[int, int, bool, int] = (0, 0, False, 0)
    #: Its PriorityClasses let it preempt jobs of lower priority.
    may_preempt: bool = True
    #: The claims that it names, by role, and from where they can be reached.
    claims: Claims = NO_CLAIMS
    reaches: Reaches | Unusable = ()

    @property
    def team_name(self) -> str:
        """The team; "" where it has none, or cannot have the one that it names."""
        return self.team if isinstance(self.team, str) else ""


#: Called with a job that changed and its entry; None when the job is gone.
JobObserver: TypeAlias = Callable[[JobKey, JobEntry | None], None]
