"""Which fields of a job's spec may be changed once the job exists, and when."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ChangeRule(Enum):
    """When a field may be changed, in words that complete "may be changed"."""

    FREE = "at any time"
    #: The pods and the place of a job follow from it.
    NEVER = "never"
    #: Else a job could keep its nodes by a class that none of its pods was granted.
    LOWER_AT_ONCE = "at any time; a higher priority counts from the next attempt on"
    #: Starts of other jobs, and who passes them, were computed from it.
    SHORTER_WHILE_PLACED = (
        "up to the maximum of its team and of the cluster while the job holds no nodes; then only "
        "to a shorter limit, but by the admins of its team; by administrators to any"
    )
    #: Shares, loans and reservations count the nodes that the job holds by it.
    WHILE_NOT_PLACED = "while the job holds no nodes, and by administrators"
    DERIVED = "by the webhook: it follows from the PriorityClass"


#: Every field of a job's spec, by its name in JSON. No forecast and no share of others rests on a
#: field that is free: forecasts end with the present attempt, and a restart begins another one.
CHANGES: Mapping[str, ChangeRule] = {
    "roles": ChangeRule.NEVER,
    "team": ChangeRule.WHILE_NOT_PLACED,
    "reservation": ChangeRule.WHILE_NOT_PLACED,
    "priorityClassName": ChangeRule.LOWER_AT_ONCE,
    "priority": ChangeRule.DERIVED,
    "timeLimitSeconds": ChangeRule.SHORTER_WHILE_PLACED,
    "topology": ChangeRule.NEVER,
    "restart": ChangeRule.FREE,
    "checkpoint": ChangeRule.NEVER,
    "after": ChangeRule.FREE,
    "notBefore": ChangeRule.FREE,
    "deadline": ChangeRule.FREE,
    "suspend": ChangeRule.FREE,
    "cancel": ChangeRule.FREE,
    "requeueAttempt": ChangeRule.FREE,
    "ttlSecondsAfterFinished": ChangeRule.FREE,
    #: Deliveries are recorded by the index of the target.
    "notify": ChangeRule.NEVER,
    "preflight": ChangeRule.NEVER,
    "adopts": ChangeRule.NEVER,
}
