"""The scrapes that a Prometheus server is configured for, from its configuration (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.doctor.audit.event import seconds_of
from fairlead.input.plain import UnreadableText, yaml_document

INTERVAL_DEFAULT = "1m"
LIMITS = ("sample_limit", "target_limit", "label_limit", "label_value_length_limit",
          "body_size_limit")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScrapeJob:
    """One scrape: its interval, and the limits that it has."""

    name: str
    interval_seconds: float
    limits: tuple[str, ...]


def parse_scrape_jobs(text: str) -> tuple[ScrapeJob, ...]:
    """Return the scrapes of a configuration in YAML; ValueError."""
    try:
        value: Any = yaml_document(text)
    except UnreadableText as error:
        raise ValueError(f"the configuration: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("the configuration is not a mapping")  # noqa: TRY004 # from the world
    global_: Any = value.get("global")
    jobs: Any = value.get("scrape_configs")
    defaults: Mapping[str, Any] = global_ if isinstance(global_, dict) else {}
    return tuple(
        _job(defaults, each) for each in (jobs if isinstance(jobs, list) else ())
        if isinstance(each, dict)
    )  # fmt: skip


def _job(defaults: Mapping[str, Any], job: Mapping[str, Any]) -> ScrapeJob:
    merged = {**defaults, **job}
    interval = seconds_of(str(merged.get("scrape_interval", INTERVAL_DEFAULT)))
    limits = tuple(name for name in LIMITS if merged.get(name) not in (None, 0, "0", "0B", ""))
    return ScrapeJob(str(job.get("job_name", "")), interval, limits)
