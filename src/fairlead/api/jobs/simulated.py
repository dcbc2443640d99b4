"""Which jobs a cluster of `fairlead up` can only simulate: those that fit virtual nodes alone."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import PodTemplate


def is_simulated(job: Job) -> bool:
    """True when no member may run on this machine, the one node of such a cluster that is real.

    That node is tainted, so that nothing runs there that does not ask for it.
    """
    return all(not _may_be_local(role.template) for role in job.spec.roles)


def _may_be_local(template: PodTemplate) -> bool:
    spec = template.spec
    if spec.node_selector.get(names.NODE_TYPE, "local") != "local":
        return False
    return any(
        toleration.key == names.TAINT_LOCAL
        or (not toleration.key and toleration.operator == "Exists")
        for toleration in spec.tolerations
    )
