"""What a decision takes from earlier ones: the answers that it uses without working them out.

A decision depends on the objects, the policy and the instant, and on what the planner remembers:
verdicts that are not due yet, searches that found nothing, jobs that are left alone after a fault.
That memory refers to versions of columns, which mean nothing in another process. Its answers do: a
decision looks at a bounded number of jobs, and `Recall` has the answer that each of them got. With
the answers of a decision given, a state that was built from the same objects decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.decide.verdict import ObjectKey, Verdict


@dataclass(slots=True)
class Recall:
    """The answers that one decision took from memory, by the job that they were about."""

    #: The jobs whose written verdict was missing or out of date, as far as they were looked at.
    unwritten: list[ObjectKey] = field(default_factory=list[ObjectKey])
    #: Verdicts that were not made again.
    verdicts: dict[ObjectKey, Verdict] = field(default_factory=dict[ObjectKey, Verdict])
    #: Jobs over which an earlier decision raised.
    left_alone: dict[ObjectKey, None] = field(default_factory=dict[ObjectKey, None])
    #: Jobs for which an earlier search found no victims.
    no_victims: dict[ObjectKey, None] = field(default_factory=dict[ObjectKey, None])
    #: The first jobs of the groups that had their turn to look for borrowers of their team's nodes.
    sought: list[ObjectKey] = field(default_factory=list[ObjectKey])
    #: Nodes that earlier searches have tried to empty; None: the decision tried none.
    tried_nodes: list[str] | None = None
    #: For each pass of the fit stage: None where it looked at all groups that may fit, else the
    #: first jobs of the groups whose turn it was.
    tried: list[list[ObjectKey] | None] = field(default_factory=list["list[ObjectKey] | None"])
    #: Pass, job and number of reservations (-1: a repair) of gangs that were not tried again, as
    #: they had failed; empty unless the decision tried as many as it may, since these made room.
    failed: list[tuple[int, ObjectKey, int]] = field(
        default_factory=list[tuple[int, ObjectKey, int]]
    )
