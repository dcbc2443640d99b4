"""Reports of faulty hosts to Azure: Guest Health Reporting, of the provider Microsoft.Impact.

learn.microsoft.com, "Report node health by using Guest Health Reporting" and "Guest Health
Reporting impact categories": for machines of high-performance sizes, in subscriptions that are
registered for it. A report names the machine by its unique id; the name of its host, which a
program in the machine could read, is not needed beside it.
"""

from __future__ import annotations

from typing import Any

from fairlead.api.values.times import format_time
from fairlead.cloud.microsoft.azure_api import Azure, Bucket, Place, sent
from fairlead.model.health.machines import DESCRIPTION_MAX, HostReport

_VERSION = "2023-02-01-preview"
_HEALTHY, _UNHEALTHY = "Resource.Hpc.Healthy", "Resource.Hpc.Unhealthy."
_GENERIC = "HpcGenericFailure"
#: What checks of the agent find, as Azure names it; the longest beginning counts.
_CATEGORIES = {
    "gpu-xid 48": "XID48DoubleBitECC", "gpu-xid 79": "XID79FallenOffBus",
    "gpu-xid 94": "XID94ContainedECCError", "gpu-xid 95": "XID95UncontainedECCError",
    "gpu-xid": "GpuXIDError", "gpu-lost": "HpcMissingGpu", "gpu-count": "HpcMissingGpu",
    "gpu-rows": "HpcRowRemapFailure", "gpu-dcgm": "HpcGpuDcgmDiagFailure",
    "gpu-driver": "UnhealthyGPUNvidiasmi", "nvswitch-sxid": "NvLink",
    "infiniband": "IBPerformance",
}  # fmt: skip


def category_of(report: HostReport) -> str:
    """Return Azure's category of a report: that of the worst fault that has one."""
    if report.is_over:
        return _HEALTHY
    for check in report.checks:
        known = [each for each in _CATEGORIES if f"{check} ".startswith((f"{each} ", f"{each}-"))]
        if known:
            return _UNHEALTHY + _CATEGORIES[max(known, key=len)]
    return _UNHEALTHY + _GENERIC


async def report_host(azure: Azure, place: Place, report: HostReport, vm_id: str) -> None:
    """Report the host of a machine; the same report replaces itself. CloudError."""
    path = (
        f"/subscriptions/{place.subscription}/providers/Microsoft.Impact/workloadImpacts/"
        f"{report.token}?api-version={_VERSION}"
    )
    properties: dict[str, Any] = {
        "startDateTime": format_time(report.since), "impactCategory": category_of(report),
        "impactDescription": report.description[:DESCRIPTION_MAX],
        "impactedResourceId": report.machine.removeprefix("azure://"),
        "additionalProperties": {"VmUniqueId": vm_id},
    }  # fmt: skip
    body = {"properties": properties}
    await azure.call(place, Bucket.REPORT, lambda client: sent(client, "PUT", path, body))
