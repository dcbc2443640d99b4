"""Finds programs that serve images of a node to its peers: which nodes run one.

They are known by the labels of their charts: spegel's `app.kubernetes.io/name`, and Dragonfly's
`component`, with its name in the path of an image. The labels of another one are
given by the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.cli.connection.transport import Api

SPEGEL, DRAGONFLY = "spegel", "Dragonfly"
_SELECTORS = {
    SPEGEL: "app.kubernetes.io/name=spegel",
    DRAGONFLY: "component in (client,dfdaemon)",
}
_RUNNING, _DAEMON_SET = "Running", "DaemonSet"


def peers_of(api: Api, selector: str = "") -> dict[str, frozenset[str]]:
    """Return the nodes on which a pod of a program runs, by program; none for one that is not
    there. `selector` names the pods of another one. Forbidden.
    """
    found = {
        program: frozenset(_nodes(program, api.list(PODS, label_selector=labels)))
        for program, labels in ({selector: selector} if selector else _SELECTORS).items()
    }
    return {program: nodes for program, nodes in found.items() if nodes}


def _nodes(program: str, pods: Iterable[Pod]) -> Iterator[str]:
    for pod in pods:
        is_daemon = any(owner.kind == _DAEMON_SET for owner in pod.metadata.owner_references)
        images = (each.image for each in pod.spec.containers)
        is_named = program != DRAGONFLY or any("dragonfly" in image for image in images)
        if pod.spec.node_name and pod.status.phase == _RUNNING and is_daemon and is_named:
            yield pod.spec.node_name
