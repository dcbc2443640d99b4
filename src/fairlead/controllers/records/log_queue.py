"""Pods whose logs, or what they used, wait to be kept: namespaces take turns, and share the room.

A namespace in which thousands of pods end at once delays no other's logs: the next pod is the
oldest of the namespace whose turn it is. When the queue is full, the namespace that has most in it
loses its oldest.
"""

from __future__ import annotations

from fairlead.api.kubernetes.core import Pod


class LogQueue:
    """Pods by uid, at most `count_max`."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._count = 0
        #: By namespace, the one whose turn is next first.
        self._waiting: dict[str, dict[str, Pod]] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._waiting.get(pod.metadata.namespace, {})

    def add(self, pod: Pod) -> Pod | None:
        """Add a pod; returns the one that made room, None where there was some."""
        self._waiting.setdefault(pod.metadata.namespace, {})[pod.metadata.uid] = pod
        self._count += 1
        if self._count <= self._count_max:
            return None
        fullest = max(self._waiting, key=lambda each: (len(self._waiting[each]), each))
        oldest = next(iter(self._waiting[fullest].values()))
        self.discard(oldest)
        return oldest

    def pop(self) -> Pod:
        """Remove the next pod and return it; KeyError when none waits."""
        namespace = next(iter(self._waiting), "")
        pods = self._waiting.pop(namespace)
        pod = pods.pop(next(iter(pods)))
        if pods:
            self._waiting[namespace] = pods
        self._count -= 1
        return pod

    def discard(self, pod: Pod) -> None:
        """Remove a pod that waits."""
        namespace = pod.metadata.namespace
        pods = self._waiting.get(namespace, {})
        if pods.pop(pod.metadata.uid, None) is None:
            return
        self._count -= 1
        if not pods:
            del self._waiting[namespace]
