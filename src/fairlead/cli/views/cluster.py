"""What `up` and `status` say (pure)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fairlead.api.jobs.job import JobState
from fairlead.app.configuration.settings import OPEN_ADDRESS, Settings
from fairlead.app.queries.messages import ClusterStatus
from fairlead.app.run_file import KUBECONFIG_FILE, LOG_FILE, RunningCluster
from fairlead.cli.formats.table import Align, Column, render_table
from fairlead.cli.formats.text import bytes_text
from fairlead.decide.words import duration, plural
from fairlead.terminal import joined

_SERVICE_COLUMNS = (
    Column("SERVICE"), Column("STATE"), Column("CRASHES", Align.RIGHT),
    Column("LAST ERROR", may_cut=True),
)  # fmt: skip


def first_commands(settings: Settings, running: RunningCluster, *, default: bool) -> str:
    """Return what to know and to try after the start. `default`: commands find it by themselves."""
    kubeconfig = settings.data / KUBECONFIG_FILE
    nodes = (
        f"this machine and {plural(settings.nodes, 'virtual node')}"
        if settings.nodes
        else "this machine"
    )
    if running.nodes_kept:
        nodes += f"; {running.nodes_kept:,} more are in use until a later start finds them idle"
    option = "" if default else f" --data {settings.data}"
    lines = [
        f"Cluster     {running.server}",
        f"Nodes       {nodes}",
        f"Kubeconfig  {kubeconfig}",
    ]
    if not settings.is_loopback:
        lines.append(f"Warning     {OPEN_ADDRESS}")
    lines += ["", "Try"]
    if not default:
        lines.append(f"  export FAIRLEAD_KUBECONFIG={kubeconfig}")
    lines += [
        "  fairlead run -- hostname",
        "  fairlead nodes",
        "  fairlead web",
        f"  kubectl --kubeconfig {kubeconfig} get nodes",
        f"  fairlead down{option}",
    ]
    return joined(lines)


def status_facts(
    running: RunningCluster, status: ClusterStatus, data_bytes: int, now: float
) -> dict[str, Any]:
    """Return the status as plain data for -o json and yaml."""
    return {
        "server": running.server,
        "uptimeSeconds": round(now - running.started_at, 3),
        "dataBytes": data_bytes,
        **msgspec.to_builtins(status),
    }


def status_text(
    data: Path, running: RunningCluster, status: ClusterStatus, measured: tuple[int, float]
) -> str:
    """Return the status for people; `measured` is (bytes of the data directory, the instant)."""
    data_bytes, now = measured
    nodes = [f"{status.nodes.local} local", f"{status.nodes.virtual:,} virtual"]
    if status.nodes.other:
        nodes.append(f"{status.nodes.other:,} other")
    known = [state.value for state in JobState]
    states = sorted(status.jobs, key=lambda s: (known.index(s) if s in known else len(known), s))
    jobs = ", ".join(f"{status.jobs[state]:,} {state}" for state in states) or "none"
    facts = (
        ("Cluster", running.server),
        ("Version", status.version),
        ("Process", f"{running.pid}, up {duration(now - running.started_at)}"),
        ("Nodes", ", ".join(nodes)),
        ("Jobs", jobs),
        ("Pods", f"{status.pods:,}"),
        ("Data", f"{data} ({bytes_text(data_bytes)})"),
        ("Kubeconfig", str(data / KUBECONFIG_FILE)),
        ("Log", str(data / LOG_FILE)),
    )
    rows = [(s.name, s.state if s.ready else f"{s.state}, not ready", str(s.crash_count),
             s.last_error or "-") for s in status.services]  # fmt: skip
    text = joined(f"{label:<12}{value}" for label, value in facts)
    return f"{text}\n{render_table(_SERVICE_COLUMNS, rows)}"
