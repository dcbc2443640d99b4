"""The CustomResourceDefinitions of our own kinds, generated from the wire structs.

`tools/generate_crds.py` writes them to `deploy/crds/`, a golden test fails when those files are not
up to date, and the embedded cluster serves the same manifests.
"""

from __future__ import annotations

from typing import Any

from fairlead.api import names
from fairlead.api.builtin_schemas import API_VERSION, KIND
from fairlead.api.crd_schema import Generator
from fairlead.api.job import Job, JobSpec, JobStatus

COMMAND = "python tools/generate_crds.py"


def manifests() -> list[dict[str, Any]]:
    """Return the CRD of every own kind as plain JSON values, in the order of their names."""
    return [_job()]


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
            "Ended",
            "string",
            '.status.conditions[?(@.type=="Failed")].reason',
            "Why it ended, unless it succeeded.",
        ),
        _column("Team", "string", ".spec.team", "Team that it belongs to.", priority=1),
        _column("Priority", "integer", ".spec.priority", "Higher goes first.", priority=1),
        _column("Step", "integer", ".status.progress.step", "Latest step reported.", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp", "Time since it was submitted."),
    ]


def _job_schema() -> dict[str, Any]:
    spec = Generator(with_defaults=True).struct(JobSpec)
    status = Generator().struct(JobStatus)
    return {
        "description": " ".join((Job.__doc__ or "").split()),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": API_VERSION, "type": "string"},
            "kind": {"description": KIND, "type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def _job() -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"jobs.{names.GROUP}",
            "labels": {"app.kubernetes.io/name": "fairlead"},
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "plural": "jobs",
                "singular": "job",
                "kind": "Job",
                "listKind": "JobList",
                "shortNames": ["fj"],
                "categories": ["fairlead"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _job_schema()},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _job_columns(),
                    "selectableFields": [
                        {"jsonPath": path}
                        for path in (".spec.team", ".spec.priorityClassName", ".status.state")
                    ],
                }
            ],
        },
    }
