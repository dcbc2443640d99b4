"""What admission fills into a new job from the defaults of its team and of the cluster (pure).

What the job says itself always stands; then comes its team, then the settings of the cluster, field
by field. So a default makes only what the author of the job could have written, and pods that it
makes are held to the rules of their namespace like any other. A maximum holds for what was asked
for and for what was filled in; of those of team and cluster the smaller one counts.

What was filled in, and by whom, stands in the annotation `fairlead.dev/defaults` for people to see;
nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from fairlead.api.causes import cause, invalid, required
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job_defaults import (
    CLUSTER,
    TEAM_PREFIX,
    JobDefaults,
    JobMaxima,
    JobTerms,
    source_words,
)
from fairlead.api.jobs.job_mounts import JobMount, mount_of, volume_of
from fairlead.api.names import DEFAULTS
from fairlead.api.status import StatusCause
from fairlead.decide.admission.limits import annotation_of
from fairlead.decide.words import duration
from fairlead.model.asks.teams import TeamTable

Obj: TypeAlias = Mapping[str, Any]
#: A job's templates as plain JSON, of our own making: written into.
_Json: TypeAlias = dict[str, Any]

#: Bytes that defaults may add to one job, whose containers are as many as its author likes.
ADDED_BYTES_MAX = 1 << 20
_VOLUME = "default"


@dataclass(frozen=True, slots=True)
class Filled:
    """Fields of the spec to write, the annotation to write (None: it stays), and what is wrong."""

    fields: Mapping[str, Any]
    note: str | None = None
    causes: tuple[StatusCause, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """Defaults and maxima of a team or of the cluster."""

    name: str
    defaults: JobDefaults
    maxima: JobMaxima


def fill(
    new: Obj, old: Obj | None, *, team: str, teams: TeamTable | None, terms: JobTerms
) -> Filled:
    """Return what the defaults make of a job as plain JSON, whose team is `team` ("": none).

    Of a job that exists nothing is filled in anew: templates that are written again without what
    was filled into them get it back, so that a manifest can be applied twice.
    """
    spec = new.get("spec")
    if not isinstance(spec, Mapping) or spec.get("adopts"):
        return Filled({})
    sources = [each for each in _sources(team, teams, terms) if each.defaults != JobDefaults()]
    roles, before = spec.get("roles"), _spec(old).get("roles")
    if old is not None and (roles == before or not sources):
        return Filled({})
    size = _containers(roles) * sum(len(msgspec.json.encode(each.defaults)) for each in sources)
    if size > ADDED_BYTES_MAX:
        who = " and ".join(source_words(each.name) for each in sources)
        why = (
            f"the defaults of {who} would add {size:,} bytes to the templates; at most "
            f"{ADDED_BYTES_MAX:,}: use fewer roles or containers"
        )
        return Filled({}, causes=(cause("Forbidden", "spec.roles", f"Forbidden: {why}"),))
    made: list[_Json] = msgspec.json.decode(msgspec.json.encode(roles)) if sources else []
    applied = [f"{name}={each.name}" for each in sources for name in _fill_roles(made, each)]
    if old is not None:
        return Filled({"roles": made} if made == before else {})
    fields: dict[str, Any] = {"roles": made} if applied else {}
    limit = _limit(_sources(team, teams, terms)) if spec.get("timeLimitSeconds") is None else None
    if limit is not None:
        fields["timeLimitSeconds"] = limit[0]
        applied.append(f"timeLimitSeconds={limit[1]}")
    given = ((each.defaults.preflight, each.name) for each in sources)
    wish = next(((wish, name) for wish, name in given if wish is not None), None)
    if wish is not None and spec.get("preflight") is None:
        fields["preflight"] = wish[0].value
        applied.append(f"preflight={wish[1]}")
    note = ",".join(applied)
    return Filled(fields, None if annotation_of(new, DEFAULTS) == note else note)


def maximum_causes(
    new: Obj, old: Obj | None, *, teams: TeamTable | None, namespace: str, terms: JobTerms
) -> Iterator[StatusCause]:
    """Yield that a job asks for more than its team or the cluster allows.

    Of a job that exists only what exceeds the maximum by more than before is refused.
    """
    most = _most(new, teams, namespace, terms)
    if most is None or _spec(new).get("adopts"):
        return
    over = _excess(new, most[0])
    if over <= 0:
        return
    if old is not None:
        was = _most(old, teams, namespace, terms)
        if was is not None and over <= _excess(old, was[0]):
            return
    limit, at = _spec(new).get("timeLimitSeconds"), "spec.timeLimitSeconds"
    text = f"{source_words(most[1])} allows at most {duration(most[0])} ({most[0]:,} s)"
    remedy = f"--time {duration(most[0])}"
    if isinstance(limit, int):
        yield invalid(at, limit, f"{text}: ask for less, such as {remedy}")
    else:
        yield required(at, f"{text}: set a time limit, such as {remedy}")


def _sources(team: str, teams: TeamTable | None, terms: JobTerms) -> list[_Source]:
    """Return what counts for a job, what counts more first."""
    found: Team | None = teams.get(team) if teams is not None and team else None
    out = [_Source(CLUSTER, terms.defaults, terms.maxima)]
    if found is not None:
        name = f"{TEAM_PREFIX}{team}"
        out.insert(0, _Source(name, found.spec.job_defaults, found.spec.job_maxima))
    return out


def _limit(sources: Sequence[_Source]) -> tuple[int, str] | None:
    """Return the time limit of a job without one, and whose it is: the default, within the
    smallest maximum; without a default that maximum.
    """
    given = ((each.defaults.time_limit_seconds, each.name) for each in sources)
    default = next(((limit, name) for limit, name in given if limit is not None), None)
    most = _smallest(sources)
    if default is None or most is None:
        return default or most
    return (min(default[0], most[0]), default[1])


def _smallest(sources: Sequence[_Source]) -> tuple[int, str] | None:
    given = [(each.maxima.time_limit_seconds, each.name) for each in sources]
    return min(((most, name) for most, name in given if most is not None), default=None)


def _most(
    job: Obj, teams: TeamTable | None, namespace: str, terms: JobTerms
) -> tuple[int, str] | None:
    """Return the longest time limit that a job may have, and whose maximum it is."""
    claim: object = _spec(job).get("team") or ""
    if teams is None or not isinstance(claim, str):
        team = ""
    else:
        resolved = teams.resolve(claim, namespace)
        team = resolved if isinstance(resolved, str) else ""
    return _smallest(_sources(team, teams, terms))


def _excess(job: Obj, most: int) -> float:
    limit = _spec(job).get("timeLimitSeconds")
    if limit is None:
        return float("inf")
    return limit - most if isinstance(limit, int) else 0.0  # the schema has refused the type


def _spec(job: Obj | None) -> Obj:
    spec = job.get("spec") if job is not None else None
    return spec if isinstance(spec, Mapping) else {}


# Templates


def _pods(roles: object) -> Iterator[_Json]:
    """Yield the pod spec of each role, as far as the types are right; the schema says the rest."""
    for role in _dicts(roles):
        template = role.get("template")
        spec = template.get("spec") if isinstance(template, dict) else None
        if isinstance(spec, dict):
            yield spec


def _of_pod(pod: _Json) -> Iterator[_Json]:
    for kind in ("initContainers", "containers"):
        yield from _dicts(pod.get(kind))


def _containers(roles: object) -> int:
    return sum(1 for pod in _pods(roles) for _ in _of_pod(pod))


def _dicts(value: object) -> list[_Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(items: object, key: str) -> set[str]:
    """Return what stands under a key in each item of a list, where it is a text."""
    return {text for each in _dicts(items) if isinstance(text := each.get(key), str)}


def _fill_roles(roles: list[_Json], source: _Source) -> list[str]:
    """Fill what the source has into the templates; return the names of what was filled in."""
    defaults, done = source.defaults, dict[str, None]()
    for pod in _pods(roles):
        if defaults.image_pull_secrets and not pod.get("imagePullSecrets"):
            pod["imagePullSecrets"] = [{"name": name} for name in defaults.image_pull_secrets]
            done["imagePullSecrets"] = None
        if missing := _missing_labels(pod, defaults.node_selector):
            pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **missing}
            done["nodeSelector"] = None
        for container in _of_pod(pod):
            if defaults.image and not container.get("image"):
                container["image"] = defaults.image
                done["image"] = None
            if variables := _missing_variables(container, defaults.env):
                container["env"] = [*variables, *(container.get("env") or [])]
                done["env"] = None
        for mount in defaults.mounts:
            if _fill_mount(pod, mount):
                done["mounts"] = None
    return [name for name in ORDER if name in done]


#: What is filled into templates, in the order in which it is shown.
ORDER = ("image", "imagePullSecrets", "env", "nodeSelector", "mounts")


def _missing_labels(pod: _Json, wanted: Mapping[str, str]) -> dict[str, str]:
    selector = pod.get("nodeSelector") or {}
    if not isinstance(selector, dict):
        return {}
    value: object = pod
    for step in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        value = value.get(step) if isinstance(value, dict) else None
    terms = _dicts(value.get("nodeSelectorTerms")) if isinstance(value, dict) else []
    named = {key for term in terms for key in _texts(term.get("matchExpressions"), "key")}
    return {k: v for k, v in wanted.items() if k not in selector and k not in named}


def _missing_variables(container: _Json, wanted: Mapping[str, str]) -> list[_Json]:
    """Return variables that a container does not set. One with `envFrom` may set any, and what is
    in `env` would win over them.
    """
    env = container.get("env") or []
    if not isinstance(env, list) or container.get("envFrom"):
        return []
    set_ = _texts(env, "name")
    return [{"name": name, "value": value} for name, value in wanted.items() if name not in set_]


def _fill_mount(pod: _Json, mount: JobMount) -> bool:
    """Mount a volume in the containers that have nothing at its path; False: all have."""
    volumes = pod.get("volumes") or []
    without = [each for each in _of_pod(pod) if _has_room(each, mount.path)]
    if not isinstance(volumes, list) or not without:
        return False
    taken, number = _texts(volumes, "name"), 1
    while (name := f"{_VOLUME}-{number}") in taken:
        number += 1
    pod["volumes"] = [*volumes, msgspec.to_builtins(volume_of(mount, name))]
    for container in without:
        mounted = msgspec.to_builtins(mount_of(mount, name))
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), mounted]
    return True


def _has_room(container: _Json, path: str) -> bool:
    mounts = container.get("volumeMounts") or []
    there = {each.rstrip("/") for each in _texts(mounts, "mountPath")}
    return isinstance(mounts, list) and path.rstrip("/") not in there
