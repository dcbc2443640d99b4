"""Reads what names of kinds of nodes are looked up in: nodes, node pools, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from fairlead.api.kubernetes.core import Node
from fairlead.api.names import POOL
from fairlead.api.resources import NODE_POOLS, NODES
from fairlead.api.status import ApiError, Forbidden, NotFound
from fairlead.cli.cluster.cluster_settings import settings_or_defaults, slurm_settings
from fairlead.cli.connection.common import Common
from fairlead.cli.connection.transport import Api
from fairlead.cli.job_request.node_kinds import KnownNodes, Labels, What, resolve
from fairlead.cli.job_request.request import JobRequest
from fairlead.decide.admission.notices import refused_target
from fairlead.input.errors import CliError, Code, Problem, fail
from fairlead.input.suggest import nearest


def known_nodes(common_: Common, api: Api, request: JobRequest) -> KnownNodes:
    """Return what is known of the nodes that are there, and of those that pools may buy."""
    partitions: Mapping[str, Labels] = {}
    kinds = (kind for each in request.components for kind in each.kinds)
    if any(kind.what is What.PARTITION for kind in kinds):
        partitions = slurm_settings(common_, api).partitions
    labels: list[Labels] = []
    try:
        labels += [node.metadata.labels for node in api.list(NODES.only_metadata)]
    except Forbidden:
        return KnownNodes(None, partitions)
    with suppress(ApiError):  # they may not be listed, or there is no such kind
        for pool in api.list(NODE_POOLS):
            labels.append({POOL: pool.metadata.name, **pool.spec.template.labels})
    return KnownNodes(labels, partitions)


def with_priority(common_: Common, api: Api, request: JobRequest) -> JobRequest:
    """Return the request with the class of the quality of service that a script names, unless it
    has a priority of its own.
    """
    qos = request.batch.qos if request.batch is not None else ""
    if not qos or request.priority is not None or request.priority_class:
        return request
    found = slurm_settings(common_, api).qos.get(qos)
    if found is None:
        common_.note(f"note: --qos={qos} has no effect: slurm.qos of the settings does not name "
                     "it; --priority CLASS is the rank of a job")  # fmt: skip
        return request
    return replace(request, priority_class=found)


def with_mail(common_: Common, api: Api, request: JobRequest) -> JobRequest:
    """Return the request with the mail that a script of Slurm asks for, where mail is sent."""
    mail = request.batch.mail if request.batch is not None else None
    if mail is None:
        return request
    why = refused_target(mail, settings_or_defaults(common_, api).notices.terms())
    if why is not None:
        common_.note(f"note: --mail-type has no effect: {why}")
        return request
    return replace(request, notify=(*request.notify, mail))


def with_node_kinds(common_: Common, api: Api, request: JobRequest) -> JobRequest:
    """Return the request with the labels of its kinds of nodes; CliError for unknown ones."""
    if not any(each.kinds for each in request.components):
        return request
    known = known_nodes(common_, api, request)
    found = [kinds_resolved(each, known) for each in request.components]
    for note in dict.fromkeys(note for _, notes, _ in found for note in notes):
        common_.note(f"note: {note}")
    problems = dict.fromkeys(each for _, _, wrong in found for each in wrong)
    if problems:
        raise CliError(list(problems))
    first, *further = (each for each, _, _ in found)
    return replace(first, further=tuple(further))


def kinds_resolved(
    request: JobRequest, known: KnownNodes
) -> tuple[JobRequest, tuple[str, ...], tuple[Problem, ...]]:
    """Return the request with what its kinds ask of labels, notes, and what is wrong (pure)."""
    found = [resolve(kind, known) for kind in request.kinds]
    requirements = [each for one in found for each in one.requirements]
    resolved = replace(
        request, kinds=(), node_requirements=(*request.node_requirements, *requirements),
        node_choices=next((each.choices for each in found if each.choices), ()),
    )  # fmt: skip
    notes = tuple(one.note for one in found if one.note)
    return resolved, notes, tuple(one.problem for one in found if one.problem is not None)


def node_named(api: Api, name: str) -> Node:
    """Return a node; CliError with the nearest name where there is none."""
    try:
        return api.get(NODES, name)
    except NotFound as error:
        try:
            near = nearest(name, [each.metadata.name for each in api.list(NODES)])
        except ApiError:
            near = None
        help_ = (f"did you mean {near}?",) if near else ("fairlead nodes -o wide",)
        raise fail(Code.BAD_VALUE, f"there is no node '{name}'", help=help_) from error
