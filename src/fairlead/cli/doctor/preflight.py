"""Reads a manifest and a trace for `doctor preflight`, and reports the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.cli.connection.common import Common, Format, dump
from fairlead.cli.doctor.audit import analyse, model_of
from fairlead.cli.submitting.manifest import read_bytes
from fairlead.doctor.preflight import agents_of, forecast, preflight_lines, preflight_values
from fairlead.input.errors import CliError, Code, Problem, fail
from fairlead.input.plain import yaml_documents
from fairlead.terminal import joined


def run_preflight(common: Common, format_: str, options: Mapping[str, Any]) -> int:
    """Report on each workload of the manifest; the exit code is the worst one."""
    agents = agents_of(_objects(options["file"]), common.namespace or "default")
    if not agents:
        raise fail(
            Code.UNKNOWN_KIND, f"'{options['file']}' has no DaemonSet, Deployment or StatefulSet"
        )
    model = model_of(options["objects"], int(options["traced_nodes"]), int(options["seats"]))
    trace = analyse(common, options["trace"], model)
    results = [forecast(agent, trace, model, int(options["nodes"])) for agent in agents]
    if format_ == "text":
        common.emit("\n".join(joined(preflight_lines(each)) for each in results))
    else:
        common.emit(dump([preflight_values(each) for each in results], Format(format_)))
    codes = [each.exit_code() for each in results]
    return max((code for code in codes if code != 3), default=3) or (3 if 3 in codes else 0)


def _objects(file: str) -> list[dict[str, Any]]:
    try:
        documents = yaml_documents(read_bytes(file).decode("utf-8-sig"))
    except ValueError as error:
        raise CliError(Problem(Code.MANIFEST_SYNTAX, str(error), where=file)) from error
    found: list[dict[str, Any]] = []
    for each in documents:
        if isinstance(each, dict):
            items = each.get("items")
            found += [item for item in items if isinstance(item, dict)] if isinstance(
                items, list) else [each]  # fmt: skip
    return found
