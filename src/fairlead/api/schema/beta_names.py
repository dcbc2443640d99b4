"""What v1beta1 calls the fields of v1alpha1: the one table of it.

`conversion` renames objects, schemas and paths by this table, and `tools/generate_api_review.py`
writes docs/reference/v1beta1.md from it. docs/design/api-conventions.md has the reasons. A path is
`Kind.field.field`; `[]` follows the name of a list, `{}` that of a map of objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Where a schema is not this project's.
FOREIGN = re.compile(
    r"^[^.]+\.(apiVersion|kind|metadata)$|\.conditions\[\]$|^Job\.spec\.roles\[\]\.template$"
    r"|^NodePool\.spec\.template\.taints\[\]$"
)
#: Where a schema is that of another path.
ALIASES: Mapping[str, str] = {"JobArray.spec.template": "Job.spec"}
#: New names, whatever object has the field.
NAMES: Mapping[str, str] = {
    # one case for an acronym
    "bootId": "bootID", "machineId": "machineID", "nodeUid": "nodeUID",
    "podUid": "podUID",
    # a point in time
    "answeredAt": "answerTime", "at": "time", "begunAt": "beginTime",
    "checkpointedAt": "checkpointTime", "egressAt": "egressTime", "endedAt": "completionTime",
    "endsAt": "endTime", "expiresAt": "expirationTime", "finishedAt": "completionTime",
    "foundAt": "detectionTime", "givenUpAt": "abandonmentTime", "grantedAt": "grantTime",
    "nextTryAt": "nextTryTime", "nominatedAt": "nominationTime", "observedAt": "observedTime",
    "placedAt": "placementTime", "reportedAt": "reportTime", "requestedAt": "requestTime",
    "restartAt": "restartTime", "retryAt": "retryTime", "savedAt": "saveTime",
    "sharesAt": "sharesTime", "startedAt": "startTime", "submittedAt": "submissionTime",
    # the name of an object
    "claim": "claimName", "configMap": "configMapName", "job": "jobName", "lender": "lenderName",
    "node": "nodeName", "pool": "poolName", "reservation": "reservationName",
    "secret": "secretName", "team": "teamName",
    # statements, as Kubernetes writes them
    "freeze": "frozen", "isPartial": "partial", "isSuspected": "suspected",
    # a unit
    "budget": "budgetBitsPerSecond", "demand": "demandBitsPerSecond", "dropped": "droppedPackets",
    "hold": "holdNodes", "max": "nodesMax", "min": "nodesMin",
    "received": "receivedBytes", "receivedRate": "receivedBitsPerSecond",
    "sentRate": "sentBitsPerSecond",
}  # fmt: skip
#: And of single fields, which come before these. `budget` of a team is an object; the least and the
#: largest value of a metric count no nodes.
PATHS: Mapping[str, str] = {
    "Team.spec.budget": "budget",
    "Job.status.run.metrics{}.max": "max",
    "Job.status.run.metrics{}.min": "min",
    "Fleet.status.clock": "clockSeconds",
    "Fleet.status.removed[].at": "clockSeconds",
    "Fleet.status.removed[].bought": "purchaseClockSeconds",
    "NodePool.status.bought[].at": "clockSeconds",
    "NodePool.status.lost[].at": "clockSeconds",
    "NodeReport.status.traffic.flows[].sent": "sentBytes",
    "NodeReport.status.traffic.ended[].sent": "sentBytes",
    **{
        f"NodeReport.status.shaping.{part}[].{name}": f"{name}BitsPerSecond"
        for part in ("teams", "pods", "ingress", "destinations") for name in ("limit", "sent")
    },
}  # fmt: skip


def beta_name(path: str) -> str:
    """Return the name in v1beta1 of the field at a path of v1alpha1."""
    name = path.rpartition(".")[2].removesuffix("[]").removesuffix("{}")
    return PATHS.get(path) or NAMES.get(name, name)
