"""Which job a pod is of, read from the pod alone.

Apart from `claims.py`, so that commands which ask this of a pod load no columns of numbers.
"""

from __future__ import annotations

from typing import TypeAlias

from fairlead.api import names
from fairlead.api.jobs.job import owner_reference_of
from fairlead.api.kubernetes.core import Pod
from fairlead.model.pools.grouping import alone, membership_of

#: Namespace, uid of a job, and whether the job stands for pods of another tool; the uid then
#: follows the job's name, which is that of a group.
Owner: TypeAlias = tuple[str, str, bool]


def adopted_owner(key: tuple[str, str], uid: str) -> Owner:
    """Return what pods of another tool must be of to be covered by the job that stands for them."""
    return (key[0], f"{key[1]}/{uid}", True)


def owners_of(key: tuple[str, str], uid: str) -> tuple[Owner, Owner]:
    """Return what pods of a job may be of: the job itself, and the group that it stands for."""
    return (key[0], uid, False), adopted_owner(key, uid)


def owner_of_pod(pod: Pod) -> Owner | None:
    """Return the job that a pod is of; None for a pod that has to do with none.

    A pod of another tool is of the job of its group, as its tool's controller reference and
    labels say (`model/pools/grouping.py`); our labels on it only say that it was released for that
    job.
    """
    meta = pod.metadata
    controller = owner_reference_of(meta)
    if controller is not None:
        return (meta.namespace, controller.uid, False)
    uid = meta.labels.get(names.JOB_UID, "")
    key = (meta.namespace, meta.labels.get(names.JOB_NAME, ""))
    if not uid or key not in (membership_of(pod).group.key, alone(pod).group.key):
        return None
    return adopted_owner(key, uid)
