"""A job as the cluster state keeps it: the object, and what is read of it once per change; and what
it counts as in the use of its team, its user and its account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.model.asks.priorities import Unresolved
from fairlead.model.asks.requests import counts
from fairlead.model.asks.teams import UnresolvedTeam
from fairlead.model.claimed.job_claims import NO_CLAIMS, Claims
from fairlead.model.claimed.job_reaches import Unusable
from fairlead.model.claimed.volumes import Reaches
from fairlead.model.gang.gangs import GangRequest, InvalidGang, JobKey
from fairlead.model.gang.phase import Phase
from fairlead.model.holdings.claims import Claim
from fairlead.model.holdings.team_use import JobUse


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


def use_of(
    entry: JobEntry, claim: Claim | None, uncertain: tuple[frozenset[str], Claim | None],
    resources: Iterable[str],
) -> JobUse:  # fmt: skip
    """Return what a job counts as, given what it holds, and of the resources that nodes offer.

    `uncertain` has the nodes and the claim of a placement whose write has an unknown outcome.
    """
    sent, sent_claim = uncertain
    if claim is None and not sent:
        waits = entry.phase is Phase.QUEUED
        return JobUse(entry.team_name, waits=waits, user=entry.user)
    nodes, amounts, gpus = sent, (), 0
    if claim is not None:
        nodes = sent.union(node for _, _, nodes in claim.roles for node in nodes)
        held = ((name, claim.amount(name)) for name in resources if counts(name))
        amounts, gpus = tuple(each for each in held if each[1]), claim.gpus
    gpus = max(gpus, sent_claim.gpus if sent_claim is not None else 0)
    return JobUse(entry.team_name, nodes, amounts, user=entry.user, gpus=gpus)
