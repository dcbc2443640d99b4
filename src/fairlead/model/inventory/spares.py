"""Spares: nodes that only replace the lost nodes of running gangs.

A spare has the taint `fairlead.dev/spare:NoSchedule`. The planner admits a member there for
`Constraints.takes_spares` alone, which the repair of a gang sets: tolerations of a template have no
effect on it. The fleet controller puts the taint on nodes of its pools; a person may on any node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.api.kubernetes.core import Taint, Toleration
from fairlead.api.names import TAINT_SPARE

_EFFECT = "NoSchedule"
#: The value by which the fleet controller knows the taints that it put itself.
_OF_POOL = "pool"
_TOLERATION = Toleration(TAINT_SPARE, "Exists", "", _EFFECT)


def is_spare(taints: Iterable[Taint]) -> bool:
    """True for a node with these taints that is a spare."""
    return any(taint.key == TAINT_SPARE and taint.effect == _EFFECT for taint in taints)


def is_spare_of_pool(taints: Iterable[Taint]) -> bool:
    """True when the fleet controller made it one, so that it may end that."""
    return any(
        taint.key == TAINT_SPARE and taint.effect == _EFFECT and taint.value == _OF_POOL
        for taint in taints
    )


def with_taint(taints: Iterable[Taint], *, is_spare: bool) -> tuple[Taint, ...]:
    """Return the taints of a node once the fleet controller has made it a spare, or no spare."""
    others = tuple(t for t in taints if t.key != TAINT_SPARE or t.effect != _EFFECT)
    return (*others, Taint(TAINT_SPARE, _EFFECT, _OF_POOL)) if is_spare else others


def with_spares(own: Sequence[Toleration]) -> tuple[Toleration, ...]:
    """Return the tolerations of a pod that is pinned to its node.

    It may be a spare, by choice of the planner, or have become one since: then kube-scheduler is to
    bind the pod all the same. On any other node the toleration is without effect.
    """
    return (*own, *(() if _TOLERATION in own else (_TOLERATION,)))
