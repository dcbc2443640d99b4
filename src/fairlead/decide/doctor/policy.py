"""The options of the doctor as a controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoctorPolicy:
    """The options; those before `start_seconds` are settings."""

    enabled: bool = True
    #: Between the ends of two examinations.
    interval_seconds: int = 300
    #: Pages of metrics outside the API server, each "NAME=URL" as for `fairlead doctor --metrics`.
    metrics: tuple[str, ...] = ()
    #: Members of etcd by their URLs for clients; a Prometheus, and its jobs as SOURCE=REGEX.
    etcd: tuple[str, ...] = ()
    prometheus: str = ""
    prometheus_jobs: tuple[str, ...] = ()
    #: Has the directories `etcd` and `prometheus` with what gives access to them.
    credentials_directory: str = "/etc/fairlead-doctor"
    #: Before the first one of a process: the mirrors are listed meanwhile, and a process that
    #: crashes again and again examines nothing.
    start_seconds: float = 20.0
    #: Between two requests of an examination.
    pause_seconds: float = 1.0
    #: A report whose findings stay the same is confirmed this often.
    confirm_seconds: float = 900.0
    #: Events of one change of the report.
    events_max: int = 20
