"""The CustomResourceDefinitions of our own kinds, generated from the wire structs.

`tools/generate_crds.py` writes them to `deploy/crds/`, a golden test fails when those files are not
up to date, and the embedded cluster serves the same manifests.
"""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.cluster.cluster_report import ClusterReport, ClusterReportStatus
from fairlead.api.cluster.fleet import Fleet, FleetSpec, FleetStatus
from fairlead.api.cluster.image_set import ImageSet, ImageSetSpec, ImageSetStatus
from fairlead.api.cluster.node_pool import NodePool, NodePoolSpec, NodePoolStatus
from fairlead.api.cluster.node_report import NodeReport, NodeReportSpec, NodeReportStatus
from fairlead.api.cluster.node_test import NodeTest, NodeTestSpec, NodeTestStatus
from fairlead.api.cluster.team import Team, TeamSpec, TeamStatus
from fairlead.api.jobs.job import Job, JobSpec, JobStatus
from fairlead.api.jobs.job_array import JobArray, JobArraySpec, JobArrayStatus
from fairlead.api.meta import Wire
from fairlead.api.schema.builtin_schemas import API_VERSION, KIND
from fairlead.api.schema.crd_schema import Generator

COMMAND = "python -m tools.generate_crds"


def manifests() -> list[dict[str, Any]]:
    """Return the CRD of every own kind as plain JSON values, in the order of their names."""
    return msgspec.json.decode(_encoded(), type=list[dict[str, Any]])


def definition_names() -> tuple[str, ...]:
    """Return the names of these definitions, in their order."""
    return tuple(each["metadata"]["name"] for each in manifests())


@functools.cache
def _encoded() -> bytes:
    kinds = (
        _cluster_report, _fleet, _image_set, _job_array, _job, _node_pool, _node_report,
        _node_test, _team,
    )  # fmt: skip
    return msgspec.json.encode([make() for make in kinds])


def _column(name: str, type_: str, path: str, description: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "description": description, "jsonPath": path, **more}


def _job_columns() -> list[dict[str, Any]]:
    return [
        _column("State", "string", ".status.state", "What the job does now."),
        _column("Running", "integer", ".status.members.running", "Members that run."),
        _column("Members", "integer", ".status.members.total", "Members of the gang."),
        _column("Attempt", "integer", ".status.attempt", "Number of the current attempt."),
        _column(
            "Reason", "string", ".status.verdict.reason", "Why it waits, or that it is placed."
        ),
        _column(
            "Failure",
            "string",
            '.status.conditions[?(@.type=="Failed")].reason',
            "Why it ended, unless it succeeded.",
        ),
        _column("Team", "string", ".spec.team", "Team that it belongs to.", priority=1),
        _column("Priority", "integer", ".spec.priority", "Higher goes first.", priority=1),
        _column("Step", "integer", ".status.progress.step", "Latest step reported.", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was submitted."),
    ]


def _team_columns() -> list[dict[str, Any]]:
    return [
        _column("Nodes", "integer", ".status.nodes", "Healthy nodes that the team has."),
        _column("Missing", "integer", ".status.nodesMissing", "Nodes that its shares lack."),
        _column("Borrowed", "integer", ".status.use.nodesBorrowed", "Nodes of others in its use."),
        _column("Lent", "integer", ".status.use.nodesLent", "Its nodes in the use of others."),
        _column("Running", "integer", ".status.use.jobsPlaced", "Jobs that hold nodes."),
        _column("Waiting", "integer", ".status.use.jobsWaiting", "Jobs that wait for nodes."),
        _column(
            "Reason", "string", '.status.conditions[?(@.type=="Ready")].reason',
            "Whether its shares are met.",
        ),
        _column("Weight", "integer", ".spec.weight", "Weight in the fair share.", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
    ]  # fmt: skip


def _schema(kind: type[Wire], spec: type[Wire] | None, status: type[Wire]) -> dict[str, Any]:
    parts = {} if spec is None else {"spec": Generator(with_defaults=True).struct(spec)}
    return {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        **({"required": list(parts)} if parts else {}),
        "properties": {
            "apiVersion": {"description": API_VERSION, "type": "string"},
            "kind": {"description": KIND, "type": "string"},
            "metadata": {"type": "object"},
            **parts,
            "status": Generator().struct(status),
        },
    }


def _definition(
    kind: type[Wire],
    spec: type[Wire] | None,
    status: type[Wire],
    *,
    columns: list[dict[str, Any]],
    scope: str = "Cluster",
    short: str = "",
    **version: Any,
) -> dict[str, Any]:
    name = kind.__name__
    plural = f"{name.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{names.GROUP}",
            "labels": {"app.kubernetes.io/name": "fairlead"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": scope,
            "names": {
                "plural": plural, "singular": name.lower(), "kind": name, "listKind": f"{name}List",
                **({"shortNames": [short]} if short else {}), "categories": ["fairlead"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _schema(kind, spec, status)},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    **version,
                }
            ],
        },
    }  # fmt: skip


def _job() -> dict[str, Any]:
    selectable = (".spec.team", ".spec.priorityClassName", ".status.state")
    return _definition(
        Job, JobSpec, JobStatus, columns=_job_columns(), scope="Namespaced", short="fj",
        selectableFields=[{"jsonPath": path} for path in selectable],
    )  # fmt: skip


def _job_array() -> dict[str, Any]:
    counts = ".status.elements"
    columns = [
        _column("State", "string", ".status.state", "What the array does now."),
        _column("Elements", "integer", f"{counts}.total", "All elements."),
        _column("Waiting", "integer", f"{counts}.waiting", "Elements that hold no nodes yet."),
        _column("Running", "integer", f"{counts}.running", "Elements that hold nodes."),
        _column("Succeeded", "integer", f"{counts}.succeeded", "Elements that succeeded."),
        _column("Failed", "integer", f"{counts}.failed", "Elements that did not."),
        _column("Reason", "string", ".status.verdict.reason", "Why the next element waits."),
        _column("Limit", "integer", ".spec.parallelism", "Most at a time.", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was submitted."),
    ]
    return _definition(
        JobArray, JobArraySpec, JobArrayStatus, columns=columns, scope="Namespaced", short="fja",
        selectableFields=[{"jsonPath": ".status.state"}],
    )  # fmt: skip


def _team() -> dict[str, Any]:
    return _definition(Team, TeamSpec, TeamStatus, columns=_team_columns())


def _node_pool() -> dict[str, Any]:
    columns = [
        _column("Mode", "string", ".spec.mode", "DryRun, or Active where it is acted on."),
        _column("Nodes", "integer", ".status.nodes", "Nodes of the pool."),
        _column("Ready", "integer", ".status.ready", "Nodes that can take work."),
        _column("Wanted", "integer", ".status.wanted", "Nodes that are asked for."),
        _column("Spares", "integer", ".status.spares", "Nodes kept for repairs.", priority=1),
        _column("Launching", "integer", ".status.launching", "Machines without a node yet."),
        _column("Max", "integer", ".spec.max", "Most nodes of the pool."),
        _column("Message", "string", ".status.message", "What holds the pool back.", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was made."),
    ]
    return _definition(NodePool, NodePoolSpec, NodePoolStatus, columns=columns, short="np")


def _node_report() -> dict[str, Any]:
    columns = [
        _column("Critical", "integer", ".status.critical", "Critical faults."),
        _column("Warning", "integer", ".status.warning", "Warnings."),
        _column("Worst", "string", ".status.faults[0].check", "The check of the worst fault."),
        _column("Component", "string", ".status.faults[0].component", "What it was found on."),
        _column("Action", "string", ".status.faults[0].action", "What should be done about it."),
        _column("Observed", "date", ".status.observedAt", "Time since the agent was last heard."),
    ]
    found = _definition(NodeReport, NodeReportSpec, NodeReportStatus, columns=columns, short="nr")
    for version in found["spec"]["versions"]:  # a collector makes it, and writes no spec
        version["schema"]["openAPIV3Schema"].pop("required", None)
    return found


def _node_test() -> dict[str, Any]:
    columns = [
        _column("Node", "string", ".spec.node", "The node."),
        _column("Suite", "string", ".spec.suite", "What is tested."),
        _column("Cause", "string", ".spec.cause", "Why it is tested."),
        _column("Phase", "string", ".status.phase", "What it does now."),
        _column("Outcome", "string", ".status.outcome", "How it ended."),
        _column("Message", "string", ".status.message", "Why it ended so.", priority=1),
        _column("Ended", "date", ".status.endedAt", "Time since it was judged."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was made."),
    ]
    return _definition(NodeTest, NodeTestSpec, NodeTestStatus, columns=columns, short="nt")


def _image_set() -> dict[str, Any]:
    columns = [
        _column("Phase", "string", ".status.phase", "What is done about it now."),
        _column("Nodes", "integer", ".status.nodes", "Nodes that the set is for."),
        _column("Lacking", "integer", ".status.lacking", "Nodes that lack the rarest image."),
        _column("Images", "string", ".spec.images", "The images.", priority=1),
        _column("Until", "date", ".spec.keepUntil", "When it ends.", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was made."),
    ]
    return _definition(ImageSet, ImageSetSpec, ImageSetStatus, columns=columns, short="ims")


def _fleet() -> dict[str, Any]:
    columns = [
        _column("Frozen", "string", ".spec.freeze.reason", "Why it is frozen, if it is."),
        _column("Blind", "string", ".status.blind", "Why nothing is removed now."),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was made."),
    ]
    return _definition(Fleet, FleetSpec, FleetStatus, columns=columns)


def _cluster_report() -> dict[str, Any]:
    def condition(name: str, type_: str, description: str) -> dict[str, Any]:
        path = f'.status.conditions[?(@.type=="{type_}")].status'
        return _column(name, "string", path, description)

    columns = [
        _column("Critical", "integer", ".status.critical", "Critical findings."),
        _column("Warning", "integer", ".status.warning", "Warnings."),
        _column("Unknown", "integer", ".status.notSeen", "Checks that could not be evaluated."),
        condition("Etcd-Full", "EtcdNearlyFull", "Whether etcd is close to its quota."),
        condition("API-Degraded", "APIServerDegraded", "Whether the API server turns work away."),
        _column("Worst", "string", ".status.findings[0].title", "The worst finding.", priority=1),
        _column("Observed", "date", ".status.observedAt", "Time since it was last confirmed."),
    ]
    return _definition(ClusterReport, None, ClusterReportStatus, columns=columns)
