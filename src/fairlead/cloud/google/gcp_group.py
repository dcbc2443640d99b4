"""A zonal managed instance group: its machines, label and operations, and deletions by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from fairlead.api import names
from fairlead.cloud.calls import Announced
from fairlead.cloud.errors import NotThere, Stated
from fairlead.cloud.google.gcp_api import WORDS, Gcp, GcpServices, stated_errors
from fairlead.cloud.provider import CloudError
from fairlead.model.health.machines import DESCRIPTION_MAX, HostReport, InstanceState
from fairlead.model.health.windows import window_text

#: Machines of one deleteInstances, and of one page of a list.
DELETIONS_MAX, PAGE_MAX, PAGES_MAX = 1_000, 500, 200
_LABEL_SECONDS = 300.0
#: Of maintenance without an end.
_MAINTENANCE_SECONDS = 86_400.0
#: An operation that lasts longer is looked at no more.
OPERATION_SECONDS_MAX = 600.0

_STOPPING_ACTIONS = ("DELETING", "ABANDONING")
_STARTING_ACTIONS = (
    "CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING", "RESTARTING", "RESUMING", "STARTING",
    "VERIFYING",
)  # fmt: skip
_STOPPING_STATUSES = (
    "DEPROVISIONING", "PENDING_STOP", "STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED",
    "TERMINATED",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Managed:
    """A machine as its group lists it. `status`: of the machine; "" while there is none."""

    name: str
    action: str
    status: str
    errors: tuple[Stated, ...] = ()

    @property
    def exists(self) -> bool:
        """True once resources are the machine's own: before, it may still fail for want of them."""
        return self.status not in ("", "PENDING", "PROVISIONING")

    @property
    def state(self) -> InstanceState:
        """What a fleet makes of it. A machine that its group repairs will be back."""
        if self.action in _STOPPING_ACTIONS:
            return InstanceState.STOPPING
        if self.action in _STARTING_ACTIONS or self.status in ("", "REPAIRING") or not self.exists:
            return InstanceState.STARTING
        is_stopping = self.status in _STOPPING_STATUSES
        return InstanceState.STOPPING if is_stopping else InstanceState.RUNNING


@dataclass(slots=True)
class InstanceGroup:
    """One zonal managed instance group."""

    gcp: Gcp
    project: str
    zone: str
    name: str
    #: Maintenance ahead, by the name of the machine.
    announced: Announced = field(init=False)
    #: The machines whose maintenance would begin at once, if it were asked for.
    may_begin: frozenset[str] = frozenset()
    _pool: str = ""
    _pool_at: float = float("-inf")
    #: Operations that delete machines: since when, and which.
    _deleting: dict[str, tuple[float, frozenset[str]]] = field(
        default_factory=dict[str, tuple[float, frozenset[str]]]
    )

    def __post_init__(self) -> None:
        """Begin without announcements."""
        self.announced = Announced(self._read_maintenance)

    async def _read_maintenance(self) -> Mapping[str, str]:
        """Return the maintenance ahead of machines whose names begin with that of the group."""
        out, may_begin, token = dict[str, str](), set[str](), ""
        for _ in range(PAGES_MAX):
            page = await self.call(
                GcpServices.INSTANCES, "list", filter=f"name eq {self.name}-.*",
                max_results=PAGE_MAX, page_token=token,
            )  # fmt: skip
            for each in page.items:
                ahead = each.resource_status.upcoming_maintenance
                if window := _window(ahead.window_start_time, ahead.window_end_time):
                    out[each.name] = window
                    if ahead.can_reschedule and ahead.maintenance_status == "PENDING":
                        may_begin.add(each.name)
            token = page.next_page_token
            if not token:
                break
        self.may_begin = frozenset(may_begin)
        return out

    async def begin_maintenance(self, machine: str) -> None:
        """Begin the maintenance ahead of a machine; CloudError."""
        await self.call(GcpServices.INSTANCES, "perform_maintenance_unary", instance=machine)

    async def report_host(self, machine: str, report: HostReport) -> None:
        """Report the host of a machine as faulty, once however often it is sent; CloudError."""
        is_gpu = any(each.startswith("gpu-") for each in report.checks)
        fault = {
            "behavior": "UNRECOVERABLE_GPU_ERROR" if is_gpu else "BEHAVIOR_UNSPECIFIED",
            "description": report.description[:DESCRIPTION_MAX],
        }  # fmt: skip
        body = {"disruption_schedule": "IMMEDIATE", "fault_reasons": [fault]}
        await self.call(
            GcpServices.INSTANCES, "report_host_as_faulty_unary", instance=machine,
            request_id=str(uuid5(NAMESPACE_URL, report.token)),
            instances_report_host_as_faulty_request_resource=body,
        )  # fmt: skip

    async def call(self, service: GcpServices, method: str, **fields: Any) -> Any:
        """Call a method about this group, or about the machines of its zone."""
        if service not in (GcpServices.OPERATIONS, GcpServices.INSTANCES):
            fields["instance_group_manager"] = self.name
        return await self.gcp.call(service, method, self.project, zone=self.zone, **fields)

    async def machines(self) -> tuple[dict[str, Managed], bool]:
        """Return the machines by name, and whether all pages came; CloudError without the first.

        NotThere: there is no such group.
        """
        found: dict[str, Managed] = {}
        token = ""
        for _ in range(PAGES_MAX):
            try:
                page = await self.call(
                    GcpServices.GROUPS, "list_managed_instances",
                    max_results=PAGE_MAX, page_token=token,
                )  # fmt: skip
            except NotThere as error:
                text = f"GCP: there is no managed instance group {self.name!r} in {self.zone}"
                raise NotThere(text) from error
            except CloudError:
                if not token:
                    raise
                return found, False
            for each in page.managed_instances:
                errors = tuple(stated_errors(each.last_attempt.errors))
                name = each.name or each.instance.rpartition("/")[2]
                found[name] = Managed(name, each.current_action, each.instance_status, errors)
            token = page.next_page_token
            if not token:
                return found, True
        return found, False

    async def pool(self) -> str:
        """Return the pool that the group's label names; "" without one."""
        now = asyncio.get_running_loop().time()
        if now >= self._pool_at + _LABEL_SECONDS:
            group = await self.call(GcpServices.GROUPS, "get")
            labels = group.all_instances_config.properties.labels
            self._pool, self._pool_at = str(labels.get(names.CLOUD_POOL, "")), now
        return self._pool

    async def operation(self, name: str) -> Any:
        """Return an operation; None when the cloud keeps it no more."""
        try:
            return await self.call(GcpServices.OPERATIONS, "get", operation=name)
        except NotThere:
            return None

    async def delete(self, machines: Sequence[str]) -> None:
        """Delete machines by name; those that are gone are no mistake. CloudError."""
        failed: list[Stated] = []
        now = asyncio.get_running_loop().time()
        for name, (since, _) in tuple(self._deleting.items()):
            operation = await self.operation(name)
            is_late = now >= since + OPERATION_SECONDS_MAX
            if operation is None or is_late or is_done(operation):
                del self._deleting[name]
                failed += stated_errors(operation.error if operation is not None else None)
        if failed:
            raise WORDS.error_of(failed)
        under_way = {machine for _, part in self._deleting.values() for machine in part}
        left = [name for name in machines if name not in under_way]
        for start in range(0, len(left), DELETIONS_MAX):
            part = left[start : start + DELETIONS_MAX]
            operation = await self.call(
                GcpServices.GROUPS, "delete_instances_unary",
                instance_group_managers_delete_instances_request_resource={
                    "instances": [f"zones/{self.zone}/instances/{name}" for name in part],
                    "skip_instances_on_validation_error": True,
                },
            )  # fmt: skip
            if is_done(operation) and (errors := stated_errors(operation.error)):
                raise WORDS.error_of(errors)
            if not is_done(operation):
                self._deleting[operation.name] = (now, frozenset(part))


def _window(start: str, end: str) -> str:
    """Return START/END of times as Compute Engine writes them; "" without a start."""
    try:
        begin = datetime.fromisoformat(start).timestamp()
        over = datetime.fromisoformat(end).timestamp() if end else begin + _MAINTENANCE_SECONDS
    except ValueError:
        return ""
    return window_text(begin, over)


def is_done(operation: Any) -> bool:
    """Return whether an operation has ended; its error is empty unless it failed."""
    return operation.status.name == "DONE"
