"""The indices and sets of arrays, decoded from their texts once for each version of the text."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api.jobs.job_array import JobArray
from fairlead.api.values.indices import Indices, parse_indices
from fairlead.model.element_sets import Members, decode_set


@dataclass(frozen=True, slots=True)
class DecodedSet:
    """A set, with the text that it was decoded from."""

    text: str
    elements: int
    members: Members

    @classmethod
    def of(cls, text: str, indices: Indices) -> DecodedSet:
        """Decode a text of the status."""
        elements = decode_set(text, indices)
        return cls(text, elements, Members(elements))


@dataclass(slots=True)
class _Known:
    uid: str
    indices: Indices
    finished: DecodedSet
    failed: DecodedSet
    stopped: DecodedSet


class ArraySets:
    """Keeps what the texts of each array mean; call `forget` for one that is gone.

    The methods raise IndicesError or ElementSetError (ValueErrors) over texts that mean nothing.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    def of(self, array: JobArray) -> tuple[Indices, DecodedSet, DecodedSet]:
        """Return the indices, the finished and the failed elements of an array."""
        key, status = array.metadata.key, array.status
        known = self._known.get(key)
        if known is None or known.uid != array.metadata.uid:
            indices = parse_indices(array.spec.indices)
            empty = DecodedSet.of("", indices)
            known = self._known[key] = _Known(array.metadata.uid, indices, empty, empty, empty)
        if known.finished.text != status.finished:
            known.finished = DecodedSet.of(status.finished, known.indices)
        if known.failed.text != status.failed:
            known.failed = DecodedSet.of(status.failed, known.indices)
        return known.indices, known.finished, known.failed

    def stopped(self, array: JobArray) -> int:
        """Return the elements that the rule for early stops stops."""
        self.of(array)
        known = self._known[array.metadata.key]
        if known.stopped.text != array.status.stopped:
            known.stopped = DecodedSet.of(array.status.stopped, known.indices)
        return known.stopped.elements

    def forget(self, key: tuple[str, str]) -> None:
        """Keep nothing of an array."""
        self._known.pop(key, None)
