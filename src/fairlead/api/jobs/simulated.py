"""Which jobs a cluster of `fairlead up` can only simulate: those that fit virtual nodes alone."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import PodTemplate


def is_simulated(job: Job) -> bool:
    """True when no member may run on this machine, the one node of such a cluster that is real.

    That node is tainted, so that nothing runs there that does not ask for it.
    """
    for role in job.spec.roles:  # noqa: SIM110 # asked for each job of a table: no generator
        if _may_be_local(role.template):
            return False
    return True


def _may_be_local(template: PodTemplate) -> bool:
    spec = template.spec
    if spec.node_selector.get(names.NODE_TYPE, "local") != "local":
        return False
    for toleration in spec.tolerations:
        is_of_all = not toleration.key and toleration.operator == "Exists"
        if is_of_all or toleration.key == names.TAINT_LOCAL:
            return True
    return False
