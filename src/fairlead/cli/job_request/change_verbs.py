"""What `cancel`, `hold`, `release` and `priority` write into a job or an array (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray, JobArraySpec


@dataclass(frozen=True, slots=True)
class ChangeVerb:
    """A verb: what it patches, how it says that it is done, and when nothing is to be done."""

    verb: str
    patch: Mapping[str, Any]
    done: str
    already: str
    #: What it does, where the command is no verb.
    infinitive: str = ""
    #: It is a field of the jobs' own spec: of an array, of its template, which all elements follow.
    is_of_template: bool = False

    def patch_of(self, work: Job | JobArray) -> Mapping[str, Any]:
        """Return what is written into a job or an array."""
        if self.is_of_template and isinstance(work, JobArray):
            return {"spec": {"template": self.patch["spec"]}}
        return self.patch

    def is_done(self, work: Job | JobArray) -> bool:
        """True when the spec says so already."""
        spec = work.spec
        of_jobs = spec.template if isinstance(spec, JobArraySpec) else spec
        values = {
            "cancel": spec.cancel, "suspend": spec.suspend,
            "priorityClassName": of_jobs.priority_class_name,
        }  # fmt: skip
        return all(values[key] == value for key, value in self.patch["spec"].items())


CANCEL = ChangeVerb("cancel", {"spec": {"cancel": True}}, "cancelled", "is being cancelled already")
HOLD = ChangeVerb("hold", {"spec": {"suspend": True}}, "held", "is held already")
RELEASE = ChangeVerb("release", {"spec": {"suspend": False}}, "released", "is not held")


def priority_change(class_name: str) -> ChangeVerb:
    """Return the change to a PriorityClass."""
    return ChangeVerb(
        "priority", {"spec": {"priorityClassName": class_name}},
        f"moved to priority class {class_name}", f"has priority class {class_name} already",
        infinitive="move", is_of_template=True,
    )  # fmt: skip
