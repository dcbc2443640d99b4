"""Whose a new job is, and whether its team and user may have one more (pure).

A job's user is the annotation `fairlead.dev/submitted-by`. Of a person, and of a service account,
admission writes the authenticated name there and refuses any other, and any change of it; so a
limit of each user holds. Who acts for others (the cluster's components, its administrators and
Fairlead itself) says it: what they write stands, as in the embedded cluster, where every user is
an administrator. Where admission was not asked the annotation is what its author wrote. The limits
of the team hold all the same, since the namespace decides on the team.

The count may be a moment old, and two requests at a time may both pass: the planner keeps those
that are too many out of the queue (`decide/placement/waiting/job_limits.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from fairlead.api.causes import cause, invalid
from fairlead.api.jobs.job import JobSpec
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.status import StatusCause
from fairlead.decide.admission.teams import MASTERS, RequestSender
from fairlead.decide.words import plural
from fairlead.model.asks.requests import RequestReader
from fairlead.model.asks.teams import TeamTable
from fairlead.model.gang.gangs import gang_of, gpus_of
from fairlead.model.gang.job_users import SERVICE_ACCOUNT, counted_user
from fairlead.model.holdings.team_use import Account

Obj: TypeAlias = Mapping[str, Any]
#: Returns the unfinished jobs of an account.
Count: TypeAlias = Callable[[Account], int]

FIELD = f"metadata.annotations[{SUBMITTED_BY}]"
_ANONYMOUS = "system:anonymous"


def acts_for_others(user: RequestSender | None, own_namespace: str) -> bool:
    """True for who may say whose a job is; None is the embedded cluster's one user."""
    if user is None or MASTERS in user.groups:
        return True
    if user.name.startswith(SERVICE_ACCOUNT):
        return user.name.split(":")[2] in ("kube-system", own_namespace)
    return user.name.startswith("system:") and user.name != _ANONYMOUS


def member_of(user: RequestSender | None, own_namespace: str) -> RequestSender | None:
    """Return the user whose membership in a team counts; None where it does not."""
    return None if acts_for_others(user, own_namespace) else user


def may_administer(user: RequestSender | None, own_namespace: str) -> bool:
    """True for who may set in jobs what decides on others: Fairlead itself and administrators."""
    return user is None or user.is_administrator or acts_for_others(user, own_namespace)


def submitter_to_set(
    new: Obj, old: Obj | None, user: RequestSender | None, own_namespace: str
) -> str | None:
    """Return the user to write on a job; None when what it says stays."""
    if user is None or acts_for_others(user, own_namespace):
        return None
    wanted = user.name if old is None else submitter_of(old)
    return None if submitter_of(new) == wanted else wanted


def submitter_causes(
    new: Obj, old: Obj | None, user: RequestSender | None, own_namespace: str
) -> Iterator[StatusCause]:
    """Yield what is wrong with the user that a job says; one that says none is left to the planner,
    which counts it with all others of unknown users.
    """
    if user is None or acts_for_others(user, own_namespace):
        return
    said = submitter_of(new)
    if old is None and said not in ("", user.name):
        yield invalid(FIELD, said, f"you are {user.name}: leave it out")
    elif old is not None and said != submitter_of(old):
        yield invalid(FIELD, said, "whose a job is does not change")


def limit_causes(
    new: Obj, teams: TeamTable, namespace: str, count: Count | None
) -> Iterator[StatusCause]:
    """Yield the limits that a new job would exceed for as long as nothing ends, or for ever.

    Without `count` only what it asks for itself is judged. Groups of other tools' pods exist
    already: their jobs are not refused, and wait by the same limits (`decide/placement`).
    """
    spec = new.get("spec")
    if not teams.has_job_limits or not isinstance(spec, Mapping) or spec.get("adopts"):
        return
    claim: object = spec.get("team", "")
    name = teams.resolve(claim, namespace) if isinstance(claim, str) else ""
    team = teams.get(name) if isinstance(name, str) and name else None
    if team is None:
        return
    of_user = Account(team.metadata.name, counted_user(submitter_of(new)))
    for account, limits in (
        (of_user, team.spec.user_limits),
        (Account(of_user.team), team.spec.limits),
    ):
        if limits.gpus is not None:
            gpus = _gpus(spec)
            if gpus > limits.gpus:
                why = f"asks for {plural(gpus, 'GPU')}; {account} may hold {limits.gpus}"
                yield cause("Forbidden", "spec.roles", f"Forbidden: {why}")
        if limits.submitted is not None and count is not None:
            has = count(account)
            if has >= limits.submitted:
                why = f"{account} has {plural(has, 'unfinished job')}, of at most "
                advice = "wait until one of them ends, or cancel one (fairlead cancel JOB)"
                yield cause(
                    "Forbidden", "spec.team", f"Forbidden: {why}{limits.submitted}: {advice}"
                )


def submitter_of(job: Obj) -> str:
    """Return the user that a job as plain JSON says."""
    return annotation_of(job, SUBMITTED_BY)


def annotation_of(job: Obj, key: str) -> str:
    """Return an annotation of a job as plain JSON; "" where there is none."""
    metadata = job.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    said = annotations.get(key, "") if isinstance(annotations, Mapping) else ""
    return said if isinstance(said, str) else ""


def _gpus(spec: Obj) -> int:
    try:
        return gpus_of(gang_of(msgspec.convert(spec, JobSpec), RequestReader()))
    except msgspec.ValidationError:
        return 0
