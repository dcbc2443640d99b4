"""The document of a job's record: the job as JSON, without what would make it too large.

A job may have megabytes that its user chose, and its record outlives it, so nothing that limits
jobs limits records. From a document of more than `DOCUMENT_BYTES_MAX` the fields of `_CUTS` are
left out, one group after the other until the rest fits; those that people ask for last are first.
The annotation `fairlead.dev/record-cut` of the document names the fields that are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire

#: Room for the places of a gang of ten thousand.
DOCUMENT_BYTES_MAX = 256 << 10
_SUBMITTER_LENGTH_MAX = 1_024
_POD = "spec.roles[].template"
_CONTAINERS = (f"{_POD}.spec.containers[]", f"{_POD}.spec.initContainers[]")
_CUTS: tuple[tuple[str, ...], ...] = (
    ("metadata.annotations", f"{_POD}.metadata.annotations"),
    tuple(f"{each}.env[].value" for each in _CONTAINERS),
    tuple(f"{each}.{field}" for each in _CONTAINERS for field in ("command", "args")),
    tuple(f"{each}.env" for each in _CONTAINERS),
    ("metadata.labels", "metadata.finalizers", "metadata.ownerReferences", f"{_POD}.metadata"),
    (f"{_POD}.spec.volumes", f"{_POD}.spec.initContainers", f"{_POD}.spec.affinity"),
    (f"{_POD}.spec",),
    ("status.nomination", "status.memberRestarts", "status.attempts[].nodesLost"),
    ("status.placement",),
    ("spec", "status"),
)


def document_of(job: Job, bytes_max: int = DOCUMENT_BYTES_MAX) -> str:
    """Return the job as JSON, of at most `bytes_max` bytes where names and uid fit into them."""
    document: dict[str, Any] = {"apiVersion": names.API_VERSION, "kind": "Job", **to_wire(job)}
    encoded = msgspec.json.encode(document)
    cut: list[str] = []
    for paths in _CUTS:
        if len(encoded) <= bytes_max:
            break
        for path in paths:
            is_cut = [holder.pop(name, None) for holder, name in _places(document, path.split("."))]
            if any(each is not None for each in is_cut):
                cut.append(path)
        document["metadata"]["annotations"] = _annotations(job, cut)
        encoded = msgspec.json.encode(document)
    return encoded.decode()


def short_text(text: str, length_max: int) -> str:
    """Return the text, or its beginning and `...`."""
    return text if len(text) <= length_max else text[: length_max - 3] + "..."


def _annotations(job: Job, cut: Sequence[str]) -> dict[str, str]:
    submitter = job.metadata.annotations.get(names.SUBMITTED_BY, "")
    kept = {names.SUBMITTED_BY: short_text(submitter, _SUBMITTER_LENGTH_MAX)} if submitter else {}
    return {**kept, names.RECORD_CUT: ", ".join(cut)}


def _places(at: Any, steps: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield what holds the field at the end of a path, wherever it is there."""
    name, rest = steps[0].removesuffix("[]"), steps[1:]
    if not isinstance(at, dict) or name not in at:
        return
    if not rest:
        yield at, name
        return
    below: Any = at[name]
    for each in below if steps[0].endswith("[]") else (below,):
        yield from _places(each, rest)
