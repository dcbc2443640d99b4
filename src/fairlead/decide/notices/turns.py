"""Whose turn it is to send: bounds of each namespace and of all, and turns by namespace (pure).

A namespace with ten thousand notices delays its own: beyond its rate and its tries at a time its
jobs wait here. Where all turns are taken, namespaces get the free ones by rotation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from fairlead.decide.notices.policy import NoticesPolicy
from fairlead.decide.verdict import ObjectKey


class _Tokens:
    """A bucket that is full with what a minute allows."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._size = self._left = float(per_minute)
        self._per_second = per_minute / 60.0
        self._at = now

    def fill(self, now: float) -> None:
        """Take in the time that has passed; none where the clock was set back."""
        self._left += max(0.0, now - self._at) * self._per_second
        self._left = min(self._left, self._size)
        self._at = now

    @property
    def is_full(self) -> bool:
        return self._left >= self._size

    def next_at(self, now: float) -> float:
        """Return when there is one to take; `now` for at once."""
        missing = 1.0 - self._left
        return now if missing <= 1e-9 else now + missing / self._per_second

    def take(self) -> None:
        self._left -= 1.0


class Turns:
    """The turns of one process. A job holds at most one."""

    def __init__(self, policy: NoticesPolicy) -> None:
        self._policy = policy
        self._all = _Tokens(policy.per_minute, 0.0)
        self._tokens: dict[str, _Tokens] = {}
        self._held: dict[ObjectKey, None] = {}
        #: Turns held, by namespace.
        self._counts: dict[str, int] = {}
        #: By namespace, in the order of the rotation: jobs that wait.
        self._waiting: dict[str, OrderedDict[ObjectKey, None]] = {}

    def take(self, key: ObjectKey, now: float) -> bool:
        """Return whether the job has a turn; without one it waits for it (`granted`)."""
        if key in self._held:
            return True
        if not self._waiting and self._free_at(key[0], now) <= now:
            self._hold(key)
            return True
        self._waiting.setdefault(key[0], OrderedDict()).setdefault(key)
        return False

    def release(self, key: ObjectKey) -> None:
        """Give the turn of a job back, and its place among those that wait; harmless without."""
        if key in self._held:
            del self._held[key]
            self._counts[key[0]] -= 1
            if not self._counts[key[0]]:
                del self._counts[key[0]]
        queue = self._waiting.get(key[0])
        if queue is not None and key in queue:
            del queue[key]
            if not queue:
                del self._waiting[key[0]]

    def granted(self, now: float) -> Iterator[ObjectKey]:
        """Yield the waiting jobs that have a turn now, one of each namespace after the other."""
        self._drop_full(now)
        stuck = 0
        while self._waiting and stuck < len(self._waiting):
            namespace = next(iter(self._waiting))
            queue = self._waiting[namespace] = self._waiting.pop(namespace)  # to the end
            if self._free_at(namespace, now) > now:
                stuck += 1
                continue
            stuck = 0
            key, _ = queue.popitem(last=False)
            if not queue:
                del self._waiting[namespace]
            self._hold(key)
            yield key

    def wake_at(self, now: float) -> float | None:
        """Return when time alone gives a waiting job its turn; None: a release must."""
        times = [self._free_at(namespace, now) for namespace in self._waiting]
        return min((at for at in times if at != float("inf")), default=None)

    def _hold(self, key: ObjectKey) -> None:
        self._held[key] = None
        self._counts[key[0]] = self._counts.get(key[0], 0) + 1
        self._all.take()
        self._tokens[key[0]].take()

    def _free_at(self, namespace: str, now: float) -> float:
        """Return when a job of a namespace may begin; infinite until a turn is given back."""
        policy = self._policy
        self._all.fill(now)
        tokens = self._tokens.get(namespace)
        if tokens is None:
            tokens = self._tokens[namespace] = _Tokens(policy.namespace_per_minute, now)
        tokens.fill(now)
        if len(self._held) >= policy.sending_max:
            return float("inf")
        if self._counts.get(namespace, 0) >= policy.namespace_sending_max:
            return float("inf")
        return max(self._all.next_at(now), tokens.next_at(now))

    def _drop_full(self, now: float) -> None:
        """Drop buckets that say no more than a new one."""
        for namespace in list(self._tokens):
            tokens = self._tokens[namespace]
            tokens.fill(now)
            if tokens.is_full and namespace not in self._waiting:
                del self._tokens[namespace]
