"""How long a pod may take to end once Fairlead deletes it."""

from __future__ import annotations

from fairlead.api.kubernetes.core import Pod


def bounded_grace(pod: Pod, most: int) -> int | None:
    """Return the grace period, in seconds, of a deletion; None: the pod's own.

    Its author chooses that, and a program that ignores SIGTERM would keep its node as long: past
    its time limit, from a job of higher priority, and from the team whose node it is.
    """
    own = pod.spec.termination_grace_period_seconds
    return most if own is not None and own > most else None
