"""What `cancel`, `hold` and `release` change in the spec of a job or an array (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray


@dataclass(frozen=True, slots=True)
class ChangeVerb:
    """A verb: what it patches, how it says that it is done, and when nothing is to be done."""

    verb: str
    patch: Mapping[str, Any]
    done: str
    already: str

    def is_done(self, work: Job | JobArray) -> bool:
        """True when the spec says so already."""
        spec = work.spec
        flags = {"cancel": spec.cancel, "suspend": spec.suspend}
        return all(flags[key] is value for key, value in self.patch["spec"].items())


CANCEL = ChangeVerb("cancel", {"spec": {"cancel": True}}, "cancelled", "is being cancelled already")
HOLD = ChangeVerb("hold", {"spec": {"suspend": True}}, "held", "is held already")
RELEASE = ChangeVerb("release", {"spec": {"suspend": False}}, "released", "is not held")
