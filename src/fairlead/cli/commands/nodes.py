"""`nodes`: what there is, in which state, and how much of it is used."""

from __future__ import annotations

import click

from fairlead.api import names
from fairlead.api.resources import JOBS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from fairlead.api.status import Forbidden, NotFound
from fairlead.cli.connection.common import Common, Format, common, now
from fairlead.cli.connection.transport import Api
from fairlead.cli.views.devices import DeviceCounts, device_counts
from fairlead.cli.views.node import REASON_COLUMNS, reason_rows
from fairlead.cli.views.nodes import columns, node_rows, node_uses
from fairlead.input.errors import Code, fail

_GRANT = (
    "an administrator lets you see nodes and what is on them: kubectl create clusterrolebinding "
    "NAME --clusterrole=fairlead-cluster-view --user=YOU"
)


@click.command(
    epilog="""Examples:

    \b
      fairlead nodes
      fairlead nodes -o wide               also CPUs, memory and names
      fairlead nodes -l fairlead.dev/pool=h100
      fairlead nodes -R                    each node that is not simply ready, and why
    """
)
@click.option("-l", "--selector", metavar="LABELS", default="", help="Only nodes that match.")
@click.option("-R", "--reasons", is_flag=True,
              help="Each node that is not simply ready, and why.")  # fmt: skip
@common()
def nodes(common_: Common, *, selector: str, reasons: bool) -> None:
    """Show nodes, grouped by pool and state.

    A pool is what the label fairlead.dev/pool says; on a cluster of `fairlead up` nodes without
    it are grouped as local and virtual. Devices that claims ask for are
    shown to who may list resourceslices and resourceclaims.
    """
    try:
        _show(common_, common_.connect(), selector, reasons=reasons)
    except Forbidden as error:
        raise fail(Code.FORBIDDEN, error.message, help=(_GRANT,)) from error


def _show(common_: Common, api: Api, selector: str, *, reasons: bool) -> None:
    if common_.format in (Format.JSON, Format.YAML, Format.NAME):
        raw = api.list(NODES.raw, label_selector=selector)
        if common_.format is Format.NAME:
            common_.lines(item["metadata"]["name"] for item in raw)
        else:
            common_.structured(raw)
        return
    found = api.list(NODES, label_selector=selector)
    if reasons:
        common_.table(REASON_COLUMNS, reason_rows(found, now()), empty="all nodes are ready")
        return
    jobs = api.list(JOBS)
    others = api.list(PODS, label_selector=f"!{names.JOB_NAME}")
    at = now()
    devices = _devices(api)
    rows = node_rows(node_uses(found, jobs, others, at), at, devices)
    matching = f" match '{selector}'" if selector else ""
    common_.table(columns(devices), rows, empty=f"no nodes{matching}")


def _devices(api: Api) -> DeviceCounts:
    """Return the devices that claims ask for; none for who may not see them, or before DRA."""
    try:
        slices = api.list(RESOURCE_SLICES)
        return device_counts(slices, api.list(RESOURCE_CLAIMS) if slices else ())
    except (Forbidden, NotFound):
        return {}
