"""Completion of values: fixed words, and what the cluster answers within a moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.shell_completion import CompletionItem

from fairlead.cli.connection.connect import Choice, find_connection
from fairlead.input.errors import CliError

if TYPE_CHECKING:
    from fairlead.api.resources import Resource

ANSWER_SECONDS_MAX = 1.0


Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]


def words(*accepted: str) -> Completer:
    """Return a completer that offers these words."""

    def complete(
        _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[str]:
        return [word for word in accepted if word.startswith(incomplete)]

    return complete


def complete_jobs(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the names of jobs that begin with `incomplete`; [] when no cluster answers at once."""
    from fairlead.api.resources import JOBS

    return _names(context, JOBS, incomplete)


def complete_namespaces(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the namespaces that begin with `incomplete`; [] when no cluster answers at once."""
    from fairlead.api.resources import NAMESPACES

    return _names(context, NAMESPACES, incomplete)


def complete_profiles(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the shipped profiles, and leave files to the shell."""
    from fairlead.embedded.virtual.profile import shipped_profiles

    shipped = [name for name in shipped_profiles() if name.startswith(incomplete)]
    return [CompletionItem(name) for name in shipped] or [CompletionItem(incomplete, type="file")]


def _names(context: click.Context, resource: Resource[Any], incomplete: str) -> list[str]:
    from fairlead.api.status import ApiError
    from fairlead.cli.connection.transport import Api

    choice = Choice(
        str(context.params.get("kubeconfig") or ""), str(context.params.get("context_") or "")
    )
    try:
        connection = find_connection(choice, os.environ)
        api = Api(connection, timeout_seconds=ANSWER_SECONDS_MAX)
        space = str(context.params.get("namespace") or "") or connection.namespace
        found = api.list(resource, namespace=space if resource.namespaced else "")
    except (CliError, ApiError):
        return []
    return sorted(each.metadata.name for each in found if each.metadata.name.startswith(incomplete))
