"""What a job waits for before its first attempt: other jobs, arrays, and elements of arrays."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.meta import Wire
from fairlead.api.values.bounds import Count, ObjectName, doc

#: Characters of a list of elements that a job waits for.
AFTER_ELEMENTS_MAX = 1024


class AfterState(Enum):
    """The state that the other job must have reached."""

    SUCCEEDED = "Succeeded"
    FINISHED = "Finished"
    FAILED = "Failed"
    STARTED = "Started"


class AfterFailed(Enum):
    """What to do when the dependency can no longer be met."""

    CANCEL = "Cancel"
    HOLD = "Hold"


#: `After.elements`: the whole array; and, in a template, of each element the one of its own index.
ALL_ELEMENTS, SAME_ELEMENT = "All", "Same"


class After(Wire, frozen=True):
    """Start only after another job, or an array of jobs, of the same namespace."""

    job: Annotated[ObjectName, doc("Name of the other job; with elements, of an array.")]
    state: Annotated[
        AfterState,
        doc(
            "Succeeded, Finished (either way), Failed, or Started: it has run or ended, of an "
            "array all elements."
        ),
    ] = AfterState.SUCCEEDED
    on_unmet: Annotated[
        AfterFailed, doc("When it can no longer come true: Cancel this job, or Hold it.")
    ] = AfterFailed.CANCEL
    elements: Annotated[
        str,
        doc(
            "Elements of the array to wait for: All, a list of indices such as 3-9,12, or, in the "
            "template of an array, Same: each of its elements waits for the one of its own index. "
            "They have succeeded when all did, and failed when all have ended and any did not. "
            "Default: job names a job.",
            pattern=rf"^({ALL_ELEMENTS}|{SAME_ELEMENT}|[0-9][0-9,:-]*)?$",
            maxLength=AFTER_ELEMENTS_MAX,
        ),
    ] = ""

    delay_seconds: Annotated[
        Count, doc("With Started, of a job: wait so long after that. Default 0.")
    ] = 0
    alternative: Annotated[
        bool,
        doc("True: of all entries with alternative one is enough. Default false: it must hold."),
    ] = False

    @property
    def wanted(self) -> str:
        """The state that is waited for, and how long it must have been so: `Started for 60 s`."""
        delay = f" for {self.delay_seconds} s" if self.delay_seconds else ""
        return f"{self.state.value}{delay}"

    @property
    def target(self) -> str:
        """What is waited for, after the word job: `a`, `array a`, or `a[3-9]`."""
        if not self.elements:
            return self.job
        whole = self.elements == ALL_ELEMENTS
        return f"array {self.job}" if whole else f"{self.job}[{self.elements}]"
