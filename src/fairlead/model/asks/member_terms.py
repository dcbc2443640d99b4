"""Which labels the members of a job have, and which terms about other pods; see `neighbours`."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.model.asks.neighbours import Term, rules_of, states_rules
from fairlead.model.asks.requests import RequestError


def member_labels(job: Job, role: Role) -> dict[str, str]:
    """Return the labels that all members of a role have: not index, rank and attempt."""
    return {
        **role.template.metadata.labels,
        names.JOB_NAME: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
        names.ROLE: role.name,
    }


def job_terms(job: Job) -> tuple[Term, ...]:
    """Return the terms of all roles; none of a role that cannot be read."""
    found: list[Term] = []
    for role in job.spec.roles:
        if not states_rules(role.template.spec):
            continue
        try:
            labels = member_labels(job, role)
            found += rules_of(role.template.spec, job.metadata.namespace, labels).terms
        except RequestError:
            continue
    return tuple(found)
