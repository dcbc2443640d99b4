"""What a job got by the defaults of its team and of the cluster, in words (pure)."""

from __future__ import annotations

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_defaults import JobDefaults, source_words
from fairlead.api.names import DEFAULTS
from fairlead.decide.words import duration

_WORDS = {
    "image": "image",
    "imagePullSecrets": "pull secrets",
    "env": "variables",
    "nodeSelector": "node selector",
    "mounts": "mounts",
    "timeLimitSeconds": "time limit",
    "preflight": "preflight",
}
#: Of the annotation, which anybody may write who may write the job.
_SHOWN_MAX = 2 * len(_WORDS)


def defaults_words(job: Job) -> str:
    """Return e.g. "image, mounts by team vision; time limit by the cluster"; "" for nothing."""
    found: dict[str, list[str]] = {}
    for entry in job.metadata.annotations.get(DEFAULTS, "").split(",")[:_SHOWN_MAX]:
        field, equals, source = entry.partition("=")
        if equals and field in _WORDS:
            found.setdefault(source_words(source), []).append(_WORDS[field])
    return "; ".join(f"{', '.join(fields)} by {whose}" for whose, fields in found.items())


def defaults_of(defaults: JobDefaults) -> str:
    """Return what jobs get, without the values of variables; "" for nothing."""
    labels = ",".join(f"{key}={value}" for key, value in sorted(defaults.node_selector.items()))
    limit = defaults.time_limit_seconds
    parts = [
        f"image {defaults.image}" if defaults.image else "",
        f"pull secrets {', '.join(defaults.image_pull_secrets)}"
        if defaults.image_pull_secrets else "",
        f"variables {', '.join(sorted(defaults.env))}" if defaults.env else "",
        f"node selector {labels}" if labels else "",
        *(f"{mount.source} at {mount.path}" for mount in defaults.mounts),
        f"time limit {duration(limit)}" if limit is not None else "",
        f"preflight {defaults.preflight.value.lower()}" if defaults.preflight else "",
    ]  # fmt: skip
    return "; ".join(filter(None, parts))
