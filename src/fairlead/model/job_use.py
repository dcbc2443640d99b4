"""What one job counts as in the use of its team, its user and its account."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.gang.phase import Phase
from fairlead.model.holdings.claims import Claim
from fairlead.model.holdings.team_use import JobUse
from fairlead.model.inventory.nodes import counts
from fairlead.model.job_entry import JobEntry


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
