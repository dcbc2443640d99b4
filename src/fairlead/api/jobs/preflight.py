"""The test of a gang's nodes before its program starts: what a job asks for, and what was found."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fairlead.api.meta import Instant, Wire
from fairlead.api.values.bounds import doc
from fairlead.api.values.outcomes import MachineOutcome


class PreflightSuite(Enum):
    """Which tests run in the members' pods before the program starts."""

    NONE = "None"
    QUICK = "Quick"  # CPU, memory and GPUs of each member
    NETWORK = "Network"  # and the connections between the members


class PreflightRecord(Wire, frozen=True):
    """The test before an attempt of a job: asked for, and what was found."""

    suite: Annotated[PreflightSuite, doc("Which tests were asked for.")]
    outcome: Annotated[
        MachineOutcome | None, doc("How it ended. Absent: it goes on, or never ended.")
    ] = None
    message: Annotated[str, doc("What was found, for people.")] = ""
    ended_at: Annotated[Instant | None, doc("When it was judged.")] = None
    nodes: Annotated[
        tuple[str, ...],
        doc("Nodes on which it failed: they are left, and suspected until they are tested."),
    ] = ()
