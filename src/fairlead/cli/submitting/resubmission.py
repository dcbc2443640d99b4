"""A job, or elements of an array, submitted again: the same template under a new name (pure).

What is stored is taken as it is, as plain JSON: the read model drops what decisions do not need. A
field of the spec that says how far the first one got, or what was asked of it since, stays behind.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import is_true
from fairlead.api.resources import Resource
from fairlead.api.values.indices import INDICES_TEXT_MAX, Indices, format_indices, parse_indices
from fairlead.cli.job_request.arrays import ArrayReference, Elements
from fairlead.cli.job_request.jobspec import config_map_name
from fairlead.decide.words import plural
from fairlead.input.errors import CliError, Code, Problem, fail
from fairlead.model.element_sets import Members, lowest

Obj = dict[str, Any]
_RETRY = re.compile(r"-retry-\d+$")
#: Of a spec: what was asked of the first one while it was there.
_OF_THE_FIRST = ("suspend", "cancel", "cancelIndices", "requeueAttempt")
#: Of metadata: what a person may have put there.
_KEPT_METADATA = ("labels", "annotations")
_OF_THE_RUN = (names.RUN_TAGS, names.RUN_NOTE)
_OURS, _KUBECTL = f"{names.GROUP}/", "kubectl.kubernetes.io/"


def retry_base(name: str) -> str:
    """Return what the names of a job's successors begin with, before their number."""
    return f"{_RETRY.sub('', name)}-retry"


def ended_job(job: Job, *, failed_only: bool) -> None:
    """Do nothing for a job that may be submitted again; CliError says why one may not."""
    name = job.metadata.name
    if job.spec.adopts is not None:
        message = f"job '{name}' represents the pods of {job.spec.adopts.kind}"
        raise fail(Code.JOB_ADOPTED, f"{message} '{job.spec.adopts.name}', which makes them")
    if not job.is_finished:
        raise CliError(_unfinished(f"job '{name}' has", name))
    if failed_only and is_true(job.status.conditions, names.SUCCEEDED):
        raise fail(Code.NO_SUCH_JOB, f"job '{name}' has not failed",
                   help=(f"fairlead resubmit {name} runs it again all the same",))  # fmt: skip


def again(elements: Elements, reference: ArrayReference, *, failed_only: bool) -> int:
    """Return the elements to submit again, as a set of positions; CliError where there are none, or
    one that was named has not ended.

    Of an array that has ended, those that never started count as failed: it was stopped before.
    """
    name, is_over = elements.array.metadata.name, elements.array.is_finished
    finished = elements.positions if is_over else elements.finished
    if not failed_only:
        left = elements.positions & ~finished
        if left:
            indices = parse_indices(elements.array.spec.indices)
            first = f"{name}[{indices.at(lowest(left, 1)[0])}]"
            text = f"{plural(left.bit_count(), 'element')} of '{reference}', such as '{first}', "
            raise CliError(_unfinished(f"{text}{'has' if left.bit_count() == 1 else 'have'}", name))
        return finished
    failed = finished & ~(elements.finished & ~elements.failed)
    if not failed:
        raise fail(Code.NO_SUCH_JOB, f"no element of '{reference}' has failed",
                   help=(f"fairlead why {name}",))  # fmt: skip
    return failed


def _unfinished(who: str, name: str) -> Problem:
    return Problem(
        Code.JOB_UNFINISHED, f"{who} not ended, and would run twice at a time",
        help=(f"fairlead wait {name}, or fairlead cancel {name}",),
    )  # fmt: skip


def indices_of(positions: int, indices: Indices) -> str:
    """Return `spec.indices` of these elements; CliError where the list gets too long."""
    chosen = Members(positions)
    text = format_indices(
        [index for place, index in enumerate(indices) if place in chosen], step=indices.step
    )
    if len(text) > INDICES_TEXT_MAX:
        message = f"{plural(positions.bit_count(), 'element')} in no order are too many to list"
        help_ = ("name some of them: fairlead resubmit 'NAME[0-9999]' --failed",)
        raise fail(Code.BAD_VALUE, message, help=help_)
    return text


def successor(
    resource: Resource[Any], stored: Obj, name: str, *, user: str, without: frozenset[str],
    indices: str, source: str = "",
) -> Obj:  # fmt: skip
    """Return the manifest of a stored job or array under a new name.

    `without` are jobs that it waited for and waits for no more; `indices` those of an array;
    `source` is the code of the new one, as its annotation has it.
    """
    metadata: Obj = {"name": name}
    for key in _KEPT_METADATA:
        kept = {each: value for each, value in (stored["metadata"].get(key) or {}).items()
                if each in _OF_THE_RUN or not each.startswith((_OURS, _KUBECTL))}  # fmt: skip
        if kept:
            metadata[key] = kept
    if user:
        metadata.setdefault("annotations", {})[names.SUBMITTED_BY] = user
    if source:
        metadata.setdefault("annotations", {})[names.RUN_SOURCE] = source
    spec: Obj = {
        key: value for key, value in copy.deepcopy(stored["spec"]).items()
        if key not in _OF_THE_FIRST
    }  # fmt: skip
    template = spec["template"] if indices else spec
    if indices:
        spec["indices"] = indices
    if template.get("priorityClassName"):
        template.pop("priority", None)  # it follows from the class, which may have changed
    if without:
        template["after"] = [each for each in template["after"] if each["job"] not in without]
    for script in _scripts(template, str(stored["metadata"]["name"])):
        script["name"] = config_map_name(name)
    return {"apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": metadata, "spec": spec}  # fmt: skip


def script_name(template: Obj, name: str) -> str | None:
    """Return the ConfigMap that `fairlead submit` made for a job, where its pods mount it."""
    return config_map_name(name) if _scripts(template, name) else None


def _scripts(template: Obj, name: str) -> list[Obj]:
    """Return the volume sources that name the ConfigMap of a job's script."""
    return [
        source
        for role in template["roles"]
        for volume in (role["template"].get("spec") or {}).get("volumes") or ()
        if (source := volume.get("configMap")) and source.get("name") == config_map_name(name)
    ]


def waits_for(job: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of what a template, as plain JSON, waits for."""
    return frozenset(str(each["job"]) for each in job.get("after") or ())
