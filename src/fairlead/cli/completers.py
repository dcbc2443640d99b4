"""Completion of job names: what the cluster says within a moment, or nothing."""

from __future__ import annotations

import os

import click

from fairlead.cli.connect import Choice, find_connection
from fairlead.input.errors import CliError

ANSWER_SECONDS_MAX = 1.0


def complete_jobs(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the names of jobs that begin with `incomplete`; [] when no cluster answers at once."""
    from fairlead.api.resources import JOBS
    from fairlead.api.status import ApiError
    from fairlead.cli.transport import Api

    choice = Choice(
        str(context.params.get("kubeconfig") or ""), str(context.params.get("context_") or "")
    )
    try:
        connection = find_connection(choice, os.environ)
        api = Api(connection, timeout_seconds=ANSWER_SECONDS_MAX)
        space = str(context.params.get("namespace") or "") or connection.namespace
        jobs = api.list(JOBS, namespace=space)
    except (CliError, ApiError):
        return []
    return sorted(j.metadata.name for j in jobs if j.metadata.name.startswith(incomplete))
